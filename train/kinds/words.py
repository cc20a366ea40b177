"""What metrics.json says, in words: figures, and the sentences that all kinds of label share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfrecord_io.format.groups import plural_unit
from tfrecord_io.pages import page
from tfrecord_io.terminal.printing import counted, printable
from train.kinds.measures import URGENT_CLASSES, known, parts_of
from train.kinds.task import Task

#: With more classes than this, no table or chart has a column of each; metrics.json has all.
MAX_CLASSES = 20

# ---- figures


def title_of(name: str) -> str:
    """Returns the name of a measure in metrics.json as words.

    >>> title_of("urgent/auc")
    'area under the ROC, urgent'
    """
    _, label = parts_of(name)
    return known(name).title + (f", {label}" if label else "")


def decimal(value: float | None) -> str:
    """Returns a number with three significant digits; a dash if it is not defined."""
    if value is None:
        return "–"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def thousandths(value: float | None) -> str:
    """Returns a number with three digits behind the point; a dash if it is not defined."""
    return "–" if value is None else f"{value:.3f}"


def percent(value: float | None) -> str:
    """Returns a share in percent; a dash if it is not defined."""
    return "–" if value is None else f"{100 * value:.1f} %"


def form_of(name: str) -> Callable[[float | None], str]:
    """Returns the function that writes a value of a measure, by its unit."""
    return {"share": percent, "decimal": thousandths, "number": decimal}[known(name).unit]


def ends(score: Mapping[str, Any], form: Callable[[float | None], str]) -> str:
    """Returns an interval, such as `84.0 to 95.2`; `form` writes a number of it."""
    return " to ".join(form(score[end]).removesuffix(" %") for end in ("low", "high"))


def with_interval(
    score: Mapping[str, Any],
    form: Callable[[float | None], str] = decimal,
    before: str = "95 % interval: ",
) -> str:
    """Returns an entry of metrics.json, such as `3.1 (95 % interval: 2.5 to 4)`."""
    if score["value"] is None:
        return "undefined"
    interval = f" ({before}{ends(score, form)})" if score["low"] is not None else ""
    return f"{form(score['value'])}{interval}"


def total_of(metrics: Mapping[str, Any], name: str) -> int | None:
    """Returns the number of images that a measure is a share of; None if it is not such a share."""
    counts, total = metrics["label_counts"], metrics["num_examples"]
    measure, label = parts_of(name)
    labels = URGENT_CLASSES if name.startswith("urgent/") else (label,)
    positives = sum(counts.get(label, 0) for label in labels)
    # Of several labels, the accuracy is a share of the answers.
    totals = {"accuracy": total} if "confusion_matrix" in metrics else {}
    return (totals | {"sensitivity": positives, "specificity": total - positives}).get(measure)


def count_of(value: float | None, total: int | None) -> str:
    """Returns the count behind a share, such as `2 of 8`; empty if the total is not known."""
    return f"{round(value * total):,} of {total:,}" if total and value is not None else ""


def share(metrics: Mapping[str, Any], name: str, before: str = "") -> str:
    """Returns a share, its count and its interval, such as `90.0 % (18 of 20; 84.0 to 95.2 %)`."""
    score = metrics["scores"][name]
    behind = [count_of(score["value"], total_of(metrics, name))]
    if score["low"] is not None:
        behind.append(f"{before}{ends(score, percent)} %")
    text = "; ".join(filter(None, behind))
    return percent(score["value"]) + (f" ({text})" if text else "")


def measured_images(metrics: Mapping[str, Any]) -> str:
    """Returns what was measured, such as `80 images of 17 patients`, if these are known."""
    noun = "known patient" if metrics.get("images_without_patient") else "patient"
    return images_of(metrics["num_examples"], metrics["num_patients"], noun)


def images_of(num_images: int, num_patients: int | None, noun: str = "patient") -> str:
    """Returns numbers of images and patients; None or 0 of patients who are not known."""
    people = f" of {counted(num_patients, noun)}" if num_patients else ""
    return f"{counted(num_images, 'image')}{people}"


def row_of_counts(
    name: str, counts: Sequence[float], totals: Sequence[float], right: Sequence[int]
) -> list[Any]:
    """Returns a row of `Task.table_of_answers`; `right` has the places of the right answers."""
    cells = []
    for place, (count, total) in enumerate(zip(counts, totals, strict=True)):
        share = float(count / max(total, 1))
        look = "heat right" if place in right else "heat"
        cells.append(page.Cell(float(count), f"({100 * share:.0f} %)", look, share))
    return [name, *cells]


# ---- sentences on the labels


def doubt(metrics: Mapping[str, Any], name: str, chance: float, rival: str) -> str | None:
    """Returns a warning if a result may be chance, or None.

    The chance is what a rival without a network reaches, such as `always giving the mean`.
    """
    low, high = metrics["scores"][name]["low"], metrics["scores"][name]["high"]
    if low is None or high is None or low > chance:
        return None
    result = "is worse" if high < chance else "may be no better"
    place = f"lies {'below' if high < chance else 'around'} {form_of(name)(chance)}"
    return f"This result {result} than {rival}: the interval of the {title_of(name)} {place}."


# ---- the terminal


def describe(task: Task, metrics: Mapping[str, Any]) -> str:
    """Returns what stands on top of the page as a few lines of text."""
    intervals = "without intervals"
    if metrics["bootstrap_samples"]:
        intervals = f"with 95 % intervals over {plural_unit(metrics['bootstrap_by'])}"
    first, *others = task.verdict(metrics)
    lines = [f"{metrics['split']}: {measured_images(metrics)}", f"  It {first}"]
    lines += [f"  {sentence}" for sentence in others]
    parts = {f"{intervals}:": {name: metrics["scores"][name] for name in task.run_measures}}
    if by_patient := metrics.get("by_patient"):
        parts["by patient, each counts once, answered by the mean of the images:"] = by_patient
    width = max(len(title_of(name)) for name in task.run_measures)
    for title, scores in parts.items():
        lines.append(title)
        for name, score in scores.items():
            lines.append(f"  {title_of(name):<{width}}  {with_interval(score, form_of(name), '')}")
    lines += [f"  note: {note}" for note in metrics["notes"]]
    return "\n".join(printable(line.rstrip()) for line in lines)

"""What metrics.json says, in words: figures, and the sentences that all kinds of label share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tfrecord_io.groups import plural_unit
from tfrecord_io.kinds.registry import kind_in
from tfrecord_io.printing import counted, listed, printable
from train.kinds.measures import URGENT_CLASSES, known, parts_of

#: Most classes in a table; with more classes, it has the worst.
MAX_CLASSES = 20

# ---- figures


def title_of(name: str) -> str:
    """Returns the name of a measure in metrics.json as words.

    >>> title_of("urgent/auc")
    'area under the ROC, urgent'
    """
    _, label = parts_of(name)
    return known(name).title + (f", {label}" if label else "")


def unit_of(name: str) -> str:
    """Returns how to show a measure of metrics.json, see `Measure`."""
    return known(name).unit


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


def hundredths(value: float | None) -> str:
    """Returns a share in hundredths; only an exact 0 or 1 becomes 0 or 100."""
    if value is None:
        return "–"
    rounded = round(100 * value)
    return f"{100 * value:.1f}" if rounded in (0, 100) and value not in (0, 1) else f"{rounded}"


def with_interval(
    score: Mapping[str, float | None],
    told: Callable[[float | None], str] = decimal,
    before: str = "95 % interval: ",
) -> str:
    """Returns a number and its interval, such as `3.1 (95 % interval: 2.5 to 4)`.

    The score is an entry of metrics.json; `told` returns a number of it as text.
    """
    if score["value"] is None:
        return "undefined"
    if score["low"] is None:
        return told(score["value"])
    low, high = (told(score[end]).removesuffix(" %") for end in ("low", "high"))
    return f"{told(score['value'])} ({before}{low} to {high})"


def score_text(metrics: Mapping[str, Any], name: str) -> str:
    """Returns a measure of metrics.json and its interval, such as `90.1 % (84.0 to 95.2)`."""
    told = decimal if unit_of(name) == "number" else percent
    return with_interval(metrics["scores"][name], told, "")


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
    """Returns the count behind a share; empty if there is none, as behind a mean over runs.

    >>> count_of(0.25, 8), count_of(0.3, 8)
    ('2 of 8', '')
    """
    if not total or value is None:
        return ""
    count = round(value * total)
    # metrics.json has six digits.
    return f"{count:,} of {total:,}" if abs(value * total - count) <= 1e-6 * total else ""


def share(metrics: Mapping[str, Any], name: str, told: str = "") -> str:
    """Returns a share, its count and its interval, such as `90 % (18 of 20; 84 to 95 %)`."""
    score = metrics["scores"][name]
    behind = [count_of(score["value"], total_of(metrics, name))]
    if score["low"] is not None:
        behind.append(f"{told}{hundredths(score['low'])} to {hundredths(score['high'])} %")
    text = "; ".join(filter(None, behind))
    return f"{hundredths(score['value'])} %" + (f" ({text})" if text else "")


def of_patients(metrics: Mapping[str, Any]) -> str:
    """Returns a phrase such as ` of 17 patients`; empty if none is known."""
    if not metrics["num_patients"]:
        return ""
    noun = "known patient" if metrics.get("images_without_patient") else "patient"
    return f" of {counted(metrics['num_patients'], noun)}"


def row_of_counts(
    name: str, counts: Sequence[float], totals: Sequence[float], right: Sequence[int]
) -> dict[str, Any]:
    """Returns a row of `Task.answers`; `right` has the places of the right answers."""
    cells = [
        {"count": float(count), "share": float(count / max(total, 1)), "is_right": place in right}
        for place, (count, total) in enumerate(zip(counts, totals, strict=True))
    ]
    return {"name": name, "cells": cells}


# ---- sentences on the labels


def worst_classes(metrics: Mapping[str, Any], most: int) -> list[str]:
    """Returns up to `most` classes with the lowest sensitivity, the worst first.

    Of equal ones, the larger class comes first. Classes without images come last.
    """
    counts = metrics["label_counts"]

    def rank(name: str) -> tuple[bool, float, int]:
        sensitivity = metrics["scores"][f"sensitivity/{name}"]["value"]
        return sensitivity is None, sensitivity or 0.0, -counts[name]

    return sorted(counts, key=rank)[:most]


def shown_classes(metrics: Mapping[str, Any]) -> list[str]:
    """Returns the classes of the tables: all, or the worst if there are many."""
    names = list(metrics["label_counts"])
    return names if len(names) <= MAX_CLASSES else worst_classes(metrics, MAX_CLASSES)


def best_and_worst(metrics: Mapping[str, Any], measure: str) -> list[str]:
    """Returns a sentence about the labels with the highest and lowest measure, if they differ."""
    counts, scores = metrics["label_counts"], metrics["scores"]
    values = {label: scores[f"{measure}/{label}"]["value"] for label in counts}
    values = {label: value for label, value in values.items() if value is not None}
    if len(set(values.values())) < 2:
        return []
    best = max(values, key=values.__getitem__)
    worst = min(values, key=lambda label: (values[label], -counts[label]))
    highest, lowest = (share(metrics, f"{measure}/{label}") for label in (best, worst))
    return [f"It recognises {best} best, {highest}, and {worst} worst, {lowest}."]


def doubt(
    metrics: Mapping[str, Any], name: str, chance: float, rival: str, measure: str, told: str
) -> str | None:
    """Returns a warning if a result may be chance, or None.

    The chance is what a rival without a network reaches, such as `always giving the mean`.
    `measure` and `told` are the measure and the chance in words.
    """
    low, high = metrics["scores"][name]["low"], metrics["scores"][name]["high"]
    if low is None or high is None or low > chance:
        return None
    result, place = "may be no better", "reaches down to"
    if high < chance:
        result, place = "is worse", "lies below"
    return f"This result {result} than {rival}: the interval of {measure} {place} {told}."


# ---- sentences beside figures that would mislead if they stood alone


def cautions_of_answers(metrics: Mapping[str, Any]) -> list[str]:
    """Returns sentences about labels that are given to every image, or to none."""
    given: dict[tuple[float | None, ...], list[str]] = {}
    for name in metrics["label_counts"]:
        rates = (f"{rate}/{name}" for rate in ("sensitivity", "specificity"))
        values = tuple(metrics["scores"].get(rate, {}).get("value") for rate in rates)
        given.setdefault(values, []).append(printable(name))
    every, no = "sensitivity of 100 % at a specificity", "specificity of 100 % at a sensitivity"
    return [
        f"{who} image is called {listed(given[rates])}: a {merit} of 0 % is no merit."
        for who, merit, rates in (("Every", every, (1.0, 0.0)), ("No", no, (0.0, 1.0)))
        if rates in given
    ]


def cautions_of_probabilities(metrics: Mapping[str, Any]) -> list[str]:
    """Returns sentences about thresholds and calibrations that do not do what they are for."""
    sentences = []
    for entry in metrics.get("thresholds") or ():
        rates = [entry["test"][rate]["value"] for rate in ("sensitivity", "specificity")]
        if None not in rates and sum(rates) <= 1:
            sentences.append(
                f"The threshold for {printable(entry['view'])} separates nothing here: it is "
                f"reached by {percent(rates[0])} of the positive images, and by "
                f"{percent(1 - rates[1])} of the others."
            )
    calibration = metrics.get("calibration") or {}
    before, after = (calibration.get(f"ece_{when}", 0) for when in ("before", "after"))
    if after > before:
        sentences.append(
            "The temperature makes the probabilities of these images worse: the calibration error "
            f"is {percent(before)} without it and {percent(after)} with it."
        )
    slopes = {
        printable(parts_of(name)[1]): score
        for name, score in metrics["scores"].items()
        if parts_of(name)[0] == "calibration_slope" and None not in (score["value"], score["low"])
    }
    extreme = [name for name, score in slopes.items() if score["high"] < 1]
    cautious = [name for name, score in slopes.items() if score["low"] > 1]
    return sentences + [
        f"The probabilities of {listed(names)} are too {fault}: the interval of the calibration "
        f"slope lies {side} 1."
        for names, fault, side in ((extreme, "extreme", "below"), (cautious, "cautious", "above"))
        if names
    ]


# ---- the terminal


def describe(metrics: Mapping[str, Any]) -> str:
    """Returns the content of metrics.json as a few lines of text."""
    hidden = set(metrics["label_counts"]).difference(shown_classes(metrics))
    shown = [name for name in metrics["scores"] if name.partition("/")[2] not in hidden]
    told = {name: printable(title_of(name)) for name in shown}
    width = max(20, *map(len, told.values()))
    lines = [
        *summary(metrics),
        f"all measures, with 95 % intervals over {plural_unit(metrics['bootstrap_by'])}:",
        f"  {'loss':<{width}} {decimal(metrics['loss'])}",
        *(f"  {told[name]:<{width}} {score_text(metrics, name)}" for name in shown),
    ]
    if hidden:
        plural = kind_in(metrics).plural
        lines.append(f"  metrics.json has {len(hidden):,} more {plural}, of higher sensitivity")
    return "\n".join([*lines, *remarks(metrics)])


def summary(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Yields what a clinician asks first, in up to five lines."""
    weights = f", weights of epoch {metrics['best_epoch']}" if metrics.get("best_epoch") else ""
    people = of_patients(metrics)
    yield f"{metrics['split']}: {metrics['num_examples']:,} images{people}{weights}"
    scores, interval = metrics["scores"], "95 % interval: "
    if "mae" in scores:
        yield f"  off by {with_interval(scores['mae'])} on average"
        return
    yield f"  right answers: {share(metrics, 'accuracy', interval)}"
    if "urgent/sensitivity" in scores:
        yield (
            f"  urgent scans found: {share(metrics, 'urgent/sensitivity', interval)}; others "
            f"not called urgent: {share(metrics, 'urgent/specificity', interval)}"
        )
    (worst,) = worst_classes(metrics, 1)
    least = share(metrics, f"sensitivity/{worst}", interval)
    yield f"  found least often: {printable(worst)}, {least}"
    yield f"  probabilities are off by {percent(scores['ece']['value'])} on average"


def remarks(metrics: Mapping[str, Any]) -> list[str]:
    """Returns lines on the exported thresholds, and on what limits the figures."""
    lines = []
    for entry in metrics.get("thresholds", ()):
        rates = (
            f"{rate} {with_interval(entry['test'][rate], percent, '')}"
            for rate in ("sensitivity", "specificity")
        )
        threshold = f"{printable(entry['view'])} at least {decimal(entry['threshold'])}"
        lines.append(f"  threshold: {threshold}: {', '.join(rates)}")
    cautions = cautions_of_answers(metrics) + cautions_of_probabilities(metrics)
    return lines + [f"  note: {note}" for note in (*metrics["notes"], *cautions)]

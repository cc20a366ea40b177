"""Figures as words, and what the pages of all kinds of label say in the same way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfrecord_io.printing import counted
from train.kinds.measures import CALIBRATION_LINE, URGENT_CLASSES, bare_name

#: Most classes in a table; with more classes, it has the worst.
MAX_CLASSES = 20

# Measures whose names in metrics.json are not words.
_TITLES = {
    "auc": "area under the ROC",
    "brier": "Brier score",
    "ece": "calibration error",
    "weighted_error": "mean penalty",
    "macro_auc": "mean area",
    "quadratic_kappa": "quadratic weighted kappa",
    "mae": "mean error",
    "rmse": "root mean square error",
    "r2": "R²",
    "limit_low": "lower limit",
    "limit_high": "upper limit",
    "ppv": "PPV",
    "npv": "NPV",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MistakenAnswer:
    """A wrong answer for an image.

    Attributes:
        place: of the example among the predictions.
        output: the network's output that gave the answer.
        true: the truth, in words.
        predicted: the answer, in words.
        probability: given to the answer; None for a number.
        is_negative: whether the answer is that the output's label is not there.
    """

    place: int
    output: int
    true: str
    predicted: str
    probability: float | None
    is_negative: bool = False


def title_of(name: str) -> str:
    """Returns the name of a measure in metrics.json as words.

    >>> title_of("urgent/auc")
    'area under the ROC, urgent'
    """
    measure, _, label = name.partition("/")
    if measure == "urgent":
        measure, label = label, measure
    return _TITLES.get(measure, measure.replace("_", " ")) + (f", {label}" if label else "")


def decimal(value: float | None) -> str:
    """Returns a number with three significant digits; a dash if it is not defined."""
    if value is None:
        return "–"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def with_interval(
    score: Mapping[str, float | None],
    told: Callable[[float | None], str] = decimal,
    before: str = "95 % interval: ",
) -> str:
    """Returns a number and its interval, such as `3.1 (95 % interval: 2.5 to 4)`.

    Args:
        score: an entry of `scores` in metrics.json.
        told: returns a number as text.
        before: text before the interval.
    """
    if score["value"] is None:
        return "undefined"
    if score["low"] is None:
        return told(score["value"])
    low, high = (told(score[end]).removesuffix(" %") for end in ("low", "high"))
    return f"{told(score['value'])} ({before}{low} to {high})"


def percent(value: float | None) -> str:
    """Returns a share in percent; a dash if it is not defined."""
    return "–" if value is None else f"{100 * value:.1f} %"


def is_share_of_one(measure: str) -> bool:
    """Whether a measure of probabilities, such as `auc/CNV`, is shown in percent."""
    return bare_name(measure) not in {"brier", *CALIBRATION_LINE}


def unit_of(measure: str, *, is_number: bool) -> str:
    """Returns how to show a measure: a `share` in percent, an area as `decimal`, or a `number`.

    Args:
        measure: its name in metrics.json.
        is_number: whether the labels are numbers.

    >>> unit_of("auc/CNV", is_number=False), unit_of("mae", is_number=True)
    ('decimal', 'number')
    """
    # The weighted error is a mean of penalties of up to 4.
    if is_number or measure == "weighted_error" or not is_share_of_one(measure):
        return "number"
    return "decimal" if bare_name(measure) in {"auc", "average_precision"} else "share"


def total_of(metrics: Mapping[str, Any], name: str) -> int | None:
    """Returns the number of images that a measure is a share of; None if it is not such a share."""
    counts, total = metrics["label_counts"], metrics["num_examples"]
    measure, _, label = name.partition("/")
    if measure == "urgent":
        measure, positives = label, sum(counts[urgent] for urgent in URGENT_CLASSES)
    else:
        positives = counts.get(label, 0)
    is_of_images = "confusion_matrix" in metrics
    totals = {"sensitivity": positives, "specificity": total - positives}
    return total if name == "accuracy" and is_of_images else totals.get(measure)


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
    """Returns a share, its count and its interval, such as `90 % (18 of 20; 84 to 95 %)`.

    Args:
        metrics: content of metrics.json.
        name: of one of its `scores`.
        told: text before the interval.
    """
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
    known = "known " if metrics.get("images_without_patient") else ""
    return f" of {counted(metrics['num_patients'], f'{known}patient')}"


def hundredths(value: float | None) -> str:
    """Returns a share in hundredths; only an exact 0 or 1 becomes 0 or 100."""
    if value is None:
        return "–"
    rounded = round(100 * value)
    return f"{100 * value:.1f}" if rounded in (0, 100) and value not in (0, 1) else f"{rounded}"


def row_of_counts(
    name: str, counts: Sequence[float], totals: Sequence[float], right: Sequence[int]
) -> dict[str, Any]:
    """Returns a row of `Task.answers`; `right` has the places of the right answers."""
    cells = [
        {"count": float(count), "share": float(count / max(total, 1)), "is_right": place in right}
        for place, (count, total) in enumerate(zip(counts, totals, strict=True))
    ]
    return {"name": name, "cells": cells}


def doubt(
    score: Mapping[str, float | None], chance: float, *, rival: str, measure: str, told: str
) -> str | None:
    """Returns a warning if a result may be chance, or None.

    Args:
        score: an entry of `scores` in metrics.json.
        chance: its value for the rival.
        rival: what needs no network, such as `always giving the mean`.
        measure: the interval's measure, in words.
        told: the chance, in words.
    """
    low, high = score["low"], score["high"]
    if low is None or high is None or low > chance:
        return None
    if high < chance:
        return f"This result is worse than {rival}: the interval of {measure} lies below {told}."
    return (
        f"This result may be no better than {rival}: the interval of {measure} reaches down to "
        f"{told}."
    )


def best_and_worst(metrics: Mapping[str, Any], measure: str, best: str, worst: str) -> list[str]:
    """Returns a sentence about the labels with the highest and lowest measure, if they differ."""
    names = [f"{measure}/{label}" for label in (best, worst)]
    if len({metrics["scores"][name]["value"] for name in names}) < 2:
        return []
    highest, lowest = (share(metrics, name) for name in names)
    return [f"It recognises {best} best, {highest}, and {worst} worst, {lowest}."]


def worst_classes(metrics: Mapping[str, Any], most: int) -> list[str]:
    """Returns the classes with the lowest sensitivity, the worst first.

    Of classes with equal sensitivity, the larger comes first. Classes without images come last.

    Args:
        metrics: content of metrics.json.
        most: the largest number of classes to return.
    """
    counts = metrics["label_counts"]

    def rank(name: str) -> tuple[bool, float, int]:
        sensitivity = metrics["scores"][f"sensitivity/{name}"]["value"]
        return sensitivity is None, sensitivity or 0.0, -counts[name]

    return sorted(counts, key=rank)[:most]

"""Figures as words, and what the pages of all kinds of label say in the same way."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

#: Most classes in a table; with more classes, it has the worst.
MAX_CLASSES = 20


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


def decimal(value: float | None) -> str:
    """Returns a number with four digits; a dash if it is not defined."""
    return "–" if value is None else f"{value:.4g}"


def with_interval(score: Mapping[str, float | None]) -> str:
    """Returns a number and its interval, such as `3.1 (95 % interval: 2.5 to 4)`."""
    if score["low"] is None:
        return decimal(score["value"])
    return (
        f"{decimal(score['value'])} (95 % interval: {decimal(score['low'])} to "
        f"{decimal(score['high'])})"
    )


def percent(value: float | None) -> str:
    """Returns a share in percent; a dash if it is not defined."""
    return "–" if value is None else f"{100 * value:.1f} %"


def of_hundred(score: Mapping[str, float | None], told: str = "") -> str:
    """Returns a share and its interval, such as `90 of 100 (84 to 95)`.

    Args:
        score: an entry of `scores` in metrics.json.
        told: text before the interval.
    """
    text = f"{hundredths(score['value'])} of 100"
    if score["low"] is None:
        return text
    return f"{text} ({told}{hundredths(score['low'])} to {hundredths(score['high'])})"


def hundredths(value: float | None) -> str:
    """Returns a share in hundredths; only an exact 0 or 1 becomes 0 or 100."""
    if value is None:
        return "–"
    rounded = round(100 * value)
    return f"{100 * value:.1f}" if rounded in (0, 100) and value not in (0, 1) else f"{rounded}"


def row_of_counts(
    name: str, counts: Sequence[int], totals: Sequence[int], right: Sequence[int]
) -> dict[str, Any]:
    """Returns a row of `Task.answers`; `right` has the places of the right answers."""
    cells = [
        {"count": int(count), "share": float(count / max(total, 1)), "is_right": place in right}
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

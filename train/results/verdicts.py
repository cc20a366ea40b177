"""Sentences that stand beside figures which would mislead if they stood alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfrecord_io.printing import listed, printable
from train.kinds.words import percent


def of_answers(metrics: Mapping[str, Any]) -> list[str]:
    """Returns sentences about labels that are given to every image, or to none.

    Args:
        metrics: content of metrics.json.
    """
    given: dict[tuple[float | None, ...], list[str]] = {}
    for name in metrics["label_counts"]:
        rates = (f"{rate}/{name}" for rate in ("sensitivity", "specificity"))
        values = tuple(metrics["scores"].get(rate, {}).get("value") for rate in rates)
        given.setdefault(values, []).append(printable(name))
    sentences = []
    if every := given.get((1.0, 0.0)):
        sentences.append(
            f"Every image is called {listed(every)}: a sensitivity of 100 % at a specificity of "
            "0 % is no merit."
        )
    if never := given.get((0.0, 1.0)):
        sentences.append(
            f"No image is called {listed(never)}: a specificity of 100 % at a sensitivity of 0 % "
            "is no merit."
        )
    return sentences


def of_probabilities(metrics: Mapping[str, Any]) -> list[str]:
    """Returns sentences about thresholds and calibrations that do not do what they are for."""
    sentences = []
    for entry in metrics.get("thresholds") or ():
        rates = [entry["test"][rate]["value"] for rate in ("sensitivity", "specificity")]
        if None not in rates and sum(rates) <= 1:
            name = printable(entry["view"])
            sentences.append(
                f"The threshold for {name} separates nothing here: it is reached by "
                f"{percent(rates[0])} of the positive images, and by {percent(1 - rates[1])} of "
                "the others."
            )
    calibration = metrics.get("calibration") or {"ece_before": 0, "ece_after": 0}
    if calibration["ece_after"] > calibration["ece_before"]:
        sentences.append(
            "The temperature makes the probabilities of these images worse: the calibration error "
            f"is {percent(calibration['ece_before'])} without it and "
            f"{percent(calibration['ece_after'])} with it."
        )
    slopes = {
        name.partition("/")[0 if name.endswith("/calibration_slope") else 2]: score
        for name, score in metrics["scores"].items()
        if "calibration_slope" in name and None not in (score["value"], score["low"])
    }
    for fault, side, is_off in (
        ("extreme", "below", lambda score: score["high"] < 1),
        ("cautious", "above", lambda score: score["low"] > 1),
    ):
        if names := [printable(name) for name, score in slopes.items() if is_off(score)]:
            sentences.append(
                f"The probabilities of {listed(names)} are too {fault}: the interval of the "
                f"calibration slope lies {side} 1."
            )
    return sentences

"""Thresholds that reach a wanted sensitivity, and what calibration changes.

Thresholds are chosen on the validation split and exported beside the model. They are measured on
the test split, applied by `train/predict.py`, and measured elsewhere by `train/evaluate.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfrecord_io.format.manifest import check_types
from tfrecord_io.terminal.errors import UserError
from train.kinds.measures import predictive_values, rates_of
from train.kinds.task import View
from train.results.bootstrap import behind_rates, rounded, with_intervals
from train.results.predictions import Predictions

#: In the export folder.
FILE_NAME = "thresholds.json"

# What a file of thresholds must hold; it may be a stranger's.
_ENTRY = {
    "view": str, "labels": [str], "wanted_sensitivity": float, "threshold": float,
    "val": {"num_positives": int},
}  # fmt: skip


def describe_calibration(predictions: Predictions, temperature: float) -> dict[str, float]:
    """Returns a temperature and the expected calibration error without and with it.

    The predictions are on other images than those that it was fitted to.
    """
    task, ones = predictions.task, np.ones((1, len(predictions.truths)))
    raw = task.cool(predictions.probabilities, 1 / temperature)
    before = dataclasses.replace(predictions, probabilities=raw)
    errors = (task.score(each, ones)["ece"][0] for each in (before, predictions))
    names = ("temperature", "ece_before", "ece_after")
    return {name: round(float(n), 6) for name, n in zip(names, (temperature, *errors), strict=True)}


def threshold_for_sensitivity(
    ranking: np.ndarray, is_positive: np.ndarray, wanted: float
) -> float | None:
    """Returns a threshold that reaches a sensitivity, above 0 and at most 1, and hardly more.

    It is halfway between the ranking of a positive and the next one below, so that rounding, as in
    another graph of the same network, moves no image across it; None if there are no positives.
    """
    of_positives = np.sort(ranking[is_positive])[::-1]
    if not len(of_positives):
        return None
    # Round first: 0.95 * 20 must give 19, even if the float product is slightly larger.
    num_wanted = int(np.ceil(round(wanted * len(of_positives), 9)))
    last = of_positives[num_wanted - 1]
    return (float(last) + float(ranking[ranking < last].max(initial=0.0))) / 2


def choose_thresholds(val: Predictions, wanted: float) -> list[dict[str, Any]]:
    """Returns a threshold of each view that reaches a sensitivity on validation.

    Returns:
        the content of export/thresholds.json: dicts with `view`, the `labels` whose probabilities
        are added up, `wanted_sensitivity`, `threshold`, and `val` with `num_positives` and rates. A
        view without a positive image or whose threshold separates nothing has none.
    """
    task, names, chosen = val.task, val.label_names, []
    for view in task.views(names):
        ranking, is_positive = view.ranking(val.probabilities), view.is_positive(val.truths)
        threshold = threshold_for_sensitivity(ranking, is_positive, wanted)
        if threshold is None:
            continue
        rates = _sides(ranking >= threshold, is_positive, np.ones(len(ranking)))
        # Else positives reach it no more often than others do.
        if sum(rates.values()) > 1:
            entry = {"view": view.name, "labels": [names[place] for place in view.places]}
            entry |= {"wanted_sensitivity": float(wanted), "threshold": threshold}
            reached = {name: rounded(float(rate)) for name, rate in rates.items()}
            entry["val"] = {"num_positives": int(is_positive.sum())} | reached
            chosen.append(entry)
    return chosen


def read_thresholds(export: Path, label_names: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the thresholds of an export folder; none if none were exported.

    Raises:
        UserError: if the file is damaged or about other labels.
    """
    path = export / FILE_NAME
    if not path.is_file():
        return []
    try:
        chosen = json.loads(path.read_text(encoding="utf-8"))
        check_types(chosen, [_ENTRY], "thresholds")
        for entry in chosen:
            if not 0 <= entry["threshold"] <= len(entry["labels"]):
                raise ValueError(f"{entry['threshold']!r} cannot be a probability")
            view_of(entry, label_names)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path} does not hold thresholds for the labels of this model ({error!r}); copy the "
            "run again, or remove the file to go without thresholds"
        ) from error
    return chosen


def view_of(entry: Mapping[str, Any], label_names: Sequence[str]) -> View:
    """Returns the view that a threshold is about."""
    return View(entry["view"], [label_names.index(name) for name in entry["labels"]])


def parse_prevalences(text: str, views: Sequence[str]) -> dict[str, float]:
    """Returns the prevalence of each view that a flag such as `0.1` or `CNV=0.02,DME=0.01` names.

    Raises:
        UserError: if one is not between 0 and 1, or is of something else or given twice.
    """
    cells = [cell.rpartition("=") for cell in filter(None, text.split(","))]
    names = [name for name, *_ in cells]
    if names == [""]:  # one number for all
        names, cells = list(views), cells * len(views)
    try:
        shares = {name: float(number) for name, (*_, number) in zip(names, cells, strict=True)}
        is_right = len(shares) == len(cells) and shares.keys() <= set(views)
    except ValueError:
        is_right = False
    if not is_right or not all(0 < share < 1 for share in shares.values()):
        raise UserError(
            "--prevalence: expected a number between 0 and 1, or one such number for some "
            f"of {', '.join(views)}; received {text!r}"
        )
    return shares


def measure_thresholds(
    chosen: Sequence[Mapping[str, Any]],
    predictions: Predictions,
    num_samples: int,
    seed: int,
    prevalences: Mapping[str, float] = {},
) -> list[dict[str, Any]]:
    """Returns the entry `thresholds` of metrics.json: what the chosen thresholds give elsewhere.

    A threshold for a label that the answers do not have is left out. The predictions are on other
    images than those of the choice, with the temperature applied. The prevalences are shares of
    positives where the network is to be used, by view.

    Returns:
        the entries of `chosen`, each with `test`: `num_positives`, `num_negatives`, and with their
        intervals (`value`, `low`, `high`) `sensitivity`, `specificity`, and where a prevalence is
        stated `ppv` and `npv`.
    """
    names, groups, measured = predictions.label_names, predictions.groups.codes, []
    for entry in chosen:
        if not set(entry["labels"]) <= set(names):
            continue
        view = view_of(entry, names)
        is_called = view.ranking(predictions.probabilities) >= entry["threshold"]
        is_positive, prevalence = view.is_positive(predictions.truths), prevalences.get(view.name)
        rates = with_intervals(
            functools.partial(_sides, is_called, is_positive, prevalence=prevalence),
            groups,
            behind_rates(is_positive, groups),
            num_samples=num_samples,
            seed=seed,
        )
        num_positives = int(is_positive.sum())
        counts = {"num_positives": num_positives, "num_negatives": len(groups) - num_positives}
        measured.append({**entry, "test": counts | rates})
    return measured


def _sides(
    is_called: np.ndarray,
    is_positive: np.ndarray,
    weights: np.ndarray,
    prevalence: float | None = None,
) -> dict[str, np.ndarray]:
    """Returns sensitivity and specificity, and PPV and NPV where a prevalence is stated."""
    rates = rates_of(is_called, is_positive, weights)
    sides = {name: rates[name] for name in ("sensitivity", "specificity")}
    return sides | (predictive_values(**sides, prevalence=prevalence) if prevalence else {})

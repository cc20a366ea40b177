"""Thresholds that reach a wanted sensitivity, and what calibration changes.

Both are fitted on the validation split alone and then measured on the test split.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from train.kinds.measures import expected_calibration_error, ratios
from train.kinds.task import Task, View
from train.results.bootstrap import bootstrap, group_indices, num_groups_of, score_entry

#: With more classes than this, only those that count together get a threshold.
MAX_VIEWS = 40


def describe_calibration(
    task: Task,
    temperature: float,
    *,
    fitted_on: str,
    num_examples: int,
    before: np.ndarray,
    after: np.ndarray,
    truths: np.ndarray,
) -> dict[str, Any]:
    """Returns the entry `calibration` of metrics.json.

    Args:
        task: what the network answers.
        temperature: the fitted temperature.
        fitted_on: name of the split that it was fitted on.
        num_examples: images in that split.
        before: probabilities [num_examples, num_labels] of the evaluated split, before the
            temperature.
        after: the same after the temperature.
        truths: of the evaluated split.

    Returns:
        JSON values: the temperature, what it was fitted on, and the expected calibration error
        before and after it.
    """
    return {
        "temperature": round(temperature, 6),
        "fitted_on": fitted_on,
        "num_examples": num_examples,
        "ece_before": round(calibration_error(task, before, truths), 6),
        "ece_after": round(calibration_error(task, after, truths), 6),
    }


def calibration_error(task: Task, probabilities: np.ndarray, truths: np.ndarray) -> float:
    """Returns the expected calibration error, see `measures.expected_calibration_error`."""
    choices, right = task.choices(probabilities, truths)
    is_correct, ones = choices.argmax(-1) == right, np.ones(len(right))
    return float(expected_calibration_error(choices.max(-1), is_correct, ones))


def views_of(task: Task, label_names: Sequence[str]) -> list[View]:
    """Returns the views that get a threshold: each label by itself, and the urgent classes.

    A single class needs no threshold, and very many classes get none.
    """
    views = task.views(label_names)
    if len(label_names) > MAX_VIEWS or (task.kind.one_hot and len(label_names) < 2):
        return [view for view in views if view.is_group]
    return views


def threshold_for_sensitivity(
    ranking: np.ndarray, is_positive: np.ndarray, wanted: float
) -> float | None:
    """Returns the largest threshold that reaches a sensitivity.

    Args:
        ranking: [num_examples], a score such as the probability of the class.
        is_positive: bool [num_examples].
        wanted: the sensitivity, above 0 and at most 1.

    Returns:
        the score of one of the positives, or None if there are no positives.
    """
    of_positives = np.sort(ranking[is_positive])[::-1]
    if not len(of_positives):
        return None
    # Round first: 0.95 * 20 must give 19, even if the float product is slightly larger.
    num_wanted = int(np.ceil(round(wanted * len(of_positives), 9)))
    return float(of_positives[num_wanted - 1])


def at_threshold(
    ranking: np.ndarray, is_positive: np.ndarray, threshold: float, weights: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns the sensitivity and the specificity of a threshold; NaN where undefined.

    Args:
        ranking: [num_examples]; a score at or above the threshold means positive.
        is_positive: bool [num_examples].
        threshold: in the unit of the ranking.
        weights: float64 [..., num_examples], how often each example counts.

    Returns:
        `sensitivity` and `specificity`, float64 [...] each.
    """
    is_called = ranking >= threshold
    return {
        "sensitivity": ratios(weights @ (is_called & is_positive), weights @ is_positive),
        "specificity": ratios(weights @ (~is_called & ~is_positive), weights @ ~is_positive),
    }


def choose_thresholds(
    views: Sequence[View],
    *,
    val: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    groups: Sequence[str] | None,
    wanted: float,
    num_samples: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Returns the entry `thresholds` of metrics.json: chosen on validation, measured on test.

    Args:
        views: of which to choose a threshold; one without a positive validation image is left out.
        val: (probabilities [num_examples, num_classes], which examples have which classes, bool
            [num_examples, num_classes]), with the temperature applied.
        test: the same for the test split.
        groups: the patient of each test example; None for intervals by image.
        wanted: sensitivity to reach on validation.
        num_samples: bootstrap resamples; 0 for no intervals.
        seed: seed of the bootstrap.

    Returns:
        a list of dicts with `view`, `wanted_sensitivity`, `threshold`, `val` and `test`. `val` and
        `test` have `num_positives`, `sensitivity` and `specificity`; the measures of `test` have
        intervals (`low` and `high`).
    """
    indices = group_indices(groups, len(test[1]))
    chosen = []
    for view in views:
        ranking, is_positive = _side(val, view)
        threshold = threshold_for_sensitivity(ranking, is_positive, wanted)
        if threshold is None:
            continue
        chosen.append(
            {
                "view": view.name,
                "wanted_sensitivity": wanted,
                "threshold": threshold,
                "val": _reached(ranking, is_positive, threshold, None, num_samples=0, seed=seed),
                "test": _reached(
                    *_side(test, view), threshold, indices, num_samples=num_samples, seed=seed
                ),
            }
        )
    return chosen


def _side(split: tuple[np.ndarray, np.ndarray], view: View) -> tuple[np.ndarray, np.ndarray]:
    """Returns each example's (probability of the view's classes, whether it is of one of them)."""
    probabilities, has = split
    # float64 survives the round trip through JSON, so a stored threshold gives the same answers.
    ranking = probabilities[:, view.places].astype(np.float64).sum(-1)
    return ranking, has[:, view.places].any(-1)


def _reached(
    ranking: np.ndarray,
    is_positive: np.ndarray,
    threshold: float,
    groups: np.ndarray | None,
    *,
    num_samples: int,
    seed: int,
) -> dict[str, Any]:
    """Returns what a threshold gives on a split; with intervals if groups are given."""

    def measure(weights: np.ndarray) -> dict[str, np.ndarray]:
        return at_threshold(ranking, is_positive, threshold, weights)

    point = measure(np.ones(len(ranking)))
    reached: dict[str, Any] = {"num_positives": int(is_positive.sum())}
    if groups is None:
        return reached | {
            name: score_entry(value, np.nan, np.nan, num_groups=0, is_share=True)["value"]
            for name, value in point.items()
        }
    intervals = bootstrap(measure, groups, num_samples=num_samples, seed=seed)
    for name, side in (("sensitivity", is_positive), ("specificity", ~is_positive)):
        interval, behind = intervals.get(name, (np.nan, np.nan)), num_groups_of(groups[side])
        reached[name] = score_entry(point[name], *interval, num_groups=behind, is_share=True)
    return reached

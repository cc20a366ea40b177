"""Thresholds that reach a wanted sensitivity, and what calibration changes.

Both are fitted on the validation split alone and then measured on the test split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from train.kinds.scores import (
    OCT_CLASSES,
    URGENT_CLASSES,
    bootstrap,
    expected_calibration_error,
    num_groups_by_class,
    ratios,
)
from train.results.metrics import group_indices, score_entry

#: With more classes than this, only the urgent view gets a threshold.
MAX_VIEWS = 40


def describe_calibration(
    temperature: float,
    *,
    fitted_on: str,
    num_examples: int,
    before: np.ndarray,
    after: np.ndarray,
    labels: np.ndarray,
) -> dict[str, Any]:
    """Returns the entry `calibration` of metrics.json.

    Args:
        temperature: the fitted temperature.
        fitted_on: name of the split that it was fitted on.
        num_examples: images in that split.
        before: probabilities [num_answers, num_classes] of the evaluated split, before the
            temperature.
        after: the same after the temperature.
        labels: int [num_answers] of the evaluated split.

    Returns:
        JSON values: the first three arguments, and the expected calibration error before and after
        the temperature.
    """
    return {
        "temperature": round(temperature, 6),
        "fitted_on": fitted_on,
        "num_examples": num_examples,
        "ece_before": round(calibration_error(before, labels), 6),
        "ece_after": round(calibration_error(after, labels), 6),
    }


def calibration_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Returns the expected calibration error, see `scores.expected_calibration_error`.

    Args:
        probabilities: [num_examples, num_classes].
        labels: int [num_examples].
    """
    is_correct = probabilities.argmax(-1) == labels
    ones = np.ones(len(labels))
    return float(expected_calibration_error(probabilities.max(-1), is_correct, ones))


def default_views(
    label_names: Sequence[str], *, one_hot: bool = True
) -> dict[str, tuple[str, ...]]:
    """Returns the classes that count as positive, by the name of the view.

    Each class is a view against the rest. The OCT classes also have the view `urgent`, which comes
    first. With one class, or with more than `MAX_VIEWS`, there are no views of single classes.

    Of several labels an image can have none, so a single one is a view too; and their probabilities
    do not add up to that of an urgent image.

    Args:
        label_names: names of the classes.
        one_hot: whether each image has exactly one of them, see `LabelKind`.
    """
    urgent = {"urgent": URGENT_CLASSES} if one_hot and set(label_names) == OCT_CLASSES else {}
    if len(label_names) > MAX_VIEWS or (one_hot and len(label_names) < 2):
        return urgent
    return urgent | {name: (name,) for name in label_names}


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
    views: Mapping[str, Sequence[str]],
    label_names: Sequence[str],
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
        views: the positive classes by the name of the view; a view is left out if its classes have
            no validation image.
        label_names: names of the classes.
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
    found = []
    for view, classes in views.items():
        is_member = np.isin(label_names, classes)
        ranking, is_positive = _view(val, is_member)
        threshold = threshold_for_sensitivity(ranking, is_positive, wanted)
        if threshold is None:
            continue
        found.append(
            {
                "view": view,
                "wanted_sensitivity": wanted,
                "threshold": threshold,
                "val": _reached(ranking, is_positive, threshold, None, num_samples=0, seed=seed),
                "test": _reached(
                    *_view(test, is_member), threshold, indices, num_samples=num_samples, seed=seed
                ),
            }
        )
    return found


def _view(
    split: tuple[np.ndarray, np.ndarray], is_member: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns each example's (probability of the view's classes, whether it is of one of them)."""
    probabilities, has = split
    # float64 survives the round trip through JSON, so a stored threshold gives the same answers.
    return probabilities[:, is_member].astype(np.float64).sum(-1), has[:, is_member].any(-1)


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
    num_with, num_without = num_groups_by_class(is_positive.astype(int), groups, 2)
    behind = {"sensitivity": int(num_with[1]), "specificity": int(num_without[1])}
    for name, value in point.items():
        interval = intervals.get(name, (np.nan, np.nan))
        reached[name] = score_entry(value, *interval, num_groups=behind[name], is_share=True)
    return reached

"""Probabilities that can be trusted, and thresholds that reach a wanted sensitivity.

Both are chosen on the validation split alone; what they give is then measured on the test split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import optimize

from train.metrics import group_indices, score_entry
from train.scores import (
    OCT_CLASSES,
    URGENT_CLASSES,
    bootstrap,
    expected_calibration_error,
    num_groups_by_class,
    ratios,
)

#: Temperatures that can be fitted: no network needs its logits changed by more than this, and a
#: fit that wants to is a fit to too few images.
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.25, 4.0

#: How much is known of a temperature before any image is seen, see `fit_temperature`.
_PRIOR_STRENGTH = 2.0

#: Rows of logits in memory as float64 at once.
_CHUNK = 8192

#: Classes that each get a threshold of their own; of more, only the urgent view does.
MAX_VIEWS = 40


def fit_temperature(scores: np.ndarray, labels: np.ndarray) -> float:
    """Returns the temperature T for which softmax(scores / T) is the most likely to be right.

    Minimizes the cross-entropy on the labels. Source: Guo et al. 2017, "On calibration of modern
    neural networks", section 4.2. Added to it is a weak belief in T = 1, worth about two to ten
    images: a Gamma distribution of 1/T whose mode is 1. It does not matter for a hundred images,
    and it keeps the answer sensible for a few: where all of them are right, or there is only one
    class, or none was given at all (then T is 1), the cross-entropy alone has no minimum. The sum
    is convex in 1/T, so that the one minimum is found, the same each time.

    Args:
        scores: float [num_examples, num_classes], logits or logarithms of probabilities.
        labels: int [num_examples].

    Returns:
        T, from 0.25 to 4; above 1 for a network that is too sure of itself.

    Raises:
        ValueError: if a score is NaN or positive infinity, or the true class has minus infinity.
    """
    of_truth = scores[np.arange(len(labels)), labels]
    if np.isnan(scores).any() or np.isposinf(scores).any() or not np.isfinite(of_truth).all():
        raise ValueError(
            "expected finite logits or log probabilities to fit a temperature to, received some "
            "that are not; see log_probabilities"
        )

    def loss(log_temperature: float) -> float:
        inverse = np.exp(-log_temperature)
        total = _PRIOR_STRENGTH * (inverse - 1 + log_temperature)
        for start in range(0, len(labels), _CHUNK):
            rows = scores[start : start + _CHUNK].astype(np.float64)
            # Against the true class, where the cross-entropy is the logarithm of a sum.
            rows -= of_truth[start : start + _CHUNK, None]
            total += np.logaddexp.reduce(rows * inverse, axis=-1).sum()
        return float(total)

    bounds = (np.log(MIN_TEMPERATURE), np.log(MAX_TEMPERATURE))
    found = optimize.minimize_scalar(
        loss, bounds=bounds, method="bounded", options={"xatol": 1e-7, "maxiter": 200}
    )
    return float(np.exp(found.x))


def log_probabilities(probabilities: np.ndarray) -> np.ndarray:
    """Returns float64 logarithms, finite even where a probability was rounded down to nothing."""
    tiny = np.finfo(np.float32).tiny
    return np.log(np.maximum(probabilities.astype(np.float64), tiny))


def apply_temperature(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """Returns what softmax(logits / T) gives where softmax(logits) gave these probabilities.

    The order of the classes stays, except that two which come closer than a float can tell may
    become equal.

    Args:
        probabilities: [..., num_classes], each row summing to 1.
        temperature: T.

    Returns:
        probabilities of the same shape and dtype.
    """
    logarithms = log_probabilities(probabilities) / temperature
    powers = np.exp(logarithms - logarithms.max(-1, keepdims=True))
    return (powers / powers.sum(-1, keepdims=True)).astype(probabilities.dtype)


def describe_calibration(
    temperature: float,
    *,
    fitted_on: str,
    num_examples: int,
    probabilities: np.ndarray,
    labels: np.ndarray,
) -> dict[str, Any]:
    """Returns what metrics.json says of the temperature.

    Args:
        temperature: that was fitted.
        fitted_on: name of the split it was fitted on.
        num_examples: images in that split.
        probabilities: [num_examples, num_classes] of the evaluated split, before the temperature.
        labels: int [num_examples] of the evaluated split.
    """
    errors = [
        calibration_error(rows, labels)
        for rows in (probabilities, apply_temperature(probabilities, temperature))
    ]
    return {
        "temperature": round(temperature, 6),
        "fitted_on": fitted_on,
        "num_examples": num_examples,
        "ece_before": round(errors[0], 6),
        "ece_after": round(errors[1], 6),
    }


def calibration_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Returns the expected calibration error of probabilities [num_examples, num_classes]."""
    is_correct = probabilities.argmax(-1) == labels
    ones = np.ones(len(labels))
    return float(expected_calibration_error(probabilities.max(-1), is_correct, ones))


def default_views(label_names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Returns the classes that count as positive, by the name of the view.

    Each class against the rest, and before them for OCT the urgent classes; of very many classes,
    none.
    """
    urgent = {"urgent": URGENT_CLASSES} if set(label_names) == OCT_CLASSES else {}
    if not 2 <= len(label_names) <= MAX_VIEWS:
        return urgent
    return urgent | {name: (name,) for name in label_names}


def threshold_for_sensitivity(
    ranking: np.ndarray, is_positive: np.ndarray, wanted: float
) -> float | None:
    """Returns the largest threshold at which enough positives rank at or above it.

    Args:
        ranking: [num_examples], such as the probability of the class.
        is_positive: bool [num_examples].
        wanted: share of the positives, above 0 and up to 1.

    Returns:
        the ranking of one of the positives, or None if there is none.

    Raises:
        ValueError: if the wanted share is out of range.
    """
    if not 0 < wanted <= 1:
        raise ValueError(f"a wanted sensitivity is above 0 and up to 1; received {wanted}")
    of_positives = np.sort(ranking[is_positive])[::-1]
    if not len(of_positives):
        return None
    # 0.95 of 20 is 19, also where the product is a hair above it.
    num_wanted = int(np.ceil(round(wanted * len(of_positives), 9)))
    return float(of_positives[num_wanted - 1])


def at_threshold(
    ranking: np.ndarray, is_positive: np.ndarray, threshold: float, weights: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns what a threshold gives: `sensitivity` and `specificity`, NaN where undefined.

    Args:
        ranking: [num_examples]; at or above the threshold counts as called positive.
        is_positive: bool [num_examples].
        threshold: in the unit of the ranking.
        weights: float64 [..., num_examples], how often each example counts.

    Returns:
        float64 [...] by name.
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
    test: tuple[np.ndarray, np.ndarray] | None,
    groups: Sequence[str] | None,
    wanted: float,
    num_samples: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Returns what metrics.json says of thresholds: chosen on validation, measured on test.

    Args:
        views: the classes that count as positive, by the name of the view; a view whose classes
            have no validation image is left out.
        label_names: of the classes.
        val: (probabilities [num_examples, num_classes], labels int [num_examples]), with the
            temperature applied.
        test: likewise, or None if there is no test split.
        groups: the patient of each test example, or None: then intervals are by image.
        wanted: sensitivity to reach on validation.
        num_samples: bootstrap resamples; 0 for no intervals.
        seed: of the bootstrap.

    Returns:
        a list of `view`, `wanted_sensitivity`, `threshold`, `val` and `test`; each of the last
        two is None, or has `num_positives`, `sensitivity` and `specificity`, on test with `low`
        and `high`.
    """
    found = []
    for view, classes in views.items():
        is_member = np.isin(label_names, classes)
        ranking, is_positive = _view(val, is_member)
        threshold = threshold_for_sensitivity(ranking, is_positive, wanted)
        if threshold is None:
            continue
        entry: dict[str, Any] = {
            "view": view,
            "wanted_sensitivity": wanted,
            "threshold": threshold,
            "val": _reached(ranking, is_positive, threshold, None, num_samples=0, seed=seed),
            "test": None,
        }
        if test is not None and len(test[1]):
            indices = group_indices(groups, len(test[1]))
            entry["test"] = _reached(
                *_view(test, is_member), threshold, indices, num_samples=num_samples, seed=seed
            )
        found.append(entry)
    return found


def _view(
    split: tuple[np.ndarray, np.ndarray], is_member: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (probability of the view's classes, whether an example is of one of them)."""
    probabilities, labels = split
    # In float64, so that a threshold read back from JSON compares as it did here.
    return probabilities[:, is_member].astype(np.float64).sum(-1), is_member[labels]


def _reached(
    ranking: np.ndarray,
    is_positive: np.ndarray,
    threshold: float,
    groups: np.ndarray | None,
    *,
    num_samples: int,
    seed: int,
) -> dict[str, Any]:
    """Returns what a threshold gives on a split, with intervals where groups are given."""

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

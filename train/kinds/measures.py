"""The arithmetic of the measures. Each takes weights: how often each example counts.

An example of a patient who is drawn twice in a bootstrap counts twice, see `results.bootstrap`.
Cost of a resample: about 20 ns per example for all measures except the areas under the curve, which
take 2 to 6 ns per example and class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

#: Classes of the OCT dataset, and those that need urgent referral to a doctor.
#: Source: Kermany et al. 2018, "Identifying medical diagnoses and treatable diseases by
#: image-based deep learning", Cell 172.
OCT_CLASSES = frozenset({"CNV", "DME", "DRUSEN", "NORMAL"})
URGENT_CLASSES = ("CNV", "DME")

#: Penalty points for an urgent case, by the predicted class, in the paper's weighted error. Any
#: other mistake costs 1. Source: Kermany et al. 2018.
URGENT_PENALTIES: Mapping[str, int] = {"NORMAL": 4, "DRUSEN": 2}

#: Number of equal-width bins of confidence. Source: Guo et al. 2017, "On calibration of modern
#: neural networks", section 2 (they use 15).
NUM_CALIBRATION_BINS = 15

# Smallest probability of the right answer in the cross-entropy, which keeps its logarithm finite.
_EPSILON = 1e-7


def cross_entropy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Returns the mean negative log probability of the true class, in nats.

    Args:
        probabilities: [num_examples, num_classes].
        labels: int [num_examples].
    """
    return mean_entropy(probabilities[np.arange(len(labels)), labels])


def mean_entropy(of_truth: np.ndarray) -> float:
    """Returns the mean negative log of the probabilities given to the truth, in nats."""
    return float(-np.log(np.maximum(of_truth.astype(np.float64), _EPSILON)).mean())


def confusion_matrix(labels: np.ndarray, predicted: np.ndarray, num_classes: int) -> np.ndarray:
    """Returns int64 [num_classes, num_classes], the number of examples by (true, predicted)."""
    places = labels * num_classes + predicted
    return np.bincount(places, minlength=num_classes**2).reshape(num_classes, num_classes)


def penalty_matrix(label_names: Sequence[str]) -> np.ndarray:
    """Returns float64 [num_classes, num_classes], the penalty points by (true, predicted).

    An urgent case called NORMAL costs 4, called DRUSEN 2, and any other mistake 1. Source: Kermany
    et al. 2018.
    """
    penalties = 1.0 - np.eye(len(label_names))
    for row, truth in enumerate(label_names):
        for column, answer in enumerate(label_names):
            if truth in URGENT_CLASSES and answer in URGENT_PENALTIES:
                penalties[row, column] = URGENT_PENALTIES[answer]
    return penalties


def area_under_curve(
    is_positive: np.ndarray, ranking: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Returns the area under the ROC curve for each weighting; NaN if one side has no weight.

    The area is the chance that a positive ranks above a negative; a tie counts half. Source: Hanley
    and McNeil 1982, "The meaning and use of the area under a ROC curve". scikit-learn's
    `roc_auc_score` gives the same values (a test compares them), but it sorts for each weighting,
    and a bootstrap needs thousands of them.

    Args:
        is_positive: bool [num_examples].
        ranking: [num_examples], the score; higher means more likely positive.
        weights: float64 [..., num_examples], how often each example counts.

    Returns:
        float64 [...].
    """
    levels = np.unique(ranking[is_positive])
    # An odd place equals a level of the positives; an even place lies between two levels.
    places = np.searchsorted(levels, ranking, "left") + np.searchsorted(levels, ranking, "right")
    num_places = 2 * len(levels) + 1
    positive = sums_by_place(places[is_positive], weights[..., is_positive], num_places)
    negative = sums_by_place(places, weights, num_places) - positive
    beaten = np.cumsum(negative, axis=-1) - negative / 2
    return ratios((positive * beaten).sum(-1), positive.sum(-1) * negative.sum(-1))


def average_precision(
    is_positive: np.ndarray, ranking: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Returns the average precision for each weighting; NaN without positives that count.

    The mean over the positives of the precision at their level: the share of positives among the
    examples that rank at least as high. scikit-learn's `average_precision_score` gives the same
    values (a test compares them), but takes one weighting at a time.

    Args and result are those of `area_under_curve`.
    """
    levels = np.unique(ranking[is_positive])
    # The highest level that an example reaches; 0 for those below all of them.
    places = np.searchsorted(levels, ranking, "right")
    num_places = len(levels) + 1
    positive = sums_by_place(places[is_positive], weights[..., is_positive], num_places)
    everyone = sums_by_place(places, weights, num_places)
    found, called = (
        np.cumsum(sums[..., ::-1], axis=-1)[..., ::-1] for sums in (positive, everyone)
    )
    precisions = np.nan_to_num(ratios(found, called))
    return ratios((positive * precisions).sum(-1), positive.sum(-1))


def expected_calibration_error(
    confidences: np.ndarray, is_correct: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Returns the mean distance between confidence and accuracy over bins of confidence.

    Source: Guo et al. 2017, equation 3.

    Args:
        confidences: [num_examples], the probability of the predicted class.
        is_correct: bool [num_examples].
        weights: float64 [..., num_examples], how often each example counts.

    Returns:
        float64 [...].
    """
    return bin_error(*calibration_bins(confidences, is_correct, weights))


def bin_error(
    total: np.ndarray, confidence_sums: np.ndarray, correct_sums: np.ndarray
) -> np.ndarray:
    """Returns the expected calibration error of the sums of `calibration_bins`, float64 [...]."""
    return ratios(np.abs(confidence_sums - correct_sums).sum(-1), total.sum(-1))


def calibration_bins(
    confidences: np.ndarray, is_correct: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the sums of each bin of confidence, see `expected_calibration_error`.

    Returns:
        (sum of weights, weighted sum of confidences, weight of correct examples), each [...,
        NUM_CALIBRATION_BINS].
    """
    # The paper's bins are open on the left: ((m-1)/M, m/M].
    bins = np.clip(np.ceil(confidences * NUM_CALIBRATION_BINS) - 1, 0, NUM_CALIBRATION_BINS - 1)
    bins = bins.astype(np.int64)
    total, confidence_sums, correct_sums = (
        sums_by_place(bins, weights * values, NUM_CALIBRATION_BINS)
        for values in (1.0, confidences, is_correct)
    )
    return total, confidence_sums, correct_sums


def sums_by_place(places: np.ndarray, values: np.ndarray, num_places: int) -> np.ndarray:
    """Returns [..., num_places]: the sums of values [..., n] by their place, int [n]."""
    rows = values.reshape(math.prod(values.shape[:-1]), len(places))
    # Row by row, the few sums of a row stay in the CPU's first-level cache.
    sums = np.stack([np.bincount(places, row, num_places) for row in rows])
    return sums.reshape(*values.shape[:-1], num_places)


def ratios(parts: np.ndarray, wholes: np.ndarray) -> np.ndarray:
    """Returns parts / wholes, which are not negative; NaN where the whole is 0."""
    undefined = np.full(np.broadcast_shapes(np.shape(parts), np.shape(wholes)), np.nan)
    return np.divide(parts, wholes, out=undefined, where=np.asarray(wholes) > 0)


#: What the areas under the curves of a view are computed by.
AREAS = {"auc": area_under_curve, "average_precision": average_precision}

"""The arithmetic of the measures. Each takes weights: how often each example counts.

An example of a patient who is drawn twice in a bootstrap counts twice, see `results.bootstrap`.
scikit-learn has the same measures (tests compare them), but takes one weighting at a time, and a
bootstrap needs thousands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

#: Classes of the OCT dataset, and those that need urgent referral to a doctor. Source: Kermany et
#: al. 2018, "Identifying medical diagnoses and treatable diseases by image-based deep learning".
OCT_CLASSES = frozenset({"CNV", "DME", "DRUSEN", "NORMAL"})
URGENT_CLASSES = ("CNV", "DME")

#: Number of equal-width bins of confidence. Source: Guo et al. 2017, "On calibration of modern
#: neural networks", section 2 (they use 15).
NUM_CALIBRATION_BINS = 15

#: Smallest probability whose logarithm is taken.
LEAST_PROBABILITY = 1e-7


def areas_under_curves(
    is_positive: np.ndarray, ranking: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the area under the ROC curve and the average precision for each weighting.

    The area is the chance that a positive ranks above a negative; a tie counts half. Source: Hanley
    and McNeil 1982, "The meaning and use of the area under a ROC curve". The average precision is
    the mean over the positives of the share of positives among the examples that rank at least as
    high. Both are NaN without positives that count, and the area without negatives.

    Args:
        is_positive: bool [num_examples].
        ranking: [num_examples], the score; higher means more likely positive.
        weights: float64 [..., num_examples], how often each example counts.
    """
    levels = np.unique(ranking[is_positive])
    # An odd place equals a level of the positives; an even place lies between two levels.
    places = np.searchsorted(levels, ranking, "left") + np.searchsorted(levels, ranking, "right")
    num_places = 2 * len(levels) + 1
    positive = sums_by_place(places[is_positive], weights[..., is_positive], num_places)
    everyone = sums_by_place(places, weights, num_places)
    found, called = (
        np.cumsum(sums[..., ::-1], axis=-1)[..., ::-1] for sums in (positive, everyone)
    )
    negative, total = everyone - positive, positive.sum(-1)
    beaten = np.cumsum(negative, axis=-1) - negative / 2
    precisions = np.nan_to_num(ratios(found, called))
    area = ratios((positive * beaten).sum(-1), total * negative.sum(-1))
    return area, ratios((positive * precisions).sum(-1), total)


def expected_calibration_error(
    confidences: np.ndarray, is_correct: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Returns the mean distance between confidence and accuracy over bins of confidence.

    Source: Guo et al. 2017, equation 3.

    Args:
        confidences: [num_examples, num_choices], the probability of each answer of an example.
        is_correct: bool of the same shape.
        weights: float64 [..., num_examples], how often each example counts.
    """
    # The paper's bins are open on the left: ((m-1)/M, m/M].
    bins = np.clip(np.ceil(confidences * NUM_CALIBRATION_BINS) - 1, 0, NUM_CALIBRATION_BINS - 1)
    gaps = sum(
        sums_by_place(places, weights * gap, NUM_CALIBRATION_BINS)
        for places, gap in zip(bins.T.astype(np.int64), (confidences - is_correct).T, strict=True)
    )
    return ratios(np.abs(gaps).sum(-1), weights.sum(-1) * confidences.shape[1])


def rates_of(
    is_called: np.ndarray, is_positive: np.ndarray, weights: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns `sensitivity`, `specificity`, `precision` and `f1`, [..., ...]; NaN if undefined.

    Precision is the share of the answers yes that are right, and F1 its harmonic mean with the
    sensitivity. Source: van Rijsbergen 1979, "Information retrieval", chapter 7. Answers yes and
    truths are bool [num_examples, ...]. The weights, float64 [..., num_examples], are how often
    each example counts.
    """
    found, called, positives, total = (
        weights @ side
        for side in (is_called & is_positive, is_called, is_positive, np.ones(is_called.shape))
    )
    return {
        "sensitivity": ratios(found, positives),
        "specificity": 1 - ratios(called - found, total - positives),
        "precision": ratios(found, called),
        "f1": ratios(2 * found, called + positives),
    }


def predictive_values(
    sensitivity: np.ndarray, specificity: np.ndarray, prevalence: float
) -> dict[str, np.ndarray]:
    """Returns the shares of right answers among yes and among no, by Bayes' rule.

    Source: Altman and Bland 1994, "Diagnostic tests 2: predictive values", BMJ 309:102. The share
    of positives in a collection of images is rarely that of the clinic where a model is used.

    The prevalence is the share of positives where the model is to be used. Returns `ppv` and `npv`,
    float64 [...] each like the rates; NaN where that answer is never given.
    """
    found, missed = prevalence * sensitivity, prevalence * (1 - sensitivity)
    alarms, left = (1 - prevalence) * (1 - specificity), (1 - prevalence) * specificity
    return {"ppv": ratios(found, found + alarms), "npv": ratios(left, left + missed)}


def sums_by_place(places: np.ndarray, values: np.ndarray, num_places: int) -> np.ndarray:
    """Returns [..., num_places]: the sums of values [..., n] by their place, int [n]."""
    rows = values.reshape(math.prod(values.shape[:-1]), len(places))
    # Row by row, the few sums of a row stay in the CPU's first-level cache.
    sums = np.stack([np.bincount(places, row, num_places) for row in rows])
    return sums.reshape(*values.shape[:-1], num_places)


def ratios(parts: np.ndarray, wholes: np.ndarray) -> np.ndarray:
    """Returns parts / wholes; NaN where the whole, which is not negative, is 0."""
    undefined = np.full(np.broadcast_shapes(np.shape(parts), np.shape(wholes)), np.nan)
    return np.divide(parts, wholes, out=undefined, where=np.asarray(wholes) > 0)


def defined_mean(values: np.ndarray) -> np.ndarray:
    """Returns the mean along the first axis of the values that are not NaN; NaN if all are."""
    is_defined = ~np.isnan(values)
    return ratios(np.where(is_defined, values, 0).sum(0), is_defined.sum(0))


# ---- the table of measures


class Measure(NamedTuple):
    """All that is known of a measure of metrics.json; a new one is an entry of `MEASURES`.

    Attributes:
        title: its name on pages and in the terminal.
        least: lower limit of its values.
        most: upper limit.
        unit: how to show it: a `share` in percent, an area as `decimal`, or a `number`.
        behind: the examples of a view that it rests on: `positives`, `negatives`, or those of the
            `fewer` groups; empty for all examples.
        counts: whether it is a share of these examples.
    """

    title: str
    least: float = 0.0
    most: float = 1.0
    unit: str = "share"
    behind: str = ""
    counts: bool = False


#: The measures by their names in metrics.json.
MEASURES: Mapping[str, Measure] = {
    "accuracy": Measure("accuracy", counts=True),
    "balanced_accuracy": Measure("balanced accuracy"),
    "sensitivity": Measure("sensitivity", behind="positives", counts=True),
    "specificity": Measure("specificity", behind="negatives", counts=True),
    "precision": Measure("precision", behind="fewer"),
    "f1": Measure("F1", unit="decimal", behind="fewer"),
    "ppv": Measure("PPV", behind="fewer"),
    "npv": Measure("NPV", behind="fewer"),
    "auc": Measure("area under the ROC", unit="decimal", behind="fewer"),
    "macro_auc": Measure("mean area under the ROC"),
    "average_precision": Measure("average precision", unit="decimal", behind="fewer"),
    "macro_average_precision": Measure("mean average precision"),
    "ece": Measure("calibration error"),
    "brier": Measure("Brier score", most=2.0, unit="number"),
    "quadratic_kappa": Measure("quadratic weighted kappa", least=-1.0),
}


def parts_of(name: str) -> tuple[str, str]:
    """Returns the measure in a name of metrics.json, and its label or group of labels.

    >>> parts_of("auc/CNV"), parts_of("urgent/auc"), parts_of("accuracy")
    (('auc', 'CNV'), ('auc', 'urgent'), ('accuracy', ''))
    """
    first, _, second = name.partition("/")
    return (second, first) if first == "urgent" else (first, second)


def known(name: str) -> Measure:
    """Returns the measure of a name in metrics.json; one without an entry has no limits."""
    measure, _ = parts_of(name)
    return MEASURES.get(measure) or Measure(measure, -math.inf, math.inf, "number")

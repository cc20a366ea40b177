"""Measures of a classifier's predictions, and their confidence intervals.

The intervals come from a bootstrap over patients, not over images: the images of one eye are alike,
and intervals that treat them as independent are too narrow. Every measure takes weights, because an
example of a patient who is drawn twice counts twice.

Cost of a resample: about 20 ns per example for all measures except the areas under the curve, which
take 2 to 6 ns per example and class.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

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

CONFIDENCE_LEVEL = 0.95

#: Measures of each class and of the urgent view.
VIEW_MEASURES = ("sensitivity", "specificity", "auc")

#: Examples x resamples that are weighted at a time; an array of this size takes 32 MB.
_CHUNK = 4_000_000


@dataclasses.dataclass(frozen=True)
class Scorer:
    """Computes all measures of one set of predictions, for many weightings of its examples.

    Attributes:
        probabilities: [num_examples, num_classes].
        labels: int [num_examples].
        label_names: names of the classes.
    """

    probabilities: np.ndarray
    labels: np.ndarray
    label_names: tuple[str, ...]

    @functools.cached_property
    def predicted(self) -> np.ndarray:
        """The likeliest class of each example, int64 [num_examples]."""
        return self.probabilities.argmax(-1)

    @property
    def names(self) -> list[str]:
        """Names of the measures, in the order of metrics.json."""
        names = ["accuracy", "ece"]
        for label in self.label_names:
            names += [f"{measure}/{label}" for measure in VIEW_MEASURES]
        names.append("balanced_accuracy")
        if self.has_urgent_view:
            names += [*(f"urgent/{measure}" for measure in VIEW_MEASURES), "weighted_error"]
        return names

    @property
    def has_urgent_view(self) -> bool:
        """Whether the classes are those of OCT, two of which are urgent."""
        return set(self.label_names) == OCT_CLASSES

    @functools.cached_property
    def urgent(self) -> np.ndarray:
        """Which classes are urgent, bool [num_classes]."""
        return np.isin(self.label_names, URGENT_CLASSES)

    def score(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Returns all measures except the areas, float64 [num_weightings] by name.

        Args:
            weights: float64 [num_weightings, num_examples], how often each example counts.
        """
        labels, predicted, num_classes = self.labels, self.predicted, len(self.label_names)
        is_correct = predicted == labels
        confidences = self.probabilities.max(-1)

        hits = _sums_by_place(labels, weights * is_correct, num_classes)
        positives = _sums_by_place(labels, weights, num_classes)
        called = _sums_by_place(predicted, weights, num_classes)
        total = weights.sum(-1)
        sensitivity = ratios(hits, positives)
        specificity = 1 - ratios(called - hits, total[:, None] - positives)
        present = positives > 0
        result = {
            "accuracy": ratios(hits.sum(-1), total),
            "ece": expected_calibration_error(confidences, is_correct, weights),
            "balanced_accuracy": ratios(np.where(present, sensitivity, 0).sum(-1), present.sum(-1)),
        }
        for index, name in enumerate(self.label_names):
            result[f"sensitivity/{name}"] = sensitivity[:, index]
            result[f"specificity/{name}"] = specificity[:, index]
        if self.has_urgent_view:
            is_urgent, called_urgent = self.urgent[labels], self.urgent[predicted]
            penalties = penalty_matrix(self.label_names)[labels, predicted]
            result |= {
                "urgent/sensitivity": ratios(
                    weights @ (is_urgent & called_urgent), weights @ is_urgent
                ),
                "urgent/specificity": ratios(
                    weights @ (~is_urgent & ~called_urgent), weights @ ~is_urgent
                ),
                "weighted_error": ratios(weights @ penalties, total),
            }
        return result

    def num_groups_behind(self, groups: np.ndarray) -> dict[str, int]:
        """Returns how many groups each measure rests on, by name.

        An area rests on the positive and the negative examples; the smaller number counts.

        Args:
            groups: int [num_examples], the group of each example, 0..num_groups-1.
        """
        behind = dict.fromkeys(self.names, int(groups.max()) + 1)
        num_with, num_without = num_groups_by_class(self.labels, groups, len(self.label_names))
        for index, name in enumerate(self.label_names):
            behind[f"sensitivity/{name}"] = int(num_with[index])
            behind[f"specificity/{name}"] = int(num_without[index])
            behind[f"auc/{name}"] = int(min(num_with[index], num_without[index]))
        if self.has_urgent_view:
            is_urgent = self.urgent[self.labels].astype(int)
            num_with, num_without = num_groups_by_class(is_urgent, groups, 2)
            behind["urgent/sensitivity"] = int(num_with[1])
            behind["urgent/specificity"] = int(num_without[1])
            behind["urgent/auc"] = int(min(num_with[1], num_without[1]))
        return behind

    def areas(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the areas under the ROC curves, float64 [num_weightings] by name.

        Args:
            weights: float64 [num_weightings, num_examples], how often each example counts.
        """
        result = {}
        for index, name in enumerate(self.label_names):
            ranking = self.probabilities[:, index]
            result[f"auc/{name}"] = area_under_curve(self.labels == index, ranking, weights)
        if self.has_urgent_view:
            ranking = self.probabilities[:, self.urgent].sum(-1)
            result["urgent/auc"] = area_under_curve(self.urgent[self.labels], ranking, weights)
        return result


def scores(
    probabilities: np.ndarray,
    labels: np.ndarray,
    label_names: Sequence[str],
    weights: np.ndarray | None = None,
) -> dict[str, float]:
    """Returns all measures by name, such as `accuracy` or `auc/CNV`.

    An undefined measure, such as the sensitivity of a class without examples, is NaN.
    `balanced_accuracy` is the mean sensitivity of the classes that have examples, as in
    scikit-learn.

    Args:
        probabilities: [num_examples, num_classes].
        labels: int [num_examples].
        label_names: names of the classes.
        weights: [num_examples], how often each example counts; None for once each.
    """
    scorer = Scorer(probabilities, labels, tuple(label_names))
    rows = (np.ones(len(labels)) if weights is None else weights)[None]
    measured = scorer.score(rows) | scorer.areas(rows)
    return {name: float(measured[name][0]) for name in scorer.names}


def bootstrap(
    measure: Callable[[np.ndarray], Mapping[str, np.ndarray]],
    groups: np.ndarray,
    *,
    num_samples: int,
    seed: int,
) -> dict[str, tuple[float, float]]:
    """Returns percentile intervals of measures, by drawing whole groups with replacement.

    Source: Efron and Tibshirani 1993, "An introduction to the bootstrap", chapter 13; drawing
    clusters: Field and Welsh 2007, "Bootstrapping clustered data".

    Args:
        measure: takes how often each example counts, float64 [num_draws, num_examples], and
            returns float64 [num_draws] by name.
        groups: int [num_examples], the group of each example, 0..num_groups-1.
        num_samples: number of draws.
        seed: seed of the draws; the first draws do not depend on `num_samples`.

    Returns:
        (low, high) at the confidence level, by name; NaN if no draw defines the measure. Empty
        if there are fewer than two groups, because all draws would be the same.
    """
    num_groups = int(groups.max()) + 1
    if num_groups < 2:
        return {}
    generator = np.random.default_rng(seed)
    parts: dict[str, list[np.ndarray]] = {}
    at_once = max(1, _CHUNK // len(groups))
    for start in range(0, num_samples, at_once):
        counts = [
            np.bincount(generator.integers(num_groups, size=num_groups), minlength=num_groups)
            for _ in range(min(at_once, num_samples - start))
        ]
        weights = np.stack(counts).astype(np.float64)[:, groups]
        for name, values in measure(weights).items():
            parts.setdefault(name, []).append(values)
    tail = (1 - CONFIDENCE_LEVEL) / 2
    intervals = {}
    for name, values in parts.items():
        drawn = np.concatenate(values)
        defined = drawn[~np.isnan(drawn)]
        low, high = np.quantile(defined, (tail, 1 - tail)) if len(defined) else (np.nan, np.nan)
        intervals[name] = (float(low), float(high))
    return intervals


def confusion_matrix(labels: np.ndarray, predicted: np.ndarray, num_classes: int) -> np.ndarray:
    """Returns int64 [num_classes, num_classes], the number of examples by (true, predicted).

    Args:
        labels: int [num_examples].
        predicted: int [num_examples].
        num_classes: number of classes.
    """
    places = labels * num_classes + predicted
    return np.bincount(places, minlength=num_classes**2).reshape(num_classes, num_classes)


def penalty_matrix(label_names: Sequence[str]) -> np.ndarray:
    """Returns float64 [num_classes, num_classes], the penalty points by (true, predicted).

    An urgent case called NORMAL costs 4, called DRUSEN 2, and any other mistake 1. Source: Kermany
    et al. 2018.

    Args:
        label_names: names of the classes.
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
    positive = _sums_by_place(places[is_positive], weights[..., is_positive], num_places)
    negative = _sums_by_place(places, weights, num_places) - positive
    beaten = np.cumsum(negative, axis=-1) - negative / 2
    return ratios((positive * beaten).sum(-1), positive.sum(-1) * negative.sum(-1))


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
    total, confidence_sums, correct_sums = calibration_bins(confidences, is_correct, weights)
    return ratios(np.abs(confidence_sums - correct_sums).sum(-1), total.sum(-1))


def calibration_bins(
    confidences: np.ndarray, is_correct: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the sums of each bin of confidence.

    Args:
        confidences: [num_examples], the probability of the predicted class.
        is_correct: bool [num_examples].
        weights: float64 [..., num_examples], how often each example counts.

    Returns:
        (sum of weights, weighted sum of confidences, weight of correct examples), each [...,
        NUM_CALIBRATION_BINS].
    """
    # The paper's bins are open on the left: ((m-1)/M, m/M].
    bins = np.clip(np.ceil(confidences * NUM_CALIBRATION_BINS) - 1, 0, NUM_CALIBRATION_BINS - 1)
    bins = bins.astype(np.int64)
    total, confidence_sums, correct_sums = (
        _sums_by_place(bins, weights * values, NUM_CALIBRATION_BINS)
        for values in (1.0, confidences, is_correct)
    )
    return total, confidence_sums, correct_sums


def num_groups_by_class(
    labels: np.ndarray, groups: np.ndarray, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns how many groups have an example of each class, and of any other class.

    Args:
        labels: int [num_examples].
        groups: int [num_examples], the group of each example, 0..num_groups-1.
        num_classes: number of classes.

    Returns:
        (groups with the class, groups with another class), int [num_classes] each.
    """
    places = np.unique(groups * num_classes + labels)
    of_groups, of_labels = places // num_classes, places % num_classes
    is_only_class = np.bincount(of_groups)[of_groups] == 1
    num_with = np.bincount(of_labels, minlength=num_classes)
    num_only = np.bincount(of_labels[is_only_class], minlength=num_classes)
    return num_with, int(groups.max()) + 1 - num_only


def _sums_by_place(places: np.ndarray, values: np.ndarray, num_places: int) -> np.ndarray:
    """Returns [..., num_places]: the sums of values [..., n] by their place, int [n]."""
    rows = values.reshape(math.prod(values.shape[:-1]), len(places))
    # Row by row, the few sums of a row stay in the CPU's first-level cache.
    sums = np.stack([np.bincount(places, row, num_places) for row in rows])
    return sums.reshape(*values.shape[:-1], num_places)


def ratios(parts: np.ndarray, wholes: np.ndarray) -> np.ndarray:
    """Returns parts / wholes; NaN where the whole is 0.

    Args:
        parts: array that broadcasts with `wholes`.
        wholes: array of non-negative values.
    """
    undefined = np.full(np.broadcast_shapes(np.shape(parts), np.shape(wholes)), np.nan)
    return np.divide(parts, wholes, out=undefined, where=np.asarray(wholes) > 0)

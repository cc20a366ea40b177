"""Measures of predictions, by the kind of label, and their confidence intervals.

The intervals come from a bootstrap over patients, not over images: the images of one eye are alike,
and intervals that treat them as independent are too narrow. Every measure takes weights, because an
example of a patient who is drawn twice counts twice.

Cost of a resample: about 20 ns per example for all measures except the areas under the curve, which
take 2 to 6 ns per example and class.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

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

#: The measure of grades, see `quadratic_kappa`.
KAPPA = "quadratic_kappa"

#: The measures of a number, see `NumberScorer`.
NUMBER_MEASURES = ("mae", "rmse", "r2", "bias", "limit_low", "limit_high")

# Standard deviations on both sides of the mean that hold 95 % of a normal distribution.
_DEVIATIONS = 1.96

#: Measures of each of several labels.
LABEL_MEASURES = (*VIEW_MEASURES, "average_precision")

#: An image is said to have one of several labels from this probability on.
LABEL_THRESHOLD = 0.5

# Smallest probability of the right answer in the cross-entropy, which keeps its logarithm finite.
_EPSILON = 1e-7

#: Examples x resamples that are weighted at a time; an array of this size takes 32 MB.
_CHUNK = 4_000_000


@dataclasses.dataclass(frozen=True)
class Scorer(abc.ABC):
    """Computes all measures of one set of predictions, for many weightings of its examples.

    Attributes:
        probabilities: [num_examples, num_labels].
        labels: the truths of `tasks`.
        label_names: names of the labels.
        shares: the measures that are a share of examples, besides sensitivities and specificities.
        without_absent: the end of a sentence on labels that no image has.
    """

    probabilities: np.ndarray
    labels: np.ndarray
    label_names: tuple[str, ...]

    shares: ClassVar[tuple[str, ...]]
    without_absent: ClassVar[str]

    @property
    @abc.abstractmethod
    def names(self) -> list[str]:
        """Names of the measures, in the order of metrics.json."""

    @abc.abstractmethod
    def score(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the measures that are quick to compute, float64 [num_weightings] by name.

        Args:
            weights: float64 [num_weightings, num_examples], how often each example counts.
        """

    @abc.abstractmethod
    def areas(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the other measures: areas under curves, which take longer; see `score`."""

    @abc.abstractmethod
    def num_groups_behind(self, groups: np.ndarray) -> dict[str, int]:
        """Returns how many groups each measure rests on, by name.

        An area rests on the positive and the negative examples; the smaller number counts.

        Args:
            groups: int [num_examples], the group of each example, 0..num_groups-1.
        """

    @abc.abstractmethod
    def tables(self) -> dict[str, Any]:
        """Returns the entries of metrics.json that count examples."""

    @property
    @abc.abstractmethod
    def loss(self) -> float:
        """The mean loss of an example: in nats, or of numbers the squared error."""


class ClassScorer(Scorer):
    """The measures of one class for each example; labels are int [num_examples]."""

    shares = ("accuracy", "urgent/sensitivity", "urgent/specificity")
    without_absent = "the balanced accuracy is the mean over the other classes"

    @functools.cached_property
    def predicted(self) -> np.ndarray:
        """The likeliest class of each example, int64 [num_examples]."""
        return self.probabilities.argmax(-1)

    @property
    def names(self) -> list[str]:
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
        result = {}
        for index, name in enumerate(self.label_names):
            ranking = self.probabilities[:, index]
            result[f"auc/{name}"] = area_under_curve(self.labels == index, ranking, weights)
        if self.has_urgent_view:
            ranking = self.probabilities[:, self.urgent].sum(-1)
            result["urgent/auc"] = area_under_curve(self.urgent[self.labels], ranking, weights)
        return result

    def tables(self) -> dict[str, Any]:
        matrix = confusion_matrix(self.labels, self.predicted, len(self.label_names))
        return {
            "label_counts": dict(zip(self.label_names, matrix.sum(1).tolist(), strict=True)),
            # The rows are the true classes.
            "confusion_matrix": matrix.tolist(),
        }

    @property
    def loss(self) -> float:
        return cross_entropy(self.probabilities, self.labels)


class GradeScorer(ClassScorer):
    """The measures of classes whose order means something, from the lowest to the highest."""

    @property
    def names(self) -> list[str]:
        return [*super().names, KAPPA]

    def score(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        size = len(self.label_names)
        pairs = _sums_by_place(self.labels * size + self.predicted, weights, size * size)
        tables = pairs.reshape(-1, size, size)
        return super().score(weights) | {KAPPA: quadratic_kappa(tables)}


class LabelScorer(Scorer):
    """The measures of several labels for each example; labels are bool [num_examples, num_labels].

    Measures of all labels together are means over the labels: `accuracy` is the share of right
    answers among all answers, and `macro_auc` the mean of the areas.
    """

    shares = ("accuracy",)
    without_absent = "the macro measures are means over the other labels"

    @functools.cached_property
    def called(self) -> np.ndarray:
        """Which labels the network says an example has, bool [num_examples, num_labels]."""
        return self.probabilities >= LABEL_THRESHOLD

    @property
    def names(self) -> list[str]:
        of_labels = [f"{measure}/{name}" for name in self.label_names for measure in LABEL_MEASURES]
        return ["accuracy", "ece", "brier", *of_labels, "macro_auc", "macro_average_precision"]

    def score(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        labels, called = self.labels, self.called
        is_right = labels == called
        positives, total = weights @ labels, weights.sum(-1)
        sensitivity = ratios(weights @ (labels & called), positives)
        specificity = ratios(weights @ ~(labels | called), weights @ ~labels)
        probabilities = self.probabilities.astype(np.float64)
        # Each label is a choice between two, of which the likelier one is the answer.
        confidences = np.maximum(probabilities, 1 - probabilities)
        bins = [
            calibration_bins(confidences[:, index], is_right[:, index], weights)
            for index in range(len(self.label_names))
        ]
        result = {
            "accuracy": ratios(weights @ is_right.mean(-1), total),
            "ece": bin_error(*map(sum, zip(*bins, strict=True))),
            "brier": ratios(weights @ np.square(probabilities - labels).mean(-1), total),
        }
        for index, name in enumerate(self.label_names):
            result[f"sensitivity/{name}"] = sensitivity[:, index]
            result[f"specificity/{name}"] = specificity[:, index]
        return result

    def areas(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        result = {}
        for measure, area in (
            ("auc", area_under_curve),
            ("average_precision", average_precision),
        ):
            of_labels = np.stack(
                [
                    area(self.labels[:, index], self.probabilities[:, index], weights)
                    for index in range(len(self.label_names))
                ]
            )
            names = (f"{measure}/{name}" for name in self.label_names)
            result |= dict(zip(names, of_labels, strict=True))
            is_defined = ~np.isnan(of_labels)
            result[f"macro_{measure}"] = ratios(
                np.where(is_defined, of_labels, 0).sum(0), is_defined.sum(0)
            )
        return result

    def num_groups_behind(self, groups: np.ndarray) -> dict[str, int]:
        behind = dict.fromkeys(self.names, int(groups.max()) + 1)
        for index, name in enumerate(self.label_names):
            truth = self.labels[:, index].astype(int)
            num_without, num_with = num_groups_by_class(truth, groups, 2)[0].tolist()
            behind[f"sensitivity/{name}"] = num_with
            behind[f"specificity/{name}"] = num_without
            for measure in ("auc", "average_precision"):
                behind[f"{measure}/{name}"] = min(num_with, num_without)
        return behind

    def tables(self) -> dict[str, Any]:
        answers = zip(self.label_names, self.labels.T, self.called.T, strict=True)
        matrices = {
            name: confusion_matrix(truth.astype(int), called.astype(int), 2).tolist()
            for name, truth, called in answers
        }
        return {
            "label_counts": dict(zip(self.label_names, self.labels.sum(0).tolist(), strict=True)),
            # Of each label [[without it, false alarms], [missed, found]].
            "confusion_matrices": matrices,
        }

    @property
    def loss(self) -> float:
        of_truth = np.where(self.labels, self.probabilities, 1 - self.probabilities)
        return _mean_entropy(of_truth)


class NumberScorer(Scorer):
    """The measures of a number for each example; labels are float [num_examples].

    An error is the answer minus the truth. `bias` is the mean error, and 95 % of the errors are
    expected between `limit_low` and `limit_high`, the limits of agreement. Source: Bland and Altman
    1986, "Statistical methods for assessing agreement between two methods of clinical measurement".
    """

    shares = ()
    without_absent = "there is nothing to measure"

    @property
    def names(self) -> list[str]:
        return list(NUMBER_MEASURES)

    @functools.cached_property
    def errors(self) -> np.ndarray:
        """The answer minus the truth, float64 [num_examples]."""
        return self.probabilities[:, 0].astype(np.float64) - self.labels

    def score(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        total = weights.sum(-1)
        bias = ratios(weights @ self.errors, total)
        squares = weights @ np.square(self.errors)
        # Around the mean of all truths, which loses the fewest digits.
        truths = self.labels - self.labels.mean(dtype=np.float64)
        spread = weights @ np.square(truths) - ratios(np.square(weights @ truths), total)
        # Equal numbers may differ by rounding, which is not a spread.
        is_spread = spread > 1e-9 * total * np.square(truths).max()
        deviation = np.sqrt(
            np.maximum(ratios(squares - total * np.square(bias), np.maximum(total - 1, 0)), 0)
        )
        return {
            "mae": ratios(weights @ np.abs(self.errors), total),
            "rmse": np.sqrt(ratios(squares, total)),
            "r2": 1 - ratios(squares, np.where(is_spread, spread, 0)),
            "bias": bias,
            "limit_low": bias - _DEVIATIONS * deviation,
            "limit_high": bias + _DEVIATIONS * deviation,
        }

    def areas(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        return {}

    def num_groups_behind(self, groups: np.ndarray) -> dict[str, int]:
        return dict.fromkeys(self.names, int(groups.max()) + 1)

    def tables(self) -> dict[str, Any]:
        return {"label_counts": dict.fromkeys(self.label_names, len(self.labels))}

    @property
    def loss(self) -> float:
        return float(np.square(self.errors).mean())


def quadratic_kappa(tables: np.ndarray) -> np.ndarray:
    """Returns the weighted kappa of grades: 1 for the right ones, 0 for an agreement by chance.

    A mistake weighs as the square of its distance in grades. Source: Cohen 1968, "Weighted kappa:
    nominal scale agreement with provision for scaled disagreement or partial credit".

    Args:
        tables: float64 [num_tables, num_grades, num_grades], examples by true and given grade.

    Returns:
        float64 [num_tables]; NaN if all grades, true and given, are the same one.
    """
    places = np.arange(tables.shape[-1])
    distances = np.square(places[:, None] - places).astype(np.float64)
    by_chance = tables.sum(2)[:, :, None] * tables.sum(1)[:, None, :]
    expected = (by_chance * distances).sum((1, 2))
    found = (tables * distances).sum((1, 2)) * tables.sum((1, 2))
    return 1 - ratios(found, expected)


def cross_entropy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Returns the mean negative log probability of the true class, in nats.

    Args:
        probabilities: [num_examples, num_classes].
        labels: int [num_examples].
    """
    return _mean_entropy(probabilities[np.arange(len(labels)), labels])


def _mean_entropy(of_truth: np.ndarray) -> float:
    return float(-np.log(np.maximum(of_truth.astype(np.float64), _EPSILON)).mean())


def scores(scorer: Scorer, weights: np.ndarray | None = None) -> dict[str, float]:
    """Returns all measures by name, such as `accuracy` or `auc/CNV`.

    An undefined measure, such as the sensitivity of a class without examples, is NaN.
    `balanced_accuracy` is the mean sensitivity of the classes that have examples, as in
    scikit-learn.

    Args:
        scorer: holds the predictions.
        weights: [num_examples], how often each example counts; None for once each.
    """
    rows = (np.ones(len(scorer.labels)) if weights is None else weights)[None]
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


def average_precision(
    is_positive: np.ndarray, ranking: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Returns the average precision for each weighting; NaN without positives that count.

    The mean over the positives of the precision at their level: the share of positives among the
    examples that rank at least as high. scikit-learn's `average_precision_score` gives the same
    values (a test compares them), but takes one weighting at a time.

    Args:
        is_positive: bool [num_examples].
        ranking: [num_examples], the score; higher means more likely positive.
        weights: float64 [..., num_examples], how often each example counts.

    Returns:
        float64 [...].
    """
    levels = np.unique(ranking[is_positive])
    # The highest level that an example reaches; 0 for those below all of them.
    places = np.searchsorted(levels, ranking, "right")
    num_places = len(levels) + 1
    positive = _sums_by_place(places[is_positive], weights[..., is_positive], num_places)
    everyone = _sums_by_place(places, weights, num_places)
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

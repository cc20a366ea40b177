"""What a classifier is worth: point estimates, and how far they can be trusted.

Confidence intervals come from a bootstrap over patients, not images: images of one eye are alike,
and intervals that take them for independent are too narrow. Every measure takes weights, because
a patient drawn twice is an example that counts twice.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tfrecord_io
from tfrecord_io.manifest import EXAMPLES_FILE_NAME
from tfrecord_io.shards import atomic_write

#: Classes of the OCT data set, and those whose patients must see a doctor at once.
#: Source: Kermany et al. 2018, "Identifying medical diagnoses and treatable diseases by
#: image-based deep learning", Cell 172.
OCT_CLASSES = frozenset({"CNV", "DME", "DRUSEN", "NORMAL"})
URGENT_CLASSES = ("CNV", "DME")

#: Penalty points of a mistake (true class, predicted class) in the paper's weighted error; any
#: other mistake costs 1. Source: Kermany et al. 2018.
URGENT_PENALTIES: Mapping[str, int] = {"NORMAL": 4, "DRUSEN": 2}

#: Equal-width bins of confidence. Source: Guo et al. 2017, "On calibration of modern neural
#: networks", section 2 (they use 15).
NUM_CALIBRATION_BINS = 15

CONFIDENCE_LEVEL = 0.95

_EPSILON = 1e-7


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examples:
    """Who the examples of a split are, in the order of the reader without shuffling.

    Attributes:
        keys: of the examples.
        patients: of the examples, or None where the dataset does not say.
        paths: of the source files, or None likewise.
    """

    keys: tuple[str, ...]
    patients: tuple[str, ...] | None
    paths: tuple[str, ...] | None


def read_examples(directory: str, split: str) -> Examples:
    """Returns the identities of a split's examples.

    The reader gives the order and the keys; patients and paths are joined to them from the table
    of examples, if the dataset has one.
    """
    dataset = tfrecord_io.make_dataset(
        directory, split=split, batch_size=1024, seed=0, shuffle=False, with_keys=True
    )
    keys = tuple(key.decode("ascii") for *_, batch in dataset.as_numpy_iterator() for key in batch)
    path = Path(directory) / EXAMPLES_FILE_NAME
    if not path.exists():
        return Examples(keys=keys, patients=None, paths=None)
    import pyarrow.parquet as pq

    columns = [name for name in ("patient", "path") if name in pq.read_schema(path).names]
    table = pq.read_table(path, columns=["key", *columns], filters=[("split", "==", split)])
    places = {key: place for place, key in enumerate(table["key"].to_pylist())}
    if not all(key in places for key in keys):
        return Examples(keys=keys, patients=None, paths=None)
    joined: dict[str, tuple[str, ...] | None] = {"patient": None, "path": None}
    for name in columns:
        values = table[name].to_pylist()
        row_values = [values[places[key]] for key in keys]
        if all(value is not None for value in row_values):
            joined[name] = tuple(str(value) for value in row_values)
    return Examples(keys=keys, patients=joined["patient"], paths=joined["path"])


def cross_entropy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Returns the mean negative logarithm of the probability of the true class, in nats.

    Args:
        probabilities: [num_examples, num_classes].
        labels: int [num_examples].
    """
    of_truth = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    return float(-np.log(np.maximum(of_truth, _EPSILON)).mean())


def confusion_matrix(
    labels: np.ndarray, predicted: np.ndarray, num_classes: int, weights: np.ndarray
) -> np.ndarray:
    """Returns float64 [num_classes, num_classes]: weight of examples by (true, predicted)."""
    places = labels * num_classes + predicted
    return np.bincount(places, weights, num_classes**2).reshape(num_classes, num_classes)


def expected_calibration_error(
    confidences: np.ndarray, is_correct: np.ndarray, weights: np.ndarray
) -> float:
    """Returns the mean distance of confidence and accuracy over bins of confidence.

    Source: Guo et al. 2017, equation 3.

    Args:
        confidences: [num_examples], the probability of the predicted class.
        is_correct: bool [num_examples].
        weights: [num_examples].
    """
    total, confidence_sums, correct_sums = calibration_bins(confidences, is_correct, weights)
    return float(np.abs(confidence_sums - correct_sums).sum() / total.sum())


def calibration_bins(
    confidences: np.ndarray, is_correct: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns [num_bins] each: weight of examples, sum of confidence, sum of correct ones."""
    # Guo's bins are open on the left: ((m-1)/M, m/M].
    bins = np.clip(np.ceil(confidences * NUM_CALIBRATION_BINS) - 1, 0, NUM_CALIBRATION_BINS - 1)
    bins = bins.astype(np.int64)
    total, confidence_sums, correct_sums = (
        np.bincount(bins, weights * values, NUM_CALIBRATION_BINS)
        for values in (1.0, confidences, is_correct)
    )
    return total, confidence_sums, correct_sums


def penalty_matrix(label_names: Sequence[str]) -> np.ndarray:
    """Returns [num_classes, num_classes]: penalty points by (true, predicted).

    Source: Kermany et al. 2018: an urgent case called NORMAL costs 4, called DRUSEN 2, any other
    mistake 1.
    """
    penalties = 1.0 - np.eye(len(label_names))
    for row, truth in enumerate(label_names):
        for column, answer in enumerate(label_names):
            if truth in URGENT_CLASSES and answer in URGENT_PENALTIES:
                penalties[row, column] = URGENT_PENALTIES[answer]
    return penalties


def scores(
    probabilities: np.ndarray,
    labels: np.ndarray,
    label_names: Sequence[str],
    weights: np.ndarray | None = None,
) -> dict[str, float]:
    """Returns all measures by name, such as `accuracy` or `auc/CNV`.

    A measure that is not defined, such as the sensitivity of a class without examples, is NaN.

    Args:
        probabilities: [num_examples, num_classes].
        labels: int [num_examples].
        label_names: of the classes.
        weights: [num_examples], how often each example counts; once if not given.
    """
    weights = np.ones(len(labels)) if weights is None else weights
    predicted = probabilities.argmax(-1)
    matrix = confusion_matrix(labels, predicted, len(label_names), weights)
    total = matrix.sum()
    result = {
        "accuracy": _ratio(np.trace(matrix), total),
        "ece": expected_calibration_error(probabilities.max(-1), predicted == labels, weights),
    }
    recalls = []
    for index, name in enumerate(label_names):
        positives = matrix[index].sum()
        false_alarms = matrix[:, index].sum() - matrix[index, index]
        recalls.append(_ratio(matrix[index, index], positives))
        result[f"sensitivity/{name}"] = recalls[-1]
        result[f"specificity/{name}"] = 1 - _ratio(false_alarms, total - positives)
        result[f"auc/{name}"] = area_under_curve(labels == index, probabilities[:, index], weights)
    result["balanced_accuracy"] = float(np.mean(recalls))
    if set(label_names) == OCT_CLASSES:
        urgent = np.isin(label_names, URGENT_CLASSES)
        is_urgent, called_urgent = urgent[labels], urgent[predicted]
        hits = weights[is_urgent & called_urgent].sum()
        rejections = weights[~is_urgent & ~called_urgent].sum()
        result |= {
            "urgent/sensitivity": _ratio(hits, weights[is_urgent].sum()),
            "urgent/specificity": _ratio(rejections, weights[~is_urgent].sum()),
            "urgent/auc": area_under_curve(is_urgent, probabilities[:, urgent].sum(-1), weights),
            "weighted_error": _ratio((matrix * penalty_matrix(label_names)).sum(), total),
        }
    return result


def bootstrap(
    measure: Callable[[np.ndarray], Mapping[str, float]],
    groups: np.ndarray,
    *,
    num_samples: int,
    seed: int,
) -> dict[str, tuple[float, float]]:
    """Returns percentile intervals of measures, by drawing whole groups with replacement.

    Source: Efron and Tibshirani 1993, "An introduction to the bootstrap", chapter 13; drawing
    clusters: Field and Welsh 2007, "Bootstrapping clustered data".

    Args:
        measure: takes how often each example counts, float64 [num_examples].
        groups: int [num_examples], the group of each, 0..num_groups-1.
        num_samples: how often to draw.
        seed: of the draws.

    Returns:
        (low, high) at the confidence level, by name; NaN where no draw defines the measure.
    """
    generator = np.random.default_rng(seed)
    num_groups = int(groups.max()) + 1
    draws: dict[str, list[float]] = {}
    for _ in range(num_samples):
        counts = np.bincount(generator.integers(num_groups, size=num_groups), minlength=num_groups)
        for name, value in measure(counts[groups].astype(np.float64)).items():
            draws.setdefault(name, []).append(value)
    tail = (1 - CONFIDENCE_LEVEL) / 2
    intervals = {}
    for name, values in draws.items():
        defined = [value for value in values if not np.isnan(value)]
        low, high = np.quantile(defined, (tail, 1 - tail)) if defined else (np.nan, np.nan)
        intervals[name] = (float(low), float(high))
    return intervals


def evaluate_predictions(
    probabilities: np.ndarray,
    labels: np.ndarray,
    label_names: Sequence[str],
    *,
    groups: Sequence[str] | None,
    num_samples: int,
    seed: int,
) -> dict[str, Any]:
    """Returns what metrics.json holds of a split.

    Args:
        probabilities: float32 [num_examples, num_classes].
        labels: int [num_examples].
        label_names: of the classes.
        groups: the patient of each example, or None: then intervals are by image.
        num_samples: bootstrap resamples; 0 for no intervals.
        seed: of the bootstrap.

    Returns:
        a dict of JSON values: `num_examples`, `num_patients`, `loss`, `bootstrap_by`,
        `confusion_matrix` (rows are the truth), `label_counts`, and `scores`: by name, `value`
        with `low` and `high` of the 95 % interval; None where a measure is not defined.
    """
    if groups is None:
        indices = np.arange(len(labels))
    else:
        _, indices = np.unique(np.asarray(groups), return_inverse=True)
    point = scores(probabilities, labels, label_names)
    intervals = bootstrap(
        lambda weights: scores(probabilities, labels, label_names, weights),
        indices,
        num_samples=num_samples,
        seed=seed,
    )
    matrix = confusion_matrix(
        labels, probabilities.argmax(-1), len(label_names), np.ones(len(labels))
    )
    result: dict[str, Any] = {
        "num_examples": len(labels),
        "num_patients": None if groups is None else int(indices.max()) + 1,
        "bootstrap_by": "image" if groups is None else "patient",
        "bootstrap_samples": num_samples,
        "confidence_level": CONFIDENCE_LEVEL,
        "loss": cross_entropy(probabilities, labels),
        "label_counts": dict(zip(label_names, (int(row.sum()) for row in matrix), strict=True)),
        "confusion_matrix": matrix.astype(int).tolist(),
        "scores": {},
    }
    for name, value in point.items():
        low, high = intervals.get(name, (np.nan, np.nan))
        result["scores"][name] = {
            key: None if np.isnan(number) else round(number, 6)
            for key, number in (("value", value), ("low", low), ("high", high))
        }
    return result


def describe(metrics: Mapping[str, Any]) -> str:
    """Returns the metrics as a few lines of text."""
    by = metrics["bootstrap_by"]
    people = f" of {metrics['num_patients']:,} patients" if metrics["num_patients"] else ""
    lines = [
        f"{metrics['split']}: {metrics['num_examples']:,} images{people}, weights of epoch "
        f"{metrics['best_epoch']}; 95 % intervals by bootstrap over {by}s",
        f"  loss {metrics['loss']:.4f}",
    ]
    if by == "image":
        lines.append(
            "  note: the dataset does not say which patient an image is of; these intervals take "
            "images for independent and are too narrow if a patient has several"
        )
    for name, score in metrics["scores"].items():
        text = _percent(score["value"])
        if score["low"] is not None:
            text += f"  [{_percent(score['low'])}, {_percent(score['high'])}]"
        lines.append(f"  {name:<20} {text}")
    return "\n".join(lines)


def write_predictions(
    path: Path,
    probabilities: np.ndarray,
    labels: np.ndarray,
    label_names: Sequence[str],
    examples: Examples,
) -> None:
    """Writes a row an example: key, path, patient, label, predicted, probabilities."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("key", "path", "patient", "label", "predicted", *label_names))
    unknown = ("",) * len(labels)
    for key, source, patient, label, row in zip(
        examples.keys,
        examples.paths or unknown,
        examples.patients or unknown,
        labels,
        probabilities,
        strict=True,
    ):
        answer = label_names[int(row.argmax())]
        numbers = (f"{probability:.6f}" for probability in row)
        writer.writerow((key, source, patient, label_names[label], answer, *numbers))
    with atomic_write(path) as file:
        file.write(text.getvalue().encode("utf-8", "surrogateescape"))


def area_under_curve(is_positive: np.ndarray, ranking: np.ndarray, weights: np.ndarray) -> float:
    """Returns the area under the ROC curve; NaN where one side has no weight.

    It is the chance that a positive ranks above a negative, ties half. Source: Hanley and McNeil
    1982, "The meaning and use of the area under a ROC curve". scikit-learn's `roc_auc_score`
    gives the same (a test compares them) in ten times the time, and a bootstrap calls this
    thousands of times.

    Args:
        is_positive: bool [num_examples].
        ranking: [num_examples], higher for what looks positive.
        weights: [num_examples], how often each example counts.
    """
    _, places = np.unique(ranking, return_inverse=True)
    positive = np.bincount(places, weights * is_positive)
    negative = np.bincount(places, weights * ~is_positive)
    pairs = positive.sum() * negative.sum()
    if not pairs:
        return float("nan")
    below = np.cumsum(negative) - negative
    return float((positive * (below + negative / 2)).sum() / pairs)


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else float("nan")


def _percent(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.1%}"

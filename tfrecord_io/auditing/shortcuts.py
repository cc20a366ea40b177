"""Measures how well scanners, export settings or padding alone predict the class of an image.

A model learns anything that predicts the class, and so these, if they differ between classes.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tfrecord_io.auditing.columns import encode
from tfrecord_io.groups import Groups, group_images

_NUM_FOLDS = 5
_MAX_CATEGORIES = 30
_BRIGHTNESS_BINS = 8
_NUM_RESAMPLES = 200

# Facts that are categories: the columns that tell them, and how their values are shown.
_CATEGORIES = (
    ("original size", ("width", "height"), "{}×{}"),
    ("file format and mode", ("file_format", "mode"), "{} {}"),
    ("JPEG quantization", ("quantization",), "{}"),
    ("padded share", ("padding",), "{} %"),
    ("site", ("site",), "{}"),
)

#: Bounds of the bins of the white share of a picture's border.
WHITE_BORDER_EDGES = (0.001, 0.1, 0.3)

#: Smallest number of patients of each class for a reliable result. With fewer, the result depends
#: more on these patients than on the class.
MIN_GROUPS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shortcuts:
    """How well side facts predict the class.

    Attributes:
        chance: balanced accuracy of guessing, 1 / number of classes.
        accuracy: balanced accuracy (the mean over classes of the share predicted correctly) from
            all signals together, on patients not used in training; `low` and `high` are the ends
            of its 95 % interval.
        by_signal: balanced accuracy from each signal alone.
        giveaways: (signal, value, class index, number of images) of values that images of many
            patients have, but of one class only.
        min_groups: number of patients of the class with the fewest.
    """

    chance: float
    accuracy: float
    low: float
    high: float
    by_signal: Mapping[str, float]
    giveaways: tuple[tuple[str, str, int, int], ...]
    min_groups: int

    @property
    def reliable(self) -> bool:
        """Whether every class has enough patients for the numbers to mean something."""
        return self.min_groups >= MIN_GROUPS


def measure(
    examples: pa.Table, label_codes: np.ndarray, joined: Groups | None = None
) -> Shortcuts | None:
    """Trains a model to predict the class from side facts alone, and tests it on other patients.

    The model is naive Bayes on binned signals with equal class priors. It needs no tuning, and on
    the real sample it is within three percentage points of decision trees (docs/audit.md).

    Args:
        examples: the examples table; signals whose columns are missing are left out.
        label_codes: int64 [num_examples], index of each example's class.
        joined: which examples belong together; by default what the table says.

    Returns:
        the result, or None if fewer than two classes have examples or no signal varies.
    """
    present, labels = np.unique(label_codes, return_inverse=True)
    signals = _signals(examples) if len(present) > 1 else []
    if not signals:
        return None
    joined = joined or group_images(examples)
    groups, folds, num_classes = joined.codes, _folds(joined), len(present)

    def predict(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, float]:
        right = _cross_validate(columns, labels, folds, num_classes) == labels
        told = np.bincount(labels, weights=right, minlength=num_classes)
        return right, float(np.mean(told / np.bincount(labels)))

    right, accuracy = predict([signal.codes for signal in signals])
    low, high = _interval(right, accuracy, labels, groups, num_classes)
    return Shortcuts(
        chance=1 / num_classes,
        accuracy=accuracy,
        low=low,
        high=high,
        by_signal={signal.name: predict([signal.codes])[1] for signal in signals},
        giveaways=tuple(
            (signal.name, value, int(present[label]), count)
            for signal in signals
            for value, label, count in _giveaways(signal, labels, groups, num_classes)
        ),
        min_groups=min(len(np.unique(groups[labels == c])) for c in range(num_classes)),
    )


class _Signal(NamedTuple):
    """A side fact: its name, the category of each example, and the text of each category.

    A last category without a text stands for all rare values.
    """

    name: str
    codes: np.ndarray
    values: Sequence[str]


def _signals(examples: pa.Table) -> list[_Signal]:
    """Returns the signals whose columns exist and that vary."""
    names = set(examples.column_names)
    signals = [
        _category(name, [examples[column] for column in columns], shown)
        for name, columns, shown in _CATEGORIES
        if names.issuperset(columns)
    ]
    if "brightness" in names:
        brightness = examples["brightness"].to_numpy()
        edges = np.quantile(brightness, np.linspace(0, 1, _BRIGHTNESS_BINS + 1)[1:-1])
        signals.append(_binned("mean brightness", brightness, edges))
    if "white_border" in names:
        border = examples["white_border"].to_numpy()
        signals.append(_binned("white border", border, WHITE_BORDER_EDGES))
    return [signal for signal in signals if signal.codes.max(initial=0) > 0]


def _binned(name: str, values: np.ndarray, edges: Sequence[float] | np.ndarray) -> _Signal:
    shown = [f"below {edges[0]:.3g}", *(f"from {edge:.3g}" for edge in edges)]
    return _Signal(name, np.searchsorted(edges, values, "right").astype(np.int64), shown)


def _category(name: str, columns: Sequence[pa.ChunkedArray], shown: str) -> _Signal:
    """Numbers what is in some columns by frequency; all rare values share the last number."""
    encoded = [encode(column) for column in columns]
    parts = [(numbers + 1, ["unknown", *texts.to_pylist()]) for numbers, texts in encoded]
    shape = [len(values) for _, values in parts]
    codes = np.ravel_multi_index([numbers for numbers, _ in parts], shape)
    unique, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    frequent = zip(*np.unravel_index(unique[order[:_MAX_CATEGORIES]], shape), strict=True)
    texts = [
        shown.format(*(values[place] for (_, values), place in zip(parts, places, strict=True)))
        for places in frequent
    ]
    return _Signal(name, np.minimum(np.argsort(order), _MAX_CATEGORIES)[inverse], texts)


def _giveaways(
    signal: _Signal, labels: np.ndarray, groups: np.ndarray, num_classes: int
) -> list[tuple[str, int, int]]:
    """Returns (value, label, number of images) of values that occur in one class only.

    A value must occur in many patients, because a rare value is in one class only by chance.
    """
    giveaways = []
    for code, value in enumerate(signal.values):
        has = signal.codes == code
        (classes,) = np.nonzero(np.bincount(labels[has], minlength=num_classes))
        if len(classes) == 1 and len(np.unique(groups[has])) >= MIN_GROUPS:
            giveaways.append((value, int(classes[0]), int(has.sum())))
    return giveaways


def _folds(groups: Groups) -> np.ndarray:
    """Returns int64 [num_examples], by a checksum of its group's name each example's fold."""
    # So a group's fold does not depend on the other groups.
    names = groups.names.to_pylist()
    return np.array([zlib.crc32(name.encode()) % _NUM_FOLDS for name in names], np.int64)


def _cross_validate(
    columns: Sequence[np.ndarray], labels: np.ndarray, folds: np.ndarray, num_classes: int
) -> np.ndarray:
    """Returns int64 [num_examples], each example's class as predicted from the other folds."""
    predicted = np.zeros(len(labels), np.int64)
    for fold in range(_NUM_FOLDS):
        test = folds == fold
        scores = np.zeros((int(test.sum()), num_classes))
        for column in columns:
            num_values = int(column.max()) + 1
            cells = column[~test] * num_classes + labels[~test]
            counts = np.bincount(cells, minlength=num_values * num_classes) + 1.0
            counts = counts.reshape(num_values, num_classes)
            scores += np.log(counts / counts.sum(0))[column[test]]
        predicted[test] = scores.argmax(1)
    return predicted


def _interval(
    right: np.ndarray, accuracy: float, labels: np.ndarray, groups: np.ndarray, num_classes: int
) -> tuple[float, float]:
    """Returns the 95 % interval of the balanced accuracy, by bootstrap over patients.

    The draws tell how much the figure varies with the patients that are judged. It also varies with
    those that were learnt from, which overlap between folds, so the interval is wider by a factor.
    Source: Nadeau and Bengio 2003, "Inference for the generalization error" (corrected resampled
    variance). Few patients, or few with many images, widen it more. Source: Kish 1965, "Survey
    sampling" (effective sample size).
    """
    num_groups = int(groups.max()) + 1
    cells = groups * num_classes + labels
    size = num_groups * num_classes
    # For each patient and class: the number of images, and of images predicted correctly.
    total, told = (
        np.bincount(cells, weights=weights, minlength=size).reshape(num_groups, num_classes)
        for weights in (None, right)
    )
    random = np.random.default_rng(0)
    values = []
    for _ in range(_NUM_RESAMPLES):
        weights = random.poisson(1.0, num_groups).astype(np.float64)
        resampled = weights @ total
        # A resample of few patients may lack a class, or all classes.
        if resampled.any():
            there = resampled > 0
            values.append(np.mean((weights @ told)[there] / resampled[there]))
    effective = max(2.0, (total.sum(0) ** 2 / np.square(total).sum(0)).min())
    factor = np.sqrt((1 + _NUM_FOLDS / (_NUM_FOLDS - 1)) * effective / (effective - 1))
    ends = accuracy + factor * (np.quantile(values or [0.0, 1.0], [0.025, 0.975]) - accuracy)
    low, high = np.clip(ends, 0, 1)
    return float(low), float(high)

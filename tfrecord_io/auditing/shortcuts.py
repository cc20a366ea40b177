"""Measures how well facts about the files alone predict the class, such as size or JPEG quality.

A network could learn these instead of the disease.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io.auditing.findings import (
    MAX_LISTED,
    Examined,
    Finding,
    good,
    note,
    problem,
    warning,
)
from tfrecord_io.format.examples import SITE, encode
from tfrecord_io.format.groups import Groups, plural_unit

_NUM_FOLDS = 5
_MAX_CATEGORIES = 30
_BRIGHTNESS_BINS = 8
_NUM_RESAMPLES = 200

# Largest probability that a fact listed as one class's is so by chance, over all its values.
_CHANCE = 0.05

# Facts that are categories: the columns that say them, and what is between their values.
_CATEGORIES: Mapping[str, tuple[Sequence[str], str]] = {
    "original size": (("width", "height"), "×"),
    "file format and mode": (("file_format", "mode"), ", "),
    "JPEG quantization": (("quantization",), ""),
    SITE: ((SITE,), ""),
}

# Bounds of the intervals of the white share of a picture's border, and the names of these.
_BORDER_EDGES = (0.001, 0.1, 0.3)
_BORDERS = ("0 %", "up to 10 %", "10 to 30 %", "over 30 %")

#: By the name of a fact: int64 [num_examples], the category of each example; and the text of each
#: category. A last category without a text stands for all rare values.
Facts = dict[str, tuple[np.ndarray, Sequence[str]]]

#: With fewer patients of a class, the result depends more on these than on the class.
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
            patients have, but of one class only, which chance would hardly do.
        min_groups: number of patients of the class with the fewest.
    """

    chance: float
    accuracy: float
    low: float
    high: float
    by_signal: Mapping[str, float]
    giveaways: tuple[tuple[str, str, int, int], ...]
    min_groups: int


def check_shortcuts(examined: Examined) -> Iterator[Finding]:
    """Yields how well facts about the files, without their pixels, predict the class or a label."""
    # Of classes, all at once; else of each label whether an image has it.
    tasks = [(examined.kind.noun, examined.labels, examined.label)]
    if not examined.kind.one_hot:
        columns = examined.kind.has(examined.labels, examined.dataset.label_names).T
        tasks = [
            (f"label {name}", (f"without {name}", f"with {name}"), column[examined.label] * 1)
            for name, column in zip(examined.dataset.label_names, columns, strict=True)
        ]
    measured = [
        (result, what, names)
        for what, names, codes in tasks
        if (result := measure(examined.examples, codes, examined.joined)) is not None
    ]
    if not measured:
        return
    # The label that is predicted best. One of few patients can be predicted by chance.
    result, what, names = max(
        measured, key=lambda entry: (entry[0].min_groups >= MIN_GROUPS, entry[0].low)
    )
    examined.measures["shortcuts"] = dataclasses.asdict(result) | {"predicted": what}
    units, gain = plural_unit(examined.joined.unit), result.low - result.chance
    ranked = sorted(result.by_signal.items(), key=lambda item: (-item[1], item[0]))
    giveaways = [
        {"fact": name, "value": value, "images": count, "all of them": names[place]}
        for name, value, place, count in result.giveaways
    ]
    text = (
        f"A simple model predicts the {what} from facts such as size and JPEG quality, without "
        f"pixels, in {result.accuracy:.0%} of the cases (95 % interval {result.low:.0%} to "
        f"{result.high:.0%}; mean over the classes, for {units} not used in training). Guessing "
        f"gives {result.chance:.0%}. With a single fact: "
        f"{', '.join(f'{name} {value:.0%}' for name, value in ranked)}."
    )
    often = f"({result.accuracy:.0%} right without pixels, guessing {result.chance:.0%})"
    if result.min_groups < MIN_GROUPS:
        found = note
        title = f"Too few {units} to say whether facts about the files predict the {what}"
        text += f" One class has {result.min_groups} {units}; {MIN_GROUPS} are needed."
    elif gain > 0.25:
        found, title = problem, f"Facts about the files predict the {what} {often}"
    elif gain > 0.05:
        found, title = warning, f"Facts about the files partly predict the {what} {often}"
    elif giveaways:
        found, title = warning, "Some facts about the files go with one class only"
    else:
        found, title = good, f"Facts about the files hardly predict the {what}"
    if found in (problem, warning):
        text += " A network may learn these facts instead of the disease: compare its results "
        text += "within one image size and one JPEG quality."
    yield found("shortcuts", title, text, len(giveaways), tuple(giveaways[:MAX_LISTED]))


def measure(examples: pa.Table, label_codes: np.ndarray, joined: Groups) -> Shortcuts | None:
    """Trains a model to predict the class from side facts alone, and tests it on other patients.

    The model is naive Bayes on binned signals with equal class priors. It needs no tuning, and on
    the real sample it is within three percentage points of decision trees (docs/audit.md).

    Args:
        examples: the examples table; signals whose columns are missing are left out.
        label_codes: int64 [num_examples], index of each example's class.
        joined: which examples belong together.

    Returns:
        the result, or None if fewer than two classes have examples or no signal varies.
    """
    present, labels = np.unique(label_codes, return_inverse=True)
    facts = _facts_of_files(examples) if len(present) > 1 else {}
    signals = {name: fact for name, fact in facts.items() if fact[0].max(initial=0) > 0}
    if not signals:
        return None
    groups, num_classes = joined.codes, len(present)
    # By a checksum of its name, so that a group's fold does not depend on the other groups.
    checksums = [zlib.crc32(name.encode()) for name in joined.names.to_pylist()]
    folds = np.array(checksums, np.int64) % _NUM_FOLDS

    def predict(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, float]:
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
        right = predicted == labels
        num_right = np.bincount(labels, weights=right, minlength=num_classes)
        return right, float(np.mean(num_right / np.bincount(labels)))

    right, accuracy = predict([codes for codes, _ in signals.values()])
    low, high = _interval(right, accuracy, labels, groups, num_classes)
    # The mean share of each class in a patient: how likely a patient has it by chance.
    cells = np.bincount(groups * num_classes + labels, minlength=(groups.max() + 1) * num_classes)
    of_groups = cells.reshape(-1, num_classes)
    shares = np.mean(of_groups / of_groups.sum(1, keepdims=True), axis=0)
    num_values = sum(len(values) for _, values in signals.values())
    giveaways = []
    for name, (codes, values) in signals.items():
        for code, value in enumerate(values):
            has = codes == code
            classes, num_groups = np.unique(labels[has]), len(np.unique(groups[has]))
            # A rare value is in one class only by chance, so many patients must have it.
            if len(classes) != 1 or num_groups < MIN_GROUPS:
                continue
            if num_values * shares[classes[0]] ** num_groups <= _CHANCE:
                giveaways.append((name, value, int(present[classes[0]]), int(has.sum())))
    return Shortcuts(
        chance=1 / num_classes,
        accuracy=accuracy,
        low=low,
        high=high,
        by_signal={name: predict([codes])[1] for name, (codes, _) in signals.items()},
        giveaways=tuple(giveaways),
        min_groups=int(np.count_nonzero(of_groups, axis=0).min()),
    )


def _facts_of_files(examples: pa.Table) -> Facts:
    """Returns the facts whose columns an examples table has."""
    there = set(examples.column_names)
    facts: Facts = {}
    for name, (columns, separator) in _CATEGORIES.items():
        if there.issuperset(columns):
            texts = (pc.fill_null(examples[column].cast(pa.string()), "") for column in columns)
            numbers, values = encode(pc.binary_join_element_wise(*texts, separator))
            # Numbered by frequency; all rare values share the last number.
            order = np.argsort(-np.bincount(numbers), kind="stable")
            codes = np.minimum(np.argsort(order), _MAX_CATEGORIES)[numbers]
            facts[name] = codes, values.take(pa.array(order[:_MAX_CATEGORIES])).to_pylist()
    if "brightness" in there:
        brightness = examples["brightness"].to_numpy()
        edges = np.quantile(brightness, np.linspace(0, 1, _BRIGHTNESS_BINS + 1)[1:-1])
        names = [f"below {edges[0]:.3g}", *(f"from {edge:.3g}" for edge in edges)]
        facts["mean brightness"] = np.searchsorted(edges, brightness, "right"), names
    if "white_border" in there:
        border = examples["white_border"].to_numpy()
        facts["white border"] = np.searchsorted(_BORDER_EDGES, border, "right"), _BORDERS
    return facts


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
    total, right_of = (
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
            values.append(np.mean((weights @ right_of)[there] / resampled[there]))
    effective = max(2.0, (total.sum(0) ** 2 / np.square(total).sum(0)).min())
    factor = np.sqrt((1 + _NUM_FOLDS / (_NUM_FOLDS - 1)) * effective / (effective - 1))
    ends = accuracy + factor * (np.quantile(values or [0.0, 1.0], [0.025, 0.975]) - accuracy)
    low, high = np.clip(ends, 0, 1)
    return float(low), float(high)

"""The card's charts as numbers, which `charts.html.jinja` draws in the page's colours.

No plotting library is used: importing it and drawing would take half of the time that finishing a
build takes, and HTML can show bars and a histogram by itself.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io.auditing import ranges
from tfrecord_io.auditing.pages import Tick, ticks
from tfrecord_io.manifest import Manifest

#: With more classes than this, the charts of class sizes would be unreadable and are left out.
_MAX_BARS = 40

#: Number of series colours that the page defines.
_NUM_SERIES = 8

_NUM_BINS = 32


@dataclasses.dataclass(frozen=True)
class Bar:
    """A bar of a chart.

    Attributes:
        name: text in front of the bar.
        length: share of the chart's length, 0 to 1.
        value: text behind the bar.
        series: index of the bar's colour.
    """

    name: str
    length: float
    value: str
    series: int = 0


@dataclasses.dataclass(frozen=True)
class Bars:
    """A bar chart.

    Attributes:
        description: the content of the chart as text, for screen readers.
        rows: the bars.
        title: heading of the chart; may be empty.
        mark: label and position, 0 to 1, of a line across all bars; None for no line.
    """

    description: str
    rows: tuple[Bar, ...]
    title: str = ""
    mark: tuple[str, float] | None = None


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Histograms on one pair of axes.

    Attributes:
        description: the content of the chart as text, for screen readers.
        series: the name of each histogram, and the corners (x, y) of its outline, each 0 to 1; y
            points upwards.
        filled: True to colour the area under the outline, False to colour the outline.
        x_ticks: marks of the axis of values.
        y_ticks: marks of the axis of shares.
    """

    description: str
    series: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]
    filled: bool
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


def classes_of_splits(found: Manifest) -> list[Bars]:
    """Returns a chart of the class sizes for each split, or no chart if there are too many classes.

    Args:
        found: the manifest.
    """
    if found.num_classes > _MAX_BARS:
        return []
    charts = []
    for name, split in found.splits.items():
        most = max(split.label_counts, default=0)
        rows = tuple(
            Bar(
                label,
                count / max(most, 1),
                f"{count:,} ({100 * count / max(split.num_examples, 1):.0f} %)",
                index % _NUM_SERIES,
            )
            for index, (label, count) in enumerate(
                zip(found.label_names, split.label_counts, strict=True)
            )
        )
        told = ", ".join(f"{row.name} {row.value}" for row in rows)
        title = f"{name}: {split.num_examples:,} images"
        charts.append(Bars(f"Images by {found.label_kind.noun} in {name}: {told}", rows, title))
    return charts


def images_of_patients(examples: pa.Table) -> Bars | None:
    """Returns a chart of patients by their number of images, or None if no patient is known.

    Args:
        examples: the examples table.
    """
    sizes = pc.value_counts(examples["patient"].drop_null()).field("counts").to_numpy()
    if not len(sizes):
        return None
    edges = [1, 2, 3, 4, 5, 10, 20, 50, 100, np.inf]
    names = ["1", "2", "3", "4", "5–9", "10–19", "20–49", "50–99", "100+"]
    heights = np.histogram(sizes, edges)[0].tolist()
    last = max(place for place, height in enumerate(heights) if height)
    rows = tuple(
        Bar(name, height / max(heights), f"{height:,}")
        for name, height in zip(names[: last + 1], heights, strict=False)
    )
    told = ", ".join(f"{row.value} with {row.name}" for row in rows if row.length)
    return Bars(f"Patients by their number of images: {told}", rows)


def shortcuts(measured: Mapping[str, Any] | None) -> Bars | None:
    """Returns a chart of how well side facts predict the class, compared with guessing.

    Args:
        measured: the audit's measure `shortcuts`, or None if it was not measured.

    Returns:
        the chart, or None without a measure.
    """
    if measured is None:
        return None
    signals = sorted(measured["by_signal"].items(), key=lambda item: -item[1])
    values = [("all together", measured["accuracy"]), *signals]
    chance = measured["chance"]
    longest = max(chance, *(value for _, value in values))
    rows = tuple(
        Bar(name, value / longest, f"{value:.0%}".replace("%", " %"), min(place, 1))
        for place, (name, value) in enumerate(values)
    )
    guessing = f"guessing {100 * chance:.0f} %"
    told = ", ".join(f"{row.name} {row.value}" for row in rows)
    return Bars(
        f"Classes predicted correctly from side facts: {told}; {guessing}",
        rows,
        mark=(guessing, chance / longest),
    )


def brightness(found: Manifest, examples: pa.Table) -> Histogram | None:
    """Returns a histogram of mean brightness, 0 to 255, for each class.

    With more classes than colours, all classes share one histogram.

    Args:
        found: the manifest.
        examples: the examples table.

    Returns:
        the histograms, or None if the table has no brightness.
    """
    if "brightness" not in examples.column_names:
        return None
    if found.num_classes <= _NUM_SERIES:
        names = found.label_names
        has = found.label_kind.has(examples["label"].to_pylist(), names)
    else:
        names, has = (f"all {found.label_kind.plural}",), np.ones((examples.num_rows, 1), bool)
    values = examples["brightness"].to_numpy()
    top = max(float(values.max(initial=0)) * 1.02, 1.0)
    described = "Histogram of the mean brightness of the images, by class"
    return _histogram(described, values, (0.0, top), names, has)


def numbers(found: Manifest, examples: pa.Table) -> Histogram | None:
    """Returns a histogram of the labels of each split, or None if they are not numbers.

    Args:
        found: the manifest.
        examples: the examples table.
    """
    if not found.label_kind.is_number:
        return None
    values = ranges.numbers_of(examples)
    names = [name for name, split in found.splits.items() if split.num_examples][:_NUM_SERIES]
    of_split = examples["split"].cast(pa.string()).to_numpy(zero_copy_only=False)
    has = of_split[:, None] == np.array(names, object)
    described = f"Histogram of {found.label_names[0]}, by split"
    low, top = float(values.min()), float(values.max())
    return _histogram(described, values, (low, top if top > low else low + 1), names, has)


def _histogram(
    description: str,
    values: np.ndarray,
    limits: tuple[float, float],
    names: Sequence[str],
    has: np.ndarray,
) -> Histogram:
    """Returns a histogram for each group of examples.

    Args:
        description: the content of the chart as text.
        values: [num_examples].
        limits: the ends of the axis of values, between which all values are.
        names: of the groups.
        has: bool [num_examples, num_groups], the members of each group.
    """
    low, top = limits
    bins = ((values - low) * (_NUM_BINS / (top - low))).astype(np.int64)
    bins = np.minimum(bins, _NUM_BINS - 1)
    counts = np.stack([np.bincount(bins[members], minlength=_NUM_BINS) for members in has.T])
    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    highest = float(shares.max(initial=1))
    return Histogram(
        description=description,
        series=tuple(
            (name, _outline(row / highest)) for name, row in zip(names, shares, strict=True)
        ),
        filled=len(names) == 1,
        x_ticks=ticks(low, top),
        y_ticks=ticks(0.0, highest),
    )


def _outline(heights: np.ndarray) -> tuple[tuple[float, float], ...]:
    """Returns the corners of a step curve that starts and ends at the axis; merges equal steps."""
    corners = [(0.0, 0.0)]
    left = 0
    for height, steps in itertools.groupby(heights.tolist()):
        right = left + sum(1 for _ in steps)
        corners += [(left / len(heights), height), (right / len(heights), height)]
        left = right
    return (*corners, (1.0, 0.0))

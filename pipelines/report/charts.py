"""The card's charts as numbers, which `charts.html.jinja` draws in the page's colours.

No plotting library is used: importing it and drawing would take half of the time that finishing a
build takes, and HTML can show bars and a histogram by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io.auditing.columns import numbers_of
from tfrecord_io.auditing.pages import Tick, ticks
from tfrecord_io.manifest import Manifest

#: With more classes than this, the charts of class sizes would be unreadable and are left out.
_MAX_BARS = 40

#: Number of series colours that the page defines.
_NUM_SERIES = 8

_NUM_BINS = 32

# The bars of `images_of_patients`, and the smallest number of images of each.
_PATIENT_BARS = ["1", "2", "3", "4", "5–9", "10–19", "20–49", "50–99", "100+"]
_PATIENT_EDGES = [1, 2, 3, 4, 5, 10, 20, 50, 100, np.inf]


class Bar(NamedTuple):
    """A bar: its name, its length (1 is the chart's length), its value and its colour's index."""

    name: str
    length: float
    value: str
    series: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart of bars, or of the histograms in `series`.

    Attributes:
        title: heading of the chart.
        description: the content of the chart as text, for screen readers.
        axis: what the names of upright bars or the values of a histogram are; without it, the bars
            are horizontal.
        bars: the bars.
        mark: label and position, 0 to 1, of a line across all bars; None for no line.
        series: the name of each histogram, and the corners (x, y) of its outline, each 0 to 1; y
            points upwards. A single one is an area, several are outlines.
        unit: what the heights of histograms are.
        x_ticks: marks of the axis of values.
        y_ticks: marks of the axis of heights.
    """

    title: str
    description: str
    axis: str = ""
    bars: Sequence[Bar] = ()
    mark: tuple[str, float] | None = None
    series: Sequence[tuple[str, list[tuple[float, float]]]] = ()
    unit: str = ""
    x_ticks: Sequence[Tick] = ()
    y_ticks: Sequence[Tick] = ()


def classes_of_splits(dataset: Manifest) -> list[Chart]:
    """Returns a chart of the class sizes for each split, or none if there are too many classes."""
    charts = []
    for name, split in dataset.splits.items() if dataset.num_classes <= _MAX_BARS else ():
        most, total = max(1, *split.label_counts), max(1, split.num_examples)
        bars = [
            Bar(label, num / most, f"{num:,} ({100 * num / total:.0f} %)", place % _NUM_SERIES)
            for place, (label, num) in enumerate(
                zip(dataset.label_names, split.label_counts, strict=True)
            )
        ]
        title = f"{name}: {split.num_examples:,} images"
        told = f"Images by {dataset.label_kind.noun} in {name}: {_told(bars)}"
        charts.append(Chart(title=title, description=told, bars=bars))
    return charts


def images_of_patients(examples: pa.Table) -> list[Chart]:
    """Returns a chart of patients by their number of images, or none if no patient is known."""
    sizes = pc.value_counts(examples["patient"].drop_null()).field("counts").to_numpy()
    if not len(sizes):
        return []
    heights = np.trim_zeros(np.histogram(sizes, _PATIENT_EDGES)[0], "b").tolist()
    bars = [
        Bar(name, height / max(heights), f"{height:,}")
        for name, height in zip(_PATIENT_BARS, heights, strict=False)
    ]
    title = "Patients by their number of images"
    told = ", ".join(f"{bar.value} with {bar.name}" for bar in bars if bar.length)
    axis = "images of a patient"
    return [Chart(title=title, description=f"{title}: {told}", axis=axis, bars=bars)]


def shortcuts(measured: Mapping[str, Any] | None) -> list[Chart]:
    """Returns a chart of how well side facts predict the class, compared with guessing.

    Without the audit's measure `shortcuts` there is none.
    """
    if measured is None:
        return []
    signals = sorted(measured["by_signal"].items(), key=lambda item: -item[1])
    values = [("all together", measured["accuracy"]), *signals]
    chance = measured["chance"]
    longest = max(chance, *(value for _, value in values))
    bars = [Bar(name, value / longest, f"{100 * value:.0f} %") for name, value in values]
    guessing = f"guessing {100 * chance:.0f} %"
    told = f"Classes predicted correctly from facts about the file: {_told(bars)}; {guessing}"
    title = "How often facts about the file alone predict the right class"
    return [Chart(title=title, description=told, bars=bars, mark=(guessing, chance / longest))]


def brightness(dataset: Manifest, examples: pa.Table) -> list[Chart]:
    """Returns a histogram of mean brightness, 0 to 255, for each class.

    With more classes than colours, all classes share one histogram. If the table has no column
    `brightness`, there is none.
    """
    if "brightness" not in examples.column_names:
        return []
    kind, values = dataset.label_kind, examples["brightness"].to_numpy()
    groups = {f"all {kind.plural}": values}
    if dataset.num_classes <= _NUM_SERIES:
        has = kind.has(examples["label"].to_pylist(), dataset.label_names)
        groups = {name: values[has[:, i]] for i, name in enumerate(dataset.label_names)}
    chart = Chart(
        title="Mean brightness",
        description="Histogram of the mean brightness of the images, by class",
        axis="mean brightness of the image, 0 black to 255 white",
        unit=f"% of the {kind.noun}",
    )
    return [_with_histograms(chart, groups, 0.0, max(values.max(initial=0) * 1.02, 1.0))]


def numbers(dataset: Manifest, examples: pa.Table) -> list[Chart]:
    """Returns a histogram of the labels of each split, or none if they are not numbers."""
    if not dataset.label_kind.is_number:
        return []
    values, (number,) = numbers_of(examples), dataset.label_names
    splits = examples["split"].cast(pa.string()).to_numpy(zero_copy_only=False)
    names = [name for name, split in dataset.splits.items() if split.num_examples][:_NUM_SERIES]
    groups = {name: values[splits == name] for name in names}
    told = f"Histogram of {number}, by split"
    chart = Chart(title=number, description=told, axis=number, unit="% of the split")
    low, top = values.min(), values.max()
    return [_with_histograms(chart, groups, low, top if top > low else low + 1)]


def _told(bars: Sequence[Bar]) -> str:
    return ", ".join(f"{bar.name} {bar.value}" for bar in bars)


def _with_histograms(
    chart: Chart, groups: Mapping[str, np.ndarray], low: float, top: float
) -> Chart:
    """Returns the chart with a histogram of each group's values, all between `low` and `top`."""
    counts = np.array([np.histogram(some, _NUM_BINS, (low, top))[0] for some in groups.values()])
    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    highest = float(shares.max(initial=1))
    # An outline has two corners between neighbouring bins, and one at each end of the axis.
    edges = np.repeat(np.arange(_NUM_BINS + 1) / _NUM_BINS, 2).tolist()
    heights = np.pad(np.repeat(shares / highest, 2, axis=1), ((0, 0), (1, 1))).tolist()
    return dataclasses.replace(
        chart,
        series=[
            (name, list(zip(edges, row, strict=True)))
            for name, row in zip(groups, heights, strict=True)
        ],
        x_ticks=ticks(float(low), float(top)),
        y_ticks=ticks(0.0, highest),
    )

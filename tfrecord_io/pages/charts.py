"""Charts as numbers, which templates draw: in the colours of a page, or in a file of SVG.

No plotting library is used: importing one and drawing would take half of the time that finishing a
build takes. Lengths are in the units of the SVG, of which a chart on a page is 400 wide.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tfrecord_io.pages.page import environment
from tfrecord_io.terminal.printing import printable

#: Number of colours that the pages define for series.
NUM_COLOURS = 8

_WIDTH, _PLOT_HEIGHT = 400, 220
_TOP, _RIGHT = 24, 16
_ROW = 20
_NUM_BINS = 32
_MAX_NAME_LENGTH = 44

# Width of a letter, in names that are mostly capitals.
_LETTER = 8.6


@dataclasses.dataclass(frozen=True)
class Axis:
    """What the values on an axis are, the values at its ends, and its marks as (value, text)."""

    label: str
    low: float
    top: float
    marks: Sequence[tuple[float, str]]

    @classmethod
    def of(cls, label: str, low: float, top: float, *, whole: bool = False) -> Axis:
        """Returns an axis with up to seven marks, spaced by 1, 2 or 5 times a power of ten.

        `top` must be above `low`; `whole` keeps marks at whole numbers.
        """
        span = top - low
        power = 10.0 ** math.floor(math.log10(span / 6))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * 6 >= span)
        step = max(step, 1.0) if whole else step
        # A value that is off by rounding alone is still on the axis.
        first, last = math.ceil(low / step - 1e-9), math.floor(top / step + 1e-9)
        marks = [(place * step, f"{place * step:g}") for place in range(first, last + 1)]
        return cls(label, low, top, marks)

    @classmethod
    def named(cls, label: str, names: Iterable[str], *, downwards: bool = False) -> Axis:
        """Returns an axis with the names at 0, 1, 2, ..., each in the middle of its unit."""
        marks = [(place, printable(name, _MAX_NAME_LENGTH)) for place, name in enumerate(names)]
        ends = (len(marks) - 0.5, -0.5) if downwards else (-0.5, len(marks) - 0.5)
        return cls(label, *ends, marks)


class Series(NamedTuple):
    """Points of a chart: their name in the legend, and (x, y) of each.

    `look` is `line`, `dashed`, `dotted`, `marked` (a line with a dot at each point), `dots` or
    `area`. `colour` is one of `NUM_COLOURS`; None is grey, for what others are compared with.
    """

    name: str
    points: Sequence[tuple[float, float]]
    look: str = "line"
    colour: int | None = 0


class Cell(NamedTuple):
    """A cell of a matrix: its place, its lines of text, and its shade from 0 to 1."""

    column: int
    row: int
    lines: Sequence[str]
    share: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart with two axes.

    Attributes:
        description: its content as text, for screen readers.
        cells: of a matrix, whose axes are `Axis.named`.
        plot_width: between the ends of the axis; None for that of a chart on a page.
        plot_height: between the ends of the axis.
    """

    title: str
    description: str
    x: Axis
    y: Axis
    series: Sequence[Series] = ()
    cells: Sequence[Cell] = ()
    plot_width: float | None = None
    plot_height: float = _PLOT_HEIGHT

    @property
    def legend(self) -> list[tuple[float, str, Series]]:
        """The height, the name and the series of each row below the axes."""
        first = self.label_height + _ROW + 4
        named = [each for each in self.series if each.name]
        return [
            (first + _ROW * row, printable(each.name, _MAX_NAME_LENGTH), each)
            for row, each in enumerate(named)
        ]

    @property
    def left(self) -> float:
        """Where the axes begin, right of the marks."""
        return 12 + _LETTER * max(len(text) for _, text in self.y.marks)

    @property
    def bottom(self) -> float:
        """Where the axis to the right is."""
        return _TOP + self.plot_height

    @property
    def right(self) -> float:
        """Where the axis to the right ends."""
        return self.left + self.plot_width if self.plot_width else _WIDTH - _RIGHT

    @property
    def is_tilted(self) -> bool:
        """Whether the marks to the right are too long to stand beside each other."""
        room = (self.right - self.left) / len(self.x.marks)
        return max(len(text) for _, text in self.x.marks) * _LETTER > room - _LETTER

    @property
    def label_height(self) -> float:
        """Where the name of the axis to the right stands."""
        longest = max(len(text) for _, text in self.x.marks) if self.is_tilted else 0
        return self.bottom + 40 + 0.6 * _LETTER * longest

    @property
    def width(self) -> float:
        return self.right + _RIGHT

    @property
    def height(self) -> float:
        return self.label_height + _ROW * len(self.legend) + 12

    def across(self, value: float) -> float:
        """Returns where a value of the axis to the right is."""
        return self.left + (self.right - self.left) * (value - self.x.low) / (
            self.x.top - self.x.low
        )

    def up(self, value: float) -> float:
        """Returns where a value of the axis upwards is."""
        return _TOP + self.plot_height * (self.y.top - value) / (self.y.top - self.y.low)

    def places(self, series: Series) -> list[str]:
        """Returns where the points of a series are, as texts; neighbours are not the same."""
        places = [f"{self.across(x):.1f},{self.up(y):.1f}" for x, y in series.points]
        return [place for place, last in zip(places, ["", *places], strict=False) if place != last]


class Bar(NamedTuple):
    """A bar: its name, its length (1 is the chart's length), its value and its colour's index."""

    name: str
    length: float
    value: str
    colour: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bars:
    """A chart of horizontal bars, which a page alone can show.

    `title` and `description` are those of a `Chart`; `mark` is the label and the position, 0 to 1,
    of a line across all bars, or None.
    """

    title: str
    description: str
    bars: Sequence[Bar]
    mark: tuple[str, float] | None = None


def steps(edges: np.ndarray, heights: np.ndarray) -> list[tuple[float, float]]:
    """Returns the outline of bars: [num_bars + 1] edges and [num_bars] heights."""
    heights = np.pad(np.repeat(heights, 2), 1)
    return list(zip(np.repeat(edges, 2).tolist(), heights.tolist(), strict=True))


def described(bars: Sequence[Bar]) -> str:
    """Returns the names and values of bars, for the description of their chart."""
    return ", ".join(f"{bar.name} {bar.value}" for bar in bars)


def histograms(
    groups: Mapping[str, np.ndarray],
    low: float,
    top: float,
    *,
    axis: str,
    unit: str,
    title: str,
    description: str,
) -> Chart:
    """Returns a chart with a histogram of each group's values, all between `low` and `top`."""
    edges = np.linspace(low, top, _NUM_BINS + 1)
    shares: list[np.ndarray] = []
    for values in groups.values():
        counts = np.histogram(values, edges)[0]
        shares.append(100 * counts / max(counts.sum(), 1))
    alone = len(groups) == 1
    return Chart(
        title=title,
        description=description,
        x=Axis.of(axis, float(low), float(top)),
        y=Axis.of(unit, 0.0, max(1.0, *(float(each.max()) for each in shares))),
        series=[
            Series("" if alone else name, steps(edges, each), "area" if alone else "line", place)
            for place, (name, each) in enumerate(zip(groups, shares, strict=True))
        ],
    )


def svg_of(charts: Sequence[Chart]) -> str:
    """Returns a file of SVG with charts beside each other, dark on white, for papers and slides."""
    return environment().get_template("charts.svg.jinja").render(charts=charts)

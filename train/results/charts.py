"""The charts of a run. Each is drawn once, for a file under `plots/` and for the run's page."""

from __future__ import annotations

import base64
import dataclasses
import functools
import io
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from sklearn import metrics as sk_metrics

from tfrecord_io import visible
from tfrecord_io.printing import number, printable
from train.kinds.measures import NUM_CALIBRATION_BINS
from train.kinds.words import decimal, thousandths, with_interval
from train.results.predictions import Predictions

#: Colours that colour-blind readers can tell apart. Source: Okabe and Ito 2008, "Color universal
#: design".
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

#: With at most this many classes, each cell of the confusion matrix shows its count.
MAX_CLASSES_WITH_TEXT = 40

# Most class names beside the confusion matrix; with more classes, some have no name.
_MAX_NAMES = 60
_MAX_NAME_LENGTH = 28

# Answers behind each point of the reliability chart, about, and the most points it has.
_ANSWERS_A_POINT = 20
_MAX_RELIABILITY_POINTS = 12

_STYLE = {
    "text.parse_math": False,  # a class may be named `$x^2$`
    "svg.fonttype": "none",  # text stays text, in the reader's fonts
    "svg.hashsalt": "charts",  # the same chart is the same bytes
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "legend.fontsize": 9,
    "legend.framealpha": 0.6,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart on one pair of axes: its heading, its content in words, and what draws it.

    The size is width and height in inches; on a phone, the width is that of the screen.
    """

    title: str
    description: str
    draw: Callable[[Axes], Any]
    size: tuple[float, float] = (4.2, 4.1)


def write_charts(
    directory: Path,
    history: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, Any],
    predictions: Predictions | None,
) -> dict[str, list[tuple[Chart, str]]]:
    """Writes DIRECTORY/NAME.png for each name that has charts, side by side.

    The history has a row per epoch; the metrics are empty and the predictions None if there was
    nothing to evaluate. Returns the charts and their data URLs by name. What cannot be drawn or
    written is left out with a warning, because a long run must not fail for a picture.
    """
    written: dict[str, list[tuple[Chart, str]]] = {}
    for name in ("curves", *(predictions.task.charts if predictions else ())):
        written[name], path = [], directory / f"{name}.png"
        try:
            if predictions is None or name == "curves":
                charts = training_curves(history, metrics.get("best_epoch") or 0)
            else:
                charts = DRAWN[name](predictions, metrics)
            directory.mkdir(exist_ok=True)
            if charts:
                write_png(path, charts)
            written[name] = [(chart, data_url(chart)) for chart in charts]
        except Exception as error:
            print(f"warning: {path} was not written: {error!r}", file=sys.stderr)
    return written


def write_png(path: Path, charts: Sequence[Chart]) -> None:
    """Writes charts beside each other as a PNG, for papers and slides."""
    _save(path, charts, [chart.title for chart in charts], dpi=200)


def data_url(chart: Chart) -> str:
    """Returns a chart without its title as a data URL of SVG, with a transparent background."""
    file = io.BytesIO()
    look = {"format": "svg", "dpi": 120, "transparent": True, "metadata": {"Date": None}}
    _save(file, [chart], [""], **look)
    return f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}"


def _save(file: Any, charts: Sequence[Chart], titles: Sequence[str], **look: Any) -> None:
    """Writes charts of one size beside each other into a file."""
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # Of letters that matplotlib's font lacks.
        warnings.simplefilter("ignore", UserWarning)
        width, height = charts[0].size
        figure = Figure(figsize=(width * len(charts), height), layout="constrained")
        for place, (chart, title) in enumerate(zip(charts, titles, strict=True), 1):
            axes = figure.add_subplot(1, len(charts), place)
            chart.draw(axes)
            axes.set_title(title)
        figure.savefig(file, **look)


def training_curves(history: Sequence[Mapping[str, Any]], best_epoch: int) -> list[Chart]:
    """Returns a chart of each quantity by epoch; unknown and infinite values are left out.

    The best epoch is that whose weights were kept, counted from 1; 0 if unknown.
    """
    is_of_numbers = any("mae" in row for row in history)
    charts = []
    for quantity, title, axis in (
        ("loss", "Loss", "squared error" if is_of_numbers else "loss in nats"),
        ("accuracy", "Accuracy", "accuracy"),
        ("mae", "Mean absolute error", "mean absolute error"),
    ):
        lines = {}
        for key, name in ((quantity, "training"), (f"val_{quantity}", "validation")):
            rows = [(row["epoch"], row[key]) for row in history if row.get(key) is not None]
            if known := [row for row in rows if np.isfinite(row[1])]:
                lines[name] = np.array(known)
        if lines:
            ends = (f"{name} from {y[0, 1]:.3f} to {y[-1, 1]:.3f}" for name, y in lines.items())
            description = f"{axis} by epoch: {'; '.join(ends)}"
            draw = functools.partial(_draw_curves, axis, lines, best_epoch)
            charts.append(Chart(title=title, description=description, draw=draw))
    return charts


def _draw_curves(axis: str, lines: Mapping[str, np.ndarray], best_epoch: int, axes: Axes) -> None:
    for colour, (name, points) in zip(COLOURS, lines.items(), strict=False):
        axes.plot(*points.T, ".-", color=colour, label=name)
    if best_epoch:
        axes.axvline(best_epoch, color="0.5", linestyle=":", label="kept epoch")
    axes.set_ylim(0, 1 if axis == "accuracy" else None)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    _label(axes, "epoch", axis)


def roc_curves(predictions: Predictions, metrics: Mapping[str, Any]) -> list[Chart]:
    """Returns the ROC curves of each class against the rest, and of urgent cases for OCT.

    Of many classes, those with the smallest areas are drawn. There is no chart if no class has both
    positive and negative examples.
    """
    task, names, scores = predictions.task, predictions.label_names, metrics["scores"]
    has = task.has(predictions.truths, len(names))
    areas = {view.name: scores[view.of("auc")] for view in task.views(names)}
    drawn = [view for view in task.views(names) if areas[view.name]["value"] is not None]
    shown = ""
    if len(drawn) > len(COLOURS):
        shown = f", the {len(COLOURS)} smallest of {len(drawn)}"
        drawn = sorted(drawn, key=lambda view: areas[view.name]["value"])[: len(COLOURS)]
    labels = [
        f"{_short(view.name)}: {with_interval(areas[view.name], thousandths, '')}" for view in drawn
    ]

    def draw(axes: Axes) -> None:
        for colour, view, label in zip(COLOURS, drawn, labels, strict=False):
            ranking = view.ranking(predictions.probabilities)
            rates = _roc(view.is_positive(has), ranking, predictions.by_run())
            axes.plot(*rates, "--" if view.is_group else "-", color=colour, label=label)
        axes.plot((0, 1), (0, 1), ":", color="0.5", label="guessing")
        _label(axes, "false alarms (1 − specificity)", "sensitivity")

    chart = Chart(
        title=f"ROC on {metrics['split']}: area and interval{shown}",
        description=f"ROC curves with the areas under them: {', '.join(labels)}",
        draw=draw,
        size=(4.2, 3.5 + 0.17 * len(labels)),
    )
    return [chart] if drawn else []


def _roc(
    is_positive: np.ndarray, ranking: np.ndarray, runs: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (false alarms, sensitivity) of the points of a curve, float64 [num_points] each.

    Of several runs it is their mean at each rate of false alarms, whose area is the mean of their
    areas. Source: Fawcett 2006, "An introduction to ROC analysis", section 8.1.
    """
    curves = [
        sk_metrics.roc_curve(is_positive[rows], ranking[rows])[:2]
        for rows in runs
        if 0 < is_positive[rows].sum() < len(rows)
    ]
    if len(curves) == 1:
        return curves[0]
    grid = np.linspace(0, 1, 201)
    return grid, np.mean([np.interp(grid, *curve) for curve in curves], axis=0)


def reliability(predictions: Predictions, metrics: Mapping[str, Any]) -> list[Chart]:
    """Returns the share of right answers by confidence, before and after the temperature.

    Each point stands for the same number of answers. (The expected calibration error uses bins of
    equal width. With few images, most of those would hold one or two, and a line would show noise.)
    Grey bars show how many answers have which confidence. There is no chart of a single class.
    """
    lines, confidences = {}, []
    for name, probabilities in (
        ("as exported", predictions.probabilities),
        ("before the temperature", predictions.uncalibrated),
    ):
        if probabilities is None:
            continue
        choices, right = predictions.task.choices(probabilities, predictions.truths)
        if choices.shape[-1] < 2:
            return []
        confidence, is_right = choices.max(-1), choices.argmax(-1) == right
        num_points = int(np.clip(len(right) // _ANSWERS_A_POINT, 1, _MAX_RELIABILITY_POINTS))
        parts = np.array_split(np.argsort(confidence, kind="stable"), num_points)
        lines[name] = np.array([(confidence[part].mean(), is_right[part].mean()) for part in parts])
        confidences.append(confidence)

    def draw(axes: Axes) -> None:
        weights = np.full(len(confidences[0]), 1 / len(confidences[0]))
        axes.hist(
            confidences[0], NUM_CALIBRATION_BINS, range=(0, 1), weights=weights, color="0.75",
            edgecolor="white", label="share of the answers",
        )  # fmt: skip
        for colour, (name, points) in zip(COLOURS, lines.items(), strict=False):
            axes.plot(*points.T, "o-", markersize=4, color=colour, label=name)
        axes.plot((0, 1), (0, 1), ":", color="0.5", label="perfect")
        axes.set_ylim(0, 1.02)
        _label(axes, "probability given to the answer", "share of right answers")

    told = "; ".join(
        f"{name}: " + ", ".join(f"{y:.0%} right at {x:.0%}" for x, y in points)
        for name, points in lines.items()
    )
    error = metrics["scores"]["ece"]["value"]
    title = f"Reliability on {metrics['split']}: calibration error {error:.3f}"
    description = f"Share of right answers by the probability given to them. {told}"
    return [Chart(title=title, description=description, draw=draw)]


def agreement(predictions: Predictions, metrics: Mapping[str, Any]) -> list[Chart]:
    """Returns the answers by truth, and their difference by their mean (Bland and Altman)."""
    answers = predictions.task.chosen(predictions.probabilities).astype(np.float64)
    truths = predictions.truths.astype(np.float64)
    lines = {"bias": "mean difference", "limit_low": "lower limit", "limit_high": "upper limit"}
    found = {name: metrics["scores"][measure]["value"] for measure, name in lines.items()}
    heights = {name: height for name, height in found.items() if height is not None}
    # As pixels: a chart of 100,000 circles would be a large file.
    dots = {"color": COLOURS[0], "alpha": 0.5, "label": "an image", "rasterized": True}

    def draw_direct(axes: Axes) -> None:
        axes.plot(truths, answers, ".", **dots)
        ends = np.array([min(answers.min(), truths.min()), max(answers.max(), truths.max())])
        axes.plot(ends, ends, ":", color="0.5", label="the right answer")
        _label(axes, "truth", "answer")

    def draw_difference(axes: Axes) -> None:
        axes.plot((answers + truths) / 2, answers - truths, ".", **dots)
        for name, height in heights.items():
            style = "-" if name == "mean difference" else "--"
            axes.axhline(height, ls=style, color=COLOURS[1], label=f"{name}: {decimal(height)}")
        _label(axes, "mean of answer and truth", "answer − truth")

    told = ", ".join(f"{name}: {decimal(height)}" for name, height in heights.items())
    return [
        Chart(
            title=f"Answer by truth on {metrics['split']}",
            description=f"The answers to {metrics['num_examples']:,} images by their true number",
            draw=draw_direct,
        ),
        Chart(
            title=f"Bland–Altman on {metrics['split']}",
            description=f"Answer minus truth by the mean of both. {told}",
            draw=draw_difference,
        ),
    ]


def confusion(predictions: Predictions, metrics: Mapping[str, Any]) -> list[Chart]:
    """Returns counts by true and predicted class; the shade is the share of the true class."""
    matrix, label_names = np.asarray(metrics["confusion_matrix"]), predictions.label_names
    num_classes = len(label_names)
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)

    def draw(axes: Axes) -> None:
        picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        if num_classes <= MAX_CLASSES_WITH_TEXT:
            size = 9 * min(1, 22 / num_classes)
            for (row, column), count in np.ndenumerate(matrix):
                colour = "white" if shares[row, column] > 0.5 else "black"
                text = f"{number(count)}\n{shares[row, column]:.0%}"
                axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=size)
        named = range(0, num_classes, -(-num_classes // _MAX_NAMES))
        names = [_short(label_names[index]) for index in named]
        axes.set_xticks(named, names, rotation=30 if num_classes <= 20 else 90, ha="right")
        axes.set_yticks(named, names)
        axes.set(xlabel="predicted", ylabel="truth")
        axes.grid(False)
        axes.figure.colorbar(picture, ax=axes, label="share of the true class", shrink=0.8)

    # A large matrix has no text in its cells, so it only needs space for the names.
    side = min(max(4.5, 0.8 * num_classes + 2), 20 if num_classes <= MAX_CLASSES_WITH_TEXT else 12)
    title = f"{metrics['split']}: {number(round(matrix.sum()))} images"
    description, size = "Images by true and predicted class", (side + 0.8, side)
    return [Chart(title=title, description=description, draw=draw, size=size)]


#: What draws the charts that a task names.
DRAWN: Mapping[str, Callable[[Predictions, Mapping[str, Any]], list[Chart]]] = {
    "roc": roc_curves,
    "reliability": reliability,
    "agreement": agreement,
    "confusion": confusion,
}


def draw_occlusion(image: np.ndarray, drops: np.ndarray, title: str) -> Figure:
    """Draws a stored image, and beside it the image under its map, see `saliency.occlusion_map`."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9, 4.2), layout="constrained")
        plain, covered = figure.subplots(1, 2)
        seen = visible.eight_bits(image)
        for axes in (plain, covered):
            axes.imshow(seen.squeeze(-1) if seen.shape[-1] == 1 else seen, "gray", vmin=0, vmax=255)
            axes.set_axis_off()
        plain.set_title("what the network sees")
        limit = max(float(np.abs(drops).max()), 1e-6)
        picture = covered.imshow(drops, cmap="RdBu_r", alpha=0.5, vmin=-limit, vmax=limit)
        covered.set_title(_short(title))
        figure.colorbar(picture, ax=covered, label="drop in probability when covered", shrink=0.8)
        return figure


def _label(axes: Axes, x_label: str, y_label: str) -> None:
    """Names the axes, and adds a legend below them, where it covers nothing."""
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))


def _short(name: str) -> str:
    return printable(name, _MAX_NAME_LENGTH)

"""The charts of a run, as numbers; each is drawn on the run's page and in a file under `plots/`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import metrics as sk_metrics

from tfrecord_io.pages.charts import NUM_COLOURS, Axis, Cell, Chart, Series, steps, svg_of
from tfrecord_io.stores.files import atomic_write
from tfrecord_io.terminal.printing import number, printable
from train.kinds.measures import NUM_CALIBRATION_BINS
from train.kinds.words import thousandths, with_interval
from train.results.predictions import Predictions

#: With more classes than this, a confusion matrix cannot be read; metrics.json has it.
MAX_CLASSES = 40

_MAX_NAME_LENGTH = 28

# Answers behind each point of the reliability chart, about, and the most points it has.
_ANSWERS_A_POINT = 20
_MAX_RELIABILITY_POINTS = 12

_DIAGONAL = [(0, 0), (1, 1)]
_GRID = np.linspace(0, 1, 201)


def write_charts(
    directory: Path,
    history: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, Any],
    predictions: Predictions | None,
) -> dict[str, list[Chart]]:
    """Writes DIRECTORY/NAME.svg for each name that has charts, and returns the charts by name.

    The history has a row per epoch; the metrics are empty and the predictions None if there was
    nothing to evaluate. What cannot be drawn or written is left out with a warning, because a long
    run must not fail for a picture.
    """
    charts: dict[str, list[Chart]] = {}
    curves = functools.partial(training_curves, history, metrics.get("best_epoch") or 0)
    draw: dict[str, Callable[[], list[Chart]]] = {"curves": curves}
    for name in predictions.task.charts if predictions else ():
        draw[name] = functools.partial(DRAWN[name], predictions, metrics)
    for name, chart in draw.items():
        path = directory / f"{name}.svg"
        try:
            directory.mkdir(exist_ok=True)
            if drawn := chart():
                with atomic_write(path) as file:
                    file.write(svg_of(drawn).encode())
            charts[name] = drawn
        except Exception as error:
            print(f"warning: {path} was not written: {error!r}", file=sys.stderr)
    return charts


def training_curves(history: Sequence[Mapping[str, Any]], best_epoch: int) -> list[Chart]:
    """Returns a chart of each quantity by epoch; unknown and infinite values are left out.

    The best epoch is that whose weights were kept, counted from 1; 0 if unknown.
    """
    epochs = Axis.of("epoch", 1, max(2, len(history)), whole=True)
    charts = []
    for quantity, title, axis in (
        ("loss", "Loss", "loss in nats"),
        ("accuracy", "Accuracy", "accuracy"),
    ):
        series = []
        for key, name in ((quantity, "training"), (f"val_{quantity}", "validation")):
            rows = [(row["epoch"], row[key]) for row in history if row.get(key) is not None]
            if known := [row for row in rows if np.isfinite(row[1])]:
                look = "marked" if len(known) <= 30 else "line"
                series.append(Series(name, known, look, len(series)))
        if series:
            ends = (f"{s.name} from {s.points[0][1]:.3f} to {s.points[-1][1]:.3f}" for s in series)
            description = f"{axis} by epoch: {'; '.join(ends)}"
            highest = max(value for each in series for _, value in each.points)
            top = 1 if quantity == "accuracy" else 1.05 * highest or 1
            if best_epoch:
                kept = [(best_epoch, 0), (best_epoch, top)]
                series.append(Series("kept epoch", kept, "dotted", None))
            y = Axis.of(axis, 0, top)
            charts.append(Chart(title=title, description=description, x=epochs, y=y, series=series))
    return charts


def roc_curves(predictions: Predictions, metrics: Mapping[str, Any]) -> list[Chart]:
    """Returns the ROC curves of each class against the rest, and of urgent cases for OCT.

    Beside them is the precision by sensitivity of the same classes, each with its share of the
    images as a base line, which guessing reaches. Of many classes, those with the smallest areas
    are drawn. There is no chart if no class has both positive and negative examples.
    """
    task, names, scores = predictions.task, predictions.label_names, metrics["scores"]
    has = task.has(predictions.truths, len(names))
    areas = {view.name: scores[view.of("auc")] for view in task.views(names)}
    drawn = [view for view in task.views(names) if areas[view.name]["value"] is not None]
    shown = ""
    if len(drawn) > NUM_COLOURS:
        shown = f", the {NUM_COLOURS} smallest of {len(drawn)}"
        drawn = sorted(drawn, key=lambda view: areas[view.name]["value"])[:NUM_COLOURS]
    rocs, precisions, bases = [], [], []
    curves = ("auc", _roc, rocs), ("average_precision", _precision, precisions)
    for place, view in enumerate(drawn):
        is_positive, ranking = view.is_positive(has), view.ranking(predictions.probabilities)
        sides = [(is_positive[rows], ranking[rows]) for rows in predictions.by_run()]
        runs = [side for side in sides if 0 < side[0].sum() < len(side[0])]
        look = "dashed" if view.is_group else "line"
        for measure, points_of, series in curves:
            area = with_interval(scores[view.of(measure)], thousandths, "")
            points = list(zip(*points_of(runs), strict=True))
            series.append(Series(f"{_short(view.name)}: {area}", points, look, place))
        share = float(is_positive.mean())
        bases.append(Series("", [(0, share), (1, share)], "dotted", place))
    bases.append(Series("guessing: the share of the images", [], "dotted", None))
    told = [", ".join(each.name for each in series) for series in (rocs, precisions)]
    charts = [
        Chart(
            title=f"ROC on {metrics['split']}: area and interval{shown}",
            description=f"ROC curves with the areas under them: {told[0]}",
            x=Axis.of("false alarms (1 − specificity)", 0, 1),
            y=Axis.of("sensitivity", 0, 1),
            series=[*rocs, Series("guessing", _DIAGONAL, "dotted", None)],
        ),
        Chart(
            title=f"Precision on {metrics['split']}: average and interval{shown}",
            description=f"Precision by sensitivity, with its average: {told[1]}",
            x=Axis.of("sensitivity (recall)", 0, 1),
            y=Axis.of("precision", 0, 1),
            series=[*precisions, *bases],
        ),
    ]
    return charts if drawn else []


def _roc(runs: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns (false alarms, sensitivity) of the points of a curve, float64 [num_points] each.

    Of several runs it is their mean at each rate of false alarms, whose area is the mean of their
    areas (Fawcett 2006, "An introduction to ROC analysis", section 8.1). A run has which examples
    are positive, and their ranking.
    """
    curves = [sk_metrics.roc_curve(*run)[:2] for run in runs]
    if len(curves) == 1:
        return curves[0]
    return _GRID, np.mean([np.interp(_GRID, *curve) for curve in curves], axis=0)


def _precision(runs: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns (sensitivity, precision) of the points of a curve, the mean of the runs of `_roc`.

    It is that of the highest threshold that reaches the sensitivity: straight lines would be too
    good (Davis and Goadrich 2006, "The relationship between precision-recall and ROC curves").
    """
    curves = []
    for run in runs:
        precision, sensitivity, _ = sk_metrics.precision_recall_curve(*run)
        # Small steps, because sensitivities are rounded and the first one must find a positive.
        reaching = np.searchsorted(sensitivity[::-1], np.maximum(_GRID - 1e-9, 1e-9))
        curves.append(precision[::-1][reaching])
    return _GRID, np.mean(curves, axis=0)


def reliability(predictions: Predictions, metrics: Mapping[str, Any]) -> list[Chart]:
    """Returns the share of right answers by confidence, before and after the temperature.

    Each point stands for the same number of answers. (The expected calibration error uses bins of
    equal width. With few images, most of those would hold one or two, and a line would show noise.)
    A grey area shows how many answers have which confidence. There is no chart of a single class,
    or of answers that are too few for two points.
    """
    lines, confidences = [], []
    for name, probabilities in (
        ("as exported", predictions.probabilities),
        ("before the temperature", predictions.uncalibrated),
    ):
        if probabilities is None:
            continue
        choices, right = predictions.task.choices(probabilities, predictions.truths)
        num_points = min(len(right) // _ANSWERS_A_POINT, _MAX_RELIABILITY_POINTS)
        if choices.shape[-1] < 2 or num_points < 2:
            return []
        confidence, is_right = choices.max(-1), choices.argmax(-1) == right
        parts = np.array_split(np.argsort(confidence, kind="stable"), num_points)
        points = [(confidence[part].mean(), is_right[part].mean()) for part in parts]
        lines.append(Series(name, points, "marked", len(lines)))
        confidences.append(confidence)
    counts, edges = np.histogram(confidences[0], NUM_CALIBRATION_BINS, (0, 1))
    shares = Series("share of the answers", steps(edges, counts / counts.sum()), "area", None)
    told = "; ".join(
        f"{line.name}: " + ", ".join(f"{y:.0%} right at {x:.0%}" for x, y in line.points)
        for line in lines
    )
    error = metrics["scores"]["ece"]["value"]
    return [
        Chart(
            title=f"Reliability on {metrics['split']}: calibration error {error:.3f}",
            description=f"Share of right answers by the probability given to them. {told}",
            x=Axis.of("probability given to the answer", 0, 1),
            y=Axis.of("share of right answers", 0, 1),
            series=[shares, *lines, Series("perfect", _DIAGONAL, "dotted", None)],
        )
    ]


def confusion(predictions: Predictions, metrics: Mapping[str, Any]) -> list[Chart]:
    """Returns counts by true and predicted class; the shade is the share of the true class."""
    matrix, names = (
        np.asarray(metrics["confusion_matrix"]),
        list(map(_short, predictions.label_names)),
    )
    if len(names) > MAX_CLASSES:
        return []
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    cells = [
        Cell(column, row, [number(count), f"{share:.0%}"], float(share))
        for (row, column), count in np.ndenumerate(matrix)
        for share in [shares[row, column]]
    ]
    side = 56 * len(names)
    return [
        Chart(
            title=f"{metrics['split']}: {number(round(matrix.sum()))} images",
            description="Images by true and predicted class",
            x=Axis.named("predicted", names),
            y=Axis.named("truth", names, downwards=True),
            cells=cells,
            plot_width=side,
            plot_height=side,
        )
    ]


#: What draws the charts that a task names.
DRAWN: Mapping[str, Callable[[Predictions, Mapping[str, Any]], list[Chart]]] = {
    "roc": roc_curves,
    "reliability": reliability,
    "confusion": confusion,
}


def _short(name: str) -> str:
    return printable(name, _MAX_NAME_LENGTH)

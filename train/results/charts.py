"""The charts of a run's page as numbers; `report.html.jinja` draws them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn import metrics as sk_metrics

from tfrecord_io.auditing.pages import Tick, ticks
from train.kinds.scores import URGENT_CLASSES

#: Most lines in a chart; the page has this many colours.
NUM_SERIES = 8

#: Answers behind each point of the reliability chart, about, and the most points it has.
_ANSWERS_A_POINT = 20
_MAX_RELIABILITY_POINTS = 12

#: Most dots of a cloud; of more images, so many are drawn at equal distances.
_MAX_CLOUD = 1000

#: With more epochs than this, the training curves have no dots.
_MAX_DOTS = 20

#: Most points of a line; the page is too narrow to show more.
_MAX_POINTS = 200


@dataclasses.dataclass(frozen=True)
class Series:
    """A line of a chart.

    Attributes:
        name: its name in the legend.
        points: (x, y), each 0 to 1; y points upwards.
        is_cloud: whether the points are dots without a line.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    is_cloud: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lines:
    """Lines on one pair of axes.

    Attributes:
        title: title of the chart.
        description: the content in words, for screen readers.
        x_axis: label of the horizontal axis.
        y_axis: label of the vertical axis.
        series: the lines.
        x_ticks: marks of the horizontal axis.
        y_ticks: marks of the vertical axis.
        diagonal: name of the line from corner to corner; empty for no such line.
        mark: name and place, 0 to 1, of a vertical line, or None.
        dots: whether each point has a dot.
    """

    title: str
    description: str
    x_axis: str
    y_axis: str
    series: tuple[Series, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    diagonal: str = ""
    mark: tuple[str, float] | None = None
    dots: bool = False


def training_curves(history: Sequence[Mapping[str, Any]], best_epoch: int) -> list[Lines]:
    """Returns the charts of loss and accuracy by epoch; unknown and infinite values are left out.

    Args:
        history: one row per epoch.
        best_epoch: the epoch whose weights were kept, counted from 1; 0 if unknown.
    """
    charts = []
    last = max((row["epoch"] for row in history), default=0)
    quantities = {"loss": "loss in nats", "accuracy": "accuracy"}
    if history and "mae" in history[0]:
        quantities = {"loss": "squared error", "mae": "mean absolute error"}
    for quantity, axis in quantities.items():
        lines = []
        for prefix, name in (("", "training"), ("val_", "validation")):
            found = [(row["epoch"], row.get(prefix + quantity)) for row in history]
            known = [(x, y) for x, y in found if y is not None and math.isfinite(y)]
            if known:
                lines.append((name, known))
        if not lines:
            continue
        highest = max(y for _, points in lines for _, y in points)
        top = 1.0 if quantity == "accuracy" else max(highest, 1e-6) * 1.02
        ends = "; ".join(
            f"{name} from {points[0][1]:.3f} to {points[-1][1]:.3f}" for name, points in lines
        )
        width = max(last - 1, 1)
        charts.append(
            Lines(
                title="Mean absolute error" if quantity == "mae" else quantity.capitalize(),
                description=f"{quantity} over {last} epochs: {ends}",
                x_axis="epoch",
                y_axis=axis,
                series=tuple(
                    Series(name, _thinned([((x - 1) / width, y / top) for x, y in points]))
                    for name, points in lines
                ),
                x_ticks=_epoch_ticks(last),
                y_ticks=ticks(0.0, top),
                mark=("kept", (best_epoch - 1) / width) if best_epoch else None,
                dots=last <= _MAX_DOTS,
            )
        )
    return charts


def roc_curves(
    probabilities: np.ndarray,
    has: np.ndarray,
    label_names: Sequence[str],
    scores: Mapping[str, Mapping[str, Any]],
) -> Lines | None:
    """Returns the ROC curve of each class, and of the urgent view.

    If there are more curves than colours, the chart has those with the smallest areas.

    Args:
        probabilities: float [num_examples, num_classes].
        has: which examples have which classes, bool [num_examples, num_classes].
        label_names: names of the classes.
        scores: the entry `scores` of metrics.json.

    Returns:
        the chart, or None if no class has both positive and negative examples.
    """
    views, num_views = roc_views(probabilities, has, label_names, scores, NUM_SERIES)
    if not views:
        return None
    series = []
    for name, is_positive, ranking, area in views:
        false_rate, true_rate, _ = sk_metrics.roc_curve(is_positive, ranking)
        points = _thinned(list(zip(false_rate.tolist(), true_rate.tolist(), strict=True)))
        series.append(Series(f"{name} {area['value']:.3f}", points))
    told = ", ".join(line.name for line in series)
    some = f" (the {len(series)} smallest of {num_views})" if num_views > len(series) else ""
    return Lines(
        title=f"ROC: each against the rest{some}",
        description=f"ROC curves with the areas under them: {told}",
        x_axis="false alarms (1 − specificity)",
        y_axis="sensitivity",
        series=tuple(series),
        x_ticks=ticks(0.0, 1.0),
        y_ticks=ticks(0.0, 1.0),
        diagonal="guessing",
    )


def roc_views(
    probabilities: np.ndarray,
    has: np.ndarray,
    label_names: Sequence[str],
    scores: Mapping[str, Mapping[str, Any]],
    most: int,
) -> tuple[list[tuple[str, np.ndarray, np.ndarray, Mapping[str, Any]]], int]:
    """Returns what has a ROC curve: each class, and the urgent view.

    Args:
        probabilities: float [num_examples, num_classes].
        has: which examples have which classes, bool [num_examples, num_classes].
        label_names: names of the classes.
        scores: the entry `scores` of metrics.json.
        most: of more curves than this, those with the smallest areas are returned.

    Returns:
        (name, which examples are positive, their ranking, the area's entry of `scores`) of each
        curve, and how many curves there are in all.
    """
    views = [
        (name, has[:, index], probabilities[:, index], scores[f"auc/{name}"])
        for index, name in enumerate(label_names)
    ]
    if "urgent/auc" in scores:
        urgent = np.isin(label_names, URGENT_CLASSES)
        ranking = probabilities[:, urgent].sum(-1)
        views.append(("urgent", has[:, urgent].any(-1), ranking, scores["urgent/auc"]))
    views = [view for view in views if view[3]["value"] is not None]
    if len(views) > most:
        return sorted(views, key=lambda view: view[3]["value"])[:most], len(views)
    return views, len(views)


def reliability(named: Sequence[tuple[str, np.ndarray]], labels: np.ndarray) -> Lines:
    """Returns accuracy by confidence, one line per set of probabilities.

    Each point stands for the same number of answers. (The expected calibration error uses bins of
    equal width. With few images, most of those would hold one or two, and a line would show noise.)

    Args:
        named: (name, probabilities [num_answers, num_classes]) of each line.
        labels: int [num_answers], the right classes.
    """
    num_bins = int(np.clip(len(labels) // _ANSWERS_A_POINT, 1, _MAX_RELIABILITY_POINTS))
    series = []
    for name, probabilities in named:
        confidence = probabilities.max(-1)
        is_correct = probabilities.argmax(-1) == labels
        order = np.argsort(confidence, kind="stable")
        points = [
            (float(confidence[chosen].mean()), float(is_correct[chosen].mean()))
            for chosen in np.array_split(order, num_bins)
        ]
        series.append(Series(name, tuple(points)))
    told = "; ".join(
        f"{line.name}: " + ", ".join(f"{y:.0%} right at {x:.0%}" for x, y in line.points)
        for line in series
    )
    size = len(labels) // num_bins
    return Lines(
        title=f"Reliability, {size:,} answers a point",
        description=f"Share of right answers by the probability given to them. {told}",
        x_axis="probability given to the answer",
        y_axis="share of right answers",
        series=tuple(series),
        x_ticks=ticks(0.0, 1.0),
        y_ticks=ticks(0.0, 1.0),
        diagonal="perfect",
        dots=True,
    )


def _thinned(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Returns at most `_MAX_POINTS` points of a line, including both ends."""
    if len(points) <= _MAX_POINTS:
        return tuple(points)
    chosen = np.linspace(0, len(points) - 1, _MAX_POINTS).round().astype(int)
    return tuple(points[index] for index in chosen)


def agreement(
    answers: np.ndarray, truths: np.ndarray, scores: Mapping[str, Mapping[str, Any]]
) -> list[Lines]:
    """Returns the answers by truth, and their difference by their mean (Bland and Altman).

    Args:
        answers: float [num_examples].
        truths: float [num_examples].
        scores: the entry `scores` of metrics.json.
    """
    chosen = np.unique(np.linspace(0, len(truths) - 1, min(len(truths), _MAX_CLOUD)).astype(int))
    answers, truths = answers[chosen].astype(np.float64), truths[chosen].astype(np.float64)
    means, errors = (answers + truths) / 2, answers - truths
    both = np.concatenate([answers, truths])
    low, high = _limits(both)
    direct = Lines(
        title="Answer by truth",
        description=f"The answers to {len(chosen):,} images by their true number",
        x_axis="truth",
        y_axis="answer",
        series=(_cloud((truths, low, high), (answers, low, high)),),
        x_ticks=ticks(low, high),
        y_ticks=ticks(low, high),
        diagonal="the right answer",
    )
    names = {"bias": "mean difference", "limit_low": "lower limit", "limit_high": "upper limit"}
    heights = {
        f"{name}: {scores[measure]['value']:.4g}": scores[measure]["value"]
        for measure, name in names.items()
        if scores[measure]["value"] is not None
    }
    least, most = _limits(np.array([*errors, *heights.values()]))
    left, right = _limits(means)
    difference = Lines(
        title="Bland–Altman",
        description=f"Answer minus truth by the mean of both. {', '.join(heights)}",
        x_axis="mean of answer and truth",
        y_axis="answer − truth",
        series=(
            _cloud((means, left, right), (errors, least, most)),
            *(
                Series(name, tuple((x, (height - least) / (most - least)) for x in (0.0, 1.0)))
                for name, height in heights.items()
            ),
        ),
        x_ticks=ticks(left, right),
        y_ticks=ticks(least, most),
    )
    return [direct, difference]


def _cloud(x: tuple[np.ndarray, float, float], y: tuple[np.ndarray, float, float]) -> Series:
    """Returns a dot for each image.

    Args:
        x: (values, where the axis begins, where it ends).
        y: likewise.
    """
    places = [(values - low) / (high - low) for values, low, high in (x, y)]
    return Series("an image", tuple(zip(*(place.tolist() for place in places), strict=True)), True)


def _limits(values: np.ndarray) -> tuple[float, float]:
    """Returns the ends of an axis on which all values are."""
    low, high = float(values.min()), float(values.max())
    margin = 0.04 * (high - low) or max(abs(low), 1.0)
    return low - margin, high + margin


def _epoch_ticks(last: int) -> tuple[Tick, ...]:
    """Returns marks at up to six epochs, including the first and the last."""
    chosen = np.unique(np.linspace(1, last, min(last, 6)).round().astype(int)).tolist()
    return tuple(Tick((epoch - 1) / max(last - 1, 1), str(epoch)) for epoch in chosen)

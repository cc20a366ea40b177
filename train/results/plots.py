"""The plots of a run for papers and slides: curves, confusion matrix, ROC, reliability.

Their size is limited for any number of classes. To look at a result first, open `report.html`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from sklearn import metrics as sk_metrics

from tfrecord_io import visible
from tfrecord_io.printing import printable
from train.kinds.scores import NUM_CALIBRATION_BINS, calibration_bins
from train.results import charts
from train.results.predictions import Predictions

#: Colours that colour-blind readers can tell apart. Source: Okabe and Ito 2008, "Color universal
#: design".
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

#: With at most this many classes, each cell of the confusion matrix shows its count.
MAX_CLASSES_WITH_TEXT = 40

#: Most class names beside the confusion matrix; with more classes, some have no name.
_MAX_NAMES = 60

#: Most ROC curves in a plot.
_MAX_CURVES = 10

_MAX_NAME_LENGTH = 28

#: Keeps matplotlib from reading a name such as `$x^2$` as a formula.
_plain_text = matplotlib.rc_context({"text.parse_math": False})


@_plain_text
def write_plots(
    directory: Path,
    history: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, Any],
    predictions: Predictions,
    label_names: Sequence[str],
) -> None:
    """Writes the plots that suit the kind of label, and curves.png with a history.

    A plot that cannot be drawn or written is left out with a warning, because a long run must not
    fail for a plot.

    Args:
        directory: created if it is missing.
        history: one row per epoch; none for a cross-validation or another dataset.
        metrics: content of metrics.json.
        predictions: the measured predictions.
        label_names: names of the labels.
    """
    task, probabilities, truths = predictions.task, predictions.probabilities, predictions.truths
    pictures: dict[str, Callable[[], Figure]]
    if task.gives_probabilities:
        has, choices = task.has(truths, len(label_names)), task.choices(probabilities, truths)
        pictures = {
            "roc": lambda: draw_roc(probabilities, has, label_names, metrics),
            "reliability": lambda: draw_reliability(*choices, metrics),
        }
    else:
        answers = task.chosen(probabilities)
        pictures = {"agreement": lambda: draw_agreement(answers, truths, label_names[0], metrics)}
    if "confusion_matrix" in metrics:
        matrix, split = np.asarray(metrics["confusion_matrix"]), metrics["split"]
        pictures["confusion"] = lambda: draw_confusion(matrix, label_names, split)
    if history:
        pictures["curves"] = lambda: draw_curves(history, metrics["best_epoch"])
    for name, draw in pictures.items():
        path = directory / f"{name}.png"
        try:
            directory.mkdir(exist_ok=True)
            with warnings.catch_warnings():
                # matplotlib's font lacks the letters of many languages and shows boxes instead.
                warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
                draw().savefig(path, dpi=120)
        except Exception as error:
            print(f"warning: {path} was not written: {error!r}", file=sys.stderr)


def draw_curves(history: Sequence[Mapping[str, Any]], best_epoch: int) -> Figure:
    """Draws loss and accuracy of training and validation by epoch, and marks the kept epoch.

    Of numbers it draws the mean absolute error instead of the accuracy.
    """
    figure = _figure(10, 4)
    epochs = [row["epoch"] for row in history]
    titles = {"loss": "cross-entropy in nats", "accuracy": "accuracy"}
    if "mae" in history[0]:
        titles = {"loss": "squared error", "mae": "mean absolute error"}
    for place, (quantity, title_of_axes) in enumerate(titles.items()):
        axes = figure.add_subplot(1, 2, place + 1)
        for prefix, title, colour in (
            ("", "training", COLOURS[0]),
            ("val_", "validation", COLOURS[1]),
        ):
            values = [row.get(prefix + quantity) for row in history]
            if all(value is not None for value in values):
                axes.plot(epochs, values, "o-", color=colour, label=title, markersize=4)
        axes.axvline(best_epoch, color="0.6", linestyle=":", label="kept epoch")
        axes.set_xlabel("epoch")
        axes.set_title(title_of_axes)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


@_plain_text
def draw_confusion(matrix: np.ndarray, label_names: Sequence[str], split: str) -> Figure:
    """Draws counts by true and predicted class; the shade is the share of the true class."""
    num_classes = len(label_names)
    # A large matrix has no text in its cells, so it only needs space for the names.
    side = min(max(4.5, 0.8 * num_classes + 2), 20 if num_classes <= MAX_CLASSES_WITH_TEXT else 12)
    figure = _figure(side + 0.8, side)
    axes = figure.add_subplot()
    totals = np.maximum(matrix.sum(1, keepdims=True), 1)
    shares = matrix / totals
    picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if num_classes <= MAX_CLASSES_WITH_TEXT:
        size = 9 * min(1, 22 / num_classes)
        for (row, column), count in np.ndenumerate(matrix):
            colour = "white" if shares[row, column] > 0.5 else "black"
            text = f"{count:,}\n{shares[row, column]:.0%}"
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=size)
    named = range(0, num_classes, -(-num_classes // _MAX_NAMES))
    names = [_short(label_names[index]) for index in named]
    axes.set_xticks(named, names, rotation=30 if num_classes <= 20 else 90, ha="right")
    axes.set_yticks(named, names)
    axes.set_xlabel("predicted")
    axes.set_ylabel("truth")
    axes.set_title(f"{split}: {matrix.sum():,} images")
    figure.colorbar(picture, ax=axes, label="share of the true class", shrink=0.8)
    return figure


@_plain_text
def draw_roc(
    probabilities: np.ndarray,
    has: np.ndarray,
    label_names: Sequence[str],
    metrics: Mapping[str, Any],
) -> Figure:
    """Draws the ROC curve of each class against the rest, and of urgent cases for OCT.

    Of many classes, those with the smallest areas are drawn.
    """
    figure = _figure(6, 5.5)
    axes = figure.add_subplot()
    curves, num_curves = charts.roc_views(
        probabilities, has, label_names, metrics["scores"], _MAX_CURVES
    )
    for place, (name, is_positive, ranking, score) in enumerate(curves):
        false_rate, true_rate, _ = sk_metrics.roc_curve(is_positive, ranking)
        interval = "" if score["low"] is None else f" [{score['low']:.3f}, {score['high']:.3f}]"
        axes.plot(
            false_rate,
            true_rate,
            color=COLOURS[place % len(COLOURS)],
            linestyle="--" if name == "urgent" else "-",
            label=f"{_short(name)}: {score['value']:.3f}{interval}",
        )
    axes.plot((0, 1), (0, 1), color="0.7", linestyle=":", label="guessing")
    axes.set_aspect("equal")
    axes.set_xlabel("1 - specificity")
    axes.set_ylabel("sensitivity")
    shown = f", the {len(curves)} smallest of {num_curves}" if num_curves > len(curves) else ""
    axes.set_title(f"{metrics['split']}: ROC, area with 95 % interval{shown}")
    axes.legend(loc="lower right", fontsize=8)
    axes.grid(alpha=0.3)
    return figure


def draw_reliability(
    probabilities: np.ndarray, labels: np.ndarray, metrics: Mapping[str, Any]
) -> Figure:
    """Draws accuracy by confidence, above a histogram of the confidence."""
    is_correct = probabilities.argmax(-1) == labels
    total, _, correct = calibration_bins(probabilities.max(-1), is_correct, np.ones(len(labels)))
    edges = np.linspace(0, 1, NUM_CALIBRATION_BINS + 1)
    width = edges[1]
    used = total > 0
    figure = _figure(6, 6)
    axes, counts = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    axes.bar(
        edges[:-1][used],
        (correct[used] / total[used]),
        width=width,
        align="edge",
        color=COLOURS[0],
        edgecolor="white",
        label="accuracy",
    )
    axes.plot((0, 1), (0, 1), color="0.3", linestyle=":", label="perfect calibration")
    axes.set_ylabel("accuracy")
    axes.set_ylim(0, 1)
    axes.set_title(
        f"{metrics['split']}: expected calibration error {metrics['scores']['ece']['value']:.3f}"
    )
    axes.legend(loc="upper left")
    counts.bar(edges[:-1], total, width=width, align="edge", color="0.6", edgecolor="white")
    counts.set_xlabel("confidence (probability of the predicted class)")
    counts.set_ylabel("answers")
    counts.set_xlim(0, 1)
    return figure


@_plain_text
def draw_agreement(
    answers: np.ndarray, truths: np.ndarray, name: str, metrics: Mapping[str, Any]
) -> Figure:
    """Draws answers by truth, and beside it their difference by their mean (Bland and Altman)."""
    scores = metrics["scores"]
    figure = _figure(11, 5)
    direct, difference = figure.subplots(1, 2)
    ends = min(answers.min(), truths.min()), max(answers.max(), truths.max())
    direct.plot(truths, answers, ".", color=COLOURS[0], alpha=0.5)
    direct.plot(ends, ends, color="0.3", linestyle=":", label="the right answer")
    direct.set_xlabel("truth")
    direct.set_ylabel("answer")
    r2 = scores["r2"]["value"]
    shown = "" if r2 is None else f", R² {r2:.3f}"
    direct.set_title(f"{metrics['split']}: {_short(name)}{shown}")
    difference.plot((answers + truths) / 2, answers - truths, ".", color=COLOURS[0], alpha=0.5)
    for measure, text, style in (
        ("bias", "mean difference", "-"),
        ("limit_low", "limits of agreement", "--"),
        ("limit_high", None, "--"),
    ):
        if scores[measure]["value"] is not None:
            height = scores[measure]["value"]
            label = f"{text}: {height:.4g}" if measure == "bias" else text
            difference.axhline(height, color=COLOURS[1], linestyle=style, label=label)
    difference.set_xlabel("mean of answer and truth")
    difference.set_ylabel("answer − truth")
    difference.set_title("Bland–Altman")
    for axes in (direct, difference):
        axes.legend()
        axes.grid(alpha=0.3)
    return figure


@_plain_text
def draw_occlusion(image: np.ndarray, drops: np.ndarray, title: str) -> Figure:
    """Draws an image, and beside it the image under its occlusion map.

    Args:
        image: [height, width, channels], as stored.
        drops: float [height, width], see `saliency.occlusion_map`.
        title: title of the map.
    """
    figure = _figure(9, 4.2)
    plain, covered = figure.subplots(1, 2)
    seen = visible.eight_bits(image)
    grey = seen.squeeze(-1) if seen.shape[-1] == 1 else seen
    for axes in (plain, covered):
        axes.imshow(grey, cmap="gray", vmin=0, vmax=255)
        axes.set_axis_off()
    plain.set_title("what the network sees")
    limit = max(float(np.abs(drops).max()), 1e-6)
    picture = covered.imshow(drops, cmap="RdBu_r", alpha=0.5, vmin=-limit, vmax=limit)
    covered.set_title(_short(title))
    figure.colorbar(picture, ax=covered, label="drop in probability when covered", shrink=0.8)
    return figure


def _short(name: str) -> str:
    text = printable(name)
    return text if len(text) <= _MAX_NAME_LENGTH else text[: _MAX_NAME_LENGTH - 1] + "…"


def _figure(width: float, height: float) -> Figure:
    # A figure that pyplot does not manage has no global state and needs no display.
    return Figure(figsize=(width, height), layout="constrained")

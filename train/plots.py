"""The pictures of a run: curves, confusion matrix, ROC, reliability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from sklearn import metrics as sk_metrics

from train.scores import NUM_CALIBRATION_BINS, URGENT_CLASSES, calibration_bins

#: Colour-blind safe. Source: Okabe and Ito 2008, "Color universal design".
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def write_plots(
    directory: Path,
    history: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, Any],
    probabilities: np.ndarray,
    labels: np.ndarray,
    label_names: Sequence[str],
) -> None:
    """Writes curves.png, confusion.png, roc.png and reliability.png.

    Args:
        directory: made if it is missing.
        history: a row an epoch.
        metrics: what `evaluate_predictions` returned, with its `split`.
        probabilities: float32 [num_examples, num_classes].
        labels: int [num_examples].
        label_names: of the classes.
    """
    directory.mkdir(exist_ok=True)
    split = metrics["split"]
    figures = {
        "curves": draw_curves(history, metrics["best_epoch"]),
        "confusion": draw_confusion(np.asarray(metrics["confusion_matrix"]), label_names, split),
        "roc": draw_roc(probabilities, labels, label_names, metrics),
        "reliability": draw_reliability(probabilities, labels, metrics),
    }
    for name, figure in figures.items():
        figure.savefig(directory / f"{name}.png", dpi=120)


def draw_curves(history: Sequence[Mapping[str, Any]], best_epoch: int) -> Figure:
    """Loss and accuracy by epoch, training and validation, the kept epoch marked."""
    figure = _figure(10, 4)
    epochs = [row["epoch"] for row in history]
    for place, quantity in enumerate(("loss", "accuracy")):
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
        axes.set_title("cross-entropy in nats" if quantity == "loss" else quantity)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


def draw_confusion(matrix: np.ndarray, label_names: Sequence[str], split: str) -> Figure:
    """Counts by true and predicted class; the shade is the share of the true class."""
    side = max(4.5, 0.8 * len(label_names) + 2)
    figure = _figure(side + 0.8, side)
    axes = figure.add_subplot()
    totals = np.maximum(matrix.sum(1, keepdims=True), 1)
    shares = matrix / totals
    picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for (row, column), count in np.ndenumerate(matrix):
        colour = "white" if shares[row, column] > 0.5 else "black"
        text = f"{count:,}\n{shares[row, column]:.0%}"
        axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=9)
    axes.set_xticks(range(len(label_names)), label_names, rotation=30, ha="right")
    axes.set_yticks(range(len(label_names)), label_names)
    axes.set_xlabel("predicted")
    axes.set_ylabel("truth")
    axes.set_title(f"{split}: {matrix.sum():,} images")
    figure.colorbar(picture, ax=axes, label="share of the true class", shrink=0.8)
    return figure


def draw_roc(
    probabilities: np.ndarray,
    labels: np.ndarray,
    label_names: Sequence[str],
    metrics: Mapping[str, Any],
) -> Figure:
    """Each class against the rest; for OCT also urgent cases against the rest."""
    figure = _figure(6, 5.5)
    axes = figure.add_subplot()
    curves = [
        (name, labels == index, probabilities[:, index], f"auc/{name}")
        for index, name in enumerate(label_names)
    ]
    if "urgent/auc" in metrics["scores"]:
        urgent = np.isin(label_names, URGENT_CLASSES)
        curves.append(("urgent", urgent[labels], probabilities[:, urgent].sum(-1), "urgent/auc"))
    for place, (name, is_positive, ranking, score_name) in enumerate(curves):
        score = metrics["scores"][score_name]
        if score["value"] is None:
            continue
        false_rate, true_rate, _ = sk_metrics.roc_curve(is_positive, ranking)
        interval = "" if score["low"] is None else f" [{score['low']:.3f}, {score['high']:.3f}]"
        axes.plot(
            false_rate,
            true_rate,
            color=COLOURS[place % len(COLOURS)],
            linestyle="--" if name == "urgent" else "-",
            label=f"{name}: {score['value']:.3f}{interval}",
        )
    axes.plot((0, 1), (0, 1), color="0.7", linestyle=":")
    axes.set_aspect("equal")
    axes.set_xlabel("1 - specificity")
    axes.set_ylabel("sensitivity")
    axes.set_title(f"{metrics['split']}: ROC, area with 95 % interval")
    axes.legend(loc="lower right", fontsize=8)
    axes.grid(alpha=0.3)
    return figure


def draw_reliability(
    probabilities: np.ndarray, labels: np.ndarray, metrics: Mapping[str, Any]
) -> Figure:
    """Accuracy by confidence, and how many images have it."""
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
    counts.set_ylabel("images")
    counts.set_xlim(0, 1)
    return figure


def _figure(width: float, height: float) -> Figure:
    # The object interface: no global state, no window, no display needed.
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure

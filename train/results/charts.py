"""The charts of a result, drawn by matplotlib: on its page, and in a file each under `plots/`.

matplotlib is imported when a chart is drawn, and draws without a window.
"""

from __future__ import annotations

import functools
import html
import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import markupsafe
import numpy as np
from sklearn import metrics as sk_metrics

from tfrecord_io.pages import page
from tfrecord_io.stores.files import atomic_write
from tfrecord_io.terminal.printing import printable
from train.kinds.words import thousandths, with_interval
from train.machine import console
from train.results.predictions import Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Curves in one chart.
_MAX_CURVES = 8

# Answers behind each point of the reliability chart, about, and the most points it has.
_ANSWERS_A_POINT, _MAX_POINTS = 20, 12

_GRID = np.linspace(0, 1, 201)

# Stands for the colour of the text around a chart, so that a page may be dark.
_INK = "#010203"

_STYLE = {
    "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 11,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor"), _INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), _INK),
}  # fmt: skip


def write_charts(
    directory: Path,
    history: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, Any],
    predictions: Predictions | None,
) -> dict[str, page.Drawing]:
    """Writes DIRECTORY/NAME.svg for each chart of a result, and returns the charts by name.

    The history has a row per epoch; the predictions are None if there was nothing to evaluate. What
    cannot be drawn or written is left out with a warning, because a long run must not fail for a
    picture.
    """
    draw = {name: functools.partial(_epochs, history, name) for name in ("loss", "accuracy")}
    if predictions:
        draw |= {name: functools.partial(of, predictions, metrics) for name, of in DRAWN.items()}
    charts = {}
    for name, fill in draw.items():
        path = directory / f"{name}.svg"
        try:
            if drawing := _drawing(name, fill):
                directory.mkdir(exist_ok=True)
                with atomic_write(path) as file:
                    file.write(drawing.svg.encode())
                charts[name] = drawing
        except Exception as error:
            console.warn(f"{path} was not written: {error!r}")
    return charts


def _drawing(name: str, fill: Callable[[Axes], str]) -> page.Drawing | None:
    """Returns a chart as SVG; None if there is nothing to draw."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # A name may have letters that no font of matplotlib has; the browser has others.
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}), warnings.catch_warnings(action="ignore"):
        figure = Figure(figsize=(5, 3.6))
        axes = figure.add_subplot()
        if not (title := fill(axes)):
            return None
        if axes.get_legend_handles_labels()[1]:
            axes.legend(loc="upper left", bbox_to_anchor=(0, -0.18))
        file = io.StringIO()
        figure.savefig(
            file, format="svg", bbox_inches="tight", transparent=True, metadata={"Date": None}
        )
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    # Numbered ids, which nothing refers to, would be there twice on a page.
    svg = re.sub(r' id="[\w.]+_\d+"', "", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    named = html.escape(title)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{named}" ', 1)
    svg = svg.replace(">", f"><title>{named}</title>", 1)
    return page.Drawing(title, markupsafe.Markup(svg))


def _epochs(history: Sequence[Mapping[str, Any]], quantity: str, axes: Axes) -> str:
    """Draws a quantity of the training and the validation by epoch."""
    from matplotlib.ticker import MaxNLocator

    for key, name in ((quantity, "training"), (f"val_{quantity}", "validation")):
        rows = [(row["epoch"], row[key]) for row in history if row.get(key) is not None]
        if rows := [row for row in rows if np.isfinite(row[1])]:
            axes.plot(*zip(*rows, strict=True), label=name, marker="." if len(rows) < 30 else "")
    if not axes.lines:
        return ""
    axes.set(xlabel="epoch", ylabel="loss in nats" if quantity == "loss" else quantity)
    axes.set_ylim(bottom=0, top=1 if quantity == "accuracy" else None)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return quantity.capitalize()


def roc(predictions: Predictions, metrics: Mapping[str, Any], axes: Axes) -> str:
    """Draws the ROC of each class against the rest; of many, those with the smallest areas.

    Of a cross-validation it is the mean curve of the folds (Fawcett 2006, "An introduction to ROC
    analysis", section 8.1).
    """
    task, names, scores = predictions.task, predictions.label_names, metrics["scores"]
    views = [view for view in task.views(names) if scores[view.of("auc")]["value"] is not None]
    shown = f", the {_MAX_CURVES} smallest of {len(views)}" if len(views) > _MAX_CURVES else ""
    if shown:
        views = sorted(views, key=lambda view: scores[view.of("auc")]["value"])[:_MAX_CURVES]
    for view in views:
        curves = []
        for answers in predictions.by_fold():
            is_positive = view.is_positive(answers.truths)
            if 0 < is_positive.sum() < len(is_positive):
                curve = sk_metrics.roc_curve(is_positive, view.ranking(answers.probabilities))
                curves.append(np.interp(_GRID, *curve[:2]))
        # The figure first: matplotlib shows no name that begins with an underscore. `$` is markup.
        label = f"{with_interval(scores[view.of('auc')], thousandths, '')} {view.name}"
        label = printable(label, 52).replace("$", r"\$")
        look = "--" if view.is_group else "-"
        axes.plot(_GRID, np.mean(curves, axis=0), look, label=label)
    axes.plot([0, 1], [0, 1], color="grey", linestyle=":", label="guessing")
    axes.set(ylim=(0, 1.03), xlabel="false alarms (1 − specificity)", ylabel="sensitivity")
    return f"ROC: area and interval{shown}" if views else ""


def reliability(predictions: Predictions, metrics: Mapping[str, Any], axes: Axes) -> str:
    """Draws the share of right answers by confidence.

    Each point stands for the same number of answers. (The expected calibration error uses bins of
    equal width. With few images, most of those would hold one or two, and a line would show noise.)
    There is no chart of a single class, or of answers that are too few for two points.
    """
    from sklearn.calibration import CalibrationDisplay

    choices, right = predictions.task.choices(predictions.probabilities, predictions.truths)
    num_points = min(len(right) // _ANSWERS_A_POINT, _MAX_POINTS)
    if choices.shape[-1] < 2 or num_points < 2:
        return ""
    sure, settings = np.minimum(choices.max(-1), 1), {"n_bins": num_points, "strategy": "quantile"}
    CalibrationDisplay.from_predictions(choices.argmax(-1) == right, sure, ax=axes, **settings)
    axes.set(xlabel="probability given to the answer", ylabel="share of right answers")
    return f"Reliability: calibration error {metrics['scores']['ece']['value']:.3f}"


#: The functions that draw the charts of answers; a title that is empty means no chart.
DRAWN = {"roc": roc, "reliability": reliability}

"""Measures predictions and writes the results: metrics, a table, plots and the page of the run."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import sys
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

import tfrecord_io
from tfrecord_io import redaction
from tfrecord_io.auditing.findings import alarms
from train.data.dataset import SITE, Dataset
from train.data.exposure import Exposure
from train.results import charts, flow, metrics, report, saliency, thresholds
from train.results.options import MeasureOptions
from train.results.predictions import Predictions, write_predictions
from train.results.subgroups import subgroups
from train.run_folder import versions

PLOTS_NAME = "plots"


def measure(
    predictions: Predictions,
    options: MeasureOptions,
    seed: int,
    chosen: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Returns the entries of metrics.json that follow from predictions.

    Args:
        predictions: the predictions to measure.
        options: how to measure them.
        seed: of the bootstrap.
        chosen: thresholds that were chosen on other images, see `thresholds.choose_thresholds`.

    Returns:
        see `metrics.evaluate_predictions`; `label_kind` if the labels are not classes; `thresholds`
        if some were chosen; `prevalence` by view if one was stated. If the dataset names the site
        of every example, `sites` has `num_examples`, `num_patients` and `scores` by the name of the
        site; `by` has the same by column and value for the columns that the options name.

    Raises:
        MetricsError: if there are no examples, or a probability is not finite.
    """
    views = predictions.task.views(predictions.label_names)
    shared: dict[str, Any] = {
        "prevalences": options.prevalences([view.name for view in views]),
        "num_samples": options.bootstrap_samples,
        "seed": seed,
    }

    def of_subgroup(rows: np.ndarray) -> dict[str, Any]:
        results = metrics.evaluate_predictions(predictions.of_examples(rows), **shared)
        return {name: results[name] for name in ("num_examples", "num_patients", "scores")}

    results = predictions.task.kind.entry | metrics.evaluate_predictions(predictions, **shared)
    if shared["prevalences"]:
        results["prevalence"] = shared["prevalences"]
    if chosen:
        results["thresholds"] = thresholds.measure_thresholds(chosen, predictions, **shared)
    by = {
        column: {name: of_subgroup(rows) for name, rows in subgroups(values).items()}
        for column, values in predictions.examples.measured.items()
        # Of sites, only those of whole datasets unless they are asked for.
        if column in options.columns or None not in values
    }
    if SITE in by:
        results["sites"] = by.pop(SITE)
    return results | ({"by": by} if by else {})


def write_results(
    directory: Path,
    *,
    dataset: Dataset,
    settings: Mapping[str, Any],
    results: Mapping[str, Any],
    exposure: Exposure | None,
    predictions: Predictions | None,
    predict: saliency.Predict | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    own_metrics: Mapping[str, Any] | None = None,
    in_folds: Sequence[str] = (),
) -> dict[str, Any]:
    """Writes predictions.csv, plots/ and report.html.

    Args:
        directory: created if it is missing.
        dataset: that was evaluated.
        settings: of the run, see config.json; `data` alone if this is another dataset.
        results: content of metrics.json so far.
        exposure: how many of the measured images the network has seen; None if none was measured.
        predictions: the measured predictions; None if there was no example to predict.
        predict: stored images → probabilities, for the maps of the mistakes; None for no maps.
        history: one row per epoch.
        own_metrics: metrics of the training run, if this is another dataset.
        in_folds: splits that were divided into folds.

    Returns:
        the content of metrics.json, which the caller writes: the results, what was seen, and the
        notes with those on the data.
    """
    directory.mkdir(parents=True, exist_ok=True)
    notes = [*results.get("notes", ()), *alarms(dataset.manifest.audit)]
    seen = exposure.to_dict() if exposure else {}
    if exposure and exposure.note:
        notes.append(exposure.note)
    results = {**results, **seen, "notes": notes}
    mistakes: Sequence[report.Mistake] = ()
    measured = results if predictions is not None else {}
    drawn = charts.charts_of(history, measured, predictions)
    if predictions is not None:
        write_predictions(directory, predictions)
        if predict is not None:
            mistakes = report.find_mistakes(predict, dataset, predictions)
    charts.write_plots(directory / PLOTS_NAME, drawn)
    report.write_report(
        directory / report.FILE_NAME,
        report.RunReport(
            title=directory.resolve().name,
            manifest=dataset.manifest,
            config=settings,
            metrics=measured or None,
            charts=drawn,
            mistakes=mistakes,
            own_metrics=own_metrics,
            flow=flow.flow_of(dataset, measured, in_folds=in_folds, is_own=own_metrics is None),
            exposure=exposure,
            made=_made(),
            versions=versions(),
            data_page=page_of_data(str(dataset.path), directory, dataset.manifest),
        ),
    )
    return results


def page_of_data(data: str, directory: Path, manifest: tfrecord_io.Manifest) -> str | None:
    """Returns the URL of the dataset's page relative to a run's, or None if there is none.

    That of an anonymous dataset names no folder that the command did not name.

    Args:
        data: folder or URL of the dataset.
        directory: where the page of the run will be.
        manifest: of the dataset.
    """
    page = Path(data) / report.FILE_NAME
    if not page.is_file():
        return None
    path = os.path.relpath(page, directory)
    named = {os.pardir, *page.parts, *directory.parts}
    if "anonymize" in manifest.options and not named.issuperset(Path(path).parts):
        return None
    return urllib.parse.quote(os.fsencode(path))


def _made() -> dict[str, str]:
    """Returns when, with which command and on what the results are made, for the page."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": redaction.without_secrets(shlex.join(sys.argv)),
        "devices": ", ".join(keras.distribution.list_devices()),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }

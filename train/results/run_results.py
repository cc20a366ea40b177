"""Measures predictions and writes the results: metrics, a table, plots and the page of the run."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tfrecord_io
from train.config import TrainConfig
from train.kinds.task import Answers
from train.results import charts, metrics, report, saliency, thresholds
from train.results.predictions import PREDICTIONS_NAME, Predictions, write_predictions
from train.run_folder import versions

#: Most sites that are measured by themselves; with more, those with the most images.
MAX_SITES = 50

PLOTS_NAME = "plots"


def measure(predictions: Predictions, config: TrainConfig) -> dict[str, Any]:
    """Returns the entries of metrics.json that follow from predictions alone.

    Args:
        predictions: the predictions to measure.
        config: supplies the number of resamples and the seed.

    Returns:
        see `metrics.evaluate_predictions`; `label_kind` if the labels are not classes; and if the
        dataset names the site of every example, `sites` with `num_examples`, `num_patients` and
        `scores` by the name of the site.

    Raises:
        MetricsError: if there are no examples, or a probability is not finite.
    """
    task, examples = predictions.task, predictions.examples

    def measured(rows: np.ndarray) -> dict[str, Any]:
        return metrics.evaluate_predictions(
            task,
            Answers(
                probabilities=predictions.probabilities[rows],
                truths=predictions.truths[rows],
                label_names=predictions.label_names,
            ),
            groups=examples.patients and [examples.patients[row] for row in rows],
            num_samples=config.measures.bootstrap_samples,
            seed=config.input.seed,
        )

    results = task.kind.entry | measured(np.arange(len(predictions.truths)))
    if examples.sites is None:
        return results
    sites = np.array(examples.sites)
    largest = [name for name, _ in collections.Counter(examples.sites).most_common(MAX_SITES)]
    results["sites"] = {}
    for name in sorted(largest):
        of_site = measured(np.flatnonzero(sites == name))
        wanted = ("num_examples", "num_patients", "scores")
        results["sites"][name] = {key: of_site[key] for key in wanted}
    return results


def measure_calibration(
    predictions: Predictions,
    *,
    val: tuple[np.ndarray, np.ndarray],
    temperature: float,
    config: TrainConfig,
) -> dict[str, Any]:
    """Returns the entries of metrics.json that are fitted on the validation part.

    Args:
        predictions: predictions on the test part, with the temperature applied.
        val: (probabilities, truths) of the validation part, before the temperature.
        temperature: the temperature that was fitted to `val`.
        config: supplies the wanted sensitivity, the number of resamples and the seed.

    Returns:
        `calibration` and `thresholds`, see the module `thresholds`.
    """
    assert predictions.uncalibrated is not None
    task, names = predictions.task, predictions.label_names
    return {
        "calibration": thresholds.describe_calibration(
            task,
            temperature,
            fitted_on="val",
            num_examples=len(val[1]),
            before=predictions.uncalibrated,
            after=task.cool(predictions.uncalibrated, temperature),
            truths=predictions.truths,
        ),
        "thresholds": thresholds.choose_thresholds(
            thresholds.views_of(task, names),
            val=(task.cool(val[0], temperature), task.has(val[1], len(names))),
            test=(predictions.probabilities, task.has(predictions.truths, len(names))),
            groups=predictions.examples.patients,
            wanted=config.measures.sensitivity,
            num_samples=config.measures.bootstrap_samples,
            seed=config.input.seed,
        ),
    }


def write_results(
    directory: Path,
    *,
    manifest: tfrecord_io.Manifest,
    config: TrainConfig,
    results: Mapping[str, Any],
    predictions: Predictions | None,
    predict: saliency.Predict | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    own_metrics: Mapping[str, Any] | None = None,
) -> None:
    """Writes predictions.csv, plots/ and report.html; the caller writes metrics.json.

    Args:
        directory: created if it is missing.
        manifest: manifest of the evaluated dataset.
        config: configuration of the run; names the evaluated dataset.
        results: content of metrics.json.
        predictions: the measured predictions; None if there was no example to predict.
        predict: stored images → probabilities, for the maps of the mistakes; None for no maps.
        history: one row per epoch.
        own_metrics: metrics of the training run, if this is another dataset.
    """
    directory.mkdir(parents=True, exist_ok=True)
    mistakes: Sequence[report.Mistake] = ()
    measured = results if predictions is not None else {}
    drawn = charts.charts_of(history, measured, predictions)
    if predictions is not None:
        write_predictions(directory / PREDICTIONS_NAME, predictions)
        if predict is not None:
            mistakes = report.find_mistakes(predict, config.input.data, predictions)
    charts.write_plots(directory / PLOTS_NAME, drawn)
    report.write_report(
        directory / report.FILE_NAME,
        report.RunReport(
            title=directory.resolve().name,
            manifest=manifest,
            config=config.to_dict(),
            metrics=measured or None,
            charts=drawn,
            mistakes=mistakes,
            own_metrics=own_metrics,
            versions=versions(),
        ),
    )

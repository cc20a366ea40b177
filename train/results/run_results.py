"""Measures predictions and writes the results: metrics, a table, plots and the page of the run."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tfrecord_io
from train.config import TrainConfig
from train.kinds.temperature import apply_temperature
from train.results import charts, metrics, report, saliency, thresholds
from train.results.predictions import PREDICTIONS_NAME, Predictions, write_predictions
from train.run_folder import versions

#: Most sites that are measured by themselves; with more, those with the most images.
MAX_SITES = 50

PLOTS_NAME = "plots"


def measure(
    predictions: Predictions, label_names: Sequence[str], config: TrainConfig
) -> dict[str, Any]:
    """Returns the entries of metrics.json that follow from predictions alone.

    Args:
        predictions: the predictions to measure.
        label_names: names of the labels.
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
            task.scorer(predictions.probabilities[rows], predictions.truths[rows], label_names),
            groups=None if examples.patients is None else [examples.patients[row] for row in rows],
            num_samples=config.measures.bootstrap_samples,
            seed=config.input.seed,
            digits=task.digits,
        )

    results = task.kind.entry | measured(np.arange(len(predictions.truths)))
    if examples.sites is None:
        return results
    sites = np.array(examples.sites)
    largest = [name for name, _ in collections.Counter(examples.sites).most_common(MAX_SITES)]
    results["sites"] = {}
    for name in sorted(largest):
        found = measured(np.flatnonzero(sites == name))
        wanted = ("num_examples", "num_patients", "scores")
        results["sites"][name] = {key: found[key] for key in wanted}
    return results


def measure_calibration(
    predictions: Predictions,
    *,
    val: tuple[np.ndarray, np.ndarray],
    temperature: float,
    label_names: Sequence[str],
    config: TrainConfig,
) -> dict[str, Any]:
    """Returns the entries of metrics.json that are fitted on the validation part.

    Args:
        predictions: predictions on the test part, with the temperature applied.
        val: (probabilities, truths) of the validation part, before the temperature.
        temperature: the temperature that was fitted to `val`.
        label_names: names of the labels.
        config: supplies the wanted sensitivity, the number of resamples and the seed.

    Returns:
        `calibration` and `thresholds`, see the module `thresholds`.
    """
    assert predictions.uncalibrated is not None
    task = predictions.task
    answers, right_answers = task.choices(predictions.uncalibrated, predictions.truths)
    return {
        "calibration": thresholds.describe_calibration(
            temperature,
            fitted_on="val",
            num_examples=len(val[1]),
            before=answers,
            after=apply_temperature(answers, temperature),
            labels=right_answers,
        ),
        "thresholds": thresholds.choose_thresholds(
            thresholds.default_views(label_names, one_hot=task.kind.one_hot),
            label_names,
            val=(task.cool(val[0], temperature), task.has(val[1], len(label_names))),
            test=(predictions.probabilities, task.has(predictions.truths, len(label_names))),
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
    drawn = charts.charts_of(history, measured, predictions, manifest.label_names)
    if predictions is not None:
        label_names = manifest.label_names
        write_predictions(directory / PREDICTIONS_NAME, predictions, label_names)
        if predict is not None:
            mistakes = report.find_mistakes(predict, config.input.data, predictions, label_names)
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

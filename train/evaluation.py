"""Measures predictions and writes the results: metrics, a table, plots and the page of the run."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tfrecord_io
from tfrecord_io.label_kinds import CLASSES
from tfrecord_io.printing import csv_cell
from train import calibration, metrics, plots, report, saliency
from train.config import TrainConfig
from train.parts import Part
from train.tasks import Task

#: Most sites that are measured by themselves; with more, those with the most images.
MAX_SITES = 50

PREDICTIONS_NAME = "predictions.csv"
PLOTS_NAME = "plots"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """The predictions of a network for some examples.

    Attributes:
        task: what the network answers.
        probabilities: float32 [num_examples, num_labels], with the temperature applied.
        truths: of the examples, see `tasks`.
        examples: keys, patients and paths of the examples.
        part: the examples' place in the dataset; None if they come from several runs.
        uncalibrated: probabilities before the temperature; None if there is no temperature.
    """

    task: Task
    probabilities: np.ndarray
    truths: np.ndarray
    examples: metrics.Examples
    part: Part | None = None
    uncalibrated: np.ndarray | None = None


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
            num_samples=config.bootstrap_samples,
            seed=config.seed,
            digits=task.digits,
        )

    # Absent for classes, as in the manifest.
    kind = {} if task.kind is CLASSES else {"label_kind": task.kind.name}
    results = kind | measured(np.arange(len(predictions.truths)))
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
        `calibration` and `thresholds`, see the module `calibration`.
    """
    assert predictions.uncalibrated is not None
    task = predictions.task
    answers, right_answers = task.choices(predictions.uncalibrated, predictions.truths)
    return {
        "calibration": calibration.describe_calibration(
            temperature,
            fitted_on="val",
            num_examples=len(val[1]),
            before=answers,
            after=calibration.apply_temperature(answers, temperature),
            labels=right_answers,
        ),
        "thresholds": calibration.choose_thresholds(
            calibration.default_views(label_names, one_hot=task.kind.one_hot),
            label_names,
            val=(task.cool(val[0], temperature), task.has(val[1], len(label_names))),
            test=(predictions.probabilities, task.has(predictions.truths, len(label_names))),
            groups=predictions.examples.patients,
            wanted=config.sensitivity,
            num_samples=config.bootstrap_samples,
            seed=config.seed,
        ),
    }


def write_predictions(
    directory: Path, predictions: Predictions, label_names: Sequence[str]
) -> None:
    """Writes predictions.csv, see `metrics.write_predictions`.

    Args:
        directory: exists.
        predictions: to write.
        label_names: names of the labels.
    """
    task, probabilities = predictions.task, predictions.probabilities
    # Each name as its column has it, so that `read_predictions` finds it among several.
    cells = [csv_cell(name) for name in label_names]
    labels, answers = (
        task.texts(truths, cells) for truths in (predictions.truths, task.chosen(probabilities))
    )
    if not task.gives_probabilities:
        # As numbers, so that a minus does not look like the beginning of a formula.
        labels, answers = (list(map(float, texts)) for texts in (labels, answers))
    metrics.write_predictions(
        directory / PREDICTIONS_NAME,
        probabilities,
        labels,
        answers,
        label_names,
        predictions.examples,
        task.digits,
    )


def write_results(
    directory: Path,
    *,
    data: str,
    manifest: tfrecord_io.Manifest,
    config: TrainConfig,
    results: Mapping[str, Any],
    predictions: Predictions | None,
    predict: saliency.Predict | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    own_metrics: Mapping[str, Any] | None = None,
    versions: Mapping[str, str] | None = None,
) -> None:
    """Writes predictions.csv, plots/ and report.html; the caller writes metrics.json.

    Args:
        directory: created if it is missing.
        data: folder of the evaluated dataset.
        manifest: manifest of that dataset.
        config: configuration of the run.
        results: content of metrics.json.
        predictions: the measured predictions; None if there was no example to predict.
        predict: stored images → probabilities, for the maps of the mistakes; None for no maps.
        history: one row per epoch.
        own_metrics: metrics of the training run, if this is another dataset.
        versions: versions of the software, by name.
    """
    directory.mkdir(parents=True, exist_ok=True)
    mistakes: Sequence[report.Mistake] = ()
    if predictions is not None:
        label_names = manifest.label_names
        task, probabilities, truths = (
            predictions.task,
            predictions.probabilities,
            predictions.truths,
        )
        write_predictions(directory, predictions, label_names)
        if task.gives_probabilities:
            pictures = plots.pictures_of_probabilities(
                results,
                probabilities,
                task.has(truths, len(label_names)),
                task.choices(probabilities, truths),
                label_names,
            )
        else:
            pictures = plots.pictures_of_numbers(
                results, task.chosen(probabilities), truths, label_names[0]
            )
        plots.write_plots(directory / PLOTS_NAME, history, results, pictures)
        if predict is not None and predictions.part is not None:
            mistakes = report.find_mistakes(
                predict,
                data,
                predictions.part,
                task.story.mistakes(probabilities, truths, label_names, report.MAX_MISTAKES),
                predictions.examples,
            )
    report.write_report(
        directory / report.FILE_NAME,
        report.RunReport(
            title=directory.resolve().name,
            manifest=manifest,
            config=config.to_dict(),
            history=history,
            metrics=results if predictions is not None else None,
            probabilities=predictions.probabilities if predictions else None,
            uncalibrated=predictions.uncalibrated if predictions else None,
            truths=predictions.truths if predictions else None,
            mistakes=mistakes,
            own_metrics=own_metrics,
            versions=versions or {},
        ),
    )

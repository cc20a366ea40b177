"""After the training: exports the weights that were kept, and measures what they predict.

`finish` ends a single run. `pool` ends a cross-validation: it measures all held-out predictions
together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfrecord_io.files import write_json
from train.data.dataset import Part
from train.data.feed import evaluation_batches
from train.data.seen import Exposure, expose, find_seen
from train.kinds.registry import task_of
from train.kinds.task import Answers
from train.kinds.words import describe
from train.networks.build import build_network, manifest_of_images, whole_model
from train.networks.models import Network
from train.results import metrics, report, thresholds
from train.results.predictions import Predictions, read_predictions
from train.run_folder import BEST_NAME, HISTORY_NAME, write_metrics
from train.run_setup import Run
from train.training import checkpoint, export
from train.training.steps import make_steps
from train.training.training_loop import Progress


def finish(run: Run, progress: Progress, best: Sequence[np.ndarray]) -> dict[str, Any]:
    """Exports the weights that were kept, evaluates them, and writes the results.

    Both use the exported network, in float32 whatever the training used, so the report is exactly
    what the export and `predict` compute.

    Args:
        run: that was trained.
        progress: of the finished training.
        best: values of the network's variables in the epoch to keep.

    Returns:
        the content of metrics.json, see `metrics.evaluate_predictions`.

    Raises:
        TrainingError: if the network's answers are not numbers, or an exported form does not give
            them.
        MetricsError: if the answers cannot be measured.
    """
    parts, task, config = run.parts, run.task, run.config
    # Each worker does this for itself. On JAX, what is built from here on lies on its own devices.
    devices = run.devices.alone()

    def predict(part: Part) -> tuple[np.ndarray, np.ndarray]:
        batches = evaluation_batches(config.input, devices, part)
        probabilities, truths = make_steps(run, network, devices).predict(batches)
        export.require_numbers(probabilities, part.name)
        return probabilities, truths

    network = _build_final(run, best)
    temperature = predictions = None
    chosen: list[dict[str, Any]] = []
    # What is reported of a part must not be fitted to it.
    if parts.val and parts.test and task.gives_probabilities:
        probabilities, truths = predict(parts.val)
        temperature = task.fit_temperature(probabilities, truths)
        network = _build_final(run, best, temperature)
        answers = Answers(
            probabilities=task.cool(probabilities, temperature),
            truths=truths,
            label_names=run.data.manifest.label_names,
        )
        chosen = thresholds.choose_thresholds(task, answers, config.thresholds.sensitivity)
    # Before the evaluation: whatever may fail in it, the model is not lost.
    if run.devices.is_chief:
        _export(run, network, progress.best_epoch)
        thresholds.write_thresholds(run.folder / export.FOLDER_NAME, chosen)
    results: dict[str, Any] = {
        "split": parts.evaluated.name if parts.evaluated else None,
        "best_epoch": progress.best_epoch,
        "steps": progress.step,
    }
    if part := parts.evaluated:
        probabilities, truths = predict(part)
        predictions = Predictions(
            task=task,
            probabilities=probabilities,
            truths=truths,
            label_names=run.data.manifest.label_names,
            examples=run.data.examples(part),
            part=part,
            uncalibrated=temperature and task.cool(probabilities, 1 / temperature),
        )
    if not run.devices.is_chief:
        return results
    if predictions is not None:
        results |= metrics.measure(predictions, config.measures, config.input.seed, chosen)
        if temperature and parts.val:
            facts = {"fitted_on": "val", "num_examples": parts.val.num_examples}
            calibration = thresholds.describe_calibration(predictions, temperature)
            results["calibration"] = facts | calibration

    def predict_images(images: np.ndarray) -> np.ndarray:
        return keras.ops.convert_to_numpy(network.model(images, training=False))

    # Again: a run that goes on from its last checkpoint does not repeat the epoch, and a kill or a
    # power cut may have taken the file.
    write_json(run.folder / HISTORY_NAME, progress.history)
    return _write(
        run,
        results=results,
        predictions=predictions,
        exposure=run.exposure,
        in_folds=parts.train.splits if config.folds.folds else (),
        # Pictures of the mistakes need images.
        predict=predict_images if run.data.trunk is None else None,
        history=progress.history,
    )


def _write(run: Run, *, predictions: Predictions | None, **more: Any) -> dict[str, Any]:
    """Writes the files of RUN and says so; see `report.write_results`."""
    results = report.write_results(
        run.folder, dataset=run.data, settings=run.config.to_dict(), predictions=predictions, **more
    )
    write_metrics(run.folder, results)
    if predictions is not None:
        print(describe(results))
    if run.is_cross_validation:
        print(f"the metrics and {report.FILE_NAME} of all folds are in {run.folder}")
    else:
        print(f"The model, its metrics and {report.FILE_NAME} are in {run.folder}")
    return results


def _build_final(run: Run, best: Sequence[np.ndarray], temperature: float = 1.0) -> Network:
    """Builds the network to export: float32, with the weights that were kept."""
    network = build_network(run, "float32", temperature=temperature, is_final=True)
    checkpoint.restore(network.model.variables, best)
    return network


def _export(run: Run, network: Network, best_epoch: int) -> None:
    """Exports the network, with the trunk below it if there is one, and keeps its weights."""
    model, manifest, precision = network.model, run.data.manifest, "float32"
    if run.data.trunk is not None:
        # A rounding error of the trunk can become a step of the type that features are stored in.
        precision = manifest.dtype
        with run.devices.scope():
            model = whole_model(run, network)
        manifest = manifest_of_images(manifest, run.data.trunk)
    folder, splits = run.folder / export.FOLDER_NAME, run.parts.train.splits
    if not export.export_model(model, folder, manifest, precision=precision, splits=splits):
        print(f"note: the export has no {export.SAVED_MODEL_NAME}, which TensorFlow writes")
    variables = network.model.variables
    checkpoint.save(run.folder / BEST_NAME, {"model": variables}, {"epoch": best_epoch})


def pool(run: Run, everyone: Part, singles: Sequence[Run]) -> dict[str, Any]:
    """Measures the held-out predictions of all runs together and writes the files of RUN.

    Args:
        run: the cross-validation.
        everyone: the examples that were divided into folds.
        singles: its runs, all folds of the first seed first.

    Returns:
        the content of RUN/metrics.json: the measures of all held-out predictions, see
        `metrics.evaluate_predictions`, and `folds` and `spread`, see `metrics.describe_folds`.
    """
    config, manifest = run.config, run.data.manifest
    task = task_of(manifest.label_kind)
    keys, probabilities, truths = zip(
        *(read_predictions(single.folder) for single in singles), strict=True
    )
    run_of = np.repeat(np.arange(len(singles)), [len(of_run) for of_run in keys])
    examples = run.data.examples(everyone)
    place_of = {key: place for place, key in enumerate(examples.keys)}
    predictions = Predictions(
        task=task,
        probabilities=np.concatenate(probabilities),
        truths=np.concatenate(truths),
        label_names=manifest.label_names,
        runs=run_of,
        examples=examples.take(np.array([place_of[key] for of_run in keys for key in of_run])),
    )
    results = metrics.measure(predictions, config.measures, config.input.seed)
    num_images = results["num_examples"]
    results = {
        "split": f"{config.folds.folds} folds of {everyone.name}",
        "best_epoch": None,
        "steps": None,
        "num_images": num_images,
    } | results
    options = [single.given for single in singles]
    if task.gives_probabilities:
        fold_of = np.array([each.folds.fold for each in options])[run_of]
        facts = {"fitted_on": f"the other folds of {everyone.name}", "num_examples": num_images}
        results["calibration"] = facts | _describe_calibration(predictions, fold_of)
    scores = [metrics.scores(task, predictions.some(rows)) for rows in predictions.by_run()]
    results |= metrics.describe_folds(
        [
            (each.folds.fold or 0, each.input.seed, of_run)
            for each, of_run in zip(options, scores, strict=True)
        ],
        task.digits,
    )
    return _write(
        run,
        results=results,
        predictions=predictions,
        exposure=_exposure(singles[: config.folds.folds]),
        in_folds=everyone.splits,
    )


def _exposure(singles: Sequence[Run]) -> Exposure:
    """Returns how much each of the runs of one seed has seen of the fold that it held out."""
    data, below = singles[0].data, singles[0].seen.without("train")
    folds = [data.rows(single.parts.test) for single in singles if single.parts.test]
    is_seen = [
        find_seen(single.seen, data.images)[rows]
        for single, rows in zip(singles, folds, strict=True)
    ]
    rows, was_seen = np.concatenate(folds), np.concatenate(is_seen)
    return expose(below, data.images, rows, was_seen, is_measured=True)


def _describe_calibration(predictions: Predictions, fold_of: np.ndarray) -> dict[str, Any]:
    """Cools each fold by the temperature that is fitted to the predictions on the other folds."""
    task, raw, truths = predictions.task, predictions.probabilities, predictions.truths
    cooled, temperatures = raw.copy(), []
    for fold in np.unique(fold_of):
        is_in = fold_of == fold
        temperatures.append(task.fit_temperature(raw[~is_in], truths[~is_in]))
        cooled[is_in] = task.cool(raw[is_in], temperatures[-1])
    after = dataclasses.replace(predictions, probabilities=cooled, uncalibrated=raw)
    return thresholds.describe_calibration(after, float(np.mean(temperatures)))

"""Trains one network, or one for each fold and seed of a cross-validation, and measures it.

A run can be killed at any moment. Called again with the same configuration, it goes on at the next
example after a stop, and at the last checkpoint after a kill. A checkpoint holds the variables, the
optimizer, the best weights and `training_loop.Progress`; everything else in the folder is written
from them. Each fold and seed is a run in its own folder, RUN/seed-S/fold-F, and can be resumed.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfrecord_io.files import write_json
from train.config import TrainConfig
from train.data import seen
from train.data.dataset import Part, divided
from train.data.feed import evaluation_batches
from train.devices import set_seed
from train.kinds.registry import task_of
from train.kinds.task import Answers
from train.kinds.words import describe
from train.networks.models import Network, manifest_of_images, network_of, whole_model
from train.results import metrics, report, thresholds
from train.results.predictions import Predictions, read_predictions
from train.run_setup import Run, claim, make_run, read_metrics, write_metrics
from train.training import export
from train.training.steps import make_steps
from train.training.training_loop import Progress, train


def train_and_evaluate(config: TrainConfig, workdir: str | os.PathLike[str]) -> dict[str, Any]:
    """Trains, evaluates and exports; goes on where an earlier call with this folder stopped.

    Args:
        config: what to do.
        workdir: the folder of the run, made if it is missing.

    Returns:
        the content of metrics.json, see `metrics.evaluate_predictions`; of a cross-validation it is
        empty on workers besides the chief.

    Raises:
        ConfigError: if the configuration does not suit the data, the devices or the folder.
        tfrecord_io.ManifestError: if the dataset cannot be used.
        TrainingError: if the loss or the answers stop being numbers, a graph is traced again, the
            checkpoint is damaged, or an exported form does not give the network's answers.
        MetricsError: if the answers cannot be measured.
        StoppedError: after SIGTERM or SIGINT, with the state saved.
    """
    run = make_run(config, Path(workdir))
    return _cross_validate(run) if run.is_cross_validation else _train_once(run)


def _train_once(run: Run) -> dict[str, Any]:
    """Trains, evaluates and exports one network."""
    set_seed(run.config.input.seed)
    with claim(run):
        if results := read_metrics(run.folder):
            run.devices.say(f"the run in {run.folder} is complete; nothing to do")
            return results
        if run.devices.is_chief:
            run.seen.write(run.folder / seen.FILE_NAME)
        return _finish(run, *train(run))


def _finish(run: Run, progress: Progress, best: Sequence[np.ndarray]) -> dict[str, Any]:
    """Exports the weights that were kept, evaluates them, and writes the results.

    Both use the exported network, in float32 whatever the training used, so the report is exactly
    what the export and `predict` compute.
    """
    parts, task, config = run.parts, run.task, run.config
    label_names = run.data.manifest.label_names
    # Each worker does this for itself. On JAX, what is built from here on lies on its own devices.
    devices = run.devices.alone()

    def build(temperature: float = 1.0) -> Network:
        network = network_of(run, "float32", temperature=temperature, is_final=True)
        for variable, value in zip(network.model.variables, best, strict=True):
            variable.assign(value)
        return network

    def predict(part: Part) -> tuple[np.ndarray, np.ndarray]:
        batches = evaluation_batches(config.input, devices, part)
        probabilities, truths = make_steps(run, network, devices).predict(batches)
        export.require_numbers(probabilities, part.name)
        return probabilities, truths

    def predict_images(images: np.ndarray) -> np.ndarray:
        return keras.ops.convert_to_numpy(network.model(images, training=False))

    network = build()
    temperature = predictions = None
    chosen: list[dict[str, Any]] = []
    # What is reported of a part must not be fitted to it.
    if parts.val and parts.test and task.gives_probabilities:
        probabilities, truths = predict(parts.val)
        temperature = task.fit_temperature(probabilities, truths)
        network = build(temperature)
        cooled = task.cool(probabilities, temperature)
        answers = Answers(probabilities=cooled, truths=truths, label_names=label_names)
        chosen = thresholds.choose_thresholds(task, answers, config.thresholds.sensitivity)
    # Before the evaluation: whatever may fail in it, the model is not lost.
    if run.devices.is_chief:
        _export(run, network)
        if chosen:
            write_json(run.folder / export.FOLDER_NAME / thresholds.FILE_NAME, chosen)
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
            label_names=label_names,
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


def _export(run: Run, network: Network) -> None:
    """Exports the network, with the trunk below it if there is one."""
    model, manifest, precision = network.model, run.data.manifest, "float32"
    if run.data.trunk is not None:
        # A rounding error of the trunk can become a step of the type that features are stored in.
        precision = manifest.dtype
        with run.devices.scope():
            model = whole_model(run, network)
        manifest = manifest_of_images(manifest, run.data.trunk)
    folder, splits = run.folder / export.FOLDER_NAME, run.parts.train.splits
    export.export_model(model, folder, manifest, precision=precision, splits=splits)


def _write(run: Run, *, predictions: Predictions | None, **more: Any) -> dict[str, Any]:
    """Writes the files of RUN and says so; see `report.write_results`."""
    results = report.write_results(
        run.folder, dataset=run.data, settings=run.config.to_dict(), predictions=predictions, **more
    )
    write_metrics(run.folder, results)
    if predictions is not None:
        print(describe(predictions.task.verdict(results), results))
    if run.is_cross_validation:
        print(f"the metrics and {report.FILE_NAME} of all folds are in {run.folder}")
    else:
        print(f"The model, its metrics and {report.FILE_NAME} are in {run.folder}")
    return results


def _cross_validate(run: Run) -> dict[str, Any]:
    """Trains every fold with every seed and measures all held-out predictions together."""
    config, folds, devices = run.config, run.config.folds, run.devices
    everyone = divided(run.data, folds)
    singles = [
        dataclasses.replace(
            run,
            given=run.given.replace(fold=fold, seed=seed, seeds=1),
            folder=run.folder / f"seed-{seed}" / f"fold-{fold}",
        )
        for seed in range(config.input.seed, config.input.seed + folds.seeds)
        for fold in range(folds.folds or 0)
    ]
    # All folds, so that one that cannot be trained does not waste the time of those before it.
    for single in singles[: folds.folds]:
        single.config  # noqa: B018 - raises ConfigError
    with claim(run):
        groups = run.data.groups_of(everyone)
        others = {name: count for name, count in groups.sources.items() if name != "patient"}
        if others:
            devices.say(
                f"warning: the patient of {sum(others.values()):,} images is unknown, so they are "
                f"divided by {' or '.join(others)}: scans of one patient may be in the training "
                "and the held-out part. Build the dataset with --group_regex"
            )
        devices.say(
            f"cross-validation of the splits {everyone.name}: {folds.folds} folds of "
            f"{groups.units} x {folds.seeds} seeds = {len(singles)} runs",
        )
        for number, single in enumerate(singles, 1):
            fold, seed = single.given.folds.fold, single.given.input.seed
            devices.say(f"\nrun {number} of {len(singles)}: fold {fold}, seed {seed}")
            _train_once(single)
            # Without this, the graphs of all runs stay in memory.
            keras.utils.clear_session()
        return _pool(run, everyone, singles) if devices.is_chief else {}


def _pool(run: Run, everyone: Part, singles: Sequence[Run]) -> dict[str, Any]:
    """Measures the held-out predictions of all runs together and writes the files of RUN.

    Args:
        run: the cross-validation.
        everyone: the examples that were divided into folds.
        singles: its runs, all folds of the first seed first.

    Returns:
        the content of RUN/metrics.json: the measures of all held-out predictions, and `folds` and
        `spread`, see `metrics.describe_folds`.
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
    measured = metrics.measure(predictions, config.measures, config.input.seed)
    num_images = measured["num_examples"]
    results = {
        "split": f"{config.folds.folds} folds of {everyone.name}",
        "best_epoch": None,
        "steps": None,
        "num_images": num_images,
        **measured,
    }
    names = [(each.given.folds.fold or 0, each.given.input.seed) for each in singles]
    if task.gives_probabilities:
        fold_of = np.array([fold for fold, _ in names])[run_of]
        facts = {"fitted_on": f"the other folds of {everyone.name}", "num_examples": num_images}
        results["calibration"] = facts | _describe_calibration(predictions, fold_of)
    scores = [metrics.scores(task, predictions.some(rows)) for rows in predictions.by_run()]
    of_runs = [(*name, of_run) for name, of_run in zip(names, scores, strict=True)]
    return _write(
        run,
        results=results | metrics.describe_folds(of_runs, task.digits),
        predictions=predictions,
        exposure=_exposure(singles[: config.folds.folds]),
        in_folds=everyone.splits,
    )


def _exposure(singles: Sequence[Run]) -> seen.Exposure:
    """Returns how much each of the runs of one seed has seen of the fold that it held out."""
    data, below = singles[0].data, singles[0].seen.without("train")
    folds = [data.rows(single.parts.test) for single in singles if single.parts.test]
    is_seen = [
        seen.find_seen(single.seen, data.images)[rows]
        for single, rows in zip(singles, folds, strict=True)
    ]
    rows, was_seen = np.concatenate(folds), np.concatenate(is_seen)
    return seen.expose(below, data.images, rows, was_seen, is_measured=True)


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

"""Trains one network, or one for each fold and seed of a cross-validation, and measures it.

A run can be killed at any moment. Called again with the same configuration, it goes on at the next
example after a stop, and at the last checkpoint after a kill. A checkpoint holds the variables, the
optimizer, the best weights and `training_loop.Progress`; everything else in the folder is written
from them. Each fold and seed is a run in its own folder, RUN/seed-S/fold-F, and can be resumed.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfrecord_io.stores.files import read_json, write_json
from train.data import seen
from train.data.dataset import Part, divided
from train.data.feed import evaluation_batches
from train.kinds.registry import task_of
from train.kinds.task import require_numbers
from train.machine.devices import set_seed
from train.networks.models import Network, restore
from train.results import metrics, thresholds, unlike
from train.results.predictions import Predictions, read_predictions
from train.results.write import METRICS_NAME, PAGE_NAME, write_results
from train.training.config import TrainConfig
from train.training.export import FOLDER_NAME, answer, export_model
from train.training.mirror import local_copy
from train.training.run_setup import Run, claim, make_run
from train.training.steps import make_steps
from train.training.training_loop import Progress, train


def train_and_evaluate(
    config: TrainConfig, workdir: str | os.PathLike[str], *, overwrite: bool = False
) -> dict[str, Any]:
    """Trains, evaluates and exports; goes on where an earlier call with this folder stopped.

    Args:
        config: what to do.
        workdir: the folder of the run, made if it is missing; or its URL.
        overwrite: whether to replace the run that is there.

    Returns:
        the content of metrics.json, see `metrics.evaluate_predictions`; of a cross-validation it is
        empty on workers besides the chief.

    Raises:
        UserError: if the configuration does not suit the data, the devices or the folder.
        tfrecord_io.ManifestError: if the dataset cannot be used.
        TrainingError: if the loss or the answers stop being numbers, a graph is traced again, the
            checkpoint is damaged, or an exported form does not give the network's answers;
            or after SIGTERM or SIGINT, with the state saved.
    """
    with local_copy(workdir) as (folder, mirror):
        return _complete(make_run(config, folder, mirror), overwrite=overwrite)


def _complete(run: Run, *, overwrite: bool = False) -> dict[str, Any]:
    """Does what is left to do of a run, or of all runs of a cross-validation."""
    with claim(run, overwrite=overwrite):
        if run.given.folds.is_cross_validation:
            return _cross_validate(run)
        if results := read_json(run.folder / METRICS_NAME):
            run.devices.say(f"the run in {run.address} is complete; nothing to do")
            return results
        if run.devices.is_chief:
            is_private = run.data.manifest.has_codes
            run.seen.write(run.folder / seen.FILE_NAME, is_private=is_private)
        set_seed(run.config.input.seed)
        progress, best = train(run)
        return _finish(run, progress, best)


def _finish(run: Run, progress: Progress, best: Sequence[np.ndarray]) -> dict[str, Any]:
    """Exports the weights that were kept, evaluates them, and writes the results.

    Both use the exported network, in float32 whatever the training used, so the report is exactly
    what the export and `predict` compute.
    """
    parts, task, config = run.parts, run.task, run.config
    # Each worker does this for itself. On JAX, what is built from here on lies on its own devices.
    devices = run.devices.alone()

    def build(**how: Any) -> Network:
        network = run.build_network("float32", **how)
        restore(network.model.variables, best)
        return network

    def predict(part: Part) -> Predictions:
        batches = evaluation_batches(config.input, devices, part)
        probabilities, truths = make_steps(run, network, devices).predict(batches)
        require_numbers(probabilities, part.name)
        return Predictions(
            task=task,
            dataset=run.data,
            rows=part.rows,
            probabilities=probabilities,
            truths=truths,
            label_names=run.data.manifest.label_names,
        )

    temperature, chosen = 1.0, []
    # What is reported of a part must not be fitted to it.
    fitted = parts.val if parts.test and task.gives_probabilities else None
    if fitted:
        network = build()
        val = predict(fitted)
        temperature = task.fit_temperature(val.probabilities, val.truths)
    network = build(temperature=temperature, is_final=True)
    if fitted:
        chosen = thresholds.choose_thresholds(predict(fitted), config.thresholds.sensitivity)
    # Before the evaluation: whatever may fail in it, the model is not lost.
    if run.devices.is_chief:
        folder = run.folder / FOLDER_NAME
        export_model(network.model, folder, run.data.manifest, splits=parts.train.splits)
        if chosen:
            write_json(folder / thresholds.FILE_NAME, chosen)
        # Without validation images it is not known how far images of other patients are.
        if parts.val and config.thresholds.unlike:
            unlike.write_vectors(folder, network.model, run.data, parts.train, parts.val)
    results: dict[str, Any] = {
        "split": parts.evaluated.name if parts.evaluated else None,
        "best_epoch": progress.best_epoch,
        "steps": progress.step,
    }
    predictions = predict(parts.evaluated) if parts.evaluated else None
    if not run.devices.is_chief:
        return results
    if predictions is not None:
        if fitted:
            raw = task.cool(predictions.probabilities, 1 / temperature)
            predictions = dataclasses.replace(predictions, uncalibrated=raw)
        results |= metrics.measure(predictions, config.measures, config.input.seed, chosen)
        if fitted:
            facts = {"fitted_on": "val", "num_examples": fitted.num_examples}
            calibration = thresholds.describe_calibration(predictions, temperature)
            results["calibration"] = facts | calibration
    results = write_results(
        run.folder,
        dataset=run.data,
        settings=config.to_dict(),
        results=results,
        predictions=predictions,
        exposure=run.exposure,
        in_folds=parts.train.splits if config.folds.folds else (),
        predict=functools.partial(answer, network.model),
        history=progress.history,
        export=run.folder / FOLDER_NAME,
        is_copy=run.mirror is not None,
    )
    run.upload()
    print(f"The model, its metrics and {PAGE_NAME} are in {run.address}")
    return results


def _cross_validate(run: Run) -> dict[str, Any]:
    """Trains every fold with every seed and measures all held-out predictions together."""
    folds, devices, singles = run.config.folds, run.devices, run.singles
    everyone = divided(run.data, folds)
    groups = run.data.groups.take(everyone.rows)
    others = {name: count for name, count in groups.sources.items() if name != "patient"}
    if others:
        devices.say(
            f"warning: the patient of {sum(others.values()):,} images is unknown, so they are "
            f"divided by {' or '.join(others)}: scans of one patient may be in the training "
            "and the held-out part. Build the dataset with --patient_regex"
        )
    devices.say(
        f"cross-validation of the splits {everyone.name}: {folds.folds} folds of "
        f"{groups.units} x {folds.seeds} seeds = {len(singles)} runs"
    )
    for number, single in enumerate(singles, 1):
        fold, seed = single.given.folds.fold, single.given.input.seed
        devices.say(f"\nrun {number} of {len(singles)}: fold {fold}, seed {seed}")
        _complete(single)
        # Without this, the graphs of all runs stay in memory.
        keras.utils.clear_session()
    return _pool(run, everyone) if devices.is_chief else {}


def _pool(run: Run, everyone: Part) -> dict[str, Any]:
    """Measures the held-out predictions of all runs together and writes the files of RUN.

    Returns:
        the content of RUN/metrics.json: the measures, and `folds` and `spread`, see
        `metrics.describe_folds`.
    """
    config, manifest, singles = run.config, run.data.manifest, run.singles
    task = task_of(manifest.label_kind)
    keys, probabilities, truths = zip(
        *(read_predictions(single.folder) for single in singles), strict=True
    )
    run_of = np.repeat(np.arange(len(singles)), [len(of_run) for of_run in keys])
    row_of = dict(zip(run.data.values("key", everyone.rows), everyone.rows.tolist(), strict=True))
    predictions = Predictions(
        task=task,
        probabilities=np.concatenate(probabilities),
        truths=np.concatenate(truths),
        label_names=manifest.label_names,
        runs=run_of,
        dataset=run.data,
        rows=np.array([row_of[key] for of_run in keys for key in of_run]),
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
    folds = [each.given.folds.fold or 0 for each in singles]
    if task.gives_probabilities:
        facts = {"fitted_on": f"the other folds of {everyone.name}", "num_examples": num_images}
        of_folds = thresholds.calibrate_folds(predictions, np.array(folds)[run_of])
        results["calibration"] = facts | of_folds
    seeds = [each.given.input.seed for each in singles]
    scores = [metrics.scores(predictions.some(rows)) for rows in predictions.by_run()]
    of_runs = list(zip(folds, seeds, scores, strict=True))
    results = write_results(
        run.folder,
        dataset=run.data,
        settings=config.to_dict(),
        results=results | metrics.describe_folds(of_runs, task.digits),
        predictions=predictions,
        exposure=run.exposure,
        in_folds=everyone.splits,
        is_copy=run.mirror is not None,
    )
    run.upload()
    print(f"the metrics and {PAGE_NAME} of all folds are in {run.address}")
    return results

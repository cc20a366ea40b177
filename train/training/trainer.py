"""Trains one network and measures it.

A run can be killed at any moment. Called again with the same configuration, it goes on at the next
example after a stop, and at the last checkpoint after a kill. A checkpoint holds the variables, the
optimizer, the best weights and `training_loop.Progress`; everything else in the folder is written
from them.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from tfrecord_io.stores.files import read_json
from tfrecord_io.terminal.printing import many
from tfrecord_io.terminal.stages import stage
from train.data import seen
from train.data.dataset import Dataset
from train.extras import occlusion, onnx
from train.extras.bucket import open_run
from train.machine.devices import Devices
from train.machine.places import METRICS_NAME, PAGE_NAME, RunFolder
from train.results.sections import Result
from train.results.write import write_results
from train.training.claim import claim
from train.training.config import TrainConfig
from train.training.export import EXPORT_NAME, answer, export_model, milliseconds_of
from train.training.final import finish, measure
from train.training.first_weights import FirstWeights
from train.training.plan import Plan, make_plans
from train.training.session import open_data_and_devices, open_session
from train.training.training_loop import train


def train_and_evaluate(
    config: TrainConfig,
    workdir: RunFolder | str | os.PathLike[str],
    *,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Trains, evaluates and exports; goes on where an earlier call with this folder stopped.

    Args:
        config: what to do; not a cross-validation, which `folds.cross_validate` is for.
        workdir: made if it is missing.
        overwrite: whether to replace the run that is there.

    Returns:
        the content of metrics.json, see `metrics.measure`, with `split`, `best_epoch` and `steps`.

    Raises:
        UserError: if the configuration does not suit the data, the devices or the folder.
        tfrecord_io.ManifestError: if the dataset cannot be used.
        TrainingError: if the loss or the answers stop being numbers, a graph is traced again, the
            checkpoint is damaged, or an exported form does not give the network's answers;
            or after SIGTERM or SIGINT, with the state saved.
    """
    folder = RunFolder.at(workdir)
    data, devices, first, (plan,) = opened(config)
    manifest = data.manifest
    with claim(folder, plan.config, manifest, devices, overwrite=overwrite):
        return complete(plan, data, devices, folder, first)


def opened(
    config: TrainConfig,
) -> tuple[Dataset, Devices, FirstWeights | None, list[Plan]]:
    """Returns the data, the devices, the first weights, if there are some, and the plans."""
    data, devices = open_data_and_devices(config)
    init = config.network.init
    first = FirstWeights.of(init, open_run(init), data.manifest) if init else None
    return data, devices, first, make_plans(config, data, devices)


def complete(
    plan: Plan,
    data: Dataset,
    devices: Devices,
    folder: RunFolder,
    first: FirstWeights | None,
    *,
    draws_maps: bool = True,
) -> dict[str, Any]:
    """Does what is left to do of a run, whose folder is claimed; returns what metrics.json holds.

    `first` are the weights to start from; None for those of the configuration. `draws_maps` tells
    whether the page has occlusion maps of the first mistakes.
    """
    if results := read_json(folder.path / METRICS_NAME):
        devices.say(f"the run in {folder.address} is complete; nothing to do")
        return results
    has_seen = seen.seen_by(data, plan.parts, plan.config.network.weights, first and first.folder)
    if devices.is_chief:
        has_seen.write(folder.path / seen.FILE_NAME, is_private=data.manifest.has_codes)
    exposure = seen.exposure_of(data, plan.parts, has_seen)
    num_seen = has_seen.num_in("init")
    notes = [folder.note] if folder.note else []
    notes += first.describe(num_seen) if first else []
    session = open_session(plan, data, devices)
    progress, weights = train(session, folder, first, notes)
    # Each worker does the rest for itself. On JAX, what is built from here on lies on its devices.
    session = session.alone()
    with stage("temperature and thresholds", is_told=devices.is_chief):
        final = finish(session, weights)
    # Before the evaluation: whatever may fail in it, the model is not lost.
    if devices.is_chief:
        with stage("export, each form loaded again and compared"):
            export_model(
                final.network.model,
                folder.path / EXPORT_NAME,
                data.manifest,
                splits=plan.parts.train.splits,
                chosen=final.thresholds,
            )
            onnx.write(folder.path / EXPORT_NAME)
    with stage("evaluation", is_told=devices.is_chief):
        measured, predictions = measure(session, final)
    if not devices.is_chief:
        return measured
    facts = {
        "parameters": f"{final.network.logits.count_params():,}",
        "time of training": f"{sum(row['seconds'] for row in progress.history):,.0f} s",
        "time of an answer to one image": f"{milliseconds_of(final.network.model):.0f} ms",
    }
    progressed = {"best_epoch": progress.best_epoch, "steps": progress.step}
    result = Result(
        dataset=data,
        config=plan.config.to_dict(),
        metrics={"split": measured["split"], **progressed, **measured},
        predictions=predictions,
        exposure=exposure,
        history=progress.history,
        in_folds=plan.parts.train.splits if plan.config.folds.folds else (),
        is_copy=folder.is_copy,
        facts={"Network": facts},
    )
    predict = functools.partial(answer, final.network.model)
    explanation = occlusion.explain(predict) if draws_maps else None
    results = write_results(folder.path, result, explanation=explanation)
    folder.save()
    is_short = (plan.config.input.epochs or 0) < plan.usual_epochs
    if measured["split"] and plan.task.doubt(results) and is_short:
        told = many(progress.step, "step")
        print(f"note: {told} few: without --epochs it trains {plan.usual_epochs} epochs")
    print(f"The model, its metrics and {PAGE_NAME} are in {folder.address}")
    return results

"""Trains one network and measures it.

A run can be killed at any moment. Called again with the same configuration, it goes on at the next
example after a stop, and at the last checkpoint after a kill. A checkpoint holds the variables, the
optimizer and `training_loop.Progress`; everything else in the folder is written from them.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfrecord_io.stores.files import read_json
from tfrecord_io.terminal.printing import many
from train.data import seen
from train.data.dataset import Dataset
from train.extras import occlusion
from train.extras.bucket import open_run
from train.machine.console import stage
from train.machine.devices import Devices
from train.machine.places import METRICS_NAME, PAGE_NAME, RunFolder
from train.networks.export import EXPORT_NAME, answer, export_model, milliseconds_of
from train.networks.models import Network
from train.results import metrics, thresholds
from train.results.mistakes import MAX_EXPLAINED
from train.results.predictions import Predictions
from train.results.result import RunResult
from train.training.claim import claim
from train.training.config import TrainConfig
from train.training.first_weights import FirstWeights
from train.training.plan import Plan, make_plans
from train.training.session import Session, open_data_and_devices, open_session
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
    with claim(folder, plan.config, data.manifest, devices, overwrite=overwrite):
        return complete(plan, data, devices, folder, first)


def opened(
    config: TrainConfig,
) -> tuple[Dataset, Devices, FirstWeights | None, list[Plan]]:
    """Returns the data, the devices, the first weights or None, and the plans."""
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
        print(f"the run in {folder.address} is complete; nothing to do")
        return results
    init = first.folder if first else None
    has_seen = seen.seen_by(data, plan.parts, plan.config.network.weights, init)
    has_seen.write(folder.path / seen.FILE_NAME, is_private=data.manifest.has_codes)
    exposure = None
    if part := plan.parts.evaluated:
        # That validation images were watched is said elsewhere.
        known = has_seen if plan.parts.test else has_seen.without("val")
        exposure = seen.expose(data, [(known, part.rows)], is_measured=True)
    notes = [first.describe(has_seen.num_in("init"))] if first else []
    session = open_session(plan, data, devices)
    progress, weights = train(session, folder, first, notes)
    with stage("temperature and thresholds"):
        final = _finish(session, weights)
    # Before the evaluation: whatever may fail in it, the model is not lost.
    with stage("export, each form loaded again and compared"):
        export_model(
            final.network.model,
            folder.path / EXPORT_NAME,
            data.manifest,
            splits=plan.parts.train.splits,
            chosen=final.thresholds,
        )
    with stage("evaluation"):
        measured, predictions = _measure(session, final)
    seconds = sum(row["seconds"] for row in progress.history)
    milliseconds = milliseconds_of(final.network.model)
    facts = {
        "parameters": f"{final.network.logits.count_params():,}",
        "time of training": f"{seconds:,.0f} s",
        "time of an answer to one image": f"{milliseconds:.0f} ms",
    }
    progressed = {"best_epoch": progress.epoch, "steps": progress.step}
    result = RunResult(
        directory=folder.path,
        dataset=data,
        config=plan.config.to_dict(),
        metrics={"split": measured["split"], **progressed, **measured},
        predictions=predictions,
        exposure=exposure,
        history=progress.history,
        facts={"Network": facts},
    )
    predict = functools.partial(answer, final.network.model)
    num_maps = occlusion.num_maps(seconds, milliseconds / 1000) if draws_maps else 0
    explanation = occlusion.explain(predict) if num_maps else None
    results = result.write(explanation, min(num_maps, MAX_EXPLAINED))
    folder.save()
    is_short = (plan.config.input.epochs or 0) < plan.usual_epochs
    if measured["split"] and plan.task.doubt(results) and is_short:
        few = many(progress.step, "step")
        print(f"note: {few} few: without --epochs it trains {plan.usual_epochs} epochs")
    print(f"The model, its metrics and {PAGE_NAME} are in {folder.address}")
    return results


class _Final(NamedTuple):
    """The network to export, the temperature in it, and its thresholds, see `choose_thresholds`.

    The evaluation asks this very network, so the report is what the export and `predict` compute.
    """

    network: Network
    temperature: float
    thresholds: Sequence[Mapping[str, Any]]


def _finish(session: Session, weights: Sequence[np.ndarray]) -> _Final:
    """Builds the network to export, of the kept weights, in float32 whatever the training used."""
    plan = session.plan
    build = functools.partial(session.build_network, "float32", values=weights)
    if not plan.fitted_part:
        return _Final(build(is_final=True), 1.0, ())
    val = session.predict(build(), plan.fitted_part)
    temperature = plan.task.fit_temperature(val.probabilities, val.truths)
    cooled = plan.task.cool(val.probabilities, temperature)
    val = dataclasses.replace(val, probabilities=cooled)
    chosen = thresholds.choose_thresholds(val, plan.config.thresholds.sensitivity)
    return _Final(build(temperature=temperature, is_final=True), temperature, chosen)


def _measure(session: Session, final: _Final) -> tuple[dict[str, Any], Predictions | None]:
    """Returns what metrics.json says of the evaluated part, and the predictions of it."""
    plan, evaluated, fitted = session.plan, session.plan.parts.evaluated, session.plan.fitted_part
    if not evaluated:
        return {"split": None}, None
    predictions = session.predict(final.network, evaluated)
    results = metrics.measure(
        predictions, plan.config.measures, plan.config.input.seed, final.thresholds
    )
    results = {"split": evaluated.name} | results
    if fitted:
        facts = {"fitted_on": "val", "num_examples": fitted.num_examples}
        described = thresholds.describe_calibration(predictions, final.temperature)
        results["calibration"] = facts | described
    return results, predictions

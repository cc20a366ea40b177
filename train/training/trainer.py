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
from pathlib import Path
from typing import Any

import numpy as np

from tfrecord_io.stores.files import read_json, write_json
from tfrecord_io.terminal.address import is_inside
from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.printing import many
from tfrecord_io.terminal.stages import stage
from train.data import seen
from train.data.dataset import Dataset, Part
from train.data.seen import Exposure, Seen, collect, expose, read_seen
from train.kinds.task import require_numbers
from train.machine.devices import Devices, set_seed
from train.machine.places import RunFolder
from train.networks.models import Network, restore
from train.results import metrics, thresholds
from train.results.predictions import Predictions
from train.results.sections import Result
from train.results.write import METRICS_NAME, PAGE_NAME, Additions, write_results
from train.training.claim import claim
from train.training.config import TrainConfig
from train.training.export import FOLDER_NAME, answer, export_model, milliseconds_of
from train.training.first_weights import FirstWeights
from train.training.folds import cross_validate
from train.training.plan import Plan, make_plans, usual_epochs, with_model
from train.training.session import Session, open_data_and_devices, open_session
from train.training.training_loop import train


def train_and_evaluate(
    config: TrainConfig,
    workdir: RunFolder | str | os.PathLike[str],
    *,
    overwrite: bool = False,
    additions: Additions = Additions(),  # noqa: B008 - it cannot be changed
) -> dict[str, Any]:
    """Trains, evaluates and exports; goes on where an earlier call with this folder stopped.

    Args:
        config: what to do.
        workdir: made if it is missing.
        overwrite: whether to replace the run that is there.
        additions: what else is made of a finished run.

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
    folder = workdir if isinstance(workdir, RunFolder) else RunFolder.at(workdir)
    data, devices = open_data_and_devices(config)
    init = config.network.init
    if init and is_inside(init, folder.address):
        raise UserError(
            f"--init {init} is in --workdir {folder.address}, where this run would replace it; "
            "choose another --workdir"
        )
    first = FirstWeights.of(init, additions.open_run(init), data.manifest) if init else None
    plans = make_plans(config, data, devices)
    if not config.folds.is_cross_validation:
        (plan,) = plans
        with claim(folder, plan.config, data.manifest, devices, overwrite=overwrite):
            return _complete(plan, data, devices, folder, first, additions)

    # A fold has no maps that explain its answers: they would take as long as its evaluation, export
    # and page together.
    of_fold = additions._replace(explain=None)

    def run(plan: Plan, own: RunFolder) -> None:
        with claim(own, plan.config, data.manifest, devices):
            _complete(plan, data, devices, own, first, of_fold)

    config = with_model(config, data.manifest.image_shape)
    with claim(folder, config, data.manifest, devices, overwrite=overwrite):
        return cross_validate(config, plans, data, devices, folder, run)


def _complete(
    plan: Plan,
    data: Dataset,
    devices: Devices,
    folder: RunFolder,
    first: FirstWeights | None,
    additions: Additions,
) -> dict[str, Any]:
    """Does what is left to do of a run, whose folder is claimed; returns what metrics.json holds.

    `first` are the weights to start from; None for those of the configuration.
    """
    if results := read_json(folder.path / METRICS_NAME):
        devices.say(f"the run in {folder.address} is complete; nothing to do")
        return results
    has_seen = what_is_seen(plan, data, first)
    if devices.is_chief:
        has_seen.write(folder.path / seen.FILE_NAME, is_private=data.manifest.has_codes)
    set_seed(plan.config.input.seed)
    session = open_session(plan, data, devices)
    notes = [folder.note] if folder.note else []
    notes += first.describe(has_seen.num_in("init")) if first else []
    progress, weights = train(session, folder, first, notes)
    # Each worker does the rest for itself. On JAX, what is built from here on lies on its devices.
    session = session.alone()
    with stage("temperature and thresholds", is_told=devices.is_chief):
        network, temperature, chosen = _final_network(session, weights)
    # Before the evaluation: whatever may fail in it, the model is not lost.
    export = folder.path / FOLDER_NAME
    if devices.is_chief:
        with stage("export, each form loaded again and compared"):
            export_model(network.model, export, data.manifest, splits=plan.parts.train.splits)
            if chosen:
                write_json(export / thresholds.FILE_NAME, chosen)
    with stage("evaluation", is_told=devices.is_chief):
        measured, predictions = _measure(session, network, temperature, chosen)
    if not devices.is_chief:
        return measured
    progressed = {"best_epoch": progress.best_epoch, "steps": progress.step}
    network_facts = {
        "parameters": f"{network.logits.count_params():,}",
        "time of training": f"{sum(row['seconds'] for row in progress.history):,.0f} s",
        "time of an answer to one image": f"{milliseconds_of(network.model):.0f} ms",
    }
    result = Result(
        dataset=data,
        config=plan.config.to_dict(),
        metrics={"split": measured["split"], **progressed, **measured},
        predictions=predictions,
        exposure=exposure_of(plan, data, has_seen),
        history=progress.history,
        in_folds=plan.parts.train.splits if plan.config.folds.folds else (),
        is_copy=folder.is_copy,
        facts={"Network": network_facts},
    )
    explanation = additions.explain and additions.explain(
        functools.partial(answer, network.model), plan.task.gives_probabilities
    )

    def add(result: Result) -> None:
        with stage("other forms and the model card"):
            for write_form in additions.forms:
                write_form(export)
            for make in additions.after:
                make(export, result)

    results = write_results(folder.path, result, explanation=explanation, before_last=add)
    folder.save()
    usual = usual_epochs(plan.parts.train.num_examples, plan.config.network.fine_tunes)
    if measured["split"] and plan.task.doubt(results) and (plan.config.input.epochs or 0) < usual:
        told = many(progress.step, "step")
        print(f"note: {told} few: without --epochs it trains {usual} epochs")
    print(f"The model, its metrics and {PAGE_NAME} are in {folder.address}")
    return results


# ---- what was seen


def what_is_seen(plan: Plan, data: Dataset, first: FirstWeights | None) -> Seen:
    """Returns the images that a run sees, and those that its first weights have seen."""
    weights, unknown = plan.config.network.weights, ""
    if weights not in (None, "imagenet", "none"):
        unknown = f"its first weights are from elsewhere ({Path(weights).name})"
    used = {"train": plan.parts.train, "val": plan.parts.val}
    own = collect(data, {name: part.rows for name, part in used.items() if part}, unknown)
    return own.after(read_seen(first.folder)) if first else own


def exposure_of(plan: Plan, data: Dataset, has_seen: Seen) -> Exposure | None:
    """Returns how much a run has seen of the images that measure it; None if no image does."""
    if not (measured := plan.parts.evaluated):
        return None
    # That validation images were watched is said elsewhere.
    has_seen = has_seen if plan.parts.test else has_seen.without("val")
    return expose(data, [(has_seen, measured.rows)], is_measured=True)


# ---- the network that is exported, and what it answers


def _final_network(
    session: Session, weights: Sequence[np.ndarray]
) -> tuple[Network, float, Sequence[dict[str, Any]]]:
    """Builds the network to export, of the kept weights, in float32 whatever the training used.

    It answers for the evaluation, so the report is exactly what the export and `predict` compute.

    Returns:
        the network, the temperature in it, and its thresholds, see `choose_thresholds`.
    """
    plan = session.plan

    def build(**how: Any) -> Network:
        network = session.build_network("float32", **how)
        restore(network.model.variables, weights)
        return network

    if not plan.fitted_part:
        return build(is_final=True), 1.0, ()
    val = _predict(session, build(), plan.fitted_part)
    temperature = plan.task.fit_temperature(val.probabilities, val.truths)
    network = build(temperature=temperature, is_final=True)
    cooled = plan.task.cool(val.probabilities, temperature)
    val = dataclasses.replace(val, probabilities=cooled)
    chosen = thresholds.choose_thresholds(val, plan.config.thresholds.sensitivity)
    return network, temperature, chosen


def _predict(session: Session, network: Network, part: Part) -> Predictions:
    steps = session.steps(network)
    probabilities, truths = steps.predict(session.evaluation_batches(part))
    require_numbers(probabilities, part.name)
    return Predictions(
        task=session.plan.task,
        dataset=session.data,
        rows=part.rows,
        probabilities=probabilities,
        truths=truths,
        label_names=session.data.manifest.label_names,
    )


def _measure(
    session: Session, network: Network, temperature: float, chosen: Sequence[dict[str, Any]]
) -> tuple[dict[str, Any], Predictions | None]:
    """Returns what metrics.json says of the evaluated part, and the predictions of it.

    All workers predict, so all of them call this.
    """
    plan, evaluated, fitted = session.plan, session.plan.parts.evaluated, session.plan.fitted_part
    results: dict[str, Any] = {"split": evaluated.name if evaluated else None}
    if not evaluated:
        return results, None
    predictions = _predict(session, network, evaluated)
    if fitted:
        raw = plan.task.cool(predictions.probabilities, 1 / temperature)
        predictions = dataclasses.replace(predictions, uncalibrated=raw)
    config = plan.config
    results |= metrics.measure(predictions, config.measures, config.input.seed, chosen)
    if fitted:
        facts = {"fitted_on": "val", "num_examples": fitted.num_examples}
        results["calibration"] = facts | thresholds.describe_calibration(predictions, temperature)
    return results, predictions

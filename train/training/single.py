"""One training from its plan to its results: train, export, measure, write."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfrecord_io.stores.files import read_json, write_json
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
from train.results.write import (
    METRICS_NAME,
    PAGE_NAME,
    Additions,
    write_results,
)
from train.training.export import FOLDER_NAME, answer, export_model, milliseconds_of
from train.training.first_weights import FirstWeights
from train.training.plan import Plan, usual_epochs
from train.training.session import Session, open_session
from train.training.training_loop import train


def complete(
    plan: Plan,
    data: Dataset,
    devices: Devices,
    folder: RunFolder,
    first: FirstWeights | None = None,
    additions: Additions = Additions(),  # noqa: B008 - it cannot be changed
) -> dict[str, Any]:
    """Does what is left to do of a run, whose folder is claimed; returns what metrics.json holds.

    `first` are the weights to start from; None for those of the configuration. For what is raised
    see `trainer.train_and_evaluate`.
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
    with stage("temperature and thresholds", is_told=devices.is_chief):
        final = _choose(session.alone(), weights)
    # Before the evaluation: whatever may fail in it, the model is not lost.
    export = folder.path / FOLDER_NAME
    if devices.is_chief:
        with stage("export, each form loaded again and compared"):
            splits = plan.parts.train.splits
            export_model(final.network.model, export, data.manifest, splits=splits)
            if final.thresholds:
                write_json(export / thresholds.FILE_NAME, final.thresholds)
    with stage("evaluation", is_told=devices.is_chief):
        measured, predictions = _measure(final)
    if not devices.is_chief:
        return measured
    progressed = {"best_epoch": progress.best_epoch, "steps": progress.step}
    network_facts = {
        "parameters": f"{final.network.logits.count_params():,}",
        "time of training": f"{sum(row['seconds'] for row in progress.history):,.0f} s",
        "time of an answer to one image": f"{milliseconds_of(final.network.model):.0f} ms",
    }
    result = Result(
        dataset=data,
        config=plan.config.to_dict(),
        metrics={"split": measured["split"], **progressed, **measured},
        predictions=predictions,
        exposure=exposure_of([(plan, has_seen)], data),
        history=progress.history,
        in_folds=plan.parts.train.splits if plan.config.folds.folds else (),
        is_copy=folder.is_copy,
        facts={"Network": network_facts},
    )
    explanation = additions.explain and additions.explain(
        functools.partial(answer, final.network.model), plan.task.gives_probabilities
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


def exposure_of(runs: Sequence[tuple[Plan, Seen]], data: Dataset) -> Exposure | None:
    """Returns how much runs have seen of what they are measured on; None if that is nothing.

    The runs are one, or those of a cross-validation with one seed.
    """
    looks = [
        # That validation images were watched is said elsewhere.
        (seen if plan.parts.test else seen.without("val"), plan.parts.evaluated.rows)
        for plan, seen in runs
        if plan.parts.evaluated
    ]
    return expose(data, looks, is_measured=True) if looks else None


# ---- the network that is exported, and what it answers


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Final:
    """The network to export, in float32 whatever the training used.

    It answers for the evaluation, so the report is exactly what the export and `predict` compute.

    Attributes:
        temperature: of its probabilities.
        fitted: the part to which temperature and thresholds were fitted; None for none of them.
        thresholds: see `thresholds.choose_thresholds`.
    """

    session: Session
    network: Network
    temperature: float = 1.0
    fitted: Part | None = None
    thresholds: Sequence[dict[str, Any]] = ()


def _choose(session: Session, weights: Sequence[np.ndarray]) -> _Final:
    """Builds the network of the kept weights, with a temperature, and chooses its thresholds."""
    plan = session.plan
    # What is reported of a part must not be fitted to it.
    fitted = plan.parts.val if plan.parts.test and plan.task.gives_probabilities else None

    def build(**how: Any) -> Network:
        network = session.build_network("float32", **how)
        restore(network.model.variables, weights)
        return network

    if not fitted:
        return _Final(session=session, network=build(is_final=True))
    val = _predict(session, build(), fitted)
    temperature = plan.task.fit_temperature(val.probabilities, val.truths)
    network = build(temperature=temperature, is_final=True)
    cooled = plan.task.cool(val.probabilities, temperature)
    val = dataclasses.replace(val, probabilities=cooled)
    chosen = thresholds.choose_thresholds(val, plan.config.thresholds.sensitivity)
    return _Final(
        session=session, network=network, temperature=temperature, fitted=fitted, thresholds=chosen
    )


def _predict(session: Session, network: Network, part: Part) -> Predictions:
    steps = session.predicting_steps(network)
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


def _measure(final: _Final) -> tuple[dict[str, Any], Predictions | None]:
    """Returns what metrics.json says of the evaluated part, and the predictions of it.

    All workers predict, so all of them call this.
    """
    plan, evaluated = final.session.plan, final.session.plan.parts.evaluated
    results: dict[str, Any] = {"split": evaluated.name if evaluated else None}
    if not evaluated:
        return results, None
    predictions = _predict(final.session, final.network, evaluated)
    if final.fitted:
        raw = plan.task.cool(predictions.probabilities, 1 / final.temperature)
        predictions = dataclasses.replace(predictions, uncalibrated=raw)
    config = plan.config
    results |= metrics.measure(predictions, config.measures, config.input.seed, final.thresholds)
    if final.fitted:
        facts = {"fitted_on": "val", "num_examples": final.fitted.num_examples}
        calibration = thresholds.describe_calibration(predictions, final.temperature)
        results["calibration"] = facts | calibration
    return results, predictions

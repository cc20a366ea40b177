"""Trains one network and measures it, in the order of these lines.

    data        `session.open_sessions` opens it, and decides what no flag says
    network     `training_loop.train` builds it, with the weights of the last checkpoint
    steps       `steps`, one for each global batch
    checkpoint  `training_loop` saves it every two minutes, and after the last step
    export      `networks.export`: every form of the model is loaded again and compared
    measures    `results.metrics`: of the test images
    page        `results.result`, beside the predictions; metrics.json is the last file

A run can be killed at any moment. Called again with the same configuration, it goes on at the next
example after a stop, and at the last checkpoint after a kill. A checkpoint holds the variables, the
optimizer and `training_loop.Progress`; everything else in the folder is written from them.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from tfrecord_io.stores.files import read_json
from tfrecord_io.terminal.printing import counted, many, printable
from train.data import seen
from train.extras import occlusion
from train.extras.bucket import open_run
from train.machine.console import stage
from train.machine.places import METRICS_NAME, PAGE_NAME, RunFolder
from train.networks.export import EXPORT_NAME, answer, export_model, milliseconds_of
from train.results import metrics, thresholds
from train.results.mistakes import MAX_EXPLAINED
from train.results.result import RunResult
from train.training.claim import claim
from train.training.config import TrainConfig
from train.training.plan import usual_epochs
from train.training.session import Session, open_sessions
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
    (session,) = opened(config)
    with claim(folder, session.config, session.data.manifest, session.devices, overwrite=overwrite):
        return complete(session, folder)


def opened(config: TrainConfig) -> list[Session]:
    """Returns the sessions of a configuration, see `open_sessions`; `--init` may be a URL."""
    return open_sessions(config, open_run)


def complete(session: Session, folder: RunFolder, *, draws_maps: bool = True) -> dict[str, Any]:
    """Does what is left to do of a run, whose folder is claimed; returns what metrics.json holds.

    `draws_maps` says whether the page has occlusion maps of the first mistakes.
    """
    if results := read_json(folder.path / METRICS_NAME):
        print(f"the run in {folder.address} is complete; nothing to do")
        return results
    config, data, parts, first = session.config, session.data, session.parts, session.first
    has_seen = seen.seen_by(data, parts, config.network.weights, first and first.folder)
    has_seen.write(folder.path / seen.FILE_NAME, is_private=data.manifest.has_codes)
    exposure = None
    if parts.evaluated:
        # That validation images were watched is said elsewhere.
        known = has_seen if parts.test else has_seen.without("val")
        exposure = seen.expose(data, [(known, parts.evaluated.rows)], is_measured=True)
    if first:
        images = counted(has_seen.num_in("init"), "image")
        origin = f"starts from the weights of {first.init}, which have seen {images}"
        print(printable(f"{origin}; outputs {first.outputs}"))
    progress, weights = train(session, folder)
    # The evaluation asks the network that is exported, so the page is what `predict` computes. It
    # is float32, whatever the training used.
    build = functools.partial(session.build_network, "float32", values=weights)
    temperature = 1.0
    chosen: Sequence[Mapping[str, Any]] = ()
    with stage("temperature and thresholds"):
        # What is reported of a part must not be fitted to it.
        if fitted := parts.test and parts.val:
            val = session.predict(build(), fitted)
            temperature = session.task.fit_temperature(val.probabilities, val.truths)
            cooled = session.task.cool(val.probabilities, temperature)
            val = dataclasses.replace(val, probabilities=cooled)
            chosen = thresholds.choose_thresholds(val, config.thresholds.sensitivity)
        network = build(temperature=temperature, is_final=True)
    # Before the evaluation: whatever may fail in it, the model is not lost.
    with stage("export, each form loaded again and compared"):
        export_model(
            network.model,
            folder.path / EXPORT_NAME,
            data.manifest,
            splits=parts.train.splits,
            chosen=chosen,
        )
    measured: dict[str, Any] = {"split": None}
    predictions = None
    with stage("evaluation"):
        if parts.evaluated:
            predictions = session.predict(network, parts.evaluated)
            measured = {"split": parts.evaluated.name}
            measured |= metrics.measure(predictions, config.measures, config.input.seed, chosen)
        if predictions and fitted:
            facts = {"fitted_on": "val", "num_examples": fitted.num_examples}
            described = thresholds.describe_calibration(predictions, temperature)
            measured["calibration"] = facts | described
    seconds = sum(row["seconds"] for row in progress.history)
    milliseconds = milliseconds_of(network.model)
    facts = {
        "parameters": f"{network.logits.count_params():,}",
        "time of training": f"{seconds:,.0f} s",
        "time of an answer to one image": f"{milliseconds:.0f} ms",
    }
    progressed = {"best_epoch": progress.epoch, "steps": progress.step}
    result = RunResult(
        directory=folder.path,
        dataset=data,
        config=config.to_dict(),
        metrics={"split": measured["split"], **progressed, **measured},
        predictions=predictions,
        exposure=exposure,
        history=progress.history,
        facts={"Network": facts},
    )
    num_maps = occlusion.num_maps(seconds, milliseconds / 1000) if draws_maps else 0
    predict = functools.partial(answer, network.model)
    explanation = occlusion.explain(predict) if num_maps else None
    results = result.write(explanation, min(num_maps, MAX_EXPLAINED))
    folder.save()
    usual = usual_epochs(parts.train.num_examples, config.network.fine_tunes)
    if measured["split"] and session.task.doubt(results) and progress.epoch < usual:
        few = many(progress.step, "step")
        print(f"note: {few} few: without --epochs it trains {usual} epochs")
    print(f"The model, its metrics and {PAGE_NAME} are in {folder.address}")
    return results

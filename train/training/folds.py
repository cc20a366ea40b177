"""A cross-validation: a loop around the training of one network, measured together.

Each fold is a run in its own folder, RUN/fold-F, and can be resumed.
"""

from __future__ import annotations

import os
from typing import Any

import keras
import numpy as np

from tfrecord_io.format.groups import plural_unit
from train.data.dataset import divided
from train.data.seen import expose, read_seen
from train.machine import console
from train.machine.places import PAGE_NAME, RunFolder
from train.results import metrics
from train.results.predictions import Predictions, read_predictions
from train.results.result import CrossValidationResult
from train.training.claim import claim
from train.training.config import TrainConfig
from train.training.plan import with_model
from train.training.trainer import complete, opened


def cross_validate(
    config: TrainConfig,
    workdir: RunFolder | str | os.PathLike[str],
    *,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Trains every fold and measures all held-out predictions together.

    For the arguments and errors see `trainer.train_and_evaluate`.

    Returns:
        the content of metrics.json: the measures, and `folds` and `spread`, see
        `metrics.describe_folds`.
    """
    folder = RunFolder.at(workdir)
    sessions = opened(config)
    data, devices, task = sessions[0].data, sessions[0].devices, sessions[0].task
    config = with_model(config, data.manifest.image_shape)
    everyone = divided(data, config.folds)
    runs = [folder / f"fold-{fold}" for fold in range(len(sessions))]
    with claim(folder, config, data.manifest, devices, overwrite=overwrite):
        groups = data.groups.take(everyone.rows)
        others = {name: count for name, count in groups.sources.items() if name != "patient"}
        if others:
            console.warn(
                f"the patient of {sum(others.values()):,} images is unknown, so they are "
                f"divided by {' or '.join(others)}: scans of one patient may be in the training "
                "and the held-out part. Build the dataset with --patient_regex"
            )
        splits = f"{len(sessions)} folds of {everyone.name}"
        print(f"cross-validation of {splits}, divided by {plural_unit(groups.unit)}")
        for fold, (session, run) in enumerate(zip(sessions, runs, strict=True)):
            print(f"\nrun {fold + 1} of {len(runs)}: fold {fold}", flush=True)
            with claim(run, session.config, data.manifest, devices):
                # Maps of the mistakes would take as long as all else after the training of a fold.
                complete(session, run, draws_maps=False)
            # Without this, the graphs of all runs stay in memory.
            keras.utils.clear_session()
        answers = [read_predictions(run.path) for run in runs]
        keys, probabilities, truths = (
            np.concatenate([of_run[name] for of_run in answers])
            for name in ("keys", "probabilities", "truths")
        )
        row_of = dict(zip(data.values("key", everyone.rows), everyone.rows.tolist(), strict=True))
        predictions = Predictions(
            task=task,
            probabilities=probabilities,
            truths=truths,
            label_names=data.manifest.label_names,
            folds=np.repeat(np.arange(len(runs)), [len(of_run["keys"]) for of_run in answers]),
            dataset=data,
            rows=np.array([row_of[key] for key in keys]),
        )
        measured = metrics.measure(predictions, config.measures, config.input.seed)
        counted = {"best_epoch": None, "steps": None, "num_images": measured["num_examples"]}
        scores = dict(enumerate(map(metrics.scores, predictions.by_fold())))
        results = {"split": splits, **counted, **measured, **metrics.describe_folds(scores)}
        held_out = [session.parts.test.rows for session in sessions if session.parts.test]
        networks = [(read_seen(run.path), rows) for run, rows in zip(runs, held_out, strict=True)]
        results = CrossValidationResult(
            directory=folder.path,
            dataset=data,
            config=config.to_dict(),
            metrics=results,
            predictions=predictions,
            exposure=expose(data, networks, is_measured=True),
        ).write()
        folder.save()
        print(f"the metrics and {PAGE_NAME} of all folds are in {folder.address}")
        return results

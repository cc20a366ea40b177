"""A cross-validation: a loop around the training of one network, measured together.

Each fold is a run in its own folder, RUN/fold-F, and can be resumed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from train.data.dataset import Dataset, Part, divided
from train.data.seen import expose, read_seen
from train.kinds import task_of
from train.machine import console
from train.machine.places import PAGE_NAME, RunFolder
from train.results import metrics
from train.results.predictions import Predictions, read_predictions
from train.results.result import CrossValidationResult
from train.training.claim import claim
from train.training.config import TrainConfig
from train.training.plan import Plan, with_model
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
    data, devices, first, plans = opened(config)
    manifest = data.manifest
    config = with_model(config, manifest.image_shape)
    with claim(folder, config, manifest, devices, overwrite=overwrite):
        everyone = divided(data, config.folds)
        _announce(config, data, everyone)
        for number, plan in enumerate(plans, 1):
            print(f"\nrun {number} of {len(plans)}: fold {plan.fold}", flush=True)
            own = folder / _name(plan)
            with claim(own, plan.config, manifest, devices):
                # Maps of the mistakes would take as long as all else after the training of a fold.
                complete(plan, data, devices, own, first, draws_maps=False)
            # Without this, the graphs of all runs stay in memory.
            keras.utils.clear_session()
        return _write(config, plans, data, everyone, folder)


def _name(plan: Plan) -> str:
    """Returns the name of the folder of a fold."""
    return f"fold-{plan.fold}"


def _announce(config: TrainConfig, data: Dataset, everyone: Part) -> None:
    """Prints what is divided into folds, and warns if images of a patient may be in several."""
    folds, groups = config.folds, data.groups.take(everyone.rows)
    others = {name: count for name, count in groups.sources.items() if name != "patient"}
    if others:
        console.warn(
            f"the patient of {sum(others.values()):,} images is unknown, so they are "
            f"divided by {' or '.join(others)}: scans of one patient may be in the training "
            "and the held-out part. Build the dataset with --patient_regex"
        )
    print(f"cross-validation of the splits {everyone.name}: {folds.folds} folds of {groups.units}")


def _write(
    config: TrainConfig, plans: Sequence[Plan], data: Dataset, everyone: Part, folder: RunFolder
) -> dict[str, Any]:
    """Measures all held-out predictions together and writes the files of the whole."""
    predictions = _pool(plans, data, everyone, folder)
    results = _measure(config, plans, predictions, everyone.name)
    networks = [
        (read_seen((folder / _name(plan)).path), part.rows)
        for plan in plans
        if (part := plan.parts.test)
    ]
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


def _pool(plans: Sequence[Plan], data: Dataset, everyone: Part, folder: RunFolder) -> Predictions:
    """Returns the held-out predictions of all runs together."""
    answers = [read_predictions((folder / _name(plan)).path) for plan in plans]
    keys, probabilities, truths = zip(*answers, strict=True)
    row_of = dict(zip(data.values("key", everyone.rows), everyone.rows.tolist(), strict=True))
    return Predictions(
        task=task_of(data.manifest.label_kind),
        probabilities=np.concatenate(probabilities),
        truths=np.concatenate(truths),
        label_names=data.manifest.label_names,
        folds=np.repeat([plan.fold for plan in plans], [len(of_run) for of_run in keys]),
        dataset=data,
        rows=np.array([row_of[key] for of_run in keys for key in of_run]),
    )


def _measure(
    config: TrainConfig, plans: Sequence[Plan], predictions: Predictions, splits: str
) -> dict[str, Any]:
    """Returns what metrics.json says of the held-out predictions of all runs."""
    measured = metrics.measure(predictions, config.measures, config.input.seed)
    results: dict[str, Any] = {
        "split": f"{config.folds.folds} folds of {splits}",
        "best_epoch": None,
        "steps": None,
        "num_images": measured["num_examples"],
        **measured,
    }
    scores = map(metrics.scores, predictions.by_fold())
    folds = (plan.fold for plan in plans)
    return results | metrics.describe_folds(dict(zip(folds, scores, strict=True)))

"""A cross-validation: a loop over the plans of its folds and seeds, measured together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from train.data.dataset import Dataset, Part, divided
from train.data.seen import expose, read_seen
from train.kinds.registry import task_of
from train.machine.devices import Devices
from train.machine.places import RunFolder
from train.results import metrics, thresholds
from train.results.predictions import Predictions, read_predictions
from train.results.sections import Result
from train.results.write import PAGE_NAME, write_results
from train.training.config import TrainConfig
from train.training.plan import Plan


def cross_validate(
    config: TrainConfig,
    plans: Sequence[Plan],
    data: Dataset,
    devices: Devices,
    folder: RunFolder,
    run: Callable[[Plan, RunFolder], object],
) -> dict[str, Any]:
    """Trains every fold with every seed and measures all held-out predictions together.

    The configuration and the folder, which is claimed, are those of the whole; all folds of the
    first seed come first in `plans`. `run` completes one of them in its folder.

    Returns:
        the content of metrics.json: the measures, and `folds` and `spread`, see
        `metrics.describe_folds`; empty on workers besides the chief.
    """
    folds = config.folds
    everyone = divided(data, folds)
    groups = data.groups.take(everyone.rows)
    others = {name: count for name, count in groups.sources.items() if name != "patient"}
    if others:
        devices.warn(
            f"the patient of {sum(others.values()):,} images is unknown, so they are "
            f"divided by {' or '.join(others)}: scans of one patient may be in the training "
            "and the held-out part. Build the dataset with --patient_regex"
        )
    devices.say(
        f"cross-validation of the splits {everyone.name}: {folds.folds} folds of "
        f"{groups.units} x {folds.seeds} seeds = {len(plans)} runs"
    )
    for number, plan in enumerate(plans, 1):
        fold, seed = _fold_and_seed(plan)
        devices.say(f"\nrun {number} of {len(plans)}: fold {fold}, seed {seed}")
        run(plan, _folder_of(plan, folder))
        # Without this, the graphs of all runs stay in memory.
        keras.utils.clear_session()
    if not devices.is_chief:
        return {}
    results, predictions = _pool(config, plans, data, everyone, folder)
    looks = [
        (read_seen(_folder_of(plan, folder).path), part.rows)
        for plan in plans[: folds.folds]
        if (part := plan.parts.test)
    ]
    result = Result(
        dataset=data,
        config=config.to_dict(),
        metrics=results,
        predictions=predictions,
        exposure=expose(data, looks, is_measured=True),
        in_folds=everyone.splits,
        is_copy=folder.is_copy,
    )
    results = write_results(folder.path, result)
    folder.save()
    print(f"the metrics and {PAGE_NAME} of all folds are in {folder.address}")
    return results


def _fold_and_seed(plan: Plan) -> tuple[int, int]:
    return plan.config.folds.fold or 0, plan.config.input.seed


def _folder_of(plan: Plan, folder: RunFolder) -> RunFolder:
    fold, seed = _fold_and_seed(plan)
    return folder / f"seed-{seed}/fold-{fold}"


def _pool(
    config: TrainConfig,
    plans: Sequence[Plan],
    data: Dataset,
    everyone: Part,
    folder: RunFolder,
) -> tuple[dict[str, Any], Predictions]:
    """Returns the measures of the held-out predictions of all runs together, and these."""
    task = task_of(data.manifest.label_kind)
    answers = [read_predictions(_folder_of(plan, folder).path) for plan in plans]
    keys, probabilities, truths = zip(*answers, strict=True)
    run_of = np.repeat(np.arange(len(plans)), [len(of_run) for of_run in keys])
    row_of = dict(zip(data.values("key", everyone.rows), everyone.rows.tolist(), strict=True))
    predictions = Predictions(
        task=task,
        probabilities=np.concatenate(probabilities),
        truths=np.concatenate(truths),
        label_names=data.manifest.label_names,
        runs=run_of,
        dataset=data,
        rows=np.array([row_of[key] for of_run in keys for key in of_run]),
    )
    measured = metrics.measure(predictions, config.measures, config.input.seed)
    num_images = measured["num_examples"]
    results: dict[str, Any] = {
        "split": f"{config.folds.folds} folds of {everyone.name}",
        "best_epoch": None,
        "steps": None,
        "num_images": num_images,
        **measured,
    }
    folds, seeds = zip(*map(_fold_and_seed, plans), strict=True)
    if task.gives_probabilities:
        facts = {"fitted_on": f"the other folds of {everyone.name}", "num_examples": num_images}
        of_folds = thresholds.calibrate_folds(predictions, np.array(folds)[run_of])
        results["calibration"] = facts | of_folds
    scores = [metrics.scores(predictions.some(rows)) for rows in predictions.by_run()]
    of_runs = list(zip(folds, seeds, scores, strict=True))
    return results | metrics.describe_folds(of_runs, task.digits), predictions

"""Trains one network, or one for each fold and seed of a cross-validation.

A run can be killed at any moment. Called again with the same configuration, it goes on at the next
example after a stop, and at the last checkpoint after a kill. A checkpoint holds the variables, the
optimizer, the best weights and `progress.Progress`; everything else in the folder is written from
them. Each fold and seed is a run in its own folder, RUN/seed-S/fold-F, and can be resumed.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import keras

from train.config import TrainConfig
from train.data import seen
from train.data.parts import divided
from train.devices import set_seed
from train.run_folder import claim, read_metrics
from train.run_setup import Run, make_run
from train.training.finishing import finish, pool
from train.training.training_loop import train


def train_and_evaluate(config: TrainConfig, workdir: str | os.PathLike[str]) -> dict[str, Any]:
    """Trains, evaluates and exports; goes on where an earlier call with this folder stopped.

    Args:
        config: what to do.
        workdir: the folder of the run, made if it is missing.

    Returns:
        the content of metrics.json; of a cross-validation it is empty on workers besides the chief.

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
        return finish(run, *train(run))


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
            options = single.config
            devices.say(
                f"\nrun {number} of {len(singles)}: fold {options.folds.fold}, "
                f"seed {options.input.seed}"
            )
            _train_once(single)
            # Without this, the graphs of all runs stay in memory.
            keras.utils.clear_session()
        return pool(run, everyone, singles) if devices.is_chief else {}

"""The run: train, keep one epoch's weights, export them, evaluate them once on the test split.

`train_and_evaluate(config, workdir)` does it all and can be killed at any moment. Called again with
the same configuration, it goes on at the next example after a stop, and at the last checkpoint
after a kill. A checkpoint holds the variables, the optimizer, the best weights and `Progress`;
everything else in the folder is written from them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tfrecord_io
from tfrecord_io.trunk import Trunk, find_trunk
from train.config import ConfigError, TrainConfig
from train.feeding.parts import Parts, choose_parts
from train.measuring.tasks import Task, training_task
from train.networks import features
from train.strategy import Devices, configure_devices, set_seed
from train.training.finishing import finish
from train.training.run_setup import make_setup
from train.training.training_loop import train
from train.workdir import METRICS_NAME, claim


def train_and_evaluate(
    config: TrainConfig, workdir: str | os.PathLike[str], given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Trains, evaluates and exports; goes on where an earlier call with this folder stopped.

    Args:
        config: what to do.
        workdir: the folder of the run, made if it is missing.
        given: the flags of the command line, if there is one, see `features.refuse_flags`.

    Returns:
        the content of metrics.json, see `metrics.evaluate_predictions`.

    Raises:
        ConfigError: if the configuration does not suit the data, the devices or the folder.
        tfrecord_io.ManifestError: if the dataset cannot be used.
        TrainingError: if the loss stops being a number, or a graph is traced again.
        StoppedError: after SIGTERM or SIGINT, with the state saved.
    """
    devices = configure_devices(config)
    manifest = tfrecord_io.Manifest.load(config.data)
    trunk = find_trunk(config.data, manifest)
    if trunk is not None:
        features.refuse_flags(config.data, trunk, given or {})
        config = features.adapt(config, trunk)
        devices.say(
            f"features of {trunk.model} up to {trunk.layer}: the layers above are trained; "
            "augmentation and the mirror image need images and are off"
        )
    if config.folds and config.fold is None:
        from train.training import folds

        return folds.cross_validate(config, Path(workdir), manifest, trunk, devices)
    return train_once(config, Path(workdir), manifest, trunk, devices)


def train_once(
    config: TrainConfig,
    workdir: Path,
    manifest: tfrecord_io.Manifest,
    trunk: Trunk | None,
    devices: Devices,
) -> dict[str, Any]:
    """Trains, evaluates and exports one network, see `train_and_evaluate`.

    Args:
        config: of a single run; adapted, if there is a trunk.
        workdir: see `train_and_evaluate`.
        manifest: of the dataset.
        trunk: of the dataset; None for images.
        devices: the configured devices.
    """
    parts, task, config = plan_run(config, manifest, devices)
    set_seed(config.seed)
    with claim(workdir, config, manifest, devices):
        if (path := workdir / METRICS_NAME).exists():
            try:
                results = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise ConfigError(
                    f"{path} is damaged ({error}); remove it, and the same command evaluates the "
                    "run again"
                ) from None
            devices.say(f"{workdir} holds this run complete; nothing to do")
            return results
        setup = make_setup(config, workdir, manifest, trunk, parts, task, devices)
        progress, best = train(setup)
        return finish(setup, progress, best)


def plan_run(
    config: TrainConfig, manifest: tfrecord_io.Manifest, devices: Devices
) -> tuple[Parts, Task, TrainConfig]:
    """Returns what a run trains on, what it learns, and its resolved configuration.

    Args:
        config: as the user gave it.
        manifest: of the dataset.
        devices: of the run.

    Raises:
        ConfigError: if the configuration does not suit the data or the devices.
    """
    parts = choose_parts(config, manifest)
    task = training_task(manifest.label_kind, config.data, parts.train)
    if config.best_by == "val_accuracy" and task.quantity != "accuracy":
        raise ConfigError("--best_by val_accuracy needs classes or labels; use val_loss")
    resolved = config.resolve(
        num_examples=parts.train.num_examples,
        num_replicas=devices.num_replicas,
        precision=devices.best_precision,
        jit_compile=devices.best_jit_compile,
    )
    return parts, task, resolved

"""One run: train a network, keep one epoch's weights, export them, evaluate them on the test split.

It can be killed at any moment. Called again with the same configuration, it goes on at the next
example after a stop, and at the last checkpoint after a kill. A checkpoint holds the variables, the
optimizer, the best weights and `progress.Progress`; everything else in the folder is written from
them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tfrecord_io
from tfrecord_io.trunk import Trunk
from train.config import ConfigError, TrainConfig
from train.data.parts import Parts, choose_parts
from train.devices import Devices, set_seed
from train.kinds.registry import training_task
from train.kinds.task import Task
from train.run_folder import METRICS_NAME, claim
from train.training.finishing import finish
from train.training.run_setup import make_setup
from train.training.training_loop import train


def train_once(
    config: TrainConfig,
    workdir: Path,
    manifest: tfrecord_io.Manifest,
    trunk: Trunk | None,
    devices: Devices,
) -> dict[str, Any]:
    """Trains, evaluates and exports one network, see `trainer.train_and_evaluate`.

    Args:
        config: of a single run; adapted, if there is a trunk.
        workdir: the folder of the run.
        manifest: of the dataset.
        trunk: of the dataset; None for images.
        devices: the configured devices.

    Returns:
        the content of metrics.json, see `metrics.evaluate_predictions`.

    Raises:
        ConfigError: if the configuration does not suit the data, the devices or the folder.
        Others: see `trainer.train_and_evaluate`.
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

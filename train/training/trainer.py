"""Trains one network, or one for each fold and seed of a cross-validation.

`single_run` and `folds` do the work.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tfrecord_io
from tfrecord_io.trunk import find_trunk
from train.config import TrainConfig
from train.devices import configure_devices
from train.networks import features
from train.training import folds
from train.training.single_run import train_once


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
        TrainingError: if the loss or the answers stop being numbers, or a graph is traced again.
        CheckpointError: if the checkpoint is damaged.
        ExportError: if an exported form does not give the network's answers.
        MetricsError: if the answers cannot be measured.
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
        return folds.cross_validate(config, Path(workdir), manifest, trunk, devices)
    return train_once(config, Path(workdir), manifest, trunk, devices)

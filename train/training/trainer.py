"""Trains one network, or one for each fold and seed of a cross-validation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train.config import TrainConfig
from train.run_setup import make_run
from train.training import folds
from train.training.single_run import train_once


def train_and_evaluate(
    config: TrainConfig, workdir: str | os.PathLike[str], given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Trains, evaluates and exports; goes on where an earlier call with this folder stopped.

    Args:
        config: what to do.
        workdir: the folder of the run, made if it is missing.
        given: the flags of the command line, if there is one, see `make_run`.

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
    run = make_run(config, Path(workdir), given)
    return folds.cross_validate(run) if run.is_cross_validation else train_once(run)

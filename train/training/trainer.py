"""Trains one network, or one for each fold and seed of a cross-validation, and measures it.

A run can be killed at any moment. Called again with the same configuration, it goes on at the next
example after a stop, and at the last checkpoint after a kill. A checkpoint holds the variables, the
optimizer, the best weights and `training_loop.Progress`; everything else in the folder is written
from them. Each fold and seed is a run in its own folder, RUN/seed-S/fold-F, and can be resumed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tfrecord_io.terminal.address import is_inside
from tfrecord_io.terminal.errors import UserError
from train.machine.places import RunFolder
from train.results.write import Additions
from train.training.claim import claim
from train.training.config import TrainConfig
from train.training.first_weights import FirstWeights
from train.training.folds import cross_validate
from train.training.plan import make_plans, with_model
from train.training.session import open_data_and_devices
from train.training.single import complete


def train_and_evaluate(
    config: TrainConfig,
    workdir: RunFolder | str | os.PathLike[str],
    *,
    overwrite: bool = False,
    start: Path | None = None,
    additions: Additions = Additions(),  # noqa: B008 - it cannot be changed
) -> dict[str, Any]:
    """Trains, evaluates and exports; goes on where an earlier call with this folder stopped.

    Args:
        config: what to do.
        workdir: made if it is missing.
        overwrite: whether to replace the run that is there.
        start: folder of the run that `init` of the configuration names; by default that path.
        additions: what else is made of a finished run.

    Returns:
        the content of metrics.json, see `metrics.evaluate_predictions`; of a cross-validation it is
        empty on workers besides the chief.

    Raises:
        UserError: if the configuration does not suit the data, the devices or the folder.
        tfrecord_io.ManifestError: if the dataset cannot be used.
        TrainingError: if the loss or the answers stop being numbers, a graph is traced again, the
            checkpoint is damaged, or an exported form does not give the network's answers;
            or after SIGTERM or SIGINT, with the state saved.
    """
    folder = workdir if isinstance(workdir, RunFolder) else RunFolder.at(workdir)
    data, devices = open_data_and_devices(config)
    init = config.network.init
    if init and is_inside(init, folder.address):
        raise UserError(
            f"--init {init} is in --workdir {folder.address}, where this run would replace it; "
            "choose another --workdir"
        )
    first = FirstWeights.of(init, start or Path(init), data.manifest) if init else None
    plans = make_plans(config, data, devices)
    if config.folds.is_cross_validation:
        config = with_model(config, data.manifest.image_shape)
        with claim(folder, config, data.manifest, devices, overwrite=overwrite):
            return cross_validate(config, plans, data, devices, folder, first, additions)
    (plan,) = plans
    with claim(folder, plan.config, data.manifest, devices, overwrite=overwrite):
        return complete(plan, data, devices, folder, first, additions)

"""What one run needs: its configuration, data, task and devices, and how its network is built."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

import tfrecord_io
from tfrecord_io.trunk import Trunk
from train.config import TrainConfig
from train.data import feed
from train.data.parts import Part, Parts, read_statistics
from train.devices import Devices, set_precision
from train.kinds.task import Task
from train.networks import features
from train.networks.models import Network, build_network, grey_factor_of
from train.training.steps import Objective, Steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSetup:
    """What does not change during a run.

    Attributes:
        config: resolved.
        workdir: the folder of the run.
        manifest: of the dataset.
        trunk: of the dataset; None for images.
        parts: what the run trains on, validates on and tests on.
        task: what it learns.
        devices: of the run.
        statistics: of the training pixels; None if the network does not use them.
        objective: what a training step does before it asks for the loss.
    """

    config: TrainConfig
    workdir: Path
    manifest: tfrecord_io.Manifest
    trunk: Trunk | None
    parts: Parts
    task: Task
    devices: Devices
    statistics: tfrecord_io.PixelStatistics | None
    objective: Objective

    def build_network(
        self,
        precision: str,
        *,
        weights: str | None = "none",
        temperature: float = 1.0,
        is_final: bool = False,
    ) -> Network:
        """Builds the network.

        Args:
            precision: a dtype policy of Keras, such as `float32` or `mixed_bfloat16`.
            weights: see `TrainConfig`; "none" where a checkpoint overrides them all. Layers on
                the features of a trunk have those that the trunk's file holds.
            temperature: divisor of the log probabilities, see `calibration`.
            is_final: whether it is the one to export.

        Raises:
            ConfigError: if the images do not suit the network or the weights cannot be loaded.
        """
        set_precision(precision)
        with self.devices.scope():
            if self.trunk is not None:
                return features.build_network(
                    self.config, self.trunk, self.manifest, self.task, temperature=temperature
                )
            return build_network(
                dataclasses.replace(self.config, weights=weights),
                image_shape=self.manifest.image_shape,
                num_classes=self.manifest.num_classes,
                task=self.task,
                image_dtype=self.manifest.dtype,
                grey_factor=grey_factor_of(self.manifest),
                statistics=self.statistics,
                temperature=temperature,
                # Not in what is exported: other backends refuse to load it.
                synchronized=self.devices.must_synchronize and not is_final,
            )

    def predict(self, steps: Steps, part: Part) -> tuple[np.ndarray, np.ndarray]:
        """Returns (probabilities float32 [num_examples, num_labels], truths) of a part."""
        batches = steps.iterate(feed.evaluation_batches(self.config, self.devices, part))
        answers = list(steps.predict(batches))
        labels = np.concatenate([labels for _, labels in answers])
        return np.concatenate([rows for rows, _ in answers]), self.task.truths(labels)


def make_setup(
    config: TrainConfig,
    workdir: Path,
    manifest: tfrecord_io.Manifest,
    trunk: Trunk | None,
    parts: Parts,
    task: Task,
    devices: Devices,
) -> RunSetup:
    """Returns the setup of a run; reads the training pixels if the network is normalized by them.

    Args: see `RunSetup`.
    """
    class_weights = task.class_weights(
        parts.train.label_counts,
        parts.train.num_examples,
        config.class_weight_power if config.class_weights == "balanced" else 0.0,
    )
    normalizes = config.normalize == "data"
    return RunSetup(
        config=config,
        workdir=workdir,
        manifest=manifest,
        trunk=trunk,
        parts=parts,
        task=task,
        devices=devices,
        statistics=read_statistics(config.data, parts.train) if normalizes else None,
        objective=Objective.from_config(config, class_weights, grey_factor_of(manifest), task),
    )

"""What a training works with: the devices, the dataset and the networks of its plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfrecord_io.terminal.address import is_remote
from train.data.dataset import Dataset, Part, open_dataset
from train.data.feed import evaluation_batches, training_batches
from train.kinds.task import require_numbers
from train.machine import console
from train.machine.devices import Devices, configure_devices, set_seed
from train.networks.models import Network, Pixels, build_network, freeze, restore
from train.networks.optimizers import make_optimizer
from train.networks.options import slow_network
from train.results.predictions import Predictions
from train.training.config import TrainConfig
from train.training.plan import Plan, make_plans
from train.training.steps import JaxSteps, Objective, Steps, TensorFlowSteps


def open_data_and_devices(config: TrainConfig) -> tuple[Dataset, Devices]:
    """Sets up the devices and opens the dataset.

    Raises:
        UserError: if the configuration does not suit the devices or the kind of dataset.
        tfrecord_io.ManifestError: if the dataset cannot be used.
    """
    devices = configure_devices(config.devices)
    data = open_dataset(config.input.data_path, config.measures.columns)
    if cache := is_remote(data.path) and data.stored.cache:
        print(cache.describe())
    return data, devices


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Session:
    """A plan on devices, with its data, and what its network must know of the stored images."""

    plan: Plan
    data: Dataset
    devices: Devices
    pixels: Pixels

    def build_network(
        self,
        precision: str,
        *,
        values: Sequence[np.ndarray] = (),
        weights: str | None = "none",
        temperature: float = 1.0,
        is_final: bool = False,
    ) -> Network:
        """Builds the network on the devices, see `models.build_network`.

        The precision is the arithmetic of the layers, such as `bfloat16`. The variables get the
        `values`, if there are any, or else start from the `weights`. `is_final` tells whether the
        network is the one to export.
        """
        keras.config.set_dtype_policy(precision if precision == "float32" else f"mixed_{precision}")
        plan, devices = self.plan, self.devices
        # On TensorFlow each replica sees only its share of the batch; on JAX each sees all of it.
        # Other backends refuse to load a network whose layers ask the other replicas.
        exchanges = devices.backend == "tensorflow" and devices.num_replicas > 1
        with devices.scope():
            network = build_network(
                dataclasses.replace(plan.config.network, weights=weights),
                self.pixels,
                num_classes=self.data.manifest.num_classes,
                seed=plan.config.input.seed,
                task=plan.task,
                temperature=temperature,
                with_mirror=plan.config.augmentation.augment,
                synchronized=exchanges and not is_final,
            )
        if values:
            restore(network.model.variables, values)
        return network

    @property
    def objective(self) -> Objective:
        """What a step makes of a batch, and what it minimizes."""
        config = self.plan.config
        return Objective(
            task=self.plan.task,
            class_weights=self.plan.class_weights,
            label_smoothing=config.loss.label_smoothing,
            augmentation=config.augmentation,
            is_padded=self.pixels.is_padded,
        )

    def training_batches(self, start_step: int) -> Any:
        """Returns the training batches from a step on, see `feed.training_batches`."""
        config, part = self.plan.config, self.plan.parts.train
        mixup = config.augmentation.mixup or 0.0
        return training_batches(
            self.data, part, config.input, self.devices, mixup=mixup, start_step=start_step
        )

    def evaluation_batches(self, part: Part) -> Any:
        return evaluation_batches(self.data, part, self.plan.config.input, self.devices)

    def training_steps(self, network: Network) -> Steps:
        """Returns steps with a fresh optimizer of the layers that train."""
        config, steps_after, pretrained = self.plan.config, self.plan.steps_after, []
        if note := slow_network(config.network.model, self.devices.backend, self.devices.names):
            console.warn(note)
        if network.backbone and config.network.fine_tunes:
            freeze(network.backbone, config.network.trainable_layers)
            pretrained = [variable.path for variable in network.backbone.trainable_variables]
        with self.devices.scope():
            optimizer = make_optimizer(
                config.optimizer,
                num_steps=steps_after[-1],
                pretrained=pretrained,
                head_steps=steps_after[config.network.head_epochs or 0],
            )
            optimizer.build(network.logits.trainable_variables)
        return self.steps(network, optimizer)

    def steps(self, network: Network, optimizer: Any = None) -> Steps:
        """Returns steps of the backend in use; without an optimizer they only predict."""
        backend = JaxSteps if self.devices.backend == "jax" else TensorFlowSteps
        return backend(
            network=network, devices=self.devices, objective=self.objective, optimizer=optimizer
        )

    def predict(self, network: Network, part: Part) -> Predictions:
        """Returns a network's answers for a part.

        Raises:
            TrainingError: if they are not numbers.
        """
        answers, truths = self.steps(network).predict(self.evaluation_batches(part))
        require_numbers(answers, part.name)
        return Predictions(
            task=self.plan.task,
            dataset=self.data,
            rows=part.rows,
            probabilities=answers,
            truths=truths,
            label_names=self.data.manifest.label_names,
        )


def open_session(plan: Plan, data: Dataset, devices: Devices) -> Session:
    """Returns the session of a plan, whose seed is that of all random numbers from now on.

    The pixels of a fold are read for it, those of a split are not.
    """
    set_seed(plan.config.input.seed)
    normalizes = plan.config.network.model == "small_resnet"
    pixels = Pixels(
        shape=data.manifest.image_shape,
        statistics=data.statistics(plan.parts.train) if normalizes else None,
        is_padded=data.manifest.is_padded,
    )
    return Session(plan=plan, data=data, devices=devices, pixels=pixels)


def session_of(config: TrainConfig) -> Session:
    """Returns the session of a training, or of the first one of a cross-validation.

    Raises:
        UserError, tfrecord_io.ManifestError: see `open_data_and_devices` and `make_plans`.
    """
    data, devices = open_data_and_devices(config)
    return open_session(make_plans(config, data, devices)[0], data, devices)

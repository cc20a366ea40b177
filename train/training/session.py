"""One training: its data, its devices, every number decided, and the networks of it."""

from __future__ import annotations

import dataclasses
import functools
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfrecord_io.terminal.address import is_remote
from tfrecord_io.terminal.errors import UserError
from train.data import feed
from train.data.dataset import Dataset, Part, Parts, choose_parts, open_dataset
from train.kinds import task_of
from train.kinds.task import Task, require_numbers
from train.machine import console
from train.machine.devices import Devices, configure_devices
from train.networks.models import Network, Pixels, build_network, freeze, restore
from train.networks.optimizers import make_optimizer
from train.networks.options import LITE_MODEL
from train.results.predictions import Predictions
from train.training.config import TrainConfig
from train.training.first_weights import FirstWeights
from train.training.plan import with_decisions
from train.training.steps import JaxSteps, Objective, Steps, TensorFlowSteps


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Session:
    """One training.

    Attributes:
        config: with every decision made.
        parts: what it trains on, validates on and tests on.
        first: the weights of `--init`; None for those of `--weights`.
    """

    config: TrainConfig
    data: Dataset
    devices: Devices
    parts: Parts
    first: FirstWeights | None = None

    @property
    def task(self) -> Task:
        """What it learns."""
        return task_of(self.data.manifest.label_kind)

    @functools.cached_property
    def steps_after(self) -> list[int]:
        """The number of steps done after 0, 1, 2, ... and all epochs.

        An epoch ends with the step of its last example, which may hold examples of the next one.
        """
        options, num_examples = self.config.input, self.parts.train.num_examples
        ends = (epoch * num_examples for epoch in range((options.epochs or 0) + 1))
        return [math.ceil(end / (options.global_batch_size or 1)) for end in ends]

    @functools.cached_property
    def pixels(self) -> Pixels:
        """What the network must know of the stored images."""
        normalizes, manifest = self.config.network.model == "small_resnet", self.data.manifest
        return Pixels(
            shape=manifest.image_shape,
            statistics=self.data.statistics(self.parts.train) if normalizes else None,
            is_padded=manifest.preprocessing.get("fit") == "pad",
        )

    @functools.cached_property
    def objective(self) -> Objective:
        """What a step makes of a batch, and what it minimizes."""
        config, part = self.config, self.parts.train
        return Objective(
            task=self.task,
            class_weights=self.task.class_weights(
                self.data.label_counts(part), part.num_examples, config.loss.class_weight_power
            ),
            label_smoothing=config.loss.label_smoothing,
            augmentation=config.augmentation,
            is_padded=self.pixels.is_padded,
        )

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

        The precision is the arithmetic of the layers. The variables get the `values`, if there are
        any, or else start from the `weights`. `is_final`: whether the network is to be exported.
        """
        keras.config.set_dtype_policy(precision if precision == "float32" else f"mixed_{precision}")
        config, devices = self.config, self.devices
        random.seed(config.input.seed)
        if devices.backend == "tensorflow":  # Keras' own function imports it wherever it is there
            keras.utils.set_random_seed(config.input.seed)
        # On TensorFlow each replica sees only its share of the batch; on JAX each sees all of it.
        # Other backends refuse to load a network whose layers ask the other replicas.
        exchanges = devices.backend == "tensorflow" and devices.num_replicas > 1
        with devices.scope():
            network = build_network(
                dataclasses.replace(config.network, weights=weights),
                self.pixels,
                num_classes=self.data.manifest.num_classes,
                seed=config.input.seed,
                task=self.task,
                temperature=temperature,
                with_mirror=config.augmentation.augment,
                synchronized=exchanges and not is_final,
            )
        if values:
            restore(network.model.variables, values)
        return network

    def training_batches(self, start_step: int) -> Any:
        """Returns the training batches from a step on, see `feed.training_batches`."""
        config, part = self.config, self.parts.train
        mixup = config.augmentation.mixup or 0.0
        return feed.training_batches(
            self.data, part, config.input, self.devices, mixup=mixup, start_step=start_step
        )

    def training_steps(self, network: Network) -> Steps:
        """Returns steps with a fresh optimizer of the layers that train."""
        config, steps_after, pretrained = self.config, self.steps_after, []
        on_jax = self.devices.backend == "jax"
        if on_jax and not self.devices.on_gpu and config.network.model == LITE_MODEL:
            console.warn(
                f"on a CPU, {LITE_MODEL} takes 17 times as long on JAX as on TensorFlow, "
                "because XLA computes its depthwise convolutions slowly; set "
                "KERAS_BACKEND=tensorflow, or use --model small_resnet"
            )
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
        """Returns a network's answers for a part; TrainingError if they are not numbers."""
        batches = feed.evaluation_batches(self.data, part, self.config.input, self.devices)
        answers, truths = self.steps(network).predict(batches)
        require_numbers(answers, part.name)
        return Predictions(
            task=self.task,
            dataset=self.data,
            rows=part.rows,
            probabilities=answers,
            truths=truths,
            label_names=self.data.manifest.label_names,
        )


def open_sessions(
    config: TrainConfig, open_run: Callable[[str], Path] | None = None
) -> list[Session]:
    """Sets up the devices and returns the training; of a cross-validation those of all folds.

    `open_run` returns the folder of the run of `--init`; without it, no weights are read. Nothing
    is written, so what cannot be trained is refused before a folder is made, and a fold that cannot
    be trained does not waste the time of those before it.

    Raises:
        UserError: if the configuration does not suit the data or the devices.
        tfrecord_io.ManifestError: if the dataset cannot be used, or a split is missing.
    """
    devices = configure_devices(config.devices)
    data = open_dataset(config.input.data_path, config.measures.columns)
    if cache := is_remote(data.path) and data.stored.cache:
        print(cache.describe())
    manifest, folds, init = data.manifest, config.folds, config.network.init
    first = FirstWeights.of(init, open_run(init), manifest) if init and open_run else None
    if manifest.label_kind.one_hot and manifest.num_classes == 1:
        raise UserError(
            f"{data.path} has one class, {manifest.label_names[0]}, so there is nothing to tell "
            "apart; name the classes in the build (--layout, --label_regex, or a table of --labels)"
        )
    sessions = []
    for fold in range(folds.folds or 0) if folds.is_cross_validation else [folds.fold]:
        own = config.replace(fold=fold)
        parts = choose_parts(data, own.folds)
        own = with_decisions(own, manifest.image_shape, parts.train.num_examples, devices)
        sessions.append(Session(config=own, data=data, devices=devices, parts=parts, first=first))
    return sessions

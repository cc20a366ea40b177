"""The plan of a training: every number decided, from its configuration, its data and its devices.

It is pure: nothing is built or written, so what cannot be trained is refused before a folder is
made. A cross-validation is a plan for each fold.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

from tfrecord_io.terminal.errors import UserError
from train.data.dataset import Dataset, Part, Parts, choose_parts
from train.data.options import InputOptions
from train.kinds import task_of
from train.kinds.task import Task
from train.machine.devices import Devices
from train.networks.options import TUTORIAL_MODELS
from train.training.config import TrainConfig

# Pixels a side from which on ImageNet's weights are worth their time.
_LEAST_SIDE = 96


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """One training.

    Attributes:
        config: with every decision made.
        parts: what it trains on, validates on and tests on.
        task: what it learns.
        class_weights: of each class in the loss.
        usual_epochs: how many it trains if that is not given.
    """

    config: TrainConfig
    parts: Parts
    task: Task
    class_weights: tuple[float, ...]
    usual_epochs: int

    @property
    def fold(self) -> int:
        """The fold that is held out, counted from 0."""
        return self.config.folds.fold or 0

    @functools.cached_property
    def steps_after(self) -> list[int]:
        """The number of steps done after 0, 1, 2, ... and all epochs.

        An epoch ends with the step of its last example. That step may also hold the first examples
        of the next epoch, because epochs are not rounded up to whole batches.
        """
        options = self.config.input
        return [
            math.ceil(epoch * self.parts.train.num_examples / (options.global_batch_size or 1))
            for epoch in range((options.epochs or 0) + 1)
        ]

    @property
    def fitted_part(self) -> Part | None:
        """The part to which temperature and thresholds are fitted; None for none of them."""
        # What is reported of a part must not be fitted to it.
        return self.parts.val if self.parts.test else None


def _make_plan(config: TrainConfig, data: Dataset, devices: Devices) -> Plan:
    manifest, parts = data.manifest, choose_parts(data, config.folds)
    task = task_of(manifest.label_kind)
    if manifest.label_kind.one_hot and manifest.num_classes == 1:
        raise UserError(
            f"{data.path} has one class, {manifest.label_names[0]}, so there is nothing to tell "
            "apart; name the classes in the build (--layout, --label_regex, or a table of --labels)"
        )
    counts, num_examples = data.label_counts(parts.train), parts.train.num_examples
    config = with_model(config, manifest.image_shape)
    return Plan(
        parts=parts,
        task=task,
        class_weights=task.class_weights(counts, num_examples, config.loss.class_weight_power),
        usual_epochs=usual_epochs(num_examples, config.network.fine_tunes),
        config=with_decisions(config, manifest.image_shape, num_examples, devices),
    )


def make_plans(config: TrainConfig, data: Dataset, devices: Devices) -> list[Plan]:
    """Returns the plan of a training; of a cross-validation those of all folds.

    Raises:
        UserError: if the configuration does not suit the data or the devices.
        tfrecord_io.ManifestError: if a split is missing.
    """
    folds = config.folds
    held_out = range(folds.folds or 0) if folds.is_cross_validation else [folds.fold]
    # All are made first: a fold that cannot be trained does not waste the time of those before it.
    return [_make_plan(config.replace(fold=fold), data, devices) for fold in held_out]


def with_model(config: TrainConfig, image_shape: tuple[int, int, int]) -> TrainConfig:
    """Returns the configuration with a network for (height, width, channels), if it has none.

    Small images, and networks without ImageNet's weights, learn as well from nothing.
    """
    network, (*sides, channels) = config.network, image_shape
    if network.model:
        return config
    if network.weights == "none" or min(sides) < _LEAST_SIDE or channels not in (1, 3):
        return config.replace(model="small_resnet")
    return config.replace(model="efficientnet_lite0")


def with_decisions(
    config: TrainConfig, image_shape: tuple[int, int, int], num_examples: int, devices: Devices
) -> TrainConfig:
    """Returns the configuration with every open decision made, for a training split.

    The learning rates of the result are already scaled by the number of replicas, and
    `scale_learning_rate` is False, so that a repeated run is the same on any number of
    replicas. Source of the scaling: Goyal et al. 2017, "Accurate, large minibatch SGD".

    Raises:
        UserError: if the global batch size cannot be split evenly over the replicas, or is
            larger than the training split, or an option is for another network.
    """
    network, optimizer, num_replicas = config.network, config.optimizer, devices.num_replicas
    is_tutorial, fine_tunes = network.model in TUTORIAL_MODELS, network.fine_tunes
    usual_rate = 1e-4 if is_tutorial else 3e-4
    rate = optimizer.fine_tune_learning_rate
    # Every config.json has the usual rate, and can be repeated.
    is_own_rate = rate not in (None, usual_rate)
    needs_pretrained = network.head_epochs or network.trainable_layers is not None or is_own_rate
    if needs_pretrained and not fine_tunes:
        raise UserError(
            "--head_epochs, --trainable_layers and --fine_tune_learning_rate are for pretrained "
            f"networks, and --model {network.model} with --weights none trains all layers in all "
            "epochs, at --lr; remove them"
        )
    sizes = batch_sizes(config.input, num_examples, num_replicas)
    epochs = config.input.epochs or usual_epochs(num_examples, fine_tunes)
    num_steps = math.ceil(epochs * num_examples / sizes["global_batch_size"])
    warmup_steps = math.ceil(num_steps / 20)
    if optimizer.scale_learning_rate:
        five_epochs = math.ceil(5 * num_examples / sizes["global_batch_size"])
        warmup_steps = min(five_epochs, num_steps // 2)
    # The tutorial's networks have its steps.
    decisions: dict[str, Any] = {
        "weights": network.initial_weights,
        "head_epochs": 1 if fine_tunes and is_tutorial else 0,
        "trainable_layers": 4 if fine_tunes and is_tutorial else None,
        "epochs": epochs,
        "mixup": 0.0 if fine_tunes and not is_tutorial else 0.3,
        "fine_tune_learning_rate": usual_rate,
        "weight_decay": 0.05 if optimizer.optimizer == "adamw" else 0.0,
        "warmup_steps": warmup_steps,
        # An average with this decay covers about 1 / (1 - decay) steps.
        "ema_decay": max(0.0, round(1 - 25 / num_steps, 6)),
    }
    fields = config.to_dict()
    chosen = {name: value for name, value in decisions.items() if fields[name] is None} | sizes
    if config.devices.precision == "auto":
        chosen["precision"] = devices.best_precision
    if optimizer.scale_learning_rate:
        rates = ["learning_rate"]
        rates += ["fine_tune_learning_rate"] if fine_tunes else []
        chosen |= {name: (fields | chosen)[name] * num_replicas for name in rates}
    return config.replace(**chosen, scale_learning_rate=False)


def batch_sizes(options: InputOptions, num_examples: int, num_replicas: int) -> dict[str, int]:
    """Returns `global_batch_size` and `replica_batch_size`, given or usual for a training split.

    Raises:
        UserError: if a step cannot be split evenly over the replicas, or takes more than the split.
    """
    usual = min(64 if num_examples >= 10_000 else 32, max(1, num_examples // num_replicas))
    of_step = options.global_batch_size or (options.replica_batch_size or usual) * num_replicas
    if of_step % num_replicas:
        raise UserError(
            f"--batch_size {of_step} cannot be split evenly over "
            f"{num_replicas} replicas; choose a multiple of {num_replicas}"
        )
    if of_step > num_examples:
        if options.global_batch_size:
            how = f"--batch_size {of_step}: use a smaller one"
        elif options.replica_batch_size:
            how = f"--replica_batch_size {options.replica_batch_size}: use a smaller one"
        else:
            how = f"one for each of {num_replicas} replicas: use fewer with --devices"
        raise UserError(
            f"a step takes {of_step} images, but the training split has only {num_examples}; {how}"
        )
    return {"global_batch_size": of_step, "replica_batch_size": of_step // num_replicas}


def usual_epochs(num_examples: int, fine_tunes: bool) -> int:
    """Returns how many epochs suit a training split, 3 to 300.

    The number of images shown grows with the square root of the split: 147 epochs of 537 images, 76
    of 2,000, 12 of 84,000. Only the length for the smallest split was tried on real scans.
    """
    num_shown = 3400 * math.sqrt(num_examples) / (4 if fine_tunes else 1)
    return min(max(round(num_shown / num_examples), 3), 300)

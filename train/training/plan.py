"""What is decided from the data and the devices where no flag says it; nothing is built or read."""

from __future__ import annotations

import math
from typing import Any

from tfrecord_io.terminal.errors import UserError
from train.machine.devices import Devices
from train.networks.options import TUTORIAL_MODELS
from train.training.config import TrainConfig

# Pixels a side from which on ImageNet's weights are worth their time.
_LEAST_SIDE = 96


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
    config = with_model(config, image_shape)
    network, optimizer, num_replicas = config.network, config.optimizer, devices.num_replicas
    is_tutorial, fine_tunes = network.model in TUTORIAL_MODELS, network.fine_tunes
    usual_rate, rate = 1e-4 if is_tutorial else 3e-4, optimizer.fine_tune_learning_rate
    # Every config.json has the usual rate, and can be repeated.
    is_own_rate = rate not in (None, usual_rate)
    needs_pretrained = network.head_epochs or network.trainable_layers is not None or is_own_rate
    if needs_pretrained and not fine_tunes:
        raise UserError(
            "--head_epochs, --trainable_layers and --fine_tune_learning_rate are for pretrained "
            f"networks, and --model {network.model} with --weights none trains all layers in all "
            "epochs, at --lr; remove them"
        )
    sizes = batch_sizes(config, num_examples, num_replicas)
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
    fields |= {name: value for name, value in decisions.items() if fields[name] is None} | sizes
    if config.devices.precision == "auto":
        fields["precision"] = devices.best_precision
    if optimizer.scale_learning_rate:
        fields["learning_rate"] *= num_replicas
        fields["fine_tune_learning_rate"] *= num_replicas if fine_tunes else 1
    return TrainConfig.of(**fields | {"scale_learning_rate": False})


def batch_sizes(config: TrainConfig, num_examples: int, num_replicas: int) -> dict[str, int]:
    """Returns the options of both batch sizes, given or usual; UserError if they do not suit."""
    whole, own = config.input.global_batch_size, config.input.replica_batch_size
    usual = min(64 if num_examples >= 10_000 else 32, max(1, num_examples // num_replicas))
    of_step = whole or (own or usual) * num_replicas
    if of_step % num_replicas:
        raise UserError(
            f"--batch_size {of_step} cannot be split evenly over "
            f"{num_replicas} replicas; choose a multiple of {num_replicas}"
        )
    if of_step > num_examples:
        flag = f"--batch_size {whole}" if whole else f"--replica_batch_size {own or usual}"
        raise UserError(
            f"a step takes {of_step} images, {flag} on {num_replicas} replicas, but the training "
            f"split has only {num_examples}; make it smaller, or use fewer --devices"
        )
    return {"global_batch_size": of_step, "replica_batch_size": of_step // num_replicas}


def usual_epochs(num_examples: int, fine_tunes: bool) -> int:
    """Returns how many epochs suit a training split, 3 to 300.

    The number of images shown grows with the square root of the split: 147 epochs of 537 images, 76
    of 2,000, 12 of 84,000; with pretrained weights 22, 12 and 3. Only the lengths for the smallest
    split were tried on real scans.
    """
    num_shown = (520 if fine_tunes else 3400) * math.sqrt(num_examples)
    return min(max(round(num_shown / num_examples), 3), 300)

"""Optimizers and learning-rate schedules."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from train.config import TrainConfig


class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that rises linearly to its peak, then stays or falls along a cosine.

    Sources: Goyal et al. 2017, "Accurate, large minibatch SGD" (linear warm-up); Loshchilov and
    Hutter 2017, "SGDR" (cosine).

    Attributes:
        peak: learning rate after the warm-up.
        warmup_steps: length of the warm-up; 0 for none. An array of lengths gives an array of
            rates, of the same shape.
        decay_steps: steps of the cosine from the peak to zero, or an array; None to stay at the
            peak.
    """

    def __init__(
        self,
        peak: float,
        warmup_steps: int | np.ndarray,
        decay_steps: int | np.ndarray | None,
    ) -> None:
        super().__init__()
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.decay_steps = decay_steps

    def __call__(self, step):
        """Returns the learning rate of a step (counted from 0) as a float32 scalar or array."""
        ops = keras.ops
        step, warmup_steps = (ops.cast(steps, "float32") for steps in (step, self.warmup_steps))
        rate = ops.convert_to_tensor(self.peak, dtype="float32")
        if self.decay_steps is not None:
            decay_steps = ops.maximum(ops.cast(self.decay_steps, "float32"), 1.0)
            done = ops.clip((step - warmup_steps) / decay_steps, 0.0, 1.0)
            rate = rate * 0.5 * (1.0 + ops.cos(math.pi * done))
        return rate * ops.minimum((step + 1.0) / ops.maximum(warmup_steps, 1.0), 1.0)


def make_optimizer(
    config: TrainConfig, *, learning_rate: float, num_steps: int
) -> keras.optimizers.Optimizer:
    """Returns a fresh optimizer for one phase of training.

    Args:
        config: the resolved configuration.
        learning_rate: peak of the schedule.
        num_steps: steps of the phase; a cosine reaches zero at their end.
    """
    warmup_steps = min(config.warmup_steps or 0, num_steps)
    rate: float | WarmupSchedule = learning_rate
    if warmup_steps or config.schedule == "cosine":
        decay_steps = num_steps - warmup_steps if config.schedule == "cosine" else None
        rate = WarmupSchedule(learning_rate, warmup_steps, decay_steps)
    return _build(config, rate)


def make_stacked_optimizer(
    configs: Sequence[TrainConfig], *, learning_rate: float, num_steps: Sequence[int]
) -> keras.optimizers.Optimizer:
    """Returns one optimizer for many runs whose variables are stacked, each its own in effect.

    All update rules treat each weight for itself, so stacked weights are updated as separate ones
    are. Only the length of the runs differs, and with it the schedule and the moving average.

    Args:
        configs: the resolved configuration of each run; they differ in nothing else that an
            optimizer needs.
        learning_rate: peak of the schedule.
        num_steps: steps of each run.

    Returns:
        an optimizer of variables that have the runs as the first of three axes.
    """
    config = configs[0]
    lengths = _first_of_three_axes(num_steps)
    warmup_steps = np.minimum(_first_of_three_axes([c.warmup_steps or 0 for c in configs]), lengths)
    decay_steps = lengths - warmup_steps if config.schedule == "cosine" else None
    decays = _first_of_three_axes([c.ema_decay or 0.0 for c in configs])
    optimizer = _build(
        dataclasses.replace(config, ema_decay=float(decays.max())),
        WarmupSchedule(learning_rate, warmup_steps, decay_steps),
    )
    # Keras' constructor accepts a single number.
    optimizer.ema_momentum = decays
    return optimizer


def _first_of_three_axes(values: Sequence[float]) -> np.ndarray:
    return np.array(values, np.float32)[:, np.newaxis, np.newaxis]


def _build(config: TrainConfig, rate: float | WarmupSchedule) -> keras.optimizers.Optimizer:
    # Keras averages only the variables that the optimizer updates. The other variables that
    # training changes, the statistics of batch normalization, are moving averages already.
    options: dict[str, Any] = {"weight_decay": config.weight_decay or None}
    if config.ema_decay:
        options |= {"use_ema": True, "ema_momentum": config.ema_decay}
    optimizer: keras.optimizers.Optimizer
    if config.optimizer == "sgd":
        optimizer = keras.optimizers.SGD(rate, momentum=0.9, **options)
    elif config.optimizer == "adam" or not config.weight_decay:
        # Keras' AdamW requires a decay; without one it is the same as Adam.
        optimizer = keras.optimizers.Adam(rate, **options)
    else:
        optimizer = keras.optimizers.AdamW(rate, **options)
    # Only kernels decay; biases and scales do not need it.
    optimizer.exclude_from_weight_decay(var_names=["bias", "beta", "gamma"])
    if config.precision == "float16":
        # Small gradients underflow in float16, but not in bfloat16, which has the range of float32.
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer


@contextlib.contextmanager
def averaged_weights(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]
) -> Iterator[None]:
    """Sets trainable variables to their moving averages inside the block, if there are any.

    Args:
        optimizer: the optimizer that updates the variables.
        variables: all variables that it updates.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not inner.use_ema:
        yield
        return
    current = [variable.numpy() for variable in variables]
    inner.finalize_variable_values(variables)
    try:
        yield
    finally:
        for variable, value in zip(variables, current, strict=True):
            variable.assign(value)

"""Optimizers and learning-rate schedules."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from train.networks.options import OptimizerOptions


class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that rises linearly to its peak, then stays or falls along a cosine.

    Sources: Goyal et al. 2017, "Accurate, large minibatch SGD" (linear warm-up); Loshchilov and
    Hutter 2017, "SGDR" (cosine).

    Attributes:
        peak: learning rate after the warm-up.
        warmup_steps: length of the warm-up; 0 for none.
        decay_steps: steps of the cosine from the peak to zero; None to stay at the peak.
    """

    def __init__(self, peak: float, warmup_steps: int, decay_steps: int | None) -> None:
        super().__init__()
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.decay_steps = decay_steps

    def __call__(self, step):
        """Returns the learning rate of a step (counted from 0) as a float32 scalar."""
        ops = keras.ops
        step = ops.cast(step, "float32")
        rate = ops.convert_to_tensor(self.peak, dtype="float32")
        if self.decay_steps is not None:
            done = ops.clip((step - self.warmup_steps) / max(self.decay_steps, 1), 0.0, 1.0)
            rate = rate * 0.5 * (1.0 + ops.cos(math.pi * done))
        return rate * ops.minimum((step + 1.0) / max(self.warmup_steps, 1), 1.0)


class _TwoRates:
    """Mixed into an optimizer: pretrained variables get a share of the learning rate.

    Attributes:
        is_pretrained: of each variable that the optimizer updates.
        share: of the learning rate, for those that are.
        head_steps: steps in which their share is zero.
    """

    is_pretrained: Sequence[bool] = ()
    share: float = 1.0
    head_steps: int = 0

    def update_step(self, gradient, variable, learning_rate) -> None:
        """Updates a variable, which also decays by its own rate."""
        ops = keras.ops
        if any(self.is_pretrained) and self.is_pretrained[self._get_variable_index(variable)]:
            share = ops.where(self.iterations < self.head_steps, 0.0, self.share)
            learning_rate = learning_rate * ops.cast(share, "float32")
        if self.weight_decay and self._use_weight_decay(variable):
            rate = ops.cast(learning_rate, variable.dtype)
            self.assign_sub(variable, variable * self.weight_decay * rate)
        super().update_step(gradient, variable, learning_rate)

    def _apply_weight_decay(self, variables) -> None:
        """Does nothing: Keras lets all variables decay by one rate, see `update_step`."""


def make_optimizer(
    options: OptimizerOptions,
    *,
    precision: str,
    num_steps: int,
    is_pretrained: Sequence[bool] = (),
    head_steps: int = 0,
) -> keras.optimizers.Optimizer:
    """Returns a fresh optimizer.

    Args:
        options: resolved.
        precision: arithmetic of the layers; in float16 the loss is scaled.
        num_steps: of the training; a cosine reaches zero at their end.
        is_pretrained: of each variable to update: whether its rate is the one for fine-tuning.
        head_steps: first steps, in which these variables stay as they are.
    """
    warmup_steps = min(options.warmup_steps or 0, num_steps)
    rate: float | WarmupSchedule = options.learning_rate
    if warmup_steps or options.schedule == "cosine":
        decay_steps = num_steps - warmup_steps if options.schedule == "cosine" else None
        rate = WarmupSchedule(options.learning_rate, warmup_steps, decay_steps)
    # Keras averages only the variables that the optimizer updates. The other variables that
    # training changes, the statistics of batch normalization, are moving averages already.
    arguments: dict[str, Any] = {"weight_decay": options.weight_decay or None}
    if options.ema_decay:
        arguments |= {"use_ema": True, "ema_momentum": options.ema_decay}
    kind: type[keras.optimizers.Optimizer]
    if options.optimizer == "sgd":
        kind, arguments["momentum"] = keras.optimizers.SGD, 0.9
    else:
        # Keras' AdamW requires a decay; without one it is the same as Adam.
        is_plain = options.optimizer == "adam" or not options.weight_decay
        kind = keras.optimizers.Adam if is_plain else keras.optimizers.AdamW
    optimizer = type(kind.__name__, (_TwoRates, kind), {})(rate, **arguments)
    optimizer.is_pretrained, optimizer.head_steps = tuple(is_pretrained), head_steps
    optimizer.share = (options.fine_tune_learning_rate or 0.0) / options.learning_rate
    # Only kernels decay; biases and scales do not need it.
    optimizer.exclude_from_weight_decay(var_names=["bias", "beta", "gamma"])
    if precision == "float16":
        # Small gradients underflow in float16, but not in bfloat16, which has the range of float32.
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer


@contextlib.contextmanager
def averaged_weights(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]
) -> Iterator[None]:
    """Sets all variables of an optimizer to their moving averages in the block, if it has any."""
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

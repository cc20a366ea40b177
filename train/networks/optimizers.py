"""Optimizers and learning-rate schedules."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras

from train.networks.options import OptimizerOptions


class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that rises linearly to its peak, then stays or falls along a cosine.

    The cosine takes `decay_steps` from the peak to zero; with None the rate stays. Sources: Goyal
    et al. 2017, "Accurate, large minibatch SGD" (warm-up); Loshchilov and Hutter 2017, "SGDR".
    """

    def __init__(self, peak: float, warmup_steps: int, decay_steps: int | None) -> None:
        super().__init__()
        self.peak, self.warmup_steps, self.decay_steps = peak, warmup_steps, decay_steps

    def __call__(self, step):
        """Returns the learning rate of a step (counted from 0) as a float32 scalar."""
        ops = keras.ops
        step = ops.cast(step, "float32")
        rate = ops.convert_to_tensor(self.peak, dtype="float32")
        if self.decay_steps is not None:
            done = ops.clip((step - self.warmup_steps) / max(self.decay_steps, 1), 0.0, 1.0)
            rate = rate * 0.5 * (1.0 + ops.cos(math.pi * done))
        return rate * ops.minimum((step + 1.0) / max(self.warmup_steps, 1), 1.0)


class _OwnRates:
    """Mixed into an optimizer: pretrained variables get a share of the learning rate.

    Kernels decay by their own rate, where Keras' decay knows only one rate. `pretrained` has the
    paths of the variables with the `share`, which is zero in the first `head_steps`.
    """

    decay: float = 0.0
    pretrained: frozenset[str] = frozenset()
    share: float = 1.0
    head_steps: int = 0

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Makes the state of these variables; `update_step` finds each by its index."""
        self._is_pretrained = tuple(variable.path in self.pretrained for variable in variables)
        undecayed = ("bias", "beta", "gamma")
        self._decays = tuple(
            variable.name not in undecayed and self.decay > 0 for variable in variables
        )
        super().build(variables)

    def update_step(self, gradient, variable, learning_rate) -> None:
        """Updates a variable, which also decays by its own rate."""
        ops, place = keras.ops, self._get_variable_index(variable)
        if self._is_pretrained[place]:
            share = ops.where(self.iterations < self.head_steps, 0.0, self.share)
            learning_rate = learning_rate * ops.cast(share, "float32")
        if self._decays[place]:
            rate = ops.cast(learning_rate, variable.dtype)
            self.assign_sub(variable, variable * self.decay * rate)
        super().update_step(gradient, variable, learning_rate)


def make_optimizer(
    options: OptimizerOptions,
    *,
    num_steps: int,
    pretrained: Iterable[str] = (),
    head_steps: int = 0,
) -> keras.optimizers.Optimizer:
    """Returns a fresh optimizer; the options are resolved.

    A cosine reaches zero after `num_steps`. `pretrained` are the paths of the variables whose rate
    is the one for fine-tuning; in the first `head_steps` these stay as they are.
    """
    warmup_steps = min(options.warmup_steps or 0, num_steps)
    rate: float | WarmupSchedule = options.learning_rate
    if warmup_steps or options.schedule == "cosine":
        decay_steps = num_steps - warmup_steps if options.schedule == "cosine" else None
        rate = WarmupSchedule(options.learning_rate, warmup_steps, decay_steps)
    # Keras averages what the optimizer updates; statistics of batch normalization are averages.
    arguments: dict[str, Any] = {}
    if options.ema_decay:
        arguments |= {"use_ema": True, "ema_momentum": options.ema_decay}
    kind: type[keras.optimizers.Optimizer] = keras.optimizers.Adam
    if options.optimizer == "sgd":
        kind, arguments["momentum"] = keras.optimizers.SGD, 0.9
    optimizer = type(kind.__name__, (_OwnRates, kind), {})(rate, **arguments)
    optimizer.decay = options.weight_decay or 0.0
    optimizer.pretrained, optimizer.head_steps = frozenset(pretrained), head_steps
    optimizer.share = (options.fine_tune_learning_rate or 0.0) / options.learning_rate
    return optimizer


@contextlib.contextmanager
def averaged_weights(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]
) -> Iterator[None]:
    """Sets all variables of an optimizer to their moving averages in the block, if it has any."""
    if not optimizer.use_ema:
        yield
        return
    current = [variable.numpy() for variable in variables]
    optimizer.finalize_variable_values(variables)
    try:
        yield
    finally:
        for variable, value in zip(variables, current, strict=True):
            variable.assign(value)

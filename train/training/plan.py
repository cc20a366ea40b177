"""The plan of a training: every number decided, from its configuration, its data and its devices.

It is pure: nothing is built or written, so what cannot be trained is refused before a folder is
made. A cross-validation is a plan for each fold and seed.
"""

from __future__ import annotations

import dataclasses
import functools
import math

from tfrecord_io.terminal.errors import UserError
from train.data.dataset import Dataset, Parts, choose_parts
from train.kinds.registry import task_of
from train.kinds.task import Task
from train.machine.devices import Devices
from train.training.config import TrainConfig


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """One training.

    Attributes:
        config: with every decision made.
        parts: what it trains on, validates on and tests on.
        task: what it learns.
    """

    config: TrainConfig
    parts: Parts
    task: Task

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
    def class_weights(self) -> tuple[float, ...]:
        """The weight of each class in the loss."""
        options, learnt = self.config.loss, self.parts.train
        power = options.class_weight_power if options.class_weights == "balanced" else 0.0
        return self.task.class_weights(learnt.label_counts, learnt.num_examples, power)


def make_plans(config: TrainConfig, data: Dataset, devices: Devices) -> list[Plan]:
    """Returns the plan of a training; of a cross-validation one for each fold and seed.

    All folds of the first seed come first.

    Raises:
        UserError: if the configuration does not suit the data or the devices.
        tfrecord_io.ManifestError: if a split is missing.
    """
    # They are used at the end of a run; a wrong one is told now.
    manifest = data.manifest
    views = task_of(manifest.label_kind).views(manifest.label_names)
    config.measures.prevalences([view.name for view in views])
    folds, seed = config.folds, config.input.seed
    if not folds.is_cross_validation:
        return [_make_plan(config, data, devices)]
    # A fold that cannot be trained does not waste the time of those before it.
    first = [
        _make_plan(config.replace(fold=fold, seeds=1), data, devices)
        for fold in range(folds.folds or 0)
    ]
    return [
        dataclasses.replace(plan, config=plan.config.replace(seed=each))
        for each in range(seed, seed + folds.seeds)
        for plan in first
    ]


def _make_plan(config: TrainConfig, data: Dataset, devices: Devices) -> Plan:
    config = config.with_model(data.manifest.image_shape)
    parts = choose_parts(data, config.folds)
    # Labels from which nothing can be learnt are refused here.
    task = task_of(data.manifest.label_kind).fitted(data, parts.train)
    if config.loop.best_by == "val_accuracy" and task.quantity != "accuracy":
        raise UserError("--best_by val_accuracy needs classes or labels; use val_loss")
    config = config.resolve(parts.train.num_examples, devices)
    return Plan(config=config, parts=parts, task=task)

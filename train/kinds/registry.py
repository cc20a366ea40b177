"""The task of each kind of label."""

from __future__ import annotations

import numpy as np

from tfrecord_io.kinds.label_kind import LabelKind
from tfrecord_io.reading.mapped import MappedDataset
from train.data.parts import Part
from train.errors import ConfigError
from train.kinds.classes import CLASSES
from train.kinds.grades import GRADES
from train.kinds.multi_label import MULTI_LABEL
from train.kinds.numbers import NUMBER, Number
from train.kinds.task import Task

TASKS: tuple[Task, ...] = (CLASSES, GRADES, MULTI_LABEL, NUMBER)


def task_of(kind: LabelKind) -> Task:
    """Returns the task of a kind of label; of numbers, one that has not seen training images."""
    return {task.kind: task for task in TASKS}[kind]


def training_task(kind: LabelKind, data: str, part: Part) -> Task:
    """Returns the task to train.

    Args:
        kind: of the labels.
        data: folder of the dataset.
        part: the examples to learn from; one counts in the mean and the standard deviation of
            numbers as it does in the loss.

    Raises:
        ConfigError: if all examples have the same number, or their squares are too large.
    """
    if not kind.is_number:
        return task_of(kind)
    dataset = MappedDataset(data, part.splits)
    places = range(len(dataset)) if part.examples is None else part.examples
    numbers = dataset.labels(places)[:, 0].astype(np.float64)
    if numbers.min() == numbers.max():
        raise ConfigError(
            f"all training images of {data} have the number {numbers[0]:g}, so there is "
            "nothing to learn"
        )
    mean = np.average(numbers, weights=part.weights)
    variance = np.average(np.square(numbers - mean), weights=part.weights)
    if variance > np.finfo(np.float32).max:
        raise ConfigError(
            f"the numbers of {data} differ by up to {np.ptp(numbers):g}, whose square float32 "
            "cannot hold; give them in a larger unit, and build again"
        )
    return Number(float(mean), float(np.sqrt(variance)))

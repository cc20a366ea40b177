"""The task of each kind of label."""

from __future__ import annotations

import numpy as np

from tfrecord_io.kinds.label_kind import LabelKind
from tfrecord_io.reading.mapped import MappedDataset
from tfrecord_io.stores.folder import DataPath
from train.data.parts import Part
from train.errors import ConfigError
from train.kinds.classes import CLASSES
from train.kinds.grades import GRADES
from train.kinds.multi_label import MULTI_LABEL
from train.kinds.numbers import NUMBER
from train.kinds.task import Task

TASKS: tuple[Task, ...] = (CLASSES, GRADES, MULTI_LABEL, NUMBER)


def task_of(kind: LabelKind) -> Task:
    """Returns the task of a kind of label, before it has seen training labels."""
    return {task.kind: task for task in TASKS}[kind]


def training_task(kind: LabelKind, data: str | DataPath, part: Part) -> Task:
    """Returns the task to train.

    Args:
        kind: of the labels.
        data: folder of the dataset.
        part: the examples to learn from.

    Raises:
        ConfigError: if nothing can be learnt from their labels.
    """

    def read_labels() -> np.ndarray:
        dataset = MappedDataset(data, part.splits)
        return dataset.labels(range(len(dataset)) if part.examples is None else part.examples)

    try:
        return task_of(kind).fitted(read_labels, part.weights)
    except ValueError as error:
        raise ConfigError(f"{data}: {error}") from None

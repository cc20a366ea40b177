"""The task of each kind of label."""

from __future__ import annotations

import functools

from tfrecord_io.kinds.label_kind import LabelKind
from train.data.dataset import Dataset, Part
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


def training_task(dataset: Dataset, part: Part) -> Task:
    """Returns the task to train.

    Args:
        dataset: to learn.
        part: the examples to learn from.

    Raises:
        ConfigError: if nothing can be learnt from their labels.
    """
    read_labels = functools.partial(dataset.labels, part)
    try:
        return task_of(dataset.manifest.label_kind).fitted(read_labels, part.weights)
    except ValueError as error:
        raise ConfigError(f"{dataset.path}: {error}") from None

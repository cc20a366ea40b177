"""What a network learns and answers: each module has the loss, measures and words of one kind."""

from __future__ import annotations

from tfrecord_io.format.kinds import LabelKind
from train.kinds.classes import CLASSES, GRADES
from train.kinds.multi_label import MULTI_LABEL
from train.kinds.task import Task

TASKS: tuple[Task, ...] = (CLASSES, GRADES, MULTI_LABEL)


def task_of(kind: LabelKind) -> Task:
    """Returns the task of a kind of label."""
    return {task.kind: task for task in TASKS}[kind]

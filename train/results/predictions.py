"""The predictions of a network for some examples, and their table predictions.csv."""

from __future__ import annotations

import csv
import dataclasses
import io
from pathlib import Path

import numpy as np

from tfrecord_io.files import atomic_write
from tfrecord_io.kinds.label_kind import LabelKind
from tfrecord_io.printing import csv_cell
from train.data.examples import Examples
from train.data.parts import Part
from train.kinds.task import Answers, Task

PREDICTIONS_NAME = "predictions.csv"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Predictions(Answers):
    """The predictions of a network for some examples.

    Attributes:
        task: what the network answers.
        examples: keys, patients and paths of the examples.
        part: the examples' place in the dataset; None if they come from several runs.
        uncalibrated: probabilities before the temperature; None if there is no temperature.
    """

    task: Task
    examples: Examples
    part: Part | None = None
    uncalibrated: np.ndarray | None = None


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Writes a table of key, path, patient, label, predicted label and probabilities."""
    task, examples = predictions.task, predictions.examples
    # Labels are named as their columns are, so that `read_predictions` finds them.
    names = [csv_cell(name) for name in predictions.label_names]
    labels, answers = (
        task.texts(truths, names)
        for truths in (predictions.truths, task.chosen(predictions.probabilities))
    )
    if not task.gives_probabilities:
        # As numbers, so that a minus does not look like the beginning of a formula.
        labels, answers = (list(map(float, texts)) for texts in (labels, answers))
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("key", "path", "patient", "label", "predicted", *names))
    unknown = ("",) * len(labels)
    for key, row, *values in zip(
        examples.keys,
        predictions.probabilities,
        examples.paths or unknown,
        examples.patients or unknown,
        labels,
        answers,
        strict=True,
    ):
        cells = (csv_cell(value) if isinstance(value, str) else value for value in values)
        numbers = (f"{probability:{task.digits}}" for probability in row)
        writer.writerow((key, *cells, *numbers))
    with atomic_write(path) as file:
        file.write(text.getvalue().encode("utf-8", "surrogateescape"))


def read_predictions(
    path: Path, num_labels: int, kind: LabelKind
) -> tuple[np.ndarray, np.ndarray, Examples]:
    """Returns the content of a table that `write_predictions` wrote.

    Args:
        path: path of the table.
        num_labels: labels of the dataset; that many last columns are the probabilities.
        kind: of the labels.

    Returns:
        (probabilities float32 [num_examples, num_labels], labels as records have them, float32
        [num_examples, num_labels], examples).
    """
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        header, *rows = csv.reader(file)
    keys, paths, patients = (tuple(row[column] for row in rows) for column in range(3))
    return (
        np.array([row[-num_labels:] for row in rows], np.float32),
        kind.vectors([row[3] for row in rows], header[-num_labels:]),
        Examples(
            keys=keys,
            patients=patients if any(patients) else None,
            paths=paths if any(paths) else None,
        ),
    )

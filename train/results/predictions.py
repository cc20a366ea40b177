"""The predictions of a network for some examples, and their files.

predictions.csv is for people. predictions.npz has the same rows in full precision.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np

from tfrecord_io.format.groups import Groups
from tfrecord_io.stores.files import atomic_write
from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.printing import csv_cell
from train.data.dataset import Dataset
from train.kinds.task import Answers, Task

PREDICTIONS_NAME = "predictions.csv"
EXACT_NAME = "predictions.npz"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Predictions(Answers):
    """The predictions of a network for some examples.

    Attributes:
        rows: int64 [num_examples], their places in it, see `Dataset.table`.
    """

    task: Task
    dataset: Dataset
    rows: np.ndarray

    @property
    def groups(self) -> Groups:
        """Which of the examples belong together."""
        return self.dataset.groups.take(self.rows)

    def values(self, column: str) -> list[Any]:
        """Returns what a column of the table of examples says of each; None where unknown."""
        return self.dataset.values(column, self.rows)


def write_predictions(directory: Path, predictions: Predictions) -> None:
    """Writes a table of key, path, patient, label, predicted label and probabilities.

    Beside it are the same in full precision, and `files`, the hashes of the images' files.
    """
    task = predictions.task
    names = [csv_cell(name) for name in predictions.label_names]
    chosen = task.chosen(predictions.probabilities)
    texts = (task.texts(labels, names) for labels in (predictions.truths, chosen))
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("key", "path", "patient", "label", "predicted", *names))
    columns = *map(predictions.values, ("key", "path", "patient")), *texts
    rows = zip(predictions.probabilities, *columns, strict=True)
    for probabilities, key, path, patient, label, answer in rows:
        outputs = (f"{number:.6f}" for number in probabilities)
        identity = (csv_cell(value or "") for value in (path, patient))
        writer.writerow((key, *identity, csv_cell(label), csv_cell(answer), *outputs))
    with atomic_write(directory / PREDICTIONS_NAME) as file:
        file.write(text.getvalue().encode("utf-8", "surrogateescape"))

    exact = {"probabilities": predictions.probabilities, "truths": predictions.truths}
    for name, column in {"keys": "key", "patients": "patient", "files": "file_xxh3"}.items():
        exact[name] = np.array([value or "" for value in predictions.values(column)], str)
    with atomic_write(directory / EXACT_NAME) as file:
        np.savez(file, **exact)


def read_predictions(directory: Path) -> dict[str, np.ndarray]:
    """Returns the arrays `keys`, `probabilities`, `truths`, `patients` and `files`.

    Raises:
        UserError: if another version of this program wrote them.
    """
    with np.load(path := directory / EXACT_NAME) as file:
        exact = dict(file)
    if exact["truths"].shape != exact["probabilities"].shape:
        raise UserError(
            f"{path} is of another version of this program; train again in another --workdir, or "
            "evaluate again"
        )
    return exact

"""A number for each image: a linear output and the squared error."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfrecord_io.kinds import numbers
from train.kinds import scores, stories
from train.kinds.task import Task


@dataclasses.dataclass(frozen=True)
class Number(Task):
    """A number for each image: a linear output and the squared error.

    The network learns the number minus the mean of the training images, over their standard
    deviation, and the exported model turns it back, so its answers have the unit of the labels.

    Attributes:
        mean: of the training images, see `training_task`.
        std: their standard deviation.
    """

    mean: float = 0.0
    std: float = 1.0

    kind, story, quantity = numbers.NUMBER, stories.NumberStory(), "mae"
    measured_by = scores.NumberScorer
    # Significant digits: the unit can be as small or as large as it likes.
    gives_probabilities, digits = False, ".9g"

    def activation(self, name: str | None = None) -> keras.layers.Layer:
        return keras.layers.Rescaling(
            self.std, offset=self.mean, dtype="float32", name=name or "unit"
        )

    def logits_of(self, probabilities: Any) -> Any:
        return (probabilities - self.mean) / self.std

    def losses(self, labels: Any, logits: Any, class_weights: Any, smoothing: float) -> Any:
        errors = logits - self.logits_of(labels)
        squares = keras.ops.square(errors)
        reported = squares * self.std**2, keras.ops.abs(errors) * self.std
        return tuple(values[..., 0] for values in (squares, *reported))

    def class_weights(self, counts: Sequence[int], num_examples: int, power: float) -> tuple:
        return ()

    def truths(self, labels: np.ndarray) -> np.ndarray:
        return labels[:, 0]

    def chosen(self, probabilities: np.ndarray) -> np.ndarray:
        return probabilities[:, 0]

    def mean_loss(self, probabilities: np.ndarray, truths: np.ndarray) -> float:
        return float(np.square(probabilities[:, 0].astype(np.float64) - truths).mean())

    def progress(self, probabilities: np.ndarray, truths: np.ndarray) -> float:
        return float(np.abs(probabilities[:, 0].astype(np.float64) - truths).mean())

    def texts(self, truths: np.ndarray, label_names: Sequence[str]) -> list[str]:
        return [numbers.number_text(str(truth)) or "" for truth in truths]


NUMBER = Number()

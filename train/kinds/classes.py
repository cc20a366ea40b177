"""One class for each image: softmax and cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfrecord_io.kinds import classes
from train.kinds import scores, stories
from train.kinds.task import LEAST_PROBABILITY, Task, balanced_weights
from train.kinds.temperature import apply_temperature


class Classes(Task):
    """One class for each image: softmax and cross-entropy."""

    kind, story, measured_by = classes.CLASSES, stories.ClassStory(), scores.ClassScorer

    def activation(self, name: str | None = None) -> keras.layers.Layer:
        # Probabilities are always float32: in reduced precision they are rounded too much.
        return keras.layers.Softmax(dtype="float32", name=name or "softmax")

    def logits_of(self, probabilities: Any) -> Any:
        return keras.ops.log(keras.ops.maximum(probabilities, LEAST_PROBABILITY))

    def losses(self, labels: Any, logits: Any, class_weights: Any, smoothing: float) -> Any:
        ops = keras.ops
        weights = ops.sum(labels * np.asarray(class_weights, np.float32), axis=-1)
        smooth = labels * (1 - smoothing) + smoothing / labels.shape[-1]
        # Not Keras' loss, which warns of a dataset of one class.
        log_probabilities = ops.log_softmax(logits)
        is_right = ops.argmax(labels, -1) == ops.argmax(logits, -1)
        return (
            -ops.sum(smooth * log_probabilities, axis=-1) * weights,
            -ops.sum(labels * log_probabilities, axis=-1),
            ops.cast(is_right, "float32"),
        )

    def class_weights(self, counts: Sequence[int], num_examples: int, power: float) -> tuple:
        return balanced_weights(counts, power)

    def truths(self, labels: np.ndarray) -> np.ndarray:
        return labels.argmax(-1)

    def has(self, truths: np.ndarray, num_labels: int) -> np.ndarray:
        return truths[:, None] == np.arange(num_labels)

    def chosen(self, probabilities: np.ndarray) -> np.ndarray:
        return probabilities.argmax(-1)

    def choices(
        self, probabilities: np.ndarray, truths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return probabilities, truths

    def cool(self, probabilities: np.ndarray, temperature: float) -> np.ndarray:
        return apply_temperature(probabilities, temperature)


CLASSES = Classes()

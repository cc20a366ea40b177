"""Any number of labels for each image: a sigmoid and a binary cross-entropy for each label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfrecord_io.kinds import multi_label
from train.kinds import scores, stories
from train.kinds.task import LEAST_PROBABILITY, Task, balanced_weights
from train.kinds.temperature import apply_temperature


class MultiLabel(Task):
    """Any number of labels for each image: a sigmoid and a binary cross-entropy for each label."""

    kind, story = multi_label.MULTI_LABEL, stories.LabelStory()
    measured_by = scores.LabelScorer

    def activation(self, name: str | None = None) -> keras.layers.Layer:
        return keras.layers.Activation("sigmoid", dtype="float32", name=name or "sigmoid")

    def logits_of(self, probabilities: Any) -> Any:
        ops = keras.ops
        with_label, without = (
            ops.log(ops.maximum(values, LEAST_PROBABILITY))
            for values in (probabilities, 1.0 - probabilities)
        )
        return with_label - without

    def losses(self, labels: Any, logits: Any, class_weights: Any, smoothing: float) -> Any:
        ops = keras.ops
        without, with_label = np.moveaxis(np.asarray(class_weights, np.float32), -1, 0)
        weights = labels * with_label + (1 - labels) * without

        def entropies(labels: Any) -> Any:
            # From logits, because the sigmoid of a sure answer is rounded to 0 or 1.
            return -(labels * ops.log_sigmoid(logits) + (1 - labels) * ops.log_sigmoid(-logits))

        smooth = labels * (1 - smoothing) + smoothing / 2
        is_right = ops.cast(ops.equal(labels >= 0.5, logits >= 0), "float32")
        return (
            ops.mean(entropies(smooth) * weights, axis=-1),
            ops.mean(entropies(labels), axis=-1),
            ops.mean(is_right, axis=-1),
        )

    def class_weights(self, counts: Sequence[int], num_examples: int, power: float) -> tuple:
        # Of each label, the weight of the examples without it and of those with it.
        return tuple(balanced_weights((num_examples - count, count), power) for count in counts)

    def truths(self, labels: np.ndarray) -> np.ndarray:
        return labels > 0

    def has(self, truths: np.ndarray, num_labels: int) -> np.ndarray:
        return truths

    def chosen(self, probabilities: np.ndarray) -> np.ndarray:
        return probabilities >= scores.LABEL_THRESHOLD

    def choices(
        self, probabilities: np.ndarray, truths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return _pairs(probabilities).reshape(-1, 2), truths.ravel().astype(np.int64)

    def cool(self, probabilities: np.ndarray, temperature: float) -> np.ndarray:
        return apply_temperature(_pairs(probabilities), temperature)[..., 1]

    def match(self, places: np.ndarray, num_labels: int) -> tuple[np.ndarray, np.ndarray]:
        # Whether an image has a label that its dataset does not name is not known.
        return places, np.arange(len(places))


MULTI_LABEL = MultiLabel()


def _pairs(probabilities: np.ndarray) -> np.ndarray:
    """Returns [..., 2]: the probabilities of being without a label and of having it.

    A sigmoid that is rounded to 1 leaves 0 for the other side, whose logarithm would outweigh all
    others: like `logits_of`, this keeps a least probability.
    """
    pairs = np.stack([1 - probabilities, probabilities], axis=-1)
    return np.maximum(pairs, LEAST_PROBABILITY)

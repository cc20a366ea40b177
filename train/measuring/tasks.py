"""What a network learns and answers, by the kind of the dataset's labels.

A `Task` is the one place where the kind decides; the other modules ask the task of their dataset:

    models       activation, logits_of     how logits become the answer that is exported
    steps        losses                    what a step minimizes, and what it reports
    trainer      class_weights, truths     weights in the loss; labels as the measures take them
                 mean_loss, progress       what history.json says of the validation split
    calibration  choices, cool             answers as choices among classes; the temperature
    run_results  scorer, has               the measures of metrics.json
    predictions  chosen, texts             the labels in predictions.csv
    evaluate     match                     labels of another dataset
    report       story                     what the page says about the result

Another kind of label is a subclass of `Task` here, a `Scorer` in `scores` and a `Story` in
`stories`.

"Truths" are the labels of examples as the measures take them: for classes int64 [num_examples],
for several labels bool [num_examples, num_labels], for a number float32 [num_examples].

A task of numbers gives no probabilities: its outputs are numbers in the unit of the labels. `has`,
`choices`, `cool` and `fit_temperature` are not called for it.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfrecord_io import label_kinds
from tfrecord_io.label_kinds import LabelKind
from tfrecord_io.reading.mapped import MappedDataset
from train.config import ConfigError
from train.data.parts import Part
from train.measuring import calibration, metrics, scores, stories

# Smallest probability whose logarithm is taken.
_LEAST_PROBABILITY = 1e-7


class Task(abc.ABC):
    """What a network learns and answers.

    Attributes:
        kind: of the dataset's labels.
        story: what the page of a run says about the results.
        measured_by: what measures predictions.
        quantity: name in history.json of what `losses` reports beside the loss.
        gives_probabilities: whether the outputs are probabilities.
        digits: format of the outputs and their measures in files.
    """

    kind: LabelKind
    story: stories.Story
    measured_by: type[scores.Scorer]
    quantity: str = "accuracy"
    gives_probabilities: bool = True
    digits: str = metrics.SHARE_DIGITS

    @abc.abstractmethod
    def activation(self, name: str | None = None) -> keras.layers.Layer:
        """Returns a layer: logits [batch, num_labels] → float32 probabilities, or numbers."""

    @abc.abstractmethod
    def logits_of(self, probabilities: Any) -> Any:
        """Returns finite logits that the activation turns into these probabilities.

        Args:
            probabilities: a tensor float32 [batch, num_labels].
        """

    @abc.abstractmethod
    def losses(self, labels: Any, logits: Any, class_weights: Any, smoothing: float) -> Any:
        """Returns what a training step minimizes and what it reports of each example.

        Args:
            labels: float32 [..., num_labels], as the records have them, or mixed.
            logits: float32 [..., num_labels].
            class_weights: what `class_weights` returned.
            smoothing: share of each label that is spread evenly over all that it could be.
                Source: Szegedy et al. 2016, "Rethinking the Inception architecture", section 7.

        Returns:
            (loss with weights and smoothing, loss without them in nats, share of the answers that
            are right), float32 [...] each. Of numbers the second is the squared and the third the
            absolute error.
        """

    @abc.abstractmethod
    def class_weights(self, counts: Sequence[int], num_examples: int, power: float) -> tuple:
        """Returns the weights of labels in the loss; their mean over the examples is 1.

        Args:
            counts: training examples with each label.
            num_examples: training examples.
            power: 0 for equal weights, 1 for weights inverse to the frequency.
        """

    @abc.abstractmethod
    def truths(self, labels: np.ndarray) -> np.ndarray:
        """Returns the truths of labels [num_examples, num_labels] of 0 and 1."""

    def has(self, truths: np.ndarray, num_labels: int) -> np.ndarray:
        """Returns which examples have which labels, bool [num_examples, num_labels]."""
        raise NotImplementedError

    @abc.abstractmethod
    def chosen(self, probabilities: np.ndarray) -> np.ndarray:
        """Returns the truths that probabilities [num_examples, num_labels] speak for."""

    def choices(
        self, probabilities: np.ndarray, truths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the answers as choices among classes.

        Args:
            probabilities: [num_examples, num_labels].
            truths: of the examples.

        Returns:
            (probabilities [num_choices, num_classes] whose rows add up to 1, the right class of
            each, int [num_choices]).
        """
        raise NotImplementedError

    def cool(self, probabilities: np.ndarray, temperature: float) -> np.ndarray:
        """Returns probabilities [num_examples, num_labels] with their logits divided."""
        raise NotImplementedError

    def fit_temperature(self, probabilities: np.ndarray, truths: np.ndarray) -> float:
        """Returns the temperature that suits predictions, see `calibration.fit_temperature`."""
        answers, right_answers = self.choices(probabilities, truths)
        return calibration.fit_temperature(calibration.log_probabilities(answers), right_answers)

    def mean_loss(self, probabilities: np.ndarray, truths: np.ndarray) -> float:
        """Returns the mean loss of predictions, comparable with that of `losses`."""
        return scores.cross_entropy(*self.choices(probabilities, truths))

    def progress(self, probabilities: np.ndarray, truths: np.ndarray) -> float:
        """Returns the `quantity` of predictions."""
        return float(np.mean(self.chosen(probabilities) == truths))

    def match(self, places: np.ndarray, num_labels: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns how to measure a model on a dataset that has other labels.

        Args:
            places: int [labels of the dataset], the place of each among the model's labels.
            num_labels: labels of the model.

        Returns:
            (outputs of the model that can be measured, place of each of the dataset's labels among
            these), int [...] each.
        """
        # A class that the dataset does not have is one of which it has no images.
        return np.arange(num_labels), places

    def scorer(
        self, probabilities: np.ndarray, truths: np.ndarray, label_names: Sequence[str]
    ) -> scores.Scorer:
        """Returns what measures predictions."""
        return self.measured_by(probabilities, truths, tuple(label_names))

    def texts(self, truths: np.ndarray, label_names: Sequence[str]) -> list[str]:
        """Returns the text of each label, as in examples.parquet."""
        rows = self.has(truths, len(label_names))
        return [self.kind.text_in(row, label_names) for row in rows]


class _Classes(Task):
    """One class for each image: softmax and cross-entropy."""

    kind, story, measured_by = label_kinds.CLASSES, stories.ClassStory(), scores.ClassScorer

    def activation(self, name: str | None = None) -> keras.layers.Layer:
        # Probabilities are always float32: in reduced precision they are rounded too much.
        return keras.layers.Softmax(dtype="float32", name=name or "softmax")

    def logits_of(self, probabilities: Any) -> Any:
        return keras.ops.log(keras.ops.maximum(probabilities, _LEAST_PROBABILITY))

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
        return _balanced(counts, power)

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
        return calibration.apply_temperature(probabilities, temperature)


class _Grades(_Classes):
    """A grade for each image: learned as classes, judged by how far off it is."""

    kind, story, measured_by = label_kinds.GRADES, stories.GradeStory(), scores.GradeScorer


class _MultiLabel(Task):
    """Any number of labels for each image: a sigmoid and a binary cross-entropy for each label."""

    kind, story = label_kinds.MULTI_LABEL, stories.LabelStory()
    measured_by = scores.LabelScorer

    def activation(self, name: str | None = None) -> keras.layers.Layer:
        return keras.layers.Activation("sigmoid", dtype="float32", name=name or "sigmoid")

    def logits_of(self, probabilities: Any) -> Any:
        ops = keras.ops
        with_label, without = (
            ops.log(ops.maximum(values, _LEAST_PROBABILITY))
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
        return tuple(_balanced((num_examples - count, count), power) for count in counts)

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
        return calibration.apply_temperature(_pairs(probabilities), temperature)[..., 1]

    def match(self, places: np.ndarray, num_labels: int) -> tuple[np.ndarray, np.ndarray]:
        # Whether an image has a label that its dataset does not name is not known.
        return places, np.arange(len(places))


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

    kind, story, quantity = label_kinds.NUMBER, stories.NumberStory(), "mae"
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
        return [label_kinds.number_text(str(truth)) or "" for truth in truths]


CLASSES: Task = _Classes()
GRADES: Task = _Grades()
MULTI_LABEL: Task = _MultiLabel()
NUMBER: Task = Number()


def task_of(kind: LabelKind) -> Task:
    """Returns the task of a kind of label; of numbers, one that has not seen training images."""
    return {task.kind: task for task in (CLASSES, GRADES, MULTI_LABEL, NUMBER)}[kind]


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
    if kind is not label_kinds.NUMBER:
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


def _pairs(probabilities: np.ndarray) -> np.ndarray:
    """Returns [..., 2]: the probabilities of being without a label and of having it.

    A sigmoid that is rounded to 1 leaves 0 for the other side, whose logarithm would outweigh all
    others: like `logits_of`, this keeps a least probability.
    """
    pairs = np.stack([1 - probabilities, probabilities], axis=-1)
    return np.maximum(pairs, _LEAST_PROBABILITY)


def _balanced(counts: Sequence[int], power: float) -> tuple[float, ...]:
    """Returns a weight for each class: its frequency to a negative power.

    Their mean over the examples is 1, so the power changes how classes compare, and not how large
    a step is. A class without examples gets the weight 0.
    """
    raised = [count**-power if count else 0.0 for count in counts]
    total = sum(weight * count for weight, count in zip(raised, counts, strict=True))
    return tuple(weight * sum(counts) / total for weight in raised)

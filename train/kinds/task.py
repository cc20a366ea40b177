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
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfrecord_io.kinds.label_kind import LabelKind
from train.kinds import scores, stories, temperature

#: Format of probabilities and of the measures of them in files.
SHARE_DIGITS = ".6f"

#: Smallest probability whose logarithm is taken.
LEAST_PROBABILITY = 1e-7


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
    digits: str = SHARE_DIGITS

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

    def cool(self, probabilities: np.ndarray, degree: float) -> np.ndarray:
        """Returns probabilities [num_examples, num_labels] with their logits divided."""
        raise NotImplementedError

    def fit_temperature(self, probabilities: np.ndarray, truths: np.ndarray) -> float:
        """Returns the temperature that suits predictions, see `temperature.fit_temperature`."""
        answers, right_answers = self.choices(probabilities, truths)
        return temperature.fit_temperature(temperature.log_probabilities(answers), right_answers)

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


def balanced_weights(counts: Sequence[int], power: float) -> tuple[float, ...]:
    """Returns a weight for each class: its frequency to a negative power.

    Their mean over the examples is 1, so the power changes how classes compare, and not how large
    a step is. A class without examples gets the weight 0.
    """
    raised = [count**-power if count else 0.0 for count in counts]
    total = sum(weight * count for weight, count in zip(raised, counts, strict=True))
    return tuple(weight * sum(counts) / total for weight in raised)

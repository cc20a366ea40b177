"""What a network learns and answers, by the kind of the dataset's labels.

A `Task` is the one place where the kind decides; the other modules ask the task of their dataset.
To add a kind of label, write a subclass in a module of its own, and name it in `train.kinds.TASKS`.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from scipy import optimize, special

from tfrecord_io.format.kinds import LabelKind
from tfrecord_io.pages import page
from train.kinds import measures
from train.machine.errors import TrainingError

#: Limits of a fitted temperature. A fit that reaches them has too few images; the logits of a
#: trained network do not need so large a change.
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.25, 4.0

# Weight of the prior belief in a temperature of 1, see `Task.fit_temperature`.
_PRIOR_STRENGTH = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Answers:
    """What a network answered for some examples, and what is true.

    Attributes:
        probabilities: float32 [num_examples, num_labels], with the temperature applied.
        truths: bool [num_examples, num_labels], which labels each example has.
        folds: int [num_examples], which network of a cross-validation gave each answer; None if one
            gave all.
    """

    probabilities: np.ndarray
    truths: np.ndarray
    label_names: tuple[str, ...]
    folds: np.ndarray | None = None

    def take(self, rows: np.ndarray) -> Self:
        """Returns the answers at these places, int64 [num_chosen], in that order."""
        arrays = {name: each for name, each in vars(self).items() if isinstance(each, np.ndarray)}
        return dataclasses.replace(self, **{name: each[rows] for name, each in arrays.items()})

    def by_fold(self) -> list[Self]:
        """Returns the answers of each network."""
        if self.folds is None:
            return [self]
        return [self.take(np.flatnonzero(self.folds == fold)) for fold in np.unique(self.folds)]


def require_numbers(probabilities: np.ndarray, what: str) -> None:
    """Raises a TrainingError if a network's answers to some images are not all numbers."""
    if not np.isfinite(probabilities).all():
        raise TrainingError(
            f"the network answers with probabilities that are not numbers on {what}: its weights "
            "went out of range in the last steps. Train again, in another --workdir, with a lower "
            "--lr, more --warmup_steps, or --precision float32"
        )


class OneAnswer(NamedTuple):
    """An answer: the example's place, the network's output, and both labels in words.

    `is_negative` says whether the answer is that the output's label is not there.
    """

    place: int
    output: int
    true: str
    predicted: str
    probability: float
    is_negative: bool = False


@dataclasses.dataclass(frozen=True)
class View:
    """A question with yes and no about an image: has it one of the labels at these places?

    A group is named after several labels; other views have the name of their label.
    """

    name: str
    places: list[int]
    is_group: bool = False

    def of(self, measure: str) -> str:
        """Returns the name of a measure of this view in metrics.json."""
        return f"{self.name}/{measure}" if self.is_group else f"{measure}/{self.name}"

    def ranking(self, probabilities: np.ndarray) -> np.ndarray:
        """Returns the probability of yes, float64 [num_examples].

        In float64, so that a threshold that was written to JSON gives the same answers.
        """
        return probabilities[:, self.places].astype(np.float64).sum(-1)

    def is_positive(self, truths: np.ndarray) -> np.ndarray:
        """Returns where yes is right, bool [num_examples]."""
        return truths[:, self.places].any(-1)


class Task(abc.ABC):
    """What a network learns and answers.

    Labels are float32 [num_examples, num_labels], as records have them; truths are the same as
    bool, and probabilities [num_examples, num_labels] what the network answers.

    Attributes:
        activation: Keras' name of the function that turns logits into probabilities.
        label_measures: of each label, columns of a table of the page.
        run_measures: figures on top of the page, and columns of its tables of folds and groups.
        glossary: what the measures mean.
        decision: how an answer follows from probabilities.
    """

    kind: LabelKind
    activation: str
    label_measures: tuple[str, ...] = (
        "sensitivity", "specificity", "precision", "f1", "auc", "average_precision",
    )  # fmt: skip
    run_measures: tuple[str, ...]
    glossary: str = (
        "For each class or label, sensitivity is the share of its images that was recognised, and "
        "specificity the share of all other images that was not taken for it. Precision is the "
        "share of right ones among the answers that name the class; it depends on how frequent the "
        "class is. F1 is the harmonic mean of sensitivity and precision. Area is the chance that "
        "an image of the class gets a higher probability than another image. Average precision is "
        "the mean precision over all cuts; guessing gives the share of images that have the class."
    )
    decision: str

    # ---- learning

    @abc.abstractmethod
    def logits_of(self, probabilities: Any) -> Any:
        """Returns finite logits that the activation turns into these [batch, num_labels]."""

    @abc.abstractmethod
    def losses(self, labels: Any, logits: Any, class_weights: Any, smoothing: float) -> Any:
        """Returns what a training step minimizes and what it reports of each example.

        The labels, as records have them or mixed, and the logits are float32 [..., num_labels], and
        the class weights those that `class_weights` returned. The smoothing is the share of each
        label that is spread evenly over all that it could be. Source: Szegedy et al. 2016,
        "Rethinking the Inception architecture", section 7.

        Returns:
            (loss with weights and smoothing, loss without them in nats, share of the answers that
            are right), float32 [...] each.
        """

    def class_weights(self, counts: Sequence[int], num_examples: int, power: float) -> tuple:
        """Returns the weights of labels in the loss: their frequency to a negative power.

        `counts` are the training examples with each label. The power is 0 for equal weights, and 1
        for weights inverse to the frequency. Their mean over the examples is 1, so the power
        changes how labels compare, and not how large a step is. A label without examples gets the
        weight 0.
        """
        raised = [count**-power if count else 0.0 for count in counts]
        total = sum(weight * count for weight, count in zip(raised, counts, strict=True))
        return tuple(weight * num_examples / total for weight in raised)

    # ---- answers and truths

    @abc.abstractmethod
    def chosen(self, probabilities: np.ndarray) -> np.ndarray:
        """Returns the truths that probabilities speak for."""

    @abc.abstractmethod
    def choices(self, probabilities: np.ndarray, truths: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns the answers as choices between classes of which one is right.

        They are probabilities that add up to 1, [num_choices, num_classes], and the right classes,
        int64 [num_choices].
        """

    def texts(self, truths: np.ndarray, label_names: Sequence[str]) -> list[str]:
        """Returns the text of each label, as in examples.parquet."""
        return [self.kind.text_in(row, label_names) for row in truths]

    def cool(self, probabilities: np.ndarray, temperature: float) -> np.ndarray:
        """Returns probabilities whose logits are divided by a temperature.

        Classes keep their order, but two close probabilities may become equal by rounding.
        """
        cooled = special.softmax(_logarithms(probabilities) / temperature, axis=-1)
        return cooled.astype(probabilities.dtype)

    def fit_temperature(self, probabilities: np.ndarray, truths: np.ndarray) -> float:
        """Returns the temperature T that minimizes the cross-entropy of the cooled predictions.

        T is in 0.25..4, and above 1 for an overconfident network. Source: Guo et al. 2017, "On
        calibration of modern neural networks", section 4.2. A weak prior is added, a Gamma
        distribution of 1/T with mode 1, worth about two to ten images: the cross-entropy alone has
        no minimum if all answers are right or there is only one class. The sum is convex in 1/T.
        """
        answers, right = self.choices(probabilities, truths)
        scores = _logarithms(answers)
        # Relative to the true class, the cross-entropy of a row is its log-sum-exp.
        rows = scores - scores[np.arange(len(right)), right, None]

        def loss(log_temperature: float) -> float:
            inverse = np.exp(-log_temperature)
            prior = _PRIOR_STRENGTH * (inverse - 1 + log_temperature)
            return float(prior + np.logaddexp.reduce(rows * inverse, axis=-1).sum())

        bounds = (np.log(MIN_TEMPERATURE), np.log(MAX_TEMPERATURE))
        found = optimize.minimize_scalar(
            loss, bounds=bounds, method="bounded", options={"xatol": 1e-7, "maxiter": 200}
        )
        return float(np.exp(found.x))

    def loss_and_accuracy(
        self, probabilities: np.ndarray, truths: np.ndarray
    ) -> tuple[float, float]:
        """Returns the mean loss, comparable with that of `losses`, and the share that is right."""
        answers, right = self.choices(probabilities, truths)
        of_truth = answers[np.arange(len(right)), right].astype(np.float64)
        loss = -np.log(np.maximum(of_truth, measures.LEAST_PROBABILITY)).mean()
        return float(loss), float(np.mean(answers.argmax(-1) == right))

    # ---- measures

    def views(self, label_names: Sequence[str]) -> list[View]:
        """Returns the questions with yes and no that the answers are measured by."""
        return [View(name, [place]) for place, name in enumerate(label_names)]

    def score(self, answers: Answers, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the measures that are quick to compute, float64 [num_weightings] by name.

        The weights, float64 [num_weightings, num_examples], are how often each example counts.
        """
        choices, right = self.choices(answers.probabilities, answers.truths)
        is_right = (choices.argmax(-1) == right).reshape(len(answers.truths), -1)
        sure, total = choices.max(-1).reshape(is_right.shape), weights.sum(-1)
        # Source: Brier 1950, "Verification of forecasts expressed in terms of probability". Of two
        # classes it is half of that, as in scikit-learn's `brier_score_loss`.
        num_classes = choices.shape[-1]
        distances = np.square(choices - np.eye(num_classes)[right]).sum(-1)
        brier = distances.reshape(is_right.shape).mean(-1) / (2 if num_classes == 2 else 1)
        scores = {
            "accuracy": measures.ratios(weights @ is_right.mean(-1), total),
            "ece": measures.expected_calibration_error(sure, is_right, weights),
            "brier": measures.ratios(weights @ brier, total),
        }
        views = self.views(answers.label_names)
        yes, truth = (
            np.stack([view.is_positive(labels) for view in views], -1)
            for labels in (self.chosen(answers.probabilities), answers.truths)
        )
        for rate, values in measures.rates_of(yes, truth, weights).items():
            scores |= {view.of(rate): values[:, place] for place, view in enumerate(views)}
        return scores

    def areas(self, answers: Answers, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the areas under curves, which take longer; see `score`."""
        areas = {}
        for view in self.views(answers.label_names):
            is_positive, ranking = (
                view.is_positive(answers.truths),
                view.ranking(answers.probabilities),
            )
            found = measures.areas_under_curves(is_positive, ranking, weights)
            areas[view.of("auc")], areas[view.of("average_precision")] = found
        return areas

    @abc.abstractmethod
    def tables(self, answers: Answers) -> dict[str, Any]:
        """Returns the entry of metrics.json that counts right and wrong answers."""

    # ---- what a page says

    @abc.abstractmethod
    def verdict(self, metrics: Mapping[str, Any]) -> list[str]:
        """Returns what the network did; the first sentence lacks its beginning, `the network`."""

    @abc.abstractmethod
    def doubt(self, metrics: Mapping[str, Any]) -> str | None:
        """Returns a warning if the result may be chance, or None."""

    @abc.abstractmethod
    def table_of_answers(self, metrics: Mapping[str, Any]) -> page.Table | None:
        """Returns a table of answers; None if the classes are too many for one."""

    def mistakes(self, answers: Answers, most: int) -> list[OneAnswer]:
        """Returns the wrong answers with the highest probabilities."""
        choices, right = self.choices(answers.probabilities, answers.truths)
        order = np.argsort(-choices.max(-1), kind="stable")
        wrong = order[(choices.argmax(-1) != right)[order]][:most]
        return [self.one_answer(answers, number) for number in wrong.tolist()]

    @abc.abstractmethod
    def one_answer(self, answers: Answers, number: int) -> OneAnswer:
        """Returns an answer in words, by its number in `choices`."""


def _logarithms(probabilities: np.ndarray) -> np.ndarray:
    """Returns the logarithms of probabilities, float64; those of 0 are finite."""
    return np.log(np.maximum(probabilities.astype(np.float64), np.finfo(np.float32).tiny))

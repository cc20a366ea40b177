"""A number for each image: a linear output and the squared error."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfrecord_io.format import kinds
from tfrecord_io.terminal.errors import UserError
from train.data.dataset import Dataset, Part
from train.kinds import words
from train.kinds.measures import ratios
from train.kinds.task import Answers, OneAnswer, Task, View
from train.kinds.words import decimal, with_interval

# Standard deviations on both sides of the mean that hold 95 % of a normal distribution.
_DEVIATIONS = 1.96


@dataclasses.dataclass(frozen=True)
class Number(Task):
    """A number for each image. Truths are float32 [num_examples].

    The network learns the number minus the mean of the training images, over their standard
    deviation, and the exported model turns it back, so its answers have the unit of the labels.

    An error is the answer minus the truth. `bias` is the mean error, and 95 % of the errors are
    expected between `limit_low` and `limit_high`, the limits of agreement. Source: Bland and Altman
    1986, "Statistical methods for assessing agreement between two methods of clinical measurement".

    Attributes:
        mean: of the training images, see `fitted`.
        std: their standard deviation.
    """

    mean: float = 0.0
    std: float = 1.0

    kind, quantity = kinds.NUMBER, "mae"
    # Significant digits: the unit can be as small or as large as it likes.
    gives_probabilities, digits = False, ".9g"
    charts = ("agreement",)
    label_measures = ("mae", "rmse", "r2", "bias", "limit_low", "limit_high")
    run_measures = ("mae", "rmse", "r2")
    glossary = (
        "An error is the answer minus the truth, in the unit of the dataset. Mean error: its mean "
        "size, whatever its sign. R²: the share of the variance of the true numbers that the "
        "answers explain; 1 is perfect, and 0 is what always giving the mean reaches. Bias: the "
        "mean error with its sign. 95 % of the errors are expected between the limits of agreement "
        "(Bland and Altman)."
    )
    decision = ""

    def fitted(self, dataset: Dataset, part: Part) -> Task:
        values = dataset.stored.labels(part.rows)[:, 0].astype(np.float64)
        mean = values.mean()
        variance = np.square(values - mean).mean()
        # The loss is float32.
        if values.min() == values.max() or variance > np.finfo(np.float32).max:
            raise UserError(
                f"{dataset.path}: the training images have numbers from {values.min():g} to "
                f"{values.max():g}; a network can learn those that differ, by less than 1e19"
            )
        return Number(float(mean), float(np.sqrt(variance)))

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
        return float(np.square(_errors(probabilities, truths)).mean())

    def progress(self, probabilities: np.ndarray, truths: np.ndarray) -> float:
        return float(np.abs(_errors(probabilities, truths)).mean())

    def texts(self, truths: np.ndarray, label_names: Sequence[str]) -> list[str]:
        return [kinds.number_text(str(truth)) or "" for truth in truths]

    def views(self, label_names: Sequence[str]) -> list[View]:
        return []

    def score(self, answers: Answers, weights: np.ndarray) -> dict[str, np.ndarray]:
        errors, total = _errors(answers.probabilities, answers.truths), weights.sum(-1)
        bias = ratios(weights @ errors, total)
        squares = weights @ np.square(errors)
        # Around the mean of all truths, which loses the fewest digits.
        truths = answers.truths - answers.truths.mean(dtype=np.float64)
        spread = weights @ np.square(truths) - ratios(np.square(weights @ truths), total)
        # Equal numbers may differ by rounding, which is not a spread.
        is_spread = spread > 1e-9 * total * np.square(truths).max()
        deviation = np.sqrt(
            np.maximum(ratios(squares - total * np.square(bias), np.maximum(total - 1, 0)), 0)
        )
        return {
            "mae": ratios(weights @ np.abs(errors), total),
            "rmse": np.sqrt(ratios(squares, total)),
            "r2": 1 - ratios(squares, np.where(is_spread, spread, 0)),
            "bias": bias,
            "limit_low": bias - _DEVIATIONS * deviation,
            "limit_high": bias + _DEVIATIONS * deviation,
        }

    def tables(self, answers: Answers) -> dict[str, Any]:
        return {"label_counts": dict.fromkeys(answers.label_names, len(answers.truths))}

    def verdict(self, metrics: Mapping[str, Any]) -> list[str]:
        scores = metrics["scores"]
        sentences = [f"was off by {with_interval(scores['mae'])} on average."]
        if scores["r2"]["value"] is not None:
            sentences.append(
                f"R² is {with_interval(scores['r2'])}: 1 is perfect, and 0 is what always giving "
                "the mean reaches."
            )
        if scores["limit_low"]["value"] is not None:
            sentences.append(
                f"Its answers are {decimal(abs(scores['bias']['value']))} too "
                f"{'high' if scores['bias']['value'] >= 0 else 'low'} on average; 95 % of the "
                f"differences are expected between {decimal(scores['limit_low']['value'])} and "
                f"{decimal(scores['limit_high']['value'])}."
            )
        return sentences

    def doubt(self, metrics: Mapping[str, Any]) -> str | None:
        return words.doubt(metrics, "r2", 0.0, "always giving the mean")

    def examples(self, answers: Answers, most: int) -> dict[str, list[OneAnswer]]:
        given = self.chosen(answers.probabilities)
        furthest = np.argsort(-np.abs(given - answers.truths), kind="stable")[:most]
        wrong = [
            OneAnswer(place, 0, decimal(answers.truths[place]), decimal(given[place]), None)
            for place in furthest.tolist()
        ]
        return {"wrong": wrong}


NUMBER = Number()


def _errors(probabilities: np.ndarray, truths: np.ndarray) -> np.ndarray:
    """Returns the answer minus the truth, float64 [num_examples]."""
    return probabilities[:, 0].astype(np.float64) - truths

"""Any number of labels for each image: a sigmoid and a binary cross-entropy for each label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfrecord_io.format import kinds
from tfrecord_io.pages import page
from train.kinds import measures, words
from train.kinds.task import Answers, OneAnswer, Task

#: An image is said to have a label from this probability on.
LABEL_THRESHOLD = 0.5


class MultiLabel(Task):
    """Any number of labels for each image.

    Measures of all labels together are means over the labels: `accuracy` is the share of right
    answers among all answers, and `macro_auc` the mean of the areas.
    """

    kind, activation = kinds.MULTI_LABEL, "sigmoid"
    run_measures = ("accuracy", "macro_auc", "macro_average_precision", "ece")
    decision = (
        "A threshold answers “this label, or not?”. The predicted labels do not depend on the "
        f"thresholds; they are those with a probability of at least {100 * LABEL_THRESHOLD:.0f} %."
    )

    def logits_of(self, probabilities: Any) -> Any:
        ops = keras.ops
        with_label, without = (
            ops.log(ops.maximum(values, measures.LEAST_PROBABILITY))
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
        weights = super().class_weights
        return tuple(weights((num_examples - n, n), num_examples, power) for n in counts)

    def chosen(self, probabilities: np.ndarray) -> np.ndarray:
        return probabilities >= LABEL_THRESHOLD

    def choices(self, probabilities: np.ndarray, truths: np.ndarray) -> tuple[np.ndarray, ...]:
        without = (~truths).ravel().astype(np.int64)
        return _pairs(probabilities).reshape(-1, 2), without

    def cool(self, probabilities: np.ndarray, temperature: float) -> np.ndarray:
        cooled = super().cool(_pairs(probabilities.astype(np.float64)), temperature)
        return cooled[..., 0].astype(probabilities.dtype)

    def areas(self, answers: Answers, weights: np.ndarray) -> dict[str, np.ndarray]:
        areas = super().areas(answers, weights)
        for name in ("auc", "average_precision"):
            of_labels = np.stack([areas[f"{name}/{label}"] for label in answers.label_names])
            areas[f"macro_{name}"] = measures.defined_mean(of_labels)
        return areas

    def tables(self, answers: Answers) -> dict[str, Any]:
        has, called = answers.truths, self.chosen(answers.probabilities)
        # Of each label [[without it, false alarms], [missed, found]].
        counts = [[(given & truth).sum(0) for given in (~called, called)] for truth in (~has, has)]
        matrices = np.moveaxis(counts, -1, 0).tolist()
        return {"confusion_matrices": dict(zip(answers.label_names, matrices, strict=True))}

    def verdict(self, metrics: Mapping[str, Any]) -> list[str]:
        interval = "95 % interval: "
        accuracy = words.share(metrics, "accuracy", interval)
        sentences = [f"was right in {accuracy} of its answers, one for each label of each image."]
        if metrics["scores"]["macro_auc"]["value"] is not None:
            sentences.append(
                "Of two images of which one has a label, it gives that one the higher probability "
                f"in {words.share(metrics, 'macro_auc', interval)} of the cases, on average over "
                "the labels; guessing would in 50 %."
            )
        return sentences

    def doubt(self, metrics: Mapping[str, Any]) -> str | None:
        return words.doubt(metrics, "macro_auc", 0.5, "guessing")

    def table_of_answers(self, metrics: Mapping[str, Any]) -> page.Table:
        rows = []
        for name, matrix in metrics["confusion_matrices"].items():
            (alone, alarms), (missed, found) = matrix
            counts = [found, missed, alarms, alone]
            totals = [found + missed] * 2 + [alarms + alone] * 2
            rows.append(words.row_of_counts(name, counts, totals, [0, 3]))
        given = ("found", "missed", "false alarm", "rightly not found")
        columns = ["label ↓ answer →", *given]
        return page.Table("Answers for each label", columns, rows, look="matrix")

    def one_answer(self, answers: Answers, number: int) -> OneAnswer:
        place, output = divmod(number, len(answers.label_names))
        probability, name = float(answers.probabilities[place, output]), answers.label_names[output]
        is_called = probability >= LABEL_THRESHOLD
        true, given = (
            name if has else f"no {name}" for has in (answers.truths[place, output], is_called)
        )
        sure = probability if is_called else 1 - probability
        return OneAnswer(place, output, true, given, sure, not is_called)


def _pairs(probabilities: np.ndarray) -> np.ndarray:
    """Returns [..., 2]: the probabilities of having a label and of being without it.

    A sigmoid that is rounded to 1 leaves 0 for the other side, whose logarithm would outweigh all
    others: like `logits_of`, this keeps a least probability.
    """
    pairs = np.stack([probabilities, 1 - probabilities], axis=-1)
    return np.maximum(pairs, measures.LEAST_PROBABILITY)


MULTI_LABEL = MultiLabel()

"""One class or one grade for each image: softmax and cross-entropy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfrecord_io.format import kinds
from tfrecord_io.pages import page
from train.kinds import measures, words
from train.kinds.task import Answers, OneAnswer, Task, View

KAPPA = "quadratic_kappa"


class Classes(Task):
    """One class for each image."""

    kind, activation = kinds.CLASSES, "softmax"
    run_measures = ("accuracy", "balanced_accuracy", "ece")
    decision = (
        "A threshold answers “this class, or not?”. The predicted class does not depend on the "
        "thresholds; it is always the most probable class."
    )

    def logits_of(self, probabilities: Any) -> Any:
        return keras.ops.log(keras.ops.maximum(probabilities, measures.LEAST_PROBABILITY))

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

    def chosen(self, probabilities: np.ndarray) -> np.ndarray:
        return probabilities.argmax(-1)[:, None] == np.arange(probabilities.shape[1])

    def choices(self, probabilities: np.ndarray, truths: np.ndarray) -> tuple[np.ndarray, ...]:
        return probabilities, truths.argmax(-1)

    def views(self, label_names: Sequence[str]) -> list[View]:
        """Returns each class against the rest; of the OCT classes first the urgent ones."""
        views = super().views(label_names)
        if set(label_names) != measures.OCT_CLASSES:
            return views
        places = [label_names.index(name) for name in measures.URGENT_CLASSES]
        return [View("urgent", places, is_group=True), *views]

    def score(self, answers: Answers, weights: np.ndarray) -> dict[str, np.ndarray]:
        scores = super().score(answers, weights)
        of_classes = [scores[f"sensitivity/{name}"] for name in answers.label_names]
        return scores | {"balanced_accuracy": measures.defined_mean(np.stack(of_classes))}

    def tables(self, answers: Answers) -> dict[str, Any]:
        # The rows are the true classes.
        counts = answers.truths.T.astype(int) @ self.chosen(answers.probabilities)
        return {"confusion_matrix": counts.tolist()}

    def verdict(self, metrics: Mapping[str, Any]) -> list[str]:
        accuracy = words.share(metrics, "accuracy", "95 % interval: ")
        sentences = [f"named the right class for {accuracy}."]
        if usual := _usual(metrics):
            sentences[0] += (
                f" Always answering {usual[0]} would be right for {words.percent(usual[1])}."
            )
        if metrics["scores"].get("urgent/sensitivity", {}).get("value") is not None:
            sentences.append(
                f"Of the urgent images ({' and '.join(measures.URGENT_CLASSES)}), it called "
                f"{words.share(metrics, 'urgent/sensitivity')} urgent; of the others, it called "
                f"{words.share(metrics, 'urgent/specificity')} not urgent."
            )
        return sentences

    def doubt(self, metrics: Mapping[str, Any]) -> str | None:
        rival = "always giving the most frequent answer"
        usual = _usual(metrics)
        return usual and words.doubt(metrics, "accuracy", usual[1], rival)

    def table_of_answers(self, metrics: Mapping[str, Any]) -> page.Table | None:
        names, matrix = list(metrics["label_counts"]), np.asarray(metrics["confusion_matrix"])
        if len(names) > words.MAX_CLASSES:
            return None
        rows = [
            words.row_of_counts(name, row, [row.sum()] * len(names), [place])
            for place, (name, row) in enumerate(zip(names, matrix, strict=True))
        ]
        columns = ["truth ↓ answer →", *names]
        return page.Table("Answers for the images of each class", columns, rows, look="matrix")

    def one_answer(self, answers: Answers, number: int) -> OneAnswer:
        names, of_image = answers.label_names, answers.probabilities[number]
        output = int(of_image.argmax())
        true = names[answers.truths[number].argmax()]
        return OneAnswer(number, output, true, names[output], float(of_image[output]))


class Grades(Classes):
    """Classes whose order means something, from the lowest to the highest."""

    kind = kinds.GRADES
    run_measures = ("accuracy", KAPPA, "ece")
    glossary = (
        f"{Classes.glossary} Kappa: the agreement with the true grades beyond chance, where a "
        "mistake of two grades weighs four times one of a single grade; 100 % is perfect, 0 % is "
        "chance."
    )

    def score(self, answers: Answers, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Returns also the weighted kappa: 1 for the right grades, 0 for an agreement by chance.

        A mistake weighs as the square of its distance in grades. Source: Cohen 1968, "Weighted
        kappa: nominal scale agreement with provision for scaled disagreement or partial credit". It
        is NaN if all grades, true and given, are the same one.
        """
        size = len(answers.label_names)
        pairs = answers.truths.argmax(-1) * size + answers.probabilities.argmax(-1)
        tables = measures.sums_by_place(pairs, weights, size * size).reshape(-1, size, size)
        distances = np.square(np.subtract.outer(np.arange(size), np.arange(size))).astype(float)
        by_chance = tables.sum(2)[:, :, None] * tables.sum(1)[:, None, :]
        expected, found = ((each * distances).sum((1, 2)) for each in (by_chance, tables))
        kappa = 1 - measures.ratios(found * tables.sum((1, 2)), expected)
        return super().score(answers, weights) | {KAPPA: kappa}

    def verdict(self, metrics: Mapping[str, Any]) -> list[str]:
        sentences, kappa = super().verdict(metrics), metrics["scores"][KAPPA]
        if kappa["value"] is not None:
            value = words.with_interval(kappa, "{:.2f}".format)
            sentences.insert(1, f"Its quadratic weighted kappa is {value}.")
        return sentences


CLASSES, GRADES = Classes(), Grades()


def _usual(metrics: Mapping[str, Any]) -> tuple[str, float] | None:
    """Returns the most frequent class and its share of the images; None of a single class."""
    counts = metrics["label_counts"]
    usual = max(counts, key=counts.__getitem__)
    share = counts[usual] / sum(counts.values())
    return (usual, share) if share < 1 else None

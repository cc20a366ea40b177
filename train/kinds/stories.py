"""What the page of a run says about its results, by the kind of label.

`report` has the parts of the page that are the same for every kind.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from train.kinds.scores import (
    KAPPA,
    LABEL_MEASURES,
    LABEL_THRESHOLD,
    NUMBER_MEASURES,
    URGENT_CLASSES,
    VIEW_MEASURES,
)

#: Most classes in a table; with more classes, it has the worst.
MAX_CLASSES = 20

_MAX_CONFUSIONS = 20

#: Titles of measures that differ from their names.
_TITLES = {
    "auc": "area under the ROC",
    "average_precision": "average precision",
    "ece": "calibration error",
    "macro_auc": "mean area",
    KAPPA: "quadratic weighted kappa",
    "mae": "mean error",
    "rmse": "root mean square error",
    "r2": "R²",
    "limit_low": "lower limit",
    "limit_high": "upper limit",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MistakenAnswer:
    """A wrong answer for an image.

    Attributes:
        place: of the example among the predictions.
        output: the network's output that gave the answer.
        true: the truth, in words.
        predicted: the answer, in words.
        probability: given to the answer; None for a number.
        is_negative: whether the answer is that the output's label is not there.
    """

    place: int
    output: int
    true: str
    predicted: str
    probability: float | None
    is_negative: bool = False


class Story(abc.ABC):
    """What a page says about the results for one kind of label.

    Attributes:
        measures: of each label, columns of a table.
        run_measures: of each run of a cross-validation, columns of a table.
        glossary: what the measures mean.
        decision: how an answer follows from probabilities.
        unit: of the measures: `share`, or `number` for the unit of the labels.
        shown_mistakes: which mistakes the page shows.
        answer: what the maps of the mistakes are about.
    """

    measures: tuple[str, ...]
    run_measures: tuple[str, ...]
    glossary: str
    decision: str
    unit: str = "share"
    shown_mistakes: str = "wrong answers with the highest probability"
    answer: str = "the probability of the answer"

    @abc.abstractmethod
    def verdict(self, metrics: Mapping[str, Any]) -> list[str]:
        """Returns what the network did; the first sentence lacks its beginning, `the network`."""

    @abc.abstractmethod
    def doubt(self, metrics: Mapping[str, Any]) -> str | None:
        """Returns a warning if the result may be chance, or None."""

    @abc.abstractmethod
    def tiles(self, metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Returns (name, value) of the most important figures."""

    @abc.abstractmethod
    def answers(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a table of right and wrong answers: `title`, `corner`, `columns`, `rows`.

        A row has `name` and `cells`, a cell `count`, `share` of the row's images and `is_right`.
        If there are too many classes for a matrix, `pairs` has the most frequent mistakes instead.
        """

    @abc.abstractmethod
    def num_mistakes(self, metrics: Mapping[str, Any]) -> int:
        """Returns the number of wrong answers."""

    @abc.abstractmethod
    def mistakes(
        self, probabilities: np.ndarray, truths: np.ndarray, label_names: Sequence[str], most: int
    ) -> list[MistakenAnswer]:
        """Returns the wrong answers with the highest probability, the worst first.

        Args:
            probabilities: [num_examples, num_labels].
            truths: of the examples, see `tasks`.
            label_names: names of the labels.
            most: the largest number of answers to return.
        """

    def titles(self, names: Sequence[str]) -> list[str]:
        """Returns the titles of measures."""
        return [_TITLES.get(name, name.replace("_", " ")) for name in names]


class ClassStory(Story):
    """The results of one class for each image."""

    measures = VIEW_MEASURES
    run_measures = ("accuracy", "balanced_accuracy", "ece")
    glossary = (
        "Sensitivity: the share of the images of a class that was recognised. Specificity: the "
        "share of all other images that was not taken for this class. Area: the chance that an "
        "image of the class gets a higher probability than another image."
    )
    decision = (
        "A threshold answers “this class, or not?”. The predicted class does not depend on the "
        "thresholds; it is always the most probable class."
    )

    def verdict(self, metrics: Mapping[str, Any]) -> list[str]:
        scores = metrics["scores"]
        accuracy = of_hundred(scores["accuracy"], "95 % interval: ")
        sentences = [f"named the right class for {accuracy}."]
        present = {name: count for name, count in metrics["label_counts"].items() if count}
        if len(present) > 1:
            usual = max(present, key=lambda name: present[name])
            share = present[usual] / sum(present.values())
            sentences[0] += f" Always answering {usual} would be right for {_hundredths(share)}."
            worst = worst_classes(metrics, 1)[0]
            best = max(present, key=lambda name: scores[f"sensitivity/{name}"]["value"] or 0.0)
            if scores[f"sensitivity/{best}"]["value"] != scores[f"sensitivity/{worst}"]["value"]:
                sentences.append(
                    f"It recognises {best} best, {of_hundred(scores[f'sensitivity/{best}'])}, and "
                    f"{worst} worst, {of_hundred(scores[f'sensitivity/{worst}'])}."
                )
        if scores.get("urgent/sensitivity", {}).get("value") is not None:
            sentences.append(
                f"Of the urgent images ({' and '.join(URGENT_CLASSES)}), it called "
                f"{of_hundred(scores['urgent/sensitivity'])} urgent; of the others, it left "
                f"{of_hundred(scores['urgent/specificity'])} alone."
            )
        return sentences

    def doubt(self, metrics: Mapping[str, Any]) -> str | None:
        low = metrics["scores"]["accuracy"]["low"]
        present = [count for count in metrics["label_counts"].values() if count]
        if len(present) < 2 or low is None or low > max(present) / sum(present):
            return None
        return (
            "This result may be no better than always giving the most frequent answer: the "
            "interval reaches down to the accuracy of that answer."
        )

    def tiles(self, metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
        scores = metrics["scores"]
        return [
            ("accuracy", percent(scores["accuracy"]["value"])),
            ("balanced accuracy", percent(scores["balanced_accuracy"]["value"])),
        ]

    def answers(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        names = list(metrics["label_counts"])
        matrix = np.asarray(metrics["confusion_matrix"])
        totals = matrix.sum(1)
        if len(names) <= MAX_CLASSES:
            return {
                "title": "Answers for the images of each class",
                "corner": "truth ↓ answer →",
                "columns": names,
                "rows": [
                    _row_of_counts(name, row, [total] * len(names), [place])
                    for place, (name, row, total) in enumerate(
                        zip(names, matrix, totals, strict=True)
                    )
                ],
                "pairs": [],
            }
        wrong = matrix * (1 - np.eye(len(names), dtype=matrix.dtype))
        flat = np.argsort(-wrong, axis=None, kind="stable")[:_MAX_CONFUSIONS]
        places = [divmod(int(place), len(names)) for place in flat]
        pairs = [
            {
                "true": names[row],
                "predicted": names[column],
                "count": int(wrong[row, column]),
                "share": float(wrong[row, column] / max(totals[row], 1)),
            }
            for row, column in places
            if wrong[row, column]
        ]
        return {"rows": [], "pairs": pairs}

    def num_mistakes(self, metrics: Mapping[str, Any]) -> int:
        matrix = np.asarray(metrics["confusion_matrix"])
        return int(matrix.sum() - np.trace(matrix))

    def mistakes(
        self, probabilities: np.ndarray, truths: np.ndarray, label_names: Sequence[str], most: int
    ) -> list[MistakenAnswer]:
        answers = probabilities.argmax(-1)
        wrong = np.flatnonzero(answers != truths)
        surest = np.argsort(-probabilities[wrong].max(-1), kind="stable")
        return [
            MistakenAnswer(
                place=place,
                output=int(answers[place]),
                true=label_names[truths[place]],
                predicted=label_names[answers[place]],
                probability=float(probabilities[place].max()),
            )
            for place in wrong[surest][:most].tolist()
        ]


class GradeStory(ClassStory):
    """The results of a grade for each image."""

    run_measures = ("accuracy", KAPPA, "ece")
    glossary = (
        f"{ClassStory.glossary} Kappa: the agreement with the true grades beyond chance, where a "
        "mistake of two grades weighs four times one of a single grade; 100 % is perfect, 0 % is "
        "chance."
    )

    def verdict(self, metrics: Mapping[str, Any]) -> list[str]:
        first, *others = super().verdict(metrics)
        kappa = metrics["scores"][KAPPA]
        if kappa["value"] is None:
            return [first, *others]
        interval = ""
        if kappa["low"] is not None:
            interval = f" (95 % interval: {kappa['low']:.2f} to {kappa['high']:.2f})"
        agreement = f"Its quadratic weighted kappa is {kappa['value']:.2f}{interval}."
        return [first, agreement, *others]

    def tiles(self, metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
        kappa = metrics["scores"][KAPPA]["value"]
        shown = "–" if kappa is None else f"{kappa:.3f}"
        return [("quadratic weighted kappa", shown), super().tiles(metrics)[0]]


class LabelStory(Story):
    """The results of several labels for each image."""

    measures = LABEL_MEASURES
    run_measures = ("accuracy", "macro_auc", "ece")
    glossary = (
        "Sensitivity: the share of the images with a label for which it was found. Specificity: "
        "the share of the images without it for which it was not. Area: the chance that an image "
        "with the label gets a higher probability for it than an image without. Average "
        "precision: among the images with the highest probabilities, the share that has the "
        "label, on average over all cuts; guessing gives the share of all images that has it."
    )
    decision = (
        "A threshold answers “this label, or not?”. The predicted labels do not depend on the "
        f"thresholds; they are those with a probability of at least {LABEL_THRESHOLD:.0%}."
    )

    def verdict(self, metrics: Mapping[str, Any]) -> list[str]:
        scores = metrics["scores"]
        accuracy = of_hundred(scores["accuracy"], "95 % interval: ")
        sentences = [f"was right in {accuracy} answers, one for each label of each image."]
        areas = {
            name: scores[f"auc/{name}"]
            for name in metrics["label_counts"]
            if scores[f"auc/{name}"]["value"] is not None
        }
        if areas:
            sentences.append(
                "Of two images of which one has a label, it gives that one the higher probability "
                f"in {of_hundred(scores['macro_auc'], '95 % interval: ')} cases, on average over "
                "the labels; guessing would in 50."
            )
            best, worst = (f(areas, key=lambda name: areas[name]["value"]) for f in (max, min))
            if areas[best]["value"] != areas[worst]["value"]:
                sentences.append(
                    f"It recognises {best} best, {of_hundred(areas[best])}, and {worst} worst, "
                    f"{of_hundred(areas[worst])}."
                )
        return sentences

    def doubt(self, metrics: Mapping[str, Any]) -> str | None:
        low = metrics["scores"]["macro_auc"]["low"]
        if low is None or low > 0.5:
            return None
        return (
            "This result may be no better than guessing: the interval of the mean area under the "
            "ROC curve reaches down to 50 %."
        )

    def tiles(self, metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
        scores = metrics["scores"]
        return [
            ("mean area under the ROC", percent(scores["macro_auc"]["value"])),
            ("mean average precision", percent(scores["macro_average_precision"]["value"])),
        ]

    def answers(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        rows = []
        for name in worst_classes(metrics, MAX_CLASSES):
            (alone, alarms), (missed, found) = metrics["confusion_matrices"][name]
            counts = [found, missed, alarms, alone]
            totals = [found + missed] * 2 + [alarms + alone] * 2
            rows.append(_row_of_counts(name, counts, totals, [0, 3]))
        return {
            "title": "Answers for each label",
            "corner": "label ↓ answer →",
            "columns": ["found", "missed", "false alarm", "rightly not found"],
            "rows": rows,
            "pairs": [],
        }

    def num_mistakes(self, metrics: Mapping[str, Any]) -> int:
        return sum(
            alarms + missed for (_, alarms), (missed, _) in metrics["confusion_matrices"].values()
        )

    def mistakes(
        self, probabilities: np.ndarray, truths: np.ndarray, label_names: Sequence[str], most: int
    ) -> list[MistakenAnswer]:
        called = probabilities >= LABEL_THRESHOLD
        of_answers = np.where(called, probabilities, 1 - probabilities)
        wrong = np.flatnonzero(called != truths)
        surest = np.argsort(-of_answers.flat[wrong], kind="stable")
        found = []
        for flat in wrong[surest][:most].tolist():
            place, output = divmod(flat, len(label_names))
            name = label_names[output]
            words = {True: name, False: f"no {name}"}
            found.append(
                MistakenAnswer(
                    place=place,
                    output=output,
                    true=words[bool(truths[place, output])],
                    predicted=words[bool(called[place, output])],
                    probability=float(of_answers[place, output]),
                    is_negative=not called[place, output],
                )
            )
        return found


class NumberStory(Story):
    """The results of a number for each image."""

    measures = NUMBER_MEASURES
    run_measures = ("mae", "rmse", "r2")
    glossary = (
        "An error is the answer minus the truth, in the unit of the dataset. Mean error: its mean "
        "size, whatever its sign. R²: the share of the variance of the true numbers that the "
        "answers explain; 1 is perfect, and 0 is what always giving the mean reaches. Bias: the "
        "mean error with its sign. 95 % of the errors are expected between the limits of agreement "
        "(Bland and Altman)."
    )
    decision = ""
    unit = "number"
    shown_mistakes = "answers that are furthest off"
    answer = "the answer"

    def verdict(self, metrics: Mapping[str, Any]) -> list[str]:
        scores = metrics["scores"]
        sentences = [f"was off by {_interval(scores['mae'])} on average."]
        if scores["r2"]["value"] is not None:
            sentences.append(
                f"R² is {_interval(scores['r2'])}: 1 is perfect, and 0 is what always giving the "
                "mean reaches."
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
        r2 = metrics["scores"]["r2"]
        if r2["low"] is None or r2["low"] > 0:
            return None
        return (
            "This result may be no better than always giving the mean: the interval of R² reaches "
            "down to 0."
        )

    def tiles(self, metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
        scores = metrics["scores"]
        return [
            ("mean error", decimal(scores["mae"]["value"])),
            ("R²", decimal(scores["r2"]["value"])),
        ]

    def answers(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        return {"rows": [], "pairs": []}

    def num_mistakes(self, metrics: Mapping[str, Any]) -> int:
        return metrics["num_examples"]

    def mistakes(
        self, probabilities: np.ndarray, truths: np.ndarray, label_names: Sequence[str], most: int
    ) -> list[MistakenAnswer]:
        answers = probabilities[:, 0]
        furthest = np.argsort(-np.abs(answers - truths), kind="stable")[:most]
        return [
            MistakenAnswer(
                place=place,
                output=0,
                true=decimal(float(truths[place])),
                predicted=decimal(float(answers[place])),
                probability=None,
            )
            for place in furthest.tolist()
        ]


def worst_classes(metrics: Mapping[str, Any], most: int) -> list[str]:
    """Returns the classes with the lowest sensitivity, the worst first.

    Of classes with equal sensitivity, the larger comes first. Classes without images come last.

    Args:
        metrics: content of metrics.json.
        most: the largest number of classes to return.
    """
    counts = metrics["label_counts"]

    def rank(name: str) -> tuple[bool, float, int]:
        sensitivity = metrics["scores"][f"sensitivity/{name}"]["value"]
        return sensitivity is None, sensitivity or 0.0, -counts[name]

    return sorted(counts, key=rank)[:most]


def decimal(value: float | None) -> str:
    """Returns a number with four digits; a dash if it is not defined."""
    return "–" if value is None else f"{value:.4g}"


def _interval(score: Mapping[str, float | None]) -> str:
    if score["low"] is None:
        return decimal(score["value"])
    return (
        f"{decimal(score['value'])} (95 % interval: {decimal(score['low'])} to "
        f"{decimal(score['high'])})"
    )


def percent(value: float | None) -> str:
    """Returns a share in percent; a dash if it is not defined."""
    return "–" if value is None else f"{100 * value:.1f} %"


def of_hundred(score: Mapping[str, float | None], told: str = "") -> str:
    """Returns a share and its interval, such as `90 of 100 (84 to 95)`.

    Args:
        score: an entry of `scores` in metrics.json.
        told: text before the interval.
    """
    text = f"{_hundredths(score['value'])} of 100"
    if score["low"] is None:
        return text
    return f"{text} ({told}{_hundredths(score['low'])} to {_hundredths(score['high'])})"


def _hundredths(value: float | None) -> str:
    """Returns a share in hundredths; only an exact 0 or 1 becomes 0 or 100."""
    if value is None:
        return "–"
    rounded = round(100 * value)
    return f"{100 * value:.1f}" if rounded in (0, 100) and value not in (0, 1) else f"{rounded}"


def _row_of_counts(
    name: str, counts: Sequence[int], totals: Sequence[int], right: Sequence[int]
) -> dict[str, Any]:
    """Returns a row of the table of answers; `right` has the places of the right ones."""
    cells = [
        {"count": int(count), "share": float(count / max(total, 1)), "is_right": place in right}
        for place, (count, total) in enumerate(zip(counts, totals, strict=True))
    ]
    return {"name": name, "cells": cells}

"""A grade for each image: learned as classes, judged by how far off it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfrecord_io.kinds.classes import GRADES
from train.kinds import words
from train.kinds.classes import Classes
from train.kinds.measures import ratios, sums_by_place
from train.kinds.task import Answers

#: The measure of grades, see `quadratic_kappa`.
KAPPA = "quadratic_kappa"


class Grades(Classes):
    """Classes whose order means something, from the lowest to the highest."""

    kind = GRADES
    run_measures = ("accuracy", KAPPA, "ece")
    tiles = (("quadratic weighted kappa", KAPPA, words.thousandths), Classes.tiles[0])
    glossary = (
        f"{Classes.glossary} Kappa: the agreement with the true grades beyond chance, where a "
        "mistake of two grades weighs four times one of a single grade; 100 % is perfect, 0 % is "
        "chance."
    )

    def score(self, answers: Answers, weights: np.ndarray) -> dict[str, np.ndarray]:
        size = len(answers.label_names)
        given = self.chosen(answers.probabilities)
        pairs = sums_by_place(answers.truths * size + given, weights, size * size)
        kappa = quadratic_kappa(pairs.reshape(-1, size, size))
        return super().score(answers, weights) | {KAPPA: kappa}

    def verdict(self, metrics: Mapping[str, Any]) -> list[str]:
        first, *others = super().verdict(metrics)
        kappa = metrics["scores"][KAPPA]
        if kappa["value"] is None:
            return [first, *others]
        told = words.with_interval(kappa, "{:.2f}".format)
        return [first, f"Its quadratic weighted kappa is {told}.", *others]


GRADES = Grades()


def quadratic_kappa(tables: np.ndarray) -> np.ndarray:
    """Returns the weighted kappa of grades: 1 for the right ones, 0 for an agreement by chance.

    A mistake weighs as the square of its distance in grades. Source: Cohen 1968, "Weighted kappa:
    nominal scale agreement with provision for scaled disagreement or partial credit".

    Args:
        tables: float64 [num_tables, num_grades, num_grades], examples by true and given grade.

    Returns:
        float64 [num_tables]; NaN if all grades, true and given, are the same one.
    """
    places = np.arange(tables.shape[-1])
    distances = np.square(places[:, None] - places).astype(np.float64)
    by_chance = tables.sum(2)[:, :, None] * tables.sum(1)[:, None, :]
    expected = (by_chance * distances).sum((1, 2))
    weighted = (tables * distances).sum((1, 2)) * tables.sum((1, 2))
    return 1 - ratios(weighted, expected)

"""Do 95 % intervals hold the truth, and does the audit find nothing where there is nothing?

    python benchmarks/interval_coverage.py

First, intervals of metrics.json. Samples of groups of uneven size, whose images resemble each
other, are drawn from a population whose measures are known, and the intervals that hold them are
counted. Second, the audit's figure of how well facts about the files predict the class. The labels
of whole groups are permuted, so the truth is chance; the intervals that hold it are counted.
"""

from __future__ import annotations

import argparse
import functools

import numpy as np
import pyarrow as pa

from tfrecord_io.auditing import shortcuts
from train.kinds.classes import CLASSES
from train.kinds.measures import area_under_curve
from train.kinds.task import Answers
from train.results.bootstrap import examples_behind, with_intervals

#: Standard deviation of the logarithm of the number of images in a group; the median is 4.
UNEVENNESS = (0.0, 1.0, 1.5)

NUM_GROUPS = (20, 40, 100)

MEASURES = ("accuracy", "balanced_accuracy", "sensitivity/yes", "specificity/yes", "auc/yes")

#: Groups and classes of the permuted labels.
PERMUTED = ((24, 2), (40, 2), (40, 4), (100, 4), (400, 4))

_POPULATION = 30_000
_RESAMPLES = 400


def uneven_groups(generator: np.random.Generator, num_groups: int, unevenness: float) -> np.ndarray:
    """Returns the group of each image, int [num_images]."""
    sizes = np.exp(generator.normal(np.log(4), unevenness, num_groups))
    return np.repeat(np.arange(num_groups), np.clip(sizes.astype(int), 1, 60))


def draw_answers(generator: np.random.Generator, groups: np.ndarray, skill: float) -> Answers:
    """Returns answers that resemble each other within a group, int [num_images].

    A skill of 1 is right about 79 of 100 images, one of 2 about 95.
    """
    num_groups = int(groups.max()) + 1
    truths = generator.integers(2, size=num_groups)[groups]
    of_group = generator.normal(0, 1.0, num_groups)[groups]
    logits = skill * (2.0 * truths - 1.0) + of_group + generator.normal(0, 0.7, len(groups))
    likely = 1 / (1 + np.exp(-logits))
    return Answers(
        probabilities=np.stack([1 - likely, likely], 1), truths=truths, label_names=("no", "yes")
    )


def measure(answers: Answers, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the `MEASURES`, without others that take longer."""
    is_yes = answers.truths == 1
    area = area_under_curve(is_yes, answers.probabilities[:, 1], weights)
    found = CLASSES.score(answers, weights) | {"auc/yes": area}
    return {name: found[name] for name in MEASURES}


def coverage(
    num_groups: int, unevenness: float, skill: float, num_samples: int
) -> dict[str, float]:
    """Returns the share of the intervals that hold the truth, by measure."""
    generator = np.random.default_rng(0)
    everyone = uneven_groups(generator, _POPULATION, unevenness)
    population = draw_answers(generator, everyone, skill)
    truth = measure(population, np.ones((1, len(population.truths))))
    held: dict[str, list[bool]] = {name: [] for name in MEASURES}
    for number in range(num_samples):
        groups = uneven_groups(generator, num_groups, unevenness)
        answers = draw_answers(generator, groups, skill)
        has = CLASSES.has(answers.truths, 2)
        found = with_intervals(
            functools.partial(measure, answers),
            groups,
            examples_behind(CLASSES.views(answers.label_names), has, groups),
            num_samples=_RESAMPLES,
            seed=number,
        )
        for name, entry in held.items():
            if found[name]["low"] is not None:
                entry.append(found[name]["low"] <= truth[name][0] <= found[name]["high"])
    return {name: float(np.mean(entries)) for name, entries in held.items()}


def chance_held(num_groups: int, num_classes: int, num_permutations: int, seed: int) -> int:
    """Returns in how many permutations the audit's interval holds chance."""
    generator = np.random.default_rng(seed)
    groups = uneven_groups(generator, num_groups, 1.0)
    images = pa.table(
        {
            "study": groups.astype(str),
            "brightness": generator.normal(60, 10, num_groups)[groups]
            + generator.normal(size=len(groups)),
            "quantization": generator.integers(1, 6, num_groups)[groups],
            "width": generator.integers(500, 503, num_groups)[groups],
            "height": np.full(len(groups), 500),
        }
    )
    held = 0
    for _ in range(num_permutations):
        labels = generator.permutation(np.arange(num_groups) % num_classes)[groups]
        found = shortcuts.measure(images, labels)
        held += found is not None and found.low <= found.chance <= found.high
    return held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--num_samples", type=int, default=1000, help="samples for each setting")
    parser.add_argument("--num_permutations", type=int, default=100)
    parser.add_argument("--num_groups", type=int, nargs="+", default=NUM_GROUPS)
    parser.add_argument("--skill", type=float, default=1.0, help="of the network, see draw_answers")
    arguments = parser.parse_args()
    print("| groups | unevenness | " + " | ".join(MEASURES) + " |")
    print("| --- | --- |" + " --- |" * len(MEASURES))
    for num_groups in arguments.num_groups:
        for unevenness in UNEVENNESS:
            shares = coverage(num_groups, unevenness, arguments.skill, arguments.num_samples)
            told = " | ".join(f"{100 * share:.1f}" for share in shares.values())
            print(f"| {num_groups} | {unevenness} | {told} |", flush=True)
    print("\n| groups | classes | permutations that hold, by seed |\n| --- | --- | --- |")
    for num_groups, num_classes in PERMUTED:
        held = [
            chance_held(num_groups, num_classes, arguments.num_permutations, seed)
            for seed in range(5)
        ]
        print(f"| {num_groups} | {num_classes} | {', '.join(map(str, held))} |", flush=True)


if __name__ == "__main__":
    main()

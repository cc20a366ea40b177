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
from scipy import special

from tfrecord_io.auditing import shortcuts
from tfrecord_io.format.groups import group_images
from train.kinds.classes import GRADES
from train.kinds.measures import predictive_values
from train.kinds.task import Answers
from train.results.bootstrap import examples_behind, with_intervals

#: Standard deviation of the logarithm of the number of images in a group (the median is 4), and the
#: share of groups that are positive.
SETTINGS = ((0.0, 0.5), (1.0, 0.5), (1.5, 0.5), (1.0, 0.2))

#: Groups and classes of the permuted labels.
PERMUTED = ((24, 2), (40, 2), (40, 4), (100, 4), (400, 4))

_POPULATION, _RESAMPLES, _GOAL = 30_000, 400, 92


def uneven_groups(generator: np.random.Generator, num_groups: int, unevenness: float) -> np.ndarray:
    """Returns the group of each image, int [num_images]."""
    sizes = np.exp(generator.normal(np.log(4), unevenness, num_groups))
    return np.repeat(np.arange(num_groups), np.clip(sizes.astype(int), 1, 60))


def draw_answers(
    generator: np.random.Generator, groups: np.ndarray, skill: float, positive: float
) -> Answers:
    """Returns answers; a skill of 1 is right about 79 of 100 images, one of 2 about 95."""
    num_groups = int(groups.max()) + 1
    is_positive = (generator.random(num_groups) < positive)[groups]
    of_group = generator.normal(0, 1.0, num_groups)[groups]
    logits = skill * (2.0 * is_positive - 1.0) + of_group + generator.normal(0, 0.7, len(groups))
    likely = special.expit(np.floor(10 * logits) / 10 + 0.05)
    probabilities = np.stack([1 - likely, likely], 1)
    truths = np.stack([~is_positive, is_positive], 1)
    return Answers(probabilities=probabilities, truths=truths, label_names=("no", "yes"))


def measure(answers: Answers, prevalence: float, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the measures of grades, and those of the label `yes` that views have."""
    found = GRADES.score(answers, weights) | GRADES.areas(answers, weights)
    rates = found["sensitivity/yes"], found["specificity/yes"]
    values = predictive_values(*rates, prevalence)
    found |= {f"{name}/yes": value for name, value in values.items()}
    return {name: values for name, values in found.items() if not name.endswith("/no")}


def coverage(
    num_groups: int, unevenness: float, positive: float, skill: float, num_samples: int, seed: int
) -> dict[str, tuple[float, float]]:
    """Returns the percentage of intervals that hold the truth, and their median width, by measure.

    A sample without an interval, such as one with an area of 1, does not count.
    """
    generator = np.random.default_rng(seed)
    everyone = uneven_groups(generator, _POPULATION, unevenness)
    population = draw_answers(generator, everyone, skill, positive)
    truth = measure(population, positive, np.ones((1, len(everyone))))
    ends: dict[str, list[tuple[float, float]]] = {name: [] for name in truth}
    for number in range(num_samples):
        groups = uneven_groups(generator, num_groups, unevenness)
        answers = draw_answers(generator, groups, skill, positive)
        found = with_intervals(
            functools.partial(measure, answers, positive),
            groups,
            examples_behind(GRADES.views(("no", "yes")), answers.truths, groups),
            num_samples=_RESAMPLES,
            seed=number,
        )
        for name, entry in found.items():
            if entry["low"] is not None:
                ends[name].append((entry["low"], entry["high"]))
    results = {}
    for name, pairs in ends.items():
        low, high = np.reshape(pairs, (-1, 2)).T
        held = np.mean((low <= truth[name][0]) & (truth[name][0] <= high))
        results[name] = 100 * float(held), float(np.median(high - low))
    return results


def chance_held(num_groups: int, num_classes: int, num_permutations: int, seed: int) -> int:
    """Returns in how many permutations the audit's interval holds chance."""
    generator = np.random.default_rng(seed)
    groups = uneven_groups(generator, num_groups, 1.0)
    brightness = generator.normal(60, 10, num_groups)[groups]
    columns = {
        "study": groups.astype(str),
        "brightness": brightness + generator.normal(size=len(groups)),
        "quantization": generator.integers(1, 6, num_groups)[groups],
        "width": generator.integers(500, 503, num_groups)[groups],
        "height": np.full(len(groups), 500),
    }
    images, held = pa.table(columns), 0
    for _ in range(num_permutations):
        labels = generator.permutation(np.arange(num_groups) % num_classes)[groups]
        found = shortcuts.measure(images, labels, group_images(images))
        held += found is not None and found.low <= found.chance <= found.high
    return held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--num_samples", type=int, default=400, help="samples for each setting")
    parser.add_argument("--num_permutations", type=int, default=100)
    parser.add_argument("--num_groups", type=int, nargs="+", default=(20, 40, 100))
    parser.add_argument("--skill", type=float, nargs="+", default=(1.0, 2.0), help="of the network")
    parser.add_argument("--seed", type=int, default=0, help="of the samples")
    given = parser.parse_args()
    for skill in given.skill:
        settings = [(number, *setting) for number in given.num_groups for setting in SETTINGS]
        found = [coverage(*each, skill, given.num_samples, given.seed) for each in settings]
        print(f"\nskill {skill:g}, {len(settings)} settings\n")
        print(f"| measure | least | median | below {_GOAL} | median width |\n|{' --- |' * 5}")
        for name in found[0]:
            held, widths = np.transpose([each[name] for each in found])
            below = np.count_nonzero(held < _GOAL)
            cells = f"{held.min():.1f} | {np.median(held):.1f} | {below} | {np.median(widths):.3f}"
            print(f"| {name} | {cells} |", flush=True)
    print("\n| groups | classes | permutations that hold, by seed |\n| --- | --- | --- |")
    for groups, classes in PERMUTED:
        held = [chance_held(groups, classes, given.num_permutations, seed) for seed in range(5)]
        print(f"| {groups} | {classes} | {', '.join(map(str, held))} |", flush=True)


if __name__ == "__main__":
    main()

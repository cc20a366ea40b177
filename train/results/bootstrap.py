"""Confidence intervals of measures, from groups such as patients that are drawn or left out.

The images of one eye are alike, and intervals that treat them as independent are too narrow. The
variance of a measure is the larger of that of a bootstrap, which draws groups and not images, and
that of a jackknife, which leaves groups out. The jackknife also shows how well the variance is
known: badly where few groups make all mistakes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from train.kinds import measures
from train.kinds.measures import MEASURES, known
from train.kinds.task import View

CONFIDENCE_LEVEL = 0.95

#: Examples x weightings that are measured at a time; an array of this size takes 32 MB.
_CHUNK = 4_000_000

#: Most parts of the groups that are left out in turn, so that this takes a tenth of 1,000 draws.
_MAX_PARTS = 100

# What lies beyond each end of an interval.
_TAIL = (1 - CONFIDENCE_LEVEL) / 2

_NO_INTERVAL = (np.nan, np.nan)

# Values that differ by less than this part of the largest are the same, up to the rounding of sums.
_SAME = 1e-9

#: Takes how often each example counts, float64 [num_weightings, num_examples], and returns float64
#: [num_weightings] by name, NaN where a measure is not defined.
Measuring = Callable[[np.ndarray], Mapping[str, np.ndarray]]


def _measured(
    measure: Measuring, groups: np.ndarray, counts: Iterator[np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns measures for each weighting; `counts` are how often each group counts in it."""
    parts = []
    while chunk := list(itertools.islice(counts, max(1, _CHUNK // len(groups)))):
        parts.append(measure(np.stack(chunk).astype(np.float64)[:, groups]))
    return {name: np.concatenate([part[name] for part in parts]) for name in (*parts, {})[0]}


def with_intervals(
    measure: Measuring,
    groups: np.ndarray,
    behind: Mapping[str, np.ndarray],
    *,
    num_samples: int,
    seed: int,
    sizes: np.ndarray | None = None,
) -> dict[str, dict[str, Any]]:
    """Returns measures with their 95 % intervals, as metrics.json has them.

    A measure that rests on fewer than two groups has no interval. If all examples are right, or all
    are wrong, all draws are the same. A share then has the exact binomial interval for its number
    of groups (Clopper and Pearson 1934, "The use of confidence or fiducial limits illustrated in
    the case of the binomial"), and any other measure has none.

    Args:
        measure: of the examples.
        groups: int [num_examples], the group of each example, 0..num_groups-1.
        behind: how many examples of each group a measure rests on, int [num_groups] by name; all
            of them if it is not there.
        num_samples: number of draws; 0 for no intervals.
        seed: of the draws.
        sizes: how much each group counts, int [num_groups]; None for its number of examples.

    Returns:
        `value`, `low` and `high` by name; None where undefined.
    """
    everything = np.bincount(groups) if sizes is None else sizes
    num_groups, generator = len(everything), np.random.default_rng(seed)
    # Whole groups are drawn with replacement. Sources: Efron and Tibshirani 1993, "An introduction
    # to the bootstrap"; Field and Welsh 2007, "Bootstrapping clustered data". All draws of a single
    # group would be the same.
    draws = (
        np.bincount(generator.integers(num_groups, size=num_groups), minlength=num_groups)
        for _ in range(num_samples if num_groups > 1 else 0)
    )
    drawn = _measured(measure, groups, draws)
    parts = np.arange(num_groups) % _MAX_PARTS
    images = np.bincount(parts, everything)
    left_out = range(len(images) if drawn else 0)
    without = _measured(measure, groups, (parts != part for part in left_out))
    entries = {}
    for name, (value,) in measure(np.ones((1, len(groups)))).items():
        ends = _NO_INTERVAL
        if drawn:
            rests_on = behind.get(name, everything)
            ends = _interval(name, float(value), drawn[name], without[name], images, rests_on)
        entries[name] = dict(
            zip(("value", "low", "high"), map(rounded, (value, *ends)), strict=True)
        )
    return entries


def _interval(
    name: str,
    value: float,
    drawn: np.ndarray,
    without: np.ndarray,
    images: np.ndarray,
    sizes: np.ndarray,
) -> tuple[float, float]:
    """Returns the interval of a measure, NaN if there is none.

    Between two limits, such as 0 and 1, it is that of a share of as many independent examples as
    vary as much. Otherwise it is Student's, symmetric about the value. `drawn` has the value of
    each draw, and `without`, [num_parts], that without each part of the groups, of as many
    `images`. The `sizes`, int [num_groups], are the examples of each group behind the measure.
    """
    drawn = drawn[~np.isnan(drawn)]
    num_groups = int(np.count_nonzero(sizes))
    if num_groups < 2 or not len(drawn):
        return _NO_INTERVAL
    measure = known(name)
    least, most, is_share = measure.least, measure.most, measure.counts
    if is_share and value in (0, 1):
        return _binomial(value, num_groups)
    if np.ptp(drawn) <= _SAME * abs(value):
        return _NO_INTERVAL
    variance, freedom = _jackknife(value, without, images, is_share)
    # Groups of uneven size count as fewer. Source: Kish 1965, "Survey sampling".
    effective = sizes.sum() ** 2 / np.square(sizes).sum()
    quantile = stats.t.isf(_TAIL, max(1.0, min(freedom, effective - 1)))
    deviation = np.sqrt(max(drawn.var(), variance))
    if not (np.isfinite(most - least) and least < value < most):
        return max(least, value - quantile * deviation), min(most, value + quantile * deviation)
    share, width = (value - least) / (most - least), most - least
    independent = share * (1 - share) * (width / deviation * stats.norm.isf(_TAIL) / quantile) ** 2
    low, high = _binomial(share, independent)
    return least + width * low, least + width * high


def _jackknife(
    value: float, without: np.ndarray, images: np.ndarray, is_share: bool
) -> tuple[float, float]:
    """Returns the variance of a measure, and the degrees of freedom with which it is known.

    A few large groups tell little about how large groups err. So the variance is half that of the
    jackknife (Efron and Stein 1981, "The jackknife estimate of variance") and half what it would be
    if the images of large groups erred as those of small ones do.

    The degrees of freedom are computed from the kurtosis of the contributions. Source: O'Neill
    2014, "Some useful moment results in sampling problems". What the variance of a share owes to
    the share itself, p (1 - p), is known and does not count. For the arguments see `_interval`.
    """
    contributions = np.nan_to_num(measures.defined_mean(without) - without)
    matters = np.abs(contributions) > _SAME * np.abs(contributions).max()
    if not matters.any():
        return 0.0, 1.0
    contributions, images = contributions[matters], images[matters]
    number, squares = len(contributions), np.square(contributions)
    alike = np.square(images).sum() / images.sum() * (squares / images).sum()
    variance = (1 - 1 / number) * (squares.sum() + alike) / 2
    excess = squares / squares.mean() - 1
    if is_share:
        excess -= (number - 1) * contributions * (1 - 2 * value) / (value * (1 - value))
    return variance, 2 * number / (np.square(excess).mean() + 2 / (number - 1))


def _binomial(value: float, number: float) -> tuple[float, float]:
    """Returns the exact interval of a share of so many independent examples.

    Source: Korn and Graubard 1998, "Confidence intervals for proportions with small expected number
    of positive counts estimated from survey data".
    """
    right, wrong = value * number, (1 - value) * number
    low = stats.beta.ppf(_TAIL, right, wrong + 1) if right else 0.0
    high = stats.beta.isf(_TAIL, right + 1, wrong) if wrong else 1.0
    return float(low), float(high)


def examples_behind(
    views: Sequence[View], truths: np.ndarray, groups: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns how many examples of each group the measures of views rest on, by name."""
    return {
        view.of(measure): counts
        for view in views
        for measure, counts in behind_rates(view.is_positive(truths), groups).items()
    }


def behind_rates(is_positive: np.ndarray, groups: np.ndarray) -> dict[str, np.ndarray]:
    """Returns on how many examples of each group the measures of a question rest, by name."""
    num_groups = int(groups.max(initial=-1)) + 1
    with_it, without = (
        np.bincount(groups[side], minlength=num_groups) for side in (is_positive, ~is_positive)
    )
    fewer = min(with_it, without, key=np.count_nonzero)
    sides = {"positives": with_it, "negatives": without, "fewer": fewer}
    return {name: sides[entry.behind] for name, entry in MEASURES.items() if entry.behind}


def rounded(number: float) -> float | None:
    """Returns a number with six digits behind the point; None for NaN."""
    return None if np.isnan(number) else float(f"{number:.6f}")

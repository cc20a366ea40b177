"""Confidence intervals of measures, from a bootstrap over groups such as patients.

It draws groups and not images: the images of one eye are alike, and intervals that treat them as
independent are too narrow. So are the answers of several networks to one image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from train.kinds.measures import CALIBRATION_LINE, PREDICTIVE_VALUES
from train.kinds.task import Task, View

CONFIDENCE_LEVEL = 0.95

#: Examples x resamples that are weighted at a time; an array of this size takes 32 MB.
_CHUNK = 4_000_000

# What lies beyond each end of an interval.
_TAIL = (1 - CONFIDENCE_LEVEL) / 2

_NO_INTERVAL = (np.nan, np.nan)

# How the measures that are shares of examples begin.
_SHARES = ("accuracy", "sensitivity", "specificity", "urgent/s")

# How those begin that are means of shares, or shares of pairs of examples.
_LIKE_SHARES = ("balanced_accuracy", "auc", "macro_auc", "urgent/auc")

# Draws that differ by less than this part of the measure are the same, up to the rounding of sums.
_SAME = 1e-9


def bootstrap(
    measure: Callable[[np.ndarray], Mapping[str, np.ndarray]],
    groups: np.ndarray,
    *,
    num_samples: int,
    seed: int,
) -> dict[str, np.ndarray]:
    """Returns what measures are on draws of whole groups with replacement.

    Source: Efron and Tibshirani 1993, "An introduction to the bootstrap"; drawing clusters: Field
    and Welsh 2007, "Bootstrapping clustered data".

    Args:
        measure: takes how often each example counts, float64 [num_draws, num_examples], and
            returns float64 [num_draws] by name.
        groups: int [num_examples], the group of each example, 0..num_groups-1.
        num_samples: number of draws.
        seed: seed of the draws; the first draws do not depend on `num_samples`.

    Returns:
        float64 [num_samples] by name, NaN where a draw does not define the measure. Empty if there
        are fewer than two groups, because all draws would be the same.
    """
    num_groups = int(groups.max()) + 1
    if num_groups < 2:
        return {}
    generator = np.random.default_rng(seed)
    parts: dict[str, list[np.ndarray]] = {}
    at_once = max(1, _CHUNK // len(groups))
    for start in range(0, num_samples, at_once):
        counts = [
            np.bincount(generator.integers(num_groups, size=num_groups), minlength=num_groups)
            for _ in range(min(at_once, num_samples - start))
        ]
        weights = np.stack(counts).astype(np.float64)[:, groups]
        for name, values in measure(weights).items():
            parts.setdefault(name, []).append(values)
    return {name: np.concatenate(values) for name, values in parts.items()}


def with_intervals(
    measure: Callable[[np.ndarray], Mapping[str, np.ndarray]],
    groups: np.ndarray,
    behind: Mapping[str, np.ndarray],
    *,
    num_samples: int,
    seed: int,
    digits: str = Task.digits,
) -> dict[str, dict[str, Any]]:
    """Returns measures with their 95 % intervals, as metrics.json has them.

    A measure that rests on fewer than two groups has no interval. If all examples are right, or all
    are wrong, all draws are the same. A share then has the exact binomial interval for its number
    of groups (Clopper and Pearson 1934, "The use of confidence or fiducial limits illustrated in
    the case of the binomial"), and any other measure has none.

    Args:
        measure: see `bootstrap`.
        groups: see `bootstrap`.
        behind: how many examples of each group a measure rests on, int [num_groups] by name; all
            of them if it is not there.
        num_samples: see `bootstrap`.
        seed: see `bootstrap`.
        digits: format to which they are rounded.

    Returns:
        `value`, `low` and `high` by name; None where undefined.
    """
    drawn = bootstrap(measure, groups, num_samples=num_samples, seed=seed)
    everything, nothing = np.bincount(groups), np.empty(0)
    entries = {}
    for name, (value,) in measure(np.ones((1, len(groups)))).items():
        sizes = behind.get(name, everything)
        low, high = _interval(name, float(value), drawn.get(name, nothing), sizes)
        ends = {"value": value, "low": low, "high": high}
        entries[name] = {end: rounded(number, digits) for end, number in ends.items()}
    return entries


def _interval(name: str, value: float, drawn: np.ndarray, sizes: np.ndarray) -> tuple[float, float]:
    """Returns the interval of a measure; see `with_intervals` and `percentiles` for the arguments.

    NaN if there is none.
    """
    drawn = drawn[~np.isnan(drawn)]
    num_groups = int(np.count_nonzero(sizes))
    if num_groups < 2 or not len(drawn):
        return _NO_INTERVAL
    if name.startswith(_SHARES) and value in (0, 1):
        return _binomial(value, num_groups)
    if np.ptp(drawn) <= _SAME * abs(value):
        return _NO_INTERVAL
    if name.startswith((*_SHARES, *_LIKE_SHARES)) and 0 < value < 1:
        quantile, widening = _few_groups(sizes)
        independent = value * (1 - value) / (drawn.std() * widening) ** 2
        return _binomial(value, independent * (stats.norm.isf(_TAIL) / quantile) ** 2)
    return percentiles(drawn, sizes)


def _binomial(value: float, number: float) -> tuple[float, float]:
    """Returns the exact interval of a share of so many independent examples.

    A share of examples that are alike is taken as that of fewer independent ones: as many as vary
    as much, and fewer still where the variance is known from few groups. Unlike percentiles, the
    interval is not too short near 0 and 1. Source: Korn and Graubard 1998, "Confidence intervals
    for proportions with small expected number of positive counts estimated from survey data".
    """
    right, wrong = value * number, (1 - value) * number
    low = stats.beta.ppf(_TAIL, right, wrong + 1) if right else 0.0
    high = stats.beta.isf(_TAIL, right + 1, wrong) if wrong else 1.0
    return float(low), float(high)


def percentiles(drawn: np.ndarray, sizes: np.ndarray) -> tuple[float, float]:
    """Returns the interval between two percentiles of the draws of a measure.

    They are those at 2.5 % and 97.5 % for many groups of one size, and further out for few. Source:
    Hesterberg 2015, "What teachers should know about the bootstrap" (expanded percentiles).

    Args:
        drawn: float64 [num_draws], without NaN.
        sizes: number of examples of each group, int [num_groups].
    """
    quantile, widening = _few_groups(sizes)
    tail = stats.norm.sf(quantile * widening)
    low, high = np.quantile(drawn, (tail, 1 - tail))
    return float(low), float(high)


def _few_groups(sizes: np.ndarray) -> tuple[float, float]:
    """Returns Student's quantile, and the factor by which draws of few groups vary too little.

    Groups of unequal size count as fewer. Source: Kish 1965, "Survey sampling" (effective sample
    size).

    Args:
        sizes: number of examples of each group, int [num_groups].
    """
    effective = max(2.0, sizes.sum() ** 2 / max(np.square(sizes).sum(), 1))
    return float(stats.t.isf(_TAIL, effective - 1)), np.sqrt(effective / (effective - 1))


def examples_behind(
    views: Sequence[View], has: np.ndarray, groups: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns how many examples of each group the measures of views rest on, by name.

    Args:
        views: those that the measures may be about.
        has: which examples have which labels, bool [num_examples, num_labels].
        groups: int [num_examples], the group of each example, 0..num_groups-1.

    Returns:
        int [num_groups] by name.
    """
    return {
        view.of(measure): counts
        for view in views
        for measure, counts in behind_rates(view.is_positive(has), groups).items()
    }


def behind_rates(is_positive: np.ndarray, groups: np.ndarray) -> dict[str, np.ndarray]:
    """Returns how many examples of each group the measures of a question with yes and no rest on.

    A sensitivity rests on the positive examples, a specificity on the negative ones, and any other
    measure on those that are in fewer groups.
    """
    num_groups = int(groups.max(initial=-1)) + 1
    with_it, without = (
        np.bincount(groups[side], minlength=num_groups) for side in (is_positive, ~is_positive)
    )
    others = ("auc", "average_precision", *PREDICTIVE_VALUES, *CALIBRATION_LINE)
    fewer = min(with_it, without, key=np.count_nonzero)
    return {"sensitivity": with_it, "specificity": without, **dict.fromkeys(others, fewer)}


def rounded(number: float, digits: str) -> float | None:
    """Returns a number rounded to a format, such as `.6f`; None for NaN."""
    return None if np.isnan(number) else float(f"{number:{digits}}")

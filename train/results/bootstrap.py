"""Confidence intervals of measures, from a bootstrap over groups such as patients.

It draws groups and not images: the images of one eye are alike, and intervals that treat them as
independent are too narrow. So are the answers of several networks to one image.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from train.kinds.measures import CALIBRATION_LINE, PREDICTIVE_VALUES
from train.kinds.task import Task, View

CONFIDENCE_LEVEL = 0.95

#: Examples x resamples that are weighted at a time; an array of this size takes 32 MB.
_CHUNK = 4_000_000

_NO_INTERVAL = (np.nan, np.nan)

# How the measures that are shares of examples begin.
_SHARES = ("accuracy", "sensitivity", "specificity", "urgent/s")


def bootstrap(
    measure: Callable[[np.ndarray], Mapping[str, np.ndarray]],
    groups: np.ndarray,
    behind: Mapping[str, np.ndarray] = types.MappingProxyType({}),
    *,
    num_samples: int,
    seed: int,
) -> dict[str, tuple[float, float]]:
    """Returns percentile intervals of measures, by drawing whole groups with replacement.

    Source: Efron and Tibshirani 1993, "An introduction to the bootstrap", chapter 13; drawing
    clusters: Field and Welsh 2007, "Bootstrapping clustered data".

    Args:
        measure: takes how often each example counts, float64 [num_draws, num_examples], and
            returns float64 [num_draws] by name.
        groups: int [num_examples], the group of each example, 0..num_groups-1.
        behind: how many examples of each group a measure rests on, int [num_groups] by name; all
            of them if it is not there.
        num_samples: number of draws.
        seed: seed of the draws; the first draws do not depend on `num_samples`.

    Returns:
        (low, high) at the confidence level, by name; NaN if no draw defines the measure. Empty
        if there are fewer than two groups, because all draws would be the same.
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
    intervals = {}
    everything = np.bincount(groups)
    for name, values in parts.items():
        drawn = np.concatenate(values)
        defined = drawn[~np.isnan(drawn)]
        tail = _tail(behind.get(name, everything))
        low, high = np.quantile(defined, (tail, 1 - tail)) if len(defined) else (np.nan, np.nan)
        intervals[name] = (float(low), float(high))
    return intervals


def _tail(sizes: np.ndarray) -> float:
    """Returns the share of the draws that lies beyond each end of an interval.

    It is 2.5 % for many groups of one size. Of few groups the plain percentiles are too near to
    each other, so the share follows Student's t. Source: Hesterberg 2015, "What teachers should
    know about the bootstrap" (expanded percentile interval). Groups of unequal size count as fewer.
    Source: Kish 1965, "Survey sampling" (effective sample size).

    Args:
        sizes: number of examples of each group, int [num_groups].
    """
    effective = max(2.0, sizes.sum() ** 2 / max(np.square(sizes).sum(), 1))
    quantile = stats.t.ppf((1 + CONFIDENCE_LEVEL) / 2, effective - 1)
    return float(stats.norm.cdf(-quantile * np.sqrt(effective / (effective - 1))))


def with_intervals(
    measure: Callable[[np.ndarray], Mapping[str, np.ndarray]],
    groups: np.ndarray,
    behind: Mapping[str, np.ndarray],
    *,
    num_samples: int,
    seed: int,
    digits: str = Task.digits,
) -> dict[str, dict[str, Any]]:
    """Returns measures with their intervals, see `score_entry`, by name.

    Args:
        measure: see `bootstrap`.
        groups: see `bootstrap`.
        behind: see `bootstrap`.
        num_samples: see `bootstrap`.
        seed: see `bootstrap`.
        digits: format to which they are rounded.
    """
    intervals = bootstrap(measure, groups, behind, num_samples=num_samples, seed=seed)
    everything = np.bincount(groups)
    return {
        name: score_entry(
            value,
            *intervals.get(name, _NO_INTERVAL),
            num_groups=int(np.count_nonzero(behind.get(name, everything))),
            is_share=name.startswith(_SHARES),
            digits=digits,
        )
        for name, (value,) in measure(np.ones((1, len(groups)))).items()
    }


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


def score_entry(
    value: float,
    low: float,
    high: float,
    *,
    num_groups: int,
    is_share: bool,
    digits: str = Task.digits,
) -> dict[str, Any]:
    """Returns the entry of a measure in metrics.json.

    If all examples are right, or all are wrong, every bootstrap draw gives the same value and the
    interval has no width. A share then gets the exact binomial interval for its number of groups
    (Clopper and Pearson 1934, "The use of confidence or fiducial limits illustrated in the case of
    the binomial"). Any other measure gets no interval.

    Args:
        value: the measure; NaN if it is undefined.
        low: lower end of its interval, or NaN.
        high: upper end of its interval, or NaN.
        num_groups: groups that the measure rests on; with fewer than two there is no interval.
        is_share: whether it is a share of examples, such as a sensitivity.
        digits: format to which it is rounded.

    Returns:
        `value`, `low` and `high`; None for NaN.
    """
    if num_groups < 2:
        low = high = np.nan
    elif low == high:
        margin = 1 - ((1 - CONFIDENCE_LEVEL) / 2) ** (1 / num_groups)
        limits = {0.0: (0.0, margin), 1.0: (1 - margin, 1.0)} if is_share else {}
        low, high = limits.get(float(value), _NO_INTERVAL)
    return {
        "value": rounded(value, digits),
        "low": rounded(low, digits),
        "high": rounded(high, digits),
    }


def rounded(number: float, digits: str) -> float | None:
    """Returns a number rounded to a format, such as `.6f`; None for NaN."""
    return None if np.isnan(number) else float(f"{number:{digits}}")

"""Confidence intervals of measures, from a bootstrap over patients.

It draws patients and not images: the images of one eye are alike, and intervals that treat them as
independent are too narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tfrecord_io.groups import group_codes, group_names
from train.kinds.task import Task, View

CONFIDENCE_LEVEL = 0.95

#: Examples x resamples that are weighted at a time; an array of this size takes 32 MB.
_CHUNK = 4_000_000

_NO_INTERVAL = (np.nan, np.nan)


def group_indices(groups: Sequence[str] | None, num_examples: int) -> np.ndarray:
    """Returns the group of each example as an index in 0..num_groups-1.

    Args:
        groups: name of each example's group; None if each example is its own group.
        num_examples: number of examples.

    Returns:
        int [num_examples].
    """
    return group_codes(group_names([None] * num_examples if groups is None else groups))


def bootstrap(
    measure: Callable[[np.ndarray], Mapping[str, np.ndarray]],
    groups: np.ndarray,
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
    tail = (1 - CONFIDENCE_LEVEL) / 2
    intervals = {}
    for name, values in parts.items():
        drawn = np.concatenate(values)
        defined = drawn[~np.isnan(drawn)]
        low, high = np.quantile(defined, (tail, 1 - tail)) if len(defined) else (np.nan, np.nan)
        intervals[name] = (float(low), float(high))
    return intervals


def num_groups_behind(
    names: Iterable[str], views: Sequence[View], has: np.ndarray, groups: np.ndarray
) -> dict[str, int]:
    """Returns how many groups each measure rests on, by name.

    A sensitivity rests on the groups with a positive example, a specificity on those with a
    negative one, an area under a curve on the fewer of both, and any other measure on all.

    Args:
        names: of the measures.
        views: those that the measures may be about.
        has: which examples have which labels, bool [num_examples, num_labels].
        groups: int [num_examples], the group of each example, 0..num_groups-1.
    """
    num_groups = int(groups.max()) + 1
    behind = dict.fromkeys(names, num_groups)
    for view in views:
        is_positive = has[:, view.places].any(-1)
        num_with, num_without = (
            num_groups_of(groups[side]) for side in (is_positive, ~is_positive)
        )
        behind[view.of("sensitivity")] = num_with
        behind[view.of("specificity")] = num_without
        for area in ("auc", "average_precision"):
            behind[view.of(area)] = min(num_with, num_without)
    return behind


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


def num_groups_of(groups: np.ndarray) -> int:
    """Returns how many different groups there are among int [num_examples]."""
    return int(np.count_nonzero(np.bincount(groups)))


def rounded(number: float, digits: str) -> float | None:
    """Returns a number rounded to a format, such as `.6f`; None for NaN."""
    return None if np.isnan(number) else float(f"{number:{digits}}")

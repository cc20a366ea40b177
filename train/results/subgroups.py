"""The images of each site, device, sex, range of ages or other value of a column."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

#: Most values of a column that are measured by themselves; of more, those with the most images.
MAX_VALUES = 50

#: Name of the subgroup of which the value is not known.
UNKNOWN = "unknown"

# A column of numbers with more different ones than this is divided at its quartiles.
_MAX_NUMBERS = 12


def subgroups(values: Sequence[Any]) -> dict[str, np.ndarray]:
    """Returns the places of the examples of each subgroup, by its name, in the order of the values.

    Many different numbers become four ranges between their quartiles.

    Args:
        values: of a column, one for each example; None where unknown.
    """
    known = [value for value in values if value is not None]
    names = {value: str(value) for value in known}
    if len(names) > _MAX_NUMBERS and all(isinstance(value, int | float) for value in known):
        quartiles = np.unique(np.quantile(known, (0.25, 0.5, 0.75)))
        ends = itertools.pairwise((min(known), *quartiles, max(known)))
        names = {
            place: f"{'above ' if place else ''}{_text(low)} to {_text(high)}"
            for place, (low, high) in enumerate(ends)
        }
        values = [
            value if value is None else int(np.searchsorted(quartiles, value)) for value in values
        ]
    rows = collections.defaultdict(list)
    for row, value in enumerate(values):
        rows[value].append(row)
    unknown = rows.pop(None, [])
    largest = sorted(rows, key=lambda value: -len(rows[value]))[:MAX_VALUES]
    found = {names[value]: rows[value] for value in sorted(largest)}
    if unknown:
        found[UNKNOWN] = found.get(UNKNOWN, []) + unknown
    return {name: np.array(places) for name, places in found.items()}


def _text(number: float) -> str:
    return f"{number:.4g}" if abs(number) < 10_000 else f"{number:,.0f}"

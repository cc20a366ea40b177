"""What is known of examples: keys, groups, patients, source files, and values to measure by."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from tfrecord_io.groups import Groups


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """The identities of some examples, in the order of the reader without shuffling.

    Attributes:
        keys: keys of the examples.
        groups: which of them belong together.
        patients: patient of each example, None where it is unknown; None if all are unknown.
        paths: source file of each example, or None if the dataset does not name them all.
        measured: columns whose values are measured by themselves, by name: numbers if the column
            holds numbers, else texts; None where unknown.
    """

    keys: tuple[str, ...]
    groups: Groups
    patients: tuple[str | None, ...] | None = None
    paths: tuple[str, ...] | None = None
    measured: Mapping[str, tuple[str | float | None, ...]] = dataclasses.field(default_factory=dict)

    @property
    def num_patients(self) -> int | None:
        """Number of the patients that are known; None if there is none."""
        return len(set(self.patients) - {None}) if self.patients else None

    def take(self, rows: np.ndarray) -> Examples:
        """Returns some of the examples, int64 [num_chosen], in that order."""

        def some(values: tuple | None) -> tuple | None:
            return None if values is None else tuple(values[row] for row in rows.tolist())

        return Examples(
            keys=some(self.keys) or (),
            groups=self.groups.take(rows),
            patients=some(self.patients),
            paths=some(self.paths),
            measured={name: some(values) or () for name, values in self.measured.items()},
        )

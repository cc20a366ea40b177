"""What is known of examples: keys, groups, patients, source files, and any other column."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tfrecord_io import groups
from tfrecord_io.groups import Groups, group_images, groups_in
from tfrecord_io.manifest import EXAMPLES_FILE_NAME, WEIGHT
from tfrecord_io.reading.mapped import MappedDataset
from tfrecord_io.stores.folder import DataPath, open_file, path_in
from train.errors import ConfigError

#: Column of the table of examples that is measured without being asked for.
SITE = "site"

# Columns of the examples table; an older table, or one without DICOM files, lacks some.
_COLUMNS = ("key", WEIGHT, "variant", groups.COLUMN, *groups.INPUTS)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """The identities of the examples of a split, in the order of the reader without shuffling.

    Attributes:
        keys: keys of the examples.
        groups: which of them belong together.
        patients: patient of each example, None where it is unknown; None if all are unknown.
        paths: source file of each example, or None if the dataset does not name them all.
        weights: how much each example counts in training, or None if the dataset does not have
            the weight of each.
        is_copy: bool [num_examples], which are augmented copies; None if there is none.
    """

    keys: tuple[str, ...]
    groups: Groups
    patients: tuple[str | None, ...] | None = None
    paths: tuple[str, ...] | None = None
    weights: tuple[float, ...] | None = None
    is_copy: np.ndarray | None = None

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
            weights=some(self.weights),
            is_copy=None if self.is_copy is None else self.is_copy[rows],
        )


def read_examples(
    directory: str | DataPath, split: str | Sequence[str], places: np.ndarray | None = None
) -> Examples:
    """Returns the identities of a split's examples, or of some of them.

    The shards give the order and the keys. The rest comes from the dataset's table of examples, if
    there is one. A table of an older release has no column with the groups; then near duplicates
    are not known.

    Args:
        directory: folder or URL of the dataset.
        split: name of the split, or of several that are read as one.
        places: int64, places of the wanted examples in the split; None for all.
    """
    dataset = MappedDataset(directory, split)
    keys = tuple(dataset.keys(range(len(dataset)) if places is None else places))
    table = read_table(directory, _COLUMNS)
    if table.column_names:
        rows = pc.index_in(pa.array(keys, pa.string()), table["key"].combine_chunks())
        if not rows.null_count:
            # Images outside the split can show what belongs together, so all are grouped.
            grouped = groups_in(table).take(rows.to_numpy())
            return _from_table(keys, grouped, table.take(rows))
    return Examples(keys=keys, groups=group_images(pa.table({"path": pa.array(keys, pa.string())})))


def _from_table(keys: tuple[str, ...], grouped: Groups, table: pa.Table) -> Examples:
    def column(name: str) -> tuple | None:
        """Returns a column's values; None if it is missing or has a gap."""
        if name not in table.column_names or table[name].null_count:
            return None
        return tuple(table[name].to_pylist())

    patients = table["patient"].to_pylist() if "patient" in table.column_names else []
    variants = column("variant")
    return Examples(
        keys=keys,
        groups=grouped,
        patients=tuple(patients) if any(patient is not None for patient in patients) else None,
        paths=column("path"),
        weights=column(WEIGHT),
        is_copy=np.array(variants) > 0 if variants and any(variants) else None,
    )


def read_columns(
    directory: str, keys: Sequence[str], names: Sequence[str]
) -> dict[str, list[str | float | None]]:
    """Returns columns of a dataset's table of examples, of those that the table has.

    Args:
        directory: folder or URL of the dataset.
        keys: of the wanted examples.
        names: of the columns.

    Returns:
        the value of each example, by column: a number if the column holds numbers, else a text;
        None where it is unknown.
    """
    table = read_table(directory, ["key", *names])
    if not table.column_names:
        return {}
    rows = table.take(pc.index_in(pa.array(keys, table["key"].type), table["key"]))
    found = [name for name in dict.fromkeys(names) if name in table.column_names]
    return {name: [_value(value) for value in rows[name].to_pylist()] for name in found}


def read_table(directory: str | DataPath, names: Sequence[str]) -> pa.Table:
    """Returns those columns that a dataset's table of examples has; none if there is no table."""
    try:
        with open_file(directory, EXAMPLES_FILE_NAME) as file:
            table = pq.ParquetFile(file)
            known = table.schema_arrow.names
            return table.read([name for name in dict.fromkeys(names) if name in known])
    except FileNotFoundError:
        return pa.table({})


def column_names(directory: str | DataPath) -> list[str]:
    """Returns the columns of a dataset's table of examples; none if there is no table."""
    try:
        with open_file(directory, EXAMPLES_FILE_NAME) as file:
            return pq.read_schema(file).names
    except FileNotFoundError:
        return []


def check_columns(directory: str, names: Sequence[str]) -> None:
    """Raises a ConfigError if a dataset's table of examples lacks one of the columns."""
    known = column_names(directory)
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(
            f"--by {unknown[0]}: expected a column of {path_in(directory, EXAMPLES_FILE_NAME)}, "
            f"which has {', '.join(known) or 'none'}"
        )


def _value(value: Any) -> str | float | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return value if isinstance(value, int | float) else str(value)

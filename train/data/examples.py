"""The identities of examples: keys, patients, source files, sites and weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfrecord_io.manifest import EXAMPLES_FILE_NAME, WEIGHT
from tfrecord_io.reading.mapped import MappedDataset


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examples:
    """The identities of the examples of a split, in the order of the reader without shuffling.

    Attributes:
        keys: keys of the examples.
        patients: patient of each example, or None if the dataset does not name them all.
        paths: source file of each example, or None if the dataset does not name them all.
        sites: site of each example, or None if the dataset does not name them all.
        weights: how much each example counts in training, or None if the dataset does not have
            the weight of each.
    """

    keys: tuple[str, ...]
    patients: tuple[str, ...] | None
    paths: tuple[str, ...] | None
    sites: tuple[str, ...] | None = None
    weights: tuple[float, ...] | None = None


def read_examples(
    directory: str, split: str | Sequence[str], places: np.ndarray | None = None
) -> Examples:
    """Returns the identities of a split's examples, or of some of them.

    The shards give the order and the keys. The rest comes from the dataset's table of examples, if
    there is one.

    Args:
        directory: folder of the dataset.
        split: name of the split, or of several that are read as one.
        places: int64, places of the wanted examples in the split; None for all.
    """
    dataset = MappedDataset(directory, split)
    keys = tuple(dataset.keys(range(len(dataset)) if places is None else places))
    path = Path(directory) / EXAMPLES_FILE_NAME
    if not path.exists():
        return Examples(keys=keys, patients=None, paths=None)
    import pyarrow.parquet as pq

    names = [split] if isinstance(split, str) else list(split)
    columns = [
        name for name in ("patient", "path", "site", WEIGHT) if name in pq.read_schema(path).names
    ]
    table = pq.read_table(path, columns=["key", *columns], filters=[("split", "in", names)])
    row_of = {key: row for row, key in enumerate(table["key"].to_pylist())}
    if not all(key in row_of for key in keys):
        return Examples(keys=keys, patients=None, paths=None)
    joined: dict[str, tuple[Any, ...]] = {}
    for name in columns:
        values = table[name].to_pylist()
        row_values = [values[row_of[key]] for key in keys]
        if all(value is not None for value in row_values):
            joined[name] = tuple(row_values if name == WEIGHT else map(str, row_values))
    return Examples(
        keys=keys,
        patients=joined.get("patient"),
        paths=joined.get("path"),
        sites=joined.get("site"),
        weights=joined.get(WEIGHT),
    )

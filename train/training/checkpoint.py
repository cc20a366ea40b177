"""Checkpoints: all variables and the position of the run, in one file that is written atomically.

The file is a plain .npz of arrays, in the order in which Keras lists its variables, and a JSON
text. Keras' own `.weights.h5` does not store the position in the data or the states of random
generators, and a kill while it is written leaves half a file.
"""

from __future__ import annotations

import collections
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfrecord_io.files import atomic_write
from train.errors import TrainingError

#: The arrays of a checkpoint by the name of their group, such as `model`, `optimizer` and `best`.
Groups = Mapping[str, Sequence[np.ndarray]]

_FACTS = "facts"


def save(
    path: Path,
    groups: Mapping[str, Sequence[keras.Variable | np.ndarray]],
    facts: Mapping[str, Any],
) -> None:
    """Writes variables or arrays by group, and JSON values; an existing file is replaced."""
    arrays = {
        f"{group}/{index:05d}": variable if isinstance(variable, np.ndarray) else variable.numpy()
        for group, variables in groups.items()
        for index, variable in enumerate(variables)
    }
    text = json.dumps(facts).encode("utf-8")
    with atomic_write(path) as file:
        np.savez(file, **{_FACTS: np.frombuffer(text, np.uint8)}, **arrays)


def load(path: Path) -> tuple[dict[str, Any], Groups]:
    """Returns (facts, arrays in the order of `save`); both are empty if there is no file.

    Raises:
        TrainingError: if the file is damaged.
    """
    groups: dict[str, list[np.ndarray]] = collections.defaultdict(list)
    if not path.exists():
        return {}, groups
    # The file is opened here because np.load does not close a damaged file.
    with path.open("rb") as file:
        try:
            arrays = np.load(file, allow_pickle=False)
            for name in sorted(set(arrays.files) - {_FACTS}):
                groups[name.partition("/")[0]].append(arrays[name])
            return json.loads(arrays[_FACTS].tobytes()), groups
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
            raise TrainingError(
                f"{path} cannot be read ({error}); remove it to start this run again from the "
                "beginning"
            ) from error


def restore(variables: Sequence[keras.Variable], values: Sequence[np.ndarray]) -> None:
    """Sets variables to the arrays of a group.

    Raises:
        TrainingError: if they differ in number or shape.
    """
    ours = [tuple(variable.shape) for variable in variables]
    theirs = [value.shape for value in values]
    if ours != theirs:
        raise TrainingError(
            f"the checkpoint has {len(theirs)} variables and this network {len(ours)}, or their "
            "shapes differ: it belongs to another configuration. Use another --workdir"
        )
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)

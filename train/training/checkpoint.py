"""Checkpoints: all variables and the position of the run, in one file that is written atomically.

The file is a plain .npz of arrays, in the order in which Keras lists its variables, and a JSON
text. Keras' own `.weights.h5` does not store the position in the data or the states of random
generators, and a kill while it is written leaves half a file.
"""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfrecord_io.files import atomic_write
from train.errors import TrainingError

_FACTS = "facts"


def save(
    path: str | os.PathLike[str],
    groups: Mapping[str, Sequence[keras.Variable | np.ndarray]],
    facts: Mapping[str, Any],
) -> None:
    """Writes variables and facts atomically; an existing file is replaced.

    Args:
        path: ends in .npz.
        groups: variables or arrays by the name of the group, such as `model` and `optimizer`.
        facts: JSON values.
    """
    arrays = {
        f"{group}/{index:05d}": variable if isinstance(variable, np.ndarray) else variable.numpy()
        for group, variables in groups.items()
        for index, variable in enumerate(variables)
    }
    text = json.dumps(facts).encode("utf-8")
    with atomic_write(path) as file:
        np.savez(file, **{_FACTS: np.frombuffer(text, np.uint8)}, **arrays)


def load_facts(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Returns the facts of a checkpoint, or None if there is no file.

    Raises:
        TrainingError: if the file is damaged.
    """
    if not Path(path).exists():
        return None
    with _reading(path) as arrays:
        return json.loads(arrays[_FACTS].tobytes())


def load_arrays(path: str | os.PathLike[str], group: str) -> list[np.ndarray]:
    """Returns the arrays of a group of an existing checkpoint, in the order of `save`.

    Raises:
        TrainingError: if the file is damaged.
    """
    with _reading(path) as arrays:
        names = sorted(name for name in arrays.files if name.startswith(f"{group}/"))
        return [arrays[name] for name in names]


def restore(path: str | os.PathLike[str], groups: Mapping[str, Sequence[keras.Variable]]) -> None:
    """Sets variables to the values that `save` wrote.

    Args:
        path: path of an existing checkpoint.
        groups: variables by the group names given to `save`; groups may be left out.

    Raises:
        TrainingError: if the file is damaged, or its variables differ in number or shape.
    """
    for group, variables in groups.items():
        values = load_arrays(path, group)
        if len(values) != len(variables):
            raise TrainingError(
                f"{path} has {len(values)} variables in the group {group}, but this network has "
                f"{len(variables)}; the checkpoint belongs to another configuration"
            )
        for value, variable in zip(values, variables, strict=True):
            if value.shape != tuple(variable.shape):
                raise TrainingError(
                    f"{path}: {variable.path} has shape {tuple(variable.shape)} in this network, "
                    f"but {value.shape} in the checkpoint, which belongs to another configuration"
                )
            variable.assign(value)


@contextlib.contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Opens a checkpoint; each array is checked by the CRC of the zip when it is read."""
    # The file is opened here because np.load does not close a damaged file.
    with Path(path).open("rb") as file:
        try:
            yield np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
            raise TrainingError(
                f"{path} cannot be read ({error}); remove it to start this run again from the "
                "beginning"
            ) from error

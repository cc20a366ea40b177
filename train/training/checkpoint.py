"""The state of a run as a file that is written atomically: an .npz of all variables, and facts.

Keras' own `.weights.h5` does not store the position in the data or the states of random generators,
and a kill while it is written leaves half a file.
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

from tfrecord_io.stores.files import atomic_write
from train.machine.errors import TrainingError

#: The state of a run, from which it goes on, and the weights that it ends with.
CHECKPOINT_NAME, BEST_NAME = "checkpoint.npz", "best.npz"
HISTORY_NAME = "history.json"

_FACTS = "facts"


def save_checkpoint(
    path: Path,
    groups: Mapping[str, Sequence[keras.Variable | np.ndarray]],
    facts: Mapping[str, Any],
) -> None:
    """Writes variables or arrays by group, such as `model`, and JSON values; replaces the file."""
    arrays = {
        f"{group}/{index:05d}": variable if isinstance(variable, np.ndarray) else variable.numpy()
        for group, variables in groups.items()
        for index, variable in enumerate(variables)
    }
    text = json.dumps(facts).encode("utf-8")
    with atomic_write(path) as file:
        np.savez(file, **{_FACTS: np.frombuffer(text, np.uint8)}, **arrays)


def load_checkpoint(path: Path) -> tuple[dict[str, Any], Mapping[str, Sequence[np.ndarray]]]:
    """Returns (facts, arrays by group as they were saved); both are empty if there is no file.

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

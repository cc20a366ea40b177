"""Writes .npz files of images and labels, like MedMNIST's."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from builds import IN_MEMORY, without_engine

from pipelines import build_tfrecords


def write_npz(
    path: Path, labels: np.ndarray, shape: Sequence[int] = (9, 12), dtype: Any = np.uint8
) -> dict[str, np.ndarray]:
    """Writes a third of the labels as train, val and test, with random images; returns the file."""
    draw = np.random.default_rng(0)
    arrays = {}
    for split, part in zip(("train", "val", "test"), np.split(labels, 3), strict=True):
        size = (len(part), *shape)
        arrays[f"{split}_images"] = draw.integers(0, np.iinfo(dtype).max, size, dtype, True)
        arrays[f"{split}_labels"] = part
    np.savez_compressed(path, **arrays)
    return arrays


def build_rows(source: Path, output: Path, *more: str) -> int:
    """Runs the build of an input whose kind it finds; returns its exit code."""
    with without_engine(build_tfrecords):
        return build_tfrecords.main([f"--input={source}", f"--output={output}", IN_MEMORY, *more])

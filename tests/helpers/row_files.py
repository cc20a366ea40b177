"""Writes images and labels as rows: .npz files like MedMNIST's, Parquet like Hugging Face's."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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


def write_parquet(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    classes: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """Writes rows, with the names of the classes of some columns as Hugging Face stores them."""
    features = {
        name: {"_type": "ClassLabel", "names": names} for name, names in (classes or {}).items()
    }
    text = json.dumps({"info": {"features": features}})
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(list(rows)).replace_schema_metadata({"huggingface": text})
    pq.write_table(table, path, row_group_size=5)
    return path


def build_rows(source: Path, output: Path, *more: str) -> int:
    """Runs the build of an input whose kind it finds; returns its exit code."""
    with without_engine(build_tfrecords):
        return build_tfrecords.main([f"--input={source}", f"--output={output}", IN_MEMORY, *more])

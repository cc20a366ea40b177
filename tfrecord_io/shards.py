"""Names of shards, and atomic writing of files."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def shard_name(split: str, shard_index: int, num_shards: int) -> str:
    """Returns a shard's file name, such as `train-00000-of-00064.tfrecord`.

    Args:
        split: name of the split.
        shard_index: number of the shard, from 0.
        num_shards: number of shards of the split.

    Raises:
        ValueError: if `shard_index` is not in 0..num_shards-1.
    """
    if not 0 <= shard_index < num_shards:
        raise ValueError(f"shard_index must be in 0..{num_shards - 1}, received {shard_index}")
    return f"{split}-{shard_index:05d}-of-{num_shards:05d}.tfrecord"


def sidecar_name(shard: str) -> str:
    """Returns the name of the JSON file beside a shard that describes it."""
    return shard.removesuffix(".tfrecord") + ".json"


@contextlib.contextmanager
def atomic_write(
    path: str | os.PathLike[str], temp_dir: str | os.PathLike[str] | None = None
) -> Iterator[BinaryIO]:
    """Opens a file for writing, which appears under its name only when it is complete on the disk.

    Each call uses its own temporary name, so two attempts at the same file do not mix: the last
    rename wins. If the block raises an exception, the temporary file is removed.

    Args:
        path: path of the file.
        temp_dir: folder of the temporary file, on the same file system; by default that of `path`.

    Yields:
        a binary file, open for writing.
    """
    path = Path(path)
    temporary = Path(temp_dir or path.parent) / f".{path.name}.{uuid.uuid4().hex}.tmp"
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise

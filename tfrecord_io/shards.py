"""Names of shards, their records as arrays, and files that a power cut cannot take."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np


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


def map_records(path: Path, num_bytes: int, stride: int) -> np.ndarray:
    """Returns the records of a shard, uint8 [num_examples, stride], memory-mapped.

    Args:
        path: the shard, which is not empty.
        num_bytes: its size by the manifest.
        stride: bytes of a record.

    Raises:
        OSError: if the shard is missing or has another size.
    """
    found = path.stat().st_size
    if found != num_bytes:
        raise OSError(
            f"{path} has {found:,} bytes, but the manifest says {num_bytes:,}: it was cut off or "
            "replaced. Copy it again, or build the dataset again with --overwrite"
        )
    return np.memmap(path, np.uint8, "r").reshape(-1, stride)


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


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Waits until the names in a folder are on the disk, so that a power cut cannot undo them."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return  # a folder that may be entered, but not read, cannot be synced
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems do not support this; their server keeps the names.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)

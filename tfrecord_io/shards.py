"""Names of shards, and their records as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np


def shard_name(split: str, shard_index: int, num_shards: int) -> str:
    """Returns a shard's file name, such as `train-00000-of-00064.tfrecord`."""
    return f"{split}-{shard_index:05d}-of-{num_shards:05d}.tfrecord"


def sidecar_name(shard: str) -> str:
    """Returns the name of the JSON file beside a shard that describes it."""
    return shard.removesuffix(".tfrecord") + ".json"


def read_records(file: IO[bytes], stride: int, num_at_once: int) -> Iterator[np.ndarray]:
    """Yields the records of a shard, uint8 [up to num_at_once, stride], but not one cut off.

    After the last of them, the position in the file is its size.
    """
    while block := file.read(num_at_once * stride):
        whole = len(block) // stride
        yield np.frombuffer(block, np.uint8, whole * stride).reshape(whole, stride)


def map_records(path: Path, num_bytes: int, stride: int) -> np.ndarray:
    """Returns the records of a shard that is not empty, uint8 [num_examples, stride], mapped.

    Raises:
        OSError: if the shard is missing or has another size.
    """
    size = path.stat().st_size
    if size != num_bytes:
        raise OSError(
            f"{path} has {size:,} bytes, but the manifest says {num_bytes:,}: it was cut off or "
            "replaced. Copy it again, or build the dataset again with --overwrite"
        )
    return np.memmap(path, np.uint8, "r").reshape(-1, stride)

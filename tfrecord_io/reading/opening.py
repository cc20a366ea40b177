"""Opens a split, local or remote: checks its manifest and shards, and makes its `BatchOrder`."""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import operator
import os
import struct
from collections.abc import Sequence
from typing import Any, BinaryIO, Literal

import numpy as np

from tfrecord_io import schema
from tfrecord_io.manifest import FILE_NAME, STATISTICS_SPLIT, Manifest, ManifestError, Shard
from tfrecord_io.reading.order import BatchOrder
from tfrecord_io.statistics import PixelStatistics

#: How much of each shard is checked: its size; also each record's checksum; or the file's digest.
Verify = Literal["size", "crc", "sha256"]
_LEVELS = ("size", "crc", "sha256")

# Checks of remote files mostly wait for the network, so many run at once.
_NUM_THREADS = 16
_CHUNK_LENGTH = 1 << 22


def is_remote(directory: str | os.PathLike[str]) -> bool:
    """Tells whether a folder is named by a URL such as gs://bucket/data."""
    return "://" in os.fspath(directory)


def open_split(
    directory: str | os.PathLike[str], split: str | Sequence[str], verify: Verify = "size"
) -> Manifest:
    """Reads the manifest of a dataset and checks the shards of one split.

    Args:
        directory: of the dataset; a local folder, or a URL that `tf.io.gfile` reads.
        split: name of the split, or of several that follow each other.
        verify: `size` compares the length of each shard, `crc` also checks every record's
            checksums (about 1 GB/s), `sha256` the whole file's digest.

    Raises:
        ManifestError: if the dataset is unfinished, of a newer format, or has no such split; if
            the split is empty; if a shard is missing or is not as the manifest says.
        ValueError: if `verify` is none of these.
    """
    if verify not in _LEVELS:
        raise ValueError(f"verify must be one of {', '.join(_LEVELS)}, received {verify!r}")
    manifest = load_manifest(directory)
    try:
        wanted = manifest.split(split)
    except ManifestError as error:
        raise ManifestError(f"{os.fspath(directory)}: {error}") from None
    if not wanted.num_examples:
        raise ManifestError(f"split {split!r} of {directory} has no examples")
    with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as executor:
        checks = [
            executor.submit(_check_shard, shard_path(directory, shard), shard, manifest, verify)
            for shard in wanted.shards
        ]
        for check in checks:
            check.result()
    return manifest


def open_order(
    directory: str | os.PathLike[str],
    split: str | Sequence[str],
    *,
    verify: Verify,
    examples: Sequence[int] | np.ndarray | None,
    start_step: int,
    **options: Any,
) -> tuple[Manifest, BatchOrder, np.ndarray | None]:
    """Opens a split, see `open_split`, and makes and checks the order of its batches.

    `examples` are the places in the split of the examples to read, `start_step` is the first batch
    to read, and the other options are fields of `BatchOrder`.

    Returns:
        (manifest, order, examples as int64 [num_examples] or None): the order is over the places
        in `examples`, or over the whole split.

    Raises:
        ManifestError: as `open_split`; or if there are fewer examples than a batch takes, where
            all batches must be full.
        ValueError: if an argument is out of range, or the arguments do not fit together.
    """
    manifest = open_split(directory, split, verify)
    num_examples = manifest.split(split).num_examples
    chosen = None if examples is None else _check_examples(examples, num_examples)
    order = BatchOrder(num_examples=num_examples if chosen is None else len(chosen), **options)
    order.check_start(start_step)
    if order.num_examples < order.batch_size and (order.drop_remainder or order.epochs is None):
        raise ManifestError(
            f"split {split!r} of {os.fspath(directory)} has {order.num_examples} examples, fewer "
            f"than a batch of {order.batch_size}; use a smaller batch_size, or finite epochs "
            "without drop_remainder"
        )
    return manifest, order, chosen


def load_manifest(directory: str | os.PathLike[str]) -> Manifest:
    """Reads the manifest of a finished dataset, local or remote.

    Raises:
        ManifestError: if there is none (the build did not finish) or it cannot be used.
    """
    if not is_remote(directory):
        return Manifest.load(directory)
    import tensorflow as tf

    path = f"{os.fspath(directory).rstrip('/')}/{FILE_NAME}"
    try:
        with tf.io.gfile.GFile(path) as file:
            text = file.read()
    except tf.errors.NotFoundError:
        raise ManifestError(
            f"{path} is missing: the build did not finish, or the name is wrong; run the same "
            "build command again to resume it"
        ) from None
    except tf.errors.OpError as error:
        raise ManifestError(f"cannot read {path}: {error.message}") from error
    return Manifest.from_json(text, file_name=path)


def read_statistics(
    directory: str | os.PathLike[str], split: str = STATISTICS_SPLIT
) -> PixelStatistics:
    """Returns the sums over the pixels of a split, from a folder or a URL as `open_split` reads it.

    Those of the train split are in the manifest. For another split, or a dataset that an older
    release wrote, the shards are read once.

    Raises:
        ManifestError: if the dataset cannot be used or the split is empty, see `open_split`; or
            if its images are feature maps.
    """
    manifest = load_manifest(directory)
    if not manifest.layout.holds_pictures:
        raise ManifestError(
            f"{os.fspath(directory)} holds images of {manifest.dtype} in {manifest.image_shape[2]} "
            "channels; statistics are only kept of grey and RGB pictures of whole numbers"
        )
    if split == STATISTICS_SPLIT and manifest.statistics is not None:
        return manifest.statistics
    manifest = open_split(directory, split)

    def count(shard: Shard) -> PixelStatistics:
        with _open(shard_path(directory, shard)) as file:
            return PixelStatistics.from_shard(file, manifest.layout)

    with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as executor:
        counted = executor.map(count, manifest.split(split).shards)
        return functools.reduce(operator.add, counted)


def shard_path(directory: str | os.PathLike[str], shard: Shard) -> str:
    """Returns the name under which a shard is opened."""
    return f"{os.fspath(directory).rstrip('/')}/{shard.name}"


def _check_examples(examples: Sequence[int] | np.ndarray, num_examples: int) -> np.ndarray:
    chosen = np.asarray(examples, np.int64)
    if chosen.ndim != 1 or not chosen.size:
        raise ValueError(f"examples must be a list of places, received shape {chosen.shape}")
    if chosen.min() < 0 or chosen.max() >= num_examples:
        raise ValueError(
            f"examples must be in 0..{num_examples - 1}, received {chosen.min()}..{chosen.max()}"
        )
    return chosen


def _check_shard(path: str, shard: Shard, manifest: Manifest, verify: Verify) -> None:
    size = _size(path)
    if size is None:
        raise ManifestError(
            f"{path} is missing, though the manifest lists it; copy the dataset again as a whole, "
            "or build it again with --overwrite"
        )
    if size != shard.num_bytes:
        raise ManifestError(
            f"{path} has {size} bytes, the manifest says {shard.num_bytes}: it was cut off or "
            "replaced; copy it again, or build the dataset again with --overwrite"
        )
    if verify == "crc":
        with _open(path) as file:
            _check_records(file, path, shard, manifest.layout)
    elif verify == "sha256":
        with _open(path) as file:
            content = hashlib.sha256()
            while chunk := file.read(_CHUNK_LENGTH):
                content.update(chunk)
        digest = content.hexdigest()
        if digest != shard.sha256:
            raise ManifestError(
                f"{path} has SHA-256 {digest}, the manifest says {shard.sha256}: its content "
                "changed; copy it again, or delete it and build again with --overwrite"
            )


def _check_records(file: BinaryIO, path: str, shard: Shard, layout: schema.RecordLayout) -> None:
    length = struct.pack("<Q", layout.length)
    header = length + struct.pack("<I", schema.masked_crc32c(length))
    for record_index in range(shard.num_examples):
        record = memoryview(file.read(layout.stride))
        data = record[schema.HEADER_LENGTH : -schema.FOOTER_LENGTH]
        footer = struct.pack("<I", schema.masked_crc32c(data))
        if record[: schema.HEADER_LENGTH] != header or record[-schema.FOOTER_LENGTH :] != footer:
            raise ManifestError(
                f"{path}: record {record_index} does not match its checksum, its content changed; "
                "copy the file again, or delete it and build again with --overwrite"
            )


def _size(path: str) -> int | None:
    """Returns the size of a file in bytes, or None if it does not exist."""
    if not is_remote(path):
        try:
            return os.stat(path).st_size  # noqa: PTH116 - the name may be a URL
        except FileNotFoundError:
            return None
    import tensorflow as tf

    try:
        return tf.io.gfile.stat(path).length
    except tf.errors.NotFoundError:
        return None


def _open(path: str) -> BinaryIO:
    if not is_remote(path):
        return open(path, "rb")  # noqa: PTH123 - the name may be a URL; callers close it
    import tensorflow as tf

    return tf.io.gfile.GFile(path, "rb")

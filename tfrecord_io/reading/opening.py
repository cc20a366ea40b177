"""Opens a split, local or remote: reads its manifest and checks its shards."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import hashlib
import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tfrecord_io.errors import ChangedError
from tfrecord_io.manifest import (
    EXAMPLES_FILE_NAME,
    FILE_NAME,
    STATISTICS_SPLIT,
    Manifest,
    ManifestError,
    Shard,
)
from tfrecord_io.reading.fetch import ReadPart
from tfrecord_io.schema import RecordLayout
from tfrecord_io.shards import read_records
from tfrecord_io.statistics import PixelStatistics
from tfrecord_io.stores.folder import is_remote, open_file, path_in
from tfrecord_io.stores.patience import patiently

#: How much of each shard is checked: its size; also each record's checksum; or the file's digest.
Verify = Literal["size", "crc", "sha256"]

# Checks of remote files mostly wait for the network, so many run at once.
_NUM_THREADS = 16


def open_split(
    directory: str | os.PathLike[str], split: str | Sequence[str], verify: Verify = "size"
) -> tuple[Manifest, ReadPart, str]:
    """Reads the manifest of a dataset and checks the shards of one split, or of several.

    Args:
        directory: of the dataset; a local folder, or a URL such as s3://bucket/data.
        split: its name, or several.
        verify: `size` compares the length of each shard, `crc` also checks every record's
            checksums (about 1 GB/s), `sha256` the whole file's digest.

    Returns:
        the manifest; what reads parts of the shards; and a digest of the versions of all shards
        that are on the store now, "" for a folder. Only these are read; another raises StoreError.

    Raises:
        ManifestError: if the dataset is unfinished, of a newer format, or has no such split; if
            the split is empty; if a shard is missing or is not as the manifest says.
        UserError, StoreError: see `load_manifest`.
    """
    if verify not in (levels := get_args(Verify)):
        raise ValueError(f"verify must be one of {', '.join(levels)}, received {verify!r}")
    manifest = load_manifest(directory)
    try:
        wanted = manifest.split(split)
    except ManifestError as error:
        raise ManifestError(f"{os.fspath(directory)}: {error}") from None
    if not wanted.num_examples:
        raise ManifestError(f"split {split!r} of {directory} has no examples")
    sizes, read, versions = _describe(directory, manifest.shards)

    def check(shard: Shard) -> None:
        size = sizes.get(shard.name)
        if size is None:
            problem = "is missing, though the manifest lists it"
        elif size != shard.num_bytes:
            expected = f"{size} bytes, the manifest says {shard.num_bytes}"
            problem = f"has {expected}: it was cut off or replaced"
        else:
            problem = _find_damage(directory, shard, manifest.layout, verify)
        if problem:
            raise ManifestError(
                f"{path_in(directory, shard.name)} {problem}; copy the dataset again, or build it "
                "again with --overwrite"
            )

    with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as executor:
        for _ in executor.map(check, wanted.shards):
            pass
    return manifest, read, versions


def load_manifest(directory: str | os.PathLike[str]) -> Manifest:
    """Reads the manifest of a finished dataset, local or remote.

    Raises:
        ManifestError: if there is none (the build did not finish) or it cannot be used.
        UserError, StoreError: if the URL cannot be used, or the store does not answer.
    """
    if not is_remote(directory):
        return Manifest.load(directory)
    path = path_in(directory, FILE_NAME)
    try:
        text = patiently(lambda: _read_file(directory, FILE_NAME)).decode()
    except FileNotFoundError:
        raise ManifestError(
            f"{path} is missing: the build did not finish, or the name is wrong; run the same "
            "build command again to resume it"
        ) from None
    except UnicodeDecodeError as error:
        raise ManifestError(f"cannot read {path}: {error}") from error
    return Manifest.from_json(text, file_name=path)


def read_examples(directory: str | os.PathLike[str], split: str | None = None) -> pa.Table:
    """Returns the table of a split's examples, or of all, a row each, in the stored order.

    `read_examples(OUT).to_pandas()` is a DataFrame. The columns are in docs/format.md.

    Raises:
        ManifestError: if the dataset is unfinished, or has no such split.
        UserError, StoreError: as `open_split` does.
    """
    manifest = load_manifest(directory)
    content = patiently(lambda: _read_file(directory, EXAMPLES_FILE_NAME))
    table = pq.read_table(pa.BufferReader(content))
    if split is None:
        return table
    manifest.split(split)
    return table.filter(pc.equal(table["split"], split))


def read_statistics(
    directory: str | os.PathLike[str], split: str = STATISTICS_SPLIT
) -> PixelStatistics:
    """Returns the sums over the pixels of a split, of a folder or a URL.

    Those of the train split are in the manifest. For another split, or a dataset that an older
    release wrote, the shards are read once.

    Raises:
        ManifestError: as `open_split` does; or if the images are feature maps.
    """
    manifest = load_manifest(directory)
    if not manifest.layout.holds_pictures:
        raise ManifestError(
            f"{os.fspath(directory)} holds images of {manifest.dtype} in {manifest.image_shape[2]} "
            "channels; statistics are only kept of grey and RGB pictures of whole numbers"
        )
    if split == STATISTICS_SPLIT and manifest.statistics is not None:
        return manifest.statistics
    manifest, *_ = open_split(directory, split)

    def count(shard: Shard) -> PixelStatistics:
        with open_file(directory, shard.name) as file:
            return PixelStatistics.from_shard(file, manifest.layout)

    with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as executor:
        counted = executor.map(count, manifest.split(split).shards)
        return functools.reduce(operator.add, counted)


def _read_file(directory: str | os.PathLike[str], name: str) -> bytes:
    with open_file(directory, name) as file:
        return file.read()


def _find_damage(
    directory: str | os.PathLike[str], shard: Shard, layout: RecordLayout, verify: Verify
) -> str | None:
    """Returns what is wrong with the content of a shard."""
    if verify == "size":
        return None
    with open_file(directory, shard.name) as file:
        if verify == "crc":
            for number, record in enumerate(read_records(file, layout.stride, 1)):
                if layout.find_damaged(record) is not None:
                    return f"was changed: record {number} does not match its checksum"
        elif (digest := hashlib.file_digest(file, "sha256").hexdigest()) != shard.sha256:
            return f"has SHA-256 {digest}, the manifest says {shard.sha256}: it was changed"
    return None


def _describe(
    directory: str | os.PathLike[str], shards: Sequence[Shard]
) -> tuple[dict[str, int], ReadPart, str]:
    """Returns the bytes of each shard that exists, what reads parts of them, and the versions."""
    if is_remote(directory):
        return _describe_remote(os.fspath(directory), shards)
    folder = Path(directory)
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.tfrecord")}

    def read(shard: Shard, start: int, length: int) -> bytes:
        with (folder / shard.name).open("rb") as file:
            file.seek(start)
            return file.read(length)

    return sizes, read, ""


def _describe_remote(folder: str, shards: Sequence[Shard]) -> tuple[dict[str, int], ReadPart, str]:
    from tfrecord_io.stores import remote

    def describe(shard: Shard) -> remote.RemoteFile | None:
        with contextlib.suppress(FileNotFoundError):
            return patiently(lambda: remote.describe(path_in(folder, shard.name)))
        return None

    if folder.startswith(("http://", "https://")):  # which has no listing
        with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as executor:
            found = [file for file in executor.map(describe, shards) if file is not None]
    else:
        found = patiently(lambda: remote.list_files(folder, recursive=False))
    files = {file.url.rpartition("/")[2]: file for file in found}

    def read(shard: Shard, start: int, length: int) -> memoryview:
        file = files[shard.name]
        try:
            return remote.read_view(file.url, start, length, file.mark)
        except FileNotFoundError:
            raise ChangedError(f"{remote.shown(file.url)} was removed while it was read") from None

    known = [files[shard.name] for shard in shards if shard.name in files]
    # A mark tells the versions of one file apart, and says nothing of a copy elsewhere.
    versions = repr([(remote.shown(file.url), file.mark) for file in known])
    digest = hashlib.sha256(versions.encode()).hexdigest()
    return {name: file.size for name, file in files.items()}, read, digest

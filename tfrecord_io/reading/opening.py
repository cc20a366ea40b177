"""Opens a split, local or remote: reads its manifest and checks its shards."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, get_args

from tfrecord_io.format.manifest import Manifest, ManifestError, Shard
from tfrecord_io.stores.folder import NUM_THREADS, Folder
from tfrecord_io.stores.remote import StoredFile

#: What is checked besides the size of each shard: nothing; each record's checksums when the process
#: first reads it; all of them at once; or the digest of each file at once.
Verify = Literal["none", "size", "crc", "sha256"]


def open_split(
    directory: str | os.PathLike[str], split: str | Sequence[str], verify: Verify = "size"
) -> tuple[Manifest, Mapping[str, StoredFile]]:
    """Reads the manifest of a dataset and checks the shards of one split, or of several.

    `verify` says how: `none` and `size` compare the length of each shard, `crc` also checks every
    record's checksums, `sha256` the whole file's digest.

    Returns:
        the manifest, and the shards of all splits that are there, by name.

    Raises:
        ManifestError: if the dataset is unfinished, of a newer format, or has no such split; if
            the split is empty; if a shard is missing or is not as the manifest says.
        UserError, StoreError: see `Manifest.load`.
    """
    if verify not in (levels := get_args(Verify)):
        raise ValueError(f"verify must be one of {', '.join(levels)}, received {verify!r}")
    folder, manifest = Folder(directory), Manifest.load(directory)
    try:
        wanted = manifest.split(split)
    except ManifestError as error:
        raise ManifestError(f"{folder.root}: {error}") from None
    if not wanted.num_examples:
        raise ManifestError(f"split {split!r} of {folder.root} has no examples")
    files, layout = folder.shards(), manifest.layout

    def find_damage(shard: Shard) -> str | None:
        if (file := files.get(shard.name)) is None:
            return "is missing, though the manifest lists it"
        if file.size != shard.num_bytes:
            return f"has {file.size} bytes, not {shard.num_bytes}: it was cut off or replaced"
        if verify in ("none", "size"):
            return None
        with folder.open(shard.name) as file:
            if verify == "crc":
                for number, record in enumerate(layout.read_records(file, 1)):
                    if layout.find_damaged(record) is not None:
                        return f"was changed: record {number} does not match its checksum"
            elif (digest := hashlib.file_digest(file, "sha256").hexdigest()) != shard.sha256:
                return f"has SHA-256 {digest}, not {shard.sha256}: it was changed"
        return None

    with ThreadPoolExecutor(NUM_THREADS) as executor:
        problems = executor.map(find_damage, wanted.shards)
        for shard, problem in zip(wanted.shards, problems, strict=True):
            if problem:
                advice = "copy the dataset again, or build it again with --overwrite"
                raise ManifestError(f"{folder.path(shard.name)} {problem}; {advice}")
    return manifest, files

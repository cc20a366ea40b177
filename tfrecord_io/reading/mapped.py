"""A split's shards as one array in memory, without reading them: no TensorFlow, no parsing.

Every record of a dataset has the same length, so a shard is an array of records. The shards of a
split are mapped behind each other, each at a multiple of the record's stride, so the split is one
array, and a batch from a thousand shards is a single gather. Of a remote dataset, the cache is
mapped. What is absent there is fetched, and so is everything where files cannot be mapped.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from tfrecord_io.format.manifest import Manifest, ManifestError, Shard
from tfrecord_io.reading.cache import DatasetCache, warn_once
from tfrecord_io.reading.fetch import Fetched, Unmapped, damage
from tfrecord_io.reading.records import ColdShards, Records, Rows, lay_out, map_files
from tfrecord_io.stores.folder import NUM_THREADS, Folder
from tfrecord_io.stores.remote import StoredFile
from tfrecord_io.terminal.address import is_remote

#: What is checked besides the size of each shard: nothing; each record's checksums when the process
#: first reads it; all of them at once; or the digest of each file at once.
Verify = Literal["none", "size", "crc", "sha256"]

# Examples that are fetched together where nobody asks for batches.
_CHUNK_EXAMPLES = 256

# Which records this process has compared with their checksums, by dataset and version.
_checked: dict[Hashable, np.ndarray] = {}


class MappedDataset:
    """A split as a map-style dataset for PyTorch, or for plain numpy: one gather a batch.

    Each worker process opens it again. docs/reader.md shows it with a `DataLoader`. A record is
    compared with its checksums when the process first reads it.

    Attributes:
        name: of the split and its folder, for messages.
        rows: finds the row of an example.
        records: read-only. Between and behind the shards lie rows of zeros that take no memory.
            The blocks begin at a multiple of 64 bytes of memory.
        unmapped: the records that are not mapped; None if all are.
        cache: of a remote dataset; None of a local one, or if nothing can be kept.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        split: str | Sequence[str],
        *,
        verify: Verify = "size",
        must_map: bool = False,
    ) -> None:
        """Checks the shards of a split as `open_split` does, and maps them.

        With `verify="none"`, records that are mapped are not compared with their checksums. Where
        the operating system cannot map files, or no cache of a remote dataset can be kept, each
        record is read from its file, or with `must_map` OSError is raised.

        Raises:
            ManifestError, UserError, StoreError: as `open_split`.
        """
        self._folder = folder = Folder(directory)
        self._split, self._verify = split, verify
        self.name = f"split {split!r} of {folder}"
        self.manifest, files = open_split(folder, split, verify)
        self.layout = layout = self.manifest.layout
        shards, every = self.manifest.split(split).shards, self.manifest.shards
        sizes = [shard.num_examples for shard in shards]
        # A mark differs between versions of one file, and says nothing of a copy elsewhere.
        found = [files[shard.name] for shard in every if shard.name in files]
        versions = repr([(file.url, file.mark) for file in found]).encode()
        self._identity = self.manifest.fingerprint, hashlib.sha256(versions).hexdigest()
        self.unmapped: Unmapped | None = None
        self.cache: DatasetCache | None = None
        try:
            if is_remote(folder):
                places = folder.cache_dir, folder.cache_gb
                cache = DatasetCache(self.manifest, self._identity[1], *places)
                starts = itertools.accumulate((shard.num_examples for shard in every), initial=0)
                firsts = {shard.name: first for shard, first in zip(every, starts, strict=False)}
                self.rows = Rows(sizes, [firsts[shard.name] for shard in shards])
                self.records = Records(layout, cache.memory)
                self.cold = ColdShards([cache.path], Rows([len(cache.states)]), layout.stride)
                self._checked = _checked_rows((cache.path, self._identity), self.records)
                self.unmapped = Unmapped(every, files, self.records, self._checked, cache)
                self.cache = cache
            else:
                paths = [Path(folder) / shard.name for shard in shards]
                *firsts, num_rows = lay_out(sizes, layout.stride)
                self.rows = Rows(sizes, firsts)
                self.cold = ColdShards(paths, self.rows, layout.stride)
                memory = map_files(paths, sizes, firsts, num_rows + 1, layout.stride)
                self.records = Records(layout, memory)
                names = tuple(shard.name for shard in shards)
                self._checked = _checked_rows((str(folder), self._identity, names), self.records)
                if verify == "none":
                    self._checked = np.ones_like(self._checked)
                elif verify != "size":
                    self._checked[:] = True
        except (OSError, AttributeError, ImportError) as error:
            # Windows lacks the C function, `ulimit -v` may leave too few addresses, and `ulimit -f`
            # too short a file.
            if must_map:
                raise
            what = "reading each record anew, in every epoch"
            warn_once(f"{self.name} cannot be mapped into memory ({error}); {what}")
            self.records = Records(layout, np.zeros(layout.stride, np.uint8))
            self.rows = Rows(sizes)
            self._checked = np.zeros(sum(sizes), np.bool_)
            self.unmapped = Unmapped(shards, files, self.records, self._checked)

    def __reduce__(self) -> tuple[Any, ...]:
        # Files that were compared as a whole are not compared again by each worker.
        verify = self._verify if self._verify == "none" else "size"
        return _open_again, (self._folder, self._split, verify, self._identity)

    def is_checked(self, rows: np.ndarray) -> bool:
        """Returns whether all these mapped records, int64 [...], need no comparison any more."""
        return bool(self._checked[rows].all())

    def check(self, rows: np.ndarray) -> None:
        """Compares mapped records, int64 [...], with their checksums, if it was not done before.

        Raises:
            StoreError: if one is damaged; it names the shard and the record.
        """
        new = np.unique(rows[~self._checked[rows]])
        damaged = self.layout.find_damaged(self.records.array, new)
        if damaged is not None:
            shard, place = self.rows.find(damaged)
            raise damage(self.manifest.split(self._split).shards[shard], place)
        self._checked[new] = True

    def until_mapped(
        self, batches: Iterator[np.ndarray], wanted: Sequence[int] | np.ndarray
    ) -> Iterator[Fetched]:
        """Yields batches with their records, read ahead; ends once all wanted ones are mapped.

        `batches` yields places of examples in the split, int64 [batch]; unused ones stay in it.
        `wanted` are all examples that any batch can hold: neighbours among them are read together.
        With none, each record is read alone, and this ends with the batches.

        Raises:
            StoreError: if a record cannot be read, or is damaged; it names the shard.
        """
        if self.unmapped is None:
            return iter(())
        rows = np.sort(self.rows(np.array(wanted, np.int64)))
        return self.unmapped.ahead(map(self.rows, batches), rows)

    def __len__(self) -> int:
        return self.manifest.split(self._split).num_examples

    def __getitem__(self, index: int | Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns copies of one example for a place, or of a batch for int64 [batch] places.

        That is (image, label): [batch, height, width, channels] of the dataset's type and float32
        [batch, num_classes] one-hot, for one example without the batch. A mask, bool
        [num_examples], gives the examples where it is True.

        Raises:
            IndexError, TypeError: if an example does not exist, or places are not whole numbers.
        """
        examples, length = as_places(index, len(self)), self.layout.image_length
        parts = [
            (records.images(rows, np.empty(len(rows) * length, np.uint8)), records.labels(rows))
            for records, rows in self._parts(np.atleast_1d(examples))
        ]
        one = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
        images, labels = one
        return (images, labels) if examples.ndim else (images[0], labels[0])

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns examples with one gather; PyTorch's DataLoader calls it for each batch."""
        return list(zip(*self[indices], strict=True))

    def labels(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns float32 [num_indices, num_classes]: the one-hot labels of examples."""
        parts = self._parts(as_places(indices, len(self)))
        return np.concatenate([records.labels(rows) for records, rows in parts])

    def keys(self, indices: Sequence[int] | np.ndarray) -> list[str]:
        """Returns the keys of examples, see `schema.image_key`."""
        parts = self._parts(as_places(indices, len(self)))
        return [key.decode("ascii") for records, rows in parts for key in records.keys(rows)]

    def _parts(self, examples: np.ndarray) -> Iterator[Fetched]:
        """Fetches examples some at a time; raises IndexError if one does not exist."""
        size = len(self)
        if examples.size and not (-size <= examples.min() and examples.max() < size):
            raise IndexError(f"examples are 0..{size - 1}, received {examples}")
        examples = np.where(examples < 0, examples + size, examples)
        if self.unmapped is not None:
            chunks = np.array_split(examples, len(examples) // _CHUNK_EXAMPLES + 1)
            return self.until_mapped(iter(chunks), ())
        rows = self.rows(examples)
        self.cold.announce(rows)
        self.check(rows)
        return iter([(self.records, rows)])


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


def as_places(examples: int | Sequence[int] | np.ndarray, num_examples: int) -> np.ndarray:
    """Returns int64 [...] places of examples, given as places or as a mask, bool [num_examples].

    Raises TypeError if they are neither, ValueError if the mask has another length.
    """
    array = np.asarray(examples)
    if array.dtype == bool:
        if array.shape != (num_examples,):
            raise ValueError(
                f"expected a mask of {num_examples} examples, received one of shape {array.shape}"
            )
        return np.flatnonzero(array)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"examples must be whole numbers, or a mask of bool, received {array!r}")
    return array.astype(np.int64)


def _checked_rows(key: Hashable, records: Records) -> np.ndarray:
    """Returns which rows of a dataset were checked, bool [rows], shared by all of this process."""
    return _checked.setdefault(key, np.zeros(len(records.array), np.bool_))


def _open_again(
    directory: Folder, split: str | Sequence[str], verify: Verify, identity: tuple[str, str]
) -> MappedDataset:
    """Opens a dataset again, if it is still the same."""
    dataset = MappedDataset(directory, split, verify=verify)
    if dataset._identity != identity:
        why = "was built anew, or a shard of it replaced, since it was opened; start again"
        raise ManifestError(f"{directory} {why}")
    return dataset

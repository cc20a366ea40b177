"""A split's shards as one array in memory, without reading them: no TensorFlow, no parsing.

Every record of a dataset has the same length, so a shard is an array of records. The shards of a
split are mapped behind each other, each at a multiple of the record's stride, so the split is one
array, and a batch from a thousand shards is a single gather. Of a remote dataset, the cache is
mapped. What is absent there is fetched, and so is everything where files cannot be mapped.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hashlib
import itertools
import mmap
import os
import threading
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfrecord_io.format.manifest import ManifestError
from tfrecord_io.reading.cache import DatasetCache, warn_once
from tfrecord_io.reading.fetch import Fetched, Unmapped, damage
from tfrecord_io.reading.opening import Verify, open_split
from tfrecord_io.reading.records import Records, Rows, lay_out
from tfrecord_io.stores.files import announce
from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal.address import is_remote

# The flag MAP_FIXED, which Python's mmap module lacks. Source: sys/mman.h, the same on Linux and
# macOS.
_MAP_FIXED = 0x10

# Examples that are fetched together where nobody asks for batches.
_CHUNK_EXAMPLES = 256

# Records that are announced in the order of their places: the first batch waits for these only.
_GROUP = 64
# Records of which the system is asked whether it has them in memory.
_NUM_PROBES = 8

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
        """Checks the shards of a split as `opening.open_split` does, and maps them.

        With `verify="none"`, records that are mapped are not compared with their checksums. Where
        the operating system cannot map files, or no cache of a remote dataset can be kept, each
        record is read from its file, or with `must_map` OSError is raised.

        Raises:
            ManifestError, UserError, StoreError: as `opening.open_split`.
        """
        self._folder = folder = Folder(directory)
        self._split, self._verify = split, verify
        self.name = f"split {split!r} of {folder}"
        self.manifest, files = open_split(folder, split, verify)
        self.layout = layout = self.manifest.layout
        shards, every = self.manifest.split(split).shards, self.manifest.shards
        sizes = [shard.num_examples for shard in shards]
        # A mark tells the versions of one file apart, and says nothing of a copy elsewhere.
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
                memory = _map_files(paths, sizes, firsts, num_rows + 1, layout.stride)
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


@dataclasses.dataclass(frozen=True, eq=False)
class ColdShards:
    """Tells the system which records of files come next, if they are not in memory.

    A disk that knows of many reads gives several times as many a second.
    """

    paths: Sequence[Path]
    rows: Rows
    stride: int

    def announce(self, rows: np.ndarray) -> None:
        """Announces records that will be read in this order, int64; does not wait for them."""
        if not hasattr(os, "RWF_NOWAIT"):  # only Linux says what it has in memory
            return
        probes = rows[:: max(1, len(rows) // _NUM_PROBES)]
        if not all(self._is_in_memory(row) for row in probes.tolist()):
            threading.Thread(
                target=self._announce, args=(rows,), name="announce", daemon=True
            ).start()

    def _is_in_memory(self, row: int) -> bool:
        shard, place = self.rows.find(row)
        with contextlib.suppress(OSError), self.paths[shard].open("rb", 0) as file:
            start = place * self.stride
            return os.preadv(file.fileno(), [bytearray(1)], start, os.RWF_NOWAIT) == 1
        return False  # or the file system cannot tell

    def _announce(self, rows: np.ndarray) -> None:
        for first in range(0, len(rows), _GROUP):
            group = np.sort(rows[first : first + _GROUP])
            breaks = np.flatnonzero(np.diff(self.rows.shards(group))) + 1
            for run in np.split(group, breaks):
                shard, place = self.rows.find(int(run[0]))
                # Whoever reads a file that cannot be opened will say so.
                with contextlib.suppress(OSError), self.paths[shard].open("rb", 0) as file:
                    for start in ((run - run[0] + place) * self.stride).tolist():
                        announce(file.fileno(), start, self.stride)


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


def _map_files(
    paths: Sequence[Path], sizes: Sequence[int], firsts: Sequence[int], num_rows: int, stride: int
) -> np.ndarray:
    """Returns uint8 [num_rows * stride], in which each file is mapped at its first row.

    Python's mmap object owns the whole range, and unmaps it with its files after its last use.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    region = mmap.mmap(-1, num_rows * stride, flags=flags, prot=mmap.PROT_READ)
    memory = np.frombuffer(region, np.uint8)
    # The C function, because Python's mmap cannot be given the address.
    map_at = ctypes.CDLL(None, use_errno=True).mmap
    map_at.restype = ctypes.c_void_p
    numbers = [ctypes.c_int] * 3
    map_at.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *numbers, ctypes.c_long]
    for path, size, first in zip(paths, sizes, firsts, strict=True):
        if size == 0:
            continue
        address, length = memory.ctypes.data + first * stride, size * stride
        with path.open("rb") as file:
            how = mmap.MAP_SHARED | _MAP_FIXED
            mapped = map_at(address, length, mmap.PROT_READ, how, file.fileno(), 0)
        if mapped != address:
            code = ctypes.get_errno()
            raise OSError(code, f"cannot map the shard into memory: {os.strerror(code)}", str(path))
    return memory

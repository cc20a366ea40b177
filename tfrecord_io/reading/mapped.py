"""A split's shards as one array in memory, without reading them: no TensorFlow, no parsing.

Every record of a dataset has the same length, so a shard is an array of records. The shards of
a split are mapped behind each other into one range of addresses, each at a multiple of the
record's stride, and so the whole split is one array: a batch from a thousand shards is a single
gather. The gaps between shards are addresses only and take no memory.

Of a remote dataset, the shards in the cache are mapped, which have holes. What is absent there
comes from a `Fetcher`, and so does everything where the files cannot be mapped.
"""

from __future__ import annotations

import ctypes
import logging
import math
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfrecord_io import schema
from tfrecord_io.manifest import Shard
from tfrecord_io.reading import cache
from tfrecord_io.reading.cold import ColdShards
from tfrecord_io.reading.fetch import Fetched, Fetcher, ShardIndex
from tfrecord_io.reading.opening import Verify, open_split
from tfrecord_io.reading.order import BatchOrder
from tfrecord_io.stores.folder import is_remote

_log = logging.getLogger(__name__)

# The flag MAP_FIXED, which Python's mmap module lacks. Source: sys/mman.h, the same on Linux and
# macOS.
_MAP_FIXED = 0x10

# Examples that are fetched together where nobody asks for batches.
_CHUNK_EXAMPLES = 256


class RowIndex(ShardIndex):
    """Finds the row of an example in `MappedSplit.records`.

    Attributes:
        num_rows: rows in all, gaps included.
        first_rows: row of each shard's first record.
    """

    def __init__(self, shard_sizes: Sequence[int], stride: int) -> None:
        """Lays out shards: each begins at a page of memory and at a multiple of the stride."""
        # Every `period` rows a row begins where a page does.
        period = mmap.PAGESIZE // math.gcd(mmap.PAGESIZE, stride)
        taken = -(-np.array(shard_sizes, np.int64) // period) * period
        self.num_rows = max(int(taken.sum()), period)
        self.first_rows = (np.cumsum(taken) - taken).tolist()
        super().__init__(shard_sizes, self.first_rows)


class MappedSplit:
    """The records of one split, memory-mapped.

    Attributes:
        manifest: of the dataset.
        versions: of its shards on a store, see `opening.open_split`.
        num_examples: of the split.
        rows: finds the row of an example.
        records: uint8 [rows, stride], read-only. Only the rows that `rows` returns are records;
            between and behind the shards lie rows of zeros that exist as addresses only.
        blocks: uint8 [blocks, block length of the layout], read-only: the same bytes, from the
            first image on. With `stride / block_length` blocks a row, the image of row r is the
            first `image_length / block_length` of its blocks, and its key and label are in the
            others. Begins at a multiple of 64 bytes of memory.
        fetcher: reads the records that are not mapped; None if all are.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        split: str | Sequence[str],
        *,
        verify: Verify = "size",
        must_map: bool = False,
        cache_options: cache.CacheOptions | None = None,
    ) -> None:
        """Checks the shards of a split, or of several that follow each other, and maps them.

        Args:
            directory: of the dataset; a local folder or a URL.
            split: name of the split, or of several that follow each other.
            verify: see `opening.open_split`.
            must_map: whether to raise an error if the operating system cannot map local files,
                instead of reading them one record at a time.
            cache_options: where to keep the records of a URL; `cache.defaults` if not given.

        Raises:
            ManifestError: if the dataset cannot be used, see `opening.open_split`.
            OSError: if the operating system refuses the mapping.
        """
        self.manifest, read, self.versions = open_split(directory, split, verify)
        wanted, layout = self.manifest.split(split), self.manifest.layout
        self.num_examples = wanted.num_examples
        self.rows = RowIndex([shard.num_examples for shard in wanted.shards], layout.stride)
        self.fetcher: Fetcher | None = None
        folder = Path(os.fspath(directory))
        if is_remote(directory):
            kept = cache.DatasetCache(self.manifest, self.versions, cache_options or cache.defaults)
            folder = kept.folder
            self.fetcher = Fetcher(self.manifest, split, read, kept)
        self._cold = ColdShards.of(folder, self.manifest, split)
        try:
            self._map(folder, wanted.shards)
        except (OSError, AttributeError, ImportError) as error:
            # Windows lacks the C function, and `ulimit -v` may leave too few addresses.
            if must_map or is_remote(directory):
                raise
            _log.warning(
                "%s cannot be mapped into memory (%s); reading each record from its file",
                folder,
                error,
            )
            self.records = np.zeros((0, layout.stride), np.uint8)
            self.blocks = np.zeros((0, layout.block_length), np.uint8)
            self.fetcher = Fetcher(self.manifest, split, read)

    def _map(self, folder: Path, shards: Sequence[Shard]) -> None:
        layout = self.manifest.layout
        region = _map_files(
            [folder / shard.name for shard in shards],
            [shard.num_bytes for shard in shards],
            [row * layout.stride for row in self.rows.first_rows],
            (self.rows.num_rows + 1) * layout.stride,  # the last row's blocks reach into one more
        )
        self.records = np.frombuffer(region, np.uint8).reshape(-1, layout.stride)
        first = layout.features[schema.IMAGE].offset
        self.blocks = np.frombuffer(
            region, np.uint8, self.rows.num_rows * layout.stride, first
        ).reshape(-1, layout.block_length)
        if self.fetcher is not None:
            records, rows = self.records, self.rows
            self.fetcher.mapped = lambda examples: records[rows(examples)]

    def ahead(
        self, batches: Iterable[np.ndarray], chosen: np.ndarray | None = None, *, fill: bool = False
    ) -> Iterator[Fetched]:
        """Yields batches with those records that are not mapped, see `Fetcher.ahead`."""
        if self.fetcher is None:
            return ((examples, None) for examples in self._cold.announced(batches))
        return self.fetcher.ahead(batches, chosen, fill=fill)

    def in_order(
        self, order: BatchOrder, chosen: np.ndarray | None, start_step: int
    ) -> Iterator[Fetched]:
        """Yields the batches of an order, see `ahead`; their places are those in `chosen`."""
        places = order.batches(start_step)
        batches = places if chosen is None else (chosen[batch] for batch in places)
        return self.ahead(batches, chosen, fill=True)

    def feature(self, name: str, fetched: Fetched) -> np.ndarray:
        """Returns the bytes of one feature of a batch, a copy.

        Returns:
            uint8 [batch, length of the feature].
        """
        slot = self.manifest.layout.features[name]
        place = slice(slot.offset, slot.offset + slot.length)
        examples, records = fetched
        if records is None:
            return self.records[:, place][self.rows(examples)]
        values = np.empty((len(records), slot.length), np.uint8)
        for value, record in zip(values, records, strict=True):
            value[:] = record[place]
        return values


class MappedDataset:
    """A split as a map-style dataset for PyTorch, or for plain numpy: one gather a batch.

    It opens its files again in each worker process, and holds nothing else. With
    `DataLoader(dataset, sampler=BatchOrder(...), batch_size=None)` each index is a whole batch.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        split: str | Sequence[str],
        *,
        verify: Verify = "size",
        cache_options: cache.CacheOptions | None = None,
    ) -> None:
        """Opens a split; the arguments are those of `MappedSplit`."""
        self.directory = os.fspath(directory)
        self.split = split
        self.cache_options = cache_options
        self.mapped = MappedSplit(directory, split, verify=verify, cache_options=cache_options)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "mapped"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.mapped = MappedSplit(self.directory, self.split, cache_options=self.cache_options)

    def __len__(self) -> int:
        return self.mapped.num_examples

    def __getitem__(self, index: int | Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns one example, or a batch for a sequence of indices.

        Args:
            index: place in the split, or int64 [batch] of places.

        Returns:
            (image, label): [height, width, channels] of the dataset's type and float32
            [num_classes] one-hot, or [batch, height, width, channels] and float32 [batch,
            num_classes]. Copies that may be written to.

        Raises:
            IndexError: if a place is not in 0..len-1, or from the end -len..-1.
        """
        examples = np.asarray(index)
        layout = self.mapped.manifest.layout
        images = np.empty((examples.size, *layout.image_shape), layout.numpy_dtype)
        labels = np.empty((examples.size, layout.num_classes), np.float32)
        memory = images.reshape(-1).view(np.uint8)
        first = 0
        for fetched in self._parts(np.atleast_1d(examples)):
            last = first + len(fetched[0])
            _, labels[first:last] = self.gather(fetched, memory[first * layout.image_length :])
            first = last
        return (images, labels) if examples.ndim else (images[0], labels[0])

    def gather(self, fetched: Fetched, memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns a batch, as `dataset[examples]` does, in memory of the caller's.

        Args:
            fetched: a batch, as `MappedSplit.ahead` yields it.
            memory: uint8 [at least the bytes of the images].
        """
        layout = self.mapped.manifest.layout
        examples, records = fetched
        images = memory[: len(examples) * layout.image_length]
        if records is None:
            length = layout.block_length
            firsts = self.mapped.rows(examples)[:, np.newaxis] * (layout.stride // length)
            blocks = (firsts + np.arange(layout.image_length // length)).ravel()
            # All are in range; with mode="raise" NumPy would first write to a copy.
            np.take(self.mapped.blocks, blocks, 0, images.reshape(-1, length), mode="clip")
        else:
            first = layout.features[schema.IMAGE].offset
            pixels = images.reshape(-1, layout.image_length)
            for image, record in zip(pixels, records, strict=True):
                image[:] = record[first : first + layout.image_length]
        images = images.view(layout.numpy_dtype).reshape(-1, *layout.image_shape)
        return images, self.mapped.feature(schema.LABEL, fetched).view("<f4")

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns examples with one gather; PyTorch's DataLoader calls it for each batch."""
        return list(zip(*self[indices], strict=True))

    def labels(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns float32 [num_indices, num_classes]: the one-hot labels of examples."""
        return self._feature(schema.LABEL, indices).view("<f4")

    def keys(self, indices: Sequence[int] | np.ndarray) -> list[str]:
        """Returns the keys of examples, see `schema.image_key`."""
        return [bytes(key).decode("ascii") for key in self._feature(schema.KEY, indices)]

    def _feature(self, name: str, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        parts = self._parts(np.asarray(indices, np.int64))
        return np.concatenate([self.mapped.feature(name, fetched) for fetched in parts])

    def _parts(self, examples: np.ndarray) -> Iterator[Fetched]:
        """Fetches examples some at a time; raises IndexError if one does not exist."""
        size = len(self)
        if examples.size and not (-size <= examples.min() and examples.max() < size):
            raise IndexError(f"examples are 0..{size - 1}, received {examples}")
        examples = np.where(examples < 0, examples + size, examples)
        firsts = range(0, max(1, len(examples)), _CHUNK_EXAMPLES)
        return self.mapped.ahead(examples[first : first + _CHUNK_EXAMPLES] for first in firsts)


def _map_files(
    paths: Sequence[Path], sizes: Sequence[int], offsets: Sequence[int], length: int
) -> mmap.mmap:
    """Reserves `length` bytes of addresses and maps each file at its offset, read-only.

    Python's own mmap object owns the whole range, and unmaps it, files included, when its last
    user is gone.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    region = mmap.mmap(-1, length, flags=flags, prot=mmap.PROT_READ)
    address = np.frombuffer(region, np.uint8).ctypes.data
    map_at = _libc_mmap()
    for path, size, offset in zip(paths, sizes, offsets, strict=True):
        if size == 0:
            continue
        with path.open("rb") as file:
            how = mmap.MAP_SHARED | _MAP_FIXED
            mapped = map_at(address + offset, size, mmap.PROT_READ, how, file.fileno(), 0)
        if mapped != address + offset:
            code = ctypes.get_errno()
            raise OSError(code, f"cannot map the shard into memory: {os.strerror(code)}", str(path))
    return region


def _libc_mmap() -> Any:
    """The C function: Python's mmap cannot be told the address."""
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    numbers = [ctypes.c_int] * 3
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *numbers, ctypes.c_long]
    return function

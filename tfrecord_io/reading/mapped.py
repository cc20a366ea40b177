"""A split's shards as one array in memory, without reading them: no TensorFlow, no parsing.

Every record of a dataset has the same length, so a shard is an array of records. The shards of
a split are mapped behind each other into one range of addresses, each at a multiple of the
record's stride, and so the whole split is one array: a batch from a thousand shards is a single
gather. The gaps between shards are addresses only and take no memory.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfrecord_io import schema
from tfrecord_io.reading.opening import Verify, open_split, shard_path

# The flag MAP_FIXED, which Python's mmap module lacks. Source: sys/mman.h, the same on Linux and
# macOS.
_MAP_FIXED = 0x10


class RowIndex:
    """Finds the row of an example in `MappedSplit.records`.

    Attributes:
        num_rows: rows in all, gaps included.
        first_rows: row of each shard's first record.
    """

    def __init__(self, shard_sizes: Sequence[int], stride: int) -> None:
        """Lays out shards: each begins at a page of memory and at a multiple of the stride."""
        # Every `period` rows a row begins where a page does.
        period = mmap.PAGESIZE // math.gcd(mmap.PAGESIZE, stride)
        sizes = np.array(shard_sizes, np.int64)
        taken = -(-sizes // period) * period
        self.num_rows = max(int(taken.sum()), period)
        self.first_rows = (np.cumsum(taken) - taken).tolist()
        self._ends = np.cumsum(sizes)
        self._shifts = np.cumsum(taken) - taken - (self._ends - sizes)

    def __call__(self, examples: np.ndarray) -> np.ndarray:
        """Returns the rows, int64 [...], of examples: places in the split, shard after shard."""
        return examples + self._shifts[np.searchsorted(self._ends, examples, side="right")]


class MappedSplit:
    """The records of one split, memory-mapped.

    Attributes:
        manifest: of the dataset.
        num_examples: of the split.
        rows: finds the row of an example.
        records: uint8 [rows, stride], read-only. Only the rows that `rows` returns are records;
            between and behind the shards lie rows of zeros that exist as addresses only.
        blocks: uint8 [blocks, block length of the layout], read-only: the same bytes, from the
            first image on. With `stride / block_length` blocks a row, the image of row r is the
            first `image_length / block_length` of its blocks, and its key and label are in the
            others. Begins at a multiple of 64 bytes of memory.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        split: str | Sequence[str],
        *,
        verify: Verify = "size",
    ) -> None:
        """Checks the shards of a split, or of several that follow each other, and maps them.

        Raises:
            ManifestError: if the dataset cannot be used, see `opening.open_split`.
            OSError: if the operating system refuses the mapping.
        """
        self.manifest = open_split(directory, split, verify)
        shards = self.manifest.split(split).shards
        layout = self.manifest.layout
        stride = layout.stride
        self.num_examples = self.manifest.split(split).num_examples
        self.rows = RowIndex([shard.num_examples for shard in shards], stride)
        region = _map_files(
            [Path(shard_path(directory, shard)) for shard in shards],
            [shard.num_bytes for shard in shards],
            [row * stride for row in self.rows.first_rows],
            (self.rows.num_rows + 1) * stride,  # the last row's blocks reach into one more
        )
        self.records = np.frombuffer(region, np.uint8).reshape(-1, stride)
        first = layout.features[schema.IMAGE].offset
        self.blocks = np.frombuffer(region, np.uint8, self.rows.num_rows * stride, first).reshape(
            -1, layout.block_length
        )

    def feature(self, name: str) -> np.ndarray:
        """Returns the bytes of one feature of all rows, as a read-only view of the mapped files.

        Returns:
            uint8 [rows, length of the feature].
        """
        slot = self.manifest.layout.features[name]
        return self.records[:, slot.offset : slot.offset + slot.length]


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
    ) -> None:
        """Maps the shards of a split; the arguments are those of `MappedSplit`."""
        self.directory = os.fspath(directory)
        self.split = split
        self._open(verify)

    def _open(self, verify: Verify) -> None:
        self.mapped = MappedSplit(self.directory, self.split, verify=verify)
        self._labels = self.mapped.feature(schema.LABEL)
        self._keys = self.mapped.feature(schema.KEY)

    def __getstate__(self) -> dict[str, Any]:
        return {"directory": self.directory, "split": self.split}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open(verify="size")

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
        images, labels = self.gather(np.atleast_1d(examples))
        return (images, labels) if examples.ndim else (images[0], labels[0])

    def gather(
        self, examples: np.ndarray, memory: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns a batch, as `dataset[examples]` does, in memory of the caller's.

        Args:
            examples: int64 [batch] of places in the split.
            memory: uint8 [at least the bytes of the images]; new memory if not given.

        Raises:
            IndexError: see `__getitem__`.
        """
        rows = self._rows(examples)
        layout = self.mapped.manifest.layout
        length = layout.block_length
        firsts = rows[:, np.newaxis] * (layout.stride // length)
        blocks = (firsts + np.arange(layout.image_length // length)).ravel()
        if memory is None:
            memory = np.empty(blocks.size * length, np.uint8)
        images = memory[: blocks.size * length]
        # The places are checked already; with mode="raise" NumPy would first write to a copy.
        np.take(self.mapped.blocks, blocks, 0, images.reshape(-1, length), mode="clip")
        images = images.view(layout.numpy_dtype).reshape(-1, *layout.image_shape)
        return images, self._labels[rows].view("<f4")

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns examples with one gather; PyTorch's DataLoader calls it for each batch."""
        return list(zip(*self[indices], strict=True))

    def labels(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns float32 [num_indices, num_classes]: the one-hot labels of examples."""
        return self._labels[self._rows(np.asarray(indices))].view("<f4")

    def keys(self, indices: Sequence[int] | np.ndarray) -> list[str]:
        """Returns the keys of examples, see `schema.image_key`."""
        return [bytes(key).decode("ascii") for key in self._keys[self._rows(np.asarray(indices))]]

    def _rows(self, examples: np.ndarray) -> np.ndarray:
        size = len(self)
        if examples.size and not (-size <= examples.min() and examples.max() < size):
            raise IndexError(f"examples are 0..{size - 1}, received {examples}")
        return self.mapped.rows(np.where(examples < 0, examples + size, examples))


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

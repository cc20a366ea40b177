"""Records of one length as an array: where each lies, how it is mapped, and how it is gathered."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import itertools
import math
import mmap
import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tfrecord_io.format import schema
from tfrecord_io.stores.files import announce

# The flag MAP_FIXED, which Python's mmap module lacks. Source: sys/mman.h, the same on Linux and
# macOS.
_MAP_FIXED = 0x10

# Records that are announced in the order of their places: the first batch waits for these only.
_GROUP = 64
# Records of which the system is asked whether it has them in memory.
_NUM_PROBES = 8


class Rows:
    """Finds the row of an example in an array of records, and the shard of a row.

    >>> rows = Rows([2, 3], [100, 200])
    >>> rows(np.array([0, 1, 2, 4])).tolist()
    [100, 101, 200, 202]
    >>> rows.find(202)
    (1, 2)
    """

    def __init__(self, shard_sizes: Sequence[int], firsts: Sequence[int] | None = None) -> None:
        """Takes the examples of each shard, and its first row; None if no row lies between."""
        self._ends = np.cumsum(np.array(shard_sizes, np.int64))
        starts = self._ends - shard_sizes
        self._firsts = starts if firsts is None else np.array(firsts, np.int64)
        self._shifts = self._firsts - starts

    def __call__(self, examples: np.ndarray) -> np.ndarray:
        """Returns int64 [...], as `examples`: places in the split, shard after shard."""
        return examples + self._shifts[np.searchsorted(self._ends, examples, side="right")]

    def shards(self, rows: np.ndarray) -> np.ndarray:
        """Returns int64 [...], as `rows`: the shard of each; the first rows must ascend."""
        return np.searchsorted(self._firsts, rows, side="right") - 1

    def find(self, row: int) -> tuple[int, int]:
        """Returns the shard of a row, and its place there; the first rows must ascend."""
        shard = int(self.shards(np.array(row)))
        return shard, row - int(self._firsts[shard])


def lay_out(shard_sizes: Sequence[int], stride: int) -> list[int]:
    """Returns the first row of each shard in one range of memory, and the number of all rows."""
    # Every `period` rows a row begins where a page does, as each shard must.
    period = mmap.PAGESIZE // math.gcd(mmap.PAGESIZE, stride)
    taken = [max(1, -(-size // period)) * period for size in shard_sizes]
    return list(itertools.accumulate(taken, initial=0))


class Records:
    """Records in memory, which is mapped, or that of a batch.

    Attributes:
        layout: of a record.
        array: uint8 [rows, stride].
        blocks: uint8 [blocks, block length of the layout]: the same bytes, from the first image on.
        blocks_per_row: those of a row are its image, then its key and label.
    """

    def __init__(self, layout: schema.RecordLayout, memory: np.ndarray) -> None:
        """Takes uint8 [(rows + 1) * stride]; the last row's blocks reach into one more."""
        first = layout.features[schema.IMAGE].offset
        last = first + len(memory) - layout.stride
        self.layout = layout
        self.array = memory[: -layout.stride].reshape(-1, layout.stride)
        self.blocks = memory[first:last].reshape(-1, layout.block_length)
        self.blocks_per_row = layout.stride // layout.block_length

    def images(self, rows: np.ndarray, memory: np.ndarray) -> np.ndarray:
        """Returns the images of rows, int64 [batch], which are written into memory."""
        layout, length = self.layout, self.layout.block_length
        firsts = rows[:, np.newaxis] * self.blocks_per_row
        blocks = (firsts + np.arange(layout.image_length // length)).ravel()
        images = memory[: len(rows) * layout.image_length]
        # All are in range, and with mode="raise" NumPy would first write to a copy.
        np.take(self.blocks, blocks, 0, images.reshape(-1, length), mode="clip")
        return images.reshape(-1, *layout.image_shape)

    def labels(self, rows: np.ndarray) -> np.ndarray:
        """Returns float32 [..., num_classes]: the labels of rows, int64 [...]."""
        return self._bytes(schema.LABEL, rows).view("<f4")

    def keys(self, rows: np.ndarray) -> np.ndarray:
        """Returns bytes [...]: the keys of rows, int64 [...]."""
        return self._bytes(schema.KEY, rows).view(f"S{schema.KEY_LENGTH}")[..., 0]

    def _bytes(self, feature: str, rows: np.ndarray) -> np.ndarray:
        return self.layout.bytes_in(self.array, feature)[rows]


class BufferPool:
    """Gives out buffers of so many bytes, and reuses each when its last array is gone.

    The system clears new memory before its first use, which costs more than gathering the images.
    """

    def __init__(self, num_bytes: int) -> None:
        self._type = ctypes.c_uint8 * num_bytes
        self._free: list[mmap.mmap] = []

    def take(self) -> np.ndarray:
        """Returns uint8 [num_bytes], in use as long as this array or a view of it exists.

        The content is undefined; it begins at a page of memory.
        """
        try:
            memory = self._free.pop()
        except IndexError:
            # Private, so that a forked process does not write into this one's batches.
            memory = mmap.mmap(-1, ctypes.sizeof(self._type), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        lease = self._type.from_buffer(memory)
        weakref.finalize(lease, self._free.append, memory)
        return np.frombuffer(memoryview(lease), np.uint8)


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


def map_files(
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

"""Memory for batches, which is reused when no array refers to it any more."""

from __future__ import annotations

import ctypes
import mmap
import weakref

import numpy as np


class BufferPool:
    """Gives out buffers of one size, and reuses each when its last array is gone.

    The system clears every page of new memory before its first use. For batches of some megabytes
    that costs more than gathering the images does.
    """

    def __init__(self, num_bytes: int) -> None:
        """Makes an empty pool.

        Args:
            num_bytes: size of a buffer, at least 1.
        """
        self._type = ctypes.c_uint8 * num_bytes
        self._free: list[mmap.mmap] = []

    def take(self) -> np.ndarray:
        """Returns uint8 [num_bytes] with undefined content, which begins at a page of memory.

        The buffer is in use as long as this array or a view of it exists.
        """
        try:
            memory = self._free.pop()
        except IndexError:
            # Private, so that a forked process does not write into this one's batches.
            memory = mmap.mmap(-1, ctypes.sizeof(self._type), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        lease = self._type.from_buffer(memory)
        weakref.finalize(lease, self._free.append, memory)
        return np.frombuffer(memoryview(lease), np.uint8)

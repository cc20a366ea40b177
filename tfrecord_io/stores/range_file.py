"""A file that is somewhere in an archive or on a store, to be read in parts."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any


class RangeFile(io.RawIOBase):
    """A seekable file of which exactly the bytes of each read are fetched.

    A read raises what `read_at` raises, which is given the place and number of bytes that exist.
    """

    #: Libraries ask a buffered file for its name; this one has none.
    name = ""

    def __init__(
        self, read_at: Callable[[int, int], bytes | memoryview], size: int, start: int = 0
    ) -> None:
        """Makes a file of `size` bytes, from `start` on of what `read_at` reads."""
        self._read_at = read_at
        self._size = size
        self._start = start
        self._position = 0

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Sets the position; see `io.IOBase.seek`."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(f"cannot seek to {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Reads bytes into a buffer; see `io.RawIOBase.readinto`."""
        length = min(len(buffer), max(self._size - self._position, 0))
        if length:
            buffer[:length] = self._read_at(self._start + self._position, length)
        self._position += length
        return length

    def readall(self) -> bytes:
        """Returns all bytes that are left, in one read."""
        return self.read(max(self._size - self._position, 0)) or b""

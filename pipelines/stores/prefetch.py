"""Reads files ahead of their use, in order, while the caller waits for a network or a disk."""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, Protocol, TypeVar

#: Bytes that may be read ahead in one process; a single file may be larger.
_MOST_BYTES_AHEAD = 64 * 1024 * 1024

#: Number of images announced to the operating system together, while the previous group is read.
_NUM_ANNOUNCED = 8

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Stored(Protocol):
    """A reference to a file."""

    @property
    def stored_size(self) -> int:
        """Number of bytes that reading the file fetches."""
        ...


_Ref = TypeVar("_Ref", bound=Stored)
_RefToRead = TypeVar("_RefToRead", bound=Stored, contravariant=True)


class Reader(Protocol[_RefToRead]):
    """Reads files by their references, on a worker. Readers inherit from this class.

    Attributes:
        num_parallel_reads: number of threads that call `read` at the same time; more than one for
            a reader that waits for a network.
    """

    num_parallel_reads: int = 1

    def announce(self, ref: _RefToRead) -> None:
        """Is told about a file some time before it is read, so that a disk can fetch it."""
        return

    def read(self, ref: _RefToRead) -> bytes:
        """Returns the bytes of a file."""
        ...

    def read_start(self, ref: _RefToRead, length: int) -> bytes:
        """Returns the first bytes of a file, about `length` of them; by default, all of it."""
        return self.read(ref)

    def open(self, ref: _RefToRead) -> BinaryIO | None:
        """Opens a file of which a part may be enough; None if it can only be read as a whole."""
        return None


def read_in_order(
    reader: Reader[_Ref], refs: Iterable[_Ref], read: Callable[[_Ref], _Result]
) -> Iterator[tuple[_Ref, Callable[[], _Result]]]:
    """Yields each image with a function that returns what was read, or raises the error of it.

    If the reader's `num_parallel_reads` is more than one, that many threads read ahead of the
    consumer. Otherwise the caller reads the image by calling the function, and the image is
    announced some images earlier: the images of a shard are scattered over an archive, so the disk
    can fetch the next ones while the worker decodes.

    Args:
        reader: an open reader of the source.
        refs: the images.
        read: reads an image with that reader; mostly its own `read`.
    """
    if reader.num_parallel_reads == 1:
        announced = _announced(reader.announce, refs)
        return ((ref, functools.partial(read, ref)) for ref in announced)
    return ahead(read, refs, reader.num_parallel_reads, lambda ref: ref.stored_size)


def _announced(announce: Callable[[_Ref], None], refs: Iterable[_Ref]) -> Iterator[_Ref]:
    # In groups, because a call between two decoded images finds cold caches and takes several times
    # longer.
    rest = iter(refs)
    announced: list[_Ref] = []
    while True:
        following = list(itertools.islice(rest, _NUM_ANNOUNCED))
        for ref in following:
            announce(ref)
        yield from announced
        if not following:
            return
        announced = following


def ahead(
    read: Callable[[_Item], _Result],
    items: Iterable[_Item],
    num_threads: int,
    num_bytes: Callable[[_Item], int] = lambda item: 0,
) -> Iterator[tuple[_Item, Callable[[], _Result]]]:
    """Yields each item with a function that returns the result of `read`, or raises its error.

    Args:
        read: reads an item; several threads call it, ahead of the consumer.
        items: the items to read, in order.
        num_threads: number of threads.
        num_bytes: returns the memory in bytes that reading an item takes, which limits how far
            ahead the threads read.
    """
    executor = ThreadPoolExecutor(num_threads, thread_name_prefix="prefetch")
    try:
        waiting: collections.deque[tuple[_Item, Callable[[], _Result]]] = collections.deque()
        bytes_ahead = 0
        for item in items:
            # Twice as many items as threads, so that a slow read does not leave threads idle.
            while waiting and (
                len(waiting) >= 2 * num_threads or bytes_ahead + num_bytes(item) > _MOST_BYTES_AHEAD
            ):
                bytes_ahead -= num_bytes(waiting[0][0])
                yield waiting.popleft()
            waiting.append((item, executor.submit(read, item).result))
            bytes_ahead += num_bytes(item)
        while waiting:
            yield waiting.popleft()
    finally:
        executor.shutdown(cancel_futures=True)

"""Reads the images of a source on a worker, in order."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, Protocol, TypeVar

from pipelines.listing.refs import ImageRef
from pipelines.stores import prefetch

#: Number of images announced to the operating system together, while the previous group is read.
_NUM_ANNOUNCED = 8

_Result = TypeVar("_Result")


class Reader(Protocol):
    """Reads files by their references, on a worker. Readers inherit from this class.

    Attributes:
        num_parallel_reads: number of threads that call `read` at the same time; more than one for
            a reader that waits for a network.
    """

    num_parallel_reads: int = 1

    def announce(self, ref: ImageRef) -> None:
        """Tells the reader that a file will be read soon, so that a disk can fetch it."""
        return

    def read(self, ref: ImageRef) -> bytes:
        """Returns the bytes of a file."""
        ...

    def read_start(self, ref: ImageRef, length: int) -> bytes:
        """Returns the first bytes of a file, about `length` of them; by default, all of it."""
        return self.read(ref)

    def open(self, ref: ImageRef) -> BinaryIO | None:
        """Opens a file of which a part may be enough; None if it can only be read as a whole."""
        return None


def read_in_order(
    reader: Reader, refs: Iterable[ImageRef], read: Callable[[ImageRef], _Result]
) -> Iterator[tuple[ImageRef, Callable[[], _Result]]]:
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
        announced = _announced(reader, refs)
        return ((ref, functools.partial(read, ref)) for ref in announced)
    return prefetch.ahead(read, refs, reader.num_parallel_reads, lambda ref: ref.stored_size)


def _announced(reader: Reader, refs: Iterable[ImageRef]) -> Iterator[ImageRef]:
    # In groups, because a call between two decoded images finds cold caches and takes several times
    # longer.
    rest = iter(refs)
    announced: list[ImageRef] = []
    while True:
        following = list(itertools.islice(rest, _NUM_ANNOUNCED))
        for ref in following:
            reader.announce(ref)
        yield from announced
        if not following:
            return
        announced = following

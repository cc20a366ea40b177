"""Reads the images of a source on a worker, in order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import BinaryIO, Protocol, TypeVar

from pipelines.sources.member import Member
from tfrecord_io.ahead import map_ahead

#: Number of images announced to the operating system together, while the previous group is read.
_NUM_ANNOUNCED = 8

_Result = TypeVar("_Result")


class Reader(Protocol):
    """Reads files of a source, on a worker. Readers inherit from this class.

    Attributes:
        num_parallel_reads: number of threads that call `read` at the same time; more than one for
            a reader that waits for a network.
    """

    num_parallel_reads: int = 1

    def announce(self, member: Member) -> None:
        """Tells the reader that a file will be read soon, so that a disk can fetch it."""
        return

    def read(self, member: Member) -> bytes:
        """Returns the bytes of a file."""
        ...

    def read_start(self, member: Member, length: int) -> bytes:
        """Returns the first bytes of a file, about `length` of them; by default, all of it."""
        return self.read(member)

    def open(self, member: Member) -> BinaryIO | None:
        """Opens a file of which a part may be enough; None if it can only be read as a whole."""
        return None


def read_in_order(
    reader: Reader, reads: Iterable[tuple[Member, Callable[[], _Result]]]
) -> Iterator[Callable[[], _Result]]:
    """Yields for each read a function that returns what was read, or raises the error of it.

    If the reader's `num_parallel_reads` is more than one, that many threads read ahead of the
    consumer. Otherwise the caller reads by calling the function, and the file is announced some
    files earlier: the images of a shard are scattered over an archive, so the disk can fetch the
    next ones while the worker decodes.

    Args:
        reader: an open reader of the source.
        reads: the files, each with the function that reads it with that reader.
    """
    if reader.num_parallel_reads == 1:
        return _announced(reader, reads)
    num_threads = reader.num_parallel_reads
    return map_ahead(
        _attempt, reads, 2 * num_threads, num_threads=num_threads, num_bytes=_num_bytes
    )


def _num_bytes(read: tuple[Member, Callable[[], object]]) -> int:
    return read[0].stored_size


def _attempt(read: tuple[Member, Callable[[], _Result]]) -> Callable[[], _Result]:
    """Reads a file; returns a function that returns what was read, or raises the error of it."""
    done: Future[_Result] = Future()
    try:
        done.set_result(read[1]())
    except Exception as error:
        done.set_exception(error)
    return done.result


def _announced(
    reader: Reader, reads: Iterable[tuple[Member, Callable[[], _Result]]]
) -> Iterator[Callable[[], _Result]]:
    # In groups, because a call between two decoded images finds cold caches and takes several times
    # longer.
    rest = iter(reads)
    announced: list[Callable[[], _Result]] = []
    while True:
        following = list(itertools.islice(rest, _NUM_ANNOUNCED))
        for member, _ in following:
            reader.announce(member)
        yield from announced
        if not following:
            return
        announced = [read for _, read in following]

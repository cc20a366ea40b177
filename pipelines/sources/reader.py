"""Reads the images of a source on a worker, in order."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, BinaryIO, Protocol, TypeVar

from pipelines.sources.member import Member
from tfrecord_io.ahead import MOST_BYTES_AHEAD, map_ahead

# Files are announced to the operating system in groups, so many of them ahead: a disk that has many
# reads to choose from gives several times as many a second as with eight.
_GROUP = 32
_GROUPS_AHEAD = 8

_Result = TypeVar("_Result")
_Read = tuple[Member, Callable[[], _Result]]


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


class Checks:
    """The members of an archive that were compared with their checksums, by any thread."""

    def __init__(self) -> None:
        self._done: set[int] = set()
        self._locks: dict[int, threading.Lock] = {}

    def once(self, place: int, check: Callable[[], object]) -> None:
        """Calls a function, unless it has returned for this member; other threads wait for it.

        Args:
            place: where the member is in the archive.
            check: compares the member; raises if it is damaged.
        """
        with self._locks.setdefault(place, threading.Lock()):
            if place not in self._done:
                check()
                self._done.add(place)


def read_in_order(
    reader: Reader, reads: Iterable[_Read[_Result]]
) -> Iterator[Callable[[], _Result]]:
    """Yields for each read a function that returns what was read, or raises the error of it.

    If the reader's `num_parallel_reads` is more than one, that many threads read ahead of the
    consumer. Otherwise the caller reads by calling the function, and the file is announced some
    files earlier, in the order of their places: the images of a shard are scattered over an
    archive, so the disk can fetch the next ones while the worker decodes.

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


def _num_bytes(read: _Read[Any]) -> int:
    return read[0].stored_size


def _attempt(read: _Read[_Result]) -> Callable[[], _Result]:
    """Reads a file; returns a function that returns what was read, or raises the error of it."""
    done: Future[_Result] = Future()
    try:
        done.set_result(read[1]())
    except Exception as error:
        done.set_exception(error)
    return done.result


def _announced(reader: Reader, reads: Iterable[_Read[_Result]]) -> Iterator[Callable[[], _Result]]:
    # In groups, because a call between two decoded images finds cold caches and takes several times
    # longer.
    ahead: collections.deque[list[_Read[_Result]]] = collections.deque()
    bytes_ahead = 0
    for group in _groups(reads):
        for member, _ in sorted(group, key=lambda read: read[0].offset):
            reader.announce(member)
        ahead.append(group)
        bytes_ahead += sum(map(_num_bytes, group))
        while len(ahead) > 1 and (len(ahead) > _GROUPS_AHEAD or bytes_ahead > MOST_BYTES_AHEAD):
            first = ahead.popleft()
            bytes_ahead -= sum(map(_num_bytes, first))
            yield from (read for _, read in first)
    yield from (read for group in ahead for _, read in group)


def _groups(reads: Iterable[_Read[_Result]]) -> Iterator[list[_Read[_Result]]]:
    """Cuts reads into groups, none of which takes more than `MOST_BYTES_AHEAD`."""
    group: list[_Read[_Result]] = []
    num_bytes = 0
    for read in reads:
        if group and (len(group) == _GROUP or num_bytes + _num_bytes(read) > MOST_BYTES_AHEAD):
            yield group
            group, num_bytes = [], 0
        group.append(read)
        num_bytes += _num_bytes(read)
    yield group

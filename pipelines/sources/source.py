"""The interface of a source of images: its files, and its reader on a worker.

To add a source, write a class in a module of its own, and make it and name it in `factory`.
"""

from __future__ import annotations

import collections
import io
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeVar

from tfrecord_io.stores.ahead import map_ahead

#: A larger file is rejected as not a scan, because reading it could exhaust a worker's memory.
MAX_FILE_BYTES = 256 * 1024 * 1024

# Files are announced in groups of this many, some groups ahead: a disk that can choose among many
# reads gives several times as many a second as with eight. Larger files are not announced: they
# would fill the memory, and the disk reads ahead in each of them.
_GROUP = 32
_GROUPS_AHEAD = 8
_ANNOUNCED_BYTES = 1024 * 1024

_Result = TypeVar("_Result")


class Member(NamedTuple):
    """One file of a source, which may be an image or not.

    Attributes:
        name: its path in the source, with `/` between folders.
        size: size of the file's content in bytes.
        offset: position in the archive in bytes; 0 for files on a disk.
        stored_size: size in the archive in bytes, compressed or not.
        version: a number that changes when the content changes.
        problem: (reason, detail) if it is already known that the file cannot be read.
    """

    name: str
    size: int
    offset: int = 0
    stored_size: int = 0
    version: int = 0
    problem: tuple[str, str] | None = None


class Reader(Protocol):
    """Reads files of a source, on a worker. Readers inherit from this class.

    A reader raises `tfrecord_io.decoding.rejects.Reject` if a file is damaged, and
    `errors.BuildError` if it cannot be read, is gone or has changed.

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

    def open(self, member: Member) -> BinaryIO:
        """Opens a file of which a part may be enough; by default, all of it is read."""
        return io.BytesIO(self.read(member))


class Source(Protocol):
    """A place where images come from. It is pickled for the workers, so it holds plain values only.

    Sources inherit from this class. Its methods raise `errors.UserError` if the input is missing or
    damaged, and `errors.BuildError` if it cannot be read.
    """

    def members(self) -> Iterable[Member]:
        """Returns all files, on the launcher: images and others, in any order."""
        ...

    def same_content(self, one: Member, other: Member) -> bool:
        """Returns whether two files of one size are the same; by default, both are read."""
        with self.open() as reader:
            return reader.read(one) == reader.read(other)

    def open(self) -> AbstractContextManager[Reader]:
        """Opens the source on a worker."""
        ...

    def describe(self) -> dict[str, Any]:
        """Returns the source's entry in the manifest, without secrets and local paths."""
        ...


_Read = tuple[Member, Callable[[], _Result]]


def read_in_order(
    reader: Reader, reads: Iterable[_Read[_Result]]
) -> Iterator[Callable[[], _Result]]:
    """Yields for each read a function that returns what was read, or raises the error of it.

    A read is a file, and the function that reads it with this open reader. If the reader's
    `num_parallel_reads` is more than one, that many threads read ahead of the consumer. Otherwise
    the caller reads by calling the function, and the files are announced earlier, in the order of
    their places, so that the disk fetches the next ones while the worker decodes.
    """
    num_threads = reader.num_parallel_reads
    if num_threads == 1:
        return _announced(reader, reads)
    return map_ahead(
        _attempt,
        reads,
        2 * num_threads,
        num_threads=num_threads,
        num_bytes=lambda read: read[0].stored_size,
    )


def _attempt(read: _Read[_Result]) -> Callable[[], _Result]:
    done: Future[_Result] = Future()
    try:
        done.set_result(read[1]())
    except Exception as error:
        done.set_exception(error)
    return done.result


def _announced(reader: Reader, reads: Iterable[_Read[_Result]]) -> Iterator[Callable[[], _Result]]:
    # In groups: a call between two decoded images finds cold caches and takes several times longer.
    reads, ahead = iter(reads), collections.deque[list[_Read[_Result]]]()
    while group := list(itertools.islice(reads, _GROUP)):
        for member, _ in sorted(group, key=lambda read: read[0].offset):
            if member.stored_size <= _ANNOUNCED_BYTES:
                reader.announce(member)
        ahead.append(group)
        if len(ahead) > _GROUPS_AHEAD:
            yield from (read for _, read in ahead.popleft())
    yield from (read for group in ahead for _, read in group)

"""Reads the images of a source on a worker, in order."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TypeVar

from pipelines.sources.source import Member, Reader
from tfrecord_io.ahead import map_ahead

# Files are announced to the operating system in groups, some groups ahead: a disk that can choose
# among many reads gives several times as many a second as with eight. A group has this many files,
# and about this many bytes. A larger file is not announced: it is no image, or it has many frames,
# and only some of them are needed.
_GROUP = 32
_GROUP_BYTES = 16 * 1024 * 1024
_GROUPS_AHEAD = 8

_Result = TypeVar("_Result")
_Read = tuple[Member, Callable[[], _Result]]


def read_in_order(
    reader: Reader, reads: Iterable[_Read[_Result]]
) -> Iterator[Callable[[], _Result]]:
    """Yields for each read a function that returns what was read, or raises the error of it.

    A read is a file, and the function that reads it with this open reader.

    If the reader's `num_parallel_reads` is more than one, that many threads read ahead of the
    consumer. Otherwise the caller reads by calling the function, and the file is announced some
    files earlier, in the order of their places: the images of a shard are scattered over an
    archive, so the disk can fetch the next ones while the worker decodes.
    """
    if reader.num_parallel_reads == 1:
        return _announced(reader, reads)
    num_threads = reader.num_parallel_reads
    return map_ahead(
        _attempt,
        reads,
        2 * num_threads,
        num_threads=num_threads,
        num_bytes=lambda read: read[0].stored_size,
    )


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
    for group in _groups(reads):
        for member, _ in sorted(group, key=lambda read: read[0].offset):
            if member.stored_size <= _GROUP_BYTES:
                reader.announce(member)
        ahead.append(group)
        if len(ahead) > _GROUPS_AHEAD:
            yield from (read for _, read in ahead.popleft())
    yield from (read for group in ahead for _, read in group)


def _groups(reads: Iterable[_Read[_Result]]) -> Iterator[list[_Read[_Result]]]:
    group: list[_Read[_Result]] = []
    for read in reads:
        group.append(read)
        if len(group) == _GROUP or sum(member.stored_size for member, _ in group) > _GROUP_BYTES:
            yield group
            group = []
    yield group

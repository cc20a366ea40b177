"""Reads ahead where reading means waiting for a network or a disk, in the order of the images."""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

#: Bytes that may be on their way or wait to be decoded, in one process (one file always may).
_MOST_BYTES_AHEAD = 64 * 1024 * 1024

#: Images of which the operating system is told at once, while as many wait to be read.
_NUM_ANNOUNCED = 8

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Stored(Protocol):
    """Says where a file is; `stored_size` is the number of bytes that reading it fetches."""

    @property
    def stored_size(self) -> int: ...


_Ref = TypeVar("_Ref", bound=Stored)
_RefToRead = TypeVar("_RefToRead", bound=Stored, contravariant=True)


class Reader(Protocol[_RefToRead]):
    """Reads files by their references."""

    def read(self, ref: _RefToRead) -> bytes: ...


def read_in_order(
    reader: Reader[_Ref], refs: Iterable[_Ref]
) -> Iterator[tuple[_Ref, Callable[[], bytes]]]:
    """Yields each image with a function that returns its bytes, or raises what reading it raised.

    A reader whose `num_parallel_reads` is more than one is read ahead of the consumer by so many
    threads; any other is read when the function is called, by the caller itself. If it can
    `announce` an image, it does so somewhat earlier: the images of a shard lie all over an
    archive, and a disk that does not know the next place has the worker wait for each.

    Args:
        reader: of the source, open.
        refs: the images.
    """
    num_threads = getattr(reader, "num_parallel_reads", 1)
    if num_threads == 1:
        if announce := getattr(reader, "announce", None):
            refs = _announced(announce, refs)
        return ((ref, functools.partial(reader.read, ref)) for ref in refs)
    return ahead(reader.read, refs, num_threads, lambda ref: ref.stored_size)


def _announced(announce: Callable[[_Ref], None], refs: Iterable[_Ref]) -> Iterator[_Ref]:
    # Some at a time: between two decoded images, each call costs several times what it costs here.
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
    """Yields each item with a function that returns what `read` made of it, or raises its error.

    Args:
        read: is called by several threads at once, somewhat ahead of the consumer.
        items: what to read, in order.
        num_threads: how many.
        num_bytes: what reading an item will hold in memory; bounds how far ahead it goes.
    """
    executor = ThreadPoolExecutor(num_threads, thread_name_prefix="prefetch")
    try:
        waiting: collections.deque[tuple[_Item, Callable[[], _Result]]] = collections.deque()
        bytes_ahead = 0
        for item in items:
            # Twice as many as threads: a slow one must not leave the others without work.
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

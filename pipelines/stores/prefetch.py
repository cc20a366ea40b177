"""Reads files ahead of their use, in order, while the caller waits for a network or a disk."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

#: Bytes that may be read ahead in one process; a single file may be larger.
_MOST_BYTES_AHEAD = 64 * 1024 * 1024

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


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

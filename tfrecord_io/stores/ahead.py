"""Results of a function in order, computed ahead by the threads of `concurrent.futures`.

>>> list(map_ahead(abs, [-1, -2, -3], 2, num_threads=2))
[1, 2, 3]
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

#: Bytes that the results computed ahead may take together; a single one may be larger.
MOST_BYTES_AHEAD = 64 * 1024 * 1024

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_ahead(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    num_ahead: int,
    *,
    num_threads: int,
    num_bytes: Callable[[Item], int] | None = None,
) -> Iterator[Result]:
    """Yields the result of a function for each item, in order, computed before it is asked for.

    What the function raises is raised here, in its turn. The threads end with this iterator: when
    it is exhausted, closed, or not used any more. The items are consumed in the caller's thread,
    which also computes the results if `num_ahead` is 0. `num_bytes` returns the memory that an
    item's result takes; those ahead take at most `MOST_BYTES_AHEAD`.
    """
    if not num_ahead:
        yield from map(function, items)
        return
    # A pool, because its idle threads do not keep the program from ending. A thread that waits for
    # room in a queue would.
    with ThreadPoolExecutor(num_threads, thread_name_prefix="map_ahead") as executor:
        ahead: collections.deque[tuple[Future[Result], int]] = collections.deque()
        try:
            for item in items:
                size = num_bytes(item) if num_bytes else 0
                while ahead and size + sum(size for _, size in ahead) > MOST_BYTES_AHEAD:
                    yield ahead.popleft()[0].result()
                ahead.append((executor.submit(function, item), size))
                if len(ahead) > num_ahead:
                    yield ahead.popleft()[0].result()
            while ahead:
                yield ahead.popleft()[0].result()
        finally:
            executor.shutdown(wait=False, cancel_futures=True)

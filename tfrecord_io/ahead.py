"""Results of a function in order, computed by threads before they are asked for.

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
    it is exhausted, closed, or not used any more.

    Args:
        function: called in a thread.
        items: consumed in the caller's thread.
        num_ahead: how many results are computed ahead; if 0, the caller's thread computes them.
        num_threads: threads that call the function at the same time.
        num_bytes: returns the memory that the result of an item takes, if that may be too much; see
            `MOST_BYTES_AHEAD`.
    """
    if not num_ahead:
        yield from map(function, items)
        return
    # A pool, because its idle threads do not keep the program from ending. A thread that waits for
    # room in a queue would.
    with ThreadPoolExecutor(num_threads, thread_name_prefix="map_ahead") as executor:
        ahead: collections.deque[tuple[Future[Result], int]] = collections.deque()
        bytes_ahead = 0

        def first() -> Result:
            nonlocal bytes_ahead
            future, size = ahead.popleft()
            bytes_ahead -= size
            return future.result()

        try:
            for item in items:
                size = num_bytes(item) if num_bytes else 0
                while ahead and bytes_ahead + size > MOST_BYTES_AHEAD:
                    yield first()
                ahead.append((executor.submit(function, item), size))
                bytes_ahead += size
                if len(ahead) > num_ahead:
                    yield first()
            while ahead:
                yield first()
        finally:
            executor.shutdown(wait=False, cancel_futures=True)

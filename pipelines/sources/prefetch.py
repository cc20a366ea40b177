"""Reads ahead where reading means waiting for a network, in the order in which it is asked for."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from pipelines.sources.listing import ImageRef
from pipelines.sources.source import Reader

#: Bytes that may be on their way or wait to be decoded, in one process (one file always may).
_MOST_BYTES_AHEAD = 64 * 1024 * 1024


def read_in_order(
    reader: Reader, refs: Iterable[ImageRef]
) -> Iterator[tuple[ImageRef, Callable[[], bytes]]]:
    """Yields each image with a function that returns its bytes, or raises what reading it raised.

    A reader whose `num_parallel_reads` is more than one is read ahead of the consumer by so many
    threads; any other is read when the function is called, by the caller itself.

    Args:
        reader: of the source, open.
        refs: the images.
    """
    num_threads = getattr(reader, "num_parallel_reads", 1)
    if num_threads == 1:
        for ref in refs:
            yield ref, functools.partial(reader.read, ref)
        return
    executor = ThreadPoolExecutor(num_threads, thread_name_prefix="prefetch")
    try:
        ahead: collections.deque[tuple[ImageRef, Callable[[], bytes]]] = collections.deque()
        bytes_ahead = 0
        for ref in refs:
            # Twice as many as threads: a slow one must not leave the others without work.
            while ahead and (
                len(ahead) >= 2 * num_threads or bytes_ahead + ref.stored_size > _MOST_BYTES_AHEAD
            ):
                bytes_ahead -= ahead[0][0].stored_size
                yield ahead.popleft()
            ahead.append((ref, executor.submit(reader.read, ref).result))
            bytes_ahead += ref.stored_size
        yield from ahead
    finally:
        executor.shutdown(cancel_futures=True)

"""The stages of a long command: how long each took, and that it is still at work."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

#: Seconds between two lines of a stage that is at work.
SECONDS = 10.0


@contextlib.contextmanager
def stage(name: str, *, is_printed: bool = True) -> Iterator[None]:
    """Prints the name of a block and its seconds when it is done, and every `SECONDS` until then.

    Nothing is printed unless `is_printed`.
    """
    started, ended = time.monotonic(), threading.Event()

    def report() -> None:
        while not ended.wait(SECONDS):
            print(f"{name}, {time.monotonic() - started:.0f} s so far", flush=True)

    watcher = threading.Thread(target=report, daemon=True)
    if is_printed:
        watcher.start()
    try:
        yield
    finally:
        ended.set()
    if is_printed:
        watcher.join()
        print(f"{name}: {time.monotonic() - started:.1f} s", flush=True)

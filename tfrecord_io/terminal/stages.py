"""Keeps commands from being silent: a line for each stage, and for ten seconds without a line."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

#: Longest time in which a command prints nothing.
SECONDS = 10.0

# Names of the stages that are under way, and when they began; the innermost one is the last.
_under_way: list[tuple[str, float]] = []


@contextlib.contextmanager
def stage(name: str, *, is_told: bool = True) -> Iterator[None]:
    """Prints the name of a block and its seconds when it is done."""
    started = time.monotonic()
    _under_way.append((name, started))
    try:
        yield
    finally:
        _under_way.pop()
    if is_told:
        print(f"{name}: {time.monotonic() - started:.1f} s", flush=True)


@contextlib.contextmanager
def without_silence() -> Iterator[Callable[[], None]]:
    """Prints to standard error how long a block is at work if it is silent for `SECONDS`.

    Yields a function that the block calls when it prints something.
    """
    started = last = time.monotonic()
    ended = threading.Event()

    def heard() -> None:
        nonlocal last
        last = time.monotonic()

    def watch() -> None:
        while not ended.wait(max(0.01, last + SECONDS - time.monotonic())):
            if time.monotonic() - last >= SECONDS:
                name, began = _under_way[-1] if _under_way else ("at work", started)
                seconds = time.monotonic() - began
                with contextlib.suppress(OSError):  # standard error is closed
                    os.write(terminal, f"{name}, {seconds:.0f} s so far\n".encode())
                heard()

    try:
        # A copy, because standard error is hidden for a while, see `printing.hide_native_noise`.
        terminal = os.dup(sys.stderr.fileno())
    except (OSError, AttributeError):  # a notebook has no such file, and a service none at all
        yield heard
        return
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield heard
    finally:
        ended.set()
        watcher.join()
        os.close(terminal)

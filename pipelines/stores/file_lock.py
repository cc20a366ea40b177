"""A lock that ends with its process: a file locked by flock that contains its holder's id."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path


def acquire(path: Path) -> int:
    """Takes the lock and writes this process's id into its file.

    The file may be deleted only before the descriptor is closed.

    Args:
        path: the lock file; its folder is made if it is missing.

    Returns:
        a descriptor that holds the lock until it is closed or the process ends.

    Raises:
        BlockingIOError: if another process holds the lock; `holder` returns its id.
        OSError: if the file cannot be made.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder may have deleted the file after this process opened it. Then the lock
            # is on a file that no other process can open, and a new file must be made.
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                os.truncate(descriptor, 0)
                os.pwrite(descriptor, str(os.getpid()).encode(), 0)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


@contextlib.contextmanager
def held(path: Path, busy: Callable[[str], Exception]) -> Iterator[None]:
    """Holds a lock until the block ends, and then deletes its file.

    Args:
        path: the lock file.
        busy: returns the error to raise if another process holds the lock, given its id.

    Raises:
        OSError: if the file cannot be made.
    """
    try:
        descriptor = acquire(path)
    except BlockingIOError:
        raise busy(holder(path)) from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # before the lock is released; see `acquire`
        os.close(descriptor)


def holder(path: Path) -> str:
    """Returns the process id that a lock file names, or "unknown"."""
    try:
        return path.read_text(encoding="ascii").strip() or "unknown"
    except (OSError, ValueError):
        return "unknown"

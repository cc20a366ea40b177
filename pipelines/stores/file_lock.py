"""A lock that dies with its process: a file that is held by flock and names its holder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def acquire(path: Path) -> int:
    """Takes the lock and writes this process's id into its file.

    Whoever gives it back deletes the file, if at all, before the descriptor is closed.

    Args:
        path: the lock file; its folder is made if the last holder has deleted that too.

    Returns:
        A descriptor that holds the lock until it is closed, or until the process ends.

    Raises:
        BlockingIOError: if another process holds it; `holder` tells which.
        OSError: if the file cannot be made.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder may have deleted the file between our open and our lock; then this
            # lock is on a file that nobody else will ever open.
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                os.truncate(descriptor, 0)
                os.pwrite(descriptor, str(os.getpid()).encode(), 0)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def holder(path: Path) -> str:
    """Returns the process id that a lock file names, or "unknown"."""
    try:
        return path.read_text(encoding="ascii").strip() or "unknown"
    except (OSError, ValueError):
        return "unknown"

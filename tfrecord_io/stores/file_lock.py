"""A lock that ends with its process: a file locked by flock that contains its holder's id."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tfrecord_io.terminal.errors import UserError


@contextlib.contextmanager
def held(path: Path, doing: str, *, folder_mode: int = 0o777) -> Iterator[None]:
    """Holds a lock until the block ends, and then deletes its file.

    Its folder is made with `folder_mode` if it is missing.

    Raises:
        UserError: if another process holds the lock; `doing` says what for.
    """
    while True:
        path.parent.mkdir(folder_mode, parents=True, exist_ok=True)
        with path.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise UserError(
                    f"another process (process id {file.read().strip() or 'unknown'}) is {doing}; "
                    "wait until it ends and run the same command again, or choose another folder"
                ) from None
            # The last holder may have deleted the file after this process opened it. Then the lock
            # is on a file that no other process can open, and a new file must be made.
            if not _is_at(path, file):
                continue
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            try:
                yield
            finally:
                # The block may have deleted the file with its folder, and another process may have
                # made and locked a new one since. That one stays.
                if _is_at(path, file):
                    path.unlink(missing_ok=True)  # before the lock is released, as said above
            return


def _is_at(path: Path, file: IO[str]) -> bool:
    """Returns whether a path is that of this open file, and not of a newer one."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False

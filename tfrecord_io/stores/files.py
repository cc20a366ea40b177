"""Files by `os`: that appear when complete, or are private; names that outlive a power cut."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

# By default Linux reads no more than this ahead, and drops the rest of a longer announcement.
_ANNOUNCED_BYTES = 128 * 1024


@contextlib.contextmanager
def atomic_write(
    path: str | os.PathLike[str],
    temp_dir: str | os.PathLike[str] | None = None,
    *,
    is_private: bool = False,
) -> Iterator[BinaryIO]:
    """Opens a file for writing, which appears under its name only when it is complete on the disk.

    Each call uses its own temporary name, so two attempts at the same file do not mix: the last
    rename wins. If the block raises an exception, the temporary file is removed. `temp_dir` is its
    folder, on the same file system; by default that of `path`. A private file can be read by its
    owner only.
    """
    path = Path(path)
    temporary = Path(temp_dir or path.parent) / f".{path.name}.{uuid.uuid4().hex}.tmp"
    try:
        with open(temporary, "wb", opener=open_private if is_private else None) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Opens a file or folder, an `opener` of `open`, and makes it its owner's alone.

    Raises:
        OSError: as `os.open` does; or if `path` is a link, or belongs to another user.
    """
    file = os.open(path, flags | os.O_NOFOLLOW, 0o600)
    try:
        # Whatever the umask was, and also if an earlier version made it. Only the owner may.
        os.fchmod(file, 0o700 if flags & os.O_DIRECTORY else 0o600)
    except BaseException:
        os.close(file)
        raise
    return file


def read_json(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file, or {} if the file is missing or holds none."""
    with contextlib.suppress(OSError, ValueError):
        if isinstance(value := json.loads(path.read_text(encoding="utf-8")), dict):
            return value
    return {}


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Writes JSON values to a file, see `atomic_write`."""
    with atomic_write(path) as file:
        file.write((json.dumps(content, indent=1) + "\n").encode("utf-8"))


def write_last(path: Path, content: Any) -> None:
    """Writes JSON values to a file whose presence means that its folder is complete.

    All other files of the folder are on the disk before it, with their names: a power cut may leave
    the folder without this file, but not this file without another.
    """
    folder = path.parent
    for other in (*folder.rglob("*"), folder):
        if other.is_dir():
            sync_folder(other)
        elif other.is_file():
            with other.open("rb") as file:
                os.fsync(file.fileno())
    write_json(path, content)


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Waits until the names in a folder are on the disk, so that a power cut cannot undo them."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return  # a folder that may be entered, but not read, cannot be synced
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems do not support this; their server keeps the names.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def announce(file: int, start: int, length: int) -> None:
    """Tells the system that bytes of an open file will be read soon; returns at once."""
    if not hasattr(os, "posix_fadvise"):  # macOS
        return
    for place in range(start, start + length, _ANNOUNCED_BYTES):
        num_bytes = min(_ANNOUNCED_BYTES, start + length - place)
        os.posix_fadvise(file, place, num_bytes, os.POSIX_FADV_WILLNEED)

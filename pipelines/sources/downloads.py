"""What all downloads share: the state of a partial file, disk errors, and a progress bar."""

import contextlib
import errno
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from tqdm import tqdm

from pipelines import errors


def read_text(path: Path) -> str:
    """Returns a file's text without the white space around it; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def read_json(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file, or {} if the file is missing or holds none."""
    try:
        value = json.loads(read_text(path))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


@contextlib.contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """Makes a folder; if the block fails and leaves it empty, removes it again.

    Args:
        folder: the folder, made with its parents.

    Raises:
        errors.BuildError: if it cannot be made.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise_disk_error(error, folder)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # raised if it holds a partial download, for instance
            for path in made:
                path.rmdir()
        raise


def is_finished(archive: Path) -> bool:
    """Returns whether an archive is complete: a partial one has a marker file beside it."""
    return archive.is_file() and not marker_path(archive).exists()


def marker_path(archive: Path) -> Path:
    """Returns the path of the marker beside a partial file.

    It holds the remote file's ETag and size, and no secret. The Kaggle client uses the same file.
    """
    return archive.with_name(archive.name + ".kaggle-partial")


def file_size(path: Path) -> int:
    """Returns the size of a file in bytes, or 0 if it does not exist."""
    return path.stat().st_size if path.is_file() else 0


def partial_note(archive: Path) -> str:
    """Returns a sentence that says how much of a download is kept, or "" if nothing is."""
    size = file_size(archive)
    if size == 0:
        return ""
    total = read_json(marker_path(archive)).get("size")
    of_total = f" of {byte_text(total)}" if total else ""
    kept = f"{byte_text(size)}{of_total} are kept in {archive}"
    return f"{kept}: run the same command again to resume."


def byte_text(count: int) -> str:
    """Returns a number of bytes in readable units, such as 10.9 GB."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"


def byte_bar(description: str, *, total: int | None = None, initial: int = 0) -> tqdm:
    """Returns a progress bar in bytes, on stderr.

    Args:
        description: text in front of the bar.
        total: bytes in all, if known.
        initial: bytes that are already done.
    """
    seconds = 0.2 if sys.stderr.isatty() else 30.0  # In a log file each refresh is a new line.
    return tqdm(
        desc=description,
        total=total,
        initial=initial,
        mininterval=seconds,
        maxinterval=max(10.0, seconds),
        unit="B",
        unit_scale=True,
    )


_FULL_DISK = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota on this disk is used up",
    errno.EFBIG: "the file is larger than this file system or a limit of the shell (ulimit -f) "
    "allows",
}


def raise_disk_error(error: OSError, path: Path) -> NoReturn:
    """Raises a `BuildError` that says what is wrong with the disk and what to do.

    Args:
        error: the error of the file system.
        path: the file that could not be written.

    Raises:
        errors.BuildError: always.
    """
    reason = _FULL_DISK.get(error.errno or 0) or error.strerror or type(error).__name__
    raise errors.BuildError(
        f"{path} could not be written: {reason}.\n"
        "Free some space or fix its permissions, or choose another folder with --download_dir.\n"
        f"{partial_note(path)}".rstrip()
    ) from None

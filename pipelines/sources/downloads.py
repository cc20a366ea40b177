"""What downloads share: records in JSON files, progress bars in bytes, and errors of the disk."""

import errno
import json
import sys
from pathlib import Path
from typing import Any, NoReturn

from tqdm import tqdm

from pipelines import errors


def read_json(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file, or {} if the file is missing or holds none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def byte_text(count: int) -> str:
    """Returns a number of bytes in readable units, such as 10.9 GB."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"


def byte_bar(description: str, *, total: int | None = None, initial: int = 0) -> tqdm:
    """Returns a progress bar on stderr, of `total` bytes, of which `initial` are done already."""
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
    errno.EFBIG: "the file is larger than the file system or a limit of the shell (ulimit -f) "
    "allows",
}


def raise_disk_error(error: OSError, path: Path, note: str = "") -> NoReturn:
    """Raises a `BuildError` about a file that could not be written; `note` says what is kept."""
    reason = _FULL_DISK.get(error.errno or 0) or error.strerror or type(error).__name__
    lines = [
        f"{path} could not be written: {reason}.",
        "Free some space or fix its permissions, or choose another folder with --download_dir.",
        note,
    ]
    raise errors.BuildError("\n".join(filter(None, lines))) from None

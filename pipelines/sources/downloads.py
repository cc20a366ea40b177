"""What downloads share: records in JSON files, progress bars in bytes, and errors of the disk."""

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


def byte_bar(description: str, total: int | None = None) -> tqdm:
    """Returns a progress bar on stderr, of `total` bytes."""
    seconds = 0.2 if sys.stderr.isatty() else 30.0  # In a log file each refresh is a new line.
    return tqdm(
        desc=description,
        total=total,
        mininterval=seconds,
        maxinterval=max(10.0, seconds),
        unit="B",
        unit_scale=True,
    )


def raise_disk_error(error: OSError, path: Path, note: str = "") -> NoReturn:
    """Raises a `BuildError` about a file that could not be written; `note` says what is kept."""
    lines = [
        f"{path} could not be written: {error.strerror or type(error).__name__}.",
        "Free some space or fix its permissions, or choose another folder with --download_dir.",
        note,
    ]
    raise errors.BuildError("\n".join(filter(None, lines))) from None

"""What downloads share: records in JSON files, and progress bars in bytes."""

import json
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm


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

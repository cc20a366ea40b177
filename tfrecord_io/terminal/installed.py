"""The packages that a command needs besides those of the reader; pip installs them by extras."""

from __future__ import annotations

import importlib.util
import sys

#: By extra of setup.py: modules that only it installs, and that its commands import.
_MODULES = {
    "build": ("apache_beam", "deflate", "jinja2", "PIL", "psutil", "tqdm"),
    "audit": ("PIL",),
    "train": ("jinja2", "keras", "matplotlib", "PIL", "scipy", "sklearn", "tqdm"),
}
#: The extra that has the packages of a command which has none of its own.
_EXTRAS = {"audit": "build"}


def require(command: str) -> None:
    """Ends the process with 2 and a line, if packages of `build`, `audit` or `train` are missing.

    A package calls it before its modules import them, so that no traceback says it.
    """
    if missing := [name for name in _MODULES[command] if importlib.util.find_spec(name) is None]:
        extra = _EXTRAS.get(command, command)
        print(
            f"error: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed; "
            f"run pip install 'scan-tfrecords[{extra}]'",
            file=sys.stderr,
        )
        sys.exit(2)

"""`python -m tfrecord_io verify OUT` and `... audit OUT`: check a finished dataset."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tfrecord_io.auditing import verify
from tfrecord_io.terminal.flags import require

_USAGE = "usage: python -m tfrecord_io {verify,audit} OUT; each has its own --help"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command, by default the process's, and returns its exit code.

    It is 0 if nothing is wrong, 1 for findings or an unusable dataset, 2 for wrong usage.
    """
    name, *arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if name == "verify":
        return verify.COMMAND(arguments)
    if name == "audit":
        require("build", "PIL", "markupsafe")
        from tfrecord_io.auditing import audit

        return audit.COMMAND(arguments)
    print(_USAGE)
    return 0 if name in ("-h", "--help") else 2


if __name__ == "__main__":
    sys.exit(main())

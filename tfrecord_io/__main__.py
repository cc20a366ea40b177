"""`python -m tfrecord_io COMMAND DIRECTORY`: inspects and checks a finished dataset."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tfrecord_io.auditing import verify
from tfrecord_io.terminal.command import require
from tfrecord_io.terminal.printing import refuse


def _audit(arguments: Sequence[str]) -> int:
    require("audit")
    from tfrecord_io.auditing import audit
    from tfrecord_io.extras import shortcuts

    return audit.command([shortcuts.CHECK])(arguments)


#: By name: what a command does, and the function that does it.
COMMANDS = {
    "verify": (verify.COMMAND.purpose, verify.COMMAND),
    "audit": ("look for leaks, copies, contradictions and shortcuts", _audit),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code.

    Args:
        argv: the command line without the program's name; by default that of this process.

    Returns:
        0 if nothing is wrong, 1 for findings or an unusable dataset, 2 for wrong usage.
    """
    name, *arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in COMMANDS:
        return COMMANDS[name][1](arguments)
    lines = (f"  {name:<12} {purpose}" for name, (purpose, _) in COMMANDS.items())
    usage = "\n".join(["usage: python -m tfrecord_io COMMAND ...", "", *lines])
    if name in ("-h", "--help"):
        print(usage)
        return 0
    return refuse(f"expected one of {', '.join(COMMANDS)}, received {name!r}")


if __name__ == "__main__":
    sys.exit(main())

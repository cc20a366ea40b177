"""A worker process of the local engine: Beam's own, but silent, and it never outlives its launcher.

Started by the local engine as `python -m pipelines.worker PID`, with the launcher's process id.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
from pathlib import Path

# From <sys/prctl.h>: the signal this process gets when the thread that started it ends.
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serves the launcher until it has no more work."""
    # Ctrl-C in a terminal goes to every process; the launcher alone says what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_launcher(int(sys.argv[1]))
    # Beam sends what it logs to the launcher; without a handler of its own the root logger would
    # print all of it here as well.
    logging.getLogger().addHandler(logging.NullHandler())
    from apache_beam.runners.worker import sdk_worker_main

    # Beam prints the traceback of an error here and sends it to the launcher too, which tells it.
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
        sdk_worker_main.main(sys.argv)


def _die_with_launcher(launcher: int) -> None:
    """A killed launcher must not leave workers that write into the next build's folder."""
    with contextlib.suppress(OSError, AttributeError):  # Linux alone has it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have been killed before this process could ask for the signal.
    if os.getppid() != launcher:
        sys.exit("the launcher is gone")


if __name__ == "__main__":
    main()

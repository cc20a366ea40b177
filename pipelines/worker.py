"""A worker process of the local engine: Beam's own, but silent, and it never outlives its launcher.

Started by `engine.local_runner` as `python -m pipelines.worker`.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import signal
import sys

# From <sys/prctl.h>: the signal this process gets when the thread that started it ends.
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serves the launcher until it has no more work."""
    _die_with_launcher()
    # Beam sends what it logs to the launcher; without a handler of its own the root logger would
    # print all of it here as well.
    logging.getLogger().addHandler(logging.NullHandler())
    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)


def _die_with_launcher() -> None:
    """A killed launcher must not leave workers that write into the next build's folder."""
    with contextlib.suppress(OSError, AttributeError):  # Linux alone has it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()

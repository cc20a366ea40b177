"""A worker process of the local engine: Beam's own, but silent, and it never outlives its launcher.

Workers are forked from a server process that imports Beam while the launcher does: none of them
spends seconds on it again, and they share the memory of the libraries.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

#: What asks for no worker of this machine, or for one within the launcher.
_NEEDS_NO_WORKER = ("-h", "--help", "--runner", "--direct_running_mode")

#: How often a worker looks at what it is doing, for a profile that nobody reads. A bundle ends when
#: it has looked once more: in Beam as it is 0.2 s later.
_SAMPLING_MS = 10

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["pipelines.preload"])


def import_ahead(argv: Sequence[str]) -> None:
    """Starts the server process, which imports what a worker needs while this one goes on.

    Without it the server starts with the first worker.

    Args:
        argv: the launcher's arguments; some tell that there will be no worker.
    """
    if not any(arg.split("=")[0] in _NEEDS_NO_WORKER for arg in argv):
        forkserver.ensure_running()


def start(settings: Mapping[str, str]) -> BaseProcess:
    """Starts a worker.

    Args:
        settings: how it finds the engine, by the names of the environment variables with which
            Beam tells its workers.
    """
    process = _context.Process(target=_serve, args=(dict(settings),), daemon=True)
    process.start()
    return process


def _serve(settings: Mapping[str, str]) -> None:
    """Serves the launcher until it has no more work."""
    # Ctrl-C in a terminal goes to every process; the launcher alone says what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_launcher, daemon=True).start()
    # The server process was started before the launcher had its settings.
    os.environ.update(settings)
    # Beam would complain that it cannot send its logs to the launcher, which has no use for them.
    logging.getLogger().addHandler(logging.NullHandler())
    from apache_beam.runners.worker import sdk_worker_main, statesampler

    statesampler.StateSampler.__init__.__defaults__ = (_SAMPLING_MS,)

    # Beam prints the traceback of an error here and sends it to the launcher too, which tells it.
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
        sdk_worker_main.main(sys.argv)


def _die_with_launcher() -> None:
    """A killed launcher must not leave workers that write into the next build's folder."""
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    connection.wait([launcher.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)

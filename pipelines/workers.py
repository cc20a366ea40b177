"""Worker processes on this machine.

They do not import Beam and open no port. They are forked from a server process that has already
imported their modules, so they start at once and share that memory. They end when the process that
started them dies. If one of them dies, the others are ended.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, forkserver
from typing import Any, TypeVar

from pipelines import errors

_context = multiprocessing.get_context("forkserver")

#: Makes a value that all workers share, for `results`.
shared_value = _context.Value

#: In a worker, the value that it shares with the others.
shared: Any = None

_Result = TypeVar("_Result")


def preload(names: Sequence[str], *, start_now: bool) -> None:
    """Sets the modules that the server process imports when it starts: now or with a worker.

    Each worker imports the main module as well, which is the command.
    """
    _context.set_forkserver_preload(list(names))
    if start_now:
        is_main = threading.current_thread() is threading.main_thread()
        # A terminal that is closed signals every process; new ones inherit that they ignore it.
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN) if is_main else None
        forkserver.ensure_running()
        if is_main:
            signal.signal(signal.SIGHUP, before)


def results(
    function: Callable[..., _Result],
    calls: Iterable[Sequence[object]],
    num_processes: int,
    share: object = None,
) -> Iterator[_Result]:
    """Calls a function with each of `calls` in worker processes; yields the results in order.

    Args:
        function: it is pickled by its name, and its arguments by their values.
        calls: the arguments of each call.
        num_processes: the largest number of processes.
        share: a `shared_value`, which the function finds in `workers.shared`.

    Raises:
        Exception: the first error of a call; the calls that have not begun are left out.
        errors.BuildError: if a worker died; that ends the others at once.
        KeyboardInterrupt: after Ctrl-C, once all workers are killed.
    """
    others = multiprocessing.active_children()
    pool = futures.ProcessPoolExecutor(num_processes, _context, _start, (dict(os.environ), share))
    try:
        waiting = [pool.submit(function, *arguments) for arguments in calls]
        for call in waiting:
            yield call.result()
    except BrokenProcessPool:
        raise errors.BuildError(
            "a worker process died, most likely because the memory was full; the shards that were "
            "finished are kept.\nRun the same command again to resume, with fewer workers "
            "(--direct_num_workers=1) if memory is short."
        ) from None
    except KeyboardInterrupt:
        for child in multiprocessing.active_children():
            if child not in others:
                child.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _start(environment: Mapping[str, str], share: object) -> None:
    """Prepares a worker, with the launcher's environment variables."""
    global shared
    shared = share
    # The server process may have started before some of them were set.
    os.environ.update(environment)
    # A garbage collection would write to the memory shared with the server, and so copy it.
    gc.freeze()
    # Ctrl-C in a terminal reaches every process; only the launcher handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_launcher, daemon=True).start()


def _die_with_launcher() -> None:
    """Kills this process when the launcher dies, before it can disturb the next build."""
    launcher = multiprocessing.parent_process()
    if launcher is not None:
        connection.wait([launcher.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)

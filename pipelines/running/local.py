"""The worker processes of a build on this machine.

They know no Beam and open no port: a pool of them shares the shard tasks, each taking the next one
that is left. They are forked from a server process that has imported what they need, so they start
at once and share that memory; and they never outlive the launcher.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import Synchronized

from pipelines import errors
from pipelines.planning.plan import ShardTask
from pipelines.shards.build import Build
from pipelines.shards.finish import finish_dataset
from pipelines.shards.write import TaskWriter

#: Flags that ask for no worker of this machine, or for one within the launcher.
_NEEDS_NO_WORKER = ("--runner", "--direct_running_mode")

_context = multiprocessing.get_context("forkserver")

#: In a worker, the index of the next task to begin; all workers share it.
_next_task: Synchronized[int]


def start_ahead(beam_args: Sequence[str]) -> None:
    """Starts the server process, so that it imports while this process imports Beam.

    Without it the server starts with the first worker.

    Args:
        beam_args: Beam's flags; some tell that there will be no worker.
    """
    # Each worker runs the main module again, which is the command; one of them draws the card.
    _context.set_forkserver_preload(["pipelines.build_tfrecords", "pipelines.report.card"])
    if not any(arg.split("=")[0] in _NEEDS_NO_WORKER for arg in beam_args):
        forkserver.ensure_running()


def write_shards(build: Build, tasks: Sequence[ShardTask], num_processes: int) -> None:
    """Writes shards in worker processes, and returns when all of them are there.

    Args:
        build: the whole build.
        tasks: the shards to write.
        num_processes: how many workers share them.

    Raises:
        errors.BuildError: the first error of a worker, or if a worker died. Shards that were begun
            are finished, no other is begun.
        KeyboardInterrupt: after all workers were killed.
    """
    _run_in_each(min(num_processes, len(tasks)), _write_next, build, tasks)


def finish_in_worker(build: Build) -> None:
    """Finishes the dataset in a worker process, beside the memory that the launcher has taken.

    Raises:
        errors.BuildError: as `finish_dataset` does, or if the worker died.
        KeyboardInterrupt: after the worker was killed.
    """
    _run_in_each(1, finish_dataset, build)


def _run_in_each(num_processes: int, function: Callable[..., None], *args: object) -> None:
    """Has each of some worker processes call a function; raises the first error."""
    others = multiprocessing.active_children()
    workers: list[BaseProcess] = []
    next_task = _context.Value("q", 0)
    pool = futures.ProcessPoolExecutor(
        num_processes, _context, _start, (next_task, dict(os.environ))
    )
    try:
        calls = [pool.submit(function, *args) for _ in range(num_processes)]
        workers = [child for child in multiprocessing.active_children() if child not in others]
        for ended in futures.as_completed(calls):
            ended.result()
    except BrokenProcessPool:
        raise errors.BuildError(_dead_worker_message(workers)) from None
    except KeyboardInterrupt:
        for child in multiprocessing.active_children():
            if child not in others:
                child.kill()
        raise
    finally:
        pool.shutdown()


def _dead_worker_message(workers: Sequence[BaseProcess]) -> str:
    # The pool ends the other workers with SIGTERM.
    codes = {worker.exitcode for worker in workers} - {None, 0, -signal.SIGTERM}
    detail = f" (exit code {', '.join(map(str, sorted(codes)))})" if codes else ""
    return (
        f"a worker process died{detail}, most likely because the memory was full; the shards that "
        "were finished are kept.\nRun the same command again to go on, with fewer workers "
        "(--direct_num_workers=1) if memory is short."
    )


def _start(next_task: Synchronized[int], environment: Mapping[str, str]) -> None:
    """Prepares a worker.

    Args:
        next_task: the counter that all workers share.
        environment: the launcher's variables; the server process may be older than some of them.
    """
    global _next_task
    _next_task = next_task
    os.environ.update(environment)
    # What the server process imported stays: looking through it would copy its memory.
    gc.freeze()
    # Ctrl-C in a terminal goes to every process; the launcher alone says what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_launcher, daemon=True).start()


def _write_next(build: Build, tasks: Sequence[ShardTask]) -> None:
    """Takes the next task and writes it, until all tasks are taken."""
    try:
        with TaskWriter(build) as writer:
            while (place := _take_one()) < len(tasks):
                writer.write(tasks[place])
            writer.wait()
    except BaseException:
        _next_task.value = len(tasks)  # leaves nothing to the other workers
        raise


def _take_one() -> int:
    with _next_task.get_lock():
        place = _next_task.value
        _next_task.value += 1
    return place


def _die_with_launcher() -> None:
    """A killed launcher must not leave workers that write into the next build's folder."""
    launcher = multiprocessing.parent_process()
    if launcher is not None:
        connection.wait([launcher.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)

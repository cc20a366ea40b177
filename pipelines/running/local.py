"""The worker processes of a build on this machine.

The workers do not import Beam and open no port. Each takes the next task that no other worker has
taken. They are forked from a server process that has already imported their modules, so they start
at once and share that memory. They end when the launcher dies. If a worker dies, the pool ends the
others, the build fails with a message, and the next run keeps the finished shards.
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
from typing import Any

from pipelines import errors
from pipelines.planning.plan import ShardTask
from pipelines.shards.build import Work
from pipelines.shards.finish import finish_dataset
from pipelines.shards.write import ImageWriter, TaskWriter

#: Flags with which the job may need no local worker process.
_NEEDS_NO_WORKER = ("--runner", "--direct_running_mode")

_context = multiprocessing.get_context("forkserver")

#: In a worker, the index of the next task to take, shared by all workers.
_next_task: Synchronized[int]


def start_ahead(beam_args: Sequence[str]) -> None:
    """Starts the server process early, so that it imports while this process imports Beam.

    Otherwise the server starts with the first worker.

    Args:
        beam_args: Beam's flags. Another engine or in-memory mode needs no server.
    """
    # Each worker imports the main module, which is the command; one of them renders the card.
    _context.set_forkserver_preload(["pipelines.build_tfrecords", "pipelines.report.card"])
    if not any(arg.split("=")[0] in _NEEDS_NO_WORKER for arg in beam_args):
        forkserver.ensure_running()


def write_shards(
    build: Work,
    tasks: Sequence[ShardTask],
    num_processes: int,
    writer: type[TaskWriter[Any]] = ImageWriter,
) -> None:
    """Writes shards in worker processes, and returns when all of them are written.

    Args:
        build: the whole build.
        tasks: the shards to write.
        num_processes: number of workers that share the tasks.
        writer: kind of writer that writes the shards.

    Raises:
        errors.BuildError: the first error of a worker; the others finish the shards they have
            begun and take no more tasks. Also if a worker died; that ends the others at once.
        KeyboardInterrupt: after Ctrl-C, once all workers are killed.
    """
    _run_in_each(min(num_processes, len(tasks)), _write_next, build, tasks, writer)


def finish_in_worker(build: Work, finish: Callable[[Any], None] = finish_dataset) -> None:
    """Finishes the dataset in a worker process, which does not hold the listing in memory.

    Args:
        build: the whole build.
        finish: finishes a dataset whose shards are written.

    Raises:
        errors.BuildError: as `finish` does, or if the worker died.
        KeyboardInterrupt: after Ctrl-C, once the worker is killed.
    """
    _run_in_each(1, finish, build)


def _run_in_each(num_processes: int, function: Callable[..., None], *args: object) -> None:
    """Calls a function once in each of some worker processes; raises the first error."""
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
    # SIGTERM is left out: the pool ends the other workers with it.
    codes = {worker.exitcode for worker in workers} - {None, 0, -signal.SIGTERM}
    detail = f" (exit code {', '.join(map(str, sorted(codes)))})" if codes else ""
    return (
        f"a worker process died{detail}, most likely because the memory was full; the shards that "
        "were finished are kept.\nRun the same command again to resume, with fewer workers "
        "(--direct_num_workers=1) if memory is short."
    )


def _start(next_task: Synchronized[int], environment: Mapping[str, str]) -> None:
    """Prepares a worker.

    Args:
        next_task: the counter that all workers share.
        environment: the launcher's environment variables; the server process may have started
            before some of them were set.
    """
    global _next_task
    _next_task = next_task
    os.environ.update(environment)
    # A garbage collection would write to the memory shared with the server, and so copy it.
    gc.freeze()
    # Ctrl-C in a terminal reaches every process; only the launcher handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_launcher, daemon=True).start()


def _write_next(build: Work, tasks: Sequence[ShardTask], writer: type[TaskWriter[Any]]) -> None:
    """Takes the next task and writes it, until all tasks are taken."""
    try:
        with writer(build) as opened:
            while (place := _take_one()) < len(tasks):
                opened.write(tasks[place])
            opened.wait()
    except BaseException:
        _next_task.value = len(tasks)  # so that the other workers stop
        raise


def _take_one() -> int:
    with _next_task.get_lock():
        place = _next_task.value
        _next_task.value += 1
    return place


def _die_with_launcher() -> None:
    """Kills this process when the launcher dies, before it can disturb the next build."""
    launcher = multiprocessing.parent_process()
    if launcher is not None:
        connection.wait([launcher.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)

"""Writes the shards of a build in worker processes of this machine.

Each worker takes the next task that no other worker has taken. If a worker dies, the build fails
with a message, and the next run keeps the finished shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.sharedctypes import Synchronized

from pipelines import workers
from pipelines.planning.plan import ShardTask
from pipelines.shards.build import Work
from pipelines.shards.finish import finish_dataset
from pipelines.shards.write import TaskWriter

#: Flags with which the job may need no local worker process.
_NEEDS_NO_WORKER = ("--runner", "--direct_running_mode")


def start_ahead(beam_args: Sequence[str]) -> None:
    """Starts the workers' server process early, so that it imports while this one imports Beam.

    With Beam's flags for another engine or the in-memory mode, no server is needed.
    """
    # One of the workers renders the card.
    workers.set_modules(["pipelines.build_tfrecords", "pipelines.report.card"])
    if not any(arg.split("=")[0] in _NEEDS_NO_WORKER for arg in beam_args):
        workers.start_ahead()


def write_shards(build: Work, tasks: Sequence[ShardTask], num_processes: int) -> None:
    """Writes shards in worker processes, and returns when all of them are written.

    Raises:
        errors.BuildError: the first error of a worker; the others finish the shards they have
            begun and take no more tasks. Also if a worker died; that ends the others at once.
        KeyboardInterrupt: after Ctrl-C, once all workers are killed.
    """
    # The largest first, so that no worker is left alone with a large one at the end.
    tasks = sorted(tasks, key=lambda task: task.num_refs, reverse=True)
    num_processes = min(num_processes, len(tasks))
    calls = [(build, tasks)] * num_processes
    next_task = workers.shared_value("q", 0)
    list(workers.results(_write_next, calls, num_processes, next_task))


def finish_in_worker(build: Work) -> None:
    """Finishes the dataset in a worker process, which does not hold the listing in memory.

    Raises:
        errors.BuildError: as `finish_dataset` does, or if the worker died.
    """
    list(workers.results(finish_dataset, [(build,)], 1))


def _write_next(build: Work, tasks: Sequence[ShardTask]) -> None:
    """Takes the next task and writes it, until all tasks are taken."""
    next_task: Synchronized[int] = workers.shared

    def take() -> int:
        with next_task.get_lock():
            next_task.value += 1
            return next_task.value - 1

    try:
        with TaskWriter(build) as writer:
            while (place := take()) < len(tasks):
                writer.write(tasks[place])
            writer.wait()
    except BaseException:
        next_task.value = len(tasks)  # so that the other workers stop
        raise

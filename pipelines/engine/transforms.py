"""The two steps of the job as Beam transforms: write the shards, and finish the dataset.

Both write their results to files and are safe to repeat: an engine may retry a task, or run it
twice at the same time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Sequence

import apache_beam as beam

from pipelines.engine import local
from pipelines.planning.plan import ShardTask
from pipelines.shards.build import Work
from pipelines.shards.write import TaskWriter
from pipelines.stores import beam_flags


@dataclasses.dataclass(eq=False)
class WriteShards(beam.PTransform):
    """Turns shard tasks into shard files, and yields (name of the dataset, index of the task).

    `num_processes` is the number of local worker processes, for the engine in this process; None if
    the engine's own workers write the shards.
    """

    build: Work
    num_processes: int | None = None

    def expand(self, tasks: beam.PCollection) -> beam.PCollection:
        """Applies the transform to a collection of `ShardTask`."""
        if self.num_processes is None:
            return tasks | beam.ParDo(_WriteHere(self.build))
        # The engine in this process would write the shards one after another, so all tasks become
        # one element.
        return (
            tasks
            | beam.BatchElements(min_batch_size=sys.maxsize, max_batch_size=sys.maxsize)
            | beam.FlatMap(_write_in_processes, self.build, self.num_processes)
        )


class _WriteHere(beam.DoFn):
    """Writes each shard in the process to which Beam gives its task."""

    def __init__(self, build: Work) -> None:
        self._build = build

    def setup(self) -> None:
        beam_flags.use_those_of_job()
        self._open = contextlib.ExitStack()
        self._writer = self._open.enter_context(TaskWriter(self._build))

    def process(self, task: ShardTask) -> Iterator[tuple[str, int]]:
        self._writer.write(task)
        yield self._build.name, task.index

    def finish_bundle(self) -> None:
        # Beam keeps the yielded elements only if the bundle succeeds, so it waits for the files.
        self._writer.wait()

    def teardown(self) -> None:
        self._open.close()


def _write_in_processes(
    tasks: Sequence[ShardTask], build: Work, num_processes: int
) -> Iterator[tuple[str, int]]:
    local.write_shards(build, tasks, num_processes)
    for task in tasks:
        yield build.name, task.index


def _finish_here(build: Work) -> None:
    beam_flags.use_those_of_job()
    build.finish(build)


@dataclasses.dataclass(eq=False)
class FinishDataset(beam.PTransform):
    """Finishes the dataset once all tasks are done.

    Unless `num_processes` is None, a local worker process does it.
    """

    build: Work
    num_processes: int | None = None

    def expand(self, done: beam.PCollection) -> beam.PCollection:
        """Applies the transform to the output of `WriteShards`."""
        finish = _finish_here if self.num_processes is None else local.finish_in_worker
        return (
            done
            | "Gather" >> beam.GroupByKey()
            | "Finish" >> beam.Map(lambda _, build: finish(build), build=self.build)
        )

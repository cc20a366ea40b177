"""The two steps of the job as Beam transforms: write the shards, and finish the dataset.

Both write their results to files and are safe to repeat: an engine may retry a task, or run it
twice at the same time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import apache_beam as beam

from pipelines.engine import local
from pipelines.planning.plan import ShardTask
from pipelines.shards.build import Work
from pipelines.shards.finish import finish_dataset
from pipelines.shards.write import OpenWriter, TaskWriter, open_image_writer


@dataclasses.dataclass(eq=False)
class WriteShards(beam.PTransform):
    """Turns shard tasks into shard files, and yields (name of the dataset, index of the task).

    Attributes:
        build: the whole build.
        num_processes: number of local worker processes, for the engine in this process. None if
            the engine's own workers write the shards.
        open_writer: opens what writes them, such as `open_image_writer`.
    """

    build: Work
    num_processes: int | None = None
    open_writer: OpenWriter = open_image_writer

    def expand(self, tasks: beam.PCollection) -> beam.PCollection:
        """Applies the transform to a collection of `ShardTask`."""
        if self.num_processes is None:
            return tasks | beam.ParDo(_WriteHere(self.build, self.open_writer))
        # The engine in this process would write the shards one after another, so all tasks become
        # one element.
        return (
            tasks
            | beam.BatchElements(min_batch_size=sys.maxsize, max_batch_size=sys.maxsize)
            | beam.FlatMap(_write_in_processes, self.build, self.num_processes, self.open_writer)
        )


class _WriteHere(beam.DoFn):
    """Writes each shard in the process to which Beam gives its task."""

    def __init__(self, build: Work, open_writer: OpenWriter) -> None:
        self._build, self._open_writer = build, open_writer

    def setup(self) -> None:
        self._open = contextlib.ExitStack()
        self._writer = self._open.enter_context(TaskWriter(self._build, self._open_writer))

    def process(self, task: ShardTask) -> Iterator[tuple[str, int]]:
        self._writer.write(task)
        yield self._build.name, task.index

    def finish_bundle(self) -> None:
        # Beam keeps the yielded elements only if the bundle succeeds, so it waits for the files.
        self._writer.wait()

    def teardown(self) -> None:
        self._open.close()


def _write_in_processes(
    tasks: Sequence[ShardTask], build: Work, num_processes: int, open_writer: OpenWriter
) -> Iterator[tuple[str, int]]:
    local.write_shards(build, tasks, num_processes, open_writer)
    for task in tasks:
        yield build.name, task.index


@dataclasses.dataclass(eq=False)
class FinishDataset(beam.PTransform):
    """Finishes the dataset once all tasks are done.

    Attributes:
        build: the whole build.
        num_processes: as in `WriteShards`; unless it is None, a local worker process finishes.
        finish: finishes a dataset whose shards are written.
    """

    build: Work
    num_processes: int | None = None
    finish: Callable[[Any], None] = finish_dataset

    def expand(self, done: beam.PCollection) -> beam.PCollection:
        """Applies the transform to the output of `WriteShards`."""
        finish = self.finish
        if self.num_processes is not None:
            finish = functools.partial(local.finish_in_worker, finish=finish)
        return (
            done
            | "Gather" >> beam.GroupByKey()
            | "Finish" >> beam.Map(lambda _, build: finish(build), build=self.build)
        )

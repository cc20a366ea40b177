"""The two steps of the job as Beam transforms: write the shards, and finish the dataset.

Both write their results to files and are safe to repeat: an engine may retry a task, or run it
twice at the same time.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from pipelines.planning.plan import ShardTask
from pipelines.running import local
from pipelines.shards.build import Work
from pipelines.shards.finish import finish_dataset
from pipelines.shards.write import ImageWriter, TaskWriter


class WriteShards(beam.PTransform):
    """Turns shard tasks into shard files, and yields (name of the dataset, index of the task).

    Args:
        build: the whole build.
        num_processes: number of local worker processes, for the engine in this process. None if
            the engine's own workers write the shards.
        writer: kind of writer that writes them.
    """

    def __init__(
        self,
        build: Work,
        num_processes: int | None = None,
        writer: type[TaskWriter[Any]] = ImageWriter,
    ) -> None:
        super().__init__()
        self._build, self._num_processes, self._writer = build, num_processes, writer

    def expand(self, tasks: beam.PCollection) -> beam.PCollection:
        """Applies the transform to a collection of `ShardTask`."""
        if self._num_processes is None:
            return tasks | beam.ParDo(_WriteHere(self._build, self._writer))
        return tasks | beam.ParDo(_WriteInProcesses(self._build, self._num_processes, self._writer))


class _WriteHere(beam.DoFn):
    """Writes each shard in the process to which Beam gives its task."""

    def __init__(self, build: Work, writer: type[TaskWriter[Any]]) -> None:
        self._build, self._make_writer = build, writer

    def setup(self) -> None:
        self._open = contextlib.ExitStack()
        self._writer = self._open.enter_context(self._make_writer(self._build))

    def process(self, task: ShardTask) -> Iterator[tuple[str, int]]:
        self._writer.write(task)
        yield self._build.name, task.index

    def finish_bundle(self) -> None:
        # Beam keeps the yielded elements only if the bundle succeeds, so it waits for the files.
        self._writer.wait()

    def teardown(self) -> None:
        self._open.close()


class _WriteInProcesses(beam.DoFn):
    """Collects the tasks of the only bundle, then writes them in local worker processes.

    The engine in this process would write them one after another.
    """

    def __init__(self, build: Work, num_processes: int, writer: type[TaskWriter[Any]]) -> None:
        self._build, self._num_processes, self._writer = build, num_processes, writer

    def start_bundle(self) -> None:
        self._tasks: list[ShardTask] = []

    def process(self, task: ShardTask) -> None:
        self._tasks.append(task)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        local.write_shards(self._build, self._tasks, self._num_processes, self._writer)
        window = GlobalWindow()
        for task in self._tasks:
            yield WindowedValue((self._build.name, task.index), window.start, [window])


class FinishDataset(beam.PTransform):
    """Finishes the dataset once all tasks are done.

    Args:
        build: the whole build.
        num_processes: as in `WriteShards`; unless it is None, a local worker process finishes.
        finish: finishes a dataset whose shards are written.
    """

    def __init__(
        self,
        build: Work,
        num_processes: int | None = None,
        finish: Callable[[Any], None] = finish_dataset,
    ) -> None:
        super().__init__()
        self._build = build
        self._finish = finish
        if num_processes is not None:
            self._finish = functools.partial(local.finish_in_worker, finish=finish)

    def expand(self, done: beam.PCollection) -> beam.PCollection:
        """Applies the transform to the output of `WriteShards`."""
        finish = self._finish
        return (
            done
            | "Gather" >> beam.GroupByKey()
            | "Finish" >> beam.Map(lambda _, build: finish(build), build=self._build)
        )

"""The two steps of the job as Beam transforms: write the shards, and finish the dataset.

Both write their results to files and are safe to repeat: an engine may retry a task, or run it
twice at the same time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from pipelines.planning.plan import ShardTask
from pipelines.running import local
from pipelines.shards.build import Build
from pipelines.shards.finish import finish_dataset
from pipelines.shards.write import TaskWriter


class WriteShards(beam.PTransform):
    """Turns shard tasks into shard files, and yields (name of the dataset, index of the task).

    Args:
        build: the whole build.
        num_processes: number of local worker processes, for the engine in this process. None if
            the engine's own workers write the shards.
    """

    def __init__(self, build: Build, num_processes: int | None = None) -> None:
        super().__init__()
        self._build, self._num_processes = build, num_processes

    def expand(self, tasks: beam.PCollection) -> beam.PCollection:
        """Applies the transform to a collection of `ShardTask`."""
        if self._num_processes is None:
            return tasks | beam.ParDo(_WriteHere(self._build))
        return tasks | beam.ParDo(_WriteInProcesses(self._build, self._num_processes))


class _WriteHere(beam.DoFn):
    """Writes each shard in the process to which Beam gives its task."""

    def __init__(self, build: Build) -> None:
        self._build = build

    def setup(self) -> None:
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


class _WriteInProcesses(beam.DoFn):
    """Collects the tasks of the only bundle, then writes them in local worker processes.

    The engine in this process would write them one after another.
    """

    def __init__(self, build: Build, num_processes: int) -> None:
        self._build, self._num_processes = build, num_processes

    def start_bundle(self) -> None:
        self._tasks: list[ShardTask] = []

    def process(self, task: ShardTask) -> None:
        self._tasks.append(task)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        local.write_shards(self._build, self._tasks, self._num_processes)
        window = GlobalWindow()
        for task in self._tasks:
            yield WindowedValue((self._build.name, task.index), window.start, [window])


class FinishDataset(beam.PTransform):
    """Finishes the dataset once all tasks are done.

    Args:
        build: the whole build.
        num_processes: as in `WriteShards`; unless it is None, a local worker process finishes.
    """

    def __init__(self, build: Build, num_processes: int | None = None) -> None:
        super().__init__()
        self._build = build
        self._finish = finish_dataset if num_processes is None else local.finish_in_worker

    def expand(self, done: beam.PCollection) -> beam.PCollection:
        """Applies the transform to the output of `WriteShards`."""
        finish = self._finish
        return (
            done
            | "Gather" >> beam.GroupByKey()
            | "Finish" >> beam.Map(lambda _, build: finish(build), build=self._build)
        )

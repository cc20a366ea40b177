"""The two steps of the job as Beam transforms: write the shards, and finish the dataset.

Both leave their results in files and are harmless to repeat: an engine may retry a task, or run it
twice at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import apache_beam as beam

from pipelines.planning import plan
from pipelines.shards import finish, write
from pipelines.shards.build import Build


class WriteShards(beam.PTransform):
    """Turns shard tasks into shard files, one task an element, and yields (name, task index)."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        self._build = build

    def expand(self, tasks: beam.PCollection) -> beam.PCollection:
        return tasks | beam.ParDo(_WriteShardFn(self._build))


class _WriteShardFn(beam.DoFn):
    """Writes each task in the process that it is in."""

    def __init__(self, build: Build) -> None:
        self._build = build

    def setup(self) -> None:
        self._open = contextlib.ExitStack()
        self._writer = self._open.enter_context(write.TaskWriter(self._build))

    def process(self, task: plan.ShardTask) -> Iterator[tuple[str, int]]:
        self._writer.write(task)
        yield self._build.name, task.index

    def finish_bundle(self) -> None:
        # What was yielded counts only if the bundle ends well.
        self._writer.wait()

    def teardown(self) -> None:
        self._open.close()


class FinishDataset(beam.PTransform):
    """Finishes the dataset once all tasks are done."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        self._build = build

    def expand(self, done: beam.PCollection) -> beam.PCollection:
        return (
            done
            | "Gather" >> beam.GroupByKey()
            | "Finish" >> beam.Map(lambda _, build: finish.finish_dataset(build), build=self._build)
        )

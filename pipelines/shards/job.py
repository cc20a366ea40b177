"""A build whose plan is written: the shards that are still to be made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa

from pipelines.planning import plan
from pipelines.report import summary
from pipelines.shards import drops
from pipelines.shards.build import Build
from pipelines.shards.finish import list_rejects
from pipelines.stores import output_state

#: Lists and plans a build into a folder, in a block; see `build_tfrecords.planned`.
Planning = Callable[..., AbstractContextManager["Job | None"]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A build, ready to run.

    Attributes:
        build: what every worker needs to know.
        todo: the tasks that are not finished yet.
        num_finished: number of images in shards that an earlier run finished.
        started: time when the listing began, from `time.monotonic`, in seconds.
    """

    build: Build
    todo: tuple[plan.ShardTask, ...]
    num_finished: int
    started: float


def prepare_job(
    build: Build,
    refs: pa.Table,
    tasks: Sequence[plan.ShardTask],
    dropped: pa.Table,
    *,
    started: float,
) -> Job:
    """Writes a plan to the output, and finds which of its shards are finished.

    Args:
        build: what every worker needs to know.
        refs: the images in the order of their records.
        tasks: all shards, in the same order.
        dropped: the images that the splits leave out.
        started: see `Job`.

    Raises:
        errors.RefusedError: if the listing alone has too many rejects.
    """
    output = build.output
    output.clean_build_dir(".tmp")
    reusable = build.reusable and build.reusable.fitting(build.draft, output)
    build = dataclasses.replace(build, reusable=reusable)
    plan.write_plan(output, build.draft, tasks, refs)
    drops.write_table(output, drops.PLANNED_FILE, dropped)
    # The listing alone may reject too many; then no image needs to be decoded to know it.
    list_rejects(build, tasks)
    output.delete([output_state.FAILURE_FILE])
    finished = build.find_finished(tasks)
    if finished:
        summary.say(f"resuming: {len(finished)} of {len(tasks)} shards are finished")
    return Job(
        build=build,
        todo=tuple(task for task in tasks if task.index not in finished),
        num_finished=sum(sidecar.num_refs for sidecar in finished.values()),
        started=started,
    )

"""Builds a TFRecord dataset from an image collection, once.

    python pipelines/build_tfrecords.py --input kermany2018.zip --output data/oct

The job is a Beam batch pipeline. It runs on all cores of this machine by default, or on a cluster
with Beam's own flags, and writes the same bytes either way.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipelines import options
from pipelines.engine import launch
from pipelines.engine.job import Job
from pipelines.shards.finish import finish_dataset

# Beam is imported inside functions: each local worker imports this module and does not need Beam.
if TYPE_CHECKING:
    import apache_beam as beam


def build(argv: Sequence[str]) -> None:
    """Lists the images, plans the shards, writes them and finishes the dataset.

    Raises:
        errors.UserError: if the usage or the input is wrong.
        errors.BuildError: if the build could not be finished.
    """
    launch.launch(options.parse_options(argv), run)


def run(job: Job, pipeline: beam.Pipeline, num_processes: int | None = None) -> None:
    """Writes the remaining shards in an empty pipeline, then finishes the dataset.

    For `num_processes` see `engine.num_processes`.

    Raises:
        errors.BuildError: if a shard could not be written or the engine failed.
    """
    import apache_beam as beam

    from pipelines.engine import engine

    if not job.todo:
        finish_dataset(job.build)
        return
    with engine.clear_errors(pipeline.options), pipeline:
        (
            pipeline
            | "Tasks" >> beam.Create(job.todo)
            | "WriteShards" >> engine.WriteShards(job.build, num_processes)
            | "FinishDataset" >> engine.FinishDataset(job.build, num_processes)
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code, see `launch.exit_code`."""
    return launch.exit_code(build, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())

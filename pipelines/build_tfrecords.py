"""Builds a TFRecord dataset from an image collection, once.

    python pipelines/build_tfrecords.py --source archive --input kermany2018.zip --output data/oct

The job is a Beam batch pipeline. It runs on all cores of this machine by default, or on a cluster
with Beam's own flags, and writes the same bytes either way.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipelines import errors, options
from pipelines.report import summary
from pipelines.running import local, progress
from pipelines.running.job import Job, prepared, require_finished, was_finished_elsewhere
from pipelines.shards.finish import finish_dataset
from pipelines.stores import remote

# Beam is imported inside functions: each local worker imports this module and does not need Beam.
if TYPE_CHECKING:
    import apache_beam as beam


def build(argv: Sequence[str]) -> None:
    """Lists the images, plans the shards, writes them and finishes the dataset.

    Args:
        argv: the command line without the program's name.

    Raises:
        errors.UserError: if the usage or the input is wrong.
        errors.BuildError: if the build could not be finished.
    """
    chosen = options.parse_options(argv)
    # Before any worker starts: workers inherit the store settings through the environment.
    chosen = dataclasses.replace(chosen, beam_args=remote.use_flags(chosen.beam_args))
    local.start_ahead(chosen.beam_args)
    _import_beam()
    from pipelines.running import engine

    engine.check_flags(chosen.beam_args, options.flag_names())
    pipeline = engine.make_pipeline(chosen.beam_args)
    with prepared(chosen) as job:
        if job is None:
            summary.print_complete(chosen.output)
            return
        try:
            with progress.progress_bar(job.storage, job.todo, job.num_finished, job.record_stride):
                run(job, pipeline, engine.num_processes(chosen.beam_args))
        except errors.BuildError:
            if not was_finished_elsewhere(job):
                raise
            summary.print_complete(chosen.output)
            return
        if engine.returns_early(pipeline.options):
            print(f"not waiting for the job; when it is done, {chosen.output} has a manifest.json")
            return
        require_finished(job)
    summary.print_built(chosen.output, time.monotonic() - job.started, job.num_finished)


def run(job: Job, pipeline: beam.Pipeline, num_processes: int | None = None) -> None:
    """Writes the remaining shards in a Beam pipeline, then finishes the dataset.

    Args:
        job: the build and its remaining tasks.
        pipeline: an empty pipeline, see `engine.make_pipeline`.
        num_processes: number of local worker processes, see `engine.num_processes`.

    Raises:
        errors.BuildError: if a shard could not be written or the engine failed.
    """
    import apache_beam as beam

    from pipelines.running import engine, transforms

    if not job.todo:
        finish_dataset(job.build)
        return
    with engine.clear_errors(pipeline.options), pipeline:
        (
            pipeline
            | "Tasks" >> beam.Create(job.todo)
            | "WriteShards" >> transforms.WriteShards(job.build, num_processes)
            | "FinishDataset" >> transforms.FinishDataset(job.build, num_processes)
        )


def _import_beam() -> None:
    """Imports Beam without its log messages.

    The garbage collector is off meanwhile: imports create no garbage, so collecting only costs
    time.
    """
    # Beam warns that an optional library is missing, and logs each worker's error, which the job
    # raises anyway.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    logging.getLogger().addFilter(lambda record: "apitools not found" not in record.getMessage())
    for name in ("common", "portability", "worker.data_plane"):
        logging.getLogger(f"apache_beam.runners.{name}").setLevel(logging.CRITICAL)
    gc.disable()
    import pipelines.running.transforms  # noqa: F401

    gc.freeze()
    gc.enable()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code.

    Args:
        argv: the command line without the program's name; by default that of this process.

    Returns:
        0 if the dataset was built, 1 if the build failed, 2 for wrong usage, 130 after Ctrl-C.
    """
    try:
        build(sys.argv[1:] if argv is None else argv)
    except errors.UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (errors.BuildError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; run the same command again to resume", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    code = main()
    # Skips the garbage collection at exit, which would take half a second.
    gc.freeze()
    sys.exit(code)

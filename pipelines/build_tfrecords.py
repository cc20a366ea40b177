"""Builds a TFRecord dataset from an image collection, once.

    python pipelines/build_tfrecords.py --source archive --input kermany2018.zip --output data/oct

The job is a Beam batch pipeline. It runs on all cores of this machine, or with Beam's own flags
on a cluster, and leaves the same bytes either way.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import sys
import time
from collections.abc import Sequence

# Before Beam is imported: it logs on import that a library for another product is missing, and
# its own account of a worker's error, which the job raises anyway.
logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
logging.getLogger().addFilter(lambda record: "apitools not found" not in record.getMessage())
logging.getLogger("apache_beam.runners.portability").setLevel(logging.CRITICAL)
logging.getLogger("apache_beam.runners.worker.data_plane").setLevel(logging.CRITICAL)

from pipelines import worker  # noqa: E402

if __name__ == "__main__":
    # Beam takes more than a second to import, and so it does in the workers: both at once, and
    # nothing of it is garbage.
    worker.import_ahead(sys.argv[1:])
    gc.disable()

import apache_beam as beam  # noqa: E402

from pipelines import (  # noqa: E402
    engine,
    errors,
    launch,
    options,
    progress,
    summary,
    transforms,
)
from pipelines.stores import remote  # noqa: E402


def build(argv: Sequence[str]) -> None:
    """Lists the images, plans the shards, writes them and finishes the dataset.

    Raises:
        errors.UserError: if the user can set it right.
        errors.BuildError: if the build could not be finished.
    """
    chosen = options.parse_options(argv)
    engine.check_flags(chosen.beam_args, options.flag_names())
    chosen = dataclasses.replace(chosen, beam_args=remote.use_flags(chosen.beam_args))
    pipeline = engine.make_pipeline(chosen.beam_args)
    with launch.prepared(chosen) as job:
        if job is None:
            summary.print_complete(chosen.output)
            return
        with (
            engine.watched_workers(),
            progress.progress_bar(job.storage, job.todo, job.num_finished, job.record_stride),
        ):
            run(job, pipeline)
        if engine.returns_early(pipeline.options):
            print(f"not waiting for the job; once it is done, {chosen.output} has a manifest.json")
            return
        launch.require_finished(job)
    summary.print_built(chosen.output, time.monotonic() - job.started, job.num_finished)


def run(job: launch.Job, pipeline: beam.Pipeline) -> None:
    """Runs what is left to do of a job as a Beam pipeline."""
    if not job.todo:
        transforms.finish_dataset(job.build)
        return
    with engine.clear_errors(pipeline.options), pipeline:
        (
            pipeline
            | "Tasks" >> beam.Create(job.todo)
            | "WriteShards" >> transforms.WriteShards(job.build)
            | "FinishDataset" >> transforms.FinishDataset(job.build)
        )


def main() -> int:
    """Runs the command; returns its exit code: 0 built, 1 failed, 2 wrong usage."""
    try:
        build(sys.argv[1:])
    except errors.UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (errors.BuildError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; run the same command again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    code = main()
    # Nor is anything worth looking for when the program ends, which would take half a second.
    gc.freeze()
    sys.exit(code)

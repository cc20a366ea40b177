"""Builds a TFRecord dataset from an image collection, once.

    python pipelines/build_tfrecords.py --input kermany2018.zip --output data/oct

The job is a Beam batch pipeline. It runs on all cores of this machine by default, or on a cluster
with Beam's own flags, and writes the same bytes either way. `plan_images` decides which image goes
where, before the first one is decoded; `run` writes the shards.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from pipelines.engine import launch
from pipelines.extras import codes, exclude, preview, rename
from pipelines.listing.classes import with_classes
from pipelines.listing.images import Images
from pipelines.listing.listing import list_images
from pipelines.listing.table import LabelTable, read_table
from pipelines.options import BuildOptions, parse_options
from pipelines.planning.draft import make_draft, with_counts
from pipelines.planning.plan import ShardTask, make_plan, write_plan
from pipelines.planning.splits import assign_splits, content_names
from pipelines.report import summary
from pipelines.shards.build import Build, Job
from pipelines.shards.finish import finish_dataset, list_rejects, require_finished, write_dropped
from pipelines.sources.factory import open_source
from pipelines.sources.source import Source
from pipelines.stores import output_folder
from tfrecord_io.format.manifest import Manifest
from tfrecord_io.stores.folder import Folder

# Beam is imported inside functions: each local worker imports this module and does not need Beam.
if TYPE_CHECKING:
    import apache_beam as beam


class SmallFiles(NamedTuple):
    """The files that are read first, because a download of the images can take hours.

    Attributes:
        labels: the table of `--labels`.
        excluded: what the rows of `--exclude` name; None without it.
        secret: that of `--anonymize`.
    """

    labels: LabelTable | None
    excluded: exclude.Entries | None
    secret: codes.Secret | None


class Plan(NamedTuple):
    """What a build will write.

    Attributes:
        draft: the manifest, as far as it is known.
        refs: the images in the order of their records.
        tasks: the shards, in the same order.
        dropped: the images that the splits leave out, a table of `splits.DROPPED_SCHEMA`.
        images: all images as they were listed, with codes for names if these are wanted.
        named: the same without codes.
    """

    draft: Manifest
    refs: pa.Table
    tasks: Sequence[ShardTask]
    dropped: pa.Table
    images: Images
    named: Images


def build(argv: Sequence[str]) -> None:
    """Lists the images, plans the shards, writes them and finishes the dataset.

    Raises:
        errors.UserError: if the usage or the input is wrong.
        errors.BuildError: if the build could not be finished.
    """
    options = parse_options(argv)
    launch.start(options)
    if options.preview.preview:
        print_preview(options)
    else:
        make_dataset(options)


def print_preview(options: BuildOptions) -> None:
    """Lists the images, plans the shards, and says what a build would make."""
    files = read_small_files(options)
    with tempfile.TemporaryDirectory(prefix="scan-tfrecords-") as scratch:
        source = open_source(options.source, "here", options.plan.seed, Folder(scratch))
        plan = plan_images(options, source, files)
    preview.print_plan(plan.draft, plan.refs, plan.tasks, options.output.output)


def make_dataset(options: BuildOptions) -> None:
    """Plans a dataset, writes and finishes it, and says what was made."""
    from pipelines.engine import engine

    pipeline, output = engine.make_pipeline(options.beam_args), options.output.output
    num_processes = engine.num_processes(options.beam_args)
    with planned(options, output_folder.open_output(output)) as job:
        if job is None:
            summary.print_complete(output)
            return
        if engine.returns_early(pipeline.options):
            run(job, pipeline, num_processes)
            summary.print_not_waiting(output, is_replacing=job.build.replaces is not None)
            return
        with launch.progress_bar(job.build.output, job.todo, job.num_finished):
            run(job, pipeline, num_processes)
        require_finished(job.build)
    summary.print_built(output, time.monotonic() - job.started, job.num_finished)


def read_small_files(options: BuildOptions) -> SmallFiles:
    """Reads the files of `--labels`, `--exclude` and `--anonymize`.

    Raises:
        errors.UserError: if one of them cannot be used.
    """
    excluded, secret_file = options.exclude.exclude, options.codes.anonymize
    folders = {"--output": options.output.output, "--input": options.source.input or ""}
    return SmallFiles(
        labels=read_table(options.listing),
        excluded=exclude.read_entries(excluded) if excluded else None,
        secret=codes.read_secret(secret_file, folders) if secret_file else None,
    )


def plan_images(options: BuildOptions, source: Source, files: SmallFiles) -> Plan:
    """Lists the images of a source and decides which record of which shard each becomes.

    Nothing is written, and only files whose content decides a split are read.

    Raises:
        errors.UserError: if the input or an option is wrong, or no image is found.
        errors.BuildError: if the source cannot be read, or patients are in several splits and
            `--leaks` is fail.
    """
    summary.say(f"listing the images of {options.source.input or options.source.source}")
    kind = options.listing.label_kind
    images = list_images(source, options.listing, files.labels)
    if files.excluded:
        images = exclude.without(images, files.excluded, options.listing)
    if options.rename.rename_classes:
        images = rename.renamed(images, options.rename.rename_classes, kind)
    named = with_classes(images, options.listing)
    summary.print_listed(named)
    listed = codes.coded(named, files.secret) if files.secret else named
    splits = options.splits.resolved(listed.table)
    read_content = functools.partial(content_names, source)
    divided, dropped, notes = assign_splits(listed, splits, read_content)
    summary.say(*notes)
    decided = {**splits.identity(), **options.plan.identity()}
    draft = make_draft(listed, options.pixels, kind, options.output.name, decided)
    refs, tasks = make_plan(divided.table, draft.layout.stride, options.plan)
    draft = with_counts(draft, divided, refs, dropped)
    return Plan(draft, refs, tasks, dropped, listed, named)


@contextlib.contextmanager
def planned(options: BuildOptions, output: Folder) -> Iterator[Job | None]:
    """Plans a build into a folder, and locks the folder until the block ends.

    Yields the job, or None if the output is already complete.

    Raises:
        errors.UserError: if the input is unusable, or the output is locked or holds another
            dataset.
        errors.BuildError: if a download fails, or the listing rejects too many images.
    """
    files, workers = read_small_files(options), options.workers
    with output_folder.locked(output):
        source = open_source(options.source, workers, options.plan.seed, output)
        started = time.monotonic()
        plan = plan_images(options, source, files)
        # Only now, when no option can be refused any more, the output may change.
        place = output_folder.place_of(
            output,
            plan.draft.options,
            [task.shard_name for task in plan.tasks],
            overwrite=options.output.overwrite,
            has_lock=workers == "here",
        )
        if place is None:
            yield None
            return
        build = Build(
            output=place.folder,
            replaces=place.replaces,
            draft=plan.draft,
            source=source,
            max_reject_fraction=options.output.max_reject_fraction,
            rejected_files=plan.images.ledger.rejects,
        )
        build.output.clean_build_dir(".tmp")
        write_plan(build.output, build.draft, plan.tasks, plan.refs)
        write_dropped(build.output, plan.dropped)
        if files.secret:
            codes.write_names(plan.named, files.secret, plan.images.digest)
        # The listing alone may reject too many; then no image needs to be decoded to know it.
        list_rejects(build, plan.tasks)
        build.output.delete([output_folder.FAILURE_FILE])
        finished = build.find_finished(plan.tasks)
        if finished:
            summary.say(f"resuming: {len(finished)} of {len(plan.tasks)} shards are finished")
        yield Job(
            build=build,
            todo=tuple(task for task in plan.tasks if task.index not in finished),
            num_finished=sum(sidecar.num_refs for sidecar in finished.values()),
            started=started,
        )


def run(job: Job, pipeline: beam.Pipeline, num_processes: int | None = None) -> None:
    """Writes the remaining shards in an empty pipeline, then finishes the dataset.

    For `num_processes` see `engine.num_processes`.

    Raises:
        errors.BuildError: if a shard could not be written or the engine failed.
    """
    from pipelines.engine import engine

    if not job.todo:
        finish_dataset(job.build)
        return
    with engine.clear_errors(pipeline.runner), pipeline:
        engine.add_steps(pipeline, job.todo, job.build, num_processes)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code, see `launch.exit_code`."""
    return launch.exit_code(build, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())

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
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from pipelines.engine import launch
from pipelines.extras import codes, exclude, preview, rename
from pipelines.listing.classes import with_classes
from pipelines.listing.images import Images
from pipelines.listing.listing import list_images
from pipelines.listing.table import read_table
from pipelines.options import BuildOptions, parse_options
from pipelines.planning.draft import make_draft, with_counts
from pipelines.planning.plan import ShardTask, make_plan, write_plan
from pipelines.planning.splits import assign_splits, content_names
from pipelines.report import summary
from pipelines.shards.build import Build, Job
from pipelines.shards.finish import finish_dataset, list_rejects, require_finished, write_dropped
from pipelines.sources.factory import Workers, open_source
from pipelines.sources.source import Source
from pipelines.stores import output_folder
from tfrecord_io.format import manifest
from tfrecord_io.stores.folder import Folder

# Beam is imported inside functions: each local worker imports this module and does not need Beam.
if TYPE_CHECKING:
    import apache_beam as beam


class Plan(NamedTuple):
    """What a build will write.

    Attributes:
        source: where the images come from.
        draft: the manifest, as far as it is known.
        refs: the images in the order of their records.
        tasks: the shards, in the same order.
        dropped: the images that the splits leave out, a table of `splits.DROPPED_SCHEMA`.
        images: all images as they were listed, with codes for names if these are wanted.
        named: the same without codes.
        secret: that of `--anonymize`.
    """

    source: Source
    draft: manifest.Manifest
    refs: pa.Table
    tasks: Sequence[ShardTask]
    dropped: pa.Table
    images: Images
    named: Images
    secret: codes.Secret | None


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
    with tempfile.TemporaryDirectory(prefix="scan-tfrecords-") as scratch:
        plan = plan_images(options, "here", Folder(scratch))
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
            print(f"not waiting for the job; its last file is {output}/{manifest.FILE_NAME}")
            return
        with launch.progress_bar(job.build.output, job.todo, job.num_finished):
            run(job, pipeline, num_processes)
        require_finished(job.build)
    summary.print_built(output)


def plan_images(options: BuildOptions, workers: Workers, folder: Folder) -> Plan:
    """Lists the images of the source and decides which record of which shard each becomes.

    Only files whose content decides a split are read. `workers` will decode the images; arrays are
    unpacked into `folder`.

    Raises:
        errors.UserError: if the input or an option is wrong, or no image is found.
        errors.BuildError: if the source cannot be read, or patients are in several splits and
            `--leaks` is fail.
    """
    kind, output = options.listing.label_kind, options.output.output
    # These small files are read first, because a download of the images can take hours.
    labels = read_table(options.listing)
    excluded = exclude.read_entries(given) if (given := options.exclude.exclude) else None
    folders = {"--output": output, "--input": options.source.input or ""}
    secret = codes.read_secret(given, folders) if (given := options.codes.anonymize) else None
    source = open_source(options.source, workers, options.plan.seed, folder)
    summary.say(f"listing the images of {options.source.input or options.source.source}")
    images = list_images(source, options.listing, labels)
    if excluded:
        images = exclude.without(images, excluded, options.listing)
    if options.rename.rename_classes:
        images = rename.renamed(images, options.rename.rename_classes, kind)
    named = with_classes(images, options.listing)
    summary.print_listed(named)
    listed = codes.coded(named, secret) if secret else named
    splits = options.splits.resolved(listed.table)
    read_content = functools.partial(content_names, source)
    divided, dropped, notes = assign_splits(listed, splits, read_content)
    summary.say(*notes)
    decided = {**splits.identity(), **options.plan.identity()}
    draft = make_draft(listed, options.pixels, kind, options.output.name, decided)
    refs, tasks = make_plan(divided.table, draft.layout.stride, options.plan)
    draft = with_counts(draft, divided, refs, dropped)
    return Plan(source, draft, refs, tasks, dropped, listed, named, secret)


@contextlib.contextmanager
def planned(options: BuildOptions, output: Folder) -> Iterator[Job | None]:
    """Plans a build into a folder, and locks the folder until the block ends.

    Yields the job, or None if the output is already complete.

    Raises:
        errors.UserError: if the input is unusable, or the output is locked or holds another
            dataset.
        errors.BuildError: if a download fails, or the listing rejects too many images.
    """
    with output_folder.locked(output):
        plan = plan_images(options, options.workers, output)
        tasks, draft, kind = plan.tasks, plan.draft, plan.draft.label_kind
        # Only now, when no option can be refused any more, the output may change.
        shards, overwrite = [task.shard_name for task in tasks], options.output.overwrite
        place = output_folder.place_of(output, draft.options, shards, overwrite=overwrite)
        if place is None:
            yield None
            return
        place.clean_build_dir(".tmp")
        write_plan(place, draft, tasks, plan.refs)
        write_dropped(place, plan.dropped)
        if plan.secret:
            codes.write_names(plan.named, plan.secret, plan.images.digest)
        texts = plan.refs["label"].unique().to_pylist()
        build = Build(
            output=place,
            replaces=output if place is not output else None,
            draft=draft,
            source=plan.source,
            max_reject_fraction=options.output.max_reject_fraction,
            rejected_files=plan.images.ledger.rejects,
            planned_labels=frozenset(name for text in texts for name in kind.names_in(text)),
        )
        # The listing alone may reject too many; then no image needs to be decoded to know it.
        list_rejects(build, tasks)
        place.delete([output_folder.FAILURE_FILE])
        finished = build.find_finished(tasks)
        if finished:
            summary.say(f"resuming: {len(finished)} of {len(tasks)} shards are finished")
        todo = tuple(task for task in tasks if task.index not in finished)
        yield Job(build, todo, sum(sidecar.num_refs for sidecar in finished.values()))


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

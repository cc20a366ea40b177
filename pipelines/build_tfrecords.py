"""Builds a TFRecord dataset from an image collection, once.

    python pipelines/build_tfrecords.py --input kermany2018.zip --output data/oct

The job is a Beam batch pipeline. It runs on all cores of this machine by default, or on a cluster
with Beam's own flags, and writes the same bytes either way. `planned` says what happens before the
first image is decoded, `run` what happens then.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pipelines.engine import launch
from pipelines.extras import codes, exclude, preview, rename
from pipelines.listing.classes import with_classes
from pipelines.listing.images import Images
from pipelines.listing.label_table import Labels, read_table
from pipelines.listing.listing import list_images
from pipelines.options import BuildOptions, parse_options
from pipelines.planning.draft import make_draft
from pipelines.planning.plan import make_plan, with_counts, write_plan
from pipelines.planning.splits import assign_splits, content_names
from pipelines.report import summary
from pipelines.shards.build import Build, Job
from pipelines.shards.finish import finish_dataset, list_rejects, require_finished, write_dropped
from pipelines.sources.factory import open_source
from pipelines.sources.source import Source
from pipelines.stores import output_folder
from tfrecord_io.extras import shortcuts
from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal.address import Address

#: Lists and plans a build into a folder, in a block; see `planned`.
Planning = Callable[..., contextlib.AbstractContextManager[Job | None]]

#: The options of the extras; a line can be deleted with its extra.
EXTRAS = (
    exclude.Options,
    rename.Options,
    codes.Options,
    preview.Options,
)

# Beam is imported inside functions: each local worker imports this module and does not need Beam.
if TYPE_CHECKING:
    import apache_beam as beam


def build(argv: Sequence[str]) -> None:
    """Lists the images, plans the shards, writes them and finishes the dataset.

    Raises:
        errors.UserError: if the usage or the input is wrong.
        errors.BuildError: if the build could not be finished.
    """
    options = parse_options(argv, EXTRAS)
    is_preview = options.of(preview.Options).preview
    beam_args = launch.start(options, needs_workers=not is_preview)
    if is_preview:
        print_preview(options)
    else:
        plan = functools.partial(planned, options)
        make_dataset(plan, options.output.output, beam_args)


def print_preview(options: BuildOptions) -> None:
    """Lists the images, plans the shards, and says what a build would make."""
    if first := preview.done_first(options.source):
        print(f"the build would first {first}; nothing was written or downloaded")
        return
    labels, entries, secret = (
        read_table(options.listing),
        read_entries(options),
        read_secret(options),
    )
    with tempfile.TemporaryDirectory(prefix="scan-tfrecords-") as scratch:
        source = open_source(options.source, "here", options.plan.seed, Folder(scratch))
        images = find_images(options, source, labels, entries)
        if secret:
            images = codes.coded(images, secret)
        splits, kind = options.splits.resolved(images.table), options.listing.label_kind
        draft = make_draft(images, options.pixels, kind, options.output.name, {})
        read_content = functools.partial(content_names, source)
        images, _, notes = assign_splits(images, splits, read_content, kind)
        summary.say(*notes)
    refs, tasks = make_plan(images.table, draft.layout.stride, options.plan)
    preview.print_plan(draft, refs, tasks, options.output.output)


def read_secret(options: BuildOptions) -> codes.Secret | None:
    """Reads the secret of `--anonymize`; None without one."""
    file = options.of(codes.Options).anonymize
    folders = {"--output": options.output.output, "--input": options.source.input or ""}
    return codes.read_secret(file, folders) if file else None


def read_entries(options: BuildOptions) -> Sequence[exclude.Entry]:
    """Reads the table of `--exclude`; empty without one."""
    file = options.of(exclude.Options).exclude
    return exclude.read_entries(file) if file else ()


def find_images(
    options: BuildOptions,
    source: Source,
    labels: Labels | None,
    entries: Sequence[exclude.Entry],
) -> Images:
    """Returns the images of a source, of the chosen classes, without what is excluded.

    `labels` is the table of `--labels`, `entries` that of `--exclude`.

    Raises:
        errors.UserError: if the input or an option is wrong, or no image is found.
    """
    summary.say(f"listing the images of {options.source.input or options.source.source}")
    images = list_images(source, options.listing, labels)
    if entries:
        images = exclude.without(images, entries, options.listing)
    if names := options.of(rename.Options).rename_classes:
        images = rename.renamed(images, names, options.listing.label_kind)
    images = with_classes(images, options.listing)
    summary.print_listed(images)
    return images


def make_dataset(plan: Planning, output: Address, beam_args: Sequence[str]) -> None:
    """Plans a dataset, writes and finishes it, and says what was made.

    Args:
        plan: see `planned`, with the options of the build.
        output: folder or URL of the dataset.
        beam_args: the flags of Beam.
    """
    from pipelines.engine import engine

    pipeline = engine.make_pipeline(beam_args)
    returns_early = engine.returns_early(pipeline.options)
    with plan(output_folder.open_output(output)) as job:
        if job is None:
            summary.print_complete(output)
            return
        made, stride = job.build, job.build.draft.layout.stride
        with launch.progress_bar(made.output, job.todo, job.num_finished, stride):
            run(job, pipeline, engine.num_processes(beam_args))
        if returns_early:
            summary.print_not_waiting(output, is_replacing=made.replaces is not None)
            return
        made = require_finished(made)
    summary.print_built(output, time.monotonic() - job.started, job.num_finished)


@contextlib.contextmanager
def planned(options: BuildOptions, output: Folder) -> Iterator[Job | None]:
    """Lists the images and plans the shards, and locks the output folder until the block ends.

    Args:
        options: what the user chose.
        output: folder of the dataset.

    Yields:
        the job, or None if the output is already complete.

    Raises:
        errors.UserError: if the input is unusable, or the output is locked or holds another
            dataset.
        errors.BuildError: if a download fails, or a policy is to fail and the data violates it.
    """
    # What is small is read first, because a download can take hours.
    workers = options.workers
    labels, entries, secret = (
        read_table(options.listing),
        read_entries(options),
        read_secret(options),
    )
    additions: dict[str, Any] = {
        "checks": [shortcuts.CHECK],
    }
    with output_folder.locked(output):
        source = open_source(options.source, workers, options.plan.seed, output)
        started = time.monotonic()
        images = named = find_images(options, source, labels, entries)
        if secret:
            images = codes.coded(named, secret)
        splits = options.splits.resolved(images.table)
        kind = options.listing.label_kind
        read_content = functools.partial(content_names, source)
        divided, dropped, notes = assign_splits(images, splits, read_content, kind)
        decided = {**splits.identity(divided.split_seed), **options.plan.identity()}
        draft = make_draft(images, options.pixels, kind, options.output.name, decided)
        refs, tasks = make_plan(divided.table, draft.layout.stride, options.plan)
        # Only now, when nothing can be refused any more, the output may change.
        place = output_folder.place_of(
            output,
            draft.options,
            [task.shard_name for task in tasks],
            overwrite=options.output.overwrite,
            has_lock=workers == "here",
        )
        if place is None:
            yield None
            return
        summary.say(*notes)
        build = Build(
            output=place.folder,
            replaces=place.replaces,
            draft=with_counts(draft, divided, refs, dropped),
            source=source,
            max_reject_fraction=options.output.max_reject_fraction,
            rejected_files=images.ledger.rejects,
            **additions,
        )
        build.output.clean_build_dir(".tmp")
        write_plan(build.output, build.draft, tasks, refs)
        write_dropped(build.output, dropped)
        if secret:
            codes.write_names(named, secret, images.digest)
        # The listing alone may reject too many; then no image needs to be decoded to know it.
        list_rejects(build, tasks)
        build.output.delete([output_folder.FAILURE_FILE])
        finished = build.find_finished(tasks)
        if finished:
            summary.say(f"resuming: {len(finished)} of {len(tasks)} shards are finished")
        yield Job(
            build=build,
            todo=tuple(task for task in tasks if task.index not in finished),
            num_finished=sum(sidecar.num_refs for sidecar in finished.values()),
            started=started,
        )


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
    with engine.clear_errors(pipeline.runner), pipeline:
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

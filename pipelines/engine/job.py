"""What the launcher does before the engine runs (list, plan, look at the output) and after it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from pipelines import errors
from pipelines.engine.identity import make_identity, source_facts
from pipelines.listing import anonymous, frames
from pipelines.listing.listing import Listing
from pipelines.listing.refs import iterate_refs
from pipelines.options import BuildOptions
from pipelines.planning import plan, splits
from pipelines.shards import drops, finish, ledger
from pipelines.shards.build import Build, Work
from pipelines.shards.sidecar import find_finished
from pipelines.shards.write import EXAMPLE_SCHEMA, open_image_writer
from pipelines.sources.factory import make_source
from pipelines.sources.reader import read_in_order
from pipelines.sources.source import Source
from pipelines.stores import output_state, remote
from pipelines.stores.output import BUILD_DIR, Storage
from tfrecord_io import shards
from tfrecord_io.manifest import FILE_NAME, ManifestError
from tfrecord_io.rejects import Reject


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A build or an extraction, ready to run.

    Attributes:
        build: what every worker needs to know.
        todo: the tasks that are not finished yet.
        num_finished: number of images in shards that an earlier run finished.
        started: time when the listing began, from `time.monotonic`, in seconds. Downloading,
            drawing and unpacking happen earlier.
    """

    build: Work
    todo: tuple[plan.ShardTask, ...]
    num_finished: int
    started: float

    @property
    def storage(self) -> Storage:
        """The output folder."""
        return self.build.storage


@contextlib.contextmanager
def prepared(options: BuildOptions) -> Iterator[Job | None]:
    """Lists the images and plans the shards, and locks the output folder until the block ends.

    Args:
        options: what the user chose.

    Yields:
        the job, or None if the output is already complete.

    Raises:
        errors.UserError: if the input is unusable, or the output is locked or holds another
            dataset.
        errors.BuildError: if a download fails, or a policy is to fail and the data violates it.
    """
    storage = Storage(options.output.output)
    secret = anonymous.read_secret(
        options.output.anonymize, output=storage.root, source=options.source.input
    )
    with anonymous.private_errors(secret):
        # First, because a download can take hours.
        if options.listing.table:
            options.listing.table.require_other_columns_than(EXAMPLE_SCHEMA.names)
        source = make_source(options.source, options.workers, options.plan.seed)
    with output_state.locked(storage), _private(secret, storage):
        with anonymous.private_errors(secret):
            job = _prepare(options, storage, source, secret)
        # What has been prepared knows files by their codes, and so do its own errors.
        with anonymous.private_errors(secret, (errors.UserError, errors.BuildError)):
            yield job


@contextlib.contextmanager
def _private(secret: anonymous.Secret | None, storage: Storage) -> Iterator[None]:
    """Keeps what the build folder of an anonymous dataset holds of the input from others.

    A job that goes on without the launcher needs the plan, so only an error removes it.
    """
    if secret is None:
        yield
        return
    output_state.make_private(storage)
    try:
        yield
    except BaseException:
        output_state.remove_private(storage)
        raise


def _prepare(
    options: BuildOptions, storage: Storage, source: Source, secret: anonymous.Secret | None
) -> Job | None:
    """Lists the images and plans the shards; returns None if the output is complete."""
    if _is_known_complete(options, storage, source, secret):
        return None
    # A local folder, into which a source may unpack its archive.
    scratch = options.source.download_dir if storage.remote else Path(storage.path(BUILD_DIR))
    source = source.prepare(scratch.absolute())
    started = time.monotonic()
    shown = "the input" if secret else options.source.input or options.source.source
    _say(f"listing the images of {remote.shown(shown)}")
    names = None
    listing = frames.list_frames(source, options.listing)
    if secret:
        listing, names = anonymous.hide_names(listing, secret)
    _say(_describe(listing))
    for note in listing.notes:
        _say(f"warning: {note}")
    return _plan_job(options, storage, source, listing, secret, names, started)


def clean(storage: Storage) -> None:
    """Makes the output folder ready for a job: without the leftovers of a run that was killed."""
    output_state.remove_leftovers(storage)
    storage.make_folders()
    storage.delete([finish.FAILURE_FILE])


def start_or_resume(work: Work, tasks: Sequence[plan.ShardTask], started: float) -> Job:
    """Returns the job with the tasks that no earlier run has finished."""
    finished = find_finished(work, tasks)
    if finished:
        _say(f"resuming: {len(finished)} of {len(tasks)} shards are finished")
    return Job(
        build=work,
        todo=tuple(task for task in tasks if task.index not in finished),
        num_finished=sum(sidecar.num_refs for sidecar in finished.values()),
        started=started,
    )


def require_finished(job: Job) -> None:
    """Checks that the job has left a finished dataset.

    Raises:
        errors.BuildError: if the dataset was refused, or the manifest is missing.
    """
    if failure := finish.read_failure(job.storage):
        raise errors.BuildError(failure)
    if not job.storage.exists(FILE_NAME):
        raise errors.BuildError(
            f"the engine reports that the job is done, but {job.storage.path(FILE_NAME)} is "
            "missing; run the same command again to resume"
        )


def was_finished_elsewhere(job: Job) -> bool:
    """Tells whether another build has finished this dataset meanwhile.

    That can be on an object store, which has no lock. The other build has then removed the plan
    and the parts of tables, so that this one cannot go on.
    """
    if not job.storage.remote:
        return False
    try:
        return output_state.is_complete(job.storage, job.build.identity, overwrite=False)
    except (errors.UserError, errors.BuildError):
        return False


def _is_known_complete(
    options: BuildOptions, storage: Storage, source: Source, secret: anonymous.Secret | None
) -> bool:
    """Returns whether the output is complete for this tar.gz, without listing it.

    Listing a tar.gz means unpacking it, which takes minutes. Its size and gzip trailer, which the
    manifest holds, identify it instead. Other sources are listed, so this returns False.
    """
    if not source.must_be_unpacked:
        return False
    try:
        found = output_state.read_manifest(storage)
    except (FileNotFoundError, ManifestError):
        return False
    if found.source != source_facts(source, secret):
        return False
    if not options.listing.chosen_classes and "class_not_chosen" in found.counts.get("ignored", {}):
        return False
    labels = options.listing.label_names or found.label_names
    identity = make_identity(
        options,
        source,
        found.options.get("source_listing", ""),
        labels,
        has_dicom="pydicom" in found.options.get("decoder", {}),
        num_pages=found.options.get("tiff_pages", 0),
        no_window="no_window" in found.options,
        secret=secret,
    )
    if output_state.fingerprint(identity) != found.fingerprint:
        return False
    output_state.check_output(storage, identity)
    drops.require_policies(storage, found, options.splits)
    return True


def _plan_job(
    options: BuildOptions,
    storage: Storage,
    source: Source,
    listing: Listing,
    secret: anonymous.Secret | None,
    names: pa.Table | None,
    started: float,
) -> Job | None:
    """Plans the shards; `names` is the private table of an anonymous dataset."""
    labels = options.listing.label_names or tuple(
        sorted(set(listing.refs["label"].unique().to_pylist()))
    )
    identity = make_identity(
        options,
        source,
        plan.listing_digest(listing.refs),
        labels,
        has_dicom="DICOM" in listing.frames,
        num_pages=listing.frames.get("TIFF", 0),
        no_window=frames.NO_WINDOW in listing.frames,
        secret=secret,
    )
    build = Build(
        name=options.output.name or "",
        # Absolute, because a worker may have another working directory.
        output=storage.root if storage.remote else str(Path(storage.root).absolute()),
        source=source,
        preprocessing=dataclasses.replace(
            options.images.preprocessing, no_window=identity.get("no_window")
        ),
        label_names=labels,
        identity=identity,
        open_writer=open_image_writer,
        finish=finish.finish_dataset,
        max_reject_fraction=options.output.max_reject_fraction,
        num_files=listing.num_files,
        copies=listing.copies,
        ignored=listing.ignored,
        rejected_files=listing.rejects,
        policies=options.splits,
        label_kind=options.listing.label_kind,
        source_facts=source_facts(source, secret),
    )
    if output_state.is_complete(storage, identity, overwrite=options.output.overwrite):
        drops.require_policies(storage, output_state.read_manifest(storage), options.splits)
        return None
    split = splits.apply(
        listing.refs,
        options.splits,
        lambda refs: _content_names(source, refs),
        options.listing.label_kind,
    )
    for note in split.notes:
        _say(note)
    if len(split.refs["split"].unique()) > 1:
        drops.check_searchable(build.layout.image_shape, options.splits)
    listing = dataclasses.replace(listing, refs=split.refs, dropped=split.dropped.num_rows)
    planned = plan.make_plan(listing, build.layout.stride, options.plan)
    build = dataclasses.replace(
        build,
        over_limit=planned.over_limit,
        num_variants=planned.num_variants,
        notes=(*listing.notes, *split.notes),
    )
    clean(storage)
    if secret and names is not None:
        path = anonymous.write_names(names, secret, build.fingerprint)
        _say(f"the names behind the codes are in {path}: keep it as private as the secret")
    if plan.has_other_columns(storage, planned):
        _say("another version of this program began the dataset; writing all its shards again")
        storage.delete([shards.sidecar_name(task.shard_name) for task in planned.tasks])
    plan.write_plan(storage, planned, identity)
    drops.write_table(storage, drops.PLANNED_FILE, split.dropped)
    # Rejects of the listing alone may be too many; then no image needs to be decoded to know it.
    ledger.list_rejects(build, planned.tasks)
    return start_or_resume(build, planned.tasks, started)


def _content_names(source: Source, refs: pa.Table) -> list[str]:
    """Returns a name for the content of each file, which is the same for copies of a file."""
    paths = refs["path"].combine_chunks()
    # The frames of a file follow each other; the file is read once.
    is_first = np.ones(len(paths), bool)
    is_first[1:] = pc.not_equal(paths[1:], paths[:-1]).to_numpy(zero_copy_only=False)
    names = []
    with source.open() as reader:
        firsts, again = itertools.tee(
            ref.member for ref in iterate_refs(refs.filter(pa.array(is_first)))
        )
        reads = ((member, functools.partial(reader.read, member)) for member in again)
        for member, read in zip(firsts, read_in_order(reader, reads), strict=True):
            try:
                names.append(xxhash.xxh3_128_hexdigest(read()))
            except Reject:
                # The decoder will reject it later; here its path serves as a unique name.
                names.append(member.name)
    return [names[place] for place in np.cumsum(is_first) - 1]


def _describe(listing: Listing) -> str:
    text = f"found {listing.refs.num_rows:,} images among {listing.num_files:,} files"
    parts = [f"{listing.copies:,} copies in a second tree"] if listing.copies else []
    parts += [f"{count:,} {reason}" for reason, count in listing.ignored.items()]
    parts += [f"{len(listing.rejects):,} rejected"] if listing.rejects else []
    return text + (f" ({', '.join(parts)})" if parts else "")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

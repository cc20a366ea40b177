"""What the launcher does before the engine runs (list, plan, look at the output) and after it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from pipelines import errors
from pipelines.engine.identity import make_identity
from pipelines.listing.anonymous import Privacy
from pipelines.listing.listing import list_images
from pipelines.listing.refs import Listing, iterate_refs, other_columns
from pipelines.options import BuildOptions
from pipelines.planning import plan, splits
from pipelines.shards import drops, finish, ledger
from pipelines.shards.build import Build, Work
from pipelines.shards.sidecar import find_finished
from pipelines.shards.write import EXAMPLE_SCHEMA, open_image_writer
from pipelines.sources.factory import make_source
from pipelines.sources.reader import read_in_order
from pipelines.sources.source import Source
from pipelines.stores import output_state
from pipelines.stores.output import BUILD_DIR, Storage
from tfrecord_io import groups, shards
from tfrecord_io.decoding.options import Physical
from tfrecord_io.manifest import FILE_NAME
from tfrecord_io.rejects import Reject, in_words
from tfrecord_io.stores import remote


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

    Yields:
        the job, or None if the output is already complete.

    Raises:
        errors.UserError: if the input is unusable, or the output is locked or holds another
            dataset.
        errors.BuildError: if a download fails, or a policy is to fail and the data violates it.
    """
    storage = Storage(options.output.output)
    privacy = Privacy.read(
        options.output.anonymize, output=storage.root, source=options.source.input
    )
    with privacy.private_errors():
        # Reads the table of --labels, if there is one: first, because a download can take hours.
        _ = options.listing.table
        source = make_source(options.source, options.workers, options.plan.seed)
    job_goes_on = options.workers != "here"
    with output_state.locked(storage), privacy.build_folder(storage, job_goes_on=job_goes_on):
        # The message of a refused dataset has numbers and codes, and no name of the input.
        with privacy.private_errors((errors.RefusedError,)):
            job = _prepare(options, storage, privacy, source)
        # What has been prepared knows files by their codes, and so do its own errors.
        with privacy.private_errors((errors.UserError, errors.BuildError)):
            yield job


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
    if job.storage.exists(finish.FAILURE_FILE):
        raise errors.BuildError(json.loads(job.storage.read(finish.FAILURE_FILE))["message"])
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
    except errors.ToldError:
        return False


def _prepare(
    options: BuildOptions, storage: Storage, privacy: Privacy, source: Source
) -> Job | None:
    """Lists the images and plans the shards; returns None if the output is complete."""
    # A local folder, into which a source may unpack its archive.
    folder = options.source.download_dir if storage.remote else storage.path(BUILD_DIR)
    source = source.prepare(Path(folder).absolute())
    started = time.monotonic()
    shown = "the input" if privacy.key else options.source.input or options.source.source
    _say(f"listing the images of {remote.shown(shown)}")
    listing, names = privacy.hide_names(list_images(source, options.listing))
    notes = [*listing.notes, *listing.naming_notes]
    if taken := {*EXAMPLE_SCHEMA.names, groups.COLUMN} & set(other_columns(listing.refs)):
        notes.append(
            f"left out the column {', '.join(sorted(taken))} of the table of --labels, which "
            "examples.parquet has for itself; rename it to keep it"
        )
    _say(_describe(listing))
    for note in notes:
        _say(f"warning: {note}")
    build = _build(options, storage, privacy, source, listing)
    if output_state.is_complete(storage, build.identity, overwrite=options.output.overwrite):
        drops.require_policies(storage, output_state.read_manifest(storage), build.policies)
        return None
    split = splits.apply(
        listing.refs, build.policies, lambda refs: _content_names(source, refs), build.label_kind
    )
    for note in split.notes:
        _say(note)
    if len(split.refs["split"].unique()) > 1:
        drops.check_searchable(build.layout.image_shape, build.policies)
    planned = plan.make_plan(split.refs, build.layout.stride, options.plan)
    build = dataclasses.replace(
        build,
        over_limit=planned.over_limit,
        num_variants=planned.num_variants,
        notes=(*notes, *split.notes),
    )
    clean(storage)
    if names is not None:
        path = privacy.write_names(names, build.fingerprint)
        _say(f"the names behind the codes are in {path}: keep it as private as the secret")
    columns = [*EXAMPLE_SCHEMA.names, *planned.refs.schema.names, *other_columns(planned.refs)]
    if plan.has_other_columns(storage, columns):
        _say("another version of this program began the dataset; writing all its shards again")
        old = [shards.sidecar_name(task.shard_name) for task in planned.tasks]
        storage.delete([*old, drops.DECIDED_FILE])
    plan.write_plan(storage, planned, build.identity, columns)
    drops.write_table(storage, drops.PLANNED_FILE, split.dropped)
    # The listing alone may reject too many; then no image needs to be decoded to know it.
    ledger.list_rejects(build, planned.tasks)
    return start_or_resume(build, planned.tasks, started)


def _build(
    options: BuildOptions, storage: Storage, privacy: Privacy, source: Source, listing: Listing
) -> Build:
    """Returns what every worker needs to know, as far as the listing tells it."""
    found = sorted(listing.refs["label"].unique().to_pylist())
    labels = options.listing.label_names or tuple(found)
    identity = privacy.hide_identity(make_identity(options, source, listing, labels))
    root = storage.root
    return Build(
        name=options.output.name or "",
        # Absolute, because a worker may have another working directory.
        output=root if storage.remote else str(Path(root).absolute()),
        source=source,
        preprocessing=dataclasses.replace(
            options.images.preprocessing,
            no_window=identity.get("no_window"),
            physical=Physical(**identity["physical"]) if "physical" in identity else None,
        ),
        label_names=labels,
        identity=identity,
        open_writer=open_image_writer,
        finish=finish.finish_dataset,
        max_reject_fraction=options.output.max_reject_fraction,
        num_files=listing.num_files,
        copies=listing.copies,
        ignored=listing.ignored,
        rejected_files=tuple(listing.rejects),
        policies=options.splits,
        label_kind=options.listing.label_kind,
        source_facts=privacy.describe(source),
    )


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
    num_empty = pc.sum(pc.equal(listing.refs["size"], 0)).as_py() or 0
    num_images = listing.refs.num_rows - num_empty
    text = f"found {num_images:,} images among {listing.num_files:,} files"
    parts = [f"{num_empty:,} empty"] if num_empty else []
    parts += [f"{listing.copies:,} copies in a second tree"] if listing.copies else []
    parts += [f"{count:,} {in_words(reason)}" for reason, count in listing.ignored.items()]
    parts += [f"{len(listing.rejects):,} rejected"] if listing.rejects else []
    return text + (f" ({', '.join(parts)})" if parts else "")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

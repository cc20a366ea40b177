"""What the launcher does before the engine runs (list, plan, look at the output) and after it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from pipelines import errors
from pipelines.listing.anonymous import Privacy
from pipelines.listing.exclude import read_exclusion
from pipelines.listing.listing import list_images
from pipelines.listing.refs import OTHER, Listing, iterate_refs
from pipelines.listing.roles import ROLES
from pipelines.options import BuildOptions
from pipelines.planning import plan, splits
from pipelines.shards import drops, reuse
from pipelines.shards.build import Build
from pipelines.shards.finish import FAILURE_FILE, list_rejects
from pipelines.sources.factory import make_source
from pipelines.sources.source import Member, Source, read_in_order
from pipelines.stores import output_state
from tfrecord_io.decoding import preprocess
from tfrecord_io.decoding.options import SHARE, Physical
from tfrecord_io.decoding.rejects import Reject, in_words
from tfrecord_io.format.examples import OWN
from tfrecord_io.format.manifest import FILE_NAME, Manifest
from tfrecord_io.stores.folder import BUILD_DIR, Folder
from tfrecord_io.terminal.address import is_remote
from tfrecord_io.terminal.printing import counted, printable


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
    output = options.output.output
    # The full path, because a worker may have another working directory.
    storage = Folder(output if is_remote(output) else str(Path(output).resolve()))
    privacy = Privacy.read(
        options.output.anonymize, output=storage.root, source=options.source.input
    )
    job_goes_on = options.workers != "here"
    with output_state.locked(storage), privacy.build_folder(storage, job_goes_on=job_goes_on):
        # These messages have numbers and codes, and no name of the input.
        with privacy.private_errors(errors.RefusedError, errors.EmptySplitError):
            job = _prepare(options, storage, privacy)
        yield job


def require_finished(job: Job) -> None:
    """Raises errors.BuildError if the dataset was refused, or the manifest is missing."""
    if job.build.output.exists(FAILURE_FILE):
        raise errors.BuildError(job.build.output.read(FAILURE_FILE).decode())
    if not job.build.output.exists(FILE_NAME):
        raise errors.BuildError(
            f"the engine reports that the job is done, but {job.build.output.path(FILE_NAME)} is "
            "missing; run the same command again to resume"
        )


def copied_from(build: Build) -> str:
    """Returns how many images were copied with `--reuse`; empty without it."""
    if build.reuse is None:
        return ""
    with contextlib.suppress(FileNotFoundError):  # another build has finished on the same store
        tasks = plan.read_tasks(build.output, build.draft.fingerprint)
        return reuse.told(build.output.map(build.read_schema, tasks), build.reuse.folder.root)
    return ""


def was_finished_elsewhere(job: Job) -> bool:
    """Tells whether another build has finished this dataset meanwhile.

    That can be on an object store, which has no lock. The other build has then removed the plan
    and the parts of tables, so that this one cannot go on.
    """
    output, identity = job.build.output, job.build.draft.options
    try:
        return output.remote and output_state.is_complete(output, identity)
    except errors.ToldError:
        return False


def _prepare(options: BuildOptions, storage: Folder, privacy: Privacy) -> Job | None:
    """Lists the images and plans the shards; returns None if the output is complete."""
    # The tables first, because a download can take hours.
    leaves_out = options.listing.exclude or options.listing.exclude_regex
    # A fault in what is excluded is none.
    _ = options.listing.names_in_table if leaves_out else options.listing.table
    if options.listing.exclude:
        read_exclusion(options.listing.exclude, options.listing.missing)
    old = options.output.reuse and reuse.Reuse.load(options.output.reuse, options.workers)
    if old and old.split_seed is not None and options.splits.split_seed is None:
        _say(
            "warning: --split_seed auto chooses by the images of this build, so patients may "
            f"change their split; --split_seed {old.split_seed} keeps them where they are in "
            f"{options.output.reuse}"
        )
    # A local folder, into which a source may unpack its archive.
    folder = options.source.download_dir if storage.remote else storage.path(BUILD_DIR)
    source = make_source(options.source, options.workers, options.plan.seed)
    source = source.prepare(Path(folder).absolute())
    started = time.monotonic()
    shown = "the input" if privacy.key else options.source.input or options.source.source
    _say(f"listing the images of {shown}")
    listing = list_images(source, options.listing)
    privacy.hide(listing)
    notes = _say_what_there_is(listing)
    options = dataclasses.replace(options, splits=options.splits.resolved(listing.refs))
    draft = _make_draft(options, listing)
    has_ended = storage.exists(FAILURE_FILE) or not (storage.remote or options.workers != "here")
    is_anew = options.output.overwrite or output_state.is_abandoned(
        storage, draft.options, has_ended=has_ended
    )
    if not is_anew and output_state.is_complete(storage, draft.options):
        drops.require_policies(storage, Manifest.load(storage.root), options.splits)
        return None
    read_content = functools.partial(_content_names, source)
    refs, dropped, more = splits.apply(listing.refs, options.splits, read_content, draft.label_kind)
    for note in more:
        _say(note)
    planned, tasks = plan.make_plan(refs, draft.layout.stride, options.plan)
    num_variants = int(np.count_nonzero(planned["variant"]))
    counts = {**draft.counts, "over_limit": refs.num_rows - (planned.num_rows - num_variants)}
    if num_variants:
        counts["variants"] = num_variants
    audit = {"notes": [*notes, *more], "layout": [list(level) for level in listing.layout]}
    build = Build(
        output=storage,
        draft=dataclasses.replace(draft, counts=counts, audit=audit),
        source=source,
        policies=options.splits,
        max_reject_fraction=options.output.max_reject_fraction,
        rejected_files=tuple(listing.rejects),
    )
    storage.clean_build_dir(".tmp")
    with output_state.replaced(storage) if is_anew else contextlib.nullcontext(storage) as place:
        if old and (why := old.write_index(draft, place)):
            _say(
                "warning: all images are decoded, because nothing can be copied from --reuse "
                f"{options.output.reuse}: {'; '.join(why)}"
            )
        elif old:
            build = dataclasses.replace(build, reuse=old)
        plan.write_plan(place, draft, tasks, planned)
        drops.write_table(place, drops.PLANNED_FILE, dropped)
        if listing.names is not None and not options.output.preview:
            path = privacy.write_names(listing.names, draft.fingerprint)
            _say(f"the names behind the codes are in {path}: keep it as private as the secret")
        # The listing alone may reject too many; then no image needs to be decoded to know it.
        list_rejects(dataclasses.replace(build, output=place), tasks)
    storage.delete([FAILURE_FILE])
    finished = build.find_finished(tasks)
    if finished:
        _say(f"resuming: {len(finished)} of {len(tasks)} shards are finished")
    return Job(
        build=build,
        todo=tuple(task for task in tasks if task.index not in finished),
        num_finished=sum(sidecar.num_refs for sidecar in finished.values()),
        started=started,
    )


def _make_draft(options: BuildOptions, listing: Listing) -> Manifest:
    """Returns the manifest, as far as the listing tells it.

    Its `options` are the identity: everything that decides the bytes of the dataset, by flag.

    Raises:
        errors.UserError: if there are DICOM files, and one of their codecs is not installed; or if
            `--rescale` is given and the files have no physical unit.
    """
    pixels, rescale = options.pixels, options.images.rescale
    # The formula of the stored numbers is in the unit that most images have.
    unit = max(sorted(listing.units), key=listing.units.__getitem__, default=SHARE)
    if rescale and unit == SHARE:
        raise errors.UserError(
            "--rescale needs DICOM files with a rescale slope and intercept; most images of this "
            "input have none, so leave it out"
        )
    needs_formula = listing.units and pixels.dtype == "uint16"
    needs_range = listing.no_window and pixels.dtype == "uint8" and not pixels.window
    pixels = dataclasses.replace(
        pixels,
        no_window=pixels.no_window if needs_range else None,
        physical=Physical.of_unit(unit, rescale) if needs_formula else None,
    )
    try:
        decoder = preprocess.decoder_versions(with_dicom="DICOM" in listing.frames)
    except ModuleNotFoundError as error:
        raise errors.UserError(str(error)) from None
    places = {name: place for place, name in enumerate(listing.order)}
    found = sorted(listing.refs["label"].unique().to_pylist(), key=lambda n: (places.get(n, 0), n))
    labels = listing.label_names or tuple(found)
    identity = {
        "source": listing.source["kind"],
        "source_listing": listing.digest,
        "name": options.output.name,
        "classes": list(labels),
        **listing.identity,
        **pixels.identity(),
        **options.splits.identity(),
        **options.plan.identity(),
        "anonymize": listing.secret_code,
        "decoder": decoder,
    }
    return Manifest(
        name=options.output.name or "",
        image_shape=pixels.image_shape,
        label_names=labels,
        splits={},
        preprocessing=pixels.to_dict(),
        source=listing.source,
        counts={
            "files": listing.num_files,
            "copies": listing.copies,
            "ignored": listing.ignored,
            **({"excluded": listing.num_excluded} if listing.num_excluded else {}),
        },
        rejects={},
        options=identity,
        fingerprint=output_state.fingerprint(identity),
        versions=decoder,
        dtype=pixels.dtype,
        label_kind=options.listing.label_kind,
    )


def _content_names(source: Source, refs: pa.Table) -> list[str]:
    """Returns a name for the content of each file, which is the same for copies of a file."""
    names: dict[Member, str] = {}
    # Each file is read once, whatever the number of its frames.
    members = list(dict.fromkeys(ref.member for ref in iterate_refs(refs)))
    with source.open() as reader:
        reads = ((member, functools.partial(reader.read, member)) for member in members)
        for member, read in zip(members, read_in_order(reader, reads), strict=True):
            try:
                names[member] = xxhash.xxh3_128_hexdigest(read())
            except Reject:
                # The decoder will reject it later; here its path serves as a unique name.
                names[member] = member.name
    return [names[ref.member] for ref in iterate_refs(refs)]


def _say_what_there_is(listing: Listing) -> list[str]:
    """Prints what the listing found, and returns what the user should know about it."""
    num_empty = pc.sum(pc.equal(listing.refs["size"], 0)).as_py() or 0
    num_images = listing.refs.num_rows - num_empty
    text = f"found {counted(num_images, 'image')} among {counted(listing.num_files, 'file')}"
    counts = [
        (num_empty, "empty"),
        (listing.copies, "copies in a second tree"),
        (listing.num_excluded, "excluded"),
        *((count, in_words(reason)) for reason, count in listing.ignored.items()),
        (len(listing.rejects), "rejected"),
    ]
    parts = ", ".join(f"{count:,} {what}" for count, what in counts if count)
    _say(f"{text} ({parts})" if parts else text)
    for line in layout_lines(listing):
        _say(line)
    notes = [*listing.notes, *listing.naming_notes]
    present = listing.refs.column_names
    if taken := [name for name in OWN if f"{OTHER}{name}" in present]:
        notes.append(
            f"left out the column {', '.join(sorted(taken))} of the table of --labels, which "
            "examples.parquet has for itself; rename it to keep it"
        )
    for note in [*listing.warnings, *notes]:
        _say(f"warning: {note}")
    return notes


def layout_lines(listing: Listing) -> list[str]:
    """Returns how the folders were read: their roles, an example, and the names of each level."""
    if not listing.layout or not listing.refs.num_rows:
        return []
    found = [role for role, _ in listing.layout if role in ROLES]
    parts = next(iterate_refs(listing.refs.slice(0, 1))).path.split("/")
    found += ["*"] * (len(parts) - 1 - len(found))
    # An anonymous image has a code for its path.
    example = f", such as {printable(' / '.join(parts))}" if listing.names is None else ""
    width = max(len(role) for role, _ in listing.layout)
    return [
        f"the folders were read as {' / '.join([*found, 'file'])}{example}",
        *(f"  {role:<{width}}  {names}" for role, names in listing.layout),
    ]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

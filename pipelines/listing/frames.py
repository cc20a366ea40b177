"""Replaces each file of a listing that holds several images by a reference to each of them."""

from __future__ import annotations

import collections
import dataclasses
import io
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from pipelines import errors, workers
from pipelines.listing.listing import Listing, ListingOptions, list_source
from pipelines.listing.members import has_suffix
from pipelines.listing.refs import (
    ImageRef,
    RejectedFile,
    iterate_refs,
    other_columns,
    with_column,
    with_other_columns,
    with_site_in_patient,
)
from pipelines.sources.reader import Reader
from pipelines.sources.source import Source
from tfrecord_io.ahead import map_ahead
from tfrecord_io.decoding.dicom_tags import SHARE, Header, codec_versions
from tfrecord_io.decoding.pictures import (
    ONE_PICTURE,
    SINGLE_SUFFIXES,
    START_BYTES,
    Pictures,
    find_pictures,
)
from tfrecord_io.decoding.preprocess import split_frame_path
from tfrecord_io.rejects import Reject

# Threads that wait for a disk, where the source does not say how many reads it takes at a time.
_NUM_THREADS = 8

# Files whose headers a worker process reads at a time. With fewer than some of these, starting the
# processes would take longer.
_NUM_AT_ONCE = 250
_MOST_IN_ONE_PROCESS = 1000

#: What counts the images of which a study or series is known, but no patient, likewise.
STUDY_WITHOUT_PATIENT = "study without a patient"

#: What counts the DICOM files without a window among a listing's frames.
NO_WINDOW = "DICOM without a window"

#: Begins what counts a listing's images in a unit, see `dicom_tags.unit_of`, if any file needs it.
IN_UNIT = "in "


def list_frames(source: Source, options: ListingOptions) -> Listing:
    """Lists the images of a source; each frame of a file is an image.

    So a DICOM file, and a TIFF file of several pages, is replaced by its frames. The patient of a
    DICOM file is taken from its tags, as a hash, unless a table names the patients.

    A file is recognised by its content. A file that is named like a picture, except a TIFF, is not
    opened, so a folder of pictures is listed fast; the decoder rejects such a file if it holds
    frames. Headers are read once, with a progress bar, by several threads. Many headers on this
    machine are read by a process per core, because parsing one takes longer than reading it.

    Args:
        source: the source.
        options: what the user says about the layout.

    Returns:
        the listing, in which each frame counts as a file, and so does each page that is not an
        image. `frame` is null for files that are one image.

    Raises:
        errors.UserError: as `list_source` does, or if there is a DICOM file and pydicom or a codec
            is not installed.
    """
    listing = list_source(source, options)
    labels = options.table
    keep_patients = labels is not None and labels.patient is not None
    listing = _expanded(listing, source, keep_patients=keep_patients)
    refs = with_site_in_patient(listing.refs)
    frames = collections.Counter(listing.frames)
    others = other_columns(refs)
    if ids := [others[name] for name in ("study", "series") if name in others]:
        in_study = pc.is_valid(pc.coalesce(*ids))
        without = pc.and_(in_study, refs["patient"].is_null().combine_chunks())
        frames[STUDY_WITHOUT_PATIENT] = pc.sum(without).as_py() or 0
    return dataclasses.replace(listing, refs=refs, frames=dict(+frames))


def _expanded(listing: Listing, source: Source, *, keep_patients: bool) -> Listing:
    """Returns the listing with each file of several images replaced by its frames.

    Args:
        listing: the files.
        source: where they are.
        keep_patients: whether the listing knows the patients better, from a table.
    """
    rows = np.flatnonzero(~has_suffix(listing.refs["path"], SINGLE_SUFFIXES).to_numpy())
    if not len(rows):
        return listing
    read = _read_all(listing.refs.take(rows), source)
    held = {row: some for row, some in zip(rows.tolist(), read, strict=True) if some.file_format}
    if not held:
        return listing
    conflicts = _named_like_frames(listing.refs, held)
    places: list[int] = []
    numbers: list[int | None] = []
    headers: list[Header] = []
    ignored = collections.Counter(listing.ignored)
    frames = collections.Counter(listing.frames)
    for row in range(listing.refs.num_rows):
        if row in conflicts:
            continue
        some = held.get(row, ONE_PICTURE)
        places += [row] * len(some.frames)
        numbers += some.frames
        headers += [some.header] * len(some.frames)
        if some.file_format:
            ignored.update(some.ignored)
            frames[some.file_format] += len(some.frames)
            frames[NO_WINDOW] += some.header.needs_range
            if some.header.unit:
                frames[IN_UNIT + some.header.unit] += len(some.frames)
    refs = with_column(listing.refs.take(places).combine_chunks(), "frame", numbers)
    if not keep_patients:
        known = zip(headers, refs["patient"].to_pylist(), strict=True)
        patients = [header.patient or patient for header, patient in known]
        refs = with_column(refs, "patient", patients)
    num_more = refs.num_rows + len(conflicts) - listing.refs.num_rows
    num_more += ignored.total() - sum(listing.ignored.values())
    return dataclasses.replace(
        listing,
        refs=_with_facts(refs, headers),
        rejects=(*listing.rejects, *conflicts.values()),
        num_files=listing.num_files + num_more,
        ignored=ignored,
        frames=_with_others(frames, refs.num_rows),
    )


def _with_others(frames: collections.Counter[str], num_images: int) -> dict[str, int]:
    """Counts the images without a physical unit, too, if some file needs a formula."""
    in_unit = sum(count for name, count in frames.items() if name.startswith(IN_UNIT))
    if in_unit:
        frames[IN_UNIT + SHARE] += num_images - in_unit
    return dict(+frames)


def _named_like_frames(refs: pa.Table, held: Mapping[int, Pictures]) -> dict[int, RejectedFile]:
    """Returns a reject by row for each file such as `a.tif#frame-2`, if `a.tif` has a frame 2."""
    rows = np.flatnonzero(pc.match_substring(refs["path"], "#frame-").to_numpy()).tolist()
    rows = [row for row in rows if len(held.get(row, ONE_PICTURE).frames) == 1]
    if not rows:
        return {}
    frames = {refs["path"][row].as_py(): some.frames for row, some in held.items()}
    conflicts = {}
    for row, ref in zip(rows, iterate_refs(refs.take(rows)), strict=True):
        path, number = split_frame_path(ref.path)
        if number and number in frames.get(path, ()):
            conflicts[row] = RejectedFile(
                source_path=ref.source_path,
                reason="path_conflict",
                detail=f"{path} has a frame {number}, whose name this is; rename one of the files",
            )
    return conflicts


def _read_all(refs: pa.Table, source: Source) -> list[Pictures]:
    """Returns the pictures of each file."""
    num_processes = len(os.sched_getaffinity(0))
    with (
        source.open() as reader,
        tqdm(
            total=refs.num_rows,
            unit=" files",
            desc="reading headers",
            # A folder of pictures has no such files, and few are read at once.
            delay=1.0,
            mininterval=0.1 if sys.stderr.isatty() else 10.0,
        ) as bar,
    ):
        waits_for_network = reader.num_parallel_reads > 1
        parts: Iterable[Sequence[Pictures]]
        if waits_for_network or num_processes == 1 or refs.num_rows <= _MOST_IN_ONE_PROCESS:
            parts = ([held] for held in _read_with(reader, refs))
        else:
            rows = np.arange(refs.num_rows)
            # `take` copies the rows; a slice would be sent with the whole table.
            calls = (
                (source, refs.take(some))
                for some in np.split(rows, rows[_NUM_AT_ONCE::_NUM_AT_ONCE])
            )
            parts = workers.results(_read_in_worker, calls, num_processes)
        pictures: list[Pictures] = []
        for part in parts:
            pictures += part
            bar.update(len(part))
        return pictures


def _read_in_worker(source: Source, refs: pa.Table) -> list[Pictures]:
    with source.open() as reader:
        return list(_read_with(reader, refs))


def _read_with(reader: Reader, refs: pa.Table) -> Iterator[Pictures]:
    """Yields the pictures of each file, in this process."""

    def read(ref: ImageRef) -> Pictures:
        member = ref.member
        try:
            with errors.clear_read_errors(ref.source_path):
                return find_pictures(
                    ref.path,
                    ref.size,
                    reader.read_start(member, START_BYTES),
                    lambda: reader.open(member) or io.BytesIO(reader.read(member)),
                )
        except Reject:
            return ONE_PICTURE  # the worker will reject it too
        except ModuleNotFoundError as error:
            raise errors.UserError(str(error)) from None

    num_threads = max(_NUM_THREADS, reader.num_parallel_reads)
    return map_ahead(read, iterate_refs(refs), 2 * num_threads, num_threads=num_threads)


def require_codecs() -> dict[str, str]:
    """Returns the versions of pydicom and its codecs.

    Raises:
        errors.UserError: if one of them is not installed.
    """
    try:
        return codec_versions()
    except ModuleNotFoundError as error:
        raise errors.UserError(str(error)) from None


def _with_facts(refs: pa.Table, headers: Sequence[Header]) -> pa.Table:
    """Adds what the headers say of the images to the columns that go into the examples table."""
    others = other_columns(refs)
    for name in ("study", "series", "modality", "laterality", "device"):
        values = [getattr(header, name) for header in headers]
        if any(values):
            # A table of labels knows better.
            others.setdefault(name, pa.array(values, pa.string()))
    return with_other_columns(refs, others)

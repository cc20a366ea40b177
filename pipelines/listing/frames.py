"""Finds the files of a listing that hold several images, and makes a reference of each image.

A frame of a DICOM file and a page of a TIFF file are the same thing here: a frame of a file.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from pipelines import errors, workers
from pipelines.listing.listing import Listing, ListingOptions, list_source
from pipelines.listing.members import PICTURE_SUFFIXES, TIFF_SUFFIXES
from pipelines.listing.refs import (
    OTHERS,
    ImageRef,
    RejectedFile,
    iterate_refs,
    other_columns,
    with_column,
    with_site_in_patient,
)
from pipelines.sources.reader import Reader
from pipelines.sources.source import Source
from tfrecord_io.ahead import map_ahead
from tfrecord_io.decoding import dicom, tiff
from tfrecord_io.decoding.preprocess import split_frame_path
from tfrecord_io.rejects import Reject

# Threads that wait for a disk, where the source does not say how many reads it takes at a time.
_NUM_THREADS = 8

# Files whose headers a worker process reads at a time. With fewer than some of these, starting the
# processes would take longer.
_NUM_AT_ONCE = 250
_MOST_IN_ONE_PROCESS = 1000

# A header can claim any number of frames. Each takes at least the head of an item in the file.
_MOST_FRAMES, _LEAST_FRAME_BYTES = tiff.MAX_PAGES, 8


#: What counts the DICOM files without a window among a listing's frames.
NO_WINDOW = "DICOM without a window"


class _Frames(NamedTuple):
    """What a file holds.

    Attributes:
        numbers: the images in it, see `preprocess.frame_path`.
        file_format: `DICOM` or `TIFF`.
        header: what the tags of a DICOM file say.
        ignored: the reason of each page that is not an image.
    """

    numbers: Sequence[int]
    file_format: str
    header: dicom.Header = dicom.Header()
    ignored: Sequence[str] = ()


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
    return dataclasses.replace(listing, refs=with_site_in_patient(listing.refs))


def _expanded(listing: Listing, source: Source, *, keep_patients: bool) -> Listing:
    """Returns the listing with each file of several images replaced by its frames.

    Args:
        listing: the files.
        source: where they are.
        keep_patients: whether the listing knows the patients better, from a table.
    """
    paths = pc.utf8_lower(listing.refs["path"])
    is_picture = np.zeros(listing.refs.num_rows, bool)
    for suffix in set(PICTURE_SUFFIXES) - set(TIFF_SUFFIXES):
        is_picture |= pc.ends_with(paths, suffix).to_numpy()
    rows = np.flatnonzero(~is_picture)
    if not len(rows):
        return listing
    read = _read_all(listing.refs.take(rows), source)
    found = {row: some for row, some in zip(rows.tolist(), read, strict=True) if some}
    if not found:
        return listing
    conflicts = _conflicts(listing.refs, found)
    found = {row: some for row, some in found.items() if row not in conflicts}
    places: list[int] = []
    numbers: list[int | None] = []
    patients: list[str | None] = []
    for row, patient in enumerate(listing.refs["patient"].to_pylist()):
        if row in conflicts:
            continue
        some = found.get(row)
        if some and some.header.patient and not keep_patients:
            patient = some.header.patient
        of_row = some.numbers if some else [None]
        places += [row] * len(of_row)
        numbers += of_row
        patients += [patient] * len(of_row)
    refs = listing.refs.take(places).combine_chunks()
    refs = with_column(with_column(refs, "frame", numbers), "patient", patients)
    refs = _with_facts(refs, [found[place].header if place in found else None for place in places])
    ignored = collections.Counter(listing.ignored)
    frames: collections.Counter[str] = collections.Counter()
    for some in found.values():
        ignored.update(some.ignored)
        frames[some.file_format] += len(some.numbers)
        frames[NO_WINDOW] += some.header.needs_range
    num_more = refs.num_rows + len(conflicts) - listing.refs.num_rows
    num_more += ignored.total() - sum(listing.ignored.values())
    return dataclasses.replace(
        listing,
        refs=refs,
        rejects=(*listing.rejects, *conflicts.values()),
        num_files=listing.num_files + num_more,
        ignored=ignored,
        frames=dict(+frames),
    )


def _conflicts(refs: pa.Table, found: Mapping[int, _Frames]) -> dict[int, RejectedFile]:
    """Returns the files, by row, whose own name is that of a frame of another file."""
    is_like_a_frame = pc.match_substring(refs["path"], "#frame-").to_numpy()
    rows = [
        row for row in np.flatnonzero(is_like_a_frame).tolist() if _is_one_image(found.get(row))
    ]
    if not rows:
        return {}
    numbers = {refs["path"][row].as_py(): some.numbers for row, some in found.items()}
    conflicts = {}
    for row, ref in zip(rows, iterate_refs(refs.take(rows)), strict=True):
        path, number = split_frame_path(ref.path)
        if number and number in numbers.get(path, ()):
            conflicts[row] = RejectedFile(
                source_path=ref.source_path,
                reason="path_conflict",
                detail=f"{path} has a frame {number}, whose name this is; rename one of the files",
            )
    return conflicts


def _is_one_image(some: _Frames | None) -> bool:
    """Returns whether a file is one image, which has the file's own name."""
    return some is None or some.numbers == [0]


def _read_all(refs: pa.Table, source: Source) -> list[_Frames | None]:
    """Returns what each file holds, None for those that are one image, or damaged."""
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
        if waits_for_network or num_processes == 1 or refs.num_rows <= _MOST_IN_ONE_PROCESS:
            return _read_with(reader, refs, bar.update)
        # `take` copies the rows; a slice would be sent with the whole table.
        rows = np.arange(refs.num_rows)
        parts = np.split(rows, rows[_NUM_AT_ONCE::_NUM_AT_ONCE])
        calls = ((source, refs.take(part)) for part in parts)
        found: list[_Frames | None] = []
        for some in workers.results(_read_in_worker, calls, num_processes):
            found += some
            bar.update(len(some))
        return found


def _read_in_worker(source: Source, refs: pa.Table) -> list[_Frames | None]:
    with source.open() as reader:
        return _read_with(reader, refs)


def _read_with(
    reader: Reader,
    refs: pa.Table,
    update: Callable[[], object] = lambda: None,
) -> list[_Frames | None]:
    """Reads headers as `_read_all` does, in this process; `update` is called after each."""
    require_once = functools.cache(require_codecs)

    def read(ref: ImageRef) -> _Frames | None:
        try:
            start = reader.read_start(ref.member, dicom.HEADER_BYTES)
            if dicom.is_dicom(start):
                return _read_dicom(reader, ref, start, require_once)
            return _read_tiff(reader, ref, start) if tiff.is_tiff(start) else None
        except Reject:
            return None  # the worker will reject it too

    num_threads = max(_NUM_THREADS, reader.num_parallel_reads)
    found = []
    for held_frames in map_ahead(
        read, iterate_refs(refs), 2 * num_threads, num_threads=num_threads
    ):
        found.append(held_frames)
        update()
    return found


def _read_dicom(
    reader: Reader,
    ref: ImageRef,
    start: bytes,
    require_codecs: Callable[[], object],
) -> _Frames | None:
    if ref.path.lower().endswith(PICTURE_SUFFIXES):
        # The decoder rejects a DICOM file named like a picture, unless it is also a TIFF of a page.
        return None
    require_codecs()
    header = dicom.read_header(start) or dicom.read_header(reader.read(ref.member))
    most = min(_MOST_FRAMES, ref.size // _LEAST_FRAME_BYTES)
    if header is None or not 1 <= header.num_frames <= most:
        header = dicom.Header()  # damaged: the decoder says why
    numbers = [0] if header.num_frames == 1 else range(1, header.num_frames + 1)
    return _Frames(numbers, "DICOM", header)


def _read_tiff(reader: Reader, ref: ImageRef, start: bytes) -> _Frames | None:
    pages = tiff.read_pages(io.BytesIO(start), is_whole=False)
    if pages is None:
        with reader.open(ref.member) or io.BytesIO(reader.read(ref.member)) as file:
            pages = tiff.read_pages(file, is_whole=True) or []
    kinds = [page.kind for page in pages]
    numbers = [number for number, kind in enumerate(kinds, start=1) if not kind]
    if len(pages) == 1 or len(pages) > tiff.MAX_PAGES or not numbers:
        return None  # the decoder rejects all but a single page
    return _Frames(numbers, "TIFF", ignored=[*filter(None, kinds)])


def require_codecs() -> dict[str, str]:
    """Returns the versions of pydicom and its codecs.

    Raises:
        errors.UserError: if one of them is not installed.
    """
    try:
        return dicom.codec_versions()
    except ModuleNotFoundError as error:
        raise errors.UserError(str(error)) from None


def _with_facts(refs: pa.Table, headers: Sequence[dicom.Header | None]) -> pa.Table:
    """Adds what the headers say of the images to the columns that go into the examples table."""
    others = other_columns(refs)
    if others:
        refs = refs.drop_columns(OTHERS)
    for name in ("study", "series", "modality", "laterality", "device"):
        values = [header and getattr(header, name) for header in headers]
        if any(values):
            # A table of labels knows better.
            others.setdefault(name, pa.array(values, pa.string()))
    if not others:
        return refs
    return refs.append_column(OTHERS, pa.StructArray.from_arrays(others.values(), list(others)))

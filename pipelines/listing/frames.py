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
from tqdm import tqdm

from pipelines import errors, workers
from pipelines.listing.listing import Listing, ListingOptions, list_source
from pipelines.listing.members import has_suffix
from pipelines.listing.refs import (
    ImageRef,
    iterate_refs,
    other_columns,
    with_column,
    with_other_columns,
    with_site_in_patient,
)
from pipelines.sources.reader import Reader
from pipelines.sources.source import Source
from tfrecord_io.ahead import map_ahead
from tfrecord_io.decoding.dicom_tags import SHARE, Header
from tfrecord_io.decoding.pictures import (
    ONE_PICTURE,
    SINGLE_SUFFIXES,
    START_BYTES,
    Pictures,
    find_pictures,
)
from tfrecord_io.rejects import Reject

# Threads that wait for a disk, where the source does not say how many reads it takes at a time.
_NUM_THREADS = 8

# Files whose headers a worker process reads at a time. With fewer than some of these, starting the
# processes would take longer.
_NUM_AT_ONCE = 250
_MOST_IN_ONE_PROCESS = 1000


def list_frames(source: Source, options: ListingOptions) -> Listing:
    """Lists the images of a source; each frame of a file is an image.

    So a DICOM file, and a TIFF file of several pages, is replaced by its frames. The patient of a
    DICOM file is taken from its tags, as a hash, unless a table names the patients.

    A file is recognised by its content. A file that is named like a picture, except a TIFF, is not
    opened, so a folder of pictures is listed fast; the decoder rejects such a file if it holds
    frames. Headers are read once, with a progress bar, by several threads. Many headers on this
    machine are read by a process per core, because parsing one takes longer than reading it.

    Returns:
        the listing, in which each frame counts as a file, and so does each page that is not an
        image. `frame` is null for files that are one image.

    Raises:
        errors.UserError: as `list_source` does, or if there is a DICOM file and pydicom or a codec
            is not installed.
    """
    listing = list_source(source, options)
    rows = np.flatnonzero(~has_suffix(listing.refs["path"], SINGLE_SUFFIXES).to_numpy())
    read = _read_all(listing.refs.take(rows), source) if len(rows) else []
    held = {row: some for row, some in zip(rows.tolist(), read, strict=True) if some.file_format}
    if held:
        labels = options.table
        has_patients = labels is not None and labels.patient is not None
        listing = _with_frames(listing, held, keep_patients=has_patients)
    return dataclasses.replace(listing, refs=with_site_in_patient(listing.refs))


def _with_frames(listing: Listing, held: Mapping[int, Pictures], *, keep_patients: bool) -> Listing:
    """Returns the listing with the files of these rows replaced by their frames.

    `keep_patients` says whether the listing knows the patients better, from a table.
    """
    places: list[int] = []
    numbers: list[int | None] = []
    headers: list[Header] = []
    for row in range(listing.refs.num_rows):
        some = held.get(row, ONE_PICTURE)
        places += [row] * len(some.frames)
        numbers += some.frames
        headers += [some.header] * len(some.frames)
    refs = with_column(listing.refs.take(places).combine_chunks(), "frame", numbers)
    if not keep_patients:
        known = zip(headers, refs["patient"].to_pylist(), strict=True)
        patients = [header.patient or patient for header, patient in known]
        refs = with_column(refs, "patient", patients)
    ignored = collections.Counter(reason for some in held.values() for reason in some.ignored)
    frames: collections.Counter[str] = collections.Counter()
    for some in held.values():
        frames[some.file_format] += len(some.frames)
    has_units = any(header.unit for header in headers)
    return dataclasses.replace(
        listing,
        refs=_with_facts(refs, headers),
        num_files=listing.num_files + refs.num_rows - listing.refs.num_rows + ignored.total(),
        ignored=ignored + collections.Counter(listing.ignored),
        frames=dict(+frames),
        units=collections.Counter(header.unit or SHARE for header in headers if has_units),
        no_window=any(some.header.needs_range for some in held.values()),
    )


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


def _with_facts(refs: pa.Table, headers: Sequence[Header]) -> pa.Table:
    """Adds what the headers say of the images to the columns that go into the examples table."""
    others = other_columns(refs)
    for name in ("study", "series", "modality", "laterality", "device"):
        values = [getattr(header, name) for header in headers]
        if any(values):
            # A table of labels knows better.
            others.setdefault(name, pa.array(values, pa.string()))
    return with_other_columns(refs, others)

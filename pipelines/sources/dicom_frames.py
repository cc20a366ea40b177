"""Finds the DICOM files of a listing by their content, and makes a reference of each frame."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from pipelines import errors
from pipelines.sources.listing import (
    OTHERS,
    PICTURE_SUFFIXES,
    REF_SCHEMA,
    SITE,
    ImageRef,
    Listing,
    ListingOptions,
    iterate_refs,
)
from pipelines.sources.source import Source
from pipelines.stores import prefetch
from tfrecord_io import dicom
from tfrecord_io.preprocess import Reject

# Threads that wait for a disk, where the source does not say how many reads it takes at a time.
_NUM_THREADS = 8

# Each frame takes at least the head of an item in the file, which bounds what a header can claim.
_LEAST_FRAME_BYTES = 8


def list_frames(source: Source, options: ListingOptions) -> Listing:
    """Lists the images of a source, each frame of a DICOM file as an image; see `expand`.

    Args:
        source: the source.
        options: what the user says about the layout.

    Raises:
        errors.UserError: as `Source.list` and `expand` do.
    """
    listing = source.list(options)
    if SITE in listing.refs.column_names:
        return listing  # the source has done so for each site, whose patients are its own
    labels = options.labels
    keep_patients = labels is not None and labels.patient is not None
    return expand(listing, source, keep_patients=keep_patients)


def expand(listing: Listing, source: Source, *, keep_patients: bool) -> Listing:
    """Replaces each DICOM file by its frames, and takes its patient from its tags, as a hash.

    A file is recognised by its content. One whose name ends like a picture's is not looked into,
    so that a folder of pictures is listed as fast as ever, and the decoder rejects it. The headers
    are read once, by several threads, with a progress bar.

    Args:
        listing: the files.
        source: where they are.
        keep_patients: whether the listing knows the patients better, from a table.

    Returns:
        the listing, in which each frame counts as a file. `frame` is null for other files.

    Raises:
        errors.UserError: if there is a DICOM file and pydicom or a codec is not installed.
    """
    paths = pc.utf8_lower(listing.refs["path"])
    is_picture = np.zeros(listing.refs.num_rows, bool)
    for suffix in PICTURE_SUFFIXES:
        is_picture |= pc.ends_with(paths, suffix).to_numpy()
    rows = np.flatnonzero(~is_picture)
    if not len(rows):
        return listing
    with source.open() as reader:
        headers = _read_headers(listing.refs.take(rows), reader)
    if not any(headers):
        return listing
    by_row = dict(zip(rows.tolist(), headers, strict=True))
    places: list[int] = []
    frames: list[int | None] = []
    patients: list[str | None] = []
    for row, patient in enumerate(listing.refs["patient"].to_pylist()):
        header = by_row.get(row)
        numbers = [None] if header is None else _frame_numbers(header)
        if header is not None and header.patient and not keep_patients:
            patient = header.patient
        places += [row] * len(numbers)
        frames += numbers
        patients += [patient] * len(numbers)
    refs = listing.refs.take(places).combine_chunks()
    refs = _with(_with(refs, "frame", frames), "patient", patients)
    refs = _with_facts(refs, [by_row.get(place) for place in places])
    more = refs.num_rows - listing.refs.num_rows
    return dataclasses.replace(listing, refs=refs, num_files=listing.num_files + more)


def _frame_numbers(header: dicom.Header) -> Sequence[int]:
    return [0] if header.num_frames == 1 else range(1, header.num_frames + 1)


def has_dicom(refs: pa.Table) -> bool:
    """Tells whether a table of `REF_SCHEMA` has frames of DICOM files."""
    return refs["frame"].null_count < refs.num_rows


def _read_headers(refs: pa.Table, reader: prefetch.Reader[ImageRef]) -> list[dicom.Header | None]:
    """Returns the header of each file, None for those that are not DICOM."""
    num_threads = max(_NUM_THREADS, reader.num_parallel_reads)
    require_once = functools.cache(require_codecs)

    def read(ref: ImageRef) -> dicom.Header | None:
        return _read_header(reader, ref, require_once)

    with tqdm(
        prefetch.ahead(read, iterate_refs(refs), num_threads),
        total=refs.num_rows,
        unit=" files",
        desc="reading headers",
        # A folder of pictures has no such files, and few are read at once.
        delay=1.0,
        mininterval=0.1 if sys.stderr.isatty() else 10.0,
    ) as bar:
        return [result() for _, result in bar]


def _read_header(
    reader: prefetch.Reader[ImageRef], ref: ImageRef, require_codecs: Callable[[], object]
) -> dicom.Header | None:
    try:
        start = reader.read_start(ref, dicom.HEADER_BYTES)
        if not dicom.is_dicom(start):
            return None
        require_codecs()
        header = dicom.read_header(start) or dicom.read_header(reader.read(ref))
    except Reject:
        return None  # the worker will find the same
    if header is None or not 1 <= header.num_frames <= ref.size // _LEAST_FRAME_BYTES:
        return dicom.Header()  # damaged: the decoder says why
    return header


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
    others: dict[str, pa.Array] = {}
    if OTHERS in refs.column_names:
        column = refs[OTHERS].combine_chunks()
        others = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
        refs = refs.drop_columns(OTHERS)
    for name in ("modality", "laterality", "device"):
        values = [header and getattr(header, name) for header in headers]
        if any(values):
            # A table of labels knows better.
            others.setdefault(name, pa.array(values, pa.string()))
    if not others:
        return refs
    return refs.append_column(OTHERS, pa.StructArray.from_arrays(others.values(), list(others)))


def _with(refs: pa.Table, name: str, values: Sequence[object]) -> pa.Table:
    field = REF_SCHEMA.field(name)
    return refs.set_column(refs.schema.get_field_index(name), field, pa.array(values, field.type))

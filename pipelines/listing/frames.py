"""Replaces each DICOM file by its frames, with the patient and other facts of its tags.

Of pictures of several modalities, such as B-scans and infrared ones of an eye, it keeps those that
the user chose.
"""

from __future__ import annotations

import collections
from collections.abc import Collection

import numpy as np
import pyarrow as pa

from pipelines import errors
from pipelines.listing.files import has_suffix
from pipelines.listing.images import Images, Ledger
from pipelines.listing.refs import OTHER, REF_SCHEMA, ImageRef, iterate_refs
from pipelines.sources.source import Source
from tfrecord_io.decoding.preprocess import (
    SINGLE_SUFFIXES,
    START_BYTES,
    Pictures,
    find_pictures,
)
from tfrecord_io.decoding.rejects import Reject
from tfrecord_io.stores.ahead import map_ahead
from tfrecord_io.terminal.printing import bar, printable

# The column of the modality, from tags of DICOM or a table.
_MODALITY = f"{OTHER}modality"

# Threads that wait for a disk, where the source does not say how many reads it takes at a time.
_NUM_THREADS = 8


def with_frames(
    images: Images, source: Source, modalities: Collection[str], *, keep_patients: bool
) -> Images:
    """Replaces each DICOM file by its frames, and reads its tags.

    Each frame counts as a file; `frame` stays null for files that are one image. The patient is
    taken from the tags, as a hash, unless the images have theirs: `keep_patients`. Objects of DICOM
    that are not pictures, and those of other modalities than these, if any are given, are counted
    as ignored.

    A file is recognised by its content, but one that is named like a picture is not opened, so a
    folder of pictures is listed fast; the decoder rejects such a file if it holds frames.

    Raises:
        errors.UserError: if there is a DICOM file and pydicom or a codec is not installed, or no
            picture has a modality of these.
    """
    refs, num_files = images.table, images.table.num_rows
    rows = np.flatnonzero(~has_suffix(refs["path"], SINGLE_SUFFIXES).to_numpy())
    read = _read_all(refs.take(rows), source) if len(rows) else []
    if not any(picture.file_format for picture in read) and not modalities:
        return images
    pictures = [Pictures()] * num_files
    for row, some in zip(rows.tolist(), read, strict=True):
        pictures[row] = some
    ignored = collections.Counter(reason for picture in pictures for reason in picture.ignored)
    frames = [(number, picture.header) for picture in pictures for number in picture.frames]
    refs = refs.take(np.repeat(np.arange(num_files), [len(picture.frames) for picture in pictures]))
    if modalities:
        of_table = refs[_MODALITY].to_pylist() if _MODALITY in refs.column_names else None
        found = of_table or [header.modality for _, header in frames]
        if not {*modalities} <= {*found}:
            counts = collections.Counter(printable(name or "none named") for name in found)
            shown = ", ".join(f"{name} {count:,}" for name, count in counts.most_common())
            raise errors.UserError(
                f"--modality {','.join(sorted(modalities))}: the modalities of the input are "
                f"{shown}; DICOM files name them, or a column modality of --labels"
            )
        kept = [place for place, name in enumerate(found) if name in modalities]
        ignored["other_modality"] = len(frames) - len(kept)
        refs, frames = refs.take(kept), [frames[place] for place in kept]
    columns = dict(zip(refs.column_names, refs.columns, strict=True))
    columns["frame"] = pa.array([number for number, _ in frames], REF_SCHEMA.field("frame").type)
    headers = [header for _, header in frames]
    if not keep_patients:
        patients = [header.patient or None for header in headers]
        columns["patient"] = pa.array(patients, pa.large_string())
    for name in ("study", "series", "modality", "laterality", "device"):
        values = [getattr(header, name) for header in headers]
        # A table of labels knows better.
        if any(values):
            columns.setdefault(f"{OTHER}{name}", pa.array(values, pa.string()))
    refs = pa.table(columns).combine_chunks()
    added = refs.num_rows - num_files + ignored.total()
    images = images.then(refs, Ledger(num_files=added, ignored=ignored))
    if num_annotated := sum(header.is_annotated for header in headers):
        images = images.noted(
            f"{num_annotated:,} images are of DICOM files that say BurnedInAnnotation YES: text in "
            "the pixels may name a patient or give a class away"
        )
    return images


def _read_all(refs: pa.Table, source: Source) -> list[Pictures]:
    """Returns the pictures of each file; only its start is read if that is enough."""
    with source.open() as reader:

        def read(ref: ImageRef) -> Pictures:
            member = ref.member
            try:
                with errors.clear_read_errors(member.name):
                    start = reader.read_start(member, START_BYTES)
                    return find_pictures(
                        member.name, member.size, start, lambda: reader.open(member)
                    )
            except Reject:
                return Pictures()  # the worker will reject it too
            except ModuleNotFoundError as error:
                raise errors.UserError(str(error)) from None

        num_threads = max(_NUM_THREADS, reader.num_parallel_reads)
        found = map_ahead(read, iterate_refs(refs), 2 * num_threads, num_threads=num_threads)
        # A folder of pictures has no such files, and few are read at once.
        settings = {"desc": "reading headers", "total": refs.num_rows, "unit": " files"}
        return list(bar(iterable=found, delay=1.0, **settings))

"""Replaces each file that holds several images by a reference to each of them.

Of pictures of several modalities, such as B-scans and infrared ones of an eye, it keeps those that
the user chose.
"""

from __future__ import annotations

import collections
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from pipelines import errors, workers
from pipelines.listing.files import has_suffix
from pipelines.listing.images import Images, Ledger
from pipelines.listing.refs import OTHER, REF_SCHEMA, ImageRef, iterate_refs
from pipelines.sources.source import Member, Reader, Source
from tfrecord_io.decoding.dicom import Header
from tfrecord_io.decoding.preprocess import (
    ONE_PICTURE,
    SINGLE_SUFFIXES,
    START_BYTES,
    Pictures,
    find_pictures,
)
from tfrecord_io.decoding.rejects import Reject
from tfrecord_io.stores.ahead import Item, Result, map_ahead
from tfrecord_io.terminal.printing import bar, printable

# The column of the modality, from tags of DICOM or a table.
_MODALITY = f"{OTHER}modality"

# Threads that wait for a disk, where the source does not say how many reads it takes at a time.
_NUM_THREADS = 8

# Files whose headers a worker process reads at a time. With fewer than some of these, starting the
# processes would take longer.
_NUM_AT_ONCE = 250
_MOST_IN_ONE_PROCESS = 1000


def with_frames(
    images: Images, source: Source, modalities: Collection[str], *, keep_patients: bool
) -> Images:
    """Replaces each file of several pictures by its frames, and reads the tags of DICOM.

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
    if not any(some.file_format for some in read) and not modalities:
        return images.noted(*_note_on_modalities(refs))
    pictures = [ONE_PICTURE] * num_files
    for row, some in zip(rows.tolist(), read, strict=True):
        pictures[row] = some
    ignored = collections.Counter(reason for some in pictures for reason in some.ignored)
    frames = [(number, some) for some in pictures for number in some.frames]
    refs = refs.take(np.repeat(np.arange(num_files), [len(some.frames) for some in pictures]))
    if modalities:
        told = refs[_MODALITY].to_pylist() if _MODALITY in refs.column_names else None
        kept = _of_modality(told or [some.header.modality for _, some in frames], modalities)
        ignored["other_modality"] = len(frames) - len(kept)
        refs, frames = refs.take(kept), [frames[row] for row in kept]
    headers = [some.header for _, some in frames]
    columns = dict(zip(refs.column_names, refs.columns, strict=True))
    columns["frame"] = pa.array([number for number, _ in frames], REF_SCHEMA.field("frame").type)
    if not keep_patients:
        patients = [header.patient or None for header in headers]
        columns["patient"] = pa.array(patients, pa.large_string())
    for name in ("study", "series", "modality", "laterality", "device"):
        values = [getattr(header, name) for header in headers]
        # A table of labels knows better.
        if any(values):
            columns.setdefault(f"{OTHER}{name}", pa.array(values, pa.string()))
    refs = pa.table(columns).combine_chunks()
    found = Ledger(num_files=refs.num_rows - num_files + ignored.total(), ignored=ignored)
    images = images.then(
        refs,
        found,
        frames=collections.Counter(some.file_format for _, some in frames if some.file_format),
    )
    images = images.noted(*_note_on_annotations(headers), is_private=False)
    return images.noted(*_note_on_modalities(refs))


def _note_on_annotations(headers: Sequence[Header]) -> Iterator[str]:
    """Yields a note if files say that text is burned into their pixels, such as a name."""
    if num_annotated := sum(header.is_annotated for header in headers):
        yield (
            f"{num_annotated:,} images are of DICOM files that say BurnedInAnnotation YES: text in "
            "the pixels may name a patient or give a class away"
        )


def _read_all(refs: pa.Table, source: Source) -> list[Pictures]:
    """Returns the pictures of each file."""
    num_processes = len(os.sched_getaffinity(0))
    with source.open() as reader:
        rows, waits_for_network = iterate_refs(refs), reader.num_parallel_reads > 1
        parts: Iterable[Iterable[Pictures]]
        if waits_for_network or num_processes == 1 or refs.num_rows <= _MOST_IN_ONE_PROCESS:
            parts = [_read_with(reader, rows)]
        else:
            some = iter(lambda: list(itertools.islice(rows, _NUM_AT_ONCE)), [])
            parts = workers.results(
                _read_in_worker, zip(itertools.repeat(source), some), num_processes
            )
        found = itertools.chain.from_iterable(parts)
        # A folder of pictures has no such files, and few are read at once.
        settings = {"desc": "reading headers", "total": refs.num_rows, "unit": " files"}
        return list(bar(iterable=found, delay=1.0, **settings))


def _read_in_worker(source: Source, refs: Sequence[ImageRef]) -> list[Pictures]:
    with source.open() as reader:
        return list(_read_with(reader, refs))


def _read_with(reader: Reader, refs: Iterable[ImageRef]) -> Iterator[Pictures]:
    """Yields the pictures of each file, in this process."""

    def read(ref: ImageRef) -> Pictures:
        try:
            return pictures_in(reader, ref.member)
        except Reject:
            return ONE_PICTURE  # the worker will reject it too
        except ModuleNotFoundError as error:
            raise errors.UserError(str(error)) from None

    return map_starts(reader, read, refs)


def pictures_in(reader: Reader, member: Member) -> Pictures:
    """Returns the pictures of a file; only its start is read if that is enough.

    Raises:
        Reject: if the file is damaged.
        errors.BuildError: if it cannot be read.
        ModuleNotFoundError: if it is a DICOM file, and pydicom or a codec is not installed.
    """
    with errors.clear_read_errors(member.name):
        start = reader.read_start(member, START_BYTES)
        return find_pictures(member.name, member.size, start, lambda: reader.open(member))


def map_starts(
    reader: Reader, function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[Result]:
    """Yields the result of a function that reads the start of each file, in order, see `map_ahead`.

    As many are read at a time as the reader takes.
    """
    num_threads = max(_NUM_THREADS, reader.num_parallel_reads)
    return map_ahead(function, items, 2 * num_threads, num_threads=num_threads)


def _of_modality(found: Sequence[str | None], wanted: Collection[str]) -> list[int]:
    """Returns the places of the pictures that have one of some modalities.

    Raises:
        errors.UserError: if none has one of them.
    """
    if {*wanted} <= {*found}:
        return [place for place, name in enumerate(found) if name in wanted]
    raise errors.UserError(
        f"--modality {','.join(sorted(wanted))}: the modalities of the input are "
        f"{_told(collections.Counter(found))}; DICOM files name them, or a column modality of "
        "--labels"
    )


def _note_on_modalities(refs: pa.Table) -> Iterator[str]:
    """Yields a note with their counts, if there are several. A modality may name a person."""
    if _MODALITY not in refs.column_names:
        return
    groups = refs.select(["label", _MODALITY]).group_by(["label", _MODALITY])
    rows = groups.aggregate([([], "count_all")]).to_pylist()
    counts, classes = collections.Counter[str | None](), collections.Counter[str]()
    for row in rows:
        counts[row[_MODALITY]] += row["count_all"]
        classes[row["label"]] += 1
    mixed = sum(count > 1 for count in classes.values())
    where = f"mixed in {mixed} of {len(classes)} classes" if mixed else "each in its own class"
    if len(counts) > 1:
        first = next(name for name, _ in counts.most_common() if name)
        yield (
            f"the images have {len(counts)} modalities, {where}: {_told(counts)}; --modality "
            f"{first} uses one alone"
        )


def _told(counts: collections.Counter[str | None]) -> str:
    return ", ".join(
        f"{'none named' if name is None else printable(name)} {count:,}"
        for name, count in counts.most_common()
    )

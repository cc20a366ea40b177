"""The references to a source's images, one row each, and the files that were left out.

A reference takes about a hundred bytes and holds no pixels, so all of them are an Arrow table in
the launcher's memory: 84,484 rows take a second, ten million rows about a gigabyte.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from pipelines.sources.source import Member
from tfrecord_io.decoding.preprocess import frame_path
from tfrecord_io.decoding.rejects import MAX_DETAIL_LENGTH
from tfrecord_io.decoding.unread import what_is
from tfrecord_io.terminal.printing import counted, printable

#: Number of rows of a table that are Python objects at the same time.
BATCH_ROWS = 65_536

#: One row per image. `root` + "/" + `path` is its name in the source. `path`, which starts at the
#: split or class folder, is its identity. `offset` and `stored_size` locate it in an archive.
#: `version` changes when the file changes (a CRC-32, or a time in ns). `frame` is the frame of a
#: DICOM file or the page of a TIFF, see `preprocess.frame_path`; null for files that are one image.
#: A table of anonymous images has a further column, `hidden`, with the name in the source, and one
#: with files whose names are not in `spelling.one_form` has `spelled`, with these names. What else
#: a table of labels or the tags of DICOM tell is in columns whose names begin with `OTHER`.
REF_SCHEMA = pa.schema(
    [
        ("root", pa.dictionary(pa.int32(), pa.string())),
        ("path", pa.large_string()),
        ("split", pa.dictionary(pa.int32(), pa.string())),
        ("label", pa.dictionary(pa.int32(), pa.string())),
        ("patient", pa.large_string()),
        ("offset", pa.int64()),
        ("stored_size", pa.int64()),
        ("size", pa.int64()),
        ("version", pa.int64()),
        ("frame", pa.int32()),
    ]
)

#: Begins the names of columns that could else be taken for one of `REF_SCHEMA`.
OTHER = "other:"


class ImageRef(NamedTuple):
    """A row of `REF_SCHEMA`."""

    root: str
    path: str
    split: str
    label: str
    patient: str | None
    offset: int
    stored_size: int
    size: int
    version: int
    frame: int | None = None
    hidden: str | None = None
    spelled: str | None = None

    @property
    def source_path(self) -> str:
        """The image's full name in the source, or its code if it is anonymous."""
        if self.spelled is not None:
            return self.spelled
        return f"{self.root}/{self.path}" if self.root else self.path

    @property
    def image_path(self) -> str:
        """The image's name in its tree, from which its key is made: with its frame, if any."""
        return frame_path(self.path, self.frame)

    @property
    def image_name(self) -> str:
        """The image's full name in the source, with its frame, if any."""
        return frame_path(self.source_path, self.frame)

    @property
    def member(self) -> Member:
        """The image's file in the source, by its name there."""
        name = self.source_path if self.hidden is None else self.hidden
        return Member(name, self.size, self.offset, self.stored_size, self.version)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class RejectedFile:
    """A file left out, with the reason."""

    source_path: str
    reason: str
    detail: str


@dataclasses.dataclass(kw_only=True)
class Listing:
    """The files of a source. Each is counted once: in refs, rejects, copies, excluded or ignored.

    Each pass of the listing takes files out of the table and adds them here.

    Attributes:
        refs: the images, a table of `REF_SCHEMA` sorted by path.
        rejects: files that should be images of a class but cannot be used.
        ignored: number of files that are not data, by reason.
        others: the names of those of a known kind, by what they are and what to do with them.
        layout: the role of each level of folders, and its names, see `roles.table`.
        excluded: the names of files that --include_regex and --exclude_regex leave out.
        num_withdrawn: number of images and other files that --exclude leaves out.
        label_names: those that the user gave, or the table of labels, in order; else empty.
        order: all names of classes, if the files of the source have an order of them; else empty.
        warnings: what the terminal says; the dataset does not store it.
        copies: number of files in a second tree that repeat a listed one.
        num_files: number of files seen; each frame of a file with several counts as a file.
        frames: number of images that are frames of DICOM or TIFF files, by format.
        units: number of images by the unit of their stored numbers, see `dicom.unit_of`;
            empty if no file needs a formula.
        no_window: whether there is a DICOM file without a window.
        notes: what the user should know about the classes, one sentence each.
        naming_notes: likewise, with names of files or columns, which an anonymous dataset omits.
        source: the source's entry in the manifest.
        identity: what decides the labels and the patients, by flag.
        names: what the codes of an anonymous dataset stand for, see `anonymous.NAMES_SCHEMA`.
    """

    refs: pa.Table = dataclasses.field(default_factory=REF_SCHEMA.empty_table)
    rejects: list[RejectedFile] = dataclasses.field(default_factory=list)
    ignored: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    others: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    layout: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    excluded: list[str] = dataclasses.field(default_factory=list)
    num_withdrawn: int = 0
    label_names: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    warnings: list[str] = dataclasses.field(default_factory=list)
    copies: int = 0
    num_files: int = 0
    frames: Mapping[str, int] = dataclasses.field(default_factory=dict)
    units: Mapping[str, int] = dataclasses.field(default_factory=dict)
    no_window: bool = False
    notes: list[str] = dataclasses.field(default_factory=list)
    naming_notes: list[str] = dataclasses.field(default_factory=list)
    source: dict[str, Any] = dataclasses.field(default_factory=dict)
    identity: dict[str, Any] = dataclasses.field(default_factory=dict)
    names: pa.Table | None = None
    secret_code: str | None = None

    @property
    def num_excluded(self) -> int:
        """Number of files that the user left out."""
        return len(self.excluded) + self.num_withdrawn

    @property
    def digest(self) -> str:
        """Hexadecimal SHA-256 of the names, sizes and versions of all images, and their facts.

        It does not depend on where the images are in an archive. Columns of a table of labels have
        a digest of their own.
        """
        digest, table = hashlib.sha256(), self.refs
        for batch in table.to_batches(BATCH_ROWS):
            for field in batch.schema:
                column = batch.column(field.name)
                if field.name in ("offset", "stored_size"):
                    continue
                if pa.types.is_integer(field.type):
                    numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
                    digest.update(numbers.astype("<i8").tobytes())
                elif field.name in REF_SCHEMA.names or pa.types.is_string(field.type):
                    # No name has a zero byte, so it can mark the end of each; 1 stands for null.
                    texts = ("\1" if text is None else text for text in column.to_pylist())
                    digest.update("\0".join([field.name, *texts, ""]).encode())
        return digest.hexdigest()

    def ignore_other(self, name: str) -> None:
        """Counts a file that does not have the name of an image."""
        self.ignored["no_image_name"] += 1
        if told := what_is(name):
            self.others.setdefault(told, []).append(name)

    @property
    def told_of_others(self) -> list[str]:
        """What the files are that are not images, one sentence each."""
        return [
            f"not read: {counted(len(names), 'file')} such as {printable(min(names))}: {told}"
            for told, names in sorted(self.others.items())
        ]

    def checked(self) -> Listing:
        """Returns the listing if each file is counted once; rejects are sorted and printable."""
        self.rejects = sorted(
            RejectedFile(
                printable(file.source_path), file.reason, printable(file.detail, MAX_DETAIL_LENGTH)
            )
            for file in self.rejects
        )
        self.ignored = collections.Counter(dict(sorted((+self.ignored).items())))
        listed = self.refs.num_rows + len(self.rejects) + len(self.excluded)
        parts = listed + self.copies + self.ignored.total()
        if parts != self.num_files:
            raise RuntimeError(
                f"the listing saw {self.num_files} files, but {parts} are accounted for; this is "
                "a bug, please report it"
            )
        return self


def iterate_refs(table: pa.Table | pa.RecordBatch) -> Iterator[ImageRef]:
    """Yields the rows of a table of `REF_SCHEMA`, converting one batch at a time."""
    batches = [table] if isinstance(table, pa.RecordBatch) else table.to_batches(BATCH_ROWS)
    for batch in batches:
        there, nulls = batch.schema.names, [None] * batch.num_rows
        columns = [
            batch.column(name).to_pylist() if name in there else nulls for name in ImageRef._fields
        ]
        yield from itertools.starmap(ImageRef, zip(*columns, strict=True))

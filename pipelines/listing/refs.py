"""The references to a source's images, one row each.

A reference takes about a hundred bytes and holds no pixels, so all of them are an Arrow table in
the launcher's memory: 84,484 rows take a second, ten million rows about a gigabyte.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from pipelines.sources.source import Member
from tfrecord_io.decoding.preprocess import frame_path

#: Number of rows of a table that are Python objects at the same time.
BATCH_ROWS = 65_536

#: One row per image. `root` + "/" + `path` is its name in the source. `path`, which starts at the
#: split or class folder, is its identity. `offset` and `stored_size` locate it in an archive.
#: `version` changes when the file changes (a CRC-32, or a time in ns). `frame` is the frame of a
#: DICOM file or the page of a TIFF, see `preprocess.frame_path`; null for files that are one image.
#: If a code stands for the path, a further column `name` has the name in the source. If some names
#: are not in `printing.one_form`, a column `spelled` has these. What else a table of labels or the
#: tags of DICOM tell is in columns whose names begin with `OTHER`.
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
    name: str | None = None
    spelled: str | None = None

    @property
    def source_path(self) -> str:
        """The image's full name in the source, or the code for it."""
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
        name = self.source_path if self.name is None else self.name
        return Member(name, self.size, self.offset, self.stored_size, self.version)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class RejectedFile:
    """A file left out, with the reason."""

    source_path: str
    reason: str
    detail: str


def iterate_refs(table: pa.Table | pa.RecordBatch) -> Iterator[ImageRef]:
    """Yields the rows of a table of `REF_SCHEMA`, converting one batch at a time."""
    batches = [table] if isinstance(table, pa.RecordBatch) else table.to_batches(BATCH_ROWS)
    for batch in batches:
        present, nulls = batch.schema.names, [None] * batch.num_rows
        columns = [
            batch.column(name).to_pylist() if name in present else nulls
            for name in ImageRef._fields
        ]
        yield from itertools.starmap(ImageRef, zip(*columns, strict=True))


def make_refs(files: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    """Returns a table of `REF_SCHEMA` and what else is in `columns`; what is in neither is null."""
    own = [name for name in files.column_names if name in (*REF_SCHEMA.names, "spelled")]
    present = {name: files[name] for name in own} | columns
    nulls = pa.nulls(files.num_rows)
    refs = pa.table([present.pop(name, nulls) for name in REF_SCHEMA.names], REF_SCHEMA)
    for name, values in present.items():
        refs = refs.append_column(name, values)
    return refs


def counts_of(values: pa.Array | pa.ChunkedArray) -> dict[Any, int]:
    """Returns the number of rows that have each value of a column."""
    return {pair["values"]: pair["counts"] for pair in values.value_counts().to_pylist()}

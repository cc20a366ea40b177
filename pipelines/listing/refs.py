"""The references to a source's images, one row each, and the files that were left out.

A reference takes about a hundred bytes and holds no pixels, so all of them are an Arrow table in
the launcher's memory: 84,484 rows take a second, ten million rows about a gigabyte.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.sources.member import Member
from tfrecord_io.decoding.preprocess import frame_path

#: Number of rows of a table that are Python objects at the same time.
BATCH_ROWS = 65_536

#: One row per image. `root` + "/" + `path` is its name in the source. `path`, which starts at the
#: split or class folder, is its identity. `offset` and `stored_size` locate it in an archive.
#: `version` changes when the file changes (a CRC-32, or a time in ns). `frame` is the frame of a
#: DICOM file or the page of a TIFF, see `preprocess.frame_path`; null for files that are one image.
#: A table of anonymous images has a further column, `hidden`, with the name in the source; one of
#: images with a table of labels has the site of each image, `site`, if the table names it, and the
#: table's other columns in a struct, `others`.
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

#: Name of the struct with the other columns of a table of labels.
OTHERS = "others"

#: Name of the column with the site of each image.
SITE = "site"


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

    @property
    def source_path(self) -> str:
        """The image's full name in the source, or its code if it is anonymous."""
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


@dataclasses.dataclass(frozen=True, slots=True)
class RejectedFile:
    """A file left out, with the reason."""

    source_path: str
    reason: str
    detail: str


def iterate_refs(table: pa.Table | pa.RecordBatch) -> Iterator[ImageRef]:
    """Yields the rows of a table of `REF_SCHEMA`, converting one batch at a time."""
    batches = [table] if isinstance(table, pa.RecordBatch) else table.to_batches(BATCH_ROWS)
    for batch in batches:
        names = [name for name in ImageRef._fields if name in batch.schema.names]
        columns = [batch.column(name).to_pylist() for name in names]
        yield from itertools.starmap(ImageRef, zip(*columns, strict=True))


def source_paths(refs: pa.Table) -> pa.Array:
    """Returns the full name of each image's file, as `ImageRef.source_path` does."""
    roots = refs["root"].cast(pa.large_string()).combine_chunks()
    joined = pc.binary_join_element_wise(
        roots, refs["path"].combine_chunks(), pa.scalar("/", pa.large_string())
    )
    return pc.if_else(pc.equal(roots, ""), refs["path"].combine_chunks(), joined)


def with_site_in_patient(refs: pa.Table) -> pa.Table:
    """Returns the images with patients such as `london/17`, if the images have a site.

    Patient 17 of one site and patient 17 of another are two patients. If an image of patient 17 has
    no site, it may be any of them, so they are one patient: `17`.
    """
    if SITE not in refs.column_names:
        return refs
    site = refs[SITE].cast(pa.large_string()).combine_chunks()
    patient = refs["patient"].cast(pa.large_string()).combine_chunks()
    named = pc.binary_join_element_wise(site, patient, pa.scalar("/", pa.large_string()))
    siteless = patient.filter(site.is_null()).drop_null()
    return with_column(refs, "patient", pc.if_else(pc.is_in(patient, siteless), patient, named))


def with_column(
    refs: pa.Table, name: str, values: Sequence[object] | pa.Array | pa.ChunkedArray
) -> pa.Table:
    """Returns the images with other values in a column of `REF_SCHEMA`."""
    field = REF_SCHEMA.field(name)
    if not isinstance(values, pa.ChunkedArray):
        values = pa.array(values, field.type)
    return refs.set_column(refs.schema.get_field_index(name), field, values)


def other_columns(refs: pa.Table) -> dict[str, pa.Array]:
    """Returns the columns in the struct `OTHERS`, by name; none if the images have no struct."""
    if OTHERS not in refs.column_names:
        return {}
    struct = refs[OTHERS].combine_chunks()
    return dict(zip((field.name for field in struct.type), struct.flatten(), strict=True))


def with_other_columns(refs: pa.Table, columns: Mapping[str, pa.Array]) -> pa.Table:
    """Returns the images with these columns in the struct `OTHERS`; without it if there is none."""
    if OTHERS in refs.column_names:
        refs = refs.drop_columns(OTHERS)
    if not columns:
        return refs
    struct = pa.StructArray.from_arrays(list(columns.values()), list(columns))
    return refs.append_column(OTHERS, struct)

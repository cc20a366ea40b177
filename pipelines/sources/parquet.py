"""Images in a column of Parquet files, as Hugging Face stores data sets.

The column has structs of `bytes` and `path`, or binary values. Metadata of the schema name the
classes, see https://huggingface.co/docs/datasets/about_dataset_features.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines import errors
from pipelines.sources.packing import Budget
from pipelines.sources.rows import ROW_BYTES, RowSource, split_in
from tfrecord_io.decoding.preprocess import SINGLE_SUFFIXES, TIFF_SUFFIXES
from tfrecord_io.format.kinds import NONE
from tfrecord_io.terminal.printing import counted, printable

# Binary columns of these names hold images.
_BINARY_NAMES = ("image", "img", "image_bytes")
_BINARY = (pa.binary(), pa.large_binary())
_LISTS = (pa.ListType, pa.LargeListType)

_BATCH_ROWS = 32
# Rows of other columns: a text that is stored once can stand in all of them.
_BATCH_CELLS = 1_000

# By default, Arrow reads the images of a whole row group at once.
_STREAMING = {"pre_buffer": False, "buffer_size": 1 << 20}


class ParquetSource(RowSource):
    """Images in a Parquet file, or in those of a folder.

    The name of one is `train-00000.parquet#17`, and `train-00000.parquet#17/CNV-9-1.jpeg` if the
    row has the name of a file, which may tell the patient.
    """

    kind = "parquet"

    def files(self) -> Mapping[str, Path]:
        if not self.path.is_dir():
            return super().files()
        return {name: self.path / name for name in self._names((".parquet",))}

    def _names(self, endings: tuple[str, ...]) -> list[str]:
        """Returns the names of the files below the folder that end so; of links to folders with /.

        Raises:
            OSError: if a folder cannot be listed, which os.walk alone would skip.
        """

        def fail(error: OSError) -> None:
            if not isinstance(error, NotADirectoryError):  # the path of a single file
                raise error

        return sorted(
            Path(folder, name).relative_to(self.path).as_posix()
            for folder, folders, files in os.walk(self.path, onerror=fail)
            for name in (*files, *(f"{n}/" for n in folders if Path(folder, n).is_symlink()))
            if name.lower().endswith(endings) and not name.startswith(".")
        )

    def has_images(self) -> bool:
        """Tells whether the first file has a column of images; a damaged file may have one."""
        try:
            path = next(iter(self.files().values()))
            return bool(_image_columns(pq.read_schema(path)))
        except (StopIteration, OSError):
            return False
        except pa.ArrowException:
            return self.path.is_file()

    def rows(self) -> Iterator[tuple[str, bytes]]:
        budget = self.budget()
        for name, path in self.files().items():
            with pq.ParquetFile(path, **_STREAMING) as file:
                column = _image_column(path, file)
                budget.take(_unpacked_bytes(file, column))
                batches = file.iter_batches(_BATCH_ROWS, columns=[column])
                images = (image for batch in batches for image in batch.column(0).to_pylist())
                for row, image in enumerate(images):
                    cell = image if isinstance(image, dict) else {"bytes": image}
                    content, shown = cell["bytes"], cell.get("path")
                    if content is None and shown:
                        raise errors.UserError(
                            f"--input {path}: row {row:,} has the path of an image, {shown!a}, but "
                            "not its bytes; give the folder of the images as --input, or store "
                            "them in the file, as push_to_hub of Hugging Face's datasets does"
                        )
                    yield _row_name(name, row, shown), content or b""

    def columns(self, notes: list[str]) -> dict[str, pa.ChunkedArray]:
        parts, unread = [], set[str]()
        splits = {name: split_in(*reversed(name.split("/"))) for name in self.files()}
        if any(splits.values()) and (without := [n for n, split in splits.items() if not split]):
            raise errors.UserError(
                f"--input {self.path}: the names of some files tell a split, and {without[0]} does "
                "not; rename it, such as train-0.parquet, or move it away"
            )
        with self.clear_errors():
            budget = self.budget()
            for name, path in self.files().items():
                with pq.ParquetFile(path) as file:
                    cells = _read_cells(file, name, _image_column(path, file), unread, budget)
                if split := splits[name]:
                    cells.setdefault("split", [split] * len(cells["path"]))
                parts.append(pa.table(cells))
            table = pa.concat_tables(parts, promote_options="permissive")
        if unread:
            notes.append(f"not read: the columns {', '.join(sorted(unread))} of {self.path.name}")
        pictures = (*SINGLE_SUFFIXES, *TIFF_SUFFIXES)
        for what, endings in (("picture", pictures), ("linked folder", ("/",))):
            if others := self._names(endings):
                found = f"{counted(len(others), what)} beside the Parquet files"
                notes.append(f"not read: {found}, such as {printable(others[0])}")
        return dict(zip(table.column_names, table.columns, strict=True))


def _image_columns(schema: pa.Schema) -> list[str]:
    return [
        field.name
        for field in schema
        if (pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0)
        or (field.name in _BINARY_NAMES and field.type in _BINARY)
    ]


def _unpacked_bytes(file: pq.ParquetFile, column: str) -> int:
    """Returns how many bytes a column unpacks to, as far as the metadata say it."""
    facts = file.metadata
    groups = (facts.row_group(place) for place in range(facts.num_row_groups))
    chunks = (group.column(place) for group in groups for place in range(group.num_columns))
    wanted = (c for c in chunks if c.path_in_schema.partition(".")[0] == column)
    return sum(c.total_uncompressed_size for c in wanted) + facts.num_rows * ROW_BYTES


def _image_column(path: Path, file: pq.ParquetFile) -> str:
    found = _image_columns(file.schema_arrow)
    if len(found) != 1 and "image" not in found:
        raise errors.UserError(
            f"--input {path} has the columns {', '.join(file.schema_arrow.names)}; expected one of "
            "images, which are structs with bytes, or binary values in a column image"
        )
    return "image" if "image" in found else found[0]


def _row_name(file: str, row: int, path: str | None) -> str:
    base = re.split(r"[/\\]", path or "")[-1]
    return f"{file}#{row}/{base}" if base else f"{file}#{row}"


def _read_cells(
    file: pq.ParquetFile, name: str, image: str, unread: set[str], budget: Budget
) -> dict[str, pa.ChunkedArray | pa.Array | list[str]]:
    """Returns the names of the images in an open file, `path`, and its numbers, texts and classes.

    Of the column `image` only the paths are read. Other columns are added to `unread`.
    """
    kinds = {field.name: field.type for field in file.schema_arrow if field.name != image}
    inner = {n: kind.value_type if isinstance(kind, _LISTS) else kind for n, kind in kinds.items()}
    told = [
        n for n, kind in inner.items()
        if n != "path" and not pa.types.is_nested(kind) and kind not in _BINARY
    ]  # fmt: skip
    unread |= kinds.keys() - {*told}
    budget.take(file.metadata.num_rows * ROW_BYTES)
    table = read_within(budget, file, [*told, f"{image}.path"])
    paths = [None] * file.metadata.num_rows
    if image in table.column_names:
        paths = pc.struct_field(table[image], "path").to_pylist()
    content = json.loads((file.schema_arrow.metadata or {}).get(b"huggingface", "{}"))
    features = content.get("info", {}).get("features", {})
    cells = {n: _named(table[n], _class_names(features.get(n))) for n in told}
    return cells | {"path": [_row_name(name, *pair) for pair in enumerate(paths)]}


def read_within(
    budget: Budget, file: pq.ParquetFile, columns: Sequence[str] | None = None
) -> pa.Table:
    """Returns columns of an open file, or all; raises `errors.UserError` if they are too large."""
    batches = []
    for batch in file.iter_batches(_BATCH_CELLS, columns=columns):
        budget.take(batch.nbytes + sum(map(_repeated_bytes, batch.columns)))
        batches.append(batch)
    return pa.Table.from_batches(batches).combine_chunks() if batches else file.read(columns)


def _repeated_bytes(column: pa.Array) -> int:
    """Returns how many bytes the texts of a column with a dictionary take without it, or 0."""
    if not (pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type)):
        return 0
    return pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0


def _class_names(feature: Any) -> list[str]:
    """Returns the names of a ClassLabel, or of a list of them; empty for anything else."""
    while isinstance(feature, list) or "feature" in (feature or {}):
        feature = feature[0] if isinstance(feature, list) else feature["feature"]
    return (feature or {}).get("names", [])


def _named(column: pa.ChunkedArray, names: list[str]) -> pa.ChunkedArray | pa.Array:
    """Returns a column with the names of classes for their numbers, and lists as one text."""
    if isinstance(column.type, _LISTS):
        texts = (
            None if row is None else "|".join(str(names[k] if names else k) for k in row) or NONE
            for row in column.to_pylist()
        )
        return pa.array(texts, pa.string())
    if not names or not pa.types.is_integer(column.type):
        return column
    # -1 stands for no label, as in the test splits of challenges.
    places = pc.if_else(pc.less(column, 0), None, column).combine_chunks()
    return pa.DictionaryArray.from_arrays(places, [name.strip() for name in names])

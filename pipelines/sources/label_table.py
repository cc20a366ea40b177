"""A table of labels: a row for each image, with its class, patient and split.

Two kinds of file are read: CSV (with commas, semicolons or tabs) and Parquet. The columns are
`path` and `label`, and if they are there `patient` and `split`.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from pipelines import errors

_REQUIRED = ("path", "label")
_OPTIONAL = ("patient", "split")
_DELIMITERS = (",", ";", "\t")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelTable:
    """The rows of a label table.

    Attributes:
        name: of its file, for messages.
        path: of each row's image, with `/` between folders.
        label: of each row; "" if the table gives none.
        patient: of each row, None where the table gives none; None without such a column.
        split: likewise.
        unused: other columns of the file.
    """

    name: str
    path: Sequence[str]
    label: Sequence[str]
    patient: Sequence[str | None] | None
    split: Sequence[str | None] | None
    unused: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Hexadecimal SHA-256 of the rows, whatever their order and kind of file."""
        columns = [self.path, self.label, self.patient, self.split]
        present = [column for column in columns if column is not None]
        names = [column is not None for column in columns]
        digest = hashlib.sha256(repr(names).encode())
        for row in sorted(zip(*present, strict=True), key=repr):
            digest.update(repr(row).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Matches:
    """Which row of a table belongs to which file.

    Attributes:
        row_of_file: int64 [files], -1 for a file without a row.
        rows_without_file: (row, why) of the others; rows count from 0.
    """

    row_of_file: np.ndarray
    rows_without_file: list[tuple[int, str]]


def read_label_table(file: Path) -> LabelTable:
    """Reads a label table.

    Raises:
        errors.UserError: if the file cannot be read, or has no `path` or no `label` column.
    """
    try:
        table = _read_parquet(file) if file.suffix.lower() == ".parquet" else _read_csv(file)
    except (OSError, pa.ArrowException) as error:
        raise errors.UserError(f"--labels {file} could not be read: {error}") from None
    missing = [name for name in _REQUIRED if name not in table.column_names]
    if missing:
        raise errors.UserError(
            f"--labels {file} has the columns {', '.join(table.column_names)}, and needs "
            f"{' and '.join(missing)}"
        )
    columns = {
        name: table[name].cast(pa.string()).to_pylist()
        for name in (*_REQUIRED, *_OPTIONAL)
        if name in table.column_names
    }
    return LabelTable(
        name=file.name,
        path=[_normal(path or "") for path in columns["path"]],
        label=[label or "" for label in columns["label"]],
        patient=_optional(columns.get("patient")),
        split=_optional(columns.get("split")),
        unused=tuple(name for name in table.column_names if name not in columns),
    )


def match_files(names: Sequence[str], table: LabelTable) -> Matches:
    """Finds the row of each file.

    A row belongs to the file whose name in the source is its path. If there is none, it belongs to
    the file whose name ends with its path, if there is only one: so a table may leave out the
    leading folders, or all of them.

    Args:
        names: of the files, with `/` between folders.
        table: the rows.

    Raises:
        errors.UserError: if two rows belong to one file.
    """
    by_name = {name: place for place, name in enumerate(names)}
    by_base: dict[str, list[int]] = collections.defaultdict(list)
    for place, name in enumerate(names):
        by_base[name.rpartition("/")[2]].append(place)
    row_of_file = np.full(len(names), -1, np.int64)
    without: list[tuple[int, str]] = []
    for row, path in enumerate(table.path):
        place = by_name.get(path)
        if place is None:
            ending = [
                place
                for place in by_base.get(path.rpartition("/")[2], ())
                if names[place].endswith(f"/{path}")
            ]
            if len(ending) != 1:
                without.append((row, _why_without(names, ending)))
                continue
            (place,) = ending
        if row_of_file[place] >= 0:
            raise errors.UserError(
                f"--labels {table.name}: rows {row_of_file[place] + 1:,} and {row + 1:,} both name "
                f"{names[place]!a}; a file needs one row"
            )
        row_of_file[place] = row
    return Matches(row_of_file=row_of_file, rows_without_file=without)


def _why_without(names: Sequence[str], places: Sequence[int]) -> str:
    if not places:
        return "the source has no such file"
    shown = ", ".join(ascii(names[place]) for place in places[:2])
    return f"{len(places):,} files end with this path, such as {shown}; give more of it"


def _normal(path: str) -> str:
    """Returns a path as sources write it: `/` between folders, and no `./` in front."""
    path = path.strip().replace("\\", "/")
    while path.startswith("./"):
        path = path[2:]
    return path.lstrip("/")


def _optional(column: list[str | None] | None) -> list[str | None] | None:
    return None if column is None else [value or None for value in column]


def _read_parquet(file: Path) -> pa.Table:
    return pq.read_table(file)


def _read_csv(file: Path) -> pa.Table:
    """Reads every column as text, so that a patient 007 stays 007."""
    with file.open(encoding="utf-8-sig", errors="replace") as lines:
        header = lines.readline()
    delimiter = max(_DELIMITERS, key=header.count)
    parse = pacsv.ParseOptions(delimiter=delimiter)
    with pacsv.open_csv(file, parse_options=parse) as reader:
        names = reader.schema.names
    return pacsv.read_csv(
        file,
        parse_options=parse,
        convert_options=pacsv.ConvertOptions(
            column_types={name: pa.string() for name in names}, strings_can_be_null=False
        ),
    )

"""A table of labels: a row for each image, with its class, patient and split.

The columns are `path` and `label`, and if they are there `patient`, `split` and `site`. Instead of
`label`, another column may hold the class or a number, or several columns a 0 or a 1 for each
label. Other columns become columns of examples.parquet; one of them, `weight`, says how much an
example counts in training. A cell without a value is null in all of them.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from pipelines import errors
from tfrecord_io.kinds import CLASSES, LabelKind, number_text
from tfrecord_io.manifest import WEIGHT

#: Columns that a table may have besides `path` and the labels, each with a meaning of its own.
OPTIONAL = ("patient", "split", "site")

#: Texts of a CSV cell that has no value: the `na_values` of `pandas.read_csv`, written exactly so.
MISSING = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip

# Text of a CSV column that becomes a number: no leading zeros, which a code such as 007 has, no
# exponents, which a code such as 1E5 may be, and no more digits than the type keeps.
_NUMBERS = (
    (r"^(0|-?[1-9][0-9]{0,17})$", pa.int64()),
    (r"^(0|-?[1-9][0-9]{0,8}|-?(0|[1-9][0-9]{0,8})\.[0-9]{1,6})$", pa.float64()),
)

# What two columns must hold in each row, and for what.
_EXPECTED = {
    "site": "which is part of the patient; expected a site in each row, such as unknown (a site "
    "named NA needs --missing '')",
    WEIGHT: "by which images count in training; expected a number of at least 0",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelTable:
    """The rows of a label table.

    Attributes:
        name: of its file, for messages.
        cells: the path of each row's image, with `/` between folders, its label ("" if the table
            gives none; `tfrecord_io.kinds` defines the text of several labels and of a number), and
            of the columns `OPTIONAL` those that the table has, None where it gives no value.
        others: the other columns of the file, by name.
        not_numbers: what the table has instead of a finite number, by row.
        notes: what the user should know, one sentence each; they name columns of the table.
    """

    name: str
    cells: Mapping[str, Sequence[str | None]]
    others: Mapping[str, pa.ChunkedArray] = dataclasses.field(default_factory=dict)
    not_numbers: Mapping[int, str] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def facts(self, row: int) -> tuple[object, ...]:
        """Returns what the table says of a row's image, besides other columns."""
        told = [cells[row] for name, cells in self.cells.items() if name != "path"]
        return (self.not_numbers.get(row), *told)

    def problem_of(self, row: int) -> tuple[str, str] | None:
        """Returns (reason, detail) if a row gives its image no label, otherwise None."""
        told = f"row {row + 1} of {self.name} has"
        if row in self.not_numbers:
            return "not_a_number", f"{told} {self.not_numbers[row]!a}"
        if not self.cells["label"][row]:
            return "no_label", f"{told} no label (see --missing)"
        return None

    @property
    def digest(self) -> str:
        """Hexadecimal SHA-256 of the rows, whatever their order and kind of file."""
        names = ("path", "label", "patient", "split")
        present = [self.cells[name] for name in names if name in self.cells]
        digest = hashlib.sha256(repr([name in self.cells for name in names]).encode())
        # Absent without a site or other columns, so that such tables keep their digest.
        if "site" in self.cells:
            digest.update(b"site")
            present.append(self.cells["site"])
        if self.others:
            types = [(name, str(column.type)) for name, column in self.others.items()]
            digest.update(repr(types).encode())
            present += [column.to_pylist() for column in self.others.values()]
        for row in sorted(zip(*present, strict=True), key=repr):
            digest.update(repr(row).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def read_label_table(
    file: Path,
    *,
    kind: LabelKind = CLASSES,
    columns: Sequence[str] = ("label",),
    missing: Sequence[str] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> LabelTable:
    """Reads a label table.

    Args:
        file: CSV (with commas, semicolons or tabs) or Parquet.
        kind: what an image's label can be.
        columns: those of the label.
        missing: texts of cells that have no value; by default `MISSING` in CSV, none in Parquet.
        renamed: columns of the file by the names that they get, see `--columns`.

    Raises:
        errors.UserError: if the file or one of its columns cannot be read, `path` or a label column
            is missing, a column has the name of another column, a label is neither 0 nor 1, a row
            has no site, or a weight is not a number of at least 0.
    """
    notes: list[str] = []
    is_csv = file.suffix.lower() != ".parquet"
    cells = _renamed(file, _read_cells(file, is_csv), renamed or {}, notes)
    if absent := [name for name in ("path", *columns) if name not in cells]:
        raise errors.UserError(
            f"--labels {file} has {_shown(cells)}, and needs {' and '.join(absent)}; name yours "
            f"with --columns {','.join(f'{name}=COLUMN' for name in absent)}"
        )
    used = ("path", *columns, *OPTIONAL)
    others = [name for name in cells if name not in used]
    without_value = ("", *(MISSING if missing is None else missing)) if is_csv else missing or ()
    _put_nulls(cells, without_value, notes)
    for name in others:
        cells[name] = _with_numbers(cells[name]) if is_csv else _readable(file, name, cells[name])
    texts = {name: _as_text(file, name, cells[name]) for name in (*used, WEIGHT) if name in cells}
    if "site" in texts:
        texts["site"] = [(site or "").strip() for site in texts["site"]]
    for name, expected in _EXPECTED.items():
        for row, text in enumerate(() if name in columns else texts.get(name, ()), 1):
            if not _is_right(name, text or ""):
                raise errors.UserError(
                    f"--labels {file}: row {row:,} has {text or ''!a} in the column {name}, "
                    f"{expected}. Rename the column if it means something else"
                )
    if WEIGHT in others:
        weights = pa.array([float(text or "") for text in texts[WEIGHT]], pa.float64())
        cells[WEIGHT] = pa.chunked_array([weights])
    try:
        label, not_numbers = kind.read_columns({name: texts[name] for name in columns})
    except ValueError as error:
        raise errors.UserError(f"--labels {file}: {error}") from None
    # As sources write it: `/` between folders, and no `./` in front.
    plain = ((path or "").strip().replace("\\", "/") for path in texts["path"])
    path = [re.sub("^(\\./)*/*", "", path) for path in plain]
    optional = {name: [cell or None for cell in texts[name]] for name in OPTIONAL if name in texts}
    return LabelTable(
        name=file.name,
        cells={"path": path, "label": label, **optional},
        others={name: cells[name] for name in others},
        not_numbers=not_numbers,
        notes=tuple(notes),
    )


def _is_right(name: str, text: str) -> bool:
    if name == "site":
        return bool(text)
    return number_text(text) is not None and 0 <= float(text) < math.inf


def _shown(names: Collection[str]) -> str:
    return f"the columns {', '.join(list(names)[:30])}{', ...' if len(names) > 30 else ''}"


def _read_cells(file: Path, is_csv: bool) -> dict[str, pa.ChunkedArray]:
    """Returns the columns of a table by name, without a dictionary or views.

    They are not in an Arrow table, which would be copied for each column that changes. An Arrow
    file, as the plan is, can hold one dictionary for each column; batches may have several.
    """
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    columns = []
    try:
        table = _read_csv(file) if is_csv else pq.read_table(file)
        for column in table.columns:
            is_encoded = pa.types.is_dictionary(column.type)
            kind = column.type.value_type if is_encoded else column.type
            columns.append(column.cast(plain.get(kind, kind)))
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        expected = "" if isinstance(error, OSError) else "; expected Parquet, or CSV in UTF-8"
        raise errors.UserError(f"--labels {file} could not be read: {error}{expected}") from None
    counts = collections.Counter(table.column_names)
    if repeated := sorted(name for name, count in counts.items() if count > 1):
        raise errors.UserError(
            f"--labels {file} has the column {', '.join(repeated)} more than once; rename it, or "
            "leave it out"
        )
    return dict(zip(table.column_names, columns, strict=True))


def _read_csv(file: Path) -> pa.Table:
    """Reads the columns as text, so that a patient 007 stays 007."""
    with file.open("rb") as opened:
        header = opened.readline()
    delimiter = max(",;\t", key=header.decode(errors="replace").count)
    # By default Arrow cuts the file into blocks at any line break, also at one within quotes.
    parse = pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    with pacsv.open_csv(file, parse_options=parse) as reader:
        types = {name: pa.string() for name in reader.schema.names}
    convert = pacsv.ConvertOptions(column_types=types, strings_can_be_null=False)
    return pacsv.read_csv(file, parse_options=parse, convert_options=convert)


def _renamed(
    file: Path,
    cells: dict[str, pa.ChunkedArray],
    renamed: Mapping[str, str],
    notes: list[str],
) -> dict[str, pa.ChunkedArray]:
    """Returns the columns with the names of `--columns`; notes those that are left out."""
    if cells.pop("", None) is not None:  # the row numbers that pandas and R write
        notes.append("left out the column without a name of the table of --labels")
    found: dict[str, pa.ChunkedArray] = {}
    used = set[str]()
    for name, wanted in renamed.items():
        parts = [wanted] if wanted in cells else wanted.split("/")
        if absent := [part for part in parts if part not in cells]:
            raise errors.UserError(
                f"--columns {name}={wanted}: --labels {file} has no column {' or '.join(absent)}; "
                f"it has {_shown(cells)}"
            )
        used.update(parts)
        found[name] = cells[parts[0]]
        if len(parts) > 1:
            texts = [cells[part].cast(pa.string()) for part in parts]
            found[name] = pc.binary_join_element_wise(*texts, "/")
    kept = {name: column for name, column in cells.items() if name not in used}
    if taken := kept.keys() & found.keys():
        notes.append(
            f"left out the column {', '.join(sorted(taken))} of the table of --labels, whose place "
            "another one takes by --columns"
        )
    return kept | found


def _readable(file: Path, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column with times in microseconds, the finest that Python has.

    Raises:
        errors.UserError: if that loses a digit, or Python cannot read a value for another reason.
    """
    kind = column.type
    try:
        if pa.types.is_timestamp(kind) and kind.unit == "ns":
            column = column.cast(pa.timestamp("us", kind.tz))
        if "[ns" not in str(column.type):
            column.to_pylist()
            return column
    except (ValueError, OverflowError, LookupError):
        pass
    raise errors.UserError(
        f"--labels {file}: the column {name} ({kind}) has values that Python cannot read, such as "
        "nanoseconds or an unknown time zone; store it as text, or leave it out"
    )


def _put_nulls(
    cells: dict[str, pa.ChunkedArray], missing: Collection[str], notes: list[str]
) -> None:
    """Puts null in place of NaN and of the texts `missing`, except in paths; notes how often."""
    written = set[str]()
    counts = []
    for name, column in [(name, column) for name, column in cells.items() if name != "path"]:
        if pa.types.is_floating(column.type):
            cells[name] = pc.if_else(pc.is_nan(column), None, column)
        elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            is_missing = pc.is_in(column, pa.array(missing, column.type))
            written.update(column.filter(is_missing).unique().to_pylist())
            cells[name] = pc.if_else(is_missing, None, column)
        if num_missing := cells[name].null_count:
            counts.append(f"{num_missing:,} in {name}")
    if counts:
        texts = " or ".join(map(ascii, sorted(written)))
        how = f" (written {texts}; --missing says which texts count as none)" if texts else ""
        notes.append(f"cells without a value in the table of --labels: {', '.join(counts)}{how}")


def _with_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column of text as numbers if all of it that is not null is numbers."""
    for pattern, kind in _NUMBERS:
        is_number = pc.match_substring_regex(column, pattern)
        if column.null_count < len(column) and pc.all(is_number).as_py():
            return column.cast(kind)
    return column


def _as_text(file: Path, name: str, column: pa.ChunkedArray) -> list[str | None]:
    try:
        return column.cast(pa.string()).to_pylist()
    except pa.ArrowException:
        raise errors.UserError(
            f"--labels {file}: expected text or numbers in the column {name}, received "
            f"{column.type}"
        ) from None

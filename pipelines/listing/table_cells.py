"""Reads the cells of a table: those without a value, numbers, and the labels in one or more."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing.table_files import FAULT, Columns, is_text, read_columns
from tfrecord_io.format import kinds
from tfrecord_io.format.kinds import MULTI_LABEL, NONE, SEPARATOR, LabelKind

#: Texts of a CSV cell that has no value: the `na_values` of `pandas.read_csv`, written exactly so,
#: and the errors of formulas, which in Excel stand for a value, too.
MISSING = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
    "#DIV/0!", "#NAME?", "#NULL!", "#NUM!", "#REF!", "#VALUE!",
)  # fmt: skip

# Text of a CSV column that becomes a number: no leading zeros, which a code such as 007 has, no
# exponents, which a code such as 1E5 may be, and no more digits than the type keeps.
_NUMBERS = (
    (r"^(0|-?[1-9][0-9]{0,17})$", pa.int64()),
    (r"^(0|-?[1-9][0-9]{0,8}|-?(0|[1-9][0-9]{0,8})\.[0-9]{1,6})$", pa.float64()),
)


def read_texts(file: Path, flag: str, names: Collection[str]) -> dict[str, list[str | None]]:
    """Returns those of some columns that the table of a flag has, read as those of `--labels`.

    Raises:
        errors.UserError: if it cannot be read.
    """
    columns = read_columns(file, [], flag)
    with naming(f"{flag} {file}"):
        columns = without_faults(columns)
        cells = {name: cells for name, cells in columns.items() if name in names}
        cells = read_cells(is_text(file), cells, names, None, [])
    return {name: column.to_pylist() for name, column in cells.items()}


@contextlib.contextmanager
def naming(file: str) -> Iterator[None]:
    """Turns a ValueError about the content of a table into an error that names the file."""
    try:
        yield
    except ValueError as error:
        raise errors.UserError(f"{file}: {error}") from None


def without_faults(columns: Columns) -> Columns:
    """Returns the columns of a table in which no row is wrong; raises a ValueError if one is."""
    faults = columns.get(FAULT)
    if faults and (fault := next(filter(None, faults.to_pylist()), None)):
        raise ValueError(f"{fault}; correct the row, or remove it")
    return {name: column for name, column in columns.items() if name != FAULT}


def read_cells(
    has_texts: bool,
    cells: Columns,
    used: Collection[str],
    missing: Sequence[str] | None,
    notes: list[str],
) -> Columns:
    """Reads each cell: null for no value, which `notes` counts; `read_columns` stripped the text.

    Columns in `used` are text afterwards, where a whole number is written without `.0`; paths are
    never missing, and as sources write them: `/` between folders, and no `./` in front. The others
    become numbers if all their cells are.

    Raises:
        ValueError: if a column cannot be read.
    """
    missing = (MISSING if has_texts else ()) if missing is None else missing
    read: Columns = {}
    written, counts = set[str](), []
    for name, column in cells.items():
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        texts = ("",) if name == "path" else ("", *missing)
        column = _as_text(name, column) if name in used else column
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            is_missing = pc.is_in(column, pa.array(texts, column.type))
            written.update(column.filter(is_missing).unique().to_pylist())
            column = pc.if_else(is_missing, None, column)
            if has_texts and name != "path":
                column = _without_point(column) if name in used else _with_numbers(column)
        else:
            column = _readable(name, column)
        if name == "path":
            plain = pc.replace_substring(pc.fill_null(column, ""), "\\", "/")
            column = pc.replace_substring_regex(plain, r"^(\./)*/*", "")
        read[name] = _without_nan(column)
        if name != "path" and (num_missing := read[name].null_count):
            counts.append(f"{num_missing:,} in {name}")
    if counts:
        shown = " or ".join(map(ascii, sorted(written)))
        how = f" (written {shown}; --missing says which texts count as none)" if shown else ""
        note = f"cells without a value in the table of --labels: {', '.join(counts)}{how}"
        notes.append(note)
    return read


def _without_nan(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column of floats with null for NaN, and 0 for -0; any other one as it is."""
    if not pa.types.is_floating(column.type):
        return column
    column = pc.if_else(pc.is_nan(column), None, column)
    return pc.add(column.cast(pa.float64()), 0.0).cast(column.type)


def _without_point(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column of text with 1 for 1.0, as pandas writes it beside a cell without a value.

    Only if all cells are whole numbers: `1.0` may be a version, and 250.00 a code.
    """
    is_whole = pc.match_substring_regex(column, r"^-?(0|[1-9][0-9]{0,17})(\.0)?$")
    plain = pc.replace_substring_regex(column, r"^-?(0)(\.0)?$|\.0$", r"\1")
    return plain if pc.all(is_whole).as_py() else column


def _with_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column of text as numbers if all of it that is not null is numbers."""
    for pattern, kind in _NUMBERS:
        is_number = pc.match_substring_regex(column, pattern)
        if column.null_count < len(column) and pc.all(is_number).as_py():
            return column.cast(kind)
    return column


def _readable(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column with times in microseconds, the finest that Python has."""
    kind = column.type
    with contextlib.suppress(ValueError, OverflowError, LookupError):
        if pa.types.is_timestamp(kind) and kind.unit == "ns":
            column = column.cast(pa.timestamp("us", kind.tz))
        if "[ns" not in str(column.type):
            column.to_pylist()
            return column
    raise ValueError(
        f"the column {name} ({kind}) has values that Python cannot read, such as "
        "nanoseconds or an unknown time zone; store it as text, or leave it out"
    )


def _as_text(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    column = _without_nan(column)
    try:
        if pa.types.is_floating(column.type):
            # Only if all are whole: Arrow would write 10^14 with an exponent.
            with contextlib.suppress(pa.ArrowInvalid):
                column = column.cast(pa.int64())
        return column.cast(pa.string())
    except pa.ArrowException:
        raise ValueError(
            f"expected text or numbers in the column {name}, received {column.type}"
        ) from None


def read_labels(
    columns: kinds.Columns, kind: LabelKind, uncertain: str | None
) -> tuple[list[str], dict[int, str]]:
    """Returns what `LabelKind.read_columns` does; a class may have several columns, of 0 and 1.

    `uncertain` is what -1 means in a column of 0 and 1: `positive`, `negative` or `missing`.

    Raises:
        ValueError: if a cell shows that its column holds something else, or a row has two classes.
    """
    is_one_hot = kind.one_hot and len(columns) > 1
    if uncertain:
        meant = {"positive": "1", "negative": "0", "missing": None}[uncertain]
        columns = {
            name: [meant if cell in ("-1", "-1.0") else cell for cell in cells]
            for name, cells in columns.items()
        }
    texts, wrong = (MULTI_LABEL if is_one_hot else kind).read_columns(columns)
    for row, text in enumerate(texts if is_one_hot else (), 1):
        if len(MULTI_LABEL.names_in(text)) > 1:
            raise ValueError(f"row {row:,} has a 1 for {text}; --one_class expects a single one")
    return ["" if is_one_hot and text == NONE else text for text in texts], wrong


def split_labels(columns: kinds.Columns, separator: str) -> tuple[list[str], tuple[str, ...]]:
    """Returns the text of the labels in each cell, and the names of all labels, sorted.

    Raises:
        ValueError: if a label has a character that no name may have.
    """
    (cells,) = columns.values()
    parts = [{part.strip() for part in (cell or "").split(separator)} - {""} for cell in cells]
    names = tuple(sorted(set[str]().union(*parts) - {NONE}))
    if wrong := [name for name in names if SEPARATOR in name]:
        raise ValueError(f"a label cannot have {SEPARATOR} in its name; received {wrong[0]!a}")
    texts = [MULTI_LABEL.text_of([name for name in names if name in part]) for part in parts]
    return [text if part else "" for text, part in zip(texts, parts, strict=True)], names

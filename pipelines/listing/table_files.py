"""Reads the file of a table into columns: CSV as text, so that a patient 007 stays 007; Parquet."""

from __future__ import annotations

import collections
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from pipelines import errors

#: The columns of a table by name, without a dictionary or views. They are not in an Arrow table,
#: which would be copied for each column that changes.
Columns = dict[str, pa.ChunkedArray]


def read_columns(file: Path, notes: list[str]) -> Columns:
    """Returns the columns of a table; of any file but Parquet they are text.

    Args:
        file: CSV (with commas, semicolons or tabs) or Parquet.
        notes: takes what the user should know.

    Raises:
        errors.UserError: if the file cannot be read, or two columns have the same name.
    """
    try:
        table = _read_csv(file, notes) if is_text(file) else pq.read_table(file)
        columns = list(map(_plain, table.columns))
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        expected = "" if isinstance(error, OSError) else "; expected CSV or Parquet"
        raise errors.UserError(f"--labels {file} could not be read: {error}{expected}") from None
    names = [name.strip() for name in table.column_names]
    counts = collections.Counter(names)
    if repeated := sorted(name for name, count in counts.items() if count > 1):
        raise errors.UserError(
            f"--labels {file} has the column {', '.join(repeated)} more than once; rename it, or "
            "leave it out"
        )
    return dict(zip(names, columns, strict=True))


def is_text(file: Path) -> bool:
    """Tells whether all cells of a file are text, so that a text may stand for no value."""
    return file.suffix.lower() != ".parquet"


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column without spaces around texts, views, or dictionaries.

    Batches may have several dictionaries, and an Arrow file, as the plan is, one for each column.
    """
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    is_encoded = pa.types.is_dictionary(column.type)
    kind = column.type.value_type if is_encoded else column.type
    column = column.cast(plain.get(kind, kind))
    has_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    return pc.utf8_trim_whitespace(column) if has_text else column


def _decoded(file: Path, notes: list[str]) -> str:
    """Returns the text of a file in UTF-8, UTF-16 or, where neither fits, Windows-1252."""
    content = file.read_bytes()
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = content.decode("cp1252")
        shown = text[max(error.start - 10, 0) : error.start + 10].split("\n")[0]
        notes.append(
            f"the table of --labels is not UTF-8 and was read as Windows-1252: {shown!r}; if that "
            "is wrong, store it as UTF-8"
        )
        return text


def _read_csv(file: Path, notes: list[str]) -> pa.Table:
    text = _decoded(file, notes)
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    # By default Arrow cuts the file into blocks at any line break, also at one within quotes.
    parse = pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    content = pa.py_buffer(text.encode())
    with pacsv.open_csv(pa.BufferReader(content), parse_options=parse) as reader:
        types = {name: pa.string() for name in reader.schema.names}
    convert = pacsv.ConvertOptions(column_types=types, strings_can_be_null=False)
    return pacsv.read_csv(pa.BufferReader(content), parse_options=parse, convert_options=convert)

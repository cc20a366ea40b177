"""Reads the file of a table into columns: all but Parquet as text, so that a patient 007 stays 007.

CSV has commas, semicolons or tabs; of Excel the first sheet is read; JSON is a list of objects, an
object for each line, or an object of columns, as pandas writes it.
"""

from __future__ import annotations

import collections
import importlib.util
import itertools
import json
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from pipelines import errors
from pipelines.sources.archive import Budget
from pipelines.sources.parquet import read_within
from tfrecord_io.format.person import column_in_one_form
from tfrecord_io.terminal.spelling import one_form

#: The columns of a table by name, without a dictionary or views. They are not in an Arrow table,
#: which would be copied for each column that changes.
Columns = dict[str, pa.ChunkedArray]

_EXPECTED = ".csv, .parquet, .xlsx, .json or .jsonl"


def read_columns(file: Path, notes: list[str]) -> Columns:
    """Returns the columns of a table; of any file but Parquet they are text.

    Args:
        file: CSV, Parquet (`.parquet`), Excel (`.xlsx`) or JSON (`.json`, `.jsonl`).
        notes: takes what the user should know.

    Raises:
        errors.UserError: if the file cannot be read, or two columns have the same name.
    """
    try:
        table = _read_table(file, notes)
        columns = list(map(_plain, table.columns))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, pa.ArrowException) as error:
        expected = "" if isinstance(error, OSError) else f"; expected {_EXPECTED}"
        raise errors.UserError(f"--labels {file} could not be read: {error}{expected}") from None
    names = [one_form(name).strip() for name in table.column_names]
    counts = collections.Counter(names)
    if counts.pop("", 0):  # the row numbers of pandas and R, and what spreadsheets leave behind
        notes.append("left out what the table of --labels has in columns without a name")
    if repeated := sorted(name for name, count in counts.items() if count > 1):
        raise errors.UserError(
            f"--labels {file} has the column {', '.join(repeated)} more than once; rename it, or "
            "leave it out"
        )
    return in_one_form(dict(zip(names, columns, strict=True)))


def in_one_form(columns: Columns) -> Columns:
    """Returns the columns that have a name, with names and texts in `spelling.one_form`."""
    return {
        one_form(name): pa.chunked_array(map(_normalized, column.chunks), column.type)
        for name, column in columns.items()
        if name
    }


def _normalized(cells: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(cells.type):
        names = _normalized(cells.dictionary)
        return pa.DictionaryArray.from_arrays(cells.indices, names, ordered=cells.type.ordered)
    has_text = pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type)
    return column_in_one_form(cells) if has_text else cells


def is_text(file: Path) -> bool:
    """Tells whether all cells of a file are text, so that a text may stand for no value."""
    return not (file.suffix.lower() in (".parquet", ".npz") or file.is_dir())


def _read_table(file: Path, notes: list[str]) -> pa.Table:
    ending = file.suffix.lower()
    budget = Budget(file, file.stat().st_size)
    if ending == ".parquet":
        with pq.ParquetFile(file) as table:
            return read_within(budget, table)
    if ending == ".xlsx":
        with zipfile.ZipFile(file) as archive:
            budget.take(sum(info.file_size for info in archive.infolist()))
        return _read_excel(file, notes)
    text = _decoded(file, notes)
    return _read_json(text) if ending in (".json", ".jsonl") else _read_csv(text)


def _read_excel(file: Path, notes: list[str]) -> pa.Table:
    if importlib.util.find_spec("openpyxl") is None:
        raise errors.UserError(f"--labels {file}: Excel needs openpyxl; pip install openpyxl")
    import openpyxl

    book = openpyxl.load_workbook(file, read_only=True, data_only=True)
    sheet = book.worksheets[0]
    if len(book.worksheets) > 1:
        notes.append(f"of the table of --labels the first sheet was read, {sheet.title!r}")
    header, *rows = [*sheet.iter_rows(values_only=True)] or [()]
    return _table_of(header, [row for row in rows if any(cell is not None for cell in row)])


def _read_json(text: str) -> pa.Table:
    try:
        content = json.loads(text)
    except json.JSONDecodeError:  # an object for each line
        content = [json.loads(line) for line in text.splitlines() if line.strip()]
    if isinstance(content, dict):
        columns = [[*c.values()] if isinstance(c, dict) else c for c in content.values()]
        if not all(isinstance(c, list) for c in columns) or len({*map(len, columns)}) > 1:
            raise ValueError("the object does not hold columns of one length")
        return _table_of(list(content), zip(*columns, strict=True))
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise ValueError("it is not a list of objects")
    names = list(dict.fromkeys(name for row in content for name in row))
    return _table_of(names, ([row.get(name) for name in names] for row in content))


def _table_of(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> pa.Table:
    columns = itertools.islice(itertools.zip_longest(header, *rows), len(header))
    texts = [[_text(cell) for cell in column] for column in columns]
    named = [(name, pa.array(cells, pa.string())) for name, *cells in texts if name]
    return pa.table([column for _, column in named], names=[name for name, _ in named])


def _text(cell: Any) -> str:
    """Returns the text that a cell of Excel or JSON would have in CSV."""
    if isinstance(cell, list):
        return "|".join(map(_text, cell))
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, dict):
        return json.dumps(cell)
    return "" if cell is None else str(cell).removesuffix(" 00:00:00")


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
    if content[:1000].count(0) > 100:
        raise ValueError("it is not a text")
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


def _read_csv(text: str) -> pa.Table:
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    # By default Arrow cuts the file into blocks at any line break, also at one within quotes.
    parse = pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    content = pa.py_buffer(text.encode())
    with pacsv.open_csv(pa.BufferReader(content), parse_options=parse) as reader:
        types = {name: pa.string() for name in reader.schema.names}
    convert = pacsv.ConvertOptions(column_types=types, strings_can_be_null=False)
    return pacsv.read_csv(pa.BufferReader(content), parse_options=parse, convert_options=convert)

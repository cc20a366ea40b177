"""Reads the file of a table into columns: all but Parquet as text, so that a patient 007 stays 007.

CSV has commas, semicolons or tabs, or what a first line such as `sep=;` says; of Excel the first
sheet is read; JSON is a list of objects, an object for each line, or an object of columns, as
pandas writes it. Above the header there may be lines of comments and titles.
"""

from __future__ import annotations

import collections
import contextlib
import csv
import importlib.util
import io
import itertools
import json
import re
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from pipelines import errors
from pipelines.sources.packing import Budget, read_within
from tfrecord_io.format.examples import SITE
from tfrecord_io.format.person import column_in_one_form
from tfrecord_io.terminal.printing import counted
from tfrecord_io.terminal.spelling import one_form

#: Columns that a table may have besides `path` and the labels, each with a meaning of its own.
OPTIONAL = ("patient", "split", SITE)

#: The columns of a table by name, without a dictionary or views. They are not in an Arrow table,
#: which would be copied for each column that changes.
Columns = dict[str, pa.ChunkedArray]

#: A column with what is wrong with a row, which matters only if the row is used. No column of a
#: file has this name.
FAULT = ""

#: A note, which holds as long as a cell is not ASCII: that may be one of a person who is excluded.
NOT_UTF_8 = "the table of --labels is not UTF-8 and was read as Windows-1252"

_EXPECTED = ".csv, .parquet, .xlsx, .json or .jsonl"

# The header is looked for in so many rows, and these names are those of columns.
_MOST_ABOVE = 20
_USUAL = frozenset({"path", "label", *OPTIONAL})

# Number formats of Excel that pad with zeros behind a short text, such as 000 or "P-"000.
_PADDED = re.compile(r'(?:"([^"]*)"|\\(.))?(0{2,})(?:\\ )?')


def read_columns(file: Path, notes: list[str], flag: str = "--labels") -> Columns:
    """Returns the columns of a table, with `FAULT`; of any file but Parquet they are text.

    `notes` takes what the user should know; `flag` is the one that names the file.

    Raises:
        errors.UserError: if the file cannot be read, or two columns have the same name.
    """
    faults = dict[int, str]()
    try:
        table = _read_table(file, notes, faults)
        columns = list(map(_plain, table.columns))
    except errors.ToldError:
        raise
    except Exception as error:  # for damaged bytes, openpyxl and others raise almost anything
        expected = "" if isinstance(error, OSError) else f"; expected {_EXPECTED}"
        raise errors.UserError(f"{flag} {file} could not be read: {error}{expected}") from None
    names = [one_form(name).strip() for name in table.column_names]
    counts = collections.Counter(names)
    if counts.pop("", 0):  # the row numbers of pandas and R, and what spreadsheets leave behind
        notes.append("left out what the table of --labels has in columns without a name")
    if repeated := sorted(name for name, count in counts.items() if count > 1):
        raise errors.UserError(
            f"{flag} {file} has the column {', '.join(repeated)} more than once; rename it, or "
            "leave it out"
        )
    found = in_one_form(dict(zip(names, columns, strict=True)))
    if faults:
        told = (faults.get(row) for row in range(table.num_rows))
        texts = [text and f"{text} in {file.name}" for text in told]
        found[FAULT] = pa.chunked_array([texts], pa.string())
    return found


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


def _read_table(file: Path, notes: list[str], faults: dict[int, str]) -> pa.Table:
    ending = file.suffix.lower()
    budget = Budget(file, file.stat().st_size)
    if ending == ".parquet":
        with pq.ParquetFile(file) as table:
            return read_within(budget, table)
    if ending == ".xlsx":
        with zipfile.ZipFile(file) as archive:
            budget.take(sum(info.file_size for info in archive.infolist()))
        return _read_excel(file, notes, faults)
    text = _decoded(file, notes)
    if ending in (".json", ".jsonl"):
        return _read_json(text, is_lines=ending == ".jsonl")
    return _read_csv(text, notes, faults)


def _read_excel(file: Path, notes: list[str], faults: dict[int, str]) -> pa.Table:
    if importlib.util.find_spec("openpyxl") is None:
        raise errors.UserError(f"{file}: Excel needs openpyxl; pip install openpyxl")
    from openpyxl.reader.excel import ExcelReader
    from openpyxl.utils import range_boundaries

    reader = ExcelReader(file, read_only=True, data_only=True)
    reader.read()
    with contextlib.closing(reader.wb) as book:
        sheet = book.worksheets[0]
        if len(book.worksheets) > 1:
            notes.append(
                f"of the table of --labels the first sheet was read, {sheet.title!r}; to read "
                f"another of its {len(book.worksheets)} sheets, store it as a file of its own"
            )
        sheet.reset_dimensions()  # some programs write others than those of the cells
        rows = [[_shown(cell) for cell in row] for row in sheet.iter_rows()] or [[]]
        links = {part.name: link.target for part, link in reader.parser.find_sheets()}
        content = reader.archive.read(links[sheet.title]).decode()
    empty = r'<(\w+:)?c r="([A-Z]+(\d+))"( s="\d+")?><\1?f>[^<]*</\1?f><\1?v ?/>'
    without_value = {int(cell[3]): cell[2] for cell in re.finditer(empty, content)}
    # openpyxl tells merged cells only of a book of which it makes an object for each cell.
    below = content.rpartition("sheetData>")[2]
    for area in re.findall(r'\bmergeCell [^>]*\bref="([^"]+)"', below):
        column, first, _, last = range_boundaries(area)
        for row in rows[first:last]:
            row += [None] * (column - len(row))
            row[column - 1] = rows[first - 1][column - 1]
    start = _header_in(rows, notes)
    kept = list[Sequence[Any]]()
    for number, row in enumerate(rows[start:], start + 1):
        if number in without_value:
            faults[max(len(kept) - 1, 0)] = (
                f"the cell {without_value[number]} has a formula without a value (open the table "
                "in Excel or LibreOffice, and save it)"
            )
        if not kept or number in without_value or any(cell is not None for cell in row):
            kept.append(row)
    return _table_of(kept[0], kept[1:])


def _shown(cell: Any) -> Any:
    """Returns the value of a cell of Excel; as text if its number format pads with zeros."""
    value = cell.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0 == value % 1:
        return value
    match = _PADDED.fullmatch(cell.number_format.partition(";")[0])
    return f"{match[1] or match[2] or ''}{int(value):0{len(match[3])}}" if match else value


def _header_in(rows: Sequence[Sequence[Any]], notes: list[str]) -> int:
    """Returns the place of the header, above which there may be comments and a title.

    The header is the first row with two names of columns that are usual; or else the first that
    is neither a comment nor a title, which have one cell, in the first column, where later rows
    have more. A note says which row it is, if it is not the first.
    """
    texts = [
        [str("" if cell is None else cell).strip() for cell in row] for row in rows[:_MOST_ABOVE]
    ]
    num_usual = [len({text.lower() for text in row} & _USUAL) for row in texts]
    sizes = [sum(map(bool, row)) for row in texts]
    width = max(map(len, texts), default=0)
    could_be = (
        place
        for place, (row, size, usual) in enumerate(zip(texts, sizes, num_usual, strict=True))
        if usual
        or not (_is_comment(row, width) or (size < 2 and size < max(sizes) and any(row[:1])))
    )
    with_names = (place for place, usual in enumerate(num_usual) if usual > 1)
    start = next(itertools.chain(with_names, could_be), 0)
    if start:
        notes.append(f"row {start + 1} of the table of --labels was read as its header")
    return start


def _is_comment(row: Sequence[str], width: int) -> bool:
    """Returns whether a row is empty, or begins with `#` and is not a header such as `#,path`."""
    start = row[0] if row else ""
    return not any(row) or start.startswith("# ") or (start[:1] == "#" and len(row) != width)


def _read_json(text: str, *, is_lines: bool) -> pa.Table:
    try:
        content = json.loads(text)
    except json.JSONDecodeError:  # an object for each line
        content = [json.loads(line) for line in text.splitlines() if line.strip()]
    if isinstance(content, dict):
        is_row = not any(isinstance(c, list | dict) for c in content.values())
        content = [content] if is_lines or is_row else content
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
    """Returns the text of a file in UTF-8, UTF-16 or, where neither fits, Windows-1252.

    The note on the last one quotes nothing: what it would quote may be excluded.
    """
    content = file.read_bytes()
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16")
    if content[:1000].count(0) > 100 or content.startswith(b"PK\3\4"):  # a zip, as of .ods
        raise ValueError("it is not a text")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("cp1252")
        notes.append(NOT_UTF_8)
        return text


def _delimiter_of(lines: Sequence[str]) -> str:
    """Returns what divides the cells: most frequent in the first line whose next line has it, too.

    A comma in a title is one of a sentence.
    """
    found = [max(",;\t", key=line.count) for line in lines] or [","]
    pairs = zip(found, lines, lines[1:], strict=False)
    return next((mark for mark, *both in pairs if all(mark in line for line in both)), found[0])


def _read_csv(text: str, notes: list[str], faults: dict[int, str]) -> pa.Table:
    if told := re.match(r'"?sep=([,;\t|])"?[,;\t|]*\r?\n', text):  # as Excel reads and writes it
        text = text[told.end() :]
    lines = [*itertools.islice(io.StringIO(text, newline=""), _MOST_ABOVE)]
    delimiter = told[1] if told else _delimiter_of(lines)
    starts = (line[:10_000] for line in lines)  # Python's reader refuses long cells
    start = _header_in([next(csv.reader([s], delimiter=delimiter), []) for s in starts], notes)
    text = text[sum(map(len, lines[:start])) :]
    # By default Arrow cuts the file into blocks at any line break, also at one within quotes.
    parse = pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    content = pa.py_buffer(text.encode())
    try:
        with pacsv.open_csv(pa.BufferReader(content), parse_options=parse) as reader:
            types = {name: pa.string() for name in reader.schema.names}
        convert = pacsv.ConvertOptions(column_types=types, strings_can_be_null=False)
        return pacsv.read_csv(
            pa.BufferReader(content), parse_options=parse, convert_options=convert
        )
    except pa.ArrowInvalid:
        parsed = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        header, *rows = [*filter(None, parsed)] or [[]]
        sizes = {row: len(cells) for row, cells in enumerate(rows) if len(cells) != len(header)}
        if not sizes:
            raise
        for row, size in sizes.items():
            faults[row] = f"row {row + 1:,} has {counted(size, 'cell')} instead of {len(header)}"
        return _table_of(header, rows)

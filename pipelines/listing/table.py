"""The table of labels: one row an image, and one header row.

A table is a `.csv` (UTF-8, divided by commas, semicolons or tabs), a `.parquet` or the first sheet
of an `.xlsx`. Its columns are `path` and `label`, and where they are known `patient`, `split` and
`site`; `--columns` gives these names to other columns. With `--label_columns`, several columns of 0
and 1 take the place of `label`. All other columns go on to examples.parquet.

>>> [str(_as_numbers(pa.chunked_array([cells])).type) for cells in (["63", None], ["007"])]
['int64', 'string']
"""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import re
from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from pipelines import errors
from pipelines.listing.options import OPTIONAL, ListingOptions
from pipelines.listing.refs import OTHER
from tfrecord_io.format.examples import OWN, SITE
from tfrecord_io.format.kinds import CLASSES, NONE, SEPARATOR
from tfrecord_io.format.person import column_in_one_form, persons
from tfrecord_io.format.schema import SPLITS
from tfrecord_io.terminal.spelling import one_form

#: The cells of a table by the name of their column.
Columns = dict[str, pa.ChunkedArray]

# Texts that stand for no value: the `na_values` of `pandas.read_csv`, and the errors of Excel.
_NO_VALUE = pa.array((
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
    "#DIV/0!", "#NAME?", "#NULL!", "#NUM!", "#REF!", "#VALUE!",
))  # fmt: skip

# Texts of a column that becomes numbers: not a code such as 007 or 1E5.
_NUMBERS = (
    (r"^(0|-?[1-9][0-9]{0,17})$", pa.int64()),
    (r"^(0|-?[1-9][0-9]{0,8}|-?(0|[1-9][0-9]{0,8})\.[0-9]{1,6})$", pa.float64()),
)

_TRUE, _FALSE = ("1", "1.0", "true", "yes"), ("0", "0.0", "false", "no")
_UNKNOWN = ("-1", "-1.0")

# Signs of several labels in one cell, such as Effusion|Mass or ['Effusion', 'Mass'].
_SEVERAL = r"[|;\[\]{}]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelTable:
    """The rows of a table of labels.

    Attributes:
        name: of its file, for messages.
        rows: a table with the text columns `path` and `label` (null where there is none), `split`
            and `patient` (with the site in front) if the file has them, and its other columns,
            whose names begin with `OTHER`.
        label_names: all labels in their order, if the file has one; else empty.
        notes: what the user should know.
    """

    name: str
    rows: pa.Table
    label_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_table(options: ListingOptions) -> LabelTable | None:
    """Reads the table of `--labels`, or of the arrays of a .npz; None if there is neither.

    Raises:
        errors.UserError: if it cannot be read, a column is missing, or a cell cannot be.
    """
    file, arrays, notes = options.labels, options.rows, list[str]()
    if file:
        columns = read_columns(file, "--labels")
    elif arrays:
        columns = {name: _plain(name, cells) for name, cells in arrays.columns().items()}
    else:
        return None
    name = file.name if file else arrays.path.name if arrays else ""
    try:
        rows, order = _rows(columns, options, notes)
    except ValueError as error:
        raise errors.UserError(f"--labels {file or name}: {error}") from None
    return LabelTable(name=name, rows=rows, label_names=order, notes=tuple(notes))


def _rows(
    columns: Columns, options: ListingOptions, notes: list[str]
) -> tuple[pa.Table, tuple[str, ...]]:
    """Returns what `LabelTable.rows` and `label_names` are; a ValueError says what is wrong."""
    renamed, shown = options.columns or {}, f"the columns {', '.join([*columns][:30])}"
    if absent := [name for name in renamed.values() if name not in columns]:
        raise ValueError(f"--columns names {', '.join(absent)}, but it has {shown}")
    kept = {name: cells for name, cells in columns.items() if name not in renamed.values()}
    chosen = kept | {name: columns[column] for name, column in renamed.items()}
    if absent := [name for name in ("path", *options.cell_columns) if name not in chosen]:
        # A file without a header, or divided by blanks.
        undivided = "; no comma, semicolon or tab divides its first row" * (len(columns) < 2)
        several = "; or --label_columns A,B,... for columns of 0 and 1" * (absent == ["label"])
        raise ValueError(
            f"it has {shown}{undivided}, and needs {' and '.join(absent)}; name yours with "
            f"--columns {','.join(f'{name}=COLUMN' for name in absent)}{several}"
        )
    used = {"path", *options.cell_columns, *OPTIONAL}
    texts = {name: _as_text(name, cells) for name, cells in chosen.items() if name in used}
    path = pc.replace_substring(pc.fill_null(texts["path"], ""), "\\", "/")
    rows = {"path": pc.replace_substring_regex(path, r"^(\./)*/*", "")}
    rows["label"] = _labels(texts, options)
    if "split" in texts:
        rows["split"] = _splits(texts["split"])
    if SITE in texts:
        rows[f"{OTHER}{SITE}"] = texts[SITE]
        if texts[SITE].null_count:
            row = texts[SITE].to_pylist().index(None) + 1
            raise ValueError(f"row {row:,} has no site, which is part of the patient; write one")
    if "patient" in texts:
        names = texts["patient"]
        rows["patient"] = persons(names, texts[SITE]) if SITE in texts else names
    others = {name: cells for name, cells in chosen.items() if name not in used}
    if left_out := sorted((kept.keys() & renamed.keys()) | (others.keys() & {*OWN})):
        notes.append(
            f"left out the column {', '.join(left_out)} of the table of --labels, whose name the "
            "dataset uses; rename it to keep it"
        )
    has_texts = options.labels and options.labels.suffix.lower() != ".parquet"
    for name, cells in others.items():
        if name not in OWN:
            rows[f"{OTHER}{name}"] = _as_numbers(cells) if has_texts else cells
    order: tuple[str, ...] = options.label_columns
    if not options.labels and pa.types.is_integer(
        (of_class := chosen[options.cell_columns[0]]).type
    ):
        order = order or tuple(map(str, sorted(of_class.drop_null().unique().to_pylist())))
    return pa.table(rows), order


def read_texts(file: Path, flag: str, names: Collection[str]) -> dict[str, list[str | None]]:
    """Returns those of some columns that the table of a flag has, as texts; None for no value.

    Raises:
        errors.UserError: if it cannot be read.
    """
    columns = read_columns(file, flag)
    return {name: _as_text(name, columns[name]).to_pylist() for name in names if name in columns}


def read_columns(file: Path, flag: str) -> Columns:
    """Returns the columns of a file, without spaces around texts, and null for no value.

    Those of .csv and .xlsx are text, so that a patient 007 stays 007.

    Raises:
        errors.UserError: if the file cannot be read, or two columns have the same name.
    """
    expected = "expected .csv (UTF-8, with commas, semicolons or tabs), .parquet or .xlsx"
    read = {".csv": _read_csv, ".parquet": pq.read_table, ".xlsx": _read_excel}
    try:
        if file.suffix.lower() not in read:
            raise ValueError("save it as such a table")
        table = read[file.suffix.lower()](file)
        names = [one_form(name).strip() for name in table.column_names]
        if repeated := {name for name in names if name and names.count(name) > 1}:
            raise ValueError(f"it has the column {', '.join(sorted(repeated))} more than once")
        pairs = zip(names, table.columns, strict=True)
        return {name: _plain(name, cells) for name, cells in pairs if name}
    except ModuleNotFoundError:
        raise errors.UserError(
            f"{flag} {file}: Excel needs pandas and openpyxl; pip install pandas openpyxl"
        ) from None
    except Exception as error:  # for damaged bytes, readers raise almost anything
        raise errors.UserError(f"{flag} {file} could not be read: {error}; {expected}") from None


def _read_csv(file: Path) -> pa.Table:
    with file.open(encoding="utf-8-sig", newline="") as text:
        start = text.read(1 << 16)
    parsed = ((mark, next(csv.reader(io.StringIO(start), delimiter=mark), [])) for mark in ",;\t")
    delimiter, header = max(parsed, key=lambda pair: len(pair[1]))
    return pacsv.read_csv(
        file,
        # By default Arrow cuts the file into blocks at any line break, also at one within quotes.
        parse_options=pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=pacsv.ConvertOptions(column_types=dict.fromkeys(header, pa.string())),
    )


def _read_excel(file: Path) -> pa.Table:
    import pandas as pd

    sheet = pd.read_excel(file, dtype=str).dropna(how="all")
    # pandas gives a name to a column without one.
    names = ["" if str(name).startswith("Unnamed: ") else str(name) for name in sheet]
    cells = [pa.array(column, pa.string(), from_pandas=True) for _, column in sheet.items()]
    return pa.table(cells, names=names)


def _plain(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column of numbers, truths or texts; raises a ValueError if it is something else."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast(kind)
    if pa.types.is_floating(kind):
        column = pc.if_else(pc.is_nan(column), None, column)
        return pc.add(column.cast(pa.float64()), 0.0).cast(kind)  # 0 for -0
    try:
        texts = column.cast(kind).cast(pa.string())
    except pa.ArrowException:
        raise ValueError(f"the column {name} is {kind}; store it as text or numbers") from None
    forms = map(column_in_one_form, texts.chunks)
    texts = pc.utf8_trim_whitespace(pa.chunked_array(forms, texts.type))
    return texts if name == "path" else pc.if_else(pc.is_in(texts, _NO_VALUE), None, texts)


def _as_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column of texts as numbers if all that are not null are; else as it is."""
    for pattern, kind in _NUMBERS if column.null_count < len(column) else ():
        if pc.all(pc.match_substring_regex(column, pattern)).as_py():
            return column.cast(kind)
    return column


def _as_text(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column as text; whole numbers are written without `.0`, as pandas may add it."""
    if pa.types.is_floating(column.type) and pc.all(pc.equal(column, pc.floor(column))).as_py():
        column = column.cast(pa.int64())
    column = column.cast(pa.string())
    is_whole = pc.match_substring_regex(column, r"^-?(0|[1-9][0-9]{0,17})(\.0)?$")
    if name == "path" or not pc.all(is_whole).as_py():
        return column
    return pc.replace_substring_regex(column, r"^-?(0)(\.0)?$|\.0$", r"\1")


def _labels(texts: Columns, options: ListingOptions) -> pa.ChunkedArray:
    """Returns the text of each row's label, see `tfrecord_io.format.kinds`; null without one."""
    if options.label_columns:
        return _labels_of_truths({name: texts[name] for name in options.label_columns}, options)
    label = texts["label"]
    if options.label_kind == CLASSES and not options.classes:
        several = label.filter(pc.match_substring_regex(label, _SEVERAL)).drop_null()
        if len(several):
            raise ValueError(
                f"the label {several[0].as_py()!a} may be several. A row has one label; or give a "
                "column of 0 and 1 for each with --label_columns A,B,... (pandas makes them: "
                "table.label.str.get_dummies('|')). If it is one, name all with --classes"
            )
    return label


def _labels_of_truths(columns: Columns, options: ListingOptions) -> pa.ChunkedArray:
    """Returns the names of the columns that have a 1 in each row, as one text."""
    is_true, is_unknown = dict[str, pa.ChunkedArray](), dict[str, pa.ChunkedArray]()
    for name, column in columns.items():
        cells = pc.utf8_lower(pc.fill_null(column, _UNKNOWN[0]))
        is_cell = pc.is_in(cells, pa.array(_TRUE + _FALSE + _UNKNOWN))
        if not pc.all(is_cell).as_py():
            row = is_cell.to_pylist().index(False)
            raise ValueError(
                f"row {row + 1:,} has {column[row].as_py()!a} in the column {name}; expected 0 or 1"
            )
        is_true[name] = pc.is_in(cells, pa.array(_TRUE))
        is_unknown[name] = pc.is_in(cells, pa.array(_UNKNOWN))
    counts = {name: pc.sum(cells).as_py() or 0 for name, cells in is_unknown.items()}
    if any(counts.values()) and not options.unknown_labels:
        shown = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
        raise ValueError(
            f"cells of --label_columns are blank or -1: {shown}. Say with --unknown_labels what "
            "these are: negative, or drop to leave the images out"
        )
    rows = zip(*(cells.to_pylist() for cells in is_true.values()), strict=True)
    texts = [SEPARATOR.join(itertools.compress(columns, row)) or NONE for row in rows]
    label = pa.chunked_array([texts], pa.string())
    if options.unknown_labels == "drop":
        for cells in is_unknown.values():
            label = pc.if_else(cells, None, label)
    return label


def _splits(names: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns the split that each row names: `val` for `Validation`, and train for none."""
    found = {}
    for name in names.unique().to_pylist():
        found[name] = SPLITS.get((name or "train").lower(), name)
        if not re.fullmatch(r"[a-z][a-z0-9_]*", found[name]):
            row = names.to_pylist().index(name) + 1
            raise ValueError(
                f"row {row:,} has the split {name!a}; expected train, val, test or another name of "
                "lower-case letters, digits and underscores"
            )
    return pa.chunked_array([[found[name] for name in names.to_pylist()]], pa.string())

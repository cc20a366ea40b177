"""The table of labels: one row an image, and one header row; and the file of each row.

A table is a `.csv` (UTF-8, divided by commas, semicolons or tabs), a `.parquet` or the first sheet
of an `.xlsx`. Its cells are read as texts. Its columns are `path` and `label`, and where they are
known `patient`, `split` and `site`; `--columns` gives these names to other columns. With
`--label_columns`, several columns of 0 and 1 take the place of `label`. All other columns go on to
examples.parquet.

A row's file is the one whose path in the input is the row's path, or else the only file whose path
ends with it, with or without its ending. A path that several files end with is refused.

>>> files_of(["a/1.png", "b/1.png", "b/2.png"], ["b/1.png", "2", "1.png", "3.png"])
[[1], [2], [0, 1], ()]
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import io
import itertools
import posixpath
import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from pipelines import errors
from pipelines.listing.files import common_folders, ending_of, without_label
from pipelines.listing.images import Images, Ledger
from pipelines.listing.options import OPTIONAL, ListingOptions
from pipelines.listing.refs import OTHER, RejectedFile, make_refs
from tfrecord_io.format.examples import OWN, SITE
from tfrecord_io.format.kinds import CLASSES, NONE, SEPARATOR
from tfrecord_io.format.person import column_in_one_form, persons
from tfrecord_io.format.schema import SPLITS
from tfrecord_io.terminal.printing import counted, one_form

#: The cells of a table, texts or null, by the name of their column.
Columns = dict[str, pa.ChunkedArray]

# Texts that stand for no value, as `pyarrow.csv` and pandas read them.
_NO_VALUE = pa.array([*pacsv.ConvertOptions().null_values, "<NA>", "None"])

# Whole numbers, to which pandas may add `.0`; not a code such as 007.
_WHOLE = r"^-?(0|[1-9][0-9]*)(\.0)?$"

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
    file, arrays, notes, order = options.labels, options.rows, list[str](), options.label_columns
    if file:
        name, columns = file.name, read_columns(file, "--labels")
    elif arrays:
        name = arrays.path.name
        columns = {name: _texts(name, cells) for name, cells in arrays.columns().items()}
    else:
        return None
    try:
        rows = _rows(columns, options, notes)
    except ValueError as error:
        raise errors.UserError(f"--labels {file or name}: {error}") from None
    names = rows["label"].unique().drop_null().to_pylist()
    if not order and arrays and not file and all(map(str.isdecimal, names)):
        order = tuple(sorted(names, key=int))
    return LabelTable(name=name, rows=rows, label_names=order, notes=tuple(notes))


def _rows(columns: Columns, options: ListingOptions, notes: list[str]) -> pa.Table:
    """Returns what `LabelTable.rows` is; a ValueError says what is wrong."""
    renamed, shown = options.columns or {}, f"the columns {', '.join([*columns][:30])}"
    if absent := [name for name in renamed.values() if name not in columns]:
        raise ValueError(f"--columns names {', '.join(absent)}, but it has {shown}")
    kept = {name: cells for name, cells in columns.items() if name not in renamed.values()}
    texts = kept | {name: columns[column] for name, column in renamed.items()}
    if absent := [name for name in ("path", *options.cell_columns) if name not in texts]:
        # A file without a header, or divided by blanks.
        undivided = "; no comma, semicolon or tab divides its first row" * (len(columns) < 2)
        several = "; or --label_columns A,B,... for columns of 0 and 1" * (absent == ["label"])
        raise ValueError(
            f"it has {shown}{undivided}, and needs {' and '.join(absent)}; name yours with "
            f"--columns {','.join(f'{name}=COLUMN' for name in absent)}{several}"
        )
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
    others = texts.keys() - {"path", *options.cell_columns, *OPTIONAL}
    if left_out := sorted((kept.keys() & renamed.keys()) | (others & {*OWN})):
        notes.append(
            f"left out the column {', '.join(left_out)} of the table of --labels, whose name the "
            "dataset uses; rename it to keep it"
        )
    return pa.table(
        rows | {f"{OTHER}{name}": texts[name] for name in texts if name in others - {*OWN}}
    )


def read_columns(file: Path, flag: str) -> Columns:
    """Returns the columns of the table of a flag, as texts; null for no value.

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
        return {name: _texts(name, cells) for name, cells in pairs if name}
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


def _texts(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column as texts without spaces around them; null for no value.

    Whole numbers are written without `.0`. Raises ValueError for a column of another type.
    """
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    try:
        texts = column.cast(kind).cast(pa.string())
    except pa.ArrowException:
        raise ValueError(f"the column {name} is {kind}; store it as text or numbers") from None
    texts = pc.utf8_trim_whitespace(
        pa.chunked_array(map(column_in_one_form, texts.chunks), texts.type)
    )
    texts = pc.if_else(pc.is_in(texts, _NO_VALUE), None, texts)
    if not pc.all(pc.match_substring_regex(texts, _WHOLE)).as_py():
        return texts
    return pc.replace_substring_regex(texts, r"^-?(0)(\.0)?$|\.0$", r"\1")


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


def files_of(names: Sequence[str], paths: Sequence[str]) -> list[Sequence[int]]:
    """Returns for each path of a row the places of the files that it means, which may be none."""
    places = {name: [place] for place, name in enumerate(names)}
    found: list[Sequence[int]] = [places.get(path, ()) for path in paths]
    rest = collections.defaultdict[int, list[int]](list)
    for row, path in enumerate(paths):
        if not found[row] and path:
            rest[path.count("/")].append(row)
    for depth, rows in rest.items():
        whole, stems = (collections.defaultdict[str, list[int]](list) for _ in range(2))
        for place, name in enumerate(names):
            end = "/".join(name.split("/")[-depth - 1 :])
            whole[end].append(place)
            stems[posixpath.splitext(end)[0]].append(place)
        for row in rows:
            found[row] = whole.get(paths[row]) or stems.get(paths[row], ())
    return found


def place_by_table(files: Images, labels: LabelTable, options: ListingOptions) -> Images:
    """Returns the files to which a table gives a label, of `REF_SCHEMA`, with its other columns.

    A file that looks like an image and has no row is a reject. Rows without a file are counted in a
    note. Where a cell of `--label_columns` is unknown, the image is counted as ignored.

    Raises:
        errors.UserError: if a row means several files, two rows mean one, or no row means a file.
    """
    names, table = files.table["name"].to_pylist(), labels.rows
    paths = table["path"].to_pylist()
    found = files_of(names, paths)
    if several := [row for row, places in enumerate(found) if len(places) > 1]:
        raise _refused("several files end with the path of a row", several, found, names, labels)
    lost = [row for row, places in enumerate(found) if not places]
    if len(lost) == len(found):
        raise _refused("no row has the path of a file", lost, found, names, labels)
    row_of_file = dict[int, int]()
    for row, places in enumerate(found):
        for place in places:
            if (first := row_of_file.setdefault(place, row)) != row:
                raise errors.UserError(
                    f"--labels {labels.name}: rows {first + 1:,} and {row + 1:,} both name "
                    f"{names[place]!a}; a file needs one row. In pandas, "
                    "table.drop_duplicates('path') keeps the first"
                )
    places = sorted(row_of_file)
    rows = table.take(pa.array([row_of_file[place] for place in places], pa.int64()))
    known = files.table.take(pa.array(places, pa.int64()))
    has_label = pc.is_valid(rows["label"])
    without = known.filter(pc.invert(has_label))["name"].to_pylist()
    ledger, people = Ledger(), dict[str, str]()
    if options.label_columns:
        ledger += Ledger(ignored=collections.Counter(unknown_label=len(without)))
    else:
        detail = f"its row in {labels.name} has no label"
        ledger += Ledger(rejects=tuple(RejectedFile(n, "no_label", detail) for n in without))
        if "patient" in rows.column_names:
            some = rows.filter(pc.invert(has_label))["patient"].to_pylist()
            people = {name: who for name, who in zip(without, some, strict=True) if who}
    # A file without a row counts as an image if one with a row has the same ending. The files of a
    # DICOM export have none.
    endings = {ending_of(names[place]) for place in places}
    rest = (name for place, name in enumerate(names) if place not in row_of_file)
    ledger += without_label(rest, f"{labels.name} has no row for it", endings)
    known, rows = known.filter(has_label), rows.filter(has_label)
    if not rows.num_rows:
        raise errors.UserError(
            f"--labels {labels.name}: its paths fit files, but no row has a label; fill them in, "
            "or name their column with --columns label=COLUMN"
        )
    names = known["name"].to_pylist()
    root = "/".join(common_folders(name.rpartition("/")[0] for name in names))
    columns = {name: rows[name] for name in rows.column_names} | {
        "root": [root] * len(names),
        "path": [name.removeprefix(f"{root}/") for name in names],
        "split": rows["split"] if "split" in rows.column_names else ["train"] * len(names),
    }
    refs = make_refs(known, columns).sort_by([("path", "ascending"), ("offset", "ascending")])
    images = files.then(refs, ledger, label_names=labels.label_names, reject_patients=people)
    notes = [*labels.notes]
    if lost:
        notes.append(
            f"{counted(len(lost), 'row')} of the table of --labels have no file in the input, such "
            f"as row {lost[0] + 1:,} ({paths[lost[0]]!a})"
        )
    return images.noted(*notes)


def _refused(
    why: str, rows: Sequence[int], found: Sequence[Sequence[int]], names: Sequence[str],
    labels: LabelTable,
) -> errors.UserError:  # fmt: skip
    """Returns an error with three rows, the files that they mean, and what a path should be."""
    paths, lines = labels.rows["path"].to_pylist(), []
    for row in rows[:3]:
        some = [names[place] for place in found[row][:2]]
        meant = f"{len(found[row]):,} files such as {' and '.join(map(ascii, some))}"
        lines.append(f"\n  row {row + 1:,}, {paths[row]!a}: {meant if some else 'no file'}")
    # A table of another machine names the same files below other folders.
    path, example = paths[rows[0]], next(iter(names), "")
    starts = (path[: -len(name)] for name in names if path.lower().endswith(f"/{name.lower()}"))
    advice = "".join(f". In pandas: table.path = table.path.str.removeprefix({start!r})"
                     for start in itertools.islice(starts, 1))  # fmt: skip
    return errors.UserError(
        f"--labels {labels.name}: {why} ({len(rows):,} of {len(paths):,}):{''.join(lines)}\n"
        f"A path is that of a file in the input, such as {example!a}, or an end that no other file "
        f"has{advice}"
    )

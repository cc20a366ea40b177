"""A table of labels: a row for each image, with its class, patient and split.

The columns are `path` and `label`, and if they are there `patient`, `split` and `site`. Instead of
`label`, another column may hold the class or a number, or several columns a 0 or a 1 for each
label. Other columns become columns of examples.parquet. A cell without a value is null in all of
them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing.label_cells import read_labels, split_labels
from pipelines.listing.options import ListingOptions
from pipelines.listing.table_files import (
    NOT_UTF_8,
    OPTIONAL,
    Columns,
    in_one_form,
    is_text,
    read_columns,
)
from tfrecord_io.format.schema import SPLIT_NAME
from tfrecord_io.terminal.printing import counted

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelTable:
    """The rows of a label table.

    Attributes:
        name: of its file, for messages.
        cells: the path of each row's image, with `/` between folders, its label ("" if the table
            gives none; `tfrecord_io.format.kinds` defines the text of several labels and of a
            number), and of the columns `OPTIONAL` those that the table has, None where it gives no
            value.
        others: the other columns of the file, by name.
        not_numbers: what the table has instead of a finite number, by row.
        label_names: of labels that a separator divides, sorted.
        order: all names of classes, if the file has an order of them; else empty.
        notes: what the user should know, one sentence each; they name columns of the table.
    """

    name: str
    cells: Mapping[str, Sequence[str | None]]
    others: Mapping[str, pa.ChunkedArray] = dataclasses.field(default_factory=dict)
    not_numbers: Mapping[int, str] = dataclasses.field(default_factory=dict)
    label_names: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def facts(self, row: int) -> tuple[object, ...]:
        """Returns what the table says of a row's image, besides other columns."""
        others = [cells[row] for name, cells in self.cells.items() if name != "path"]
        return (self.not_numbers.get(row), *others)

    def problem_of(self, row: int) -> tuple[str, str] | None:
        """Returns (reason, detail) if a row gives its image no label, otherwise None."""
        beginning = f"row {row + 1} of {self.name} has"
        if row in self.not_numbers:
            return "not_a_number", f"{beginning} {self.not_numbers[row]!a}"
        if not self.cells["label"][row]:
            return "no_label", f"{beginning} no label (see --missing)"
        return None

    @property
    def digest(self) -> str:
        """Hexadecimal SHA-256 of the rows, whatever their order and kind of file."""
        names = [name for name in ("path", "label", *OPTIONAL) if name in self.cells]
        types = [(name, str(column.type)) for name, column in self.others.items()]
        digest = hashlib.sha256(repr((names, types)).encode())
        columns = [self.cells[name] for name in names]
        columns += [column.to_pylist() for column in self.others.values()]
        for row in sorted(zip(*columns, strict=True), key=repr):
            digest.update(repr(row).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def read_texts(
    file: Path, flag: str, names: Collection[str], missing: Sequence[str] | None
) -> dict[str, list[str | None]]:
    """Returns those of some columns that the table of a flag has, read as those of `--labels`.

    Raises:
        errors.UserError: if it cannot be read.
    """
    faults: dict[int, str] = {}
    columns = read_columns(file, [], faults, flag)
    _require_none(f"{flag} {file}", faults)
    cells = {name: cells for name, cells in columns.items() if name in names}
    cells = _read_cells(f"{flag} {file}", is_text(file), cells, names, missing, [])
    return {name: column.to_pylist() for name, column in cells.items()}


def _require_none(file: str, faults: Mapping[int, str]) -> None:
    for fault in faults.values():
        raise errors.UserError(f"{file}: {fault}; correct the row, or remove it")


def read_label_table(options: ListingOptions, left_out: Collection[int] = ()) -> LabelTable:
    """Reads the table of labels that the options name, or that of the source.

    It may be in several files; the split of each is in its name or its folder's. In `left_out` are
    rows, from 0, without which it is read, as if they were not in the file.

    Raises:
        errors.UserError: if the file or one of its columns cannot be read, `path` or a label column
            is missing, a column has the name of another column, a label is neither 0 nor 1, a row
            has no site, or the split of a file is not known.
    """
    notes, faults, files = list[str](), dict[int, str](), options.tables
    whole = _read_files(options, notes, faults)
    order = () if options.labels else _order(whole[options.cell_columns[0]])
    used = {"path", *options.cell_columns, *OPTIONAL}
    cells = _without_rows(files, whole, left_out, used)
    file, notes = _flag(files), list(_quoted(notes, cells))
    _require_none(file, {row: faults[row] for row in faults if row not in left_out})
    cells = _read_cells(file, is_text(files[0]), cells, used, options.missing, notes)
    texts = {name: cells[name].to_pylist() for name in used & cells.keys()}
    _require_sites(file, texts.get("site", ()))
    label_names: tuple[str, ...] = ()
    of_label = {name: texts[name] for name in options.cell_columns}
    if options.label_kind.is_number:
        of_label = {
            name: _with_points(file, name, numbers, options.decimal)
            for name, numbers in of_label.items()
        }
    not_numbers: dict[int, str] = {}
    try:
        if options.label_separator:
            label, label_names = split_labels(of_label, options.label_separator)
        else:
            label, not_numbers = read_labels(of_label, options.label_kind, options.uncertain)
    except ValueError as error:
        raise errors.UserError(f"{file}: {error}") from None
    optional = {name: texts[name] for name in OPTIONAL if name in texts}
    return LabelTable(
        name=", ".join(each.name for each in files),
        cells={"path": texts["path"], "label": label, **optional},
        others={name: column for name, column in cells.items() if name not in used},
        not_numbers=not_numbers,
        label_names=label_names,
        order=order,
        notes=tuple(notes),
    )


def read_names(options: ListingOptions, left_out: Collection[int] = ()) -> LabelTable:
    """Reads paths, patients, sites and splits as `read_label_table` does; checks no other cell."""
    files, used = options.tables, ("path", *OPTIONAL)
    whole = _read_files(options, [], {})
    cells = _without_rows(files, {name: whole[name] for name in used if name in whole}, left_out)
    cells = _read_cells(_flag(files), is_text(files[0]), cells, used, options.missing, [])
    names = {name: column.to_pylist() for name, column in cells.items()}
    names["label"] = [""] * len(names["path"])
    return LabelTable(name=", ".join(each.name for each in files), cells=names)


def _flag(files: Sequence[Path]) -> str:
    """Returns how a user names these files, for messages."""
    return f"--labels {','.join(map(str, files))}"


def _read_files(
    options: ListingOptions, notes: list[str], faults: dict[int, str]
) -> dict[str, pa.Array]:
    """Returns the cells of the table by column, see `read_label_table`."""
    files, rows = options.tables, None if options.labels else options.rows
    file, raw = _flag(files), [in_one_form(rows.columns(notes))] if rows else []
    num_rows, columns, renamed = 0, options.cell_columns, options.columns or {}
    for each in files if not rows else ():
        own: dict[int, str] = {}
        raw.append(read_columns(each, notes, own))
        faults |= {num_rows + row: f"{fault} in {each.name}" for row, fault in own.items()}
        num_rows += len(next(iter(raw[-1].values()), ()))
    tables = [_renamed(*pair, renamed, notes) for pair in zip(files, raw, strict=True)]
    cells = tables[0] if len(files) == 1 else _joined(files, tables)
    if absent := [name for name in ("path", *columns) if name not in cells]:
        raise errors.UserError(
            f"{file} has {_shown(cells)}, and needs {' and '.join(absent)}; name yours "
            f"with --columns {','.join(f'{name}=COLUMN' for name in absent)}"
            f"{_told_of_flags(cells) if absent == ['label'] else ''}"
            + "".join(f"; {note}" for note in notes if note != NOT_UTF_8)
        )
    return cells


def _without_rows(
    files: Sequence[Path],
    cells: dict[str, pa.Array],
    left_out: Collection[int],
    used: Collection[str] = (),
) -> dict[str, pa.Array]:
    """Returns the cells without some rows, and of JSON without columns that only these had."""
    if not left_out:
        return cells
    num_rows = len(cells["path"])
    kept = pa.array([row for row in range(num_rows) if row not in left_out], pa.int64())
    rest = {name: column.take(kept) for name, column in cells.items()}
    if files[0].suffix.lower() not in (".json", ".jsonl"):
        return rest
    return {
        name: column
        for name, column in rest.items()
        if name in used or not pc.all(pc.equal(column, "")).as_py()
    }


def _quoted(notes: Sequence[str], cells: Mapping[str, pa.Array]) -> Iterator[str]:
    """Yields notes; that on an encoding is last, and quotes a text which it may have changed."""
    yield from (note for note in notes if note != NOT_UTF_8)
    if NOT_UTF_8 in notes:
        texts = itertools.chain(cells, *(column.to_pylist() for column in cells.values()))
        shown = next((text for text in texts if not (text or "").isascii()), None)
        if shown:
            yield f"{NOT_UTF_8}: {shown!r:.30}; if that is wrong, store it as UTF-8"


def _require_sites(file: str, sites: Sequence[str | None]) -> None:
    for row, site in enumerate(sites, 1):
        if site is None:
            raise errors.UserError(
                f"{file}: row {row:,} has no site, which is part of the patient; expected "
                "a site in each row, such as unknown (a site named NA needs --missing ''). Rename "
                "the column if it means something else"
            )


def _with_points(
    file: str, column: str, cells: Sequence[str | None], decimal: str
) -> list[str | None]:
    """Returns numbers with a decimal point; those with a comma need the flag that says so."""
    with_comma = [cell for cell in cells if cell and re.fullmatch(r"[+-]?\d*,\d+", cell)]
    if decimal == "," or not with_comma:
        # A point would divide thousands, and is not read.
        return [
            cell and (cell.replace(".", "?").replace(",", ".") if decimal == "," else cell)
            for cell in cells
        ]
    raise errors.UserError(
        f"{file}: the column {column} has a comma in {counted(len(with_comma), 'number')}"
        f", such as {with_comma[0]!a}; --decimal , reads it as the decimal mark. If it divides "
        "thousands, write the numbers without it"
    )


def _order(column: pa.ChunkedArray) -> tuple[str, ...]:
    """Returns the names of classes in their order: that of a dictionary, or of whole numbers."""
    if pa.types.is_dictionary(column.type):
        return tuple(column.unify_dictionaries().chunk(0).dictionary.to_pylist())
    is_number = pa.types.is_integer(column.type)
    return tuple(map(str, sorted(column.drop_null().unique().to_pylist()))) if is_number else ()


def _joined(files: Sequence[Path], tables: Sequence[Columns]) -> Columns:
    """Returns the rows of several files, each with the split that its file is for."""
    if len({is_text(file) for file in files}) > 1:
        raise errors.UserError("--labels takes several files only if all or none are Parquet")
    parts = []
    for file, cells in zip(files, tables, strict=True):
        num_rows = len(next(iter(cells.values()), ()))
        folder = file.absolute().parent.name
        in_folder = re.fullmatch(f"{SPLIT_NAME}([ _-]?(set|data|images|imgs))?", folder.lower())
        match = re.search(SPLIT_NAME, file.stem.lower()) or in_folder
        if "split" not in cells and not match:
            raise errors.UserError(
                f"--labels {file}: of several tables each needs a column split, or a split in its "
                "name or its folder's, such as train.csv or valid/labels.csv"
            )
        added = {} if not match or "split" in cells else {"split": pa.array([match[1]] * num_rows)}
        if in_folder and "path" in cells:
            # A table beside its pictures need not name their folder.
            path = cells["path"].cast(pa.string())
            whole = pc.binary_join_element_wise(folder, path, "/")
            added["path"] = pc.if_else(pc.starts_with(path, f"{folder}/"), path, whole)
        parts.append(pa.table(cells | added))
    try:
        joined = pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowException as error:
        raise errors.UserError(f"--labels: the tables do not fit together: {error}") from None
    return dict(zip(joined.column_names, joined.columns, strict=True))


def _shown(names: Collection[str]) -> str:
    return f"the columns {', '.join(list(names)[:30])}{', ...' if len(names) > 30 else ''}"


def _told_of_flags(cells: Columns) -> str:
    """Returns which flags read the columns of 0 and 1, if there are any."""
    values = {name: set(map(str, column.to_pylist())) for name, column in cells.items()}
    names = [name for name in values.keys() - OPTIONAL if values[name] <= {"0", "1"}]
    if len(names) < 2:
        return ""
    advice = f"; or with --label_columns {','.join(sorted(names, key=list(values).index))}"
    rows = zip(*(cells[name].to_pylist() for name in names), strict=True)
    is_one = all(list(map(str, row)).count("1") == 1 for row in rows)
    return advice + (" --one_class, as each row has one 1" if is_one else ", columns of 0 and 1")


def _renamed(file: Path, cells: Columns, renamed: Mapping[str, str], notes: list[str]) -> Columns:
    """Returns the columns with the names of `--columns`; notes those that are left out."""
    by_name: Columns = {}
    used = set[str]()
    for name, wanted in renamed.items():
        parts = [wanted] if wanted in cells else wanted.split("/")
        if absent := [part for part in parts if part not in cells]:
            raise errors.UserError(
                f"--columns {name}={wanted}: --labels {file} has no column {' or '.join(absent)}; "
                f"it has {_shown(cells)}"
            )
        used.update(parts)
        by_name[name] = cells[parts[0]]
        if len(parts) > 1:
            texts = [cells[part].cast(pa.string()) for part in parts]
            by_name[name] = pc.binary_join_element_wise(*texts, "/")
    kept = {name: column for name, column in cells.items() if name not in used}
    if taken := kept.keys() & by_name.keys():
        notes.append(
            f"left out the column {', '.join(sorted(taken))} of the table of --labels, whose place "
            "another one takes by --columns"
        )
    return kept | by_name


def _read_cells(
    file: str,
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
    """
    missing = (MISSING if has_texts else ()) if missing is None else missing
    read: Columns = {}
    written, counts = set[str](), []
    for name, column in cells.items():
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        texts = ("",) if name == "path" else ("", *missing)
        column = _as_text(file, name, column) if name in used else column
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            is_missing = pc.is_in(column, pa.array(texts, column.type))
            written.update(column.filter(is_missing).unique().to_pylist())
            column = pc.if_else(is_missing, None, column)
            if has_texts and name != "path":
                column = _without_point(column) if name in used else _with_numbers(column)
        else:
            column = _readable(file, name, column)
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


def _readable(file: str, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column with times in microseconds, the finest that Python has.

    Raises:
        errors.UserError: if Python cannot read a value.
    """
    kind = column.type
    with contextlib.suppress(ValueError, OverflowError, LookupError):
        if pa.types.is_timestamp(kind) and kind.unit == "ns":
            column = column.cast(pa.timestamp("us", kind.tz))
        if "[ns" not in str(column.type):
            column.to_pylist()
            return column
    raise errors.UserError(
        f"{file}: the column {name} ({kind}) has values that Python cannot read, such as "
        "nanoseconds or an unknown time zone; store it as text, or leave it out"
    )


def _as_text(file: str, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    column = _without_nan(column)
    try:
        if pa.types.is_floating(column.type):
            # Only if all are whole: Arrow would write 10^14 with an exponent.
            with contextlib.suppress(pa.ArrowInvalid):
                column = column.cast(pa.int64())
        return column.cast(pa.string())
    except pa.ArrowException:
        raise errors.UserError(
            f"{file}: expected text or numbers in the column {name}, received {column.type}"
        ) from None

"""A table of labels: a row for each image, with its class, patient and split.

The columns are `path` and `label`, and if they are there `patient`, `split` and `site`. Instead of
`label`, another column may hold the class or a number, or several columns a 0 or a 1 for each
label. Other columns become columns of examples.parquet. A cell without a value is null in all of
them.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing.options import ListingOptions
from pipelines.listing.table_cells import (
    naming,
    read_cells,
    read_labels,
    split_labels,
    without_faults,
)
from pipelines.listing.table_files import (
    FAULT,
    NOT_UTF_8,
    OPTIONAL,
    Columns,
    in_one_form,
    is_text,
    read_columns,
)
from tfrecord_io.format import kinds
from tfrecord_io.format.person import persons
from tfrecord_io.format.schema import SPLIT_NAME
from tfrecord_io.terminal.printing import counted


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
        label_names: all names, if a separator divides them or the file has an order; else empty.
        notes: what the user should know, one sentence each; they name columns of the table.
    """

    name: str
    cells: Mapping[str, Sequence[str | None]]
    others: Mapping[str, pa.ChunkedArray] = dataclasses.field(default_factory=dict)
    not_numbers: Mapping[int, str] = dataclasses.field(default_factory=dict)
    label_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def facts(self, row: int) -> tuple[object, ...]:
        """Returns what the table says of a row's image, besides other columns."""
        others = [cells[row] for name, cells in self.cells.items() if name != "path"]
        return (self.not_numbers.get(row), *others)

    @property
    def patients(self) -> Sequence[str | None]:
        """The patient of each row, with the site in front if there are sites."""
        cells = self.cells
        names = cells.get("patient") or [None] * len(cells["path"])
        if "site" not in cells:
            return names
        return persons(*map(pa.array, (names, cells["site"]))).to_pylist()

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
        for row in sorted(map(repr, zip(*columns, strict=True))):
            digest.update(row.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class Labels:
    """A table of labels as its files hold it; its cells are read when they are needed.

    Attributes:
        options: name the files, and say what the columns mean.
        columns: the cells by column, with `table_files.FAULT` if rows are wrong.
        notes: what the user should know about the files; they quote no cell.
        order: all names of classes, if the file has an order of them; else empty.
    """

    options: ListingOptions
    columns: Columns
    notes: Sequence[str]
    order: tuple[str, ...]

    def without(self, rows: Collection[int]) -> Labels:
        """Returns the table as if some rows, from 0, were not in its files."""
        if not rows:
            return self
        num_rows = len(self.columns["path"])
        kept = pa.array([row for row in range(num_rows) if row not in rows], pa.int64())
        columns = {name: column.take(kept) for name, column in self.columns.items()}
        if self.options.tables[0].suffix.lower() in (".json", ".jsonl"):
            # A column of JSON is there because one of its rows has it.
            for name in columns.keys() - self._used:
                if pc.all(pc.equal(columns[name], "")).as_py():
                    del columns[name]
        return dataclasses.replace(self, columns=columns)

    @functools.cached_property
    def names(self) -> LabelTable:
        """Its paths, patients, sites and splits; no other cell is looked at.

        Raises:
            errors.UserError: if these are not text or numbers.
        """
        used = [name for name in ("path", *OPTIONAL) if name in self.columns]
        with naming(_flag(self.options.tables)):
            cells = self._read({name: self.columns[name] for name in used}, [])
        names = {name: cells[name].to_pylist() for name in used}
        names["label"] = [""] * len(names["path"])
        return LabelTable(name=_names_of(self.options.tables), cells=names)

    @functools.cached_property
    def table(self) -> LabelTable:
        """All its columns.

        Raises:
            errors.UserError: if a row or a column cannot be read, a label is neither 0 nor 1, a row
                has no site, or a label looks like several.
        """
        with naming(_flag(self.options.tables)):
            return self._table()

    def _table(self) -> LabelTable:
        options, columns = self.options, without_faults(self.columns)
        notes = list(_quoted(self.notes, columns))
        cells = self._read(columns, notes)
        texts = {name: cells[name].to_pylist() for name in self._used & cells.keys()}
        if None in (sites := texts.get("site", ())):
            raise ValueError(
                f"row {sites.index(None) + 1:,} has no site, which is part of the patient; "
                "expected a site in each row, such as unknown (a site named NA needs --missing "
                "''). Rename the column if it means something else"
            )
        of_label = {name: texts[name] for name in options.cell_columns}
        if options.label_kind.is_number:
            of_label = {name: _with_points(name, numbers, options.decimal)
                        for name, numbers in of_label.items()}  # fmt: skip
        label_names, not_numbers = self.order, dict[int, str]()
        if options.label_separator:
            label, label_names = split_labels(of_label, options.label_separator)
        else:
            label, not_numbers = read_labels(of_label, options.label_kind, options.uncertain)
        # As in the table, and not with another decimal mark.
        not_numbers = {row: texts[options.cell_columns[0]][row] for row in not_numbers}
        notes += _notes_on_combined(dict.fromkeys(label), options)
        optional = {name: texts[name] for name in OPTIONAL if name in texts}
        return LabelTable(
            name=_names_of(options.tables),
            cells={"path": texts["path"], "label": label, **optional},
            others={name: column for name, column in cells.items() if name not in texts},
            not_numbers=not_numbers,
            label_names=label_names,
            notes=tuple(notes),
        )

    @property
    def _used(self) -> set[str]:
        return {"path", *self.options.cell_columns, *OPTIONAL}

    def _read(self, columns: Columns, notes: list[str]) -> Columns:
        has_texts = is_text(self.options.tables[0])
        return read_cells(has_texts, columns, self._used, self.options.missing, notes)


def read_table(options: ListingOptions) -> Labels | None:
    """Reads the table of `--labels`, or that of the source's own files; None without one.

    It may be in several files; the split of each is in its name or its folder's.

    Raises:
        errors.UserError: if a file cannot be read, `path` or a label column is missing, a column
            has the name of another column, or the split of a file is not known.
    """
    files, notes = options.tables, list[str]()
    if not files:
        return None
    if options.labels or not options.rows:
        raw = [read_columns(each, notes) for each in files]
    else:
        raw = [in_one_form(options.rows.columns(notes))]
    tables = [
        _renamed(*pair, options.columns or {}, notes) for pair in zip(files, raw, strict=True)
    ]
    columns = tables[0] if len(files) == 1 else _joined(files, tables)
    if absent := [name for name in ("path", *options.cell_columns) if name not in columns]:
        raise errors.UserError(
            f"{_flag(files)} has {_shown(columns)}, and needs {' and '.join(absent)}; name yours "
            f"with --columns {','.join(f'{name}=COLUMN' for name in absent)}"
            f"{_told_of_flags(columns) if absent == ['label'] else ''}"
            + "".join(f"; {note}" for note in notes if note != NOT_UTF_8)
        )
    order = () if options.labels else _order(columns[options.cell_columns[0]])
    return Labels(options, columns, tuple(notes), order)


def _flag(files: Sequence[Path]) -> str:
    """Returns how a user names these files, for messages."""
    return f"--labels {','.join(map(str, files))}"


def _names_of(files: Sequence[Path]) -> str:
    return ", ".join(each.name for each in files)


def _notes_on_combined(labels: Collection[str], options: ListingOptions) -> list[str]:
    """Returns a note if a class may be several, such as `wet;active`.

    Raises:
        ValueError: if a part of it is in other classes, too.
    """
    if options.label_kind != kinds.CLASSES or options.classes or options.one_class:
        return []
    for separator in ("|", ";"):
        if not (several := [name for name in labels if separator in name]):
            continue
        text = (
            f"the label {several[0]!a} may be several; --label_separator '{separator}' divides "
            "it, and --classes names the classes if it is one"
        )
        parts = [part.strip() for name in several for part in name.split(separator)]
        if options.rows or len({*parts, *labels}) < len(parts) + len(labels):
            raise ValueError(text)
        return [text]
    return []


def _quoted(notes: Sequence[str], cells: Columns) -> Iterator[str]:
    """Yields notes; that on an encoding is last, and quotes a text which it may have changed."""
    yield from (note for note in notes if note != NOT_UTF_8)
    if NOT_UTF_8 in notes:
        texts = itertools.chain(cells, *(column.to_pylist() for column in cells.values()))
        shown = next((text for text in texts if not (text or "").isascii()), None)
        if shown:
            yield f"{NOT_UTF_8}: {shown!r:.30}; if that is wrong, store it as UTF-8"


def _with_points(column: str, cells: Sequence[str | None], decimal: str) -> Sequence[str | None]:
    """Returns numbers with a decimal point; those with a comma need the flag that says so."""
    if decimal == ",":
        # A point would divide thousands, and is not read.
        return [cell and cell.replace(".", "?").replace(",", ".") for cell in cells]
    with_comma = [cell for cell in cells if cell and re.fullmatch(r"[+-]?\d*,\d+", cell)]
    if with_comma:
        raise ValueError(
            f"the column {column} has a comma in {counted(len(with_comma), 'number')}, such as "
            f"{with_comma[0]!a}; --decimal , reads it as the decimal mark. If it divides "
            "thousands, write the numbers without it"
        )
    return cells


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
    shown = [name for name in names if name != FAULT]
    return f"the columns {', '.join(shown[:30])}{', ...' if len(shown) > 30 else ''}"


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

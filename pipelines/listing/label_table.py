"""A table of labels: a row for each image, with its class, patient and split.

Two kinds of file are read: CSV (with commas, semicolons or tabs) and Parquet. The columns are
`path` and `label`, and if they are there `patient`, `split` and `site`. Instead of `label`, another
column may hold the class or a number, or several columns a 0 or a 1 for each label. Other columns
become columns of examples.parquet; one of them, `weight`, says how much an example counts in
training. A cell without a value is null in all of them: in CSV the texts of `MISSING`, in Parquet
null and NaN.
"""

from __future__ import annotations

import codecs
import collections
import dataclasses
import hashlib
import math
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from pipelines import errors
from pipelines.listing.members import looks_like_image
from tfrecord_io.kinds.classes import CLASSES
from tfrecord_io.kinds.label_kind import LabelKind
from tfrecord_io.kinds.numbers import number_text
from tfrecord_io.manifest import WEIGHT

#: Columns that a table may have besides `path` and the labels, each with a meaning of its own.
OPTIONAL = ("patient", "split", "site")
_DELIMITERS = (",", ";", "\t")

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelTable:
    """The rows of a label table.

    Attributes:
        name: of its file, for messages.
        path: of each row's image, with `/` between folders.
        label: of each row; "" if the table gives none. `tfrecord_io.kinds` defines the text
            of several labels and of a number.
        label_columns: columns of several labels or of a number; empty if each row has one class.
        patient: of each row, None where the table gives none; None without such a column.
        split: likewise.
        site: of each row, which is part of the patient; None without such a column.
        others: the other columns of the file, a row for each row of the table; None if it has none.
        not_numbers: what the table has instead of a finite number, by row.
        notes: what the user should know, one sentence each; they name columns of the table.
    """

    name: str
    path: Sequence[str]
    label: Sequence[str]
    label_columns: tuple[str, ...] = ()
    patient: Sequence[str | None] | None
    split: Sequence[str | None] | None
    site: Sequence[str] | None = None
    others: pa.Table | None = None
    not_numbers: Mapping[int, str] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def facts(self, row: int) -> tuple[object, ...]:
        """Returns label, patient, split and site of a row, as far as the table has them."""
        columns = (self.label, self.patient, self.split, self.site)
        return (self.not_numbers.get(row), *(column[row] for column in columns if column))

    @property
    def digest(self) -> str:
        """Hexadecimal SHA-256 of the rows, whatever their order and kind of file."""
        columns = [self.path, self.label, self.patient, self.split]
        present = [column for column in columns if column is not None]
        names = [column is not None for column in columns]
        digest = hashlib.sha256(repr(names).encode())
        # Absent without a site or other columns, so that such tables keep their digest.
        if self.site is not None:
            digest.update(b"site")
            present.append(self.site)
        if self.others is not None:
            digest.update(repr([(f.name, str(f.type)) for f in self.others.schema]).encode())
            present += [column.to_pylist() for column in self.others.columns]
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
        file: the table.
        kind: what an image's label can be.
        columns: the column with the class or the number, or those with a 0 or a 1 for each of
            several labels.
        missing: texts of cells that have no value, of a CSV and a Parquet file. By default these
            are `MISSING` in a CSV file, and none in a Parquet file.
        renamed: columns of the file by the names that they get, see `--columns`.

    Raises:
        errors.UserError: if the file cannot be read, has no `path` or no label column, a column has
            the name of another column, a label is neither 0 nor 1, a row has no
            site, or a weight is not a number of at least 0.
    """
    used = ("path", *columns)
    is_csv = file.suffix.lower() != ".parquet"
    cells = _read_cells(file, is_csv)
    notes = _rename(file, cells, renamed or {})
    if absent := [name for name in used if name not in cells]:
        shown = ", ".join(list(cells)[:30]) + (", ..." if len(cells) > 30 else "")
        raise errors.UserError(
            f"--labels {file} has the columns {shown}, and needs {' and '.join(absent)}; name "
            f"yours with --columns {','.join(f'{name}=COLUMN' for name in absent)}"
        )
    notes += _drop_odd_columns(cells, [name for name in cells if name not in (*used, *OPTIONAL)])
    names = [name for name in cells if name not in (*used, *OPTIONAL)]
    without_value = ("", *(MISSING if missing is None else missing)) if is_csv else missing or ()
    notes = (*_put_nulls(cells, without_value), *notes)
    if is_csv:
        cells |= {name: _with_numbers(cells[name]) for name in names}
    if WEIGHT in names:
        cells[WEIGHT] = pa.chunked_array([_weights(file, cells[WEIGHT])])
    texts = {
        name: _as_text(file, name, cells[name]) for name in (*used, *OPTIONAL) if name in cells
    }
    try:
        label, not_numbers = kind.read_columns({name: texts[name] for name in columns})
    except ValueError as error:
        raise errors.UserError(f"--labels {file}: {error}") from None
    return LabelTable(
        name=file.name,
        path=[_normal(path or "") for path in texts["path"]],
        label=label,
        label_columns=() if kind.one_hot else tuple(columns),
        patient=_optional(texts.get("patient")),
        split=_optional(texts.get("split")),
        site=_sites(file, texts["site"]) if "site" in texts else None,
        others=pa.table({name: cells[name] for name in names}).combine_chunks() if names else None,
        not_numbers=not_numbers,
        notes=notes,
    )


def match_files(
    names: Sequence[str], table: LabelTable
) -> tuple[list[int | None], list[tuple[int, str]], int]:
    """Finds the row of each file.

    A row belongs to the file whose name in the source is its path. If there is none, it belongs to
    the file whose name ends with its path, if there is only one: so a table may leave out the
    leading folders, or all of them, and the ending of the name. Names may be in another Unicode
    form there: macOS writes an umlaut of a file's name as two characters, and a spreadsheet as one.

    Returns:
        the row of each file, None for a file without one; (row, why) of each row without a file;
        and the number of rows that repeat what another one says of its file. Rows count from 0.

    Raises:
        errors.UserError: if two rows say different things of one file.
    """
    by_name = {name: place for place, name in enumerate(names)}
    composed = [_composed(name) for name in names]
    by_base: dict[str, list[int]] = collections.defaultdict(list)
    by_stem: dict[str, list[int]] = collections.defaultdict(list)
    for place, name in enumerate(composed):
        base = name.rpartition("/")[2]
        by_base[base].append(place)
        if "." in base:
            by_stem[base.rpartition(".")[0]].append(place)
    row_of_file: list[int | None] = [None] * len(names)
    without: list[tuple[int, str]] = []
    num_repeated = 0
    for row, path in enumerate(table.path):
        place = by_name.get(path)
        if place is None:
            wanted = _composed(path)
            base = wanted.rpartition("/")[2]
            found = [
                place
                for place in by_base.get(base, ())
                if f"/{composed[place]}".endswith(f"/{wanted}")
            ] or [
                place
                for place in by_stem.get(base, ())
                if f"/{composed[place].rpartition('.')[0]}".endswith(f"/{wanted}")
            ]
            # Beside a picture there may be a text of the same name.
            found = [place for place in found if looks_like_image(names[place])] or found
            if len(found) != 1:
                without.append((row, _why_without(names, found)))
                continue
            (place,) = found
        other = row_of_file[place]
        if other is None:
            row_of_file[place] = row
        elif table.facts(other) == table.facts(row):
            num_repeated += 1
        else:
            raise errors.UserError(
                f"--labels {table.name}: rows {other + 1:,} and {row + 1:,} both name "
                f"{names[place]!a}, and differ in label, patient, split or site; a file needs one "
                "row"
            )
    return row_of_file, without, num_repeated


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


def _composed(path: str) -> str:
    return unicodedata.normalize("NFC", path)


def _optional(column: list[str | None] | None) -> list[str | None] | None:
    return None if column is None else [value or None for value in column]


def _sites(file: Path, cells: Sequence[str | None]) -> list[str]:
    sites = [(cell or "").strip() for cell in cells]
    if "" in sites:
        raise errors.UserError(
            f"--labels {file}: row {sites.index('') + 1:,} has nothing in the column site, which "
            "is part of the patient; expected a site in each row, such as unknown (a site named "
            "NA needs --missing ''). Rename the column if it means something else"
        )
    return sites


def _read_cells(file: Path, is_csv: bool) -> dict[str, pa.ChunkedArray]:
    """Returns the columns of a table by name.

    They are not in an Arrow table, which would be copied for each column that changes.
    """
    try:
        table = _read_csv(file) if is_csv else pq.read_table(file)
        columns = [_plain(column) for column in table.columns]
    except OSError as error:
        raise errors.UserError(f"--labels {file} could not be read: {error}") from None
    except (UnicodeDecodeError, pa.ArrowException) as error:
        raise errors.UserError(
            f"--labels {file} could not be read: {error}; expected Parquet, or CSV in UTF-8"
        ) from None
    counts = collections.Counter(table.column_names)
    if repeated := sorted(name for name, count in counts.items() if count > 1):
        raise errors.UserError(
            f"--labels {file} has the column {', '.join(repeated)} more than once; rename it, or "
            "leave it out"
        )
    return dict(zip(table.column_names, columns, strict=True))


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column without a dictionary or views.

    An Arrow file can hold one dictionary for each column, but its batches may have several.
    """
    views = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column.cast(views[column.type]) if column.type in views else column


def _rename(
    file: Path, cells: dict[str, pa.ChunkedArray], renamed: Mapping[str, str]
) -> tuple[str, ...]:
    """Gives columns the names of `--columns`, and returns notes on those that are left out."""
    notes: tuple[str, ...] = ()
    if cells.pop("", None) is not None:  # the row numbers that pandas and R write
        notes = ("left out the column without a name of the table of --labels",)
    found: dict[str, pa.ChunkedArray] = {}
    used = set[str]()
    for name, wanted in renamed.items():
        parts = [wanted] if wanted in cells else wanted.split("/")
        if absent := [part for part in parts if part not in cells]:
            raise errors.UserError(
                f"--columns {name}={wanted}: --labels {file} has no column {' or '.join(absent)}; "
                f"it has {', '.join(list(cells)[:30])}"
            )
        used.update(parts)
        found[name] = cells[parts[0]]
        if len(parts) > 1:
            texts = [cells[part].cast(pa.string()) for part in parts]
            found[name] = pc.binary_join_element_wise(*texts, "/")
    for name in used:
        del cells[name]
    if taken := cells.keys() & found.keys():
        notes += (
            f"left out the column {', '.join(sorted(taken))} of the table of --labels, whose place "
            "another one takes by --columns",
        )
    cells.update(found)
    return notes


def _drop_odd_columns(cells: dict[str, pa.ChunkedArray], names: Sequence[str]) -> tuple[str, ...]:
    """Drops those of the columns that Python cannot read, and returns a note on them.

    Such are times with nanoseconds, years beyond 9999, and time zones that are not known here.
    """
    odd = []
    for name in names:
        kind = cells[name].type
        try:
            if pa.types.is_timestamp(kind) and kind.unit == "ns":
                # Where pandas is installed, Arrow returns nanoseconds as objects of pandas. The
                # cast fails if it would lose a digit.
                cells[name] = cells[name].cast(pa.timestamp("us", kind.tz))
            elif "[ns" in str(kind):
                raise ValueError("nanoseconds")
            if not (pa.types.is_string(kind) or pa.types.is_floating(kind)):
                cells[name].to_pylist()
        except (ValueError, OverflowError, LookupError):
            odd.append(f"{name} ({kind})")
            del cells[name]
    if not odd:
        return ()
    return (
        f"left out the column {', '.join(odd)} of the table of --labels: some of its values have "
        "no form in Python, such as times with nanoseconds or an unknown time zone; store it as "
        "text to keep it",
    )


def _put_nulls(cells: dict[str, pa.ChunkedArray], missing: Collection[str]) -> tuple[str, ...]:
    """Puts null in place of NaN and of the texts `missing`, and returns a note on them.

    The paths stay as they are.
    """
    written = set[str]()
    for name in cells.keys() - {"path"}:
        column = cells[name]
        if pa.types.is_floating(column.type):
            cells[name] = pc.if_else(pc.is_nan(column), None, column)
        elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            is_missing = pc.is_in(column, pa.array(missing, column.type))
            written.update(pc.unique(column.filter(is_missing)).to_pylist())
            cells[name] = pc.if_else(is_missing, None, column)
    counts = [
        f"{column.null_count:,} in {name}"
        for name, column in cells.items()
        if name != "path" and column.null_count
    ]
    if not counts:
        return ()
    texts = " or ".join(map(ascii, sorted(written)))
    return (
        f"cells without a value in the table of --labels: {', '.join(counts)}"
        + (f" (written {texts}; --missing says which texts count as none)" if texts else ""),
    )


def _with_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column of text as numbers if all of it that is not null is numbers."""
    for pattern, kind in _NUMBERS:
        if (
            column.null_count < len(column)
            and pc.all(pc.match_substring_regex(column, pattern)).as_py()
        ):
            return column.cast(kind)
    return column


def _weights(file: Path, column: pa.ChunkedArray) -> pa.Array:
    """Returns how much each row counts in training, float64."""
    weights = []
    for number, text in enumerate(_as_text(file, WEIGHT, column), 1):
        weight = float(text) if text and number_text(text) else math.nan
        if not 0 <= weight < math.inf:
            raise errors.UserError(
                f"--labels {file}: row {number:,} has {text or ''!a} in the column {WEIGHT}, by "
                "which images count in training; expected a number of at least 0. Rename the "
                "column if it means something else"
            )
        weights.append(weight)
    return pa.array(weights, pa.float64())


def _as_text(file: Path, name: str, column: pa.ChunkedArray) -> list[str | None]:
    try:
        return column.cast(pa.string()).to_pylist()
    except pa.ArrowException:
        raise errors.UserError(
            f"--labels {file}: expected text or numbers in the column {name}, received "
            f"{column.type}"
        ) from None


def _read_csv(file: Path) -> pa.Table:
    """Reads the columns as text, so that a patient 007 stays 007."""
    with file.open("rb") as opened:
        if opened.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise errors.UserError(
                f"--labels {file} is UTF-16, expected UTF-8; save it as CSV UTF-8, or convert it: "
                "iconv -f UTF-16 -t UTF-8"
            )
    with file.open(encoding="utf-8-sig", errors="replace") as lines:
        header = lines.readline()
    delimiter = max(_DELIMITERS, key=header.count)
    # By default Arrow cuts the file into blocks at any line break, also at one within quotes.
    parse = pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    with pacsv.open_csv(file, parse_options=parse) as reader:
        names = reader.schema.names
    return pacsv.read_csv(
        file,
        parse_options=parse,
        convert_options=pacsv.ConvertOptions(
            column_types={name: pa.string() for name in names}, strings_can_be_null=False
        ),
    )

"""Tables of labels with odd cells: spaces, texts for no value, -0.0, 1.0, dates, old encodings.

Each image must have the label, the patient and the other facts of its row, as a reading of the file
with `csv` or `pyarrow` alone finds them, by the rules of docs/labels.md; or it is a reject.
"""

import csv
import datetime
import io
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from image_files import write_tree
from listed import list_source

from campaign import trees
from campaign.case import Case
from pipelines import errors
from pipelines.listing.refs import iterate_refs
from pipelines.sources.directory import DirectorySource

#: What pandas, R and spreadsheets write in a cell that has no value.
_MISSING = ("", "NA", "NaN", "nan", "N/A", "n/a", "null", "NULL", "None", "<NA>", "#N/A", "-nan")
_OWN = ("-9", "unknown", "?")
#: Texts that look like those, and are values.
_ALIKE = ("none", "na", "Nan", "N.A.", "-", "0", "NA.", "missing", "x NA", "no")
_FOREIGN = ("Müller", "José", "Ø7")  # which Windows-1252 has, too
#: Kinds of cells: texts as in a CSV, or values as in a Parquet file.
_CELLS: dict[str, Sequence[Any]] = {
    "class": ("CNV", "DME", *_ALIKE),
    "name": ("p1", "p2", "007", "1E5", *_ALIKE, *_FOREIGN),
    "whole": ("1", "2.0", "-0", "0", "17.0", "1.0"),
    "code": ("1.0", "250.00", "1.10", "3"),
    "number": ("0", "1", "-3", "2.5", "17", "-0.0"),
    "bit": ("0", "1", "1.0", "0.0"),
    "date": ("2024-02-29", "1899-12-31 10:00:00"),
    "float": (0.0, -0.0, 1.0, 2.0, float("nan")),
    "one or zero": (0.0, -0.0, 1.0),
    "time": (datetime.datetime(2024, 2, 29), datetime.datetime(1700, 1, 1)),
}
#: Columns of each kind of label, and the kinds of cells in each of them.
_COLUMNS = {
    "classes": {"label": ("class", "whole", "code")},
    "label_columns": {"a": ("bit",), "b": ("bit",)},
    "target": {"score": ("number", "whole")},
}
_PATIENTS, _OTHERS = ("name", "whole", "code"), ("name", "whole", "number", "date")
_ENCODINGS = ("utf-8", "utf-8", "utf-8-sig", "utf-16", "cp1252")


def try_table(case: Case) -> str:
    """Lists a folder by a table and compares labels, patients and another column."""
    kind, is_parquet, share = case.pick(*_COLUMNS), case.happens(0.4), case.pick(0, 0.1, 0.5, 0.95)
    own = is_parquet or case.happens(0.3)  # a Parquet file has nulls, and texts if one says so
    options: dict[str, Any] = {"missing": _OWN} if own else {}
    if kind != "classes":
        options[kind] = tuple(_COLUMNS[kind]) if kind == "label_columns" else "score"
    cells = {name: case.pick(*kinds) for name, kinds in _COLUMNS[kind].items()}
    cells |= {"patient": case.pick(*_PATIENTS)} if case.happens(0.7) else {}
    cells |= {"age": case.pick(*_OTHERS)} if case.happens(0.5) else {}
    if is_parquet:
        floats = {"bit": "one or zero", "class": "class"}
        cells = {name: case.pick(each, floats.get(each, "float")) for name, each in cells.items()}
        cells |= {"visit": "time"} if case.happens(0.3) else {}
    names = [f"scan {number}.png" for number in range(case.rng.randrange(2, 40))]
    scans = write_tree(
        case.folder / "scans", {name: trees.picture(case.rng.getrandbits(32)) for name in names}
    )
    missing = _OWN if own else _MISSING
    columns = {"path": names} | {
        name: [None if case.happens(share) else case.pick(*_CELLS[each]) for _ in names]
        for name, each in cells.items()
    }
    table = case.folder / ("labels.parquet" if is_parquet else "labels.csv")
    written = (_write_parquet if is_parquet else _write_csv)(case, table, columns, missing)
    case.what = f"{kind}, {cells}, {written}, {len(names)} rows, {share:.0%} missing, own {own}"
    rows = _read(table, missing, {"patient", *_COLUMNS[kind]})
    wanted = {row["path"]: _LABELS[kind](row) for row in rows}
    known = {row["path"]: row for row in rows if wanted[row["path"]] is not None}
    try:
        listing = list_source(DirectorySource(scans), labels=table, **options)
    except errors.UserError as error:
        case.require(not known, f"a table with labels is refused: {error}")
        case.require_message(f"error: {error}")
        return "refused"
    refs = {ref.path: ref for ref in iterate_refs(listing.table)}
    found = {path: _PARSED[kind](ref.label) for path, ref in refs.items()}
    case.compare("labels", found, {path: wanted[path] for path in known})
    if "patient" in cells:
        patients = {path: row["patient"] for path, row in known.items()}
        case.compare("patients", {path: ref.patient for path, ref in refs.items()}, patients)
    for name in cells.keys() & {"age", "visit"}:
        values = listing.table[f"other:{name}"].to_pylist()
        found = dict(zip(listing.table["path"].to_pylist(), values, strict=True))
        case.compare(name, found, {path: row[name] for path, row in known.items()})
    rejects = {reject.source_path: reject.reason for reject in listing.ledger.rejects}
    case.compare("rejects", rejects, dict.fromkeys(set(names) - known.keys(), "no_label"))
    return "read"


def _bits(row: Mapping[str, Any]) -> set[str] | None:
    values = {name: row[name] for name in _COLUMNS["label_columns"]}
    if None in values.values():
        return None
    return {name for name, value in values.items() if float(value) == 1} or {"none"}


#: The label that a row must give, and a label of the build as a value to compare it with.
_LABELS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "classes": lambda row: row["label"],
    "label_columns": _bits,
    "target": lambda row: None if row["score"] is None else float(row["score"]),
}
_PARSED: dict[str, Callable[[str], Any]] = {
    "classes": str, "target": float, "label_columns": lambda text: set(text.split("|")),
}  # fmt: skip


# ---- writing


def _write_csv(
    case: Case, path: Path, columns: Mapping[str, Sequence[Any]], missing: Sequence[str]
) -> str:
    def spaced(text: str) -> str:
        return (
            f"{case.pick('', ' ', '  ')}{text}{case.pick('', ' ')}" if case.happens(0.2) else text
        )

    file = io.StringIO(newline="")
    quoting = case.pick(csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
    writer = csv.writer(file, delimiter=case.pick(",", ";", "\t"), quoting=quoting)
    writer.writerow(map(spaced, columns))
    rows = list(zip(*columns.values(), strict=True))
    case.rng.shuffle(rows)
    for row in rows:
        writer.writerow(spaced(case.pick(*missing) if cell is None else cell) for cell in row)
    encoding = case.pick(*_ENCODINGS)
    path.write_bytes(file.getvalue().encode(encoding))
    return encoding


def _write_parquet(
    case: Case, path: Path, columns: Mapping[str, Sequence[Any]], missing: Sequence[str]
) -> str:
    made = {}
    for name, cells in columns.items():
        values = list(cells)
        is_text = any(isinstance(value, str) for value in values)
        if is_text and name != "path":
            values = [case.pick(None, *missing) if value is None else value for value in values]
            values = [f" {v}" if v is not None and case.happens(0.1) else v for v in values]
        kind = case.pick(pa.string(), pa.large_string()) if is_text else None
        if any(isinstance(value, datetime.datetime) for value in values):
            kind = pa.timestamp(case.pick("us", "ms", "ns", "s"))
        if not kind and any(isinstance(value, float) for value in values):
            kind = case.pick(pa.float64(), pa.float32())
        array = pa.array(values, kind or pa.string())
        made[name] = array.dictionary_encode() if is_text and case.happens(0.2) else array
    pq.write_table(pa.table(made), path)
    return ", ".join(str(array.type) for array in made.values())


# ---- reading

_WHOLE, _DECIMAL = r"(0|-?[1-9][0-9]*)", r"(0|-?[1-9][0-9]*|-?(0|[1-9][0-9]*)\.[0-9]+)"


def _read(path: Path, missing: Sequence[str], named: Collection[str]) -> list[dict[str, Any]]:
    """Returns the rows of a table, in which the cells of the `named` columns are texts."""
    if is_text := path.suffix == ".csv":
        text = _decoded(path.read_bytes())
        delimiter = max(",;\t", key=text.partition("\n")[0].count)
        header, *lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        cells = dict(zip(map(str.strip, header), zip(*lines, strict=True), strict=True))
    else:
        table = pq.read_table(path)
        coarser = {pa.timestamp("ns"): pa.timestamp("us")}  # which Python has
        fields = [(field.name, coarser.get(field.type, field.type)) for field in table.schema]
        cells = table.cast(pa.schema(fields)).to_pydict()
    columns = []
    for name, values in cells.items():
        values = [value.strip() if isinstance(value, str) else value for value in values]
        values = [None if v in ("", *missing) or v != v else v for v in values]
        values = [value + 0.0 if isinstance(value, float) else value for value in values]
        known = [value for value in values if value is not None]
        if name in named:
            is_float = any(isinstance(value, float) for value in known)
            pattern = r"-?(0|[1-9][0-9]*)(\.0)?" if is_text or is_float else "no text is a number"
            if all(re.fullmatch(pattern, str(value)) for value in known):
                values = [value if value is None else str(int(float(value))) for value in values]
            values = [value if value is None else str(value) for value in values]
        elif is_text and known:
            for pattern, parse in ((_DECIMAL, float), (_WHOLE, int)):
                if all(re.fullmatch(pattern, str(value)) for value in known):
                    values = [value if value is None else parse(value) for value in values]
        columns.append(values)
    return [dict(zip(cells, row, strict=True)) for row in zip(*columns, strict=True)]


def _decoded(content: bytes) -> str:
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252")

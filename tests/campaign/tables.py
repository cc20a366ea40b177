"""Tables of labels with cells that have no value: each image keeps its label, or is a reject.

How each cell was written is known here, so the build's reading of it is compared with that alone.
"""

import csv
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from image_files import write_tree

from campaign import trees
from campaign.case import Case
from pipelines import errors
from pipelines.listing.listing import ListingOptions, list_images
from pipelines.listing.refs import iterate_refs
from pipelines.sources.directory import DirectorySource

#: What pandas, R and spreadsheets write in a cell that has no value.
_MISSING = ("", "NA", "NaN", "nan", "N/A", "n/a", "null", "NULL", "None", "<NA>", "#N/A", "-nan")
#: Texts that look like those, and are values.
_ALIKE = ("none", "na", "Nan", "N.A.", "-", "0", "NA.", "missing", "x NA", "no")
_OWN = ("-9", "unknown", "?")
#: Values to choose from, by the column.
_VALUES = {
    "label": ("CNV", "DME", *_ALIKE),
    "score": ("0", "1", "-3", "2.5", "17"),
    "a": ("0", "1"),
    "b": ("0", "1"),
}
_COLUMNS = {"classes": ("label",), "label_columns": ("a", "b"), "target": ("score",)}

_Row = dict[str, str | None]


def try_table(case: Case) -> str:
    """Lists a folder by a table and compares labels and patients."""
    kind, is_parquet, share = case.pick(*_COLUMNS), case.happens(0.4), case.pick(0, 0.1, 0.5, 0.95)
    own = is_parquet or case.happens(0.3)  # a Parquet file has nulls, and texts if one says so
    columns, num_images = _COLUMNS[kind], case.rng.randrange(2, 40)
    options: dict[str, Any] = {"missing": _OWN} if own else {}
    if kind != "classes":
        options[kind] = columns if kind == "label_columns" else "score"
    named = ("path", *columns, "patient") if case.happens(0.7) else ("path", *columns)
    rows: list[_Row] = []
    for number in range(num_images):
        values = {name: case.pick(*_VALUES[name]) for name in columns}
        values["patient"] = case.pick(f"p{number // 2}", *_ALIKE)
        cells = {name: None if case.happens(share) else text for name, text in values.items()}
        rows.append({"path": f"scan {number}.png", **cells})
    scans = case.folder / "scans"
    write_tree(scans, {row["path"]: trees.picture(case.rng.getrandbits(32)) for row in rows})
    case.rng.shuffle(rows)
    table = case.folder / ("labels.parquet" if is_parquet else "labels.csv")
    write = _write_parquet if is_parquet else _write_csv
    write(case, table, [{n: row[n] for n in named} for row in rows], _OWN if own else _MISSING)
    case.what = f"{kind}, {table.suffix}, {num_images} rows, {share:.0%} missing, own {own}"
    known = [row for row in rows if None not in map(row.get, columns)]
    wanted = {row["path"]: _label(kind, row) for row in known}
    try:
        listing = list_images(DirectorySource(scans), ListingOptions(labels=table, **options))
    except errors.UserError as error:
        case.require(not wanted, "a table with labels is refused")
        case.require_message(f"error: {error}")
        return "refused"
    refs = {ref.path: ref for ref in iterate_refs(listing.refs)}
    case.compare("labels", {p: _PARSED[kind](ref.label) for p, ref in refs.items()}, wanted)
    if "patient" in named:
        patients = {row["path"]: row["patient"] for row in known}
        case.compare("patients", {path: ref.patient for path, ref in refs.items()}, patients)
    rejects = {reject.source_path: reject.reason for reject in listing.rejects}
    without = {row["path"] for row in rows} - wanted.keys()
    case.compare("rejects", rejects, dict.fromkeys(without, "no_label"))
    return "read"


#: A label of the build as a value that can be compared.
_PARSED = {"classes": str, "target": float, "label_columns": lambda text: set(text.split("|"))}


def _label(kind: str, row: _Row) -> object:
    """Returns the label that an image must have, as `_PARSED` gives it."""
    if kind == "label_columns":
        return {name for name in _COLUMNS[kind] if row[name] == "1"} or {"none"}
    return _PARSED[kind](row[_COLUMNS[kind][0]])


def _write_csv(case: Case, path: Path, rows: list[_Row], spellings: tuple[str, ...]) -> None:
    with path.open("w", encoding=case.pick("utf-8", "utf-8-sig"), newline="") as file:
        quoting = case.pick(csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
        writer = csv.writer(file, delimiter=case.pick(",", ";", "\t"), quoting=quoting)
        writer.writerow(rows[0])
        for row in rows:
            writer.writerow(case.pick(*spellings) if v is None else v for v in row.values())


def _write_parquet(case: Case, path: Path, rows: list[_Row], spellings: tuple[str, ...]) -> None:
    columns = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if name in ("path", "label", "patient"):
            if case.happens(0.5):
                values = [case.pick(None, *spellings) if v is None else v for v in values]
            columns[name] = pa.array(values, case.pick(pa.string(), pa.large_string()))
        else:
            empty = case.pick(None, float("nan"))
            columns[name] = pa.array([empty if v is None else float(v) for v in values])
    pq.write_table(pa.table(columns), path)

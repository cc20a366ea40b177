"""Tables of labels with cells that have no value: each image keeps its label, or is a reject.

How each cell was written is known here, so the build's reading of it is compared with that alone.
"""

from __future__ import annotations

import collections
import csv
import io
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from campaign import archives, trees
from campaign.processes import Outcome
from pipelines import errors
from pipelines.listing.listing import ListingOptions, list_images
from pipelines.listing.refs import iterate_refs
from pipelines.sources.directory import DirectorySource

#: What pandas, R and spreadsheets write in a cell that has no value.
_MISSING = ("", "NA", "NaN", "nan", "N/A", "n/a", "null", "NULL", "None", "<NA>", "#N/A", "-nan")
#: Texts that look like those, and are values.
_ALIKE = ("none", "na", "Nan", "N.A.", "-", "0", "NA.", "missing", "x NA", "no")
_OWN = ("-9", "unknown", "?")


def try_case(rng: random.Random, folder: Path) -> Outcome:
    """Lists a folder by a table and compares labels and patients."""
    kind = rng.choice(("classes", "label_columns", "target"))
    is_parquet = rng.random() < 0.4
    own = is_parquet or rng.random() < 0.3  # a Parquet file has nulls, and texts if one says so
    spellings = _OWN if own else _MISSING
    options: dict[str, Any] = {"missing": _OWN} if own else {}
    columns = {"classes": ["label"], "label_columns": ["a", "b"], "target": ["score"]}[kind]
    if kind != "classes":
        options[kind] = tuple(columns) if kind == "label_columns" else "score"
    share = rng.choice((0.0, 0.1, 0.5, 0.95))
    num_images = rng.randrange(2, 40)
    rows = [_row(rng, kind, columns, number, share) for number in range(num_images)]
    scans = folder / "scans"
    scans.mkdir()
    for row in rows:
        (scans / row["path"]).write_bytes(trees.picture(rng.getrandbits(32)))
    rng.shuffle(rows)
    names = ["path", *columns, *(["patient"] if rng.random() < 0.7 else [])]
    table = folder / ("labels.parquet" if is_parquet else "labels.csv")
    write = _write_parquet if is_parquet else _write_csv
    write(rng, table, [{name: row[name] for name in names} for row in rows], spellings)
    what = f"{kind}, {table.suffix}, {num_images} rows, {share:.0%} missing, own {own}"
    wanted_labels = {
        row["path"]: row for row in rows if all(row[name] is not None for name in columns)
    }
    try:
        listing = list_images(DirectorySource(scans), ListingOptions(labels=table, **options))
    except errors.UserError as error:
        complaint = [] if not wanted_labels else [f"a table with labels is refused: {error}"]
        return "refused", [*archives.about(str(error)), *complaint], what
    problems = []
    reasons = collections.Counter(reject.reason for reject in listing.rejects)
    if reasons != +collections.Counter(no_label=num_images - len(wanted_labels)):
        problems.append(f"{len(wanted_labels)} of {num_images} have a label, rejects: {reasons}")
    found = {ref.path: ref for ref in iterate_refs(listing.refs)}
    if found.keys() != wanted_labels.keys():
        problems.append(f"other images: {found.keys() ^ wanted_labels.keys()}")
    for path in found.keys() & wanted_labels.keys():
        ref, row = found[path], wanted_labels[path]
        if kind == "classes" and ref.label != row["label"]:
            problems.append(f"{path} is {ref.label!r} instead of {row['label']!r}")
        if kind == "target" and float(ref.label) != float(row["score"]):
            problems.append(f"{path} is {ref.label!r} instead of {row['score']!r}")
        if kind == "label_columns":
            given = {name for name in columns if row[name] == "1"} or {"none"}
            if set(ref.label.split("|")) != given:
                problems.append(f"{path} is {ref.label!r} instead of {given}")
        if "patient" in names and ref.patient != row["patient"]:
            problems.append(f"{path} is of {ref.patient!r} instead of {row['patient']!r}")
    return "read", problems, what


def _row(
    rng: random.Random, kind: str, columns: list[str], number: int, share: float
) -> dict[str, str | None]:
    """Returns the values of a row, None for those that are missing."""

    def cell(value: str) -> str | None:
        return None if rng.random() < share else value

    row: dict[str, str | None] = {"path": f"scan {number}.png"}
    for name in columns:
        if kind == "classes":
            row[name] = cell(rng.choice(("CNV", "DME", *_ALIKE)))
        elif kind == "target":
            row[name] = cell(str(rng.choice((0, 1, -3, 2.5, 17))))
        else:
            row[name] = cell(rng.choice("01"))
    row["patient"] = cell(rng.choice((f"p{number // 2}", *_ALIKE)))
    return row


def _write_csv(
    rng: random.Random, path: Path, rows: list[dict[str, str | None]], spellings: tuple[str, ...]
) -> None:
    text = io.StringIO()
    quoting = rng.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    writer = csv.writer(text, delimiter=rng.choice(",;\t"), quoting=quoting)
    writer.writerow(rows[0])
    for row in rows:
        writer.writerow(rng.choice(spellings) if v is None else v for v in row.values())
    path.write_text(text.getvalue(), rng.choice(("utf-8", "utf-8-sig")), newline="")


def _write_parquet(
    rng: random.Random, path: Path, rows: list[dict[str, str | None]], spellings: tuple[str, ...]
) -> None:
    columns = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        is_text = name in ("path", "label", "patient")
        if is_text and rng.random() < 0.5:
            values = [rng.choice((None, *spellings)) if v is None else v for v in values]
        if is_text:
            columns[name] = pa.array(values, rng.choice((pa.string(), pa.large_string())))
        else:
            empty = rng.choice((None, float("nan")))
            columns[name] = pa.array([empty if v is None else float(v) for v in values])
    pq.write_table(pa.table(columns), path)

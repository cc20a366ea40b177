"""`python -m tfrecord_io find --patients FILE DIR...`: where these people or files still are.

A file is judged by what is in it, so copies of tables and pages are found too. What names a patient
or a path is read first: it tells the keys, hashes and paths of the images, by which they are then
found in files without names. A place too many is better than one missed.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import html
import io
import json
import os
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tfrecord_io.decoding.dicom import patient_code
from tfrecord_io.decoding.preprocess import SINGLE_SUFFIXES, TIFF_SUFFIXES, split_frame_path
from tfrecord_io.format.codes import code_of
from tfrecord_io.format.examples import SEEN_FILE_NAME, SEEN_ORIGIN
from tfrecord_io.format.schema import image_key
from tfrecord_io.reading.cache import default_folder, keys_in
from tfrecord_io.stores import remote
from tfrecord_io.stores.folder import BUILD_DIR, Folder
from tfrecord_io.terminal.address import Address, is_remote, local_path
from tfrecord_io.terminal.command import Command
from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.printing import counted, csv_cell, listed, printable

#: A row of a table, or what is like one in another file.
_Row = Mapping[str, Any]

# Columns with a patient, with a path, and with a hash of the content. The plan of an anonymous
# build has the path in `hidden`, the audit in a manifest in `first` and `again`.
_PATIENTS = ("patient", "source_patient")
_PATHS = ("path", "source_path", "hidden", "first", "again")
_CONTENT = ("pixels_xxh3", "file_xxh3")
_COLUMNS = {*_PATIENTS, *_PATHS, *_CONTENT, "key", "site", "root", "shard", "row"}

# What is said of a file, by its name or the ending of it. Others are tables.
_TOLD = {
    SEEN_FILE_NAME: "its weights have seen {}; train it again",
    ".arrow": "{}, planned by an unfinished build",
    ".html": "{} on the page",
    ".json": "{} named in it",
    ".npz": "predictions of {}",
    ".tar": "{} in the archive",
    ".zip": "{} in the archive",
    "": "{} as files",
    "records": "{} in the reader's cache of a URL",
}

# Files that may name patients and what belongs to their images; all that are read; and those of
# which only the names are.
_TEACHING = (".csv", ".parquet", ".arrow", ".json")
_READ = (*_TEACHING, ".html", ".npz", ".tar", ".zip")
_IMAGES = (*SINGLE_SUFFIXES, *TIFF_SUFFIXES, ".dcm")


class _Sought:
    """What is looked for, and what is known of it.

    `known` has the patient, or the path if paths are looked for, behind a trace: a kind and a text.
    """

    def __init__(self, column: str, rows: Sequence[_Row], secrets: Sequence[bytes]) -> None:
        self.known: dict[tuple[str, str], str] = {}
        self._secrets = secrets
        self._of_any_site = [row[column] for row in rows if not row["site"]]
        self._sites: set[str] = set()
        self._patterns: set[re.Pattern[str]] = set()
        words = "|".join(re.escape(row[column]) for row in rows)
        self._words = re.compile(rf"(?<![^\W_])(?:{words})(?![^\W_])")
        for row in rows:
            name = row[column]
            if column == "patient":
                self._add_patient(name, row["site"])
                continue
            self.known["path", name] = name
            for end in _ends_of(name):
                for text in self._forms(end, "image", "reject"):
                    self.known["end of path", text] = self.known["key", image_key(text)] = name
        if column == "patient":
            self.known |= {("patient of any site", name): name for name in self._of_any_site}

    def _forms(self, name: str, *kinds: str) -> Iterator[str]:
        """Yields a name as tables have it, and its codes."""
        yield from (name, csv_cell(name))
        yield from (code_of(secret, kind, name) for secret in self._secrets for kind in kinds)

    def _add_patient(self, name: str, site: str) -> None:
        # As a build writes it: site a with patient b/1 is not site a/b with patient 1.
        front = site.replace("%", "%25").replace("/", "%2F") + "/" if site else ""
        for text in (name, patient_code(name)):  # DICOM files have the second
            for form in (*self._forms(text, "patient"), *self._forms(front + text, "patient")):
                self.known["patient", form] = name

    def who(self, row: _Row) -> str | None:
        """Returns whose row it is; None if it is of nobody who is looked for."""
        if (site := str(row.get("site") or "")) not in self._sites:
            self._sites.add(site)
            for name in self._of_any_site:
                self._add_patient(name, site)
        return next(filter(None, map(self.known.get, self._traces(row))), None)

    def _traces(self, row: _Row) -> Iterator[tuple[str, str]]:
        """Yields what a row says of its image: kinds and texts, see `known`."""
        patients = [str(row[name]) for name in _PATIENTS if row.get(name)]
        paths = _paths_in(row)
        for name in patients:
            yield "patient", name
            yield "patient of any site", name.rpartition("/")[2]
        for file in (split_frame_path(path)[0] for path in paths):
            yield from (("path", end) for end in _ends_of(file))
            yield "end of path", file
            if not patients:
                yield from (("patient", name) for name in self._patients_in(file))
        yield from ((name, str(row.get(name))) for name in _CONTENT)
        # Files of the same name in two collections have one key, but not the same content.
        if not row.get("file_xxh3"):
            ends = (end for path in paths for end in _ends_of(path) if "/" in end or end == path)
            yield from (("image", end) for end in ends)
            yield "key", str(row.get("key"))

    def _patients_in(self, file: str) -> list[str]:
        """Returns the patients in a path, as a build finds them; without a pattern, as words."""
        if not re.search(r"/|\.[A-Za-z]\w*$", file):
            return []  # a text of a page that is not a path
        name = file.rpartition("/")[2]
        matches = [each.search(name) or each.search(file) for each in self._patterns]
        return [match[1] for match in matches if match] or self._words.findall(file)

    def learn_pattern(self, row: _Row) -> None:
        """Takes from the options of a build how it finds patients in paths."""
        pattern = row.get("group_regex")
        if isinstance(pattern, str) and re.compile(pattern).groups:  # or the code of one
            self._patterns.add(re.compile(pattern))

    def learn(self, row: _Row) -> None:
        """Takes from a row of somebody who is looked for what it says of the image."""
        if person := self.who(row):
            traces = [(name, str(row[name])) for name in ("key", *_CONTENT) if row.get(name)]
            for trace in (*traces, *(("image", path) for path in _paths_in(row))):
                self.known.setdefault(trace, person)

    def require_secret(self, row: _Row) -> None:
        """Raises ValueError for a row that tells that a dataset has another secret."""
        code = row.get("anonymize") if "group_regex" in row else None
        if code and code not in [code_of(secret, "secret", "") for secret in self._secrets]:
            raise ValueError("its dataset is anonymous; give its secret with --anonymize FILE")


def _ends_of(path: str) -> Iterator[str]:
    """Yields a path, and what is left of it without its first folders."""
    parts = path.split("/")
    return ("/".join(parts[start:]) for start in range(len(parts)))


def _paths_in(row: _Row) -> list[str]:
    paths = {name: row[name] for name in _PATHS if isinstance(row.get(name), str)}
    if row.get("root") and "path" in paths:  # of a plan
        paths["path"] = f"{row['root']}/{paths['path']}"
    return [*paths.values()]


def _rows_of(file: IO[bytes], ending: str) -> Iterator[_Row]:
    """Yields the rows of an open file by the ending of its name, one of `_READ`."""
    if ending == ".csv":
        text = io.StringIO(file.read().decode("utf-8-sig", "surrogateescape"), newline="")
        delimiter = max(",;\t", key=text.readline().count)
        text.seek(0)
        yield from csv.DictReader(text, delimiter=delimiter)
    elif ending == ".parquet":
        parquet = pq.ParquetFile(file)
        if origin := (parquet.schema_arrow.metadata or {}).get(SEEN_ORIGIN):
            pattern, code, _ = json.loads(json.loads(origin).get("patients", "[null, null, null]"))
            yield {"group_regex": pattern, "anonymize": code}
        # Others may hold pictures.
        columns = [name for name in parquet.schema_arrow.names if name in _COLUMNS]
        for batch in parquet.iter_batches(columns=columns) if columns else ():
            yield from batch.to_pylist()
    elif ending == ".arrow":
        yield from pa.ipc.open_file(file).read_all().to_pylist()
    elif ending == ".json":
        values = [json.load(file)]
        for value in values:  # which grows
            if isinstance(value, dict):
                yield value
                values += value.values()
            elif isinstance(value, list):
                values += value
    elif ending == ".html":
        page = file.read().decode("utf-8", "replace")
        # Such as <img alt="CNV, from train: PATH">, and the cells and captions with paths.
        texts = re.findall(
            r'alt="[^"]* (?:from|in) [^"]*?: ([^"]*)|<(?:td[^>]*|small)>([^<]*)', page
        )
        yield from ({"path": text} for text in {html.unescape(max(text)) for text in texts})
        first_cells = re.findall("<tr><td>([^<]+)", page)  # where the audit lists patients
        yield from ({"patient": html.unescape(name)} for name in first_cells)
    elif ending == ".npz":
        with np.load(file) as arrays:
            yield from ({"key": key} for key in arrays.get("keys", np.array([])).tolist())
    elif ending == ".tar":
        with tarfile.open(fileobj=file, mode="r:") as archive:
            yield from ({"path": member.name} for member in archive)
    elif ending == ".zip":
        with zipfile.ZipFile(file) as archive:
            yield from ({"path": name} for name in archive.namelist())


def _files_below(given: Sequence[Address]) -> Iterator[tuple[Folder, str]]:
    """Yields the files below folders and URLs, once; those of hidden folders only of builds.

    A name is empty for the image files of a folder, together.
    """

    def fail(error: OSError) -> None:
        raise error

    visited: set[str] = set()
    for top in given:
        if is_remote(top):
            for file in remote.list_files(top, recursive=True):
                folder, _, name = file.url.rpartition("/")
                yield Folder(folder), name
            continue
        if not Path(top).is_dir():
            raise UserError(f"{top} is not a folder")
        for root, folders, names in os.walk(top, onerror=fail, followlinks=True):
            here = os.path.realpath(root)
            folders[:] = sorted(n for n in folders if n == BUILD_DIR or not n.startswith("."))
            folders[:] = folders if here not in visited else []
            names = ["", *sorted(names)] if here not in visited else []
            yield from ((Folder(root), name) for name in names)
            visited.add(here)


def _rows_in(folder: Folder, name: str) -> Iterator[_Row]:
    if name == "records":
        yield from ({"key": key} for key in keys_in(Path(folder.root)))
    elif not name:
        names = (name for name in folder.names() if name.lower().endswith(_IMAGES))
        yield from ({"path": f"{folder.root}/{name}"} for name in names)
    else:
        with folder.open(name) as file:
            yield from _rows_of(file, Path(name).suffix)


def _places(
    folder: Folder, name: str, found: Sequence[tuple[str, _Row]], noun: str
) -> Iterator[str]:
    """Yields a line for a file with rows of those looked for, and for each shard that it names."""

    def told(what: str, some: Sequence[tuple[str, _Row]]) -> str:
        of_whom = f" of {counted(len({who for who, _ in some}), noun)}" if noun == "patient" else ""
        return counted(len(some), what) + of_whom

    shards: dict[str, list[tuple[str, _Row]]] = {}
    for who, row in found:
        if name.endswith(".parquet") and row.get("shard"):
            shards.setdefault(str(row["shard"]), []).append((who, row))
    dataset = Folder(folder.root.removesuffix(f"/{BUILD_DIR}"))
    for shard, some in sorted(shards.items()):
        rows = listed([str(row.get("row")) for _, row in some], 10)
        yield f"{dataset.path(shard)}: {told('image', some)}, in rows {rows}"
    form = _TOLD.get(name) or _TOLD.get(Path(name).suffix, "")
    told_of_all = form.format(told("image", found)) or told("row", found)
    yield f"{folder.path(name)}: {told_of_all}"


def _read_list(file: Path, column: str) -> list[_Row]:
    """Returns the rows of a table or text that names patients or paths."""
    ending = file.suffix.lower()
    try:
        if ending in (".csv", ".parquet"):
            rows = [dict(row) for row in _rows_in(Folder(file.parent), file.name)]
        else:
            rows = [{column: line} for line in file.read_text("utf-8-sig").splitlines()]
    except (OSError, ValueError, csv.Error) as error:  # those of Arrow are ValueErrors
        raise UserError(f"{file} cannot be read: {error}") from None
    texts = ({name: str(row.get(name) or "").strip() for name in (column, "site")} for row in rows)
    if named := [row for row in texts if row[column]]:
        return [*named]
    raise UserError(
        f"{file} names no {column}; expected a .csv or .parquet with a column {column}, or a text "
        "with one on each line"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    table = "a .csv or .parquet with a column {}, or a text with one on each line"
    which = parser.add_mutually_exclusive_group(required=True)
    patients = f"look for patients: {table.format('patient, and site if known')}"
    which.add_argument("--patients", metavar="FILE", help=patients)
    which.add_argument("--paths", metavar="FILE", help=f"look for files: {table.format('path')}")
    secret = "secret of an anonymous dataset, as for the build; may be given several times"
    parser.add_argument("--anonymize", action="append", metavar="FILE", help=secret)
    folders = "folder or URL of a bucket, with all below it: datasets, runs, pages"
    parser.add_argument("folders", type=Address, nargs="+", metavar="DIR", help=folders)


def run(args: argparse.Namespace) -> int:
    """Prints a line for each place; returns 0 if there is one, 1 if not, 2 after an error."""
    noun, file = ("patient", args.patients) if args.patients else ("path", args.paths)
    file = local_path(file)
    wanted = _read_list(file, noun)
    secrets = [local_path(path).read_bytes() for path in args.anonymize or ()]
    cache = default_folder().expanduser()
    places = [*args.folders, *([Address(cache)] if cache.is_dir() else [])]
    files = [
        (folder, name)
        for folder, name in _files_below(places)
        if (not name or name.endswith(_READ) or (name == "records" and not folder.remote))
        and os.path.realpath(folder.path(name)) != str(file.resolve())
    ]
    sought, num_found, failed = _Sought(noun, wanted, secrets), 0, False
    for endings, take in ((".json", sought.learn_pattern), (_TEACHING, sought.learn)):
        for folder, name in (file for file in files if file[1].endswith(endings)):
            with contextlib.suppress(Exception):  # which is told below
                for row in _rows_in(folder, name):
                    take(row)
    for folder, name in files:
        found = []
        try:
            for row in _rows_in(folder, name):
                sought.require_secret(row)
                if who := sought.who(row):
                    found.append((who, row))
        except Exception as error:  # a file of whatever kind may hold whatever
            failed = True
            told = f"error: {folder.path(name)} was not searched: {error!s:.200}"
            print(printable(told), file=sys.stderr)
        for line in _places(folder, name, found, noun) if found else ():
            num_found += 1
            print(printable(line))
    if not num_found and not failed:
        num_files = sum(bool(name) for _, name in files)
        searched = f"{counted(num_files, 'file')} below {', '.join(places)}"
        print(f"nothing of {counted(len(wanted), noun)} was found in {searched}")
    return 2 if failed else 0 if num_found else 1


COMMAND = Command(
    name="find",
    purpose="find where a patient or a file still is",
    add_arguments=add_arguments,
    run=run,
    codes={Exception: 2},
)

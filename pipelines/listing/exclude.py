"""Finds what `--exclude` names: the files of patients and of paths, and their rows in a table."""

from __future__ import annotations

import dataclasses
import posixpath
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from pipelines import errors
from pipelines.listing.label_table import read_texts
from pipelines.listing.matching import find_files, folders_in, match_files, rows_of_files
from pipelines.listing.options import ListingOptions
from pipelines.listing.refs import Listing, iterate_refs
from tfrecord_io.decoding.dicom import patient_code
from tfrecord_io.format.person import persons
from tfrecord_io.terminal.printing import counted, listed
from tfrecord_io.terminal.spelling import one_form

_COLUMNS = ("patient", "site", "path")


@dataclasses.dataclass(frozen=True)
class Exclusion:
    """The entries of a table of `--exclude`, by row.

    Attributes:
        patients: as a dataset names them, so with their site in front; None in a row without one.
        paths: of files or folders; empty in a row without one.
        met: the patients and paths that were found so far.
        copied: path and size of the images that were found by their paths, whose copies in a
            second tree are left out with them.
    """

    patients: Sequence[str | None]
    paths: Sequence[str]
    met: set[str] = dataclasses.field(default_factory=set)
    copied: set[tuple[str, int]] = dataclasses.field(default_factory=set)

    def find(
        self, names: Sequence[str], listing: Listing, options: ListingOptions
    ) -> tuple[set[str], set[int]]:
        """Returns the files to leave out, and the rows of the table of labels, from 0.

        Args:
            names: of all files of the source that are not yet left out.
            listing: what is known of them, with their patients.
            options: with the table of labels.
        """
        wanted = {patient: patient for patient in self.patients if patient}
        # A dataset names the patients of DICOM files by a hash.
        wanted |= {patient_code(patient): patient for patient in wanted}
        files = set[str]()
        for path, places in find_files(names, [*filter(None, self.paths)]).items():
            self.met.update([path] if places else [])
            files.update(names[place] for place in places)
        there = set[str]()
        for ref in iterate_refs(listing.refs):
            name = one_form(ref.source_path)
            there.add(name)
            if ref.patient in wanted:
                self.met.add(wanted[ref.patient])
                files.add(name)
            if name in files or (ref.path, ref.size) in self.copied:
                files.add(name)
                self.copied.add((ref.path, ref.size))
        # Rejects and texts have no patient in the listing, but their names can tell it.
        for name in names:
            if name not in there and (found := wanted.keys() & set(_told(name, listing, options))):
                self.met.update(wanted[patient] for patient in found)
                files.add(name)
        return files, self._find_rows(names, files, wanted.keys(), options)

    def _find_rows(
        self,
        names: Sequence[str],
        files: set[str],
        patients: Collection[str],
        options: ListingOptions,
    ) -> set[int]:
        """Returns the rows of the table that name what is left out; adds the files of these."""
        table = options.names_in_table
        if table is None:
            return set()
        folder = f"{options.tree.strip(' /')}/" if options.tree else ""
        names = [name for name in names if name.startswith(folder)]
        told = table.cells.get("patient", [None] * len(table.cells["path"]))
        if "site" in table.cells:
            told = persons(*map(pa.array, (told, table.cells["site"]))).to_pylist()
        paths = {path for path in self.paths if path}
        rows = {
            row
            for row, (patient, path) in enumerate(zip(told, table.cells["path"], strict=True))
            if patient in patients or path in paths
        }
        for row in rows:
            self.met.update(filter(None, (told[row], table.cells["path"][row])))
        matched = match_files(names, table, Listing())
        files.update(name for name, row in zip(names, matched, strict=True) if row in rows)
        return rows | rows_of_files(names, table, matched, files)

    def warnings(self) -> Iterator[str]:
        """Yields what the user should know: the rows that fit nothing, without a name in them."""
        rows = [
            str(row)
            for row, entry in enumerate(zip(self.patients, self.paths, strict=True), start=1)
            if not self.met & {*entry}
        ]
        if rows:
            yield (
                f"{len(rows):,} of {counted(len(self.paths), 'row')} of --exclude fit no patient "
                f"and no file of the input (row {listed(rows)}); use the names in examples.parquet"
            )


def read_exclusion(file: Path, missing: Sequence[str] | None) -> Exclusion:
    """Reads the table of `--exclude`; for `missing` see `read_label_table`.

    Raises:
        errors.UserError: if it cannot be read, or has neither patients nor paths.
    """
    try:
        cells = read_texts(file, _COLUMNS, missing)
    except errors.UserError as error:
        raise errors.UserError(str(error).replace("--labels", "--exclude", 1)) from None
    if not cells.keys() & {"patient", "path"}:
        raise errors.UserError(
            f"--exclude {file} needs a column patient (and site, if the input has sites) or path"
        )
    num_rows = len(next(iter(cells.values())))
    patients = cells.get("patient", [None] * num_rows)
    if "site" in cells:
        patients = persons(*map(pa.array, (patients, cells["site"]))).to_pylist()
    paths = cells.get("path", [None] * num_rows)
    return Exclusion(patients, [path or "" for path in paths])


def without_rows(options: ListingOptions, rows: Collection[int]) -> ListingOptions:
    """Returns options whose table of labels lacks some more of its rows, counted as it is now."""
    if not (rows and options.names_in_table):
        return options
    num_rows = len(options.names_in_table.cells["path"]) + len(options.rows_left_out)
    there = [row for row in range(num_rows) if row not in options.rows_left_out]
    left_out = options.rows_left_out.union(there[row] for row in rows)
    return dataclasses.replace(options, rows_left_out=left_out)


def _told(name: str, listing: Listing, options: ListingOptions) -> Iterator[str]:
    """Yields the patients that a file's name may tell: by the pattern for them, or by folders."""
    table = options.names_in_table
    if table is None or "patient" not in table.cells:
        pattern = re.compile(options.group_regex)
        match = pattern.search(posixpath.basename(name)) or pattern.search(name)
        yield (match and match.group(1)) or ""
    if "patient" in (*options.layout, *(role for role, _ in listing.layout)):
        yield from folders_in(name)
    elif not listing.num_files:  # nothing is known of the folders; a class can be a number
        yield from (name for name in folders_in(name) if not name.isdecimal())

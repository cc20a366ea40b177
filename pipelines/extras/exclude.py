"""Leaves out the patients and files that a table names (`--exclude`).

This is a filter behind the listing. What it takes out is counted, and named in no output: not in a
table, not among the rejects, and not in a note.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipelines import errors
from pipelines.listing.images import Images, Ledger
from pipelines.listing.options import ListingOptions
from pipelines.listing.refs import iterate_refs
from pipelines.listing.table import read_texts
from tfrecord_io.decoding.dicom import patient_code
from tfrecord_io.format.person import Person
from tfrecord_io.terminal.flags import flag
from tfrecord_io.terminal.printing import counted, listed
from tfrecord_io.terminal.spelling import found_in, one_form


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Which table names the patients and files to leave out."""

    exclude: Path | None = flag(
        None,
        "leave out the patients and files that a table names in the columns patient (with site, if "
        "there are sites) and path: the path of a file or folder, or the end of one",
        metavar="FILE",
    )


@dataclasses.dataclass(frozen=True)
class Entry:
    """A row of the table: the names that a dataset may give its patient, and a path."""

    patients: frozenset[str]
    path: str


def read_entries(file: Path) -> list[Entry]:
    """Reads the table of `--exclude`.

    Raises:
        errors.UserError: if it cannot be read, or has neither a column patient nor path.
    """
    cells = read_texts(file, "--exclude", ("patient", "site", "path"))
    if not cells.keys() & {"patient", "path"}:
        raise errors.UserError(
            f"--exclude {file} needs a column patient (and site, if the input has sites) or path"
        )
    empty = itertools.repeat("")
    rows = zip(*(cells.get(name, empty) for name in ("patient", "site", "path")), strict=False)
    return [
        # A patient who comes from the tags of DICOM is named by a hash of these.
        Entry(
            frozenset({str(Person(site or "", name)), patient_code(name, site or "")})
            if name
            else frozenset(),
            one_form(path or "").strip("/"),
        )
        for name, site, path in rows
    ]


def without(images: Images, entries: Sequence[Entry], options: ListingOptions) -> Images:
    """Returns the images without those of the entries, which `Ledger.excluded` counts.

    A reject is left out if its path is named, or tells the patient: by `--patient_regex`, by a
    folder where `--layout` has a level of patients, or by its row in the table of labels. Notes
    that name something of the input are dropped.

    Raises:
        errors.UserError: if no image is left.
    """
    refs, ledger = images.table, images.ledger
    names = [one_form(ref.source_path) for ref in iterate_refs(refs)]
    patients: list[set[str]] = [{name} if name else set() for name in refs["patient"].to_pylist()]
    for reject in ledger.rejects:
        names.append(one_form(reject.source_path))
        patients.append(_patients_of(names[-1], options))
        patients[-1].update(filter(None, [images.reject_patients.get(reject.source_path)]))
    places = collections.defaultdict[str, set[int]](set)
    for place, some in enumerate(patients):
        for name in some:
            places[name].add(place)
    of_path = _places_of_paths(names, {entry.path for entry in entries} - {""})
    gone, unmet = set[int](), list[str]()
    for row, entry in enumerate(entries, start=1):
        found = set(of_path.get(entry.path, ())).union(*(places[name] for name in entry.patients))
        gone |= found
        unmet += [] if found else [str(row)]
    is_kept = np.ones(len(names), bool)
    is_kept[list(gone)] = False
    if not is_kept[: refs.num_rows].any():
        raise errors.UserError("--exclude leaves out every image of the input")
    rejects = itertools.compress(ledger.rejects, is_kept[refs.num_rows :])
    notes = tuple(note for note in ledger.notes if not note.is_private)
    ledger = dataclasses.replace(ledger, rejects=tuple(rejects), notes=notes, others={})
    images = dataclasses.replace(images, ledger=ledger)
    images = images.then(
        refs.filter(pa.array(is_kept[: refs.num_rows])), Ledger(excluded=len(gone))
    )
    if not unmet:
        return images
    return images.noted(
        f"{len(unmet):,} of {counted(len(entries), 'row')} of --exclude fit no patient and no file "
        f"of the input (row {listed(unmet)}); use the names in examples.parquet, with their site",
        is_private=False,
        is_stored=False,
    )


def _patients_of(name: str, options: ListingOptions) -> set[str]:
    """Returns the patients that the path of a file may tell."""
    found = {found_in(name, re.compile(options.patient_regex))}
    if "patient" in options.layout:
        found.update(name.split("/")[:-1])
    return {patient for patient in found if patient}


def _places_of_paths(names: Iterable[str], paths: set[str]) -> dict[str, list[int]]:
    """Returns the places of the files that each path means, see `Options.exclude`."""
    found = collections.defaultdict[str, list[int]](list)
    for place, name in enumerate(names if paths else ()):
        for path in paths.intersection(_paths_to(name)):
            found[path].append(place)
    return found


def _paths_to(name: str) -> Iterator[str]:
    """Yields what can name a file: the ends of its path, and of the folders above it."""
    parts = name.split("/")
    for start in range(len(parts)):
        yield from itertools.accumulate(parts[start:], "{}/{}".format)
        yield "/".join(parts[start:]).rpartition(".")[0]

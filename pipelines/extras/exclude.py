"""Leaves out the patients and files that a table names (`--exclude`).

This is a filter behind the listing. What it takes out is counted, and named in no output: not in a
table, not among the rejects, and not in a note.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipelines import errors
from pipelines.listing.images import Images
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


#: What a row of the table may call an image: pairs of `patient` or `path` and a name.
Entry = frozenset[tuple[str, str]]


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
    entries, empty = list[Entry](), itertools.repeat(None)
    columns = (cells.get(name, empty) for name in ("patient", "site", "path"))
    for patient, site, path in zip(*columns, strict=False):
        names = set[tuple[str, str]]()
        if patient:
            # One who comes from the tags of DICOM is named by a hash of these.
            people = (str(Person(site or "", patient)), patient_code(patient, site or ""))
            names.update(("patient", name) for name in people)
        if path:
            names.add(("path", one_form(path).strip("/")))
        entries.append(frozenset(names))
    return entries


def without(images: Images, entries: Sequence[Entry], options: ListingOptions) -> Images:
    """Returns the images without those of the entries, which `Ledger.excluded` counts.

    A reject is left out if its path is named, or tells the patient: by `--patient_regex`, by a
    folder where `--layout` has a level of patients, or by its row in the table of labels. Notes
    that name something of the input are dropped.

    Raises:
        errors.UserError: if no image is left.
    """
    refs, ledger = images.table, images.ledger
    wanted, pattern = (
        frozenset[tuple[str, str]]().union(*entries),
        re.compile(options.patient_regex),
    )
    places = collections.defaultdict[tuple[str, str], set[int]](set)
    of_images = ((ref.source_path, [ref.patient]) for ref in iterate_refs(refs))
    for place, (path, patients) in enumerate([*of_images, *_rejects(images, pattern, options)]):
        names = {("patient", one_form(patient)) for patient in patients if patient}
        for name in wanted & names.union(("path", end) for end in _ends(one_form(path))):
            places[name].add(place)
    is_kept, unmet = np.ones(refs.num_rows + len(ledger.rejects), bool), list[str]()
    for row, entry in enumerate(entries, start=1):
        found = set[int]().union(*(places[name] for name in entry))
        is_kept[list(found)] = False
        unmet += [] if found else [str(row)]
    if not is_kept[: refs.num_rows].any():
        raise errors.UserError("--exclude leaves out every image of the input")
    ledger = dataclasses.replace(
        ledger,
        rejects=tuple(itertools.compress(ledger.rejects, is_kept[refs.num_rows :])),
        excluded=ledger.excluded + int(np.count_nonzero(~is_kept)),
        notes=tuple(note for note in ledger.notes if not note.is_private),
        others={},
    )
    kept = refs.filter(pa.array(is_kept[: refs.num_rows]))
    images = dataclasses.replace(images, table=kept, ledger=ledger)
    if not unmet:
        return images
    return images.noted(
        f"{len(unmet):,} of {counted(len(entries), 'row')} of --exclude fit no patient and no file "
        f"of the input (row {listed(unmet)}); use the names in examples.parquet, with their site",
        is_private=False,
        is_stored=False,
    )


def _rejects(
    images: Images, pattern: re.Pattern[str], options: ListingOptions
) -> Iterator[tuple[str, list[str | None]]]:
    """Yields the path of each reject, and the patients that it may be of."""
    for reject in images.ledger.rejects:
        path = reject.source_path
        folders = path.split("/")[:-1] if "patient" in options.layout else []
        yield path, [images.reject_patients.get(path), found_in(path, pattern), *folders]


def _ends(path: str) -> Iterator[str]:
    """Yields what can name a file: the ends of its path, and of the folders above it."""
    parts = path.split("/")
    for start in range(len(parts)):
        yield from itertools.accumulate(parts[start:], "{}/{}".format)
        yield "/".join(parts[start:]).rpartition(".")[0]

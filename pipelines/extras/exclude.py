"""Leaves out the patients and files that a table names (`--exclude`).

This is a filter behind the listing. What it takes out is counted, and named in no output: not in a
table, not among the rejects, and not in a note.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from pipelines import errors
from pipelines.listing.images import Images
from pipelines.listing.options import ListingOptions
from pipelines.listing.refs import iterate_refs
from pipelines.listing.table import read_columns
from tfrecord_io.decoding.dicom import patient_code
from tfrecord_io.format.person import person
from tfrecord_io.terminal.flags import flag, found_in
from tfrecord_io.terminal.printing import counted, listed, one_form


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Which table names the patients and files to leave out."""

    exclude: Path | None = flag(
        None,
        "leave out the patients and files that a table names in the columns patient (with site, if "
        "there are sites) and path: the path of a file or folder, or the end of one",
        metavar="FILE",
    )


#: The rows of the table that name something, by what they name: `("path", "a/1.png")`.
Entries = dict[tuple[str, str], set[int]]


def read_entries(file: Path) -> Entries:
    """Reads the table of `--exclude`.

    Raises:
        errors.UserError: if it cannot be read, or names nothing.
    """
    names = ("patient", "site", "path")
    columns = {
        name: cells for name, cells in read_columns(file, "--exclude").items() if name in names
    }
    entries: Entries = collections.defaultdict(set)
    for number, row in enumerate(pa.table(columns).to_pylist(), start=1):
        if patient := row.get("patient"):
            site = row.get("site") or ""
            entries["patient", person(site, patient)].add(number)
            # One who comes from the tags of DICOM is named by a hash of these.
            entries["patient", patient_code(patient, site)].add(number)
        if path := row.get("path"):
            entries["path", path.strip("/")].add(number)
    if not entries:
        raise errors.UserError(
            f"--exclude {file} names nothing; it needs a column patient (and site, if the input "
            "has sites) or path"
        )
    return dict(entries)


def without(images: Images, entries: Entries, options: ListingOptions) -> Images:
    """Returns the images without those of the entries, which `Ledger.excluded` counts.

    A reject is left out if its path is named, or its patient is known: by `--patient_regex`, by a
    folder where `--layout` has a level of patients, or by its row in the table of labels. Notes
    are dropped, because they may name something that is left out.

    Raises:
        errors.UserError: if no image is left.
    """
    refs, ledger = images.table, images.ledger
    pattern = re.compile(options.patient_regex)
    is_kept, met = list[bool](), set[int]()
    of_images = ((ref.source_path, [ref.patient]) for ref in iterate_refs(refs))
    for path, patients in itertools.chain(of_images, _rejects(images, pattern, options)):
        names = {("patient", one_form(patient)) for patient in patients if patient}
        names.update(("path", end) for end in _ends(one_form(path)))
        rows = [entries[name] for name in names & entries.keys()]
        met.update(*rows)
        is_kept.append(not rows)
    if not any(is_kept[: refs.num_rows]):
        raise errors.UserError("--exclude leaves out every image of the input")
    ledger = dataclasses.replace(
        ledger,
        rejects=tuple(itertools.compress(ledger.rejects, is_kept[refs.num_rows :])),
        excluded=ledger.excluded + is_kept.count(False),
        notes=(),
    )
    kept = refs.filter(pa.array(is_kept[: refs.num_rows]))
    images, all_rows = images.then(kept, ledger=ledger), set[int]().union(*entries.values())
    if unmet := sorted(all_rows - met):
        images = images.noted(
            f"{len(unmet):,} of {counted(len(all_rows), 'row')} of --exclude fit no patient and no "
            f"file of the input (row {listed(list(map(str, unmet)))}); use the names in "
            "examples.parquet, with their site"
        )
    return images


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

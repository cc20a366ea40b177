"""Leaves out the people who withdrew and the files that `--exclude` names, for whoever must.

The dataset is that of an input that never had them.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing.files import chosen, in_tree
from pipelines.listing.frames import map_starts, pictures_in
from pipelines.listing.images import Images, Ledger
from pipelines.listing.label_table import Labels, LabelTable
from pipelines.listing.matching import find_files, folders_in, match_files
from pipelines.listing.options import ListingOptions
from pipelines.listing.refs import OTHER, iterate_refs
from pipelines.listing.table_cells import read_texts
from pipelines.options import BuildOptions
from pipelines.sources.source import Member, Reader, Source
from tfrecord_io.decoding.dicom import patient_code
from tfrecord_io.decoding.preprocess import SINGLE_SUFFIXES
from tfrecord_io.decoding.rejects import Reject
from tfrecord_io.format.groups import COPY_OF
from tfrecord_io.format.person import persons
from tfrecord_io.terminal.flags import flag
from tfrecord_io.terminal.printing import counted, listed
from tfrecord_io.terminal.spelling import found_in, look_alike, one_form


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Who and what is left out."""

    heading: ClassVar = "input"

    exclude: Path | None = flag(
        None,
        "leave out the patients and files that a table names in the columns patient (with site, if "
        "there are sites) and path, as if the input never had them; read as for --labels",
        metavar="FILE",
    )


#: Lists a source with these options and this table of labels.
List = Callable[[Source, ListingOptions, Labels | None], Images]

_COLUMNS = ("patient", "site", "path")


def excluding(list_images: List, options: BuildOptions) -> List:
    """Returns a function that lists a source as another one does, without what a table names.

    What is excluded is known only when all is listed. Then all else is listed again, so that
    nothing knows of it: neither layout and classes nor the table of labels. This repeats where a
    second copy of an excluded file took its place. Where listing all fails, what is excluded by
    its name goes first, since the fault may lie in it.

    Raises:
        errors.UserError: if the table cannot be read, or has neither patients nor paths.
    """
    if not (file := options.of(Options).exclude):
        return list_images
    return functools.partial(read_exclusion(file, options.listing.missing).list, list_images)


@dataclasses.dataclass(frozen=True)
class _Without(Source):
    """A source without some of its files, by name."""

    source: Source
    gone: frozenset[str] = frozenset()

    def members(self) -> Iterator[Member]:
        return (
            member for member in self.source.members() if member.in_one_form.name not in self.gone
        )

    def same_content(self, one: Member, other: Member) -> bool:
        return self.source.same_content(one, other)

    def open(self) -> contextlib.AbstractContextManager[Reader]:
        return self.source.open()

    def describe(self) -> dict[str, Any]:
        return self.source.describe()


@dataclasses.dataclass(frozen=True)
class Exclusion:
    """The entries of a table of `--exclude`, by row.

    Attributes:
        patients: as a dataset names them, so with their site in front; None in a row without one.
        paths: of files or folders; empty in a row without one.
        codes: the patients by the hash that names them where they come from tags of DICOM.
        met: the patients and paths that were found so far.
        copied: path and size of the images that were found by their paths, whose copies in a
            second tree are left out with them.
    """

    patients: Sequence[str | None]
    paths: Sequence[str]
    codes: Mapping[str, str]
    met: set[str] = dataclasses.field(default_factory=set)
    copied: set[tuple[str, int]] = dataclasses.field(default_factory=set)

    def list(
        self, list_images: List, source: Source, options: ListingOptions, labels: Labels | None
    ) -> Images:
        """Lists a source, see `excluding`; raises as `list_images` does."""
        images, fault, rest, num_files = None, None, _Without(source), 0
        try:
            images = list_images(source, options, labels)
            num_files = images.ledger.num_files
        except (errors.UserError, errors.BuildError) as error:
            fault = error
        while any(found := self.find(rest, images, options, labels)):
            files, rows = found
            rest, labels = _Without(source, rest.gone | files), labels and labels.without(rows)
            if next(rest.members(), None) is None:
                raise errors.UserError("--exclude leaves out every file of the input")
            images = list_images(rest, options, labels)
            num_files = num_files or images.ledger.num_files + len(files)
        if images is None:
            raise fault or RuntimeError("nothing was listed")
        withdrawn = num_files - images.ledger.num_files
        told = (*self._told_of_unmet(images), *self._told_of_sites(images))
        images = images.then(found=Ledger(num_files=withdrawn, excluded=withdrawn))
        return images.noted(*told, is_private=False, is_stored=False)

    def find(
        self, source: Source, images: Images | None, options: ListingOptions, labels: Labels | None
    ) -> tuple[set[str], set[int]]:
        """Returns the files to leave out, and the rows of the table of labels, from 0.

        `images` are those of the source, with their patients; None if they could not be listed.
        """
        wanted = {patient: patient for patient in self.patients if patient} | self.codes
        names = [
            member.name for member, is_chosen in chosen(source.members(), options) if is_chosen
        ]
        files, table = set[str](), labels and labels.names
        for path, places in find_files(names, [*filter(None, self.paths)]).items():
            self.met.update([path] if places else [])
            files.update(names[place] for place in places)
        listed_files = self._find_images(images, wanted, files) if images else set()
        # Rejects and texts have no patient in the listing, but their names can tell it. Objects
        # that are not pictures, and those of other modalities, are counted, not listed.
        names_patients = table is not None and "patient" in table.cells
        has_others = images is None or (images.frames and images.ledger.ignored)
        tags = _patients_in_tags(source, listed_files) if has_others and not names_patients else {}
        pattern = None if names_patients else re.compile(options.patient_regex)
        for name in names:
            if name not in listed_files:
                told = {tags.get(name), *_patients_in(name, images, options, pattern)}
                patients = wanted.keys() & told
                self.met.update(wanted[patient] for patient in patients)
                files.update([name] if patients else [])
        if table is None:
            return files, set()
        names = [name for name in names if re.match(in_tree(options.tree), name)]
        return files, self._find_rows(names, files, wanted.keys(), table)

    def _find_images(self, images: Images, wanted: Mapping[str, str], files: set[str]) -> set[str]:
        """Returns the files of all images; adds to `files` those of patients, and copies."""
        column, listed_files, gone_sources = f"{OTHER}{COPY_OF}", set[str](), set[str]()
        has_copies = column in images.table.column_names
        # A source is its own copy.
        sources = images.table[column].to_pylist() if has_copies else itertools.repeat(None)
        copies = collections.defaultdict[str, set[str]](set)
        for ref, source in zip(iterate_refs(images.table), sources, strict=False):
            name = one_form(ref.source_path)
            listed_files.add(name)
            if source:
                copies[source].add(name)
            if ref.patient in wanted:
                self.met.add(wanted[ref.patient])
                files.add(name)
            if name in files or (ref.path, ref.size) in self.copied:
                files.add(name)
                self.copied.add((ref.path, ref.size))
                # The name of a copy may not tell the patient, and its source is listed only once.
                if source and (ref.patient in wanted or ref.path.rpartition(".")[0] == source):
                    gone_sources.add(source)
        files.update(*(copies[source] for source in gone_sources))
        return listed_files

    def _find_rows(
        self, names: Sequence[str], files: set[str], patients: Collection[str], table: LabelTable
    ) -> set[int]:
        """Returns the rows of the table that name what is left out; adds the files of these."""
        rows, paths = set[int](), {*filter(None, self.paths)}
        entries = zip(_patients_of(table.cells), table.cells["path"], strict=True)
        for row, (patient, path) in enumerate(entries):
            if patient in patients or path in paths:
                rows.add(row)
                self.met.update(filter(None, (patient, path)))
        match = match_files(names, table)
        files.update(
            name for name, row in zip(names, match.row_of_file, strict=True) if row in rows
        )
        return rows | match.rows_of([name in files for name in names])

    def _told_of_unmet(self, images: Images) -> Iterator[str]:
        """Yields sentences with the numbers of rows that match nothing, or only nearly."""
        unmet = {
            str(row): {*filter(None, entry)}
            for row, entry in enumerate(zip(self.patients, self.paths, strict=True), start=1)
            if not self.met & {*entry}
        }
        rows, present = [*unmet], set(images.table["patient"].drop_null().unique().to_pylist())
        if rows and any(self.paths):
            present.update(ref.source_path for ref in iterate_refs(images.table))
        alike = look_alike(present.union(*unmet.values()))
        near = [row for row in rows if any(unmet[row].intersection(some) for some in alike)]
        if near:
            yield (
                f"row {listed(near)} of --exclude differs only in case, spaces, hyphens or "
                "invisible characters from a patient or file that stays in; correct that row"
            )
        if rows:
            yield (
                f"{len(rows):,} of {counted(len(self.paths), 'row')} of --exclude fit no patient "
                f"and no file of the input (row {listed(rows)}); use the names in examples.parquet"
            )

    def _told_of_sites(self, images: Images) -> Iterator[str]:
        """Yields which rows name no site, where a site has a patient of that name, who stays."""
        kept = pc.fill_null(images.table["patient"], "")
        at_sites = {who.rpartition("/")[2] for who in kept.unique().to_pylist() if "/" in who}
        rows = [
            str(row)
            for row, patient in enumerate(self.patients, start=1)
            if patient and at_sites & {patient, patient_code(patient)}
        ]
        if rows:
            yield (
                f"row {listed(rows)} of --exclude names a patient without a site. That name is in "
                "the dataset with a site (of DICOM files, the issuer of the PatientID): if it is "
                "the same person, add a row with that site"
            )


def read_exclusion(file: Path, missing: Sequence[str] | None) -> Exclusion:
    """Reads the table of `--exclude`, see `excluding`."""
    cells = read_texts(file, "--exclude", _COLUMNS, missing)
    if not cells.keys() & {"patient", "path"}:
        raise errors.UserError(
            f"--exclude {file} needs a column patient (and site, if the input has sites) or path"
        )
    patients = _patients_of(cells)
    empty = [None] * len(patients)
    columns = (cells.get("patient", empty), cells.get("site", empty), patients)
    rows = zip(*columns, strict=True)
    # The site is the one that has issued the PatientID.
    codes = {patient_code(name, site or ""): who for name, site, who in rows if name and who}
    return Exclusion(patients, [path or "" for path in cells.get("path", empty)], codes)


def _patients_of(cells: Mapping[str, Sequence[str | None]]) -> Sequence[str | None]:
    """Returns the patient of each row of a table, with the site in front if it has sites."""
    names = cells.get("patient", [None] * len(next(iter(cells.values()))))
    return persons(*map(pa.array, (names, cells["site"]))).to_pylist() if "site" in cells else names


def _patients_in_tags(source: Source, listed_files: Collection[str]) -> dict[str, str | None]:
    """Returns the patient in the tags of each DICOM file that can be read and is not listed."""
    members = {
        name: member
        for member in source.members()
        if (name := member.in_one_form.name) not in listed_files
        and not (member.problem or name.lower().endswith(SINGLE_SUFFIXES))
    }
    with source.open() as reader:

        def patient(member: Member) -> str | None:
            with contextlib.suppress(errors.ToldError, Reject, ModuleNotFoundError):
                return pictures_in(reader, member).header.patient
            return None

        return dict(zip(members, map_starts(reader, patient, members.values()), strict=True))


def _patients_in(
    name: str, images: Images | None, options: ListingOptions, pattern: re.Pattern[str] | None
) -> Iterator[str | None]:
    """Yields the patients that a file's name may tell: by the pattern for them, or by folders."""
    yield pattern and found_in(name, pattern)
    layout = images.layout if images else ()
    if "patient" in (*options.layout, *(role for role, _ in layout)):
        yield from folders_in(name)
    elif images is None:  # nothing is known of the folders; a class can be a number
        yield from (folder for folder in folders_in(name) if not folder.isdecimal())

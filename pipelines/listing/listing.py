"""Turns the files of a source into image references, with split, class and patient."""

from __future__ import annotations

import collections
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing import (
    checks,
    copies,
    exclude,
    files,
    frames,
    layout,
    modality,
    pairs,
    roles,
)
from pipelines.listing.matching import match_files, rows_of_files
from pipelines.listing.options import DEFAULT_GROUP_REGEX, ListingOptions
from pipelines.listing.refs import OTHER, REF_SCHEMA, ImageRef, Listing, RejectedFile, iterate_refs
from pipelines.sources.source import Member, Source
from tfrecord_io.format.person import column_in_one_form, persons
from tfrecord_io.format.schema import SPLITS
from tfrecord_io.terminal.printing import counted
from tfrecord_io.terminal.spelling import look_alike

_LABEL, _PATIENT = map(REF_SCHEMA.get_field_index, ("label", "patient"))


def list_images(source: Source, options: ListingOptions) -> Listing:
    """Lists a source without what `--exclude` names; see `_list_images`.

    What is excluded is known only when all is listed. Then all else is listed again, so that
    nothing knows of it: neither layout and classes nor the table of labels. This repeats where a
    second copy of an excluded file took its place. Where listing all fails, what is excluded by
    its name goes first, since the fault may lie in it.

    Raises:
        errors.UserError, errors.BuildError: as `_list_images` does, or if the table of `--exclude`
            cannot be read.
    """
    options = _without_rows_of_left_out(source, options)
    if options.exclude is None:
        return _list_images(source, options)
    wanted = exclude.read_exclusion(options.exclude, options.missing)
    gone, fault = set[str](), None
    try:
        listing = _list_images(source, options)
    except (errors.UserError, errors.BuildError) as error:
        listing, fault = Listing(), error
    num_files = listing.num_files
    while True:
        members = (member for member in _members(source) if member.name not in gone)
        names = [member.name for member in _chosen(members, options, Listing())]
        files, rows = wanted.find(names, listing, options)
        if not files | rows:
            if fault and not num_files:
                raise fault
            break
        gone |= files
        options = exclude.without_rows(options, rows)
        listing = _list_images(source, options, gone)
        num_files = num_files or listing.num_files + len(gone)
    listing.num_withdrawn = num_files - listing.num_files
    listing.num_files = num_files
    listing.warnings += wanted.warnings()
    return listing


def _list_images(
    source: Source, options: ListingOptions, gone: Collection[str] = frozenset()
) -> Listing:
    """Sorts the files of a source into images, copies of images, rejects and ignored files.

    Two layouts are recognised, below any folder: SPLIT/CLASS/files and, if there is no split
    folder, CLASS/files, whose images all go to the split `train`. Files may be in subfolders of
    their class. If all images below a folder with a split's name are in further such folders, as
    in train/train/CNV or dev/scans/train/CNV, the inner ones are the splits. A table of labels
    takes the place of the folders.

    Each frame of a DICOM file, and each page of a TIFF, is an image, see `frames.find_frames`.

    Args:
        source: has the files.
        options: what the user says about them.
        gone: names of files that are passed over.

    Raises:
        errors.UserError: if the input or an option is wrong, no image is found, or there is a DICOM
            file and pydicom or a codec is not installed.
        errors.BuildError: if a store does not answer, or this user may not read some files.
    """
    listing, labels = Listing(source=source.describe()), options.table
    listing.identity |= options.identity()
    listing.label_names = options.label_names
    listing.order = labels.order if labels else ()
    present = (member for member in _members(source) if member.name not in gone)
    members = _chosen(present, options, listing)
    possible = files.read_members(members, listing, has_folders=labels is None)
    if labels is None:
        refs = layout.place_by_folders(possible, options, listing)
    else:
        refs = layout.place_by_table(possible, labels, options.tree, listing)
        listing.naming_notes += labels.notes
        _leave_out_rows(listing)
    if options.label_regex:
        refs = _find_labels(refs, options.label_regex, listing)
    refs = _choose_classes(refs, options, listing)
    refs = _drop_copies(refs, source.same_content, listing)
    listing.notes += _label_notes(refs, options)
    if labels is None:
        layout.require_no_masks(refs["path"])
        pairs.require_no_pairs(listing, refs, source, options)
        listing.naming_notes += listing.told_of_others
    has_patients = labels is not None and "patient" in labels.cells
    if not has_patients:
        patients = _find_patients(refs["path"], options.group_regex, listing)
        refs = refs.set_column(_PATIENT, "patient", patients)
    listing.refs = refs.combine_chunks()
    frames.find_frames(listing, source, keep_patients=has_patients, modalities=options.modality)
    modality.note_modalities(listing)
    _fill_in_patients(listing, options)
    if options.copies_by_name:
        copies.find_copies(listing)
    checks.require_classes(listing, options)
    if f"{OTHER}site" in listing.refs.column_names:
        patients = persons(listing.refs["patient"], listing.refs[f"{OTHER}site"])
        listing.refs = listing.refs.set_column(_PATIENT, "patient", patients)
    listing.naming_notes += _patient_notes(listing, options)
    return listing.checked()


def _members(source: Source) -> Iterator[Member]:
    """Yields the files of a source, by their names in the form in which names are compared."""
    return (member.in_one_form for member in source.members())


def _without_rows_of_left_out(source: Source, options: ListingOptions) -> ListingOptions:
    """Returns options whose table lacks the rows of files that a pattern leaves out."""
    if not (options.include_regex or options.exclude_regex):
        return options
    if (table := options.names_in_table) is None:
        return options
    unwanted = Listing()
    wanted = {member.name for member in _chosen(_members(source), options, unwanted)}
    names = [*wanted, *unwanted.excluded]
    rows = rows_of_files(names, table, match_files(names, table, Listing()), unwanted.excluded)
    return exclude.without_rows(options, rows)


def _choose_classes(refs: pa.Table, options: ListingOptions, listing: Listing) -> pa.Table:
    """Keeps the images of the chosen classes, or all if there are none.

    Raises:
        errors.UserError: if a chosen class has no images.
    """
    if classes := options.grades or options.classes:
        labels = refs["label"].cast(pa.string())
        present = set(labels.unique().to_pylist())
        if missing := set(classes) - present:
            raise errors.UserError(
                f"--classes or --grades names {layout.quoted(sorted(missing))}, but the classes "
                f"are {layout.quoted(sorted(present))}"
            )
        chosen = refs.filter(pc.is_in(labels, pa.array(classes)))
        listing.ignored["class_not_chosen"] += refs.num_rows - chosen.num_rows
        refs = chosen
    return refs


def _drop_copies(
    refs: pa.Table, same_content: Callable[[Member, Member], bool], listing: Listing
) -> pa.Table:
    """Keeps the first of several files of the same path, which are adjacent in the table.

    Each of the others is a copy if its content is the same, otherwise a reject; or an image if its
    name has another Unicode form, which its path then keeps.
    """
    paths = refs["path"].combine_chunks()
    is_first = np.ones(len(paths), bool)
    is_first[1:] = pc.not_equal(paths[1:], paths[:-1]).to_numpy(zero_copy_only=False)
    repeated = np.flatnonzero(~is_first)
    firsts = np.maximum.accumulate(np.where(is_first, np.arange(len(is_first)), 0))[repeated]
    pairs = (iterate_refs(refs.take(rows)) for rows in (repeated, firsts))
    own_paths: dict[int, str] = {}
    for row, first_row, ref, first in zip(repeated.tolist(), firsts.tolist(), *pairs, strict=True):
        if ref.size == first.size and same_content(ref.member, first.member):
            listing.copies += 1
        elif ref.spelled != first.spelled:
            is_first[row] = True
            own_paths |= {row: _own_path(ref), first_row: _own_path(first)}
        else:
            detail = f"same path as {first.source_path}, but different content"
            listing.rejects.append(RejectedFile(ref.source_path, "path_conflict", detail))
    if own_paths:
        texts = [own_paths.get(row, path) for row, path in enumerate(paths.to_pylist())]
        place = REF_SCHEMA.get_field_index("path")
        refs = refs.set_column(place, "path", pa.array(texts, pa.large_string()))
        return refs.filter(pa.array(is_first)).sort_by("path")
    return refs.filter(pa.array(is_first))


def _own_path(ref: ImageRef) -> str:
    return "/".join(ref.source_path.split("/")[-1 - ref.path.count("/") :])


def _label_notes(refs: pa.Table, options: ListingOptions) -> Iterator[str]:
    """Yields what the user should know about the classes, without the name of a table."""
    found = refs["label"].unique().to_pylist()
    names = sorted((options.label_names if options.table else ()) or found)
    for name in names:
        if options.table is None and name.lower() in SPLITS:
            yield (
                f"the class {name!a} has the name of a split; if it is not a class, give --input "
                "or --tree the folder that holds the SPLIT or CLASS folders"
            )
    for same in look_alike(names):
        yield (
            f"the labels {' and '.join(map(ascii, same))} differ only in case, spaces, hyphens or "
            "invisible characters; if they are one, give them one name"
        )


def _patient_notes(listing: Listing, options: ListingOptions) -> Iterator[str]:
    """Yields which patients may be one, with their names."""
    alike = look_alike(listing.refs["patient"].drop_null().unique().to_pylist())
    if alike:
        in_table = options.table is not None and "patient" in options.table.cells
        how = "in the column patient" if in_table else "in a column patient of a table of --labels"
        yield (
            f"{sum(map(len, alike)):,} patients have names that differ only in case, spaces, "
            f"hyphens or invisible characters, such as {' and '.join(map(ascii, alike[0]))}, and "
            f"count as different people; if they are not, give each one name {how}"
        )


def _chosen(
    members: Iterable[Member], options: ListingOptions, listing: Listing
) -> Iterator[Member]:
    """Yields the files that --include_regex and --exclude_regex choose; the others are counted."""
    wanted, unwanted = options.include_regex or "", options.exclude_regex
    for member in members:
        if re.search(wanted, member.name) and not (unwanted and re.search(unwanted, member.name)):
            yield member
        else:
            listing.num_files += 1
            listing.excluded.append(member.name)


def _leave_out_rows(listing: Listing) -> None:
    """Counts the rows of a table whose files are excluded as excluded, and not as rejects."""
    names = {posixpath.basename(name).partition(".")[0] for name in listing.excluded}
    left_out = {
        file
        for file in listing.rejects
        if file.reason == "missing_file"
        and posixpath.basename(file.source_path).partition(".")[0] in names
    }
    # The row and the file of one path are counted once.
    excluded = {*listing.excluded}
    others = [file.source_path for file in left_out if file.source_path not in excluded]
    listing.num_files -= len(left_out) - len(others)
    listing.excluded += others
    listing.rejects = [file for file in listing.rejects if file not in left_out]


def _find(paths: pa.ChunkedArray, regex: str) -> pa.Array:
    """Returns the first group of a pattern in each name, or else in the path; null without one."""
    pattern = re.compile(regex)

    def found(path: str) -> str | None:
        match = pattern.search(path.rpartition("/")[2]) or pattern.search(path)
        return match and match.group(1)

    # One by one, because a list of all paths would take ten times the memory of the column.
    found_in = pa.array((found(path.as_py()) for path in paths), pa.large_string())
    return column_in_one_form(found_in)


def _find_labels(refs: pa.Table, label_regex: str, listing: Listing) -> pa.Table:
    """Returns the images with the classes of a pattern; those without a match are rejects.

    Raises:
        errors.UserError: if no image has one.
    """
    labels = _find(refs["path"], label_regex)
    has_label = pc.fill_null(pc.not_equal(labels, ""), False)
    for ref in iterate_refs(refs.filter(pc.invert(has_label))):
        detail = "--label_regex finds no class in its path"
        listing.rejects.append(RejectedFile(ref.source_path, "no_label", detail))
    if not pc.any(has_label).as_py():
        raise errors.UserError(
            f"--label_regex {label_regex!r} finds no class in the names or paths of "
            f"{counted(len(refs), 'file')}, such as {_some(refs['path'])}"
        )
    counts = collections.Counter(labels.filter(has_label).to_pylist())
    listing.layout.append(("class in names", roles.told(counts)))
    column = labels.cast(pa.string()).dictionary_encode()
    return refs.set_column(_LABEL, "label", column).filter(has_label)


def _some(paths: pa.ChunkedArray) -> str:
    return ", ".join(map(ascii, paths.slice(0, 3).to_pylist()))


def _fill_in_patients(listing: Listing, options: ListingOptions) -> None:
    """Takes the patients that nothing else tells from their folders, unless a pattern was given."""
    refs = listing.refs
    if layout.PATIENT not in refs.column_names:
        return
    folders, known = refs[layout.PATIENT].cast(pa.large_string()), refs["patient"]
    listing.refs = refs = refs.drop_columns(layout.PATIENT)
    if options.group_regex == DEFAULT_GROUP_REGEX or "patient" in options.layout:
        patients = pc.coalesce(known, folders)
        if patients.null_count < known.null_count:
            listing.refs = refs.set_column(_PATIENT, "patient", patients)


def _find_patients(paths: pa.ChunkedArray, group_regex: str, listing: Listing) -> pa.Array:
    """Returns the patient of each image, from its name or else its folders.

    Raises:
        errors.UserError: if the user's pattern finds no patient.
    """
    patients = _find(paths, group_regex)
    num_without, num_images = patients.null_count, len(patients)
    if group_regex != DEFAULT_GROUP_REGEX and patients.drop_null().unique().equals(
        patients.drop_null()[:1]
    ):
        pairs = zip(paths.slice(0, 3).to_pylist(), patients[:3].to_pylist(), strict=True)
        shown = ", ".join(f"{found!a} in {path!a}" for path, found in pairs if found)
        if num_images - num_without > 1:
            listing.naming_notes.append(
                f"--patient_regex {group_regex!r} finds one patient in all images ({shown}); its "
                "first group should be what differs between patients"
            )
    if group_regex == DEFAULT_GROUP_REGEX or num_without <= num_images / 2:
        return patients
    text = (
        f"--patient_regex {group_regex!r} finds a patient in the names or paths of "
        f"{num_images - num_without:,} of {num_images:,} images; others are "
        + _some(paths.filter(patients.is_null()))
    )
    if num_without == num_images:
        raise errors.UserError(
            f"{text}. Its first group should be the patient, as in (patient[0-9]+)/ for a folder "
            "for each patient; a table of --labels can name the patients, too"
        )
    listing.naming_notes.append(text)
    return patients

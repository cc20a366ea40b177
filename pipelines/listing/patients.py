"""Finds the patient of each image: in a table, in tags of DICOM, in its name or in its folders."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing import roles
from pipelines.listing.by_folders import PATIENT
from pipelines.listing.files import find_in_names, first_of
from pipelines.listing.images import Images
from pipelines.listing.options import DEFAULT_PATIENT_REGEX, ListingOptions
from pipelines.listing.refs import OTHER, counts_of
from tfrecord_io.format.person import persons
from tfrecord_io.terminal.spelling import look_alike


def with_patients(images: Images, options: ListingOptions, *, in_table: bool) -> Images:
    """Returns the images with their patients, which may be in the table or the tags already.

    Of others, the patient is what a pattern finds in the name, and else the folder of a patient,
    unless the user gave the pattern. If there are sites, the patient begins with the site: patient
    17 of one site and patient 17 of another are two. `in_table` says that a table names all.

    Raises:
        errors.UserError: if the user's pattern finds no patient.
    """
    refs, patients = images.table, images.table["patient"]
    if not in_table:
        in_names = find_in_names(refs["path"], options.patient_regex)
        images = _noted(images.with_column("patient", in_names), options.patient_regex)
        patients = pc.coalesce(patients, in_names)
    elif options.patient_regex != DEFAULT_PATIENT_REGEX:
        told = "the column patient of the table names the patients, and not --patient_regex"
        images = images.noted(told, is_private=False, is_stored=False)
    if PATIENT in refs.column_names:
        images = images.then(images.table.drop_columns(PATIENT))
        if options.patient_regex == DEFAULT_PATIENT_REGEX or "patient" in options.layout:
            patients = pc.coalesce(patients, refs[PATIENT].cast(pa.large_string()))
    if f"{OTHER}site" in refs.column_names:
        patients = persons(patients, refs[f"{OTHER}site"])
    images = images.with_column("patient", patients)
    return images.noted(*_note_on_alike(patients, in_table=in_table))


def _noted(images: Images, patient_regex: str) -> Images:
    """Returns the images with notes on what a pattern for patients finds.

    Raises:
        errors.UserError: if it is the user's, and finds nothing.
    """
    images = images.noted(*_note_on_constant(images.table, patient_regex))
    if patient_regex == DEFAULT_PATIENT_REGEX:
        return images
    paths, patients = images.table["path"], images.table["patient"]
    if images.layout:
        names = roles.told(counts_of(patients.drop_null()))
        images = images.then(layout=(*images.layout, ("patient in names", names)))
    num_without, num_images = patients.null_count, len(patients)
    if num_without <= num_images / 2:
        return images
    text = (
        f"--patient_regex {patient_regex!r} finds a patient in the names or paths of "
        f"{num_images - num_without:,} of {num_images:,} images; others are "
        + first_of(paths.filter(patients.is_null()))
    )
    if num_without == num_images:
        raise errors.UserError(
            f"{text}. Its first group should be the patient, as in (patient[0-9]+)/ for a folder "
            "for each patient; a table of --labels can name the patients, too"
        )
    return images.noted(text)


def _note_on_constant(refs: pa.Table, patient_regex: str) -> Iterator[str]:
    """Yields a note if a pattern finds one patient in all images, or in all of each class."""
    known = refs.select(["path", "patient"])
    known = known.append_column("label", refs["label"].cast(pa.string()))
    known = known.filter(pc.is_valid(known["patient"]))
    found = [("path", "min"), ("path", "count")]
    people = known.group_by(["label", "patient"]).aggregate(found).sort_by("label").to_pylist()
    is_one = len({one["patient"] for one in people}) == 1
    default = " (the default)" if patient_regex == DEFAULT_PATIENT_REGEX else ""
    is_constant = len(people) == len({one["label"] for one in people}) and not (is_one and default)
    if is_constant and any(one["path_count"] > 1 for one in people):
        shown = ", ".join(f"{one['patient']!a} in {one['path_min']!a}" for one in people[:3])
        shown = f"{people[0]['patient']!a} in {first_of(known['path'])}" if is_one else shown
        yield (
            f"--patient_regex {patient_regex!r}{default} finds one patient in all images"
            f"{'' if is_one else ' of each class'} ({shown}); its first group should be what "
            "differs between patients"
        )


def _note_on_alike(patients: pa.ChunkedArray, *, in_table: bool) -> Iterator[str]:
    """Yields a note on the patients whose names may be those of one."""
    if alike := look_alike(patients.drop_null().unique().to_pylist()):
        how = "in the column patient" if in_table else "in a column patient of a table of --labels"
        yield (
            f"{sum(map(len, alike)):,} patients have names that differ only in case, spaces, "
            f"hyphens or invisible characters, such as {' and '.join(map(ascii, alike[0]))}, and "
            f"count as different people; if they are not, give each one name {how}"
        )

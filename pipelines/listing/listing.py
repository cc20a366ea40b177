"""Turns the files of a source into image references, with split, class and patient."""

from __future__ import annotations

import collections
import re
import unicodedata
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing import frames, layout, selection
from pipelines.listing.label_table import LabelTable
from pipelines.listing.options import DEFAULT_GROUP_REGEX, ListingOptions
from pipelines.listing.refs import BATCH_ROWS, REF_SCHEMA, SITE, Listing, with_column
from pipelines.sources.source import Source
from tfrecord_io.manifest import WEIGHT


def list_images(source: Source, options: ListingOptions) -> Listing:
    """Sorts the files of a source into images, copies of images, rejects and ignored files.

    Two layouts are recognised, below any folder: SPLIT/CLASS/files and, if there is no split
    folder, CLASS/files, whose images all go to the split `train`. Files may be in subfolders of
    their class. If all images below a folder with a split's name are in further such folders, as
    in train/train/CNV or dev/scans/train/CNV, the inner ones are the splits. A table of labels
    takes the place of the folders.

    Each frame of a DICOM file, and each page of a TIFF, is an image, see `frames.find_frames`.

    Raises:
        errors.UserError: if the input is damaged or missing, no image is found, the chosen tree or
            classes do not exist, there are several unrelated trees and none was chosen, a class
            holds folders named like other classes, no image matches the user's `group_regex`, or
            there is a DICOM file and pydicom or a codec is not installed.
        errors.BuildError: if a store does not answer, or this user may not read some files.
    """
    listing, labels = Listing(), options.table
    if source.gives_labels:
        rows = [{"root": "", "path": found.name, **found._asdict()} for found in source.members()]
        refs = pa.Table.from_pylist(rows, REF_SCHEMA).combine_chunks()
        listing.num_files = len(rows)
        listing.refs = selection.choose_classes(refs, options.chosen_classes, listing)
        return listing.checked()
    files = layout.read_members(source.members(), listing, has_folders=labels is None)
    if labels:
        refs = layout.place_by_table(files, labels, options.tree, listing)
        refs = selection.choose_classes(refs, options.chosen_classes, listing)
        listing.naming_notes += labels.notes
    else:
        refs = layout.place_by_folders(files, listing)
        refs = selection.choose_tree(refs, options.tree, listing)
        refs = selection.choose_classes(refs, options.chosen_classes, listing)
        selection.require_separate_classes(refs)
        refs = refs.drop_columns("inner")
    refs = selection.drop_copies(refs, source.same_content, listing)
    listing.notes += _label_notes(refs, labels)
    has_patients = labels is not None and "patient" in labels.cells
    if not has_patients:
        patients = _find_patients(refs["path"], options.group_regex, listing)
        refs = with_column(refs, "patient", patients)
    listing.refs = refs.combine_chunks()
    frames.find_frames(listing, source, keep_patients=has_patients)
    if SITE in refs.column_names:
        listing.refs = with_column(listing.refs, "patient", _patients_of_sites(listing.refs))
    return listing.checked()


def _label_notes(refs: pa.Table, labels: LabelTable | None) -> Iterator[str]:
    """Yields what the user should know about the classes, without the name of a table."""
    names = sorted(refs["label"].cast(pa.string()).unique().to_pylist())
    if labels is None:
        for name in names:
            if name.lower() in layout.SPLITS:
                yield (
                    f"the class {name!a} has the name of a split; if it is not a class, give "
                    "--input or --tree the folder that holds the SPLIT or CLASS folders"
                )
    elif labels.others is not None and WEIGHT in labels.others.column_names:
        ends = pc.min_max(labels.others[WEIGHT]).as_py()
        yield (
            f"each image counts in training by the column {WEIGHT} of the table of --labels, "
            f"{ends['min']:g} to {ends['max']:g}; if that is something else, such as kilograms, "
            f"rename it with --columns body_weight={WEIGHT}"
        )
    alike: dict[str, list[str]] = collections.defaultdict(list)
    for name in (labels and sorted(labels.label_columns)) or names:
        # Unicode D146: caseless matching.
        caseless = unicodedata.normalize("NFD", name).casefold()
        alike[unicodedata.normalize("NFC", caseless).strip()].append(ascii(name))
    for same in alike.values():
        if len(same) > 1:
            yield (
                f"the labels {' and '.join(same)} differ only in case, spaces or Unicode form; if "
                "they are one, give them one name"
            )


def _find_patients(paths: pa.ChunkedArray, group_regex: str, listing: Listing) -> pa.ChunkedArray:
    """Returns the patient of each image, from its name or else its folders.

    Raises:
        errors.UserError: if the user's pattern finds no patient.
    """
    pattern = re.compile(group_regex)

    def patient(path: str) -> str | None:
        if match := pattern.search(path.rpartition("/")[2]):
            return match.group(1)
        match = pattern.search(path)
        listing.patient_in_path |= match is not None
        return match.group(1) if match else None

    # Batch by batch, because a list of all paths would take ten times the memory of the column.
    batches = (paths.slice(start, BATCH_ROWS) for start in range(0, len(paths), BATCH_ROWS))
    kind = pa.large_string()
    arrays = [pa.array(map(patient, batch.to_pylist()), kind) for batch in batches]
    patients = pa.chunked_array(arrays, kind)
    num_without, num_images = patients.null_count, len(patients)
    if group_regex == DEFAULT_GROUP_REGEX or num_without <= num_images / 2:
        return patients
    without = paths.filter(patients.is_null()).slice(0, 3).to_pylist()
    text = (
        f"--group_regex {group_regex!r} finds a patient in the names or paths of "
        f"{num_images - num_without:,} of {num_images:,} images; others are "
        + ", ".join(map(ascii, without))
    )
    if num_without == num_images:
        raise errors.UserError(
            f"{text}. Its first group should be the patient, as in (patient[0-9]+)/ for a folder "
            "for each patient; a table of --labels can name the patients, too"
        )
    listing.naming_notes.append(text)
    return patients


def _patients_of_sites(refs: pa.Table) -> pa.Array:
    """Returns patients such as `london/17` of images that have a site.

    Patient 17 of one site and patient 17 of another are two patients. If an image of patient 17 has
    no site, it may be any of them, so they are one patient: `17`.
    """
    site = refs[SITE].cast(pa.large_string()).combine_chunks()
    patient = refs["patient"].cast(pa.large_string()).combine_chunks()
    named = pc.binary_join_element_wise(site, patient, pa.scalar("/", pa.large_string()))
    siteless = patient.filter(site.is_null()).drop_null()
    return pc.if_else(pc.is_in(patient, siteless), patient, named)

"""Lists the images of a source in one table: a row each, with split, class and patient.

These are in the names of folders (`by_folders`), or in the rows of a table of labels (`by_table`),
which Parquet and npz files bring along. Each further step takes the images, and returns them with
what it has found, or without what is not wanted. What it left out, and what the user should know,
is in their ledger.
"""

from __future__ import annotations

from pipelines.listing.by_folders import place_by_folders
from pipelines.listing.by_table import place_by_table, rows_of_chosen_files
from pipelines.listing.classes import (
    with_labels_in_names,
)
from pipelines.listing.copies import without_second_trees
from pipelines.listing.files import read_files
from pipelines.listing.frames import with_frames
from pipelines.listing.images import Images
from pipelines.listing.label_table import Labels, read_table
from pipelines.listing.options import ListingOptions
from pipelines.listing.patients import with_patients
from pipelines.sources.source import Source


def list_images(
    source: Source,
    options: ListingOptions,
    labels: Labels | None = None,
) -> Images:
    """Sorts the files of a source into images, copies of images, rejects and ignored files.

    Split, class and patient come from the folders, or from a table of labels, by default the one
    that the options name. `classes.with_classes` chooses among the labels.

    Raises:
        errors.UserError: if the input or an option is wrong, no image is found, or there is a DICOM
            file and pydicom or a codec is not installed.
        errors.BuildError: if a store does not answer, or this user may not read some files.
    """
    labels = labels or read_table(options)
    table = rows_of_chosen_files(labels, source).table if labels else None
    names_patients = table is not None and "patient" in table.cells
    files = read_files(source.members(), options, has_folders=table is None)
    identity = {**options.identity(), "labels": table.digest if table else None}
    files = files.then(source=source.describe(), identity=identity)
    if table is None:
        images = place_by_folders(files, options)
    else:
        images = place_by_table(files, table, options)
    if options.label_regex:
        images = with_labels_in_names(images, options.label_regex)
    images = without_second_trees(images, source.same_content)
    if table is None:
        images = images.noted(*images.ledger.unread)
    images = with_frames(images, source, options.modality, keep_patients=names_patients)
    return with_patients(images, options, in_table=names_patients)

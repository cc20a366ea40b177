"""Lists the images of a source in one table: a row each, with split, class and patient.

There is one rule for each question:

- Which folder is the class: `CLASS/image` or `SPLIT/CLASS/image`, see `folders`.
- Where labels are, if not in folders: in a table, see `table`; or in names, by
  `--label_regex`.
- Who a patient is, see `classes.with_patients`.
- What one image is: a file, or a frame of a DICOM file, see `frames`.

What does not fit is refused. Each step takes the images, and returns them with what it has found,
or without what is not wanted; what it left out is counted in their ledger.
"""

from __future__ import annotations

from pipelines.listing.classes import with_labels_in_names, with_patients
from pipelines.listing.files import read_files
from pipelines.listing.folders import place_by_folders, without_second_trees
from pipelines.listing.frames import with_frames
from pipelines.listing.images import Images
from pipelines.listing.options import ListingOptions
from pipelines.listing.table import LabelTable, place_by_table, read_table
from pipelines.sources.source import Source


def list_images(
    source: Source, options: ListingOptions, labels: LabelTable | None = None
) -> Images:
    """Sorts the files of a source into images, copies of images, rejects and ignored files.

    `labels` is the table of labels, by default the one that the options name. The classes are then
    chosen by `classes.with_classes`.

    Raises:
        errors.UserError: if the input or an option is wrong, no image is found, or there is a DICOM
            file and pydicom or a codec is not installed.
        errors.BuildError: if the input cannot be read, or a store does not answer.
    """
    labels = labels or read_table(options)
    files = read_files(source.members(), options)
    files = files.then(source=source.describe(), identity=options.identity())
    images = place_by_table(files, labels, options) if labels else place_by_folders(files, options)
    if options.label_regex:
        images = with_labels_in_names(images, options.label_regex)
    images = without_second_trees(images, source.same_content)
    in_table = labels is not None and "patient" in labels.rows.column_names
    keep_patients = in_table or "patient" in options.layout
    images = with_frames(images, source, options.modality, keep_patients=keep_patients)
    return with_patients(images, options, keep=keep_patients)

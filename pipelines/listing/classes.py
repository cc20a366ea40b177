"""Refuses classes that cannot be classes, before an image is decoded."""

from __future__ import annotations

import posixpath
import re
import statistics

import pyarrow as pa

from pipelines import errors
from pipelines.listing import roles
from pipelines.listing.images import Images
from pipelines.listing.options import ListingOptions
from tfrecord_io.format.kinds import CLASSES

# With fewer classes than this, few images of each are said of no collection.
_FEW_CLASSES = 5

_ADVICE = (
    "say what the folders are with --layout, find the class in names with --label_regex, give a "
    "table with --labels, or name the classes with --classes"
)


def with_checked_classes(images: Images, options: ListingOptions) -> Images:
    """Notes odd classes, unless the user has named them or they are not classes.

    Raises:
        errors.UserError: if all classes are named like splits or kinds of files, many have an image
            or two, each class is a patient, or a split has none of those of train.
    """
    if options.label_kind != CLASSES or options.classes:
        return images
    refs = images.table
    counts = {pair["values"]: pair["counts"] for pair in refs["label"].value_counts().to_pylist()}
    shown = roles.shown(counts)
    if counts and all(map(roles.is_no_class, counts)):
        raise errors.UserError(
            f"the classes would be {shown}, which are names of splits or of kinds of files; "
            f"{_ADVICE}"
        )
    median = statistics.median(counts.values()) if counts else 0
    if len(counts) >= _FEW_CLASSES and median <= roles.FEW_IMAGES:
        text = f"half of the {len(counts):,} classes have {median:g} images or fewer: {shown}"
        if len(counts) > roles.MANY_CLASSES:
            raise errors.UserError(f"{text}; {_ADVICE}")
        images = images.noted(text)
    _require_classes_of_train(refs)
    known = refs.select(["label", "patient"]).drop_null()
    pairs = known.group_by(["label", "patient"]).aggregate([])
    if len(pairs) == len(pairs["patient"].unique()) == len(counts) >= _FEW_CLASSES:
        raise errors.UserError(
            f"each of the {len(pairs):,} classes is one patient: {shown}; {_ADVICE}, or change "
            "--patient_regex, if it finds the class in names"
        )
    return images


def _require_classes_of_train(refs: pa.Table) -> None:
    pairs = refs.group_by(["split", "label"]).aggregate([("path", "min"), ("path", "max")])
    rows = pairs.to_pylist()
    train = {row["label"] for row in rows if row["split"] == "train"}
    for split in sorted({row["split"] for row in rows}) if train else ():
        own = [row for row in rows if row["split"] == split]
        if not train.isdisjoint(row["label"] for row in own):
            continue
        paths = (row[name] for row in own for name in ("path_min", "path_max"))
        folder = re.escape(posixpath.commonpath(map(posixpath.dirname, paths)))
        pattern = f" '(^|/){folder}/'" if folder else ""
        raise errors.UserError(
            f"the split {split} has none of the classes of train, but "
            f"{roles.shown(row['label'] for row in own)}. If its images have no labels, leave "
            f"them out with --exclude_regex{pattern}; or name all classes with --classes, or let "
            "them have the same names with --rename_classes"
        )

"""Finds the classes and the patients of the images: by patterns, and by what the user chose."""

from __future__ import annotations

import collections
import posixpath
import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing.files import find_in_names, first_of
from pipelines.listing.images import Images, Ledger
from pipelines.listing.options import DEFAULT_PATIENT_REGEX, ListingOptions
from pipelines.listing.refs import RejectedFile, counts_of, iterate_refs
from tfrecord_io.format.kinds import CLASSES
from tfrecord_io.terminal.printing import counted, listed, printable

# So many names are shown.
_SHOWN = 6


def with_labels_in_names(images: Images, label_regex: str) -> Images:
    """Returns the images with the classes of a pattern; those without a match are rejects.

    Raises:
        errors.UserError: if no image has one.
    """
    refs = images.table
    labels = find_in_names(refs["path"], label_regex)
    has_label = pc.is_valid(labels)
    if not pc.any(has_label).as_py():
        raise errors.UserError(
            f"--label_regex {label_regex!r} finds no class in the names or paths of "
            f"{counted(len(refs), 'file')}, such as {first_of(refs['path'])}"
        )
    detail = "--label_regex finds no class in its path"
    without = iterate_refs(refs.filter(pc.invert(has_label)))
    rejects = tuple(RejectedFile(ref.source_path, "no_label", detail) for ref in without)
    images = images.with_column("label", labels.cast(pa.string()).dictionary_encode())
    return images.then(images.table.filter(has_label), Ledger(rejects=rejects))


def with_patients(images: Images, options: ListingOptions, *, keep: bool) -> Images:
    """Returns the images with their patients.

    They are those of the table or of the level `patient` of `--layout` (`keep`); else what the
    user's `--patient_regex` finds; else those of the tags of DICOM, or what the default pattern
    finds in a name.

    Raises:
        errors.UserError: if the user's pattern finds no patient.
    """
    if keep:
        return images
    paths, pattern = images.table["path"], options.patient_regex
    patients = find_in_names(paths, pattern)
    if pattern == DEFAULT_PATIENT_REGEX:
        patients = pc.coalesce(images.table["patient"], patients)
    elif patients.null_count == len(patients):
        raise errors.UserError(
            f"--patient_regex {pattern!r} finds no patient in the names or paths of "
            f"{counted(len(paths), 'image')}, such as {first_of(paths)}. Its first group should be "
            "the patient, as in (patient[0-9]+)/ for a folder for each patient"
        )
    return images.with_column("patient", patients)


def with_classes(images: Images, options: ListingOptions) -> Images:
    """Returns the images of the chosen classes, and the names of these; each file is counted.

    Raises:
        errors.UserError: if a chosen class has no images, or a split has none of the classes of
            train.
    """
    counts = collections.Counter[str]()
    for label, count in counts_of(images.table["label"]).items():
        counts.update(dict.fromkeys(options.label_kind.names_in(label), count))
    chosen = options.grades or options.classes
    if missing := {*chosen} - counts.keys():
        absent, present = (", ".join(map(repr, sorted(names))) for names in (missing, counts))
        raise errors.UserError(
            f"--classes or --grades names {absent}, but the classes are {present}"
        )
    if chosen:
        is_chosen = pc.is_in(images.table["label"].cast(pa.string()), pa.array(chosen))
        num_others = images.table.num_rows - pc.sum(is_chosen).as_py()
        ignored = collections.Counter(class_not_chosen=num_others)
        images = images.then(images.table.filter(is_chosen), Ledger(ignored=ignored))
    if options.label_kind == CLASSES and not chosen:
        _require_classes_of_train(images.table)
    names = chosen or (options.label_columns and images.label_names)
    if not names:
        places = {name: place for place, name in enumerate(images.label_names)}
        names = sorted(counts, key=lambda name: (places.get(name, 0), name))
    return images.then(
        label_names=tuple(names), layout=tuple(_layout_of(images, options))
    ).checked()


def _require_classes_of_train(refs: pa.Table) -> None:
    """Refuses a split that has none of the classes of train, such as test/images/1.png."""
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
            f"{listed(sorted(printable(row['label']) for row in own), _SHOWN)}. If it has no "
            f"labels, leave it out with --exclude_regex{pattern}; else name all classes with "
            "--classes, or give them the same names with --rename_classes"
        )


def _layout_of(images: Images, options: ListingOptions) -> Iterator[tuple[str, str]]:
    """Yields a row for each level of folders, and for what is in names: its role, and its names."""
    if options.labels or options.rows:
        return
    columns = {role: role for role, _ in images.layout}
    if options.label_regex:
        columns["class in names"] = "class"
    if "patient" not in columns and images.table["patient"].null_count < images.table.num_rows:
        columns["patient in tags" if images.has_dicom else "patient in names"] = "patient"
    for role, column in columns.items():
        name = "label" if column == "class" else column
        counts = counts_of(images.table[name].drop_null()) if name != "*" else {}
        ranked = sorted((-count, label) for label, count in counts.items())
        few = [f"{printable(label)} {-count:,}" for count, label in ranked]
        yield role, f"{len(ranked):,}: {listed(few, _SHOWN)}" if few else ""

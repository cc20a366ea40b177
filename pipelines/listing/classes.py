"""Finds the classes of the images: chooses and orders them, and refuses what cannot be one."""

from __future__ import annotations

import collections
import posixpath
import re
import statistics
from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing import roles
from pipelines.listing.files import find_in_names, first_of
from pipelines.listing.images import Images, Ledger
from pipelines.listing.options import ListingOptions
from pipelines.listing.refs import RejectedFile, counts_of, iterate_refs
from tfrecord_io.format.kinds import CLASSES
from tfrecord_io.format.schema import SPLITS
from tfrecord_io.terminal.printing import counted
from tfrecord_io.terminal.spelling import look_alike, misspelled, rename_flag, written

# With fewer classes than this, few images of a class draw no note.
_FEW_CLASSES = 5

_ADVICE = (
    "say what the folders are with --layout, find the class in names with --label_regex, give a "
    "table with --labels, or name the classes with --classes"
)


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
    counts = counts_of(labels.drop_null())
    images = images.with_column("label", labels.cast(pa.string()).dictionary_encode())
    refs = images.table.filter(has_label)
    layout = (*images.layout, ("class in names", roles.told(counts)))
    images = images.then(refs, Ledger(rejects=rejects), layout=layout)
    if len(refs) > 1 == len(counts):
        images = images.noted(
            f"--label_regex {label_regex!r} finds one class in all images ({min(counts)!a} in "
            f"{first_of(refs['path'])}); its first group should be what differs between classes"
        )
    return images


def with_classes(images: Images, options: ListingOptions) -> Images:
    """Returns the images of the chosen classes, with the names of these; each file is counted.

    Raises:
        errors.UserError: if a chosen class has no images, or the classes cannot be any.
    """
    images = with_checked_classes(of_classes(images, options), options)
    return with_label_names(images, options).checked()


def of_classes(images: Images, options: ListingOptions) -> Images:
    """Keeps the images of the chosen classes, or all if none is, and notes names that look odd.

    Raises:
        errors.UserError: if a chosen class has no images.
    """
    counts = collections.Counter[str]()
    for label, count in counts_of(images.table["label"]).items():
        counts.update(dict.fromkeys(options.label_kind.names_in(label), count))
    chosen = options.grades or options.classes
    notes = _notes_on_names(counts, chosen or counts.keys(), in_folders=not options.tables)
    images = images.noted(*notes, is_private=False)
    if not chosen:
        return images
    if missing := set(chosen) - counts.keys():
        absent, present = (", ".join(map(repr, sorted(names))) for names in (missing, counts))
        raise errors.UserError(
            f"--classes or --grades names {absent}, but the classes are {present}"
        )
    is_chosen = pc.is_in(images.table["label"].cast(pa.string()), pa.array(chosen))
    num_others = images.table.num_rows - pc.sum(is_chosen).as_py()
    return images.then(
        images.table.filter(is_chosen), Ledger(ignored={"class_not_chosen": num_others})
    )


def _notes_on_names(
    counts: Mapping[str, int], used: Collection[str], *, in_folders: bool
) -> Iterator[str]:
    """Yields what the user should know about the names of classes, without the name of a table.

    `counts` has the number of images of each label, `used` the labels that are used.
    """
    for name in sorted(used):
        if in_folders and name.lower() in SPLITS:
            yield (
                f"the class {name!a} has the name of a split; if it is not a class, give --input "
                "or --tree the folder that holds the SPLIT or CLASS folders"
            )
    for same in look_alike(counts):
        best = max(same, key=lambda name: (name in used, name == written(name), counts[name]))
        if best in used:
            flag = rename_flag({name: best for name in same if name != best})
            yield (
                f"the labels {' and '.join(map(ascii, same))} differ only in case, spaces, hyphens "
                f"or invisible characters; if they are one, join them with {flag}"
            )
    for rare, name in misspelled(counts).items():
        if rare in used or name in used:
            yield (
                f"the label {rare!a} has {counted(counts[rare], 'image')}, and {name!a} has "
                f"{counts[name]:,}; if they are one, join them with {rename_flag({rare: name})}"
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
    counts = counts_of(refs["label"])
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


def with_label_names(images: Images, options: ListingOptions) -> Images:
    """Returns the images with the names of the labels, in the order of their indices.

    These are the chosen ones, those that the table of labels names, or all that there are.
    """
    if options.label_kind.is_number or options.grades or options.classes:
        return images.then(label_names=options.label_names)
    if images.label_names and (options.label_columns or options.label_separator):
        return images
    places = {name: place for place, name in enumerate(images.label_names)}
    names = images.table["label"].unique().to_pylist()
    return images.then(
        label_names=tuple(sorted(names, key=lambda name: (places.get(name, 0), name)))
    )

"""Lists the images of a source: a row each, with split, class and patient."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing import by_folders, roles
from pipelines.listing.classes import with_checked_classes
from pipelines.listing.copies import with_copies
from pipelines.listing.files import chosen, find_in_names, first_of, read_files
from pipelines.listing.frames import with_frames, with_modalities_noted
from pipelines.listing.images import Images, Ledger
from pipelines.listing.label_table import Labels, read_table
from pipelines.listing.matching import match_files
from pipelines.listing.options import ListingOptions
from pipelines.listing.pairs import with_checked_pairs
from pipelines.listing.patients import with_patients
from pipelines.listing.refs import RejectedFile, iterate_refs
from pipelines.sources.source import Member, Source
from tfrecord_io.format.kinds import LabelKind
from tfrecord_io.format.schema import SPLITS
from tfrecord_io.terminal.printing import counted
from tfrecord_io.terminal.spelling import look_alike, misspelled, rename_flag, written


def list_images(
    source: Source,
    options: ListingOptions,
    labels: Labels | None = None,
    *,
    relabel: Callable[[Images], Images] | None = None,
) -> Images:
    """Sorts the files of a source into images, copies of images, rejects and ignored files.

    Split, class and patient come from the folders, see `by_folders.place_by_folders`, or from a table
    of labels, by default the one that the options name. `relabel` may rename the labels; if their
    order matters, it renames those in `label_names` too.

    Raises:
        errors.UserError: if the input or an option is wrong, no image is found, or there is a DICOM
            file and pydicom or a codec is not installed.
        errors.BuildError: if a store does not answer, or this user may not read some files.
    """
    if labels := labels or read_table(options):
        labels = with_rows_excluded(labels, source)
    table = labels and labels.table
    names_patients = table is not None and "patient" in table.cells
    files = read_files(
        source.members(), options.include_regex, options.exclude_regex, has_folders=table is None
    )
    identity = {**options.identity(), "labels": table.digest if table else None}
    files = files.then(source=source.describe(), identity=identity)
    if table is None:
        images = by_folders.place_by_folders(files, options)
    else:
        images = by_folders.place_by_table(files, table, options.tree)
    if options.label_regex:
        images = with_labels_in_names(images, options.label_regex)
    names = options.label_columns or (table.label_names if table else ())
    images = images.then(label_names=names)
    if relabel:
        images = relabel(images)
    counts = _label_counts(images, options.label_kind)
    chosen = options.grades or options.classes
    images = of_classes(images, chosen)
    images = without_second_trees(images, source.same_content)
    notes = _label_notes(counts, chosen, has_table=table is not None)
    images = images.noted(*notes, is_private=False)
    if table is None:
        images = with_checked_pairs(images.noted(*images.ledger.unread), source, options)
    images = with_frames(images, source, keep_patients=names_patients, modalities=options.modality)
    images = with_modalities_noted(images)
    images = with_patients(images, options, in_table=names_patients)
    if options.copies_by_name:
        images = with_copies(images)
    images = with_checked_classes(images, options)
    return with_label_names(images, options).checked()


def with_rows_excluded(labels: Labels, source: Source) -> Labels:
    """Returns the table of labels without the rows of files that a pattern leaves out."""
    options = labels.options
    if not (options.include_regex or options.exclude_regex):
        return labels
    members = chosen(source.members(), options.include_regex, options.exclude_regex)
    is_left_out = {member.name: not is_chosen for member, is_chosen in members}
    match = match_files([*is_left_out], labels.names)
    return labels.without(match.rows_of([*is_left_out.values()]))


def of_classes(images: Images, classes: tuple[str, ...]) -> Images:
    """Keeps the images of the chosen classes, or all if there are none.

    Raises:
        errors.UserError: if a chosen class has no images.
    """
    if not classes:
        return images
    labels = images.table["label"].cast(pa.string())
    present = set(labels.unique().to_pylist())
    if missing := set(classes) - present:
        raise errors.UserError(
            f"--classes or --grades names {by_folders.quoted(sorted(missing))}, but the classes "
            f"are {by_folders.quoted(sorted(present))}"
        )
    kept = images.table.filter(pc.is_in(labels, pa.array(classes)))
    num_others = images.table.num_rows - kept.num_rows
    return images.then(kept, Ledger(ignored={"class_not_chosen": num_others}))


def without_second_trees(images: Images, same_content: Callable[[Member, Member], bool]) -> Images:
    """Keeps the first of several files of the same path, which are adjacent in the table.

    Each of the others is a copy if its content is the same, otherwise a reject.
    """
    refs = images.table
    paths = refs["path"].combine_chunks()
    is_first = np.ones(len(paths), bool)
    is_first[1:] = pc.not_equal(paths[1:], paths[:-1]).to_numpy(zero_copy_only=False)
    repeated = np.flatnonzero(~is_first)
    firsts = np.maximum.accumulate(np.where(is_first, np.arange(len(is_first)), 0))[repeated]
    pairs = (iterate_refs(refs.take(rows)) for rows in (repeated, firsts))
    copies, rejects = 0, list[RejectedFile]()
    for ref, first in zip(*pairs, strict=True):
        if ref.size == first.size and same_content(ref.member, first.member):
            copies += 1
        else:
            detail = f"same path as {first.source_path}, but different content"
            rejects.append(RejectedFile(ref.source_path, "path_conflict", detail))
    kept = refs.filter(pa.array(is_first))
    found = Ledger(copies=copies, rejects=tuple(rejects))
    return images.then(kept.combine_chunks(), found)


def _label_counts(images: Images, kind: LabelKind) -> collections.Counter[str]:
    counts = collections.Counter[str]()
    for pair in images.table["label"].value_counts().to_pylist():
        counts.update(dict.fromkeys(kind.names_in(pair["values"]), pair["counts"]))
    return counts


def _label_notes(
    counts: Mapping[str, int], chosen: Sequence[str], *, has_table: bool
) -> Iterator[str]:
    """Yields what the user should know about the classes, without the name of a table.

    `counts` has the number of images of each label, `chosen` the labels that the user chose.
    """
    for name in sorted(chosen or counts):
        if not has_table and name.lower() in SPLITS:
            yield (
                f"the class {name!a} has the name of a split; if it is not a class, give --input "
                "or --tree the folder that holds the SPLIT or CLASS folders"
            )
    wanted = {*(chosen or counts)}
    for same in look_alike(counts):
        if wanted.isdisjoint(same):
            continue
        best = max(same, key=lambda name: (name in chosen, name == written(name), counts[name]))
        flag = rename_flag({name: best for name in same if name != best})
        yield (
            f"the labels {' and '.join(map(ascii, same))} differ only in case, spaces, hyphens or "
            f"invisible characters; if they are one, join them with {flag}"
        )
    for rare, name in misspelled(counts).items():
        if not wanted.isdisjoint((rare, name)):
            yield (
                f"the label {rare!a} has {counted(counts[rare], 'image')}, and {name!a} has "
                f"{counts[name]:,}; if they are one, join them with {rename_flag({rare: name})}"
            )


def with_labels_in_names(images: Images, label_regex: str) -> Images:
    """Returns the images with the classes of a pattern; those without a match are rejects.

    Raises:
        errors.UserError: if no image has one.
    """
    refs = images.table
    labels = find_in_names(refs["path"], label_regex)
    has_label = pc.fill_null(pc.not_equal(labels, ""), False)
    detail = "--label_regex finds no class in its path"
    rejects = tuple(
        RejectedFile(ref.source_path, "no_label", detail)
        for ref in iterate_refs(refs.filter(pc.invert(has_label)))
    )
    if not pc.any(has_label).as_py():
        raise errors.UserError(
            f"--label_regex {label_regex!r} finds no class in the names or paths of "
            f"{counted(len(refs), 'file')}, such as {first_of(refs['path'])}"
        )
    counts = collections.Counter(labels.filter(has_label).to_pylist())
    column = labels.cast(pa.string()).dictionary_encode()
    refs = images.with_column("label", column).table.filter(has_label)
    notes = [
        f"--label_regex {label_regex!r} finds one class in all images ({name!a} in "
        f"{first_of(refs['path'])}); its first group should be what differs between classes"
        for name in counts
        if len(counts) == 1 < len(refs)
    ]
    layout = (*images.layout, ("class in names", roles.told(counts)))
    return images.then(refs, Ledger(rejects=rejects), layout=layout).noted(*notes)


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

"""Turns the files of a source into image references, with split, class and patient."""

from __future__ import annotations

import collections
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing import frames, layout
from pipelines.listing.label_table import LabelTable
from pipelines.listing.options import DEFAULT_GROUP_REGEX, ListingOptions
from pipelines.listing.refs import (
    BATCH_ROWS,
    REF_SCHEMA,
    SITE,
    Listing,
    iterate_refs,
    with_column,
)
from pipelines.sources.source import Member, Source
from tfrecord_io.manifest import WEIGHT

# The class folders of the Kermany OCT data, by which its tree is recognised among others.
_OCT_LABELS = frozenset({"CNV", "DME", "DRUSEN", "NORMAL"})


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
        listing.refs = _choose_classes(refs, options.grades or options.classes, listing)
        return listing.checked()
    files = layout.read_members(source.members(), listing, has_folders=labels is None)
    if labels:
        refs = layout.place_by_table(files, labels, options.tree, listing)
        refs = _choose_classes(refs, options.grades or options.classes, listing)
        listing.naming_notes += labels.notes
    else:
        refs = layout.place_by_folders(files, listing)
        refs = _choose_tree(refs, options.tree, listing)
        refs = _choose_classes(refs, options.grades or options.classes, listing)
        _require_separate_classes(refs)
        refs = refs.drop_columns("inner")
    refs = _drop_copies(refs, source.same_content, listing)
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


def _choose_tree(refs: pa.Table, tree: str | None, listing: Listing) -> pa.Table:
    """Keeps one tree and its copies; sorts the files of the chosen tree before their copies.

    Trees are copies if they share half of their paths: Kaggle's archive of the Kermany data holds
    its whole tree twice, and a copy may be incomplete.

    Args:
        refs: the images of all trees.
        tree: the tree that the user chose; None for the largest one, or that of the OCT data.
        listing: counts the others.

    Raises:
        errors.UserError: if the chosen tree does not exist, or there are several unrelated trees
            and none was chosen.
    """
    groups = refs.group_by(["root", "split", "label"]).aggregate([([], "count_all")]).to_pylist()
    tree_of = _trees({(group["root"], group["split"]) for group in groups})
    labels: dict[str, set[str]] = collections.defaultdict(set)
    sizes: collections.Counter[str] = collections.Counter()
    for group in groups:
        labels[tree_of[group["root"]]].add(group["label"])
        sizes[tree_of[group["root"]]] += group["count_all"]
    ranked = sorted(sizes, key=lambda name: (-sizes[name], len(name), name))
    if tree is not None:
        leader = next((name for name in ranked if name.strip(" /") == tree.strip(" /")), None)
        if leader is None:
            raise errors.UserError(f"no tree {tree!r} in the source; it has {_quote(ranked)}")
    else:
        leader = next((name for name in ranked if labels[name] == _OCT_LABELS), ranked[0])
    roots = refs["root"].combine_chunks()
    names = pa.array(map(tree_of.get, roots.dictionary.to_pylist()), pa.string())
    names = names.take(roots.indices)
    is_known = pc.is_in(refs["path"], refs["path"].filter(pc.equal(names, leader)).combine_chunks())
    same = [
        name
        for name in ranked
        if 2 * pc.sum(is_known.filter(pc.equal(names, name))).as_py() >= sizes[name]
    ]
    others = [name for name in ranked if name not in same]
    if others and tree is None and labels[leader] != _OCT_LABELS:
        raise errors.UserError(
            f"the source holds {len(others) + 1} unrelated trees: {_quote([leader, *others])}; "
            "choose one with --tree"
        )
    listing.ignored["other_tree"] += sum(sizes[name] for name in others)
    is_kept = pc.is_in(names, pa.array(same))
    refs, names = refs.filter(is_kept), names.filter(is_kept)
    keys = {
        "path": refs["path"],
        "is_copy": pc.not_equal(names, leader).cast(pa.int8()),
        "root": refs["root"].cast(pa.string()),
        "offset": refs["offset"],
    }
    return refs.take(pc.sort_indices(pa.table(keys), [(key, "ascending") for key in keys]))


def _trees(splits: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Returns the tree of each root: the folder above its split folder.

    If an archive wraps each split in a folder of the same name, as in train/train and test/test,
    the tree is the folder above both, so that the splits stay together.
    """
    found = collections.defaultdict(set)
    for root, split in splits:
        found[root].add(split)
    trees = {}
    for root, names in found.items():
        above, _, folder = root.rpartition("/")
        trees[root] = above if {layout.SPLITS.get(folder.lower())} == names else root
    return trees


def _choose_classes(refs: pa.Table, classes: Sequence[str], listing: Listing) -> pa.Table:
    """Keeps the images of the chosen classes, or all if there are none.

    Raises:
        errors.UserError: if a chosen class has no images.
    """
    if not classes:
        return refs
    labels = refs["label"].cast(pa.string())
    present = set(labels.unique().to_pylist())
    if missing := set(classes) - present:
        raise errors.UserError(
            f"--classes or --grades names {_quote(sorted(missing))}, but the classes are "
            f"{_quote(sorted(present))}"
        )
    kept = refs.filter(pc.is_in(labels, pa.array(classes)))
    listing.ignored["class_not_chosen"] += refs.num_rows - kept.num_rows
    return kept


def _require_separate_classes(refs: pa.Table) -> None:
    """Refuses a class whose subfolders are named like other classes: it may be a second tree."""
    pairs = refs.group_by(["label", "inner"]).aggregate([]).to_pylist()
    classes = {pair["label"] for pair in pairs}
    nested = [pair for pair in pairs if pair["inner"] in classes - {pair["label"]}]
    if nested:
        outer = {pair["label"] for pair in nested}
        shown = sorted(f"{pair['label']}/{pair['inner']}" for pair in nested)
        raise errors.UserError(
            f"the class folder {' and '.join(map(ascii, sorted(outer)))} holds folders named like "
            f"other classes: {', '.join(map(ascii, shown[:4]))}; if it is not a class, name the "
            f"classes with --classes {','.join(sorted(classes - outer))}, or give that folder as "
            "--input"
        )


def _drop_copies(
    refs: pa.Table, same_content: Callable[[Member, Member], bool], listing: Listing
) -> pa.Table:
    """Keeps the first of several files of the same path, which are adjacent in the table.

    Each of the others is a copy if its content is the same, otherwise a reject.
    """
    paths = refs["path"].combine_chunks()
    is_first = np.ones(len(paths), bool)
    is_first[1:] = pc.not_equal(paths[1:], paths[:-1]).to_numpy(zero_copy_only=False)
    repeated = np.flatnonzero(~is_first)
    firsts = np.maximum.accumulate(np.where(is_first, np.arange(len(is_first)), 0))[repeated]
    pairs = (iterate_refs(refs.take(rows)) for rows in (repeated, firsts))
    for ref, first in zip(*pairs, strict=True):
        if ref.size == first.size and same_content(ref.member, first.member):
            listing.copies += 1
        else:
            detail = f"same path as {first.source_path}, but different content"
            listing.reject(ref.source_path, "path_conflict", detail)
    return refs.filter(pa.array(is_first))


def _quote(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


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

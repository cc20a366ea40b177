"""Finds the split and the class of each file of a source: from its folders, or from a table.

>>> place_folders({"oct/train/CNV/left/": True, "oct/": False})
{'oct/train/CNV/left/': Place(tree='oct', root='oct', split='train', label='CNV', inner='left')}
>>> place_folders({"scans/CNV/": True, "scans/DME/": True})["scans/DME/"]
Place(tree='scans', root='scans', split='train', label='DME', inner='')
"""

from __future__ import annotations

import collections
import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing.files import IMAGE_SUFFIXES, ending_of, has_suffix
from pipelines.listing.label_table import LabelTable
from pipelines.listing.matching import match_files
from pipelines.listing.refs import OTHER, REF_SCHEMA, Listing, RejectedFile
from tfrecord_io.printing import printable

#: The splits, by the names that folders and tables use for them, in lower case.
SPLITS = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip

# The class folders of the Kermany OCT data, by which its tree is recognised among others.
_OCT_LABELS = frozenset({"CNV", "DME", "DRUSEN", "NORMAL"})


def _set_aside(listing: Listing, name: str, detail: str, *, is_image: bool = False) -> None:
    """Rejects a file without a label if it looks like an image; otherwise it is not data."""
    if is_image or name.lower().endswith(IMAGE_SUFFIXES):
        listing.rejects.append(RejectedFile(name, "no_label", detail))
    else:
        listing.ignored["no_image_name"] += 1


def _make_refs(files: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    """Returns a table of `REF_SCHEMA` and what else is in `columns`; what is in neither is null."""
    told = {name: files[name] for name in files.column_names if name in REF_SCHEMA.names} | columns
    nulls = pa.nulls(files.num_rows)
    refs = pa.table([told.pop(name, nulls) for name in REF_SCHEMA.names], REF_SCHEMA)
    for name, values in told.items():
        refs = refs.append_column(name, values)
    return refs


# ---- by folders


class Place(NamedTuple):
    """What a folder says of its files.

    Attributes:
        tree: the folder of all its splits: `root`, or what is above it if an archive wraps each
            split in a folder of the same name, as in train/train and test/test.
        root: the folders above the split.
        split: the split.
        label: the class.
        inner: the folder in that of the class.
    """

    tree: str
    root: str
    split: str
    label: str
    inner: str


def place_by_folders(files: pa.Table, tree: str | None, listing: Listing) -> pa.Table:
    """Returns the files in the class folders of a tree, of `REF_SCHEMA` and with `inner`.

    For `tree` and the order see `_choose_tree`, for `inner` see `Place`.

    Raises:
        errors.UserError: if there is none, the tree does not exist, or none was chosen of several.
    """
    names = files["name"].combine_chunks()
    encoded = pc.replace_substring_regex(names, "[^/]*$", "").dictionary_encode()
    folders, codes = encoded.dictionary.to_pylist(), encoded.indices
    with_images = set(codes.filter(has_suffix(names, IMAGE_SUFFIXES)).unique().to_pylist())
    places = place_folders({folder: code in with_images for code, folder in enumerate(folders)})
    number = {folder: number for number, folder in enumerate(places)}
    codes = pa.array([number.get(folder) for folder in folders], pa.int32()).take(codes)
    layout = "SPLIT/CLASS" if any(map(_split_folders, folders)) else "CLASS"
    for name in names.filter(codes.is_null()).to_pylist():
        _set_aside(listing, name, f"lies outside the {layout} folders")
    if not places:
        raise errors.UserError(
            f"found no image in SPLIT/CLASS or CLASS folders among {listing.num_files:,} files; "
            "check --input: it should hold folders like train/CNV/, or CNV/. If the class is not "
            "the folder of a file, name it in a table: --labels labels.csv, with the columns path "
            "and label"
        )
    files, names, codes = (some.filter(codes.is_valid()) for some in (files, names, codes))
    values = zip(*places.values(), strict=True)
    columns = {
        name: pa.array(texts).dictionary_encode().take(codes)
        for name, texts in zip(Place._fields, values, strict=True)
    }
    below = [folder.removeprefix(f"{place.root}/") for folder, place in places.items()]
    columns["path"] = pc.binary_join_element_wise(
        pa.array(below, pa.large_string()).take(codes),
        pc.replace_substring_regex(names, "(?s)^.*/", ""),
        pa.scalar("", pa.large_string()),
    )
    return _choose_tree(_make_refs(files, columns), tree, listing)


def _choose_tree(refs: pa.Table, tree: str | None, listing: Listing) -> pa.Table:
    """Keeps one tree and its copies; sorts the files of the chosen tree before their copies.

    Trees are copies if they share half of their paths: Kaggle's archive of the Kermany data holds
    its whole tree twice, and a copy may be incomplete.

    Args:
        refs: the images of all trees, with their `Place`.
        tree: the tree that the user chose; None for the largest one, or that of the OCT data.
        listing: counts the others.

    Raises:
        errors.UserError: if the chosen tree does not exist, or there are several unrelated trees
            and none was chosen.
    """
    labels: dict[str, set[str]] = collections.defaultdict(set)
    sizes: collections.Counter[str] = collections.Counter()
    for group in refs.group_by(["tree", "label"]).aggregate([([], "count_all")]).to_pylist():
        labels[group["tree"]].add(group["label"])
        sizes[group["tree"]] += group["count_all"]
    ranked = sorted(sizes, key=lambda name: (-sizes[name], len(name), name))
    if tree is not None:
        leader = next((name for name in ranked if name.strip(" /") == tree.strip(" /")), None)
        if leader is None:
            raise errors.UserError(f"no tree {tree!r} in the source; it has {quoted(ranked)}")
    else:
        leader = next((name for name in ranked if labels[name] == _OCT_LABELS), ranked[0])
    names = refs["tree"].cast(pa.string())
    is_known = pc.is_in(refs["path"], refs["path"].filter(pc.equal(names, leader)).combine_chunks())
    pairs = names.filter(is_known).value_counts().to_pylist()
    shared = {pair["values"]: pair["counts"] for pair in pairs}
    others = [name for name in ranked if 2 * shared.get(name, 0) < sizes[name]]
    if others and tree is None and labels[leader] != _OCT_LABELS:
        raise errors.UserError(
            f"the source holds {len(others) + 1} unrelated trees: {quoted([leader, *others])}; "
            "choose one with --tree"
        )
    listing.ignored["other_tree"] += sum(sizes[name] for name in others)
    is_kept = pc.invert(pc.is_in(names, pa.array(others, pa.string())))
    refs, names = refs.filter(is_kept), names.filter(is_kept)
    keys = {
        "path": refs["path"],
        "is_copy": pc.not_equal(names, leader).cast(pa.int8()),
        "root": refs["root"].cast(pa.string()),
        "offset": refs["offset"],
    }
    order = pc.sort_indices(pa.table(keys), [(key, "ascending") for key in keys])
    return refs.drop_columns("tree").take(order)


def place_folders(folders: Mapping[str, bool]) -> dict[str, Place]:
    """Finds the split and class of each folder; those without one are absent.

    The split folder of a file is the outermost that is some image's innermost one. So
    train/train/CNV/1.png is in the inner `train`, unless there is a train/DME/2.png: then the outer
    folder is the split and the inner `train` is a class.

    Args:
        folders: whether each folder holds images, by its path, which ends with `/`.
    """
    splits = {folder: found for folder in folders if (found := _split_folders(folder))}
    places = {}
    if not splits:
        images = {folder[:-1] for folder, has_images in folders.items() if has_images}
        shallowest = min((folder.count("/") + bool(folder) for folder in images), default=0)
        # If all images are in one folder, that folder is the class.
        depth = max(min(len(_common_folders(images)), shallowest - 1), 0)
        for folder in folders:
            parts = folder.split("/")
            if len(parts) > depth + 1:
                root = "/".join(parts[:depth])
                places[folder] = Place(root, root, "train", *parts[depth : depth + 2])
        return places
    innermost = {found[-1] for folder, found in splits.items() if folders[folder]}
    # A file that is not an image, such as train/labels/labels.npy, must not choose a folder above
    # those of the images.
    above = {
        "/".join(parts[:depth])
        for parts in (level.split("/") for level in innermost)
        for depth in range(1, len(parts))
    }
    chosen = innermost | ({found[-1] for found in splits.values()} - above)
    splits_of: dict[str, set[str]] = collections.defaultdict(set)
    for folder, found in splits.items():
        if level := next((level for level in found if level in chosen), None):
            root, _, name = level.rpartition("/")
            label, inner = folder[len(level) + 1 :].split("/")[:2]
            places[folder] = Place(root, root, SPLITS[name.lower()], label, inner)
            splits_of[root].add(SPLITS[name.lower()])
    for folder, place in places.items():
        above, _, name = place.root.rpartition("/")
        if {SPLITS.get(name.lower())} == splits_of[place.root]:
            places[folder] = place._replace(tree=above)
    return places


def _split_folders(folder: str) -> list[str]:
    """Returns the folders on a path that are named as a split and hold another one of the path."""
    parts = folder.split("/")[:-2]
    depths = (depth for depth, part in enumerate(parts, 1) if part.lower() in SPLITS)
    return ["/".join(parts[:depth]) for depth in depths]


def _common_folders(folders: Iterable[str]) -> list[str]:
    """Returns the names of the folders that hold all these, outermost first."""
    return posixpath.commonprefix([folder.split("/") if folder else [] for folder in folders])


# ---- by a table


def place_by_table(
    files: pa.Table, labels: LabelTable, tree: str | None, listing: Listing
) -> pa.Table:
    """Returns the files to which a table gives a label, of `REF_SCHEMA`, with site and others.

    A file without a row, and a row without a file, are rejects; such a row counts as a file. Files
    outside the folder `tree`, if there is one, are left out.

    Raises:
        errors.UserError: if a row names a split that cannot be, two rows say different things of
            one file, or no file has a label.
    """
    if tree is not None:
        inside = files.filter(pc.starts_with(files["name"], f"{tree.strip(' /')}/"))
        listing.ignored["other_tree"] += files.num_rows - inside.num_rows
        files = inside
    names = files["name"].to_pylist()
    row_of_file = match_files(names, labels, listing)
    # A file without a row counts as an image if one with a row has the same ending. The files of a
    # DICOM export have none.
    endings = {
        ending_of(name) for name, row in zip(names, row_of_file, strict=True) if row is not None
    }
    chosen: dict[int, int] = {}
    for place, (name, row) in enumerate(zip(names, row_of_file, strict=True)):
        if row is None:
            is_image = ending_of(name) in endings
            _set_aside(listing, name, f"{labels.name} has no row for it", is_image=is_image)
        elif problem := labels.problem_of(row):
            listing.rejects.append(RejectedFile(name, *problem))
        else:
            chosen[place] = row
    if not chosen:
        why = {reject.reason: reject.detail for reject in listing.rejects}
        raise errors.UserError(
            f"no row of --labels {labels.name} gives a label to one of the files: "
            + (printable("; ".join(why.values())) or "no file looks like an image")
            + ". Its `path` should be a file's path in the input, or the end of it"
        )
    places, rows = list(chosen), list(chosen.values())
    root = "/".join(_common_folders({names[place].rpartition("/")[0] for place in places}))
    columns: dict[str, Any] = {
        name: [cells[row] for row in rows] for name, cells in labels.cells.items()
    }
    columns["root"] = [root] * len(rows)
    columns["path"] = [names[place].removeprefix(f"{root}/") for place in places]
    given = columns.get("split", ["train"] * len(rows))
    columns["split"] = [_split_of(labels, row, name) for row, name in zip(rows, given, strict=True)]
    if "site" in columns:
        columns[f"{OTHER}site"] = pa.array(columns.pop("site"), pa.string())
    for name, values in labels.others.items():
        columns[f"{OTHER}{name}"] = values.take(pa.array(rows, pa.int64()))
    refs = _make_refs(files.take(pa.array(places, pa.int64())), columns)
    return refs.sort_by([("path", "ascending"), ("offset", "ascending")])


def _split_of(labels: LabelTable, row: int, name: str | None) -> str:
    """Returns the split that a row names: `val` for `Validation`."""
    split = SPLITS.get((name or "").lower(), name or "")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", split):
        raise errors.UserError(
            f"--labels {labels.name}: row {row + 1:,} has the split {split!a}; expected train, "
            "val, test or another name of lower-case letters, digits and underscores"
        )
    return split


def quoted(names: Iterable[str]) -> str:
    """Returns names for a message."""
    return ", ".join(map(repr, names))

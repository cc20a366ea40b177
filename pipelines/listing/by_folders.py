"""Finds the split and the class of each file of a source: from its folders, or from a table.

>>> place_folders({"oct/train/CNV/left/": 7, "oct/": 0}, {})["oct/train/CNV/left/"][:4]
('oct', 'oct', 'train/CNV/left/', 'CNV')
>>> place_folders({"scans/CNV/": 3, "scans/DME/": 5}, {})["scans/DME/"][:4]
('scans', 'scans', 'DME/', 'DME')
"""

from __future__ import annotations

import collections
import functools
import itertools
import posixpath
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing import roles
from pipelines.listing.files import IMAGE_SUFFIXES, ending_of, has_suffix, in_tree
from pipelines.listing.images import Images, Ledger
from pipelines.listing.label_table import LabelTable
from pipelines.listing.matching import match_files
from pipelines.listing.options import ListingOptions
from pipelines.listing.refs import OTHER, REF_SCHEMA, RejectedFile
from tfrecord_io.format.examples import OWN
from tfrecord_io.terminal.printing import counted, printable

# The class folders of the Kermany OCT data, by which its tree is recognised among others.
_OCT_LABELS = frozenset({"CNV", "DME", "DRUSEN", "NORMAL"})


def _without_label(
    names: Iterable[str],
    why: str,
    *,
    endings: Collection[str | None] = (),
    labelled: Collection[str] = (),
) -> Ledger:
    """Rejects files without a label that look like images; the others are not data.

    A file looks like an image by its name, or because its ending is one of `endings`. If labels
    are in folders, `labelled`, the rejects name the flag that leaves them out.
    """
    rejects, others = list[RejectedFile](), list[str]()
    leave_out = functools.cache(functools.partial(_leave_out, labelled))
    for name in names:
        if name.lower().endswith(IMAGE_SUFFIXES) or ending_of(name) in endings:
            detail = f"{why}; {leave_out(name.rpartition('/')[0])}" if labelled else why
            rejects.append(RejectedFile(name, "no_label", detail))
        else:
            others.append(name)
    return Ledger(rejects=tuple(rejects)) + Ledger.of_others(others)


def _leave_out(labelled: Collection[str], folder: str) -> str:
    """Returns the flag that leaves out the outermost folder, or else the files of this one."""
    for above in itertools.accumulate(folder.split("/"), "{}/{}".format) if folder else ():
        if not any(f"{other}/".startswith((f"{above}/", "/")) for other in labelled):
            return f"--exclude_regex '^{re.escape(above)}/' leaves out that folder"
    folder = re.escape(folder)
    return f"--exclude_regex '^{folder}{'/' if folder else ''}[^/]*$' leaves out what is beside it"


def _make_refs(files: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    """Returns a table of `REF_SCHEMA` and what else is in `columns`; what is in neither is null."""
    own = [name for name in files.column_names if name in (*REF_SCHEMA.names, "spelled")]
    present = {name: files[name] for name in own} | columns
    nulls = pa.nulls(files.num_rows)
    refs = pa.table([present.pop(name, nulls) for name in REF_SCHEMA.names], REF_SCHEMA)
    for name, values in present.items():
        refs = refs.append_column(name, values)
    return refs


def _inside_tree(files: Images, tree: str | None) -> Images:
    """Returns the files in a folder of the input, if it is given; the ledger counts the others.

    Raises:
        errors.UserError: if there are none.
    """
    table = files.table.filter(pc.match_substring_regex(files.table["name"], in_tree(tree)))
    if tree and not table.num_rows:
        raise errors.UserError(f"--tree {tree!r}: no file of the input is in such a folder")
    num_others = files.table.num_rows - table.num_rows
    return files.then(table, Ledger(ignored={"other_tree": num_others}))


# ---- by folders

#: A column of the patient whose name a folder has.
PATIENT = "folder_patient"


class Place(NamedTuple):
    """What a folder says of its files.

    Attributes:
        tree: the folder of all its splits: `root`, or what is above it if an archive wraps each
            split in a folder of the same name, as in train/train and test/test.
        root: the folders above the split.
        below: the folders below `root`, with a `/` behind each.
        label: the class; of `place_folders`, the first folder of the tree or split.
        split: the split.
        patient: the person after whom a folder is named.
    """

    tree: str
    root: str
    below: str
    label: str | None
    split: str | None = None
    patient: str | None = None


def place_by_folders(files: Images, options: ListingOptions) -> Images:
    """Returns the files in the folders of a tree, of `REF_SCHEMA`, with `PATIENT`.

    The look at the tree says which level of folders is what, see `roles.read`; `--layout` says it
    instead. Files of one path are adjacent, and first is that of the tree of `_choose_tree`.

    Raises:
        errors.UserError: if there is no image, if the folders can be read in several ways, or if
            there are several trees and `--tree` chooses none.
    """
    files = _inside_tree(files, options.tree)
    names = files.table["name"].combine_chunks()
    encoded = pc.replace_substring_regex(names, "[^/]*$", "").dictionary_encode()
    folders, codes = encoded.dictionary.to_pylist(), encoded.indices
    images = dict.fromkeys(folders, 0)
    for pair in codes.filter(_are_images(names)).value_counts().to_pylist():
        images[folders[pair["values"]]] = pair["counts"]
    splits = roles.split_names([folder for folder in folders if images[folder]])
    if options.layout or options.label_regex:
        places = _below_one_root(images, options.layout, splits)
    else:
        places = place_folders(images, splits)

    def column(name: str) -> pa.Array:
        """Returns an attribute of each file's place; null for a file without one."""
        texts = (getattr(places.get(folder), name, None) for folder in folders)
        return pa.array(texts, pa.string()).dictionary_encode().take(codes)

    trees = column("tree").cast(pa.string())
    layout = "SPLIT/CLASS" if any(_split_folders(name, splits) for name in folders) else "CLASS"
    why = f"lies outside the {layout} folders"
    outside = names.filter(trees.is_null()).to_pylist()
    files = files.then(found=_without_label(outside, why, labelled=places))
    if not places:
        raise _no_image(files)
    file_names = pc.replace_substring_regex(names, "(?s)^.*/", "")
    empty = pa.scalar("", pa.large_string())
    below = column("below").cast(pa.large_string())
    paths = pc.binary_join_element_wise(below, file_names, empty)
    leader, others = _choose_tree(trees, paths, places)
    is_other = pc.is_in(trees, pa.array(others, pa.string()))
    files = files.then(found=Ledger(ignored={"other_tree": pc.sum(is_other).as_py()}))
    all_trees = sorted({place.tree for place in places.values()})
    places = {folder: place for folder, place in places.items() if place.tree not in others}
    try:
        places, levels, shown = _with_roles(places, images, splits, options)
    except errors.UserError as error:
        if len(all_trees) == 1:
            raise
        raise errors.UserError(
            f"{len(all_trees)} folders hold splits: {quoted(all_trees[:5])}. If they are the "
            "classes, give --layout class/split; choose one of them with --tree. In "
            f"{all_trees[0]!r}, {error}"
        ) from None
    columns = {name: column(name) for name in ("root", "split", "label")}
    columns |= {"path": paths, PATIENT: column("patient")}
    is_kept = pc.is_valid(columns["root"])
    if not options.label_regex:
        has_label = pc.is_valid(columns["label"])
        without = names.filter(pc.and_not(is_kept, has_label)).to_pylist()
        files = files.then(
            found=_without_label(without, "is in no folder of a class", labelled=[""])
        )
        is_kept = has_label
    keys = {
        "path": paths,
        "is_copy": pc.not_equal(trees, leader).cast(pa.int8()),
        "root": columns["root"].cast(pa.string()),
        "offset": files.table["offset"],
    }
    order = pc.sort_indices(pa.table(keys), [(key, "ascending") for key in keys])
    order = order.filter(is_kept.take(order))
    return files.then(
        _make_refs(files.table, columns).take(order),
        layout=shown,
        identity={**files.identity, "layout": "/".join(levels)},
    )


def _no_image(files: Images) -> errors.UserError:
    return errors.UserError(
        "found no image in SPLIT/CLASS or CLASS folders among "
        f"{counted(files.ledger.num_files, 'file')}; check --input: it should hold folders like "
        "train/CNV/, or CNV/. If the class is not the folder of a file, name it in a table: "
        "--labels labels.csv, with the columns path and label; or find it in names with "
        "--label_regex" + "".join(f". {text}" for text in files.ledger.unread)
    )


def _are_images(names: pa.Array) -> pa.Array:
    """Returns which files look like images: all if most do not, as files of DICOM have any name."""
    is_image = has_suffix(names, IMAGE_SUFFIXES)
    return is_image if 2 * (pc.sum(is_image).as_py() or 0) >= len(names) else names.is_valid()


def _below_one_root(
    images: Mapping[str, int], layout: Sequence[str], splits: Mapping[str, str]
) -> dict[str, Place]:
    """Returns places of folders in one tree, whose levels have the roles of a layout, if given.

    The tree begins where the folders of images part; or above, for levels with one folder.

    Raises:
        errors.UserError: if the layout has more levels than the folders.
    """
    with_images = [folder for folder, count in images.items() if count]
    common = _common_folders(folder.rstrip("/") for folder in with_images)
    deepest = max((folder.count("/") for folder in with_images), default=0)
    if len(layout) > deepest:
        raise errors.UserError(
            f"--layout {'/'.join(layout)} has {len(layout)} levels of folders, but no image is in "
            f"more than {deepest}, such as {printable(max(with_images, default=''))!r}"
        )
    depth = min(len(common), deepest - len(layout))
    while not layout and depth and common[depth - 1] in splits:
        depth -= 1
    root = "/".join(common[:depth])
    inside = f"{root}/" if root else ""
    return {
        folder: Place(root, root, folder.removeprefix(inside), "")
        for folder in images
        if folder.startswith(inside)
    }


def _with_roles(
    places: Mapping[str, Place],
    images: Mapping[str, int],
    splits: Mapping[str, str],
    options: ListingOptions,
) -> tuple[dict[str, Place], Sequence[str], tuple[tuple[str, str], ...]]:
    """Returns the places with split, class and patient, the roles of the levels, and these to show.

    `images` is the number of images in each folder, `splits` what `roles.split_names` returns.
    """
    counts = collections.Counter[str]()
    for folder, place in places.items():
        counts[place.below] = max(counts[place.below], images[folder])
    classes = () if options.label_regex else options.grades or options.classes
    above = posixpath.basename(next(iter(places.values())).root)
    levels = options.layout or roles.read(
        counts, splits, classes, need_class=not options.label_regex, above=above
    )
    facts = {name: roles.facts(levels, name, splits) for name in counts}
    if "class" in levels and not options.layout:
        _require_no_other_classes(facts, levels.index("class"), classes)
    placed = dict[str, Place]()
    for folder, place in places.items():
        split, label, patient = facts[place.below]
        placed[folder] = place._replace(split=split, label=label, patient=patient)
    return placed, levels, tuple(roles.table(counts, levels, splits))


def _require_no_other_classes(
    facts: Mapping[str, tuple[str, str | None, str | None]], place: int, chosen: Collection[str]
) -> None:
    """Raises an error if a class holds folders that are named like classes: it may be another tree.

    `facts` has what `roles.facts` says of each folder, `place` is the level of the class.
    """
    classes = {label for _, label, _ in facts.values() if label and label in (chosen or [label])}
    below = {label: set[str]() for label in classes}
    for folder, (_, label, _) in facts.items():
        if label in classes:
            below[label].update(filter(None, folder.split("/")[place + 1 : place + 2]))
    nested = {label: names & classes - {label} for label, names in sorted(below.items())}
    if outer := [label for label, names in nested.items() if names]:
        pairs = [f"{label}/{name}" for label in outer for name in sorted(nested[label])]
        raise errors.UserError(
            f"the class folder {' and '.join(map(ascii, outer))} holds folders named like other "
            f"classes: {', '.join(map(ascii, pairs[:4]))}; if it is not a class, name the classes "
            f"with --classes {','.join(sorted(classes.difference(outer)))}, or give that folder as "
            "--input"
        )
    # One class alone holds folders, and these have names of classes.
    holding = [label for label, names in below.items() if names]
    if chosen or len(holding) != 1 or len(classes) == 1:
        return
    (label,), names = holding, below[holding[0]]
    is_odd = roles.is_no_class(label) or (roles.tell(names) and not roles.tell(classes))
    if len(names) > 1 and is_odd:
        rest = "|".join(re.escape(name) for name in sorted(classes - {label}))
        raise errors.UserError(
            f"the class folder {label!a} holds the folders {quoted(sorted(names)[:4])}. If these "
            f"are the classes, leave the others out with --exclude_regex '(^|/)({rest})/'; or name "
            f"the classes with --classes '{','.join(sorted(classes))}', if {label!a} is one"
        )


def _choose_tree(
    trees: pa.Array, paths: pa.Array, places: Mapping[str, Place]
) -> tuple[str, list[str]]:
    """Returns the largest tree, or that of the OCT data, and those that are not copies of it.

    Trees are copies if they share half of their paths: Kaggle's archive of the Kermany data holds
    its whole tree twice, and a copy may be incomplete. `trees` and `paths` are those of each file.

    Raises:
        errors.UserError: if there are several unrelated trees.
    """
    labels = collections.defaultdict[str, set[str | None]](set)
    for place in places.values():
        labels[place.tree].add(place.label)
    sizes = {
        pair["values"]: pair["counts"] for pair in trees.drop_null().value_counts().to_pylist()
    }
    ranked = sorted(sizes, key=lambda name: (-sizes[name], len(name), name))
    leader = next((name for name in ranked if labels[name] == _OCT_LABELS), ranked[0])
    is_known = pc.is_in(paths, paths.filter(pc.equal(trees, leader)))
    pairs = trees.filter(is_known).drop_null().value_counts().to_pylist()
    shared = {pair["values"]: pair["counts"] for pair in pairs}
    others = [name for name in ranked if 2 * shared.get(name, 0) < sizes[name]]
    if others and labels[leader] != _OCT_LABELS:
        raise errors.UserError(
            f"the source holds {len(others) + 1} unrelated trees: {quoted([leader, *others])}; "
            "choose one with --tree, or say what the folders are, as with --layout '*/split/class'"
        )
    return leader, others


def place_folders(folders: Mapping[str, int], names: Mapping[str, str]) -> dict[str, Place]:
    """Finds the tree and the class of each folder; those without one are absent.

    The split folder of a file is the outermost that is some image's innermost one. So
    train/train/CNV/1.png is in the inner `train`, unless there is a train/DME/2.png: then the outer
    folder is the split and the inner `train` is a class.

    Args:
        folders: the number of images in each folder, by its path, which ends with `/`.
        names: the split of names of folders, besides `roles.SPLITS`.
    """
    splits = {folder: levels for folder in folders if (levels := _split_folders(folder, names))}
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
                places[folder] = Place(root, root, "/".join(parts[depth:]), parts[depth])
        return places
    innermost = {levels[-1] for folder, levels in splits.items() if folders[folder]}
    # A file that is not an image, such as train/labels/labels.npy, must not choose a folder above
    # those of the images.
    above = {
        "/".join(parts[:depth])
        for parts in (level.split("/") for level in innermost)
        for depth in range(1, len(parts))
    }
    chosen = innermost | ({levels[-1] for levels in splits.values()} - above)
    splits_of: dict[str, set[str]] = collections.defaultdict(set)
    for folder, levels in splits.items():
        if level := next((level for level in levels if level in chosen), None):
            root, _, name = level.rpartition("/")
            label = folder[len(level) + 1 :].partition("/")[0]
            places[folder] = Place(root, root, folder.removeprefix(f"{root}/"), label)
            splits_of[root].add(roles.split_named(name, names) or name)
    for folder, place in places.items():
        above, _, name = place.root.rpartition("/")
        if {roles.split_named(name, names)} == splits_of[place.root]:
            places[folder] = place._replace(tree=above)
    return places


def _split_folders(folder: str, names: Mapping[str, str]) -> list[str]:
    """Returns the folders on a path that are named as a split and hold another one of the path."""
    parts = folder.split("/")[:-2]
    depths = (depth for depth, part in enumerate(parts, 1) if roles.split_named(part, names))
    return ["/".join(parts[:depth]) for depth in depths]


def _common_folders(folders: Iterable[str]) -> list[str]:
    """Returns the names of the folders that hold all these, outermost first."""
    return posixpath.commonprefix([folder.split("/") if folder else [] for folder in folders])


# ---- by a table


def place_by_table(files: Images, labels: LabelTable, tree: str | None) -> Images:
    """Returns the files to which a table gives a label, of `REF_SCHEMA`, with its other columns.

    A file without a row, and a row without a file, are rejects; such a row counts as a file. Files
    outside the folder `tree`, if there is one, are left out.

    Raises:
        errors.UserError: if a row names a split that cannot be, two rows say different things of
            one file, or no file has a label.
    """
    files = _inside_tree(files, tree)
    names = files.table["name"].to_pylist()
    row_of_file, _, found = match_files(names, labels)
    places, rows = list[int](), list[int]()
    problems, without = list[RejectedFile](), list[str]()
    for place, (name, row) in enumerate(zip(names, row_of_file, strict=True)):
        if row is None:
            without.append(name)
        elif problem := labels.problem_of(row):
            problems.append(RejectedFile(name, *problem))
        else:
            places.append(place)
            rows.append(row)
    # A file without a row counts as an image if one with a row has the same ending. The files of a
    # DICOM export have none.
    matched = zip(names, row_of_file, strict=True)
    endings = {ending_of(name) for name, row in matched if row is not None}
    found += _without_label(without, f"{labels.name} has no row for it", endings=endings)
    found += Ledger(rejects=tuple(problems))
    files = files.then(found=found).noted(*labels.notes)
    if taken := labels.others.keys() & {*OWN}:
        files = files.noted(
            f"left out the column {', '.join(sorted(taken))} of the table of --labels, which "
            "examples.parquet has for itself; rename it to keep it"
        )
    if not rows:
        why = {reject.reason: reject.detail for reject in files.ledger.rejects}
        advice = "Its `path` should be a file's path in the input, or the end of it"
        if problems:
            advice = "Its paths fit files; " + (
                "write its numbers as in -1234.5"
                if "not_a_number" in why
                else "fill in its labels, or name their column with --columns label=COLUMN"
            )
        raise errors.UserError(
            f"no row of --labels {labels.name} gives a label to one of the files: "
            + (printable("; ".join(why.values())) or "no file looks like an image")
            + f". {advice}"
        )
    root = "/".join(_common_folders({names[place].rpartition("/")[0] for place in places}))
    columns: dict[str, Any] = {"root": [root] * len(rows)}
    for name, cells in labels.cells.items():
        texts = [cells[row] for row in rows]
        if name in REF_SCHEMA.names:
            columns[name] = texts
        else:
            columns[f"{OTHER}{name}"] = pa.array(texts, pa.string())
    columns["path"] = [names[place].removeprefix(f"{root}/") for place in places]
    named = columns.get("split", ["train"] * len(rows))
    columns["split"] = [_split_of(labels, row, name) for row, name in zip(rows, named, strict=True)]
    for name, values in labels.others.items():
        columns[f"{OTHER}{name}"] = values.take(pa.array(rows, pa.int64()))
    refs = _make_refs(files.table.take(pa.array(places, pa.int64())), columns)
    refs = refs.sort_by([("path", "ascending"), ("offset", "ascending")])
    return files.then(refs)


def _split_of(labels: LabelTable, row: int, name: str | None) -> str:
    """Returns the split that a row names: `val` for `Validation`."""
    split = roles.SPLITS.get((name or "").lower(), name or "")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", split):
        raise errors.UserError(
            f"--labels {labels.name}: row {row + 1:,} has the split {split!a}; expected train, "
            "val, test or another name of lower-case letters, digits and underscores"
        )
    return split


def quoted(names: Iterable[str]) -> str:
    """Returns names for a message."""
    return ", ".join(map(repr, names))

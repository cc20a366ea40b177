"""Finds the split, the class and the patient of each file from its folders.

>>> place_folders({"oct/train/CNV/left/": 7, "oct/": 0}, {})["oct/train/CNV/left/"][:4]
('oct', 'oct', 'train/CNV/left/', 'CNV')
>>> place_folders({"scans/CNV/": 3, "scans/DME/": 5}, {})["scans/DME/"][:4]
('scans', 'scans', 'DME/', 'DME')
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing import roles
from pipelines.listing.files import (
    common_folders,
    folders_above,
    has_suffix,
    inside_tree,
    without_label,
)
from pipelines.listing.images import Images, Ledger
from pipelines.listing.options import ListingOptions
from pipelines.listing.refs import counts_of, make_refs
from tfrecord_io.decoding.preprocess import IMAGE_SUFFIXES
from tfrecord_io.terminal.printing import counted, printable

# The class folders of the Kermany OCT data, by which its tree is recognised among others.
_OCT_LABELS = frozenset({"CNV", "DME", "DRUSEN", "NORMAL"})

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
    files = inside_tree(files, options.tree)
    names = files.table["name"].combine_chunks()
    encoded = pc.replace_substring_regex(names, "[^/]*$", "").dictionary_encode()
    folders, codes = encoded.dictionary.to_pylist(), encoded.indices
    counts = counts_of(codes.filter(_are_images(names)))
    images = {folder: counts.get(code, 0) for code, folder in enumerate(folders)}
    splits = roles.split_names([folder for folder in folders if images[folder]])
    if options.layout or options.label_regex:
        places = _below_one_root(images, options.layout, splits)
    else:
        places = place_folders(images, splits)
    if not places:
        raise _no_image(files.then(found=without_label(names.to_pylist(), str)))

    def column(places: Mapping[str, Place], name: str) -> pa.Array:
        """Returns an attribute of each file's place; null for a file without one."""
        texts = (getattr(places.get(folder), name, None) for folder in folders)
        return pa.array(texts, pa.string()).dictionary_encode().take(codes)

    trees = column(places, "tree").cast(pa.string())
    below = column(places, "below").cast(pa.large_string())
    file_names = pc.replace_substring_regex(names, "(?s)^.*/", "")
    paths = pc.binary_join_element_wise(below, file_names, pa.scalar("", pa.large_string()))
    leader, others = _choose_tree(trees, paths, places)
    with _several_trees_told({place.tree for place in places.values()}):
        places = {folder: place for folder, place in places.items() if place.tree not in others}
        places, levels, shown = _with_roles(places, images, splits, options)
    columns = {name: column(places, name) for name in ("root", "split", "label")}
    columns |= {"path": paths, PATIENT: column(places, "patient")}
    is_other = pc.is_in(trees, pa.array(others, pa.string()))
    is_kept = pc.is_valid(columns["root" if options.label_regex else "label"])
    layout = "SPLIT/CLASS" if any(_split_folders(name, splits) for name in folders) else "CLASS"
    labelled = [folder for folder, place in places.items() if place.label or options.label_regex]
    leave_out = functools.cache(functools.partial(_leave_out, labelled))
    found = without_label(
        names.filter(pc.invert(pc.or_(is_kept, is_other))).to_pylist(),
        lambda name: f"lies outside the {layout} folders; {leave_out(name.rpartition('/')[0])}",
    )
    keys = {
        "path": paths,
        "is_copy": pc.not_equal(trees, leader).cast(pa.int8()),
        "root": columns["root"].cast(pa.string()),
        "offset": files.table["offset"],
    }
    order = pc.sort_indices(pa.table(keys), [(key, "ascending") for key in keys])
    return files.then(
        make_refs(files.table, columns).take(order.filter(is_kept.take(order))),
        found + Ledger(ignored={"other_tree": pc.sum(is_other).as_py()}),
        layout=shown,
        identity={**files.identity, "layout": "/".join(levels)},
    )


@contextlib.contextmanager
def _several_trees_told(trees: Collection[str]) -> Iterator[None]:
    """Adds to an error in the block which folders hold splits, if there are several."""
    try:
        yield
    except errors.UserError as error:
        if len(trees) == 1:
            raise
        raise errors.UserError(
            f"{len(trees)} folders hold splits: {_quoted(sorted(trees)[:5])}. If they are the "
            "classes, give --layout class/split; choose one of them with --tree. In "
            f"{min(trees)!r}, {error}"
        ) from None


def _no_image(files: Images) -> errors.UserError:
    return errors.UserError(
        "found no image in SPLIT/CLASS or CLASS folders among "
        f"{counted(files.ledger.num_files, 'file')}; check --input: it should hold folders like "
        "train/CNV/, or CNV/. If the class is not the folder of a file, name it in a table: "
        "--labels labels.csv, with the columns path and label; or find it in names with "
        "--label_regex" + "".join(f". {text}" for text in files.ledger.unread)
    )


def _leave_out(labelled: Collection[str], folder: str) -> str:
    """Returns the flag that leaves out the outermost folder, or else the files of this one."""
    for above in itertools.accumulate(folder.split("/"), "{}/{}".format) if folder else ():
        if not any(f"{other}/".startswith((f"{above}/", "/")) for other in labelled):
            return f"--exclude_regex '^{re.escape(above)}/' leaves out that folder"
    folder = re.escape(folder)
    return f"--exclude_regex '^{folder}{'/' if folder else ''}[^/]*$' leaves out what is beside it"


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
    common = common_folders(folder.rstrip("/") for folder in with_images)
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
    below = collections.defaultdict[str, set[str]](set)
    for folder, (_, label, _) in facts.items():
        if label and (not chosen or label in chosen):
            below[label].update(filter(None, folder.split("/")[place + 1 : place + 2]))
    classes = below.keys()
    nested = {label: names & classes - {label} for label, names in sorted(below.items())}
    if outer := [label for label, names in nested.items() if names]:
        pairs = [f"{label}/{name}" for label in outer for name in sorted(nested[label])]
        raise errors.UserError(
            f"the class folder {' and '.join(map(ascii, outer))} holds folders named like other "
            f"classes: {', '.join(map(ascii, pairs[:4]))}; if it is not a class, name the classes "
            f"with --classes {','.join(sorted(classes - {*outer}))}, or give that folder as "
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
            f"the class folder {label!a} holds the folders {_quoted(sorted(names)[:4])}. If these "
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
    sizes = counts_of(trees.drop_null())
    ranked = sorted(sizes, key=lambda name: (-sizes[name], len(name), name))
    leader = next((name for name in ranked if labels[name] == _OCT_LABELS), ranked[0])
    is_known = pc.is_in(paths, paths.filter(pc.equal(trees, leader)))
    shared = counts_of(trees.filter(is_known))
    others = [name for name in ranked if 2 * shared.get(name, 0) < sizes[name]]
    if others and labels[leader] != _OCT_LABELS:
        raise errors.UserError(
            f"the source holds {len(others) + 1} unrelated trees: {_quoted([leader, *others])}; "
            "choose one with --tree, or say what the folders are, as with --layout '*/split/class'"
        )
    return leader, others


def place_folders(folders: Mapping[str, int], names: Mapping[str, str]) -> dict[str, Place]:
    """Finds the tree and the class of each folder; those without one are absent.

    The split folder of a file is the outermost one that is the last split folder above some image.
    So train/train/CNV/1.png is in the inner `train`, unless there is a train/DME/2.png: then the
    outer folder is the split and the inner `train` is a class.

    Args:
        folders: the number of images in each folder, by its path, which ends with `/`.
        names: the split of names of folders, besides `roles.SPLITS`.
    """
    splits = {folder: levels for folder in folders if (levels := _split_folders(folder, names))}
    places = dict[str, Place]()
    if not splits:
        with_images = [folder for folder, num_images in folders.items() if num_images]
        common = common_folders(folder[:-1] for folder in with_images)
        # If all images are in one folder, that folder is the class.
        depth = max(min((len(common), *(folder.count("/") - 1 for folder in with_images))), 0)
        # A file of an unknown ending may be an image, so elsewhere it is in a tree of its own.
        for folder in folders:
            parts = folder.split("/")
            if len(parts) > depth + 1:
                root = "/".join(parts[:depth])
                places[folder] = Place(root, root, "/".join(parts[depth:]), parts[depth])
        return places
    innermost = {levels[-1] for folder, levels in splits.items() if folders[folder]}
    # A file that is not an image, such as train/labels/labels.npy, must not choose a folder above
    # those of the images.
    above = {folder for level in innermost for folder in folders_above(level)}
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


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))

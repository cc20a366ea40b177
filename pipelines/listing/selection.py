"""Selects the images to use: those of one tree and of the chosen classes, each file once."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing.layout import SPLITS
from pipelines.listing.refs import Listing, iterate_refs
from pipelines.sources.member import Member

#: The class folders of the Kermany OCT data, by which its tree is recognised among others.
OCT_LABELS = frozenset({"CNV", "DME", "DRUSEN", "NORMAL"})


def choose_tree(refs: pa.Table, tree: str | None, listing: Listing) -> pa.Table:
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
        leader = next((name for name in ranked if labels[name] == OCT_LABELS), ranked[0])
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
    if others and tree is None and labels[leader] != OCT_LABELS:
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
        trees[root] = above if {SPLITS.get(folder.lower())} == names else root
    return trees


def choose_classes(refs: pa.Table, classes: Sequence[str], listing: Listing) -> pa.Table:
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


def require_separate_classes(refs: pa.Table) -> None:
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


def drop_copies(
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

"""Selects the images to use: those of one tree and of the chosen classes, each file once."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing.layout import SPLITS
from pipelines.listing.refs import RejectedFile, iterate_refs
from pipelines.sources.member import Member

#: The class folders of the Kermany OCT data, by which its tree is recognised among others.
OCT_LABELS = frozenset({"CNV", "DME", "DRUSEN", "NORMAL"})


def choose_tree(table: pa.Table, tree: str | None, ignored: collections.Counter[str]) -> pa.Table:
    """Keeps one tree and its copies; sorts the files of the chosen tree before their copies.

    Args:
        table: files with their `root`, `path`, `split` and `label`.
        tree: the tree that the user chose; None for the largest one, or that of the OCT data.
        ignored: number of files that are not used, by reason; it is changed.

    Raises:
        errors.UserError: if the chosen tree does not exist, or there are several unrelated trees
            and none was chosen.
    """
    table = table.append_column("tree", _trees(table))
    counts = table.group_by(["tree", "label"]).aggregate([([], "count_all")]).to_pylist()
    labels: dict[str, set[str]] = collections.defaultdict(set)
    sizes: collections.Counter[str] = collections.Counter()
    for row in counts:
        labels[row["tree"]].add(row["label"])
        sizes[row["tree"]] += row["count_all"]
    ranked = sorted(sizes, key=lambda root: (-sizes[root], len(root), root))
    if tree is not None:
        leader = next((root for root in ranked if root.strip(" /") == tree.strip(" /")), None)
        if leader is None:
            raise errors.UserError(f"no tree {tree!r} in the source; it has {_quote(ranked)}")
    else:
        oct_trees = [root for root in ranked if labels[root] == OCT_LABELS]
        leader = (oct_trees or ranked)[0]
    same = _trees_like(table, leader)
    others = [root for root in ranked if root not in same]
    if others and tree is None and labels[leader] != OCT_LABELS:
        raise errors.UserError(
            f"the source holds {len(others) + 1} unrelated trees: {_quote([leader, *others])}; "
            "choose one with --tree"
        )
    if others:
        ignored["other_tree"] = sum(sizes[root] for root in others)
    kept = table.filter(pc.is_in(table["tree"], pa.array(sorted(same))))
    is_copy = pc.not_equal(kept["tree"], leader).cast(pa.int8())
    root_name = kept["root"].cast(pa.string())
    kept = kept.append_column("is_copy", is_copy).append_column("root_name", root_name)
    keys = ("path", "is_copy", "root_name", "offset")
    return kept.sort_by([(key, "ascending") for key in keys])


def _trees(table: pa.Table) -> pa.ChunkedArray:
    """Returns the tree of every file: the folder above its split folder.

    If an archive wraps each split in a folder of the same name, as in train/train and test/test,
    the tree is the folder above both, so that the splits stay together.
    """
    splits: dict[str, set[str]] = collections.defaultdict(set)
    for row in table.group_by(["root", "split"]).aggregate([]).to_pylist():
        splits[row["root"]].add(row["split"])
    trees = {}
    for root, names in splits.items():
        above, _, folder = root.rpartition("/")
        trees[root] = above if {SPLITS.get(folder.lower())} == names else root
    roots = table["root"].combine_chunks()
    named = pa.array([trees[root] for root in roots.dictionary.to_pylist()], pa.string())
    return pa.chunked_array([named.take(roots.indices)])


def _trees_like(table: pa.Table, leader: str) -> set[str]:
    """Returns the leader and the trees that share at least half of their paths with it.

    Kaggle's archive of the Kermany data holds its whole tree twice, and a copy may be incomplete.
    """
    names = table["tree"]
    trees = pc.unique(names).to_pylist()
    if len(trees) == 1:
        return {leader}
    leader_paths = table.filter(pc.equal(names, leader))["path"].combine_chunks()
    same = {leader}
    for tree in trees:
        paths = table.filter(pc.equal(names, tree))["path"]
        if tree != leader and 2 * pc.sum(pc.is_in(paths, leader_paths)).as_py() >= len(paths):
            same.add(tree)
    return same


def choose_classes(
    table: pa.Table, classes: Sequence[str], ignored: collections.Counter[str]
) -> pa.Table:
    """Keeps the images of the chosen classes, or all if there are none; adds others to `ignored`.

    Raises:
        errors.UserError: if a chosen class has no images.
    """
    if not classes:
        return table
    labels = pc.cast(table["label"], pa.string())
    present = set(pc.unique(labels).to_pylist())
    if missing := set(classes) - present:
        raise errors.UserError(
            f"--classes or --grades names {_quote(sorted(missing))}, but the classes are "
            f"{_quote(sorted(present))}"
        )
    kept = table.filter(pc.is_in(labels, pa.array(classes)))
    if kept.num_rows < table.num_rows:
        ignored["class_not_chosen"] += table.num_rows - kept.num_rows
    return kept


def drop_copies(
    table: pa.Table,
    same_content: Callable[[Member, Member], bool],
    rejects: list[RejectedFile],
) -> tuple[pa.Table, int]:
    """Keeps the first of several files of the same path, which are adjacent in the table.

    Each of the others is a copy if its content is the same; otherwise it is added to `rejects`.

    Returns:
        the files that are kept, and the number of copies.
    """
    paths = table["path"].combine_chunks()
    is_first = np.ones(len(paths), bool)
    if len(paths) > 1:
        is_first[1:] = pc.not_equal(paths.slice(1), paths.slice(0, len(paths) - 1)).to_numpy(
            zero_copy_only=False
        )
    if is_first.all():
        return table, 0
    repeated = np.flatnonzero(~is_first)
    firsts = np.maximum.accumulate(np.where(is_first, np.arange(len(is_first)), 0))[repeated]
    copies = 0
    refs = (iterate_refs(table.take(rows)) for rows in (repeated, firsts))
    for ref, first in zip(*refs, strict=True):
        if ref.size == first.size and same_content(ref.member, first.member):
            copies += 1
        else:
            detail = f"same path as {first.source_path}, but different content"
            rejects.append(RejectedFile(ref.source_path, "path_conflict", detail))
    return table.filter(pa.array(is_first)), copies


def _quote(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)

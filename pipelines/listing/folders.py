r"""Finds the split, the class and the patient of each file from its folders, by one rule.

Below the folders that all images share, the levels of folders are `CLASS/image`, or
`SPLIT/CLASS/image`. There are two classes or more; a SPLIT is called train, training, val, valid,
validation, test or testing in any case, and no CLASS is. All else is refused, with the names of
each level. `--layout` then says what the levels are.

>>> tree_of(["oct/Train/CNV", "oct/Train/DME", "oct/val/CNV"])
Tree(roots=('oct',), roles=('split', 'class'), is_exact=True)
>>> tree_of(["scans/CNV", "scans/DME"])
Tree(roots=('scans',), roles=('class',), is_exact=True)
>>> tree_of(["CNV/patient1", "DME/patient2"]) is None
True
"""

from __future__ import annotations

import collections
import posixpath
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing.files import common_folders, has_suffix, without_label
from pipelines.listing.images import Images, Ledger
from pipelines.listing.options import ListingOptions
from pipelines.listing.refs import RejectedFile, counts_of, iterate_refs, make_refs
from pipelines.sources.source import Member
from tfrecord_io.decoding.preprocess import IMAGE_SUFFIXES
from tfrecord_io.decoding.rejects import what_is
from tfrecord_io.format.schema import SPLIT_NAME, SPLITS
from tfrecord_io.terminal.printing import counted, listed, printable

#: Words in the path of a picture that is a drawing of another one. Python and Arrow (RE2) read it.
MASK = (
    r"(?i)(?:^|[^a-z])(masks?|labels?|annotations?|segmentations?|ground[ _-]?truths?"
    r"|\d(?:st|nd|rd)[ _-]?manual)(?:[^a-z]|$)"
)

# So many names of a level are shown.
_SHOWN = 4


class Tree(NamedTuple):
    """How the folders are read: the role of each level below a root, see `options.ROLES`.

    There are several roots if an archive holds its tree twice. An exact tree, which the rule finds,
    has no file at another depth, nor below another name than that of a split.
    """

    roots: tuple[str, ...]
    roles: tuple[str, ...]
    is_exact: bool = False


def place_by_folders(files: Images, options: ListingOptions) -> Images:
    """Returns the files in the folders of classes, of `REF_SCHEMA`; those of one path are adjacent.

    With `--label_regex`, the class is not looked for here, and its column is null.

    Raises:
        errors.UserError: if there is no image, if some look like masks of others, or if the folders
            do not fit the rule or `--layout`.
    """
    names = files.table["name"].combine_chunks()
    encoded = pc.replace_substring_regex(names, "(?s)/?[^/]*$", "").dictionary_encode()
    folders, codes = encoded.dictionary.to_pylist(), encoded.indices
    is_image = _are_images(names)
    if not pc.any(is_image).as_py():
        notes = (files.ledger + Ledger.of_others(names.to_pylist())).notes
        raise errors.UserError(
            f"found no image in {counted(files.ledger.num_files, 'file')}; check --input: it "
            "should hold folders like train/CNV/, or CNV/" + "".join(f". {note}" for note in notes)
        )
    if not options.include_regex:
        _require_no_masks(names.filter(is_image), options)
    tree = _tree(
        {folders[code]: count for code, count in counts_of(codes.filter(is_image)).items()}, options
    )
    places = [_place(folder, tree) for folder in folders]

    def column(name: str) -> pa.Array:
        texts = (place and place.get(name) for place in places)
        return pa.array(texts, pa.string()).dictionary_encode().take(codes)

    columns = {name: column(name) for name in ("root", "split", "label", "patient")}
    columns["patient"] = columns["patient"].cast(pa.large_string())
    below = column("below").cast(pa.large_string())
    file_names = pc.replace_substring_regex(names, "(?s)^.*/", "")
    columns["path"] = pc.binary_join_element_wise(below, file_names, pa.scalar("", below.type))
    is_kept = pc.is_valid(columns["root"])
    refs = make_refs(files.table, columns).filter(is_kept)
    roots = refs["root"].cast(pa.string())
    ranks = pc.index_in(roots, pa.array(_ranked_roots(refs["path"], roots), pa.string()))
    keys = pa.table({"path": refs["path"], "rank": ranks, "offset": refs["offset"]})
    roles = "/".join(tree.roles)
    return files.then(
        refs.take(pc.sort_indices(keys, [(key, "ascending") for key in keys.column_names])),
        without_label(
            names.filter(pc.invert(is_kept)).to_pylist(), f"is not in the folders of {roles}"
        ),
        layout=tuple((role, "") for role in tree.roles),
        identity={**files.identity, "layout": roles},
    )


def _are_images(names: pa.Array) -> pa.Array:
    """Returns which files look like images by their names.

    If most do not, all of an unknown kind count as images, because files of DICOM have any name.
    """
    is_image = has_suffix(names, IMAGE_SUFFIXES)
    if 2 * (pc.sum(is_image).as_py() or 0) >= len(names):
        return is_image
    return pa.array([what_is(name) is None for name in names.to_pylist()], pa.bool_())


def _tree(counts: Mapping[str, int], options: ListingOptions) -> Tree:
    """Returns how folders are read, by the number of images in each: by `--layout`, or the rule.

    With `--label_regex` alone, only a first level of splits means something.
    """
    shared, layout = common_folders(counts), options.layout
    if layout:
        deepest = max(len(folder.split("/")) if folder else 0 for folder in counts)
        if len(layout) > deepest:
            raise errors.UserError(
                f"--layout {'/'.join(layout)} has {len(layout)} levels of folders, but no image is "
                f"in more than {deepest}, such as {printable(max(counts))!r}"
            )
        # Shared folders are levels too, if there are not enough below them.
        depth = min(len(shared), deepest - len(layout))
        return Tree(("/".join(shared[:depth]),), layout)
    if options.label_regex:
        while shared and _is_split(shared[-1]):
            shared.pop()
        firsts = {(folder.split("/")[len(shared) :] or [""])[0] for folder in counts}
        return Tree(("/".join(shared),), ("split",) if all(map(_is_split, firsts)) else ())
    if tree := tree_of(counts):
        return tree
    raise errors.UserError(_refusal(counts, shared))


def tree_of(folders: Collection[str]) -> Tree | None:
    """Returns how the folders of images are read by the rule; None if they do not fit it."""
    parts = [folder.split("/") for folder in folders]
    classes = {levels[-1] for levels in parts}
    if "" in classes or len(classes) < 2 or any(map(_is_split, classes)):
        return None
    if all(len(levels) > 1 and _is_split(levels[-2]) for levels in parts):
        roots = {"/".join(levels[:-2]) for levels in parts}
        return Tree(tuple(sorted(roots)), ("split", "class"), is_exact=True)
    shared = common_folders(folders)
    if all(len(levels) == len(shared) + 1 for levels in parts):
        return Tree(("/".join(shared),), ("class",), is_exact=True)
    return None


def _is_split(name: str) -> bool:
    return name.lower() in SPLITS


def _place(folder: str, tree: Tree) -> dict[str, str | None] | None:
    """Returns what a folder says of its files, by column; None if they are not in the tree.

    `below` are the folders below the root, with a `/` behind each.
    """
    inside = [root for root in tree.roots if not root or f"{folder}/".startswith(f"{root}/")]
    if not inside:
        return None
    root = max(inside, key=len)
    names = [name for name in folder[len(root) :].split("/") if name]
    parts = dict(zip(tree.roles, names, strict=False))
    if "class" in tree.roles and "class" not in parts:
        return None
    if tree.is_exact and (len(names) > len(parts) or not _is_split(parts.get("split", "train"))):
        return None
    return {
        "root": root,
        "below": "".join(f"{name}/" for name in names),
        "split": _split_of(parts["split"]) if "split" in parts else "train",
        "label": parts.get("class"),
        "patient": parts.get("patient"),
    }


def _split_of(name: str) -> str:
    """Returns the split of a folder on a level of splits, such as train of Train_Data.

    Raises:
        errors.UserError: if its name cannot be that of a split.
    """
    word = re.search(SPLIT_NAME, name.lower())
    split = SPLITS[word[1]] if word else name
    if not re.fullmatch("[a-z][a-z0-9_]*", split):
        raise errors.UserError(
            f"--layout: the split {printable(name)!r} should be train, val, test or another name "
            "of lower-case letters, digits and underscores"
        )
    return split


def _ranked_roots(paths: pa.ChunkedArray, roots: pa.ChunkedArray) -> list[str]:
    """Returns the roots of files, that with most images first; all others must repeat its tree.

    Kaggle's archive of the Kermany data holds its whole tree twice, and a copy may be incomplete.
    So a tree is a copy if half of its paths, or more, are in the first one.

    Raises:
        errors.UserError: if one differs from the others.
    """
    sizes = counts_of(roots)
    ranked = sorted(sizes, key=lambda root: (-sizes[root], len(root), root))
    if len(ranked) == 1:
        return ranked
    first, *others = ranked
    of_first = paths.filter(pc.equal(roots, first)).combine_chunks()
    shared = counts_of(roots.filter(pc.is_in(paths, of_first)))
    if apart := [root for root in others if 2 * shared.get(root, 0) < sizes[root]]:
        pattern = f"^({'|'.join(re.escape(root) for root in apart if root)})/"
        raise errors.UserError(
            f"{len(ranked)} folders hold splits of different images: "
            f"{listed(list(map(repr, [first, *apart])), _SHOWN)}. Give one as --input, or leave "
            f"the others out, as with --exclude_regex {shlex.quote(pattern)}; or say what all "
            "folders are, as with --layout '*/split/class'"
        )
    return ranked


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
    return images.then(kept.combine_chunks(), Ledger(copies=copies, rejects=tuple(rejects)))


def _refusal(counts: Mapping[str, int], shared: Sequence[str]) -> str:
    """Returns why folders do not fit the rule: their levels, and the `--layout` of each reading."""
    below = {folder: folder.split("/")[len(shared) :] if folder else [] for folder in counts}
    depths = collections.Counter[int]()
    for folder, names in below.items():
        depths[len(names)] += counts[folder]
    depth = max(depths, key=lambda depth: (depths[depth], depth))
    levels = [{names[k] for names in below.values() if len(names) > k} for k in range(depth)]
    start = f"below {printable('/'.join(shared))!r}" if shared else "in the input"
    lines = [
        f"the folders {start} are not CLASS/image or SPLIT/CLASS/image with two classes or more, "
        f"but {depth or 'no'} level{'s'[depth == 1 :]}, as in {printable(min(counts) or '.')}/",
        *(
            f"  level {number}, {counted(len(level), 'name')}: {listed(sorted(level), _SHOWN)}"
            for number, level in enumerate(levels, start=1)
        ),
        *_layouts(levels, shared),
    ]
    for other in sorted(depths.keys() - {depth}):
        start = "".join(f"{re.escape(name)}/" for name in shared)
        pattern = shlex.quote(f"^{start}{'[^/]*/' * other}[^/]*$")
        lines.append(
            f"  {counted(depths[other], 'image')} in {counted(other, 'level')}: leave out with "
            f"--exclude_regex {pattern}"
        )
    lines.append("or find the class in names with --label_regex, or give a table with --labels")
    return "\n".join(lines)


def _layouts(levels: Sequence[Collection[str]], shared: Sequence[str]) -> Iterator[str]:
    """Yields a line for each level that can be the class, with the `--layout` to copy."""
    has_split = bool(levels) and all(re.search(SPLIT_NAME, name.lower()) for name in levels[0])
    first = int(has_split)
    base = ["split"] * first + ["*"] * (len(levels) - first)
    if len(levels) == first and shared and not _is_split(shared[-1]):
        yield f"  {printable(shared[-1])!r} is the class: --layout {'/'.join(['class', *base])}"
    for place in range(first, len(levels)):
        plain = [*base[:place], "class", *base[place + 1 :]]
        readings = [plain]
        if others := [other for other in range(first, len(levels)) if other != place]:
            patient = max(others, key=lambda other: len(levels[other]))
            readings.insert(0, [*plain[:patient], "patient", *plain[patient + 1 :]])
        flags = (shlex.quote("/".join(roles).rstrip("/*")) for roles in readings)
        shown = ", or ".join(f"--layout {layout}" for layout in flags)
        yield f"  level {place + 1} is the class: {shown}"


def _require_no_masks(images: pa.Array, options: ListingOptions) -> None:
    """Refuses pictures of which some have a word of `MASK` in their path, and others none."""
    is_mask = pc.match_substring_regex(images, MASK)
    masks = images.filter(is_mask).to_pylist()
    if not 0 < len(masks) < len(images):
        return
    words = sorted({re.search(MASK, name)[1].lower() for name in masks})  # type: ignore[index]
    pattern = rf"(?i)(^|[^a-z])({'|'.join(map(re.escape, words))})([^a-z]|$)"
    text = (
        f"{counted(len(masks), 'file')}, such as {printable(masks[0])}, may be masks or labels of "
        f"others; leave them out with --exclude_regex {shlex.quote(pattern)}, or say with "
        "--include_regex . that all are images of a class"
    )
    others = images.filter(pc.invert(is_mask)).to_pylist()
    try:
        _tree(collections.Counter(map(posixpath.dirname, others)), options)
    except errors.UserError as error:
        text = f"{text}. Of the others, {error}"
    raise errors.UserError(text)

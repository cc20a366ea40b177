"""Copies of images: in a second tree, or with the name of their source.

What has the name of its source belongs to it in splits and folds.

>>> source_of("a/scan_jpg.rf.0123456789abcdef.jpg", set())
'scan_jpg'
>>> source_of("a/eye_flip (2).png", {"a/eye"}), source_of("a/eye_flip.png", set())
('a/eye', None)
"""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.listing.images import Images, Ledger
from pipelines.listing.refs import OTHER, RejectedFile, iterate_refs
from pipelines.sources.source import Member
from tfrecord_io.format.groups import COPY_OF
from tfrecord_io.terminal.printing import counted, printable

# More files than this are not copies: bulk renaming numbers every image.
_MOST_COPIES = 50

# The ends of names: what Roboflow writes, and what other tools and people do.
_ROBOFLOW = r"\.rf\.[0-9A-Za-z]{8,}\.[^./]+$"
_COPY = (
    r"(?i)(?: ?\(\d+\)|[ _-]+(?:aug|augmented|copy|[hv]?flip(?:ped)?|mirror(?:ed)?|rot(?:ated?)?"
    r"|rotation|crop(?:ped)?|blur(?:red)?|noisy?e?|bright(?:ness)?|dark|contrast|gamma|zoom(?:ed)?"
    r"|shift(?:ed)?|scaled?|shear(?:ed)?)[ _-]*-?\d*)"
)
_COPY_FILE = rf"{_COPY}\.[^./]+$"


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


def with_copies(images: Images) -> Images:
    """Adds a column with the source of each copy, and of the source itself, if there are copies."""
    paths, column = images.table["path"], f"{OTHER}{COPY_OF}"
    could_be = pc.match_substring_regex(paths, f"{_ROBOFLOW}|{_COPY_FILE}")
    if column in images.table.column_names or not pc.any(could_be).as_py():
        return images
    stems = [path.rpartition(".")[0] for path in paths.to_pylist()]
    names = set(stems)
    copies = {path: source for path in paths.filter(could_be).to_pylist()
              if (source := source_of(path, names))}  # fmt: skip
    sources = [copies.get(path, stem) for path, stem in zip(paths.to_pylist(), stems, strict=True)]
    sizes = collections.Counter(sources)
    is_source = {name for name in set(copies.values()) if 1 < sizes[name] <= _MOST_COPIES + 1}
    if not is_source:
        return images
    of_copies = [source if source in is_source else None for source in sources]
    example = next(path for path, source in copies.items() if source in is_source)
    num_images = len(of_copies) - of_copies.count(None)
    text = (
        f"{num_images:,} images are copies of {counted(len(is_source), 'source')} by their names, "
        f"such as {printable(example)}; each source and its copies stay together in splits and "
        "folds (--no-copies_by_name takes them for different images)"
    )
    table = images.table.append_column(column, pa.array(of_copies, pa.string()))
    return images.then(table).noted(text)


def source_of(path: str, stems: Collection[str]) -> str | None:
    """Returns the source of a copy, or None; `stems` are the paths of all files without endings."""
    name, num = re.subn(_ROBOFLOW, "", path)
    if num:
        return name.rpartition("/")[2]
    stem, source = path.rpartition(".")[0], None
    while match := re.search(f"{_COPY}$", stem):
        stem = stem[: match.start()]
        source = stem if stem in stems else source
    return source

"""Copies of images in a second tree."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.listing.images import Images, Ledger
from pipelines.listing.refs import RejectedFile, iterate_refs
from pipelines.sources.source import Member


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

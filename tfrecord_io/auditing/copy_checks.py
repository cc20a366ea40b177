"""Reports pictures that occur more than once: across splits, and under different labels.

Each check yields its findings and adds its numbers to `measures`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tfrecord_io.auditing import near_duplicates
from tfrecord_io.auditing.columns import CodedColumns
from tfrecord_io.auditing.findings import Finding, many
from tfrecord_io.auditing.twins import NearPair, Twins
from tfrecord_io.groups import MAX_CHAIN
from tfrecord_io.printing import counted


def check_exact(
    examples: pa.Table, codes: CodedColumns, twins: Twins, measures: dict[str, Any]
) -> Iterator[Finding]:
    """Yields pictures whose exact pixels occur again: across splits, labels or within a split."""
    groups = list(twins.exact_groups())
    across = [g for g in groups if len(set(codes.split[g].tolist())) > 1]
    within = [g for g in groups if len(set(codes.split[g].tolist())) < len(g)]
    conflicts = [g for g in groups if len(set(codes.text[g].tolist())) > 1]
    measures["duplicate_pictures"] = len(groups)
    measures["duplicate_images"] = sum(len(g) - 1 for g in groups)
    measures["duplicate_pictures_across_splits"] = len(across)
    measures["duplicate_label_conflicts"] = len(conflicts)
    if across:
        yield Finding(
            code="picture_leak",
            severity="problem",
            title=f"{many(len(across), 'picture')} in more than one split, pixel by pixel",
            detail=f"{sum(map(len, across)):,} images under different names. Build with "
            "--leaks drop to leave them out of the larger split.",
            count=len(across),
            listed=_list_groups(examples, across[: codes.most_listed]),
        )
    if conflicts:
        yield Finding(
            code="label_conflict",
            severity="problem",
            title=f"{many(len(conflicts), 'picture')} under contradicting labels",
            detail=f"The same pixels have different {codes.plural}, so at least one is "
            "wrong. --duplicates drop leaves all of them out.",
            count=len(conflicts),
            listed=_list_groups(examples, conflicts[: codes.most_listed]),
        )
    if within:
        extra = sum(len(g) - len(set(codes.split[g].tolist())) for g in within)
        yield Finding(
            code="duplicates",
            severity="warning",
            title=f"{many(extra, 'image')} in the same split a second time",
            detail=f"{many(len(within), 'picture')} repeated under other names, and each "
            "repetition counts in every result. --duplicates drop keeps one of each.",
            count=extra,
            listed=_list_groups(examples, within[: codes.most_listed]),
        )
    if not groups:
        yield Finding(
            code="duplicates",
            severity="good",
            title="No two images have the same pixels",
            detail=f"All {examples.num_rows:,} stored images differ.",
        )


def _list_groups(examples: pa.Table, groups: Sequence[np.ndarray]) -> tuple[dict[str, Any], ...]:
    rows = []
    for group in groups:
        taken = examples.select(["split", "label", "path"]).take(group[:4]).to_pylist()
        files = (
            set(examples["file_xxh3"].take(group).to_pylist())
            if "file_xxh3" in examples.column_names
            else {None}
        )
        same_file = len(files) == 1 and None not in files
        rows.append(
            {
                "images": len(group),
                "splits": ", ".join(sorted({row["split"] for row in taken})),
                "labels": ", ".join(sorted({row["label"] for row in taken})),
                "same file": "yes" if same_file else "no, same pixels",
                "first": taken[0]["path"],
                "again": taken[1]["path"],
            }
        )
    return tuple(rows)


def check_near(
    examples: pa.Table, codes: CodedColumns, twins: Twins, measures: dict[str, Any]
) -> Iterator[Finding]:
    """Yields near duplicates across splits and labels, or why they were not looked for."""
    if twins.min_similarity is None:
        # With a single split, none can be across splits.
        measures["near_duplicate_pairs"] = 0 if len(np.unique(codes.split)) < 2 else None
        measures["near_duplicate_label_conflicts"] = None
        reason = (
            f"The stored images are too small. Below {near_duplicates.MIN_SIDE} pixels per side, "
            "different scans look so alike that copies cannot be distinguished from them. Build "
            "with a larger --image_size to have them compared."
            if "perceptual_hash" in examples.column_names
            else "An older release built the dataset without perceptual hashes. Build it again to "
            "have the images compared."
        )
        yield Finding(
            code="near_duplicates",
            severity="note",
            title="Near duplicates were not looked for",
            detail=f"{reason} Copies with exactly the same pixels were looked for.",
        )
        return
    across = list(twins.near_across(codes.split))
    conflicts = list(twins.near_across(codes.label))
    within = [
        pair
        for pair in twins.near_across(codes.groups.codes)
        if len(np.unique(codes.split[twins.copies_of(pair.first, pair.second)])) == 1
    ]
    measures["near_duplicate_pairs"] = len(across)
    measures["near_duplicate_pairs_within_splits"] = len(within)
    measures["near_duplicate_label_conflicts"] = len(conflicts)
    measures["near_duplicates_unchecked"] = twins.num_unchecked
    measures["near_duplicates_complete"] = twins.complete and not twins.num_unchecked
    if across:
        yield Finding(
            code="near_duplicates",
            severity="problem",
            title=f"{counted(len(across), 'pair')} of near duplicates across splits",
            detail="Each pair is one picture that was saved again, brightened or resized, or "
            "the same place of an eye scanned twice. --leaks drop keeps the one in the more "
            "protected split (test before val before train).",
            count=len(across),
            listed=list_pairs(examples, across[: codes.most_listed]),
        )
    elif len(codes.splits) > 1:
        yield Finding(
            code="near_duplicates",
            severity="good",
            title="No near duplicates across splits",
            detail="No picture of one split is a re-saved, brightened or resized copy of one "
            f"in another (hashes within {near_duplicates.MAX_DISTANCE} of 255 bits, fine "
            f"detail correlated by {twins.min_similarity:.2f} or more).",
        )
    if within:
        yield Finding(
            code="near_duplicates_within",
            severity="warning",
            title=f"{counted(len(within), 'pair')} of near duplicates in one split",
            detail="Their patients have different names, or none. Folds and intervals keep the "
            "images of both together, but each of them counts in training.",
            count=len(within),
            listed=list_pairs(examples, within[: codes.most_listed]),
        )
    if codes.joined.long_chains:
        yield Finding(
            code="near_chains",
            severity="warning",
            title=f"{counted(len(codes.joined.long_chains), 'chain')} of near duplicates not used",
            detail=f"In each, more than {MAX_CHAIN} images are connected by pairs that look "
            f"alike (up to {max(codes.joined.long_chains):,}). Folds and intervals do not keep "
            "them together, because whatever looks so alike need not be the same.",
            count=len(codes.joined.long_chains),
        )
    if conflicts:
        yield Finding(
            code="near_label_conflict",
            severity="warning",
            title=f"{counted(len(conflicts), 'pair')} of near duplicates under different labels",
            detail=f"Nearly the same picture has different {codes.plural}. Look at both.",
            count=len(conflicts),
            listed=list_pairs(examples, conflicts[: codes.most_listed]),
        )
    num_unchecked = twins.num_unchecked + twins.num_unchecked_within
    if num_unchecked or not twins.complete:
        yield Finding(
            code="near_duplicates_unchecked",
            severity="warning",
            title="So many images look alike that not all pairs were compared",
            detail=f"{num_unchecked:,} proposed pairs were left out: those within a split first, "
            "and of these the least alike ones"
            + ("." if twins.complete else "; and the search itself stopped early."),
            count=num_unchecked,
        )


def list_pairs(examples: pa.Table, pairs: Sequence[NearPair]) -> tuple[dict[str, Any], ...]:
    """Lists pairs of rows with the facts needed to show them side by side."""
    columns = examples.select(["split", "label", "path", "shard", "row"])
    listed = []
    for pair in pairs:
        first, second = columns.take([pair.first, pair.second]).to_pylist()
        case = {"first": first, "second": second, "similarity": round(pair.similarity, 4)}
        listed.append(case | ({"why": pair.why} if pair.why else {}))
    return tuple(listed)


def near_search_gap(num_pairs: int | None, measures: Mapping[str, Any]) -> str | None:
    """Returns why one of an audit's numbers of near duplicates is incomplete, or None."""
    if num_pairs is None:
        return "near duplicates were not looked for; the audit's findings say why"
    if not measures.get("near_duplicates_complete", True):
        return "so many images look alike that not all pairs were compared"
    return None

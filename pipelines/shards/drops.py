"""Removes duplicate pictures from the written shards.

Which pictures are the same is known only when all of them are decoded and the shards are written.
So the finishing step decides which records to drop, saves the decision, and copies each affected
shard without them. Nothing is decoded again, because a shard is an array of equal records. A build
that is killed meanwhile reads the saved decision when it resumes, so its result is the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines import errors
from pipelines.planning import plan, splits
from pipelines.planning.splits import SplitOptions
from pipelines.shards.build import Build, Sidecar, rows_name
from tfrecord_io.auditing import twins
from tfrecord_io.auditing.leak_checks import near_search_gap
from tfrecord_io.format import manifest, schema
from tfrecord_io.format.examples import audited
from tfrecord_io.format.statistics import PixelStatistics
from tfrecord_io.stores.folder import BUILD_DIR, Folder

#: Tables of `DROPPED_SCHEMA`: the images that the plan dropped, and those that the finishing step
#: decided to drop.
PLANNED_FILE = f"{BUILD_DIR}/dropped.arrow"
DECIDED_FILE = f"{BUILD_DIR}/duplicates.arrow"

# The policies, the measures that must be zero if one is `fail`, and what these count.
_MUST_BE_ZERO = (
    ("duplicates", "duplicate_images", "images repeat another one, pixel by pixel"),
    ("leaks", "patients_in_several_splits", "patients are in several splits"),
    ("leaks", "duplicate_pictures_across_splits", "pictures are in several splits"),
    ("leaks", "near_duplicate_pairs", "pairs across splits are near duplicates"),
)


def leave_out(
    build: Build,
    tasks: Sequence[plan.ShardTask],
    sidecars: Sequence[Sidecar],
    all_rows: Sequence[pa.Table],
) -> pa.Table:
    """Removes duplicates from the shards if the policies say so.

    A shard that loses records is replaced, with its sidecar. Augmented copies of a dropped image,
    which have its path, are dropped with it. The sidecars and `all_rows`, the rows of the examples
    table, are in the order of the tasks.

    Returns:
        all dropped images, including those that the plan dropped: a table of `DROPPED_SCHEMA`.

    Raises:
        errors.BuildError: if a shard changes while it is copied.
    """
    planned = read_table(build.output, PLANNED_FILE)
    if "drop" not in (build.policies.duplicates, build.policies.leaks):
        return planned
    if build.output.exists(DECIDED_FILE):
        decided = read_table(build.output, DECIDED_FILE)
    else:
        examples = audited(pa.concat_tables(all_rows))
        same = twins.find_twins(examples, build.open_images(), build.draft)
        decided = decide(examples, same, build.policies)
        write_table(build.output, DECIDED_FILE, decided)
    for task, sidecar, rows in zip(tasks, sidecars, all_rows, strict=True):
        keep = pc.invert(pc.is_in(rows["path"], decided["path"].combine_chunks()))
        if not pc.all(keep).as_py():
            _copy_without(build, task, sidecar, rows, keep)
    return pa.concat_tables([planned, decided])


def decide(examples: pa.Table, same: twins.Twins, options: SplitOptions) -> pa.Table:
    """Returns the examples to drop, with the reasons.

    Of several pictures with the same pixels, the one in the most protected split stays (the order
    is test, val, others, train), and among those in the same split the one whose path sorts first.
    If their labels differ, all are dropped, because it is unknown which label is right. Of near
    duplicates in several splits, those in the most protected split stay.

    Returns:
        a table of `DROPPED_SCHEMA`, in the order of `examples`.
    """
    paths, names, labels = (examples[name].to_pylist() for name in ("path", "split", "label"))
    ranks = {name: rank for rank, name in enumerate(splits.protected_first(list(set(names))))}

    def protection(row: int) -> tuple[int, str]:
        return ranks[names[row]], paths[row]

    reasons: dict[int, tuple[str, str]] = {}
    for group in same.exact_groups():
        first, *others = members = sorted(group.tolist(), key=protection)
        different, why = sorted({labels[row] for row in members}), f"same pixels as {paths[first]}"
        if options.duplicates != "drop":
            others = [row for row in others if names[row] != names[first]]
            reasons |= dict.fromkeys(others, (f"picture_in_{names[first]}", why))
        elif len(different) == 1:
            reasons |= dict.fromkeys(others, ("duplicate", why))
        else:
            detail = f"the same pixels are labelled {', '.join(different)}"
            reasons |= dict.fromkeys(members, ("conflicting_label", detail))
    # Near duplicates in several splits, as rows of both pictures that are left, the more protected
    # one first. The rows of a picture are in one split, because the others have been decided.
    pairs: list[list[list[int]]] = []
    for pair in same.near if options.leaks == "drop" else ():
        sides = [
            sorted(set(same.copies_of(row).tolist()) - reasons.keys(), key=protection)
            for row in (pair.first, pair.second)
        ]
        if all(sides) and names[sides[0][0]] != names[sides[1][0]]:
            pairs.append(sorted(sides, key=lambda rows: protection(rows[0])))
    for kept, others in sorted(pairs, key=lambda pair: [protection(rows[0]) for rows in pair]):
        # Only a picture that stays is a reason to drop its near duplicate.
        if kept[0] not in reasons and others[0] not in reasons:
            reason = (f"picture_in_{names[kept[0]]}", f"near duplicate of {paths[kept[0]]}")
            reasons |= dict.fromkeys(others, reason)
    rows = [
        {"path": paths[row], "reason": reason, "detail": detail}
        for row, (reason, detail) in sorted(reasons.items())
    ]
    return pa.Table.from_pylist(rows, splits.DROPPED_SCHEMA)


def _copy_without(
    build: Build, task: plan.ShardTask, sidecar: Sidecar, rows: pa.Table, keep: pa.ChunkedArray
) -> None:
    """Replaces a shard, its rows of the examples table and its sidecar, without some records.

    `keep` says of each row whether its record stays.
    """
    storage, layout, shard_name = build.output, build.draft.layout, task.shard_name
    keys, digest = rows["key"].to_pylist(), hashlib.sha256()
    slot = layout.features[schema.KEY]
    statistics = PixelStatistics.from_images(np.empty((0, *layout.image_shape), np.uint8))
    with storage.open(shard_name) as old, storage.create(shard_name) as new:
        for row in np.flatnonzero(keep.to_numpy()).tolist():
            old.seek(row * layout.stride)
            record = old.read(layout.stride)
            # Another attempt of this step may have replaced the shard or the rows meanwhile.
            if record[slot.offset : slot.offset + slot.length] != keys[row].encode():
                raise errors.BuildError(
                    f"{storage.path(shard_name)} changed while it was copied; run the same "
                    "command again to resume"
                )
            new.write(record)
            digest.update(record)
            framed = np.frombuffer(record, np.uint8)[np.newaxis]
            statistics += PixelStatistics.from_images(layout.images_in(framed))
    # The shard's name must be on the disk before the new rows are. If a power cut keeps the shard
    # alone, its size no longer fits the sidecar, so it is written again.
    storage.sync_names()
    rows = rows.filter(keep)
    place, numbers = rows.schema.get_field_index("row"), pa.array(range(len(rows)), pa.int32())
    rows = rows.set_column(place, rows.schema.field("row"), numbers)
    with storage.create(rows_name(task)) as file:
        pq.write_table(rows, file)
    smaller = dataclasses.replace(
        sidecar,
        num_examples=len(rows),
        num_bytes=len(rows) * layout.stride,
        sha256=digest.hexdigest(),
        label_counts=layout.label_kind.counts(rows["label"].to_pylist(), build.draft.label_names),
        num_dropped=sidecar.num_examples - len(rows),
        statistics=statistics,
    )
    smaller.write(storage.create)


def require_policies(
    storage: Folder, options: SplitOptions, made: manifest.Manifest | None = None
) -> None:
    """Refuses a dataset that violates a policy that is `fail`.

    A complete one, whose manifest is read, is checked, too, because it may have been built with
    `keep`.

    Raises:
        errors.RefusedError: with the number of images for each violated policy.
    """
    made = made or manifest.Manifest.load(storage.root)
    measures = made.audit.get("measures", {})
    parts = [
        f"{measures[name]:,} {text} (--{flag} is fail)"
        for flag, name, text in _MUST_BE_ZERO
        if getattr(options, flag) == "fail" and measures.get(name)
    ]
    gap = near_search_gap(measures.get("near_duplicate_pairs"), measures)
    if options.leaks == "fail" and gap:
        parts.append(f"{gap} (--leaks is fail)")
    if parts:
        page = storage.path(manifest.REPORT_FILE_NAME)
        raise errors.RefusedError("; ".join(parts), f"See {page}")


def write_table(storage: Folder, name: str, table: pa.Table) -> None:
    """Writes a table as an Arrow file."""
    with storage.create(name) as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def read_table(storage: Folder, name: str) -> pa.Table:
    """Returns the table that `write_table` wrote."""
    return pa.ipc.open_file(pa.py_buffer(storage.read(name))).read_all()

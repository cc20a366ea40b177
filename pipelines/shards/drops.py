"""Removes duplicate pictures from the written shards.

Which pictures are the same is known only when all of them are decoded and the shards are written.
So the finishing step decides which records to drop, saves the decision, and copies each affected
shard without them. Nothing is decoded again, because a shard is an array of equal records. A build
that is killed meanwhile reads the saved decision when it resumes, so its result is the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines import errors
from pipelines.planning import plan, splits
from pipelines.planning.options import SplitOptions
from pipelines.shards.build import Build, rows_name
from pipelines.shards.sidecar import Sidecar
from pipelines.stores.output import BUILD_DIR, Storage
from tfrecord_io import flags, manifest, schema
from tfrecord_io.auditing.leak_checks import near_search_gap
from tfrecord_io.auditing.twins import MIN_SIDE, Twins

#: Tables of `DROPPED_SCHEMA`: the images that the plan dropped, and those that the finishing step
#: decided to drop.
PLANNED_FILE = f"{BUILD_DIR}/dropped.arrow"
DECIDED_FILE = f"{BUILD_DIR}/duplicates.arrow"


def leave_out(
    build: Build, tasks: Sequence[plan.ShardTask], sidecars: Sequence[Sidecar]
) -> pa.Table:
    """Removes duplicates from the shards if the policies say so.

    A shard that loses records is replaced, with its sidecar. Augmented copies of a dropped image,
    which have its path, are dropped with it. `sidecars` are in the order of `tasks`.

    Returns:
        all dropped images, including those that the plan dropped: a table of `DROPPED_SCHEMA`.

    Raises:
        errors.BuildError: if a shard changes while it is copied.
    """
    planned = read_table(build.storage, PLANNED_FILE)
    if "drop" not in (build.policies.duplicates, build.policies.leaks):
        return planned
    if build.storage.exists(DECIDED_FILE):
        decided = read_table(build.storage, DECIDED_FILE)
    else:
        with build.open_pictures() as (examples, same, _):
            decided = decide(examples, same, build.policies)
        write_table(build.storage, DECIDED_FILE, decided)
    all_rows = build.storage.map(build.read_rows, tasks)
    for task, sidecar, rows in zip(tasks, sidecars, all_rows, strict=True):
        keep = pc.invert(pc.is_in(rows["path"], decided["path"].combine_chunks()))
        if not pc.all(keep).as_py():
            _copy_without(build, task, sidecar, rows, keep)
    return pa.concat_tables([planned, decided])


def decide(examples: pa.Table, twins: Twins, options: SplitOptions) -> pa.Table:
    """Returns the examples to drop, with the reasons.

    Of several pictures with the same pixels, the one in the most protected split stays (the order
    is test, val, others, train), and among those in the same split the one whose path sorts first.
    If their labels differ, all are dropped, because it is unknown which label is right. Of near
    duplicates in several splits, those in the most protected split stay.

    Returns:
        a table of `DROPPED_SCHEMA`, in the order of `examples`.
    """
    paths = examples["path"].to_pylist()
    names = examples["split"].to_pylist()
    labels = examples["label"].to_pylist()
    rank = {name: index for index, name in enumerate(splits.protected_first(sorted(set(names))))}
    reasons: dict[int, tuple[str, str]] = {}
    for group in twins.exact_groups():
        members = sorted(group.tolist(), key=lambda row: (rank[names[row]], paths[row]))
        first = members[0]
        same = f"same pixels as {paths[first]}"
        if options.duplicates == "drop" and len({labels[row] for row in members}) > 1:
            listed = ", ".join(sorted({labels[row] for row in members}))
            for row in members:
                reasons[row] = ("conflicting_label", f"the same pixels are labelled {listed}")
            continue
        for row in members[1:]:
            if options.duplicates == "drop":
                reasons[row] = ("duplicate", same)
            elif options.leaks == "drop" and names[row] != names[first]:
                reasons[row] = (f"picture_in_{names[first]}", same)
    if options.leaks == "drop":
        _decide_near(twins, names, paths, rank, reasons)
    rows = pa.array(sorted(reasons), pa.int64())
    return pa.table(
        {
            "path": examples["path"].take(rows),
            "reason": [reasons[row][0] for row in rows.to_pylist()],
            "detail": [reasons[row][1] for row in rows.to_pylist()],
        },
        splits.DROPPED_SCHEMA,
    )


def _decide_near(
    twins: Twins,
    names: Sequence[str],
    paths: Sequence[str],
    rank: Mapping[str, int],
    reasons: dict[int, tuple[str, str]],
) -> None:
    """Adds near duplicates of pictures in a more protected split, the most protected first."""
    # The rows of each picture that are left. They are in one split, because exact copies in others
    # have been decided.
    left: dict[int, list[int]] = {}
    for picture in {row for pair in twins.near for row in (pair.first, pair.second)}:
        rows = (row for row in twins.copies_of(picture).tolist() if row not in reasons)
        left[picture] = sorted(rows, key=lambda row: paths[row])
    pairs = []
    for pair in twins.near:
        if left[pair.first] and left[pair.second]:
            sides = (left[pair.first], left[pair.second])
            kept, others = sorted(sides, key=lambda rows: rank[names[rows[0]]])
            if names[kept[0]] != names[others[0]]:
                pairs.append((rank[names[kept[0]]], paths[kept[0]], paths[others[0]], kept, others))
    for *_, kept, others in sorted(pairs):
        # Only a picture that stays is a reason to drop its near duplicate.
        if kept[0] not in reasons and others[0] not in reasons:
            reason = (f"picture_in_{names[kept[0]]}", f"near duplicate of {paths[kept[0]]}")
            reasons.update(dict.fromkeys(others, reason))


def _copy_without(
    build: Build, task: plan.ShardTask, sidecar: Sidecar, rows: pa.Table, keep: pa.ChunkedArray
) -> None:
    """Replaces a shard, its rows of the examples table and its sidecar, without some records.

    `keep` says of each row whether its record stays.

    Raises:
        errors.BuildError: if the rows do not describe the shard.
    """
    storage, layout, shard_name = build.storage, build.layout, task.shard_name
    keys = rows["key"].to_pylist()
    slot = layout.features[schema.KEY]
    digest = hashlib.sha256()
    with storage.open_arrow(shard_name) as old, storage.create(shard_name) as new:
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
    # The shard's name must be on the disk before the new rows are. If a power cut keeps the shard
    # alone, its size no longer fits the sidecar, so it is written again.
    storage.sync_names()
    rows = rows.filter(keep)
    place = rows.schema.get_field_index("row")
    rows = rows.set_column(place, rows.schema.field("row"), pa.array(range(len(rows)), pa.int32()))
    with storage.create(rows_name(task)) as file:
        pq.write_table(rows, file)
    smaller = dataclasses.replace(
        sidecar,
        num_examples=len(rows),
        num_bytes=len(rows) * layout.stride,
        sha256=digest.hexdigest(),
        label_counts=layout.label_kind.counts(rows["label"].to_pylist(), build.label_names),
        num_dropped=sidecar.num_examples - len(rows),
        statistics=None,
    )
    smaller.write(storage.create)


def check_searchable(image_shape: Sequence[int], options: SplitOptions) -> None:
    """Refuses `--leaks fail` for images stored too small, before anything is decoded.

    Near duplicates cannot be found in them. `image_shape` is (height, width, channels).

    Raises:
        errors.UserError: naming the smallest size.
    """
    height, width = image_shape[:2]
    if options.leaks == "fail" and min(height, width) < MIN_SIDE:
        raise errors.UserError(
            f"--leaks fail cannot be checked with --image_size {height}x{width}: copies that were "
            "saved again, brightened or resized are found only in images stored with at least "
            f"{MIN_SIDE} pixels per side. Choose a larger --image_size; or choose "
            f"--leaks keep, and check patients and exact copies with {flags.command('audit')} "
            "--max_leaked_patients 0 --max_duplicates 0"
        )


def require_policies(storage: Storage, made: manifest.Manifest, options: SplitOptions) -> None:
    """Refuses a dataset that violates a policy that is `fail`.

    A complete one is checked, too, because it may have been built with `keep`.

    Raises:
        errors.RefusedError: with the number of images for each violated policy.
    """
    measures, wrong = made.audit.get("measures", {}), []
    if options.duplicates == "fail":
        wrong += [("duplicate_images", "images repeat another one, pixel by pixel", "duplicates")]
    if options.leaks == "fail":
        wrong += [
            ("patients_in_several_splits", "patients are in several splits", "leaks"),
            ("duplicate_pictures_across_splits", "pictures are in several splits", "leaks"),
            ("near_duplicate_pairs", "pairs across splits are near duplicates", "leaks"),
        ]
    parts = [
        f"{measures[name]:,} {text} (--{flag} is fail)"
        for name, text, flag in wrong
        if measures.get(name)
    ]
    gap = near_search_gap(measures.get("near_duplicate_pairs"), measures)
    if options.leaks == "fail" and gap:
        parts.append(f"{gap} (--leaks is fail)")
    if parts:
        page = storage.path(manifest.REPORT_FILE_NAME)
        raise errors.RefusedError(f"{'; '.join(parts)}. See {page}")


def write_table(storage: Storage, name: str, table: pa.Table) -> None:
    """Writes a table as an Arrow file."""
    with storage.create(name) as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def read_table(storage: Storage, name: str) -> pa.Table:
    """Returns the table that `write_table` wrote."""
    return pa.ipc.open_file(pa.py_buffer(storage.read(name))).read_all()

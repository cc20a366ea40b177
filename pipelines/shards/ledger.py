"""The ledger: what became of every file, and whether the dataset may be used.

`Listing` has checked the sum for the files that it listed; `tfrecord_io.verify` checks it again,
from the files of a finished dataset.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines import errors
from pipelines.listing.refs import RejectedFile, iterate_refs
from pipelines.planning import plan
from pipelines.shards.build import Build
from pipelines.shards.sidecar import Sidecar
from pipelines.stores.output import Storage
from tfrecord_io import manifest


def check_ledger(
    build: Build, sidecars: Sequence[Sidecar], num_rejects: int, dropped: pa.Table
) -> dict[str, Any]:
    """Returns the number of files seen, and their number by what became of them.

    Args:
        build: the whole build.
        sidecars: the sidecars of all shards.
        num_rejects: number of rejected images, including those that the listing rejected.
        dropped: images dropped as duplicates or because of their patient, one row each.

    Raises:
        errors.BuildError: if the numbers do not add up to the files seen.
    """
    num_examples = sum(sidecar.num_examples for sidecar in sidecars)
    num_variants = _count_variants(build.storage) if build.num_variants else 0
    counts = {
        "files": build.num_files,
        "examples": num_examples,
        # Variants are examples, but not files of the source.
        **({"variants": num_variants} if build.num_variants else {}),
        "rejects": num_rejects,
        "copies": build.copies,
        "over_limit": build.over_limit,
        "dropped": dict(sorted(collections.Counter(dropped["reason"].to_pylist()).items())),
        "ignored": dict(build.ignored),
    }
    accounted = (
        num_examples
        - num_variants
        + num_rejects
        + build.copies
        + build.over_limit
        + dropped.num_rows
        + sum(build.ignored.values())
    )
    if accounted != build.num_files:
        raise errors.BuildError(
            f"the source has {build.num_files:,} files, but {accounted:,} are accounted for: "
            f"{counts}; no manifest was written; this is a bug, please report it"
        )
    return counts


def judge_rejects(
    build: Build, tasks: Sequence[plan.ShardTask], rejects: Sequence[RejectedFile]
) -> str | None:
    """Returns why the dataset has too many rejects, or None if it has not.

    Args:
        build: the whole build.
        tasks: all tasks.
        rejects: all rejected images, including those that the listing rejected.
    """
    table = build.storage.path(manifest.REJECTS_FILE_NAME)
    num_planned = sum(task.num_refs for task in tasks) - build.num_variants
    num_listed = len(build.rejected_files)
    num_images = num_planned + num_listed
    if len(rejects) == num_images:
        return f"all {num_images:,} images were rejected; {table} gives the reasons"
    # The listing rejects files of the whole source, but with --limit only a sample of the other
    # files is decoded. So the rejects of the sample are scaled up to all of them.
    weight = Fraction(num_planned + build.over_limit, num_planned or 1)
    num_expected = num_listed + weight * (len(rejects) - num_listed)
    num_all = num_images + build.over_limit
    # The exact decimal number: the binary 0.29 is slightly smaller, so 29 of 100 would be too many.
    allowed = Fraction(repr(build.max_reject_fraction))
    if num_expected <= allowed * num_all:
        return None
    reasons = collections.Counter(reject.reason for reject in rejects).most_common()
    sampled = f" of all {num_all:,}, by this sample" if build.over_limit else ""
    return (
        f"{len(rejects):,} of {num_images:,} images were rejected "
        f"({float(num_expected / num_all):.2%}{sampled}, allowed {float(allowed):.2%}): "
        + ", ".join(f"{count:,} {reason}" for reason, count in reasons)
        + f". See {table}; to accept them, run again with a larger --max_reject_fraction"
    )


def judge_classes(
    build: Build, tasks: Sequence[plan.ShardTask], sidecars: Sequence[Sidecar]
) -> str | None:
    """Returns why the dataset is unusable if all images of a class were rejected, else None.

    Such a folder either is not a class at all, or all of its files are damaged.

    Args:
        build: the whole build.
        tasks: all tasks.
        sidecars: the sidecars of their shards, in the same order.
    """
    counts = [sum(column) for column in zip(*(s.label_counts for s in sidecars), strict=True)]
    without = {name for name, count in zip(build.label_names, counts, strict=True) if not count}
    if not without:
        return None
    rejected = {reject.source_path for sidecar in sidecars for reject in sidecar.rejects}
    lost: dict[str, str] = {}
    with build.storage.open_arrow(plan.PLAN_FILE) as file:
        for task in tasks:
            for ref in iterate_refs(plan.read_task_refs(file, task, build.fingerprint)):
                for name in without.intersection(build.label_kind.names_in(ref.label)):
                    if ref.image_name not in rejected:
                        without.discard(name)  # dropped as a duplicate
                    else:
                        lost[name] = ref.image_name
    lost = {name: path for name, path in sorted(lost.items()) if name in without}
    if not lost:
        return None
    name, path = next(iter(lost.items()))
    rest = ",".join(label for label in build.label_names if label not in lost)
    table = build.storage.path(manifest.REJECTS_FILE_NAME)
    if not build.label_kind.one_hot:
        return (
            f"no image with the label {name!r} is left: all its files were rejected, such as "
            f"{path} ({table} lists them). Repair the files, or leave the label out of "
            "--label_columns"
        )
    return (
        f"{build.label_kind.noun} {name!r} has no image left: all its files were rejected, such as "
        f"{path} ({table} lists them). Repair the files; or, if that folder is not a "
        f"{build.label_kind.noun}, run again with {build.label_kind.flag}={rest} --overwrite"
    )


def judge_drops(build: Build, counts: Mapping[str, Any]) -> str | None:
    """Returns why the dataset is unusable if no image was left over, else None.

    Args:
        build: the whole build.
        counts: the number of files by what became of them, see `check_ledger`.
    """
    if counts["examples"]:
        return None
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts["dropped"].items())
    table = build.storage.path(manifest.DROPPED_FILE_NAME)
    return (
        f"no image is left: {reasons} were dropped ({table} lists them). Correct the labels, or "
        "choose --duplicates keep with --overwrite"
    )


def require_unique_keys(storage: Storage) -> None:
    """Refuses a dataset that holds an image twice, which the shards' counts cannot show.

    Args:
        storage: the output folder, with its examples table.

    Raises:
        errors.BuildError: if two examples have the same key.
    """
    with storage.open_arrow(manifest.EXAMPLES_FILE_NAME) as file:
        rows = pq.read_table(file, columns=["key"])
    repeated = len(rows) - pc.count_distinct(rows["key"]).as_py()
    if repeated:
        raise errors.BuildError(
            f"{repeated:,} of {len(rows):,} examples in {storage.root} repeat the key of another "
            "example: the shards come from different plans. Delete the folder and build "
            "again"
        )


def _count_variants(storage: Storage) -> int:
    with storage.open_arrow(manifest.EXAMPLES_FILE_NAME) as file:
        variants = pq.read_table(file, columns=["variant"])["variant"]
    return pc.sum(pc.greater(variants, 0)).as_py() or 0

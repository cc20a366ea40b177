"""The ledger: what became of every file, and whether the dataset may be used.

`Listing` has checked the sum for the files that it listed; `tfrecord_io.verify` checks it again,
from the files of a finished dataset.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import io
from collections.abc import Iterable, Sequence
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
from pipelines.stores import output_state
from pipelines.stores.output import Storage
from tfrecord_io import manifest
from tfrecord_io.printing import csv_cell

# Options with which some reasons go away.
_HINTS = {
    "more_than_8_bits": "; --dtype uint16 keeps grey of 16 bits",
    "transparency": "; --background black or white shows transparent pictures",
    "out_of_range": "; --rescale chooses another range",
}


def list_rejects(
    build: Build, tasks: Sequence[plan.ShardTask], sidecars: Sequence[Sidecar] = ()
) -> list[RejectedFile]:
    """Returns all rejected images, and writes them to rejects.csv.

    Without the sidecars of the tasks, only the listing's rejects are known.

    Raises:
        errors.RefusedError: if there are too many.
    """
    rejects = [*build.rejected_files, *(r for sidecar in sidecars for r in sidecar.rejects)]
    rejects.sort(key=lambda reject: (reject.source_path, reject.reason))
    write_reasons(build.storage, manifest.REJECTS_FILE_NAME, map(dataclasses.astuple, rejects))
    table = build.storage.path(manifest.REJECTS_FILE_NAME)
    num_planned = sum(task.num_refs for task in tasks) - build.num_variants
    num_listed = len(build.rejected_files)
    num_images = num_planned + num_listed
    reasons = collections.Counter(reject.reason for reject in rejects)
    told = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
    hints = "".join(hint for reason, hint in _HINTS.items() if reasons[reason])
    if len(rejects) == num_images:
        raise errors.RefusedError(
            f"all {num_images:,} images were rejected: {told}{hints}. See {table}"
        )
    # The listing rejects files of the whole source, but with --limit only a sample of the other
    # files is decoded. So the rejects of the sample are scaled up to all of them.
    weight = Fraction(num_planned + build.over_limit, num_planned or 1)
    num_expected = num_listed + weight * (len(rejects) - num_listed)
    num_all = num_images + build.over_limit
    # The exact decimal number: the binary 0.29 is slightly smaller, so 29 of 100 would be too many.
    allowed = Fraction(repr(build.max_reject_fraction))
    if num_expected > allowed * num_all:
        sampled = f" of all {num_all:,}, by this sample" if build.over_limit else ""
        raise errors.RefusedError(
            f"{len(rejects):,} of {num_images:,} images were rejected "
            f"({float(num_expected / num_all):.2%}{sampled}, allowed {float(allowed):.2%}): "
            f"{told}{hints}. See {table}; to accept them, run again with a larger "
            "--max_reject_fraction"
        )
    return rejects


def write_reasons(storage: Storage, name: str, rows: Iterable[Sequence[str]]) -> None:
    """Writes a table of the images that are not in the dataset: path, reason, detail."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["path", "reason", "detail"])
    writer.writerows(map(csv_cell, row) for row in rows)
    storage.write(name, text.getvalue().encode())


def require_classes(
    build: Build, tasks: Sequence[plan.ShardTask], sidecars: Sequence[Sidecar]
) -> None:
    """Refuses a dataset in which all images of a class were rejected.

    Such a folder either is not a class at all, or all of its files are damaged.

    Raises:
        errors.RefusedError: naming the class and one of its files.
    """
    counts = [sum(column) for column in zip(*(s.label_counts for s in sidecars), strict=True)]
    without = {name for name, count in zip(build.label_names, counts, strict=True) if not count}
    if not without:
        return
    rejected = {reject.source_path for sidecar in sidecars for reject in sidecar.rejects}
    lost: dict[str, str] = {}
    with build.storage.open_arrow(output_state.PLAN_FILE) as file:
        for task in tasks:
            for ref in iterate_refs(plan.read_task_refs(file, task, build.fingerprint)):
                for name in without.intersection(build.label_kind.names_in(ref.label)):
                    if ref.image_name in rejected:
                        lost[name] = ref.image_name
                    else:
                        without.discard(name)  # its images were dropped as duplicates
    lost = {name: lost[name] for name in sorted(without & lost.keys())}
    if not lost:
        return
    kind, (name, path) = build.label_kind, next(iter(lost.items()))
    table = build.storage.path(manifest.REJECTS_FILE_NAME)
    files = f"all its files were rejected, such as {path} ({table} lists them). Repair the files"
    if not kind.one_hot:
        raise errors.RefusedError(
            f"no image with the label {name!r} is left: {files}, or leave the label out of "
            "--label_columns"
        )
    rest = ",".join(label for label in build.label_names if label not in lost)
    raise errors.RefusedError(
        f"{kind.noun} {name!r} has no image left: {files}; or, if that folder is not a "
        f"{kind.noun}, run again with {kind.flag}={rest} --overwrite"
    )


def require_unique_keys(storage: Storage) -> None:
    """Refuses a dataset that holds an image twice, which the shards' counts cannot show.

    Raises:
        errors.BuildError: if two rows of the examples table have the same key.
    """
    keys = _read_column(storage, "key")
    repeated = len(keys) - pc.count_distinct(keys).as_py()
    if repeated:
        raise errors.BuildError(
            f"{repeated:,} of {len(keys):,} examples in {storage.root} repeat the key of another "
            "example: the shards come from different plans. Delete the folder and build again"
        )


def count_files(
    build: Build, sidecars: Sequence[Sidecar], num_rejects: int, dropped: pa.Table
) -> dict[str, Any]:
    """Returns the number of files seen, and their number by what became of them.

    `dropped` are the images that a policy left out, one row each.

    Raises:
        errors.BuildError: if the numbers do not add up to the files seen.
        errors.RefusedError: if no example is left.
    """
    # Variants are examples, but not files of the source.
    variants = {}
    if build.num_variants:
        is_variant = pc.greater(_read_column(build.storage, "variant"), 0)
        variants = {"variants": pc.sum(is_variant).as_py() or 0}
    counts = {
        "files": build.num_files,
        "examples": sum(sidecar.num_examples for sidecar in sidecars),
        **variants,
        "rejects": num_rejects,
        "copies": build.copies,
        "over_limit": build.over_limit,
        "dropped": dict(sorted(collections.Counter(dropped["reason"].to_pylist()).items())),
        "ignored": dict(build.ignored),
    }
    accounted = sum(counts[name] for name in ("examples", "rejects", "copies", "over_limit"))
    accounted += dropped.num_rows + sum(build.ignored.values()) - sum(variants.values())
    if accounted != build.num_files:
        raise errors.BuildError(
            f"the source has {build.num_files:,} files, but {accounted:,} are accounted for: "
            f"{counts}; no manifest was written; this is a bug, please report it"
        )
    if not counts["examples"]:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts["dropped"].items())
        raise errors.RefusedError(
            f"no image is left: {reasons} were dropped "
            f"({build.storage.path(manifest.DROPPED_FILE_NAME)} lists them). Correct the labels, "
            "or choose --duplicates keep with --overwrite"
        )
    return counts


def _read_column(storage: Storage, name: str) -> pa.ChunkedArray:
    with storage.open_arrow(manifest.EXAMPLES_FILE_NAME) as file:
        return pq.read_table(file, columns=[name])[name]

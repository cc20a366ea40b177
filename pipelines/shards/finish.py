"""Finishes a dataset, in one straight line.

What became of every file is counted, duplicates are cut out of the shards, the images are audited,
and the tables, the report and last the manifest are written. `Listing` has checked the sum of the
files that it listed; `tfrecord_io.verify` checks it again, from the files of a finished dataset.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import functools
import importlib.metadata
import io
import json
import operator
import platform
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines import errors
from pipelines.listing.refs import RejectedFile, iterate_refs
from pipelines.planning.plan import ShardTask, read_task_refs, read_tasks
from pipelines.shards import drops
from pipelines.shards.build import Build, Sidecar, Work
from pipelines.shards.write import EXAMPLE_SCHEMA
from pipelines.stores.output import BUILD_DIR, Storage
from pipelines.stores.output_state import PLAN_FILE
from tfrecord_io import croissant, groups, manifest, tfds_metadata
from tfrecord_io.auditing import audit
from tfrecord_io.printing import csv_cell
from tfrecord_io.statistics import PixelStatistics

#: Holds the reason why the dataset was refused.
FAILURE_FILE = f"{BUILD_DIR}/failure.json"

# Options with which some reasons go away.
_HINTS = {
    "more_than_8_bits": "; --dtype uint16 keeps grey of 16 bits",
    "transparency": "; --background black or white shows transparent pictures",
    "out_of_range": "; --rescale chooses another range",
}


def finish_dataset(work: Work) -> None:
    """Writes the tables, the card and last the manifest, which marks the dataset complete.

    If too many images were rejected or a policy is violated, the reason is written to
    `FAILURE_FILE`, with the tables made so far, but no manifest. That is not raised as an error,
    because an engine would retry the step.

    Raises:
        errors.BuildError: if a shard is missing, a file is unaccounted for, or the output cannot
            be written.
    """
    storage = work.storage
    with work.clear_errors():
        tasks = read_tasks(storage, work.draft.fingerprint)
        try:
            made = work.describe(work, tasks, work.require_sidecars(tasks))
        except errors.RefusedError as refusal:
            storage.write(FAILURE_FILE, json.dumps({"message": str(refusal)}).encode())
            return
        for name, text in tfds_metadata.describe(made).items():
            storage.write(name, text.encode())
        with storage.open_arrow(manifest.EXAMPLES_FILE_NAME) as examples:
            storage.write(croissant.FILE_NAME, croissant.describe(made, examples).encode())
        storage.write(manifest.FILE_NAME, made.to_json().encode())


def describe_images(
    build: Build, tasks: Sequence[ShardTask], sidecars: Sequence[Sidecar]
) -> manifest.Manifest:
    """Counts what became of every file, audits the images, and writes the tables and the card.

    The counts come from files, not from an engine's counters.

    Raises:
        errors.RefusedError: if too many images were rejected or a policy is violated.
        errors.BuildError: if an image is there twice, or a file is unaccounted for.
    """
    # Imported here because a launcher that starts the job on a cluster does not render the card.
    from pipelines.report import card

    storage = build.storage
    rejects = list_rejects(build, tasks, sidecars)
    _require_classes(build, tasks, sidecars)
    _join_examples(build, tasks)
    _require_unique_keys(storage)
    dropped = drops.leave_out(build, tasks, sidecars)
    if dropped.num_rows:
        sidecars = build.require_sidecars(tasks)
        _join_examples(build, tasks)
        rows = (tuple(row.values()) for row in dropped.to_pylist())
        _write_reasons(storage, manifest.DROPPED_FILE_NAME, rows)
    made = _make_manifest(build, tasks, sidecars, rejects, dropped)
    examples, same, images = build.read_pictures()
    result = audit.audit_examples(examples, same, made)
    made = dataclasses.replace(made, audit={**made.audit, **result.to_dict()})
    page = card.render(made, result, examples, images, rejects, dropped)
    storage.write(manifest.REPORT_FILE_NAME, page.encode())
    _join_examples(build, tasks, _group(storage, same.pairs))
    drops.require_policies(storage, made, build.policies)
    return made


def list_rejects(
    build: Build, tasks: Sequence[ShardTask], sidecars: Sequence[Sidecar] = ()
) -> list[RejectedFile]:
    """Returns all rejected images, and writes them to rejects.csv.

    Without the sidecars of the tasks, only the listing's rejects are known.

    Raises:
        errors.RefusedError: if there are too many.
    """
    rejects = [*build.rejected_files, *(r for sidecar in sidecars for r in sidecar.rejects)]
    rejects.sort(key=lambda reject: (reject.source_path, reject.reason))
    rows = map(dataclasses.astuple, rejects)
    _write_reasons(build.storage, manifest.REJECTS_FILE_NAME, rows)
    table = build.storage.path(manifest.REJECTS_FILE_NAME)
    counts, over_limit = build.draft.counts, build.draft.counts["over_limit"]
    num_planned = sum(task.num_refs for task in tasks) - counts.get("variants", 0)
    num_listed = len(build.rejected_files)
    num_images = num_planned + num_listed
    reasons = collections.Counter(reject.reason for reject in rejects)
    told = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
    told += "".join(hint for reason, hint in _HINTS.items() if reasons[reason])
    if len(rejects) == num_images:
        raise errors.RefusedError(f"all {num_images:,} images were rejected: {told}. See {table}")
    # The listing rejects files of the whole source, but with --limit only a sample of the other
    # files is decoded. So the rejects of the sample are scaled up to all of them.
    weight = Fraction(num_planned + over_limit, num_planned or 1)
    num_expected = num_listed + weight * (len(rejects) - num_listed)
    num_all = num_images + over_limit
    # The exact decimal number: the binary 0.29 is slightly smaller, so 29 of 100 would be too many.
    allowed = Fraction(repr(build.max_reject_fraction))
    if num_expected > allowed * num_all:
        sampled = f" of all {num_all:,}, by this sample" if over_limit else ""
        raise errors.RefusedError(
            f"{len(rejects):,} of {num_images:,} images were rejected "
            f"({float(num_expected / num_all):.2%}{sampled}, allowed {float(allowed):.2%}): "
            f"{told}. See {table}; to accept them, run again with a larger --max_reject_fraction"
        )
    return rejects


def _write_reasons(storage: Storage, name: str, rows: Iterable[Sequence[str]]) -> None:
    """Writes a table of the images that are not in the dataset: path, reason, detail."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows([["path", "reason", "detail"], *(map(csv_cell, r) for r in rows)])
    storage.write(name, text.getvalue().encode())


def _require_classes(build: Build, tasks: Sequence[ShardTask], sidecars: Sequence[Sidecar]) -> None:
    """Refuses a dataset in which all images of a class were rejected.

    Such a folder either is not a class at all, or all of its files are damaged.
    """
    kind, labels = build.draft.label_kind, build.draft.label_names
    counts = np.sum([sidecar.label_counts for sidecar in sidecars], axis=0)
    without = {name for name, count in zip(labels, counts, strict=True) if not count}
    if not without:
        return
    paths: dict[str, set[str]] = {}
    with build.storage.open_arrow(PLAN_FILE) as file:
        for task in tasks:
            for ref in iterate_refs(read_task_refs(file, task, build.draft.fingerprint)):
                for name in without.intersection(kind.names_in(ref.label)):
                    paths.setdefault(name, set()).add(ref.image_name)
    rejected = {reject.source_path for sidecar in sidecars for reject in sidecar.rejects}
    # The images of a class without an example may also have been dropped as duplicates.
    lost = {name: min(paths[name]) for name in sorted(paths) if paths[name] <= rejected}
    if not lost:
        return
    name, path = next(iter(lost.items()))
    table = build.storage.path(manifest.REJECTS_FILE_NAME)
    files = f"all its files were rejected, such as {path} ({table} lists them). Repair the files"
    if not kind.one_hot:
        raise errors.RefusedError(
            f"no image with the label {name!r} is left: {files}, or leave the label out of "
            "--label_columns"
        )
    rest = ",".join(label for label in labels if label not in lost)
    raise errors.RefusedError(
        f"{kind.noun} {name!r} has no image left: {files}; or, if that folder is not a "
        f"{kind.noun}, run again with {kind.flag}={rest} --overwrite"
    )


def _join_examples(
    build: Build, tasks: Sequence[ShardTask], grouped: groups.Groups | None = None
) -> None:
    """Joins the shards' rows into one table, one row group per shard, one shard in memory.

    `grouped` are the groups of all rows, for the last column; None for a table without it.
    """
    # A table of labels adds columns to `EXAMPLE_SCHEMA`.
    first = schema = build.read_rows(tasks[0]).schema
    if grouped is not None:
        schema = schema.append(pa.field(groups.COLUMN, pa.string()))
    start = 0
    with (
        build.storage.create(manifest.EXAMPLES_FILE_NAME) as file,
        pq.ParquetWriter(file, schema) as writer,
    ):
        for rows in build.storage.map(build.read_rows, tasks):
            if rows.schema != first or not set(EXAMPLE_SCHEMA.names) <= set(first.names):
                raise errors.BuildError(
                    f"another version of this program began {build.output}; start again with "
                    "--overwrite"
                )
            columns = rows.columns
            if grouped is not None:
                columns.append(grouped.names.slice(start, len(rows)).cast(pa.string()))
                start += len(rows)
            writer.write_table(pa.table(columns, schema))


def _require_unique_keys(storage: Storage) -> None:
    """Refuses a dataset that holds an image twice, which the shards' counts cannot show."""
    with storage.open_arrow(manifest.EXAMPLES_FILE_NAME) as file:
        keys = pq.read_table(file, columns=["key"])["key"]
    repeated = len(keys) - pc.count_distinct(keys).as_py()
    if repeated:
        raise errors.BuildError(
            f"{repeated:,} of {len(keys):,} examples in {storage.root} repeat the key of another "
            "example: the shards come from different plans. Delete the folder and build again"
        )


def _group(storage: Storage, copies: np.ndarray) -> groups.Groups:
    """Returns the groups of all rows of the examples table.

    `copies`, int64 [num_pairs, 2], are rows of the same picture, augmented copies not counted.
    """
    with storage.open_arrow(manifest.EXAMPLES_FILE_NAME) as file:
        parquet = pq.ParquetFile(file)
        names = [name for name in parquet.schema_arrow.names if name in groups.INPUTS]
        table = parquet.read(columns=[*names, "variant"])
    originals = np.flatnonzero(table["variant"].to_numpy() == 0)
    return groups.group_images(table, originals[copies])


def _make_manifest(
    build: Build,
    tasks: Sequence[ShardTask],
    sidecars: Sequence[Sidecar],
    rejects: Sequence[RejectedFile],
    dropped: pa.Table,
) -> manifest.Manifest:
    """Completes the draft by what was written, except for the audit.

    Raises:
        errors.BuildError: if the numbers of files do not add up to those that the listing saw.
        errors.RefusedError: if no example is left.
    """
    planned, storage = build.draft.counts, build.storage
    variants = {}
    if "variants" in planned:
        with storage.open_arrow(manifest.EXAMPLES_FILE_NAME) as file:
            column = pq.read_table(file, columns=["variant"])["variant"].to_numpy()
        variants = {"variants": int(np.count_nonzero(column))}
    counts = {
        "files": planned["files"],
        "examples": sum(sidecar.num_examples for sidecar in sidecars),
        **variants,
        "rejects": len(rejects),
        "copies": planned["copies"],
        "over_limit": planned["over_limit"],
        "dropped": dict(sorted(collections.Counter(dropped["reason"].to_pylist()).items())),
        "ignored": planned["ignored"],
    }
    made = dataclasses.replace(
        build.with_shards(tasks, sidecars),
        counts=counts,
        rejects=dict(sorted(collections.Counter(r.reason for r in rejects).items())),
        versions={
            "python": platform.python_version(),
            "apache_beam": importlib.metadata.version("apache-beam"),
            "pyarrow": pa.__version__,
            **build.draft.versions,
        },
        statistics=_statistics(build, tasks, sidecars),
    )
    accounted = sum(count for _, count in made.ledger)
    if accounted != counts["files"]:
        raise errors.BuildError(
            f"the source has {counts['files']:,} files, but {accounted:,} are accounted for: "
            f"{counts}; no manifest was written; this is a bug, please report it"
        )
    if not counts["examples"]:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts["dropped"].items())
        raise errors.RefusedError(
            f"no image is left: {reasons} were dropped "
            f"({storage.path(manifest.DROPPED_FILE_NAME)} lists them). Correct the labels, or "
            "choose --duplicates keep with --overwrite"
        )
    return made


def _statistics(
    build: Build, tasks: Sequence[ShardTask], sidecars: Sequence[Sidecar]
) -> PixelStatistics | None:
    """Returns the sums over the pixels of the train split, or None if it holds no example."""

    def of_shard(sidecar: Sidecar) -> PixelStatistics:
        if sidecar.statistics is not None:
            return sidecar.statistics
        with build.storage.open_arrow(sidecar.shard) as file:
            return PixelStatistics.from_shard(file, build.draft.layout)

    pairs = zip(tasks, sidecars, strict=True)
    counted = [sidecar for task, sidecar in pairs if task.split == manifest.STATISTICS_SPLIT]
    if not any(sidecar.num_examples for sidecar in counted):
        return None
    return functools.reduce(operator.add, build.storage.map(of_shard, counted))

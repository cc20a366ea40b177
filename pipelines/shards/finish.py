"""Finishes a dataset, in one straight line.

Images that are to be dropped are cut out of the shards, every file is counted, the images are
audited, and the tables, the report and last the manifest are written.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib.metadata
import itertools
import json
import operator
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines import errors
from pipelines.listing.refs import RejectedFile
from pipelines.planning import plan
from pipelines.shards import drops, ledger
from pipelines.shards.build import Build
from pipelines.shards.sidecar import Sidecar, require_sidecars
from pipelines.shards.write import EXAMPLE_SCHEMA
from pipelines.stores.output import BUILD_DIR, Storage
from tfrecord_io import croissant, groups, manifest, tfds_metadata
from tfrecord_io.auditing import audit
from tfrecord_io.statistics import PixelStatistics

#: Holds the reason why the dataset was refused.
FAILURE_FILE = f"{BUILD_DIR}/failure.json"


def finish_dataset(build: Build) -> None:
    """Counts what became of every file, audits, and writes the tables, the card and the manifest.

    The counts come from files, not from an engine's counters. If too many images were rejected or
    a policy is violated, the reason is written to `FAILURE_FILE`, with the tables made so far, but
    no manifest. That is not raised as an error, because an engine would retry the step.

    Raises:
        errors.BuildError: if a shard is missing, a file is unaccounted for, or the output cannot
            be written.
    """
    with build.clear_errors():
        try:
            _finish(build)
        except errors.RefusedError as refusal:
            content = json.dumps({"message": str(refusal)})
            build.storage.write(FAILURE_FILE, content.encode())


def _finish(build: Build) -> None:
    tasks = plan.read_tasks(build.storage, build.fingerprint)
    sidecars = require_sidecars(build, tasks)
    rejects = ledger.list_rejects(build, tasks, sidecars)
    ledger.require_classes(build, tasks, sidecars)
    _join_examples(build, tasks)
    ledger.require_unique_keys(build.storage)
    dropped = drops.leave_out(build, tasks, sidecars)
    if dropped.num_rows:
        sidecars = require_sidecars(build, tasks)
        _join_examples(build, tasks)
        rows = (tuple(row.values()) for row in dropped.to_pylist())
        ledger.write_reasons(build.storage, manifest.DROPPED_FILE_NAME, rows)
    counts = ledger.count_files(build, sidecars, len(rejects), dropped)
    made = _make_manifest(build, tasks, sidecars, counts, rejects)
    made, copies = _audit_and_report(build, made, rejects, dropped)
    _join_examples(build, tasks, _group(build, copies))
    drops.require_policies(build.storage, made, build.policies)
    publish(build.storage, made)


def _join_examples(
    build: Build, tasks: Sequence[plan.ShardTask], grouped: groups.Groups | None = None
) -> None:
    """Joins the shards' rows into one table, one row group per shard, one shard in memory.

    `grouped` are the groups of all rows, for the last column; None for a table without it.
    """
    start = 0

    def with_groups(rows: pa.Table) -> pa.Table:
        nonlocal start
        if grouped is None:
            return rows
        names = grouped.names.slice(start, len(rows)).cast(pa.string())
        start += len(rows)
        return rows.append_column(groups.COLUMN, names)

    parts = map(with_groups, build.storage.map(build.read_rows, tasks))
    # All parts have the same columns; a table of labels adds some to `EXAMPLE_SCHEMA`.
    first = next(parts, EXAMPLE_SCHEMA.empty_table())
    with (
        build.storage.create(manifest.EXAMPLES_FILE_NAME) as file,
        pq.ParquetWriter(file, first.schema) as writer,
    ):
        for rows in itertools.chain([first], parts):
            writer.write_table(rows)


def _group(build: Build, copies: np.ndarray) -> groups.Groups:
    """Returns the groups of all rows of the examples table.

    `copies`, int64 [num_pairs, 2], are rows of the same picture, augmented copies not counted.
    """
    with build.storage.open_arrow(manifest.EXAMPLES_FILE_NAME) as file:
        parquet = pq.ParquetFile(file)
        names = [name for name in parquet.schema_arrow.names if name in groups.INPUTS]
        table = parquet.read(columns=[*names, "variant"])
    originals = np.flatnonzero(table["variant"].to_numpy() == 0)
    return groups.group_images(table, originals[copies])


def _audit_and_report(
    build: Build,
    made: manifest.Manifest,
    rejects: Sequence[RejectedFile],
    dropped: pa.Table,
) -> tuple[manifest.Manifest, np.ndarray]:
    """Writes the dataset's card.

    Returns:
        the manifest with the audit in it, and rows of the same picture, see `Twins.pairs`.
    """
    # Imported here because a launcher that starts the job on a cluster does not render the card.
    from pipelines.report import card

    with build.open_pictures() as (examples, same, images):
        result = audit.audit_examples(examples, same, made)
        content = {"notes": list(build.notes), **result.to_dict()}
        made = dataclasses.replace(made, audit=content)
        page = card.render(made, result, examples, images, rejects, dropped)
    build.storage.write(manifest.REPORT_FILE_NAME, page.encode())
    return made, same.pairs


def publish(storage: Storage, made: manifest.Manifest) -> None:
    """Writes the files that describe the dataset; the manifest comes last and marks it complete."""
    for name, text in tfds_metadata.describe(made).items():
        storage.write(name, text.encode())
    with storage.open_arrow(manifest.EXAMPLES_FILE_NAME) as examples:
        storage.write(croissant.FILE_NAME, croissant.describe(made, examples).encode())
    storage.write(manifest.FILE_NAME, made.to_json().encode())


def _make_manifest(
    build: Build,
    tasks: Sequence[plan.ShardTask],
    sidecars: Sequence[Sidecar],
    counts: Mapping[str, Any],
    rejects: Sequence[RejectedFile],
) -> manifest.Manifest:
    by_split: dict[str, list[Sidecar]] = {}
    for task, sidecar in zip(tasks, sidecars, strict=True):
        by_split.setdefault(task.split, []).append(sidecar)
    return manifest.Manifest(
        name=build.name,
        image_shape=build.preprocessing.image_shape,
        label_names=build.label_names,
        splits={
            split: manifest.Split(
                label_counts=tuple(map(sum, zip(*(s.label_counts for s in members), strict=True))),
                shards=tuple(member.to_shard() for member in members),
            )
            for split, members in by_split.items()
        },
        preprocessing=build.preprocessing.to_dict(),
        source=build.source_facts,
        counts=counts,
        rejects=dict(sorted(collections.Counter(r.reason for r in rejects).items())),
        options=build.identity,
        fingerprint=build.fingerprint,
        versions={
            "python": platform.python_version(),
            "apache_beam": importlib.metadata.version("apache-beam"),
            "pyarrow": pa.__version__,
            **build.identity["decoder"],
        },
        statistics=_statistics(build, by_split.get(manifest.STATISTICS_SPLIT, [])),
        dtype=build.preprocessing.dtype,
        label_kind=build.label_kind,
    )


def _statistics(build: Build, sidecars: Sequence[Sidecar]) -> PixelStatistics | None:
    """Returns the sums over the pixels of these shards, or None if they hold no example."""
    if not any(sidecar.num_examples for sidecar in sidecars):
        return None
    counted = build.storage.map(functools.partial(_shard_statistics, build), sidecars)
    return functools.reduce(operator.add, counted)


def _shard_statistics(build: Build, sidecar: Sidecar) -> PixelStatistics:
    if sidecar.statistics is not None:
        return sidecar.statistics
    with build.storage.open_arrow(sidecar.shard) as file:
        return PixelStatistics.from_shard(file, build.layout)

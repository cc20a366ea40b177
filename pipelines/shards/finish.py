"""Finishes a dataset, in one straight line.

What became of every file is counted, the images are audited, and the tables, the report and last
the manifest are written. The listing has checked that each file is counted once;
`tfrecord_io.auditing.verify` checks that again, from the finished dataset.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import functools
import hashlib
import importlib.metadata
import io
import operator
import platform
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines import errors
from pipelines.listing.refs import RejectedFile
from pipelines.planning.plan import ShardTask, read_tasks
from pipelines.shards.build import Build, Sidecar
from pipelines.stores import output_folder
from pipelines.stores.output_folder import FAILURE_FILE, PLAN_JSON
from tfrecord_io.auditing import audit, twins
from tfrecord_io.format import descriptions, groups, manifest
from tfrecord_io.format.examples import (
    FILE_NAME,
    GROUP,
    SCHEMA,
    audited,
)
from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal.printing import csv_cell

# Reasons whose details say what to do.
_SHOWN_BY_EXAMPLE = {"link", "no_label", "not_an_image", "unreadable_member"}


def finish_dataset(build: Build) -> None:
    """Writes the tables, the card and last the manifest, which marks the dataset complete.

    Then the dataset takes the place of the one that it replaces, if there is one.

    If too many images were rejected, the reason is written to `FAILURE_FILE`, with the tables made
    so far, but no manifest. That is not raised as an error, because an engine would retry the step.

    Raises:
        errors.BuildError: if a shard is missing, a file is unaccounted for, or the output cannot
            be written.
    """
    storage = build.output
    with errors.clear_write_errors(storage.root):
        if build.replaces:
            # An engine may repeat this step after its end, or after a kill in the middle of it.
            output_folder.finish_replacing(build.replaces)
            if not storage.exists(PLAN_JSON):
                return
        tasks = read_tasks(storage, build.draft.fingerprint)
        finished = build.find_finished(tasks)
        if lost := [task.shard_name for task in tasks if task.index not in finished]:
            raise errors.BuildError(
                f"{storage.path(lost[0])} was written, but is missing or does not match its "
                "sidecar; run the same command to write it again"
            )
        try:
            made = describe_images(build, tasks, [finished[task.index] for task in tasks])
        except errors.RefusedError as refusal:
            storage.write(FAILURE_FILE, str(refusal).encode())
            return
        for name, text in descriptions.for_tfds(made).items():
            storage.write(name, text.encode())
        digest = hashlib.sha256(storage.read(FILE_NAME)).hexdigest()
        made = dataclasses.replace(made, tables={FILE_NAME: digest})
        storage.write(manifest.FILE_NAME, made.to_json().encode())
        if build.replaces:
            output_folder.take_place(build.replaces)


def require_finished(build: Build) -> None:
    """Raises an `errors.BuildError` if a dataset was refused, or its manifest is missing."""
    output, replaces = build.output, build.replaces
    if output.exists(FAILURE_FILE):
        reason = output.read(FAILURE_FILE).decode()
        kept = f". What {replaces} held is as it was" if replaces else ""
        raise errors.BuildError(f"{reason}{kept}")
    if output.exists(PLAN_JSON) if replaces else not output.exists(manifest.FILE_NAME):
        raise errors.BuildError(
            f"the engine reports that the job is done, but {output.path(manifest.FILE_NAME)} is "
            "missing; run the same command again to resume"
        )


def describe_images(
    build: Build, tasks: Sequence[ShardTask], sidecars: Sequence[Sidecar]
) -> manifest.Manifest:
    """Counts what became of every file, audits the images, and writes the tables and the card.

    The counts come from files, not from an engine's counters.

    Raises:
        errors.RefusedError: if too many images were rejected.
        errors.BuildError: if an image is there twice, or a file is unaccounted for.
    """
    # Imported here because a launcher that starts the job on a cluster does not render the card.
    from pipelines.report import card

    storage = build.output
    rejects = list_rejects(build, tasks, sidecars)
    _require_classes(build, sidecars)
    parts = _read_rows(build, tasks)
    rows = pa.concat_tables(parts)
    originals = np.flatnonzero(pc.equal(rows["variant"], 0))
    num_variants = rows.num_rows - len(originals)
    made = _make_manifest(build, tasks, sidecars, rejects, num_variants)
    examples, images = audited(rows), twins.ImageReader(made.layout, storage)
    same = twins.find_twins(examples, images, build.draft)
    result = audit.audit_examples(examples, same, made)
    made = dataclasses.replace(made, audit={**made.audit, **result.to_dict()})
    page = card.render(made, result, examples, images, rejects)
    storage.write(manifest.REPORT_FILE_NAME, page.encode())
    names = groups.group_images(rows, originals[same.pairs]).names.cast(GROUP.type)
    schema, start = parts[0].schema.remove_metadata().append(GROUP), 0
    with storage.create(FILE_NAME) as file, pq.ParquetWriter(file, schema) as writer:
        for part in parts:  # one row group a shard
            of_part = names.slice(start, len(part))
            writer.write_table(pa.table([*part.columns, of_part], schema))
            start += len(part)
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
    _write_reasons(build.output, manifest.REJECTS_FILE_NAME, rows)
    see = f". See {build.output.path(manifest.REJECTS_FILE_NAME)}"
    counts, num_listed = build.draft.counts, len(build.rejected_files)
    num_planned = sum(task.num_refs for task in tasks) - counts.get("variants", 0)
    num_images, over_limit = num_planned + num_listed, counts["over_limit"]
    reasons = collections.Counter(reject.reason for reject in rejects)
    why = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
    if "transparency" in reasons:
        why += "; --background black or white shows transparent pictures"
    for reason in sorted(_SHOWN_BY_EXAMPLE & reasons.keys()):
        details = [reject.detail for reject in rejects if reject.reason == reason]
        why += f"; {reason}: {max(details, key=details.count)}" if any(details) else ""
    if len(rejects) == num_images:
        raise errors.RefusedError(f"all {num_images:,} images were rejected: {why}{see}")
    # The listing rejects files of the whole source, but with --limit only a sample of the other
    # files is decoded. So the rejects of the sample are scaled up to all of them.
    num_all = num_images + over_limit
    num_expected = num_listed
    if num_planned:
        num_expected += (len(rejects) - num_listed) * (num_planned + over_limit) / num_planned
    # The quotient, because 29 / 100 is exactly the number that 0.29 stands for.
    share, allowed = num_expected / num_all, build.max_reject_fraction
    if share > allowed:
        sampled = f" of all {num_all:,}, by this sample" if over_limit else ""
        raise errors.RefusedError(
            f"{len(rejects):,} of {num_images:,} images were rejected "
            f"({share:.2%}{sampled}, allowed {allowed:.2%}): {why}; to accept them, "
            f"run again with a larger --max_reject_fraction{see}"
        )
    return rejects


def _write_reasons(storage: Folder, name: str, rows: Iterable[Sequence[str]]) -> None:
    """Writes a table of the images that are not in the dataset: path, reason, detail."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows([["path", "reason", "detail"], *(map(csv_cell, r) for r in rows)])
    storage.write(name, text.getvalue().encode())


def write_dropped(storage: Folder, dropped: pa.Table) -> None:
    """Writes dropped.csv, of the images that the splits leave out, if there are some."""
    if dropped.num_rows:
        rows = (tuple(row.values()) for row in dropped.to_pylist())
        _write_reasons(storage, manifest.DROPPED_FILE_NAME, rows)


def _require_classes(build: Build, sidecars: Sequence[Sidecar]) -> None:
    """Refuses a dataset in which all images of a class were rejected.

    Such a folder either is not a class at all, or all of its files are damaged.
    """
    kind, labels = build.draft.label_kind, build.draft.label_names
    counts = np.sum([sidecar.label_counts for sidecar in sidecars], axis=0)
    kept = {name for name, count in zip(labels, counts, strict=True) if count}
    if lost := sorted(build.planned_labels - kept):
        rest = ",".join(label for label in labels if label not in lost)
        raise errors.RefusedError(
            f"{kind.noun} {lost[0]!r} has no image left: all its files were rejected "
            f"({build.output.path(manifest.REJECTS_FILE_NAME)} lists them). Repair the files; or "
            f"leave it out: run again with {kind.flag}={rest} --overwrite"
        )


def _read_rows(build: Build, tasks: Sequence[ShardTask]) -> list[pa.Table]:
    """Returns the rows of the examples table that each task has made, in the order of the tasks.

    Raises:
        errors.BuildError: if they do not fit each other, or an image is there twice, which the
            shards' counts cannot show.
    """
    output = build.output.root
    parts = list(build.output.map(build.read_rows, tasks))
    # A table of labels adds columns to `SCHEMA`.
    schema = parts[0].schema
    is_own = set(SCHEMA.names) <= set(schema.names)
    if not is_own or any(part.schema != schema for part in parts):
        raise errors.BuildError(
            f"another version of this program began {output}; start again with --overwrite"
        )
    keys = pa.concat_tables(parts)["key"]
    repeated = len(keys) - pc.count_distinct(keys).as_py()
    if repeated:
        raise errors.BuildError(
            f"{repeated:,} of {len(keys):,} examples in {output} repeat the key of another "
            "example: the shards come from different plans. Delete the folder and build again"
        )
    return parts


def _make_manifest(
    build: Build,
    tasks: Sequence[ShardTask],
    sidecars: Sequence[Sidecar],
    rejects: Sequence[RejectedFile],
    num_variants: int,
) -> manifest.Manifest:
    """Completes the draft by what was written, except for the audit.

    Raises:
        errors.BuildError: if the numbers of files do not add up to those that the listing saw.
    """
    planned = build.draft.counts
    counts = {
        "files": planned["files"],
        "examples": sum(sidecar.num_examples for sidecar in sidecars),
        **({"variants": num_variants} if "variants" in planned else {}),
        "rejects": len(rejects),
        "copies": planned["copies"],
        "over_limit": planned["over_limit"],
        "dropped": planned["dropped"],
        "ignored": planned["ignored"],
        **({"excluded": planned["excluded"]} if "excluded" in planned else {}),
    }
    of_splits: dict[str, list[Sidecar]] = {}
    for task, sidecar in zip(tasks, sidecars, strict=True):
        of_splits.setdefault(task.split, []).append(sidecar)
    counted = [s for s in of_splits.get(manifest.STATISTICS_SPLIT, ()) if s.num_examples]
    sums = [sidecar.statistics for sidecar in counted]
    made = dataclasses.replace(
        build.draft,
        splits={
            name: manifest.Split(
                label_counts=tuple(map(sum, zip(*(s.label_counts for s in members), strict=True))),
                shards=tuple(
                    manifest.Shard(
                        name=s.shard,
                        num_examples=s.num_examples,
                        num_bytes=s.num_bytes,
                        sha256=s.sha256,
                    )
                    for s in members
                ),
            )
            for name, members in of_splits.items()
        },
        counts=counts,
        rejects=dict(sorted(collections.Counter(r.reason for r in rejects).items())),
        versions={
            "python": platform.python_version(),
            "apache_beam": importlib.metadata.version("apache-beam"),
            "pyarrow": pa.__version__,
            **build.draft.versions,
        },
        statistics=functools.reduce(operator.add, sums) if sums else None,
    )
    accounted = sum(count for _, count in made.ledger)
    if accounted != counts["files"]:
        raise errors.BuildError(
            f"the source has {counts['files']:,} files, but {accounted:,} are accounted for: "
            f"{counts}; no manifest was written; this is a bug, please report it"
        )
    return made

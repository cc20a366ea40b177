"""Checks a finished dataset: hashes, checksums and counts of its files against its manifest.

hashlib and google-crc32c do the sums; what is ours is which numbers must be equal.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.format import examples, schema
from tfrecord_io.format.manifest import (
    DROPPED_FILE_NAME,
    FILE_NAME,
    REJECTS_FILE_NAME,
    Manifest,
    ManifestError,
    Shard,
)
from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal import flags
from tfrecord_io.terminal.command import Command
from tfrecord_io.terminal.printing import printable

#: Number of records read at once, a few megabytes.
_CHUNK_RECORDS = 256

# Columns of the examples table that tell what a record holds.
_COLUMNS = ("key", "pixels_xxh3", "label", "row")

#: Values of `_COLUMNS` by shard.
_Rows = dict[str, list[tuple[str, str, str, int]]]


class Finding(NamedTuple):
    """Something that is wrong: the file, and what was expected and what was found in it."""

    file_name: str
    message: str

    def __str__(self) -> str:
        return printable(f"{self.file_name}: {self.message}")


def verify(directory: str | Path) -> list[Finding]:
    """Checks every byte of a dataset.

    Of each shard: the SHA-256, the number of records and their CRCs, the key and the hash of the
    pixels of each record in `examples.parquet`, and the number of each label. Of the manifest: its
    fingerprint, and that all files of the source are accounted for, as in the tables of those left
    out.

    Returns:
        everything that is wrong; empty if nothing is.

    Raises:
        ManifestError: if there is no usable manifest.
    """
    dataset, folder = Manifest.load(directory), Folder(directory)
    findings: list[Finding] = []

    def check(file_name: str, messages: Iterator[str]) -> None:
        try:
            findings.extend(Finding(file_name, message) for message in messages)
        except (OSError, ValueError, KeyError, TypeError) as error:
            findings.append(Finding(file_name, f"cannot be read: {error}"))

    check(FILE_NAME, _check_manifest(dataset))
    rows: _Rows = {shard.name: [] for shard in dataset.shards}
    check(examples.FILE_NAME, _read_rows(folder, rows))
    for split in dataset.splits.values():
        counts = np.zeros(dataset.num_classes, np.int64)
        for shard in split.shards:
            check(shard.name, _check_shard(folder, dataset, shard, rows, counts))
        if tuple(counts.tolist()) != split.label_counts:
            held = f"says {split.label_counts} examples per class, but the shards hold {counts}"
            findings.append(Finding(FILE_NAME, held))
    # A glob over the folder would read others.
    strangers = sorted(folder.shards().keys() - rows.keys())
    findings += [Finding(n, "is not in the manifest") for n in strangers if n.endswith(".tfrecord")]
    check(REJECTS_FILE_NAME, _check_reasons(folder, REJECTS_FILE_NAME, dataset.rejects))
    if dropped := dataset.counts.get("dropped"):
        check(DROPPED_FILE_NAME, _check_reasons(folder, DROPPED_FILE_NAME, dropped))
    return findings


def _check_manifest(dataset: Manifest) -> Iterator[str]:
    if dataset.options:
        digest = hashlib.sha256(json.dumps(dataset.options, sort_keys=True).encode()).hexdigest()
        made = Preprocessing.from_dict(dataset.preprocessing).identity()
        changed = [name for name in made if dataset.options.get(name) != made[name]]
        if digest != dataset.fingerprint or changed:
            yield f"was changed: its fingerprint is not that of its options {', '.join(changed)}"
    counts = dataset.counts
    accounted = sum(number for _, number in dataset.ledger)
    if accounted != counts["files"]:
        yield f"counts {counts['files']} files, but {accounted} are accounted for"
    if counts["examples"] != dataset.num_examples:
        yield f"counts {counts['examples']} examples, but its splits hold {dataset.num_examples}"


def _read_rows(folder: Folder, rows: _Rows) -> Iterator[str]:
    """Adds the rows of the examples table to those of their shards, and yields what has none."""
    table = examples.read(folder)
    examples.require(table, ["shard", *_COLUMNS])
    columns = (table[name].to_pylist() for name in _COLUMNS)
    for shard, *values in zip(table["shard"].to_pylist(), *columns, strict=True):
        if shard in rows:
            rows[shard].append(tuple(values))
        else:
            yield f"has a row of {shard}, which is not in the manifest"


def _check_shard(
    folder: Folder, dataset: Manifest, shard: Shard, rows: _Rows, counts: np.ndarray
) -> Iterator[str]:
    """Adds the labels of a shard to the counts, and yields what is wrong with it."""
    layout, kind, digest, num_read = dataset.layout, dataset.label_kind, hashlib.sha256(), 0
    expected = rows[shard.name] if any(rows.values()) else None
    with folder.open(shard.name) as file:
        for some in layout.read_records(file, _CHUNK_RECORDS):
            digest.update(some.data)
            for row, record in enumerate(some[:, np.newaxis], num_read):
                (label,) = layout.labels_in(record)
                if layout.find_damaged(record) is not None:
                    yield f"record {row}: its length or its bytes do not match its checksums"
                elif not kind.is_label(label):
                    yield f"record {row}: its label is not {kind.values}"
                else:
                    counts += label.astype(np.int64)
                    key = layout.bytes_in(record, schema.KEY).tobytes().decode("ascii", "replace")
                    pixels = xxhash.xxh3_128_hexdigest(
                        layout.bytes_in(record, schema.IMAGE).tobytes()
                    )
                    held = key, pixels, kind.text_in(label, dataset.label_names), row
                    if expected is not None and (said := expected[row : row + 1]) != [held]:
                        yield f"record {row} is {held}, but {examples.FILE_NAME} says {said}"
            num_read += len(some)
        if file.tell() % layout.stride:
            yield f"is cut off in record {num_read}"
    if num_read != shard.num_examples:
        yield f"has {num_read} records, but the manifest says {shard.num_examples}"
    if expected is not None and num_read != len(expected):
        yield f"has {num_read} records, but {len(expected)} rows in {examples.FILE_NAME}"
    if digest.hexdigest() != shard.sha256:
        yield f"has SHA-256 {digest.hexdigest()}, but the manifest says {shard.sha256}"


def _check_reasons(folder: Folder, name: str, expected: Mapping[str, int]) -> Iterator[str]:
    rows = csv.DictReader(io.StringIO(folder.read(name).decode("utf-8"), newline=""))
    reasons = dict(Counter(row["reason"] for row in rows))
    if reasons != expected:
        yield f"has the reasons {reasons}, but the manifest says {dict(expected)}"


def run(args: argparse.Namespace) -> int:
    """Prints one finding per line, or that nothing is wrong; returns the exit code."""
    directory = args.directory
    findings = verify(directory)
    for finding in findings:
        print(finding)
    if findings:
        return 1
    dataset = Manifest.load(directory)
    print(
        f"{directory} matches its manifest: {dataset.num_examples:,} examples in "
        f"{len(dataset.shards)} shards, {dataset.num_bytes / 1e6:,.1f} MB"
    )
    return 0


COMMAND = Command(
    name="verify",
    purpose="recount and re-hash everything",
    add_arguments=flags.add_dataset,
    run=run,
    codes={ManifestError: 1},
)

"""Checks hashes, checksums and counts of a dataset; hashlib and google-crc32c do the sums."""

from __future__ import annotations

import argparse
import contextlib
import csv
import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

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
from tfrecord_io.terminal.printing import printable

# Number of records read at once, a few megabytes.
_CHUNK_RECORDS = 256

# Columns of the examples table that say what a record holds.
_COLUMNS = ("key", "pixels_xxh3", "label")


def verify(directory: str | Path) -> list[str]:
    """Checks every byte of a dataset.

    Of each shard: the SHA-256, the number of records and their CRCs, the key and the hash of the
    pixels of each record in `examples.parquet`, and the number of each label. Of the manifest: its
    fingerprint, and that all files of the source are accounted for, as in the tables of those left
    out.

    Returns:
        a line for everything that is wrong, which names the file; empty if nothing is.

    Raises:
        ManifestError: if there is no usable manifest.
    """
    dataset, folder = Manifest.load(directory), Folder(directory)
    findings: list[str] = []

    @contextlib.contextmanager
    def checking(file_name: str) -> Iterator[Callable[[str], None]]:
        def add(message: str) -> None:
            findings.append(printable(f"{file_name}: {message}"))

        try:
            yield add
        except (OSError, ValueError, KeyError, TypeError) as error:
            add(f"cannot be read: {error}")

    with checking(FILE_NAME) as add:
        if options := dataset.options:
            digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()
            made = Preprocessing.from_dict(dataset.preprocessing).identity()
            changed = [name for name in made if options.get(name) != made[name]]
            if digest != dataset.fingerprint or changed:
                add(f"was changed: its fingerprint is not that of its options {', '.join(changed)}")
        counts, accounted = dataset.counts, sum(number for _, number in dataset.ledger)
        if accounted != counts["files"]:
            add(f"counts {counts['files']} files, but {accounted} are accounted for")
        if counts["examples"] != dataset.num_examples:
            add(f"counts {counts['examples']} examples, its splits hold {dataset.num_examples}")
    rows: list[tuple[str, ...]] = []
    with checking(examples.FILE_NAME):
        table = examples.in_stored_order(examples.read_examples(folder), dataset)
        examples.require(table, _COLUMNS)
        rows += zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True)
    start = 0
    for split in dataset.splits.values():
        labels = np.zeros(dataset.num_classes, np.int64)
        for shard in split.shards:
            with checking(shard.name) as add:
                labels += _check_shard(folder, dataset, shard, rows[start:], add)
            start += shard.num_examples
        if tuple(labels.tolist()) != split.label_counts:
            held = f"says {split.label_counts} examples per class, but the shards hold {labels}"
            findings.append(f"{FILE_NAME}: {held}")
    # A glob over the folder would read others.
    for name in sorted(folder.shards().keys() - {shard.name for shard in dataset.shards}):
        if name.endswith(".tfrecord"):
            findings.append(printable(f"{name}: is not in the manifest"))
    tables = {REJECTS_FILE_NAME: dataset.rejects}
    if dropped := dataset.counts.get("dropped"):
        tables[DROPPED_FILE_NAME] = dropped
    for name, expected in tables.items():
        with checking(name) as add:
            lines = csv.DictReader(io.StringIO(folder.read(name).decode("utf-8"), newline=""))
            reasons = dict(Counter(line["reason"] for line in lines))
            if reasons != expected:
                add(f"has the reasons {reasons}, but the manifest says {dict(expected)}")
    return findings


def _check_shard(
    folder: Folder,
    dataset: Manifest,
    shard: Shard,
    rows: Sequence[tuple[str, ...]],
    add: Callable[[str], None],
) -> np.ndarray:
    """Adds what is wrong with a shard; returns the number of each label, int64 [num_classes].

    The values of `_COLUMNS` of its records come first in `rows`, unless these are unknown.
    """
    layout, kind, digest, num_read = dataset.layout, dataset.label_kind, hashlib.sha256(), 0
    counts = np.zeros(dataset.num_classes, np.int64)
    with folder.open(shard.name) as file:
        for records in layout.read_records(file, _CHUNK_RECORDS):
            digest.update(records.data)
            for row, record in enumerate(records[:, np.newaxis], num_read):
                (label,) = layout.bytes_in(record, schema.LABEL).copy().view("<f4")
                if layout.find_damaged(record) is not None:
                    add(f"record {row}: its length or its bytes do not match its checksums")
                    continue
                if not kind.is_label(label):
                    add(f"record {row}: its label is not {kind.values}")
                    continue
                counts += label.astype(np.int64)
                key, image = (
                    layout.bytes_in(record, name).tobytes() for name in (schema.KEY, schema.IMAGE)
                )
                text = kind.text_in(label, dataset.label_names)
                held = key.decode("ascii", "replace"), xxhash.xxh3_128_hexdigest(image), text
                if row < len(rows) and rows[row] != held:
                    add(f"record {row} is {held}, but {examples.FILE_NAME} says {rows[row]}")
            num_read += len(records)
        if file.tell() % layout.stride:
            add(f"is cut off in record {num_read}")
    if num_read != shard.num_examples:
        add(f"has {num_read} records, but the manifest says {shard.num_examples}")
    if digest.hexdigest() != shard.sha256:
        add(f"has SHA-256 {digest.hexdigest()}, but the manifest says {shard.sha256}")
    return counts


def run(args: argparse.Namespace) -> int:
    """Prints one finding per line, or that nothing is wrong; returns the exit code."""
    findings = verify(args.directory)
    if findings:
        print(*findings, sep="\n")
        return 1
    dataset = Manifest.load(args.directory)
    print(
        f"{args.directory} matches its manifest: {dataset.num_examples:,} examples in "
        f"{len(dataset.shards)} shards, {dataset.num_bytes / 1e6:,.1f} MB"
    )
    return 0


COMMAND = flags.Command(
    name="verify",
    purpose="recount and re-hash everything",
    add_arguments=flags.add_dataset,
    run=run,
    codes={ManifestError: 1},
)

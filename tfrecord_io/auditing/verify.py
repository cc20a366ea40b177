"""Checks a finished dataset by reading, counting and hashing all of its files again."""

from __future__ import annotations

import argparse
import csv
import functools
import hashlib
import io
import itertools
import json
import operator
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfrecord_io.format import examples, manifest, schema
from tfrecord_io.format.statistics import PixelStatistics
from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal import flags
from tfrecord_io.terminal.command import Command
from tfrecord_io.terminal.printing import printable

#: Number of records read at once, a few megabytes.
_CHUNK_RECORDS = 256


class Finding(NamedTuple):
    """Something that is wrong: the file, and what was expected and what was found in it."""

    file_name: str
    message: str

    def __str__(self) -> str:
        return printable(f"{self.file_name}: {self.message}")


class _Record(NamedTuple):
    """What the records and the manifest hold too of a row of the examples table."""

    key: str
    row: int
    label: str
    split: str


def verify(directory: str | Path) -> list[Finding]:
    """Checks every byte of a dataset against its manifest, sidecars and tables.

    It checks sizes, SHA-256, framing and CRCs of all shards and records, labels and their counts,
    keys (unique), each row of the examples table, the sums over the train split's pixels, the
    digests in `croissant.json`, the ledger of the source's files, and the tables of those left out.

    Returns:
        everything that is wrong; empty if nothing is.

    Raises:
        manifest.ManifestError: if there is no usable manifest.
    """
    dataset, folder = manifest.Manifest.load(directory), Folder(directory)
    findings: list[Finding] = []
    # The records that are right, by shard; and the sums over their pixels, if they count.
    records: dict[str, list[_Record]] = {shard.name: [] for shard in dataset.shards}
    sums: list[PixelStatistics] = []
    for split, shard in [(name, s) for name, of in dataset.splits.items() for s in of.shards]:
        findings += _read(shard.name, _check_shard(folder, dataset, split, shard, records, sums))
        sidecar = manifest.sidecar_name(shard.name)
        findings += _read(sidecar, _check_sidecar(folder, sidecar, shard, dataset))
    # A glob over the folder would read these.
    strangers = sorted(folder.shards().keys() - records.keys())
    findings += [Finding(n, "is not in the manifest") for n in strangers if n.endswith(".tfrecord")]
    dropped = dataset.counts.get("dropped")
    left_out = {manifest.REJECTS_FILE_NAME: dataset.rejects}
    left_out |= {manifest.DROPPED_FILE_NAME: dropped} if dropped else {}
    for name, messages in (
        (manifest.FILE_NAME, _check_manifest(dataset, records, sums)),
        (examples.FILE_NAME, _check_examples(folder, records)),
        (examples.CROISSANT_FILE, _check_croissant(folder, dataset)),
        *((name, _check_reasons(folder, name, counts)) for name, counts in left_out.items()),
    ):
        findings += _read(name, messages)
    return findings


def _read(file_name: str, messages: Iterator[str]) -> Iterator[Finding]:
    """Yields what a check says about a file, also that the file cannot be read."""
    try:
        for message in messages:
            yield Finding(file_name, message)
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield Finding(file_name, f"cannot be read: {error}")


def _check_shard(
    folder: Folder,
    dataset: manifest.Manifest,
    split: str,
    shard: manifest.Shard,
    records: Mapping[str, list[_Record]],
    sums: list[PixelStatistics],
) -> Iterator[str]:
    layout, digest, num_read = dataset.layout, hashlib.sha256(), 0
    with folder.open(shard.name) as file:
        for some in layout.read_records(file, _CHUNK_RECORDS):
            digest.update(some.data)
            if dataset.statistics and split == manifest.STATISTICS_SPLIT:
                sums.append(PixelStatistics.from_images(layout.images_in(some)))
            for row, record in enumerate(some[:, np.newaxis], num_read):
                if problem := _record_problem(record, layout):
                    yield f"record {row}: {problem}"
                    continue
                label = layout.label_kind.text_in(layout.labels_in(record)[0], dataset.label_names)
                key = layout.bytes_in(record, schema.KEY).tobytes().decode("ascii")
                records[shard.name].append(_Record(key, row, label, split))
            num_read += len(some)
        if file.tell() % layout.stride:
            yield f"is cut off in record {num_read}"
    if num_read != shard.num_examples:
        yield f"has {num_read} records, but the manifest says {shard.num_examples}"
    if digest.hexdigest() != shard.sha256:
        yield f"has SHA-256 {digest.hexdigest()}, but the manifest says {shard.sha256}"


def _record_problem(record: np.ndarray, layout: schema.RecordLayout) -> str | None:
    """Returns what is wrong with a framed record, uint8 [1, stride]."""
    if layout.find_damaged(record) is not None:
        return "its length or its bytes do not match the checksums of its frame"
    (label,) = layout.labels_in(record)
    if not layout.label_kind.is_label(label):
        return f"its label {label.tolist()} is not {layout.label_kind.values}"
    image, key = (layout.bytes_in(record, name).tobytes() for name in (schema.IMAGE, schema.KEY))
    # Image, label and key are right. Encoding them again shows whether all other bytes are too.
    text = key.decode("ascii", "replace").replace("\ufffd", "?")
    expected = layout.encode_record(image, label, text)
    return None if record.tobytes() == expected else "its layout differs from that of the manifest"


def _check_sidecar(
    folder: Folder, name: str, shard: manifest.Shard, dataset: manifest.Manifest
) -> Iterator[str]:
    content = json.loads(folder.read(name))
    facts = {key: content[key] for key in ("num_examples", "num_bytes", "sha256")}
    expected = {key: getattr(shard, key) for key in facts}
    if facts != expected or content.get("fingerprint") != dataset.fingerprint:
        yield f"says {facts}, but the manifest says {expected}, or it is of another build"


def _check_manifest(
    dataset: manifest.Manifest,
    records: Mapping[str, Sequence[_Record]],
    sums: Sequence[PixelStatistics],
) -> Iterator[str]:
    """Compares what the manifest counts with the shards, and with itself."""
    every = [record for held in records.values() for record in held]
    for name, split in dataset.splits.items():
        labels = [record.label for record in every if record.split == name]
        counts = dataset.label_kind.counts(labels, dataset.label_names)
        if counts != split.label_counts:
            yield f"says {split.label_counts} examples per class, but the shards hold {counts}"
    counted_sums = functools.reduce(operator.add, sums) if sums else None
    if dataset.statistics != counted_sums:
        name = manifest.STATISTICS_SPLIT
        yield f"says {dataset.statistics} of split {name!r}, but the shards hold {counted_sums}"
    keys = Counter(record.key for record in every)
    if repeated := [key for key, count in keys.items() if count > 1]:
        yield f"keys that occur in several examples: {len(repeated)}, such as {repeated[0]}"
    counted: Mapping[str, Any] = dataset.counts
    if not {"files", "examples"} <= counted.keys():
        yield "does not count the files of the source"
        return
    accounted = sum(number for _, number in dataset.ledger)
    if accounted != counted["files"]:
        yield f"counts {counted['files']} files, but {accounted} are accounted for"
    num_rejects = sum(dataset.rejects.values())
    if counted.get("rejects", num_rejects) != num_rejects:
        yield f"counts {counted['rejects']} rejects, but names the reasons of {num_rejects}"
    if counted["examples"] != dataset.num_examples:
        yield f"counts {counted['examples']} examples, but its splits hold {dataset.num_examples}"


def _check_examples(folder: Folder, records: Mapping[str, Sequence[_Record]]) -> Iterator[str]:
    """Compares the table of examples with all records, by shard."""
    names = ["shard", *_Record._fields]
    table = examples.parse(examples.read_bytes(folder.root))
    examples.require(table, names)
    rows: dict[str, list[_Record]] = defaultdict(list)
    for shard, *values in zip(*(table[name].to_pylist() for name in names), strict=True):
        rows[shard].append(_Record(*values))
    for shard in {**records, **rows}:
        pairs = itertools.zip_longest(records.get(shard, ()), rows[shard])
        if wrong := [pair for pair in pairs if pair[0] != pair[1]]:
            held, said = wrong[0]
            yield f"{len(wrong):,} rows of {shard} differ, such as {said}, but the shard has {held}"


def _check_croissant(folder: Folder, dataset: manifest.Manifest) -> Iterator[str]:
    """Compares the digests in `croissant.json`, which a dataset does not need."""
    if (listed := examples.digests(folder.root)) is None:
        return
    expected = {shard.name: shard.sha256 for shard in dataset.shards}
    expected[examples.FILE_NAME] = hashlib.sha256(examples.read_bytes(folder.root)).hexdigest()
    for name in sorted(listed.keys() | expected.keys()):
        said, right = listed.get(name), expected.get(name)
        if said != right:
            yield f"says that {name} has SHA-256 {said}, expected {right}"


def _check_reasons(folder: Folder, name: str, expected: Mapping[str, int]) -> Iterator[str]:
    rows = csv.DictReader(io.StringIO(folder.read(name).decode("utf-8"), newline=""))
    reasons = dict(Counter(row["reason"] for row in rows))
    if reasons != expected:
        yield f"has the reasons {reasons}, but the manifest says {dict(expected)}"


def run(args: argparse.Namespace) -> int:
    """Prints one finding per line, or that nothing is wrong; returns the exit code."""
    directory = flags.dataset_of(args)
    return report(directory, verify(directory))


def report(directory: str | Path, findings: Sequence[Finding], more: str = "") -> int:
    """Prints one finding per line, or that nothing is wrong, and `more`; returns the exit code."""
    for finding in findings:
        print(finding)
    if findings:
        return 1
    dataset = manifest.Manifest.load(directory)
    print(
        f"{directory} matches its manifest: {dataset.num_examples:,} examples in "
        f"{len(dataset.shards)} shards, {dataset.num_bytes / 1e6:,.1f} MB{more}"
    )
    return 0


COMMAND = Command(
    name="verify",
    purpose="recount and re-hash everything",
    add_arguments=flags.add_dataset,
    run=run,
    codes={manifest.ManifestError: 1},
)

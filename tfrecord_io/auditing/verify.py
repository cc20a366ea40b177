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
import random
import tarfile
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from tfrecord_io.decoding import augment, preprocess
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.rejects import Reject
from tfrecord_io.format import examples, manifest, schema
from tfrecord_io.format.statistics import PixelStatistics
from tfrecord_io.stores import archives
from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal import flags
from tfrecord_io.terminal.address import local_path
from tfrecord_io.terminal.command import Command
from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.printing import printable, refuse

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


def verify(
    directory: str | Path,
    *,
    source_input: str | Path | None = None,
    names: str | Path | None = None,
    num_samples: int = 100,
    seed: int = 0,
) -> list[Finding]:
    """Checks every byte of a dataset against its manifest, sidecars and tables.

    It checks sizes, SHA-256, framing and CRCs of all shards and records, labels and their counts,
    keys (unique), each row of the examples table, the sums over the train split's pixels, the
    digests in `croissant.json`, and the ledger of the source's files.

    Args:
        directory: folder or URL of the dataset.
        source_input: the archive or folder from which the dataset was built: a random sample of it
            is decoded again and compared pixel by pixel.
        names: the private table of an anonymous dataset, which `source_input` needs.
        num_samples: number of images in the random sample, drawn with `seed`.
        seed: seed of the sample.

    Returns:
        everything that is wrong; empty if nothing is.

    Raises:
        manifest.ManifestError: if there is no usable manifest.
        OSError: if the source or the private table cannot be read.
        UserError: if the source is a URL, or of a kind of which no sample can be taken.
    """
    dataset, folder = manifest.Manifest.load(directory), Folder(directory)
    kind = dataset.source.get("kind")
    if source_input is not None and kind in ("npz", "parquet"):
        raise UserError(f"--source_input takes folders and archives, and no source of kind {kind}")
    findings: list[Finding] = []
    # The records that are right, by shard; and the sums over their pixels, if they count.
    records: dict[str, list[_Record]] = {shard.name: [] for shard in dataset.shards}
    sums: list[PixelStatistics] = []
    for split, shard in [(name, s) for name, of in dataset.splits.items() for s in of.shards]:
        findings += _read(shard.name, _check_shard(folder, dataset, split, shard, records, sums))
        sidecar = manifest.sidecar_name(shard.name)
        findings += _read(sidecar, _check_sidecar(folder, sidecar, shard, dataset))
    # A glob over the folder would read these.
    strangers = sorted(folder.describe([]).sizes.keys() - records.keys())
    findings += [Finding(n, "is not in the manifest") for n in strangers if n.endswith(".tfrecord")]
    for name, messages in (
        (manifest.FILE_NAME, _check_manifest(dataset, records, sums)),
        (examples.FILE_NAME, _check_examples(folder, records)),
        (examples.CROISSANT_FILE, _check_croissant(folder, dataset)),
        (manifest.REJECTS_FILE_NAME, _check_rejects(folder, dataset)),
    ):
        findings += _read(name, messages)
    if source_input is not None and not findings:
        table = examples.read(directory)
        drawn = random.Random(seed).sample(range(len(table)), min(num_samples, len(table)))
        rows = table.take(sorted(drawn)).to_pylist()
        findings += _check_sample(folder, dataset, local_path(source_input), names, rows)
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


def _check_rejects(folder: Folder, dataset: manifest.Manifest) -> Iterator[str]:
    text = folder.read(manifest.REJECTS_FILE_NAME).decode("utf-8")
    rows = csv.DictReader(io.StringIO(text, newline=""))
    reasons = dict(Counter(row["reason"] for row in rows))
    if reasons != dataset.rejects:
        yield f"has rejects {reasons}, but the manifest says {dataset.rejects}"


def _check_sample(
    folder: Folder,
    dataset: manifest.Manifest,
    source_input: Path,
    names: str | Path | None,
    rows: Sequence[Mapping[str, Any]],
) -> Iterator[Finding]:
    """Decodes the files of some rows of the examples table again, and compares the records."""
    try:
        options = Preprocessing.from_dict(dataset.preprocessing)
    except (KeyError, TypeError, ValueError) as error:
        raise manifest.ManifestError(
            f"{folder.path(manifest.FILE_NAME)} is damaged: its preprocessing: {error!r}"
        ) from error
    source_paths = _read_names(names) if dataset.has_codes else {}
    # Several examples may be frames or augmented copies of one file.
    wanted: dict[str, list[tuple[Mapping[str, Any], int | None]]] = defaultdict(list)
    for row in rows:
        path, frame = row["path"], None
        # A DICOM file is read by frames, if it has only one, too; a later page has no hash.
        if row["file_format"] == "DICOM" or row["file_xxh3"] is None:
            path, frame = preprocess.split_frame_path(path)
        wanted[source_paths.get(row["path"], path)].append((row, frame))
    layout, slot = dataset.layout, dataset.layout.features[schema.IMAGE]
    missing = dict(wanted)
    try:
        for path, data in _read_files(source_input, wanted):
            for row, frame in missing.pop(path):
                name = f"record {row['row']}"
                try:
                    decoded = preprocess.decode_image(data, options, frame)
                except Reject as reject:
                    yield Finding(row["shard"], f"{name}: {row['path']} is now rejected: {reject}")
                    continue
                pixels = augment.pixels_of(row, decoded.pixels, layout.image_shape, decoded.box)
                start = row["row"] * layout.stride + slot.offset
                stored = folder.read_part(row["shard"], start, slot.length)
                if pixels != stored:
                    yield Finding(
                        row["shard"], f"{name} differs from what {row['path']} decodes to"
                    )
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, ValueError, EOFError) as error:
        raise OSError(f"cannot read {source_input}: {error}") from error
    for (row, _), *_ in missing.values():
        yield Finding(str(source_input), f"has no file {row['path']}")


def _read_names(names: str | Path | None) -> dict[str, str]:
    """Returns the paths in the source by their codes in an anonymous dataset."""
    if names is None:
        raise OSError(
            "the dataset is anonymous, so --source_input needs --names FILE, the table that the "
            "build wrote beside the secret"
        )
    try:
        private = pq.read_table(names, columns=["path", "source_path"])
    except (ValueError, KeyError) as error:
        raise OSError(f"cannot read --names {names}: {error}") from error
    return dict(zip(*(column.to_pylist() for column in private.columns), strict=True))


def _read_files(source_input: Path, paths: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Yields those of the files that are there, read with the standard library.

    So the build's own code for reading is checked, too.
    """
    if source_input.is_dir():
        for path in paths:
            file = source_input / path
            # An untrusted table may name files outside of the folder.
            is_inside = ".." not in Path(path).parts and file.is_relative_to(source_input)
            if is_inside and file.is_file():
                yield path, file.read_bytes()
    elif zipfile.is_zipfile(source_input):
        with source_input.open("rb") as raw, archives.open_zip(raw) as archive:
            # The build uses the first of several members with the same name.
            members = sorted(archive.infolist(), key=lambda info: -info.header_offset)
            for name, info in {info.filename: info for info in members}.items():
                if name in paths:
                    yield name, archive.read(info)
    else:
        # A tar may be compressed, so it is read once from beginning to end.
        missing = set(paths)
        with tarfile.open(source_input) as archive:
            for info in archive:
                if info.name in missing and info.isreg():
                    missing.remove(info.name)
                    file = archive.extractfile(info) or io.BytesIO()
                    yield info.name, file.read()
            stream: Any = archive.fileobj
            archives.check_tar_end(stream, archive.offset)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `python -m tfrecord_io verify`."""
    flags.add_dataset(parser)
    parser.add_argument(
        "--source_input",
        type=local_path,
        metavar="PATH",
        help="the archive or folder it was built from: decode a random sample of it again",
    )
    parser.add_argument(
        "--names",
        type=local_path,
        metavar="FILE",
        help="anonymous datasets: the table beside the secret, to find the images of that sample",
    )
    parser.add_argument(
        "--num_samples", type=int, default=100, help="size of that sample (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of that sample")


def run(args: argparse.Namespace) -> int:
    """Prints one finding per line, or that nothing is wrong; returns the exit code."""
    directory = flags.dataset_of(args)
    if args.num_samples < 0:
        return refuse(f"--num_samples must be at least 0, received {args.num_samples}")
    findings = verify(
        directory,
        source_input=args.source_input,
        names=args.names,
        num_samples=args.num_samples,
        seed=args.seed,
    )
    for finding in findings:
        print(finding)
    if findings:
        return 1
    dataset = manifest.Manifest.load(directory)
    sampled = ""
    if args.source_input:
        # Nothing is missing, so every example of the sample was compared.
        num_compared = min(args.num_samples, dataset.num_examples)
        sampled = f"; {num_compared} images decoded again from {args.source_input} are the same"
    print(
        f"{directory} matches its manifest: {dataset.num_examples:,} examples in "
        f"{len(dataset.shards)} shards, {dataset.num_bytes / 1e6:,.1f} MB{sampled}"
    )
    return 0


COMMAND = Command(
    name="verify",
    purpose="recount and re-hash everything",
    add_arguments=add_arguments,
    run=run,
    codes={manifest.ManifestError: 1},
)

"""For those who still have the source of a dataset: `verify --source_input` decodes some again."""

from __future__ import annotations

import argparse
import dataclasses
import io
import random
import tarfile
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import tfrecord_io.auditing.verify as core
from tfrecord_io.auditing.verify import Finding
from tfrecord_io.decoding import augment, preprocess
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.rejects import Reject
from tfrecord_io.format import examples, manifest, schema
from tfrecord_io.stores import archives
from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal import flags
from tfrecord_io.terminal.address import local_path
from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.printing import refuse


def verify(
    directory: str | Path,
    *,
    source_input: str | Path,
    names: str | Path | None = None,
    num_samples: int = 100,
    seed: int = 0,
) -> list[Finding]:
    """Checks a dataset, and if nothing is wrong decodes a random sample of its source again.

    Args:
        directory: folder or URL of the dataset.
        source_input: the archive or folder from which the dataset was built.
        names: the private table of an anonymous dataset.
        num_samples: number of images in the sample, drawn with `seed`.
        seed: seed of the sample.

    Returns:
        everything that is wrong; empty if nothing is.

    Raises:
        manifest.ManifestError: if there is no usable manifest.
        OSError: if the source or the private table cannot be read.
        UserError: if the source is a URL, or of a kind of which no sample can be taken, or if there
            are names of a dataset that is not anonymous.
    """
    dataset, folder = manifest.Manifest.load(directory), Folder(directory)
    kind = dataset.source.get("kind", "unknown")
    if kind in ("npz", "parquet", "unknown"):
        raise UserError(f"--source_input takes folders and archives, and no source of kind {kind}")
    if findings := core.verify(directory):
        return findings
    source, table = local_path(source_input), examples.read(directory)
    drawn = random.Random(seed).sample(range(len(table)), min(num_samples, len(table)))
    if names is not None and not dataset.has_codes:
        raise UserError(f"--names is for anonymous datasets, and {directory} is not; leave it out")
    source_paths = _read_names(names) if dataset.has_codes else {}
    # Several examples may be frames or augmented copies of one file.
    wanted: dict[str, list[tuple[Mapping[str, Any], int | None]]] = defaultdict(list)
    for row in table.take(pa.array(sorted(drawn), pa.int64())).to_pylist():
        path, frame = row["path"], None
        # A DICOM file is read by frames, if it has only one, too; a later page has no hash.
        if row["file_format"] == "DICOM" or row["file_xxh3"] is None:
            path, frame = preprocess.split_frame_path(path)
        wanted[source_paths.get(row["path"], path)].append((row, frame))
    missing = dict(wanted)
    try:
        for path, data in _read_files(source, wanted):
            for row, frame in missing.pop(path):
                if problem := _problem(folder, dataset, data, row, frame):
                    findings.append(Finding(row["shard"], problem))
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, ValueError, EOFError) as error:
        raise OSError(f"cannot read {source}: {error}") from error
    lost = (f"has no file {row['path']}" for (row, _), *_ in missing.values())
    return findings + [Finding(str(source), message) for message in lost]


def _problem(
    folder: Folder,
    dataset: manifest.Manifest,
    data: bytes,
    row: Mapping[str, Any],
    frame: int | None,
) -> str | None:
    """Returns in what the record of a row differs from what its file decodes to."""
    layout, slot = dataset.layout, dataset.layout.features[schema.IMAGE]
    try:
        decoded = preprocess.decode_image(
            data, Preprocessing.from_dict(dataset.preprocessing), frame
        )
    except Reject as reject:
        return f"record {row['row']}: {row['path']} is now rejected: {reject}"
    pixels = decoded.pixels
    if row["variant"]:
        pixels = augment.vary(pixels, layout.image_shape, row["key"], decoded.box)
    start = row["row"] * layout.stride + slot.offset
    is_same = pixels == folder.read_part(row["shard"], start, slot.length)
    found = f"record {row['row']} differs from what {row['path']} decodes to"
    return None if is_same else found


def _read_names(names: str | Path | None) -> dict[str, str]:
    """Returns the paths in the source by their codes in an anonymous dataset."""
    if names is None:
        raise OSError(
            "the dataset is anonymous, so --source_input needs --names FILE, the table that the "
            "build wrote beside the secret"
        )
    try:
        private = pq.read_table(names, columns=["path", "source_path"])
    except (OSError, ValueError, KeyError) as error:
        why = str(error).partition("\n")[0]
        raise OSError(f"cannot read --names {names}: {why}") from error
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
        "--num_samples", type=int, metavar="N", help="size of that sample (default: 100)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="seed of that sample (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Prints what is wrong, as `verify` alone does; returns the exit code."""
    given = {name: getattr(args, name) for name in ("names", "num_samples", "seed")}
    options = {name: value for name, value in given.items() if value is not None}
    if args.source_input is None and options:
        return refuse(f"--{next(iter(options))} is about the sample of --source_input; add that")
    num_samples = options.setdefault("num_samples", 100)
    if num_samples < 0:
        return refuse(f"--num_samples must be at least 0, received {num_samples}")
    if args.source_input is None:
        return core.run(args)
    directory, source_input = flags.dataset_of(args), args.source_input
    findings = verify(directory, source_input=source_input, **options)
    num_compared = min(num_samples, manifest.Manifest.load(directory).num_examples)
    more = f"; {num_compared} images decoded again from {source_input} are the same"
    return core.report(directory, findings, more)


#: The command `verify`, with these flags.
COMMAND = dataclasses.replace(core.COMMAND, add_arguments=add_arguments, run=run)

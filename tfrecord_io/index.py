"""`python -m tfrecord_io index OUT`: index files, by which NVIDIA DALI reads the shards.

DALI wants a text file beside each TFRecord file with a line "offset size" a record, in bytes, the
frame included. Every record of a dataset has the same length, so the lines are computed, and no
shard is read. Format: `tfrecord2idx` and `fn.readers.tfrecord` of DALI 2.4.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from tfrecord_io.files import atomic_write
from tfrecord_io.manifest import Manifest
from tfrecord_io.reading import opening


def write_index(
    directory: str | os.PathLike[str], index_dir: str | os.PathLike[str] | None = None
) -> list[Path]:
    """Writes an index file for every shard, in `index_dir` or beside it: its name and `.idx`.

    Returns:
        the files.

    Raises:
        ManifestError: if the dataset is unfinished or a shard is not as the manifest says.
        OSError: if a file cannot be written.
    """
    target = Path(directory if index_dir is None else index_dir)
    manifest = Manifest.load(directory)
    opening.open_split(directory, list(manifest.splits))
    target.mkdir(parents=True, exist_ok=True)
    stride = manifest.layout.stride
    written = []
    for shard in manifest.shards:
        path = target / f"{shard.name}.idx"
        with atomic_write(path) as file:
            for row in range(shard.num_examples):
                file.write(b"%d %d\n" % (row * stride, stride))
        written.append(path)
    return written


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `python -m tfrecord_io index`."""
    parser.add_argument("directory", help="the dataset")
    parser.add_argument("--index_dir", metavar="DIR", help="where to (default: beside the shards)")


def run(args: argparse.Namespace) -> int:
    """Writes the index files; returns the exit code."""
    written = write_index(args.directory, args.index_dir)
    print(f"wrote {len(written)} index files to {args.index_dir or args.directory}")
    return 0

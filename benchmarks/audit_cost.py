"""How much time does the audit add to a build?

    python benchmarks/audit_cost.py --sample kermany2018-sample.zip --num_images 10000

It times a whole build. Within the build it times the hash and the side facts of each image, and the
audit and the dataset card at the end. The images repeat those of the sample, so the search for near
duplicates is timed on the same number of different hashes.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from near_duplicates import crowd
from sample_archive import WORK_DIR, make_archive

from pipelines.report import card
from tfrecord_io.auditing import audit, twins
from tfrecord_io.decoding import preprocess
from tfrecord_io.format import shard_writer, side_facts
from tfrecord_io.format.examples import audited, read
from tfrecord_io.format.manifest import Manifest
from tfrecord_io.stores.folder import Folder


def microseconds_an_image(files: list[bytes]) -> tuple[float, float]:
    """Returns the CPU time per image of decoding, and of the hash and the side facts."""
    options = preprocess.Preprocessing()
    start = time.process_time()
    images = [preprocess.decode_image(data, options).pixels for data in files]
    decoded = time.process_time() - start
    pictures = np.frombuffer(b"".join(images), np.uint8).reshape(-1, *options.image_shape)
    start = time.process_time()
    # The block size of a worker.
    block = shard_writer.BLOCK_BYTES // pictures[0].nbytes
    for first in range(0, len(pictures), block):
        side_facts.side_facts(pictures[first : first + block])
    facts = time.process_time() - start
    return decoded / len(files) * 1e6, facts / len(files) * 1e6


def seconds_at_the_end(directory: Path, files: list[bytes], num_images: int) -> dict[str, float]:
    """Returns the wall time of each part of the last step, for a table of different images.

    Args:
        directory: folder of a finished dataset.
        files: scans to make different hashes from.
        num_images: rows of the table, at most.
    """
    found = Manifest.load(directory)
    examples = audited(read(directory))
    examples = examples.slice(0, num_images)
    hashes = crowd(files, examples.num_rows)
    unique = {
        "perceptual_hash": pa.array([row.tobytes() for row in hashes], pa.binary(32)),
        "pixels_xxh3": pa.array([str(row) for row in range(examples.num_rows)]),
    }
    for name, column in unique.items():
        examples = examples.set_column(examples.schema.get_field_index(name), name, column)
    seconds = {}
    images = twins.ImageReader(found.layout, Folder(directory))
    start = time.perf_counter()
    same = twins.find_twins(examples, images, found)
    seconds["near duplicates"] = time.perf_counter() - start
    start = time.perf_counter()
    result = audit.audit_examples(examples, same, found)
    seconds["other findings"] = time.perf_counter() - start
    start = time.perf_counter()
    found = dataclasses.replace(found, audit={**found.audit, **result.to_dict()})
    none = pa.table({name: np.array([], str) for name in ("path", "reason", "detail")})
    card.render(found, result, examples, images, [], none)
    seconds["card"] = time.perf_counter() - start
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=Path, required=True)
    parser.add_argument("--num_images", type=int, default=10_000)
    args = parser.parse_args()
    archive = make_archive(args.sample, args.num_images)
    output = WORK_DIR / "audit-cost"
    shutil.rmtree(output, ignore_errors=True)
    start = time.perf_counter()
    subprocess.run(
        [
            sys.executable,
            "pipelines/build_tfrecords.py",
            "--source=archive",
            f"--input={archive}",
            f"--output={output}",
        ],
        check=True,
        capture_output=True,
    )
    build = time.perf_counter() - start
    with zipfile.ZipFile(io.BytesIO(args.sample.read_bytes())) as sample:
        names = [n for n in sample.namelist() if n.startswith("OCT2017 /") and "/._" not in n]
        files = [sample.read(name) for name in names if name.endswith(".jpeg")]
    decode, facts = microseconds_an_image(files)
    parts = seconds_at_the_end(output, files, args.num_images)
    cores = len(os.sched_getaffinity(0))
    in_workers = facts * args.num_images / 1e6 / cores
    print(f"{args.num_images:,} images, {cores} cores; whole build {build:.1f} s")
    print(f"decoding {decode:,.0f} µs per image, hash and side facts {facts:,.0f} µs")
    print(f"in the workers: {in_workers:.1f} s of the build")
    for name, seconds in parts.items():
        print(f"at the end: {name} {seconds:.2f} s")
    total = in_workers + sum(parts.values())
    print(f"total {total:.1f} s, {total / build:.1%} of the build")


if __name__ == "__main__":
    main()

"""How much slower is a build from an object store than from the disk, and how much does it fetch?

    python benchmarks/remote_speed.py --num_images 6000

Both builds read the same zip and write to the same disk, in turns within one run, on the same
cores. The store is a small server on loopback in its own process; it uses some of the CPU time.
Goals: at least 0.8 of the local rate, and at most 1.1 bytes fetched per byte needed (the stored
bytes of all images and the zip's directory). `--latency_ms` delays every answer, as a distant store
would.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil
import range_server
import sample_archive

from pipelines.listing.listing import ListingOptions, list_images
from pipelines.sources.archive import ArchiveSource, zip_members
from tfrecord_io import Manifest

GOAL, MOST_FETCHED = 0.8, 1.1


def build_seconds(given: str, flags: list[str], output: Path) -> tuple[float, float]:
    """Builds into `output`; returns the wall time and the CPU time of the machine, in s."""
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, "pipelines/build_tfrecords.py", "--source", "archive"]
    start, cpu_start = time.perf_counter(), _cpu_seconds()
    subprocess.run(
        [*command, "--input", given, "--output", str(output), *flags],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"},
    )
    return time.perf_counter() - start, _cpu_seconds() - cpu_start


def _cpu_seconds() -> float:
    """Returns the CPU time of the whole machine, which includes the store."""
    spent = psutil.cpu_times()
    return spent.user + spent.system


def needed_bytes(path: Path) -> int:
    """Returns the bytes that any reader must fetch: the stored images and the zip's directory."""
    listing = list_images(ArchiveSource(path), ListingOptions())
    stored = sum(listing.refs["stored_size"].to_pylist())
    with path.open("rb") as file:
        last = max(zip_members(file, str(path)), key=lambda member: member.offset)
    # After the last member, the file contains only the directory.
    return stored + path.stat().st_size - last.offset - last.stored_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_images", type=int, default=6_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--latency_ms", type=float, default=0.0)
    parser.add_argument(
        "--sample", type=Path, default=Path("../shared/data/kermany2018-sample.zip")
    )
    args = parser.parse_args()
    path = sample_archive.make_archive(args.sample, args.num_images)
    outputs = [sample_archive.WORK_DIR / f"remote_speed_{name}" for name in ("local", "remote")]
    ratios, fetched = [], 0
    with range_server.running(path.parent, args.latency_ms) as server:
        url = f"s3://{range_server.BUCKET}/{path.name}"
        print(
            f"| run of {args.num_images:,} images | local, images/s | store, images/s | ratio | "
            "local, CPU ms per image | store, CPU ms per image |"
        )
        print("| --- | --- | --- | --- | --- | --- |")
        for run in range(args.repeats):
            local, local_cpu = build_seconds(str(path), [], outputs[0])
            server.take_count()
            remote, remote_cpu = build_seconds(url, server.flags, outputs[1])
            fetched = server.take_count()
            ratios.append(local / remote)
            print(
                f"| {run + 1} | {args.num_images / local:.0f} | {args.num_images / remote:.0f} | "
                f"{local / remote:.3f} | {local_cpu / args.num_images * 1e3:.2f} | "
                f"{remote_cpu / args.num_images * 1e3:.2f} |",
                flush=True,
            )
    digests = [
        [shard.sha256 for split in Manifest.load(output).splits.values() for shard in split.shards]
        for output in outputs
    ]
    for output in outputs:
        shutil.rmtree(output)
    needed = needed_bytes(path)
    print(f"\nmedian ratio {statistics.median(ratios):.3f} (goal: {GOAL})")
    print(
        f"fetched {fetched:,} bytes for {needed:,} needed: {fetched / needed:.4f} "
        f"(goal: at most {MOST_FETCHED})"
    )
    print(f"same shards: {digests[0] == digests[1]}")


if __name__ == "__main__":
    main()

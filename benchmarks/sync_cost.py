"""What does it cost that a finished shard survives a power cut?

    python benchmarks/sync_cost.py --num_images 4000 --output /path/on/the/disk/to/measure

It builds the same zip in one process, in turn with fsync and with an fsync that does nothing. With
several processes the cost is smaller, since one decodes while another waits for the disk. Before
each run the disk is left with nothing to write.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import statistics
import time
from pathlib import Path

import sample_archive


def build_seconds(path: Path, output: Path, is_synced: bool) -> tuple[float, float, int]:
    """Builds in this process; returns the wall time, the time within fsync, and its calls."""
    from pipelines import build_tfrecords

    fsync, waited = os.fsync, []

    def timed(descriptor: int) -> None:
        start = time.perf_counter()
        if is_synced:
            fsync(descriptor)
        waited.append(time.perf_counter() - start)

    words = ["--source=archive", f"--input={path}", f"--output={output}"]
    os.sync()
    os.fsync = timed
    start = time.perf_counter()
    code = build_tfrecords.main([*words, "--direct_running_mode=in_memory"])
    seconds = time.perf_counter() - start
    if code:
        raise RuntimeError(f"the build ended with exit code {code}")
    return seconds, sum(waited), len(waited)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_images", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=sample_archive.WORK_DIR / "sync_cost")
    parser.add_argument(
        "--sample", type=Path, default=Path("../shared/data/kermany2018-sample.zip")
    )
    args = parser.parse_args()
    path = sample_archive.make_archive(args.sample, args.num_images, stored=True)
    context = multiprocessing.get_context("spawn")
    rows = []
    for _ in range(args.repeats):
        measured = []
        for is_synced in (True, False):
            shutil.rmtree(args.output, ignore_errors=True)
            # A process for each run, so that none profits from the imports of another.
            with context.Pool(1) as pool:
                measured.append(pool.apply(build_seconds, (path, args.output, is_synced)))
        rows.append((*measured[0], measured[1][0]))
    num_shards = len(list(args.output.glob("*.tfrecord")))
    shutil.rmtree(args.output)
    print(f"\n{args.num_images:,} images, {num_shards} shards, {rows[0][2]} calls of fsync:\n")
    print("| run | with fsync, s | without, s | ratio | within fsync, s |")
    print("| --- | --- | --- | --- | --- |")
    for run, (seconds, waited, _, without) in enumerate(rows, 1):
        print(f"| {run} | {seconds:.2f} | {without:.2f} | {seconds / without:.3f} | {waited:.2f} |")
    print(f"\nmedian ratio {statistics.median(row[0] / row[3] for row in rows):.3f}")


if __name__ == "__main__":
    main()

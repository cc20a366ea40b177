"""Does the reader keep its other promises?

    python benchmarks/read_promises.py

On the drawn data of `read_speed.py` it measures: the time to the first batch, also after resuming
at step one million; the memory with more data; the speed with a thousand shards compared with
sixteen; the speed with uint16 images compared with uint8 ones of as many bytes; and the speed of
two processes that read one half each, on one core each, compared with one process on one core.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from read_data import IMAGE_SHAPE, ReadData, cut_records, draw_records
from read_speed import WayProcess, prepare
from read_ways import BATCH_SIZE

MANY_SHARDS, FEW_SHARDS = 1000, 16
NUM_RESUMED = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of a round")
    parser.add_argument("--prepare", action="store_true", help="only write the data")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(read_once(**json.loads(arguments.one))))
        return
    data = prepare(None)
    few, many, small = (
        cut_records(
            data.records, data.work / f"records-{num_examples}-in-{num_shards}",
            num_shards=num_shards, num_examples=num_examples,
        )
        for num_shards, num_examples in (
            (FEW_SHARDS, data.num_examples),
            (MANY_SHARDS, data.num_examples),
            (FEW_SHARDS, data.num_examples // 8),
        )
    )  # fmt: skip
    height, width, channels = IMAGE_SHAPE
    deep = draw_records(
        data.work / "records-uint16", data.num_examples, (height, width // 2, channels), "uint16"
    )
    if arguments.prepare:
        return
    fresh, resumed, little = (
        in_new_process(records=str(records), start_step=start_step)
        for records, start_step in ((few, 0), (few, NUM_RESUMED), (small, 0))
    )
    print(f"first batch after {fresh['first_batch']:.2f} s")
    print(f"resumed at step {NUM_RESUMED:,} after {resumed['first_batch']:.2f} s")
    print(
        f"memory of its own after two epochs {fresh['own_mib']:.0f} MiB; "
        f"with an eighth of the data {little['own_mib']:.0f} MiB"
    )
    pairs = (
        ("uint16", deep, "uint8 of as many bytes", few),
        (f"{MANY_SHARDS} shards", many, f"{FEW_SHARDS} shards", few),
    )
    for name, records, base_name, base in pairs:
        speed, base_speed = compare(
            [WayProcess("mmap", ReadData(path, data.work)) for path in (records, base)],
            arguments,
        )
        print(
            f"{name} {speed:,.0f} images/s, {base_name} {base_speed:,.0f}: {speed / base_speed:.2f}"
        )
    print_halves(ReadData(few, data.work), arguments)


def print_halves(data: ReadData, arguments: argparse.Namespace) -> None:
    """Compares one process on one core with two processes that share the batches, on two."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("mmap: two processes need two cores, this machine has one")
        return
    shares = {"batch_size": 2 * BATCH_SIZE, "num_replicas": 2}
    alone = WayProcess("mmap", data, cpu=cores[0])
    halves = [
        WayProcess("mmap", data, cpu=cores[index], replica_index=index, **shares)
        for index in range(2)
    ]
    speeds: dict[str, list[float]] = {"one": [], "two": []}
    for _ in range(arguments.rounds + 1):
        speeds["one"].append(alone.read_for(arguments.seconds)["images_per_second"])
        for half in halves:
            half.start(arguments.seconds)
        speeds["two"].append(sum(half.figures()["images_per_second"] for half in halves))
    for process in (alone, *halves):
        process.end()
    one, two = (statistics.median(speeds[name][1:]) for name in ("one", "two"))
    print(f"mmap: two halves {two:,.0f} images/s, one process {one:,.0f}: {two / one:.2f}")


def compare(processes: list[WayProcess], arguments: argparse.Namespace) -> list[float]:
    """Returns the median images/s of each process, from alternating rounds."""
    rounds = [
        [process.read_for(arguments.seconds)["images_per_second"] for process in processes]
        for _ in range(arguments.rounds + 1)
    ]
    for process in processes:
        process.end()
    return [statistics.median(speeds) for speeds in zip(*rounds[1:], strict=True)]


def in_new_process(**options: Any) -> dict[str, float]:
    """Calls `read_once` in a new process."""
    command = [sys.executable, __file__, "--one", json.dumps(options)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def read_once(records: str, **options: Any) -> dict[str, float]:
    """Returns the seconds to the first batch, without imports, and the memory after two epochs."""
    from tfrecord_io.reading.reader import make_dataset

    started = time.perf_counter()
    batches = iter(
        make_dataset(records, split="train", batch_size=BATCH_SIZE, epochs=None, **options)
    )
    next(batches)
    first_batch = time.perf_counter() - started
    for _ in range(2 * ReadData(Path(records), Path()).num_examples // BATCH_SIZE):
        next(batches)
    # RssAnon leaves out the pages of mapped files, which belong to the page cache.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (own_kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("RssAnon"))
    return {"first_batch": first_batch, "own_mib": int(own_kib) / 1024}


if __name__ == "__main__":
    main()

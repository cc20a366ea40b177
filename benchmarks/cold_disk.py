"""What does a cold disk cost the build, and the first epoch of a training?

    python benchmarks/cold_disk.py --sample sample.zip

A build from a zip that is not in the page cache is compared with one whose zip is; the first epoch
of a dataset that is not in it with `cat` of its shards, equally cold. Files leave the cache by
`posix_fadvise`; a virtual disk may still have them in its host's memory, and then hardly waits.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import sample_archive
from read_data import draw_records

_EPOCH = """
import sys, time
from tfrecord_io import make_batches, make_dataset
way, data = sys.argv[1:]
open_split = {"numpy": make_batches, "tf.data": make_dataset}[way]
batches = open_split(data, split="train", batch_size=64, seed=1)
start, num_images = time.perf_counter(), 0
for images, *_ in batches:
    num_images += len(images)
print(time.perf_counter() - start)
"""


def cool(folder: Path) -> None:
    """Takes the files of a folder out of the page cache."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            with contextlib.suppress(OSError):
                os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(folder: Path) -> float:
    """Reads the files of a folder as `cat` does; returns the seconds."""
    start = time.perf_counter()
    subprocess.run(["cat", *sorted(folder.iterdir())], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def epoch(way: str, folder: Path) -> float:
    """Returns the seconds of the first epoch of a dataset, in a process of its own."""
    words = [sys.executable, "-c", _EPOCH, way, str(folder)]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def compare(name: str, folder: Path, ways: dict[str, tuple[bool, Callable[[], float]]],
            rounds: int) -> None:  # fmt: skip
    """Prints the median seconds of each way, and the first way's as a share of the others'.

    Args:
        name: what is compared.
        folder: of the files that are read.
        ways: of each way, whether it begins with a cold disk, and a function that returns seconds.
        rounds: how often each way has its turn.
    """
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, (is_cold, run) in ways.items():
            (cool if is_cold else warm)(folder)
            seconds[way].append(run())
    medians = {way: statistics.median(turns) for way, turns in seconds.items()}
    first = next(iter(medians))
    for way, median in medians.items():
        turns = ", ".join(f"{turn:.2f}" for turn in seconds[way])
        print(f"| {name} | {way} | {turns} | {medians[first] / median:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=Path, help="zip of real scans [no builds]")
    parser.add_argument("--num_images", type=int, default=15_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    work = sample_archive.WORK_DIR.absolute() / "cold-disk"
    work.mkdir(parents=True, exist_ok=True)
    print("| what | way | seconds | speed against the first way |\n| --- | --- | --- | --- |")
    if args.sample:
        archive = sample_archive.make_archive(args.sample, args.num_images, stored=True)
        (work / "zip").mkdir(exist_ok=True)
        link = work / "zip" / "scans.zip"
        if not link.exists():
            os.link(archive, link)
        build = lambda: sample_archive.build_seconds(link)  # noqa: E731
        compare("build", link.parent, {"warm": (False, build), "cold": (True, build)}, args.rounds)
    records = draw_records(work / f"records-{args.num_images}", args.num_images)
    ways: dict[str, tuple[bool, Callable[[], float]]] = {"cat": (True, lambda: warm(records))}
    for way in ("numpy", "tf.data"):
        ways[way] = True, lambda way=way: epoch(way, records)
    compare("epoch 1", records, ways, args.rounds)


if __name__ == "__main__":
    main()

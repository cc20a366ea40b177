"""Does the memory of the build stay constant if the data grows tenfold?

    python benchmarks/build_memory.py --num_images 2000 84484 --stored

It builds twice and samples the resident memory of the launcher and its workers.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
from pathlib import Path

import psutil
from sample_archive import SAMPLE, build_command, make_archive

_SECONDS = 0.05


def peaks(path: Path) -> tuple[float, float]:
    """Returns the peak resident memory of the launcher and of the largest worker, in MiB."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = psutil.Popen(build_command(path), **quiet)
    launcher = worker = 0
    while True:
        with contextlib.suppress(psutil.Error):  # a process ended between two samples
            launcher = max(launcher, process.memory_info().rss)
            for child in process.children(recursive=True):
                worker = max(worker, child.memory_info().rss)
        with contextlib.suppress(psutil.TimeoutExpired):
            if process.wait(_SECONDS):
                raise SystemExit("the build failed")
            return launcher / 2**20, worker / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=Path, default=SAMPLE)
    parser.add_argument("--num_images", type=int, nargs=2, default=[2_000, 20_000])
    parser.add_argument("--stored", action="store_true", help="a zip without compression")
    args = parser.parse_args()
    print("| images | launcher, MiB | largest worker, MiB |\n| --- | --- | --- |")
    for num_images in args.num_images:
        launcher, worker = peaks(make_archive(args.sample, num_images, stored=args.stored))
        print(f"| {num_images:,} | {launcher:.0f} | {worker:.0f} |", flush=True)


if __name__ == "__main__":
    main()

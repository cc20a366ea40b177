"""Does the memory of the build stay constant if the data grows tenfold?

    python benchmarks/build_memory.py
    python benchmarks/build_memory.py --num_images 2000 84484 --stored

It builds 2,000 and 20,000 images and samples the resident memory of the launcher and its workers.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import sample_archive

_SECONDS = 0.05


def peaks(path: Path) -> tuple[float, float]:
    """Returns the peak resident memory of the launcher and of the largest worker, in MiB."""
    output = sample_archive.WORK_DIR / "build_memory"
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, "pipelines/build_tfrecords.py", "--source", "archive"]
    process = psutil.Popen(
        [*command, "--input", str(path), "--output", str(output)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    launcher = worker = 0
    while True:
        try:
            launcher = max(launcher, process.memory_info().rss)
            for child in process.children(recursive=True):
                worker = max(worker, child.memory_info().rss)
        except psutil.Error:  # a process ended between two samples
            pass
        try:
            if process.wait(_SECONDS):
                raise SystemExit("the build failed")
            break
        except psutil.TimeoutExpired:
            continue
    shutil.rmtree(output)
    return launcher / 2**20, worker / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--sample", type=Path, default=Path("../shared/data/kermany2018-sample.zip")
    )
    parser.add_argument("--num_images", type=int, nargs=2, default=[2_000, 20_000])
    parser.add_argument("--stored", action="store_true", help="a zip without compression")
    args = parser.parse_args()
    print("| images | launcher, MiB | largest worker, MiB |")
    print("| --- | --- | --- |")
    rows = {}
    for num_images in args.num_images:
        path = sample_archive.make_archive(args.sample, num_images, stored=args.stored)
        rows[num_images] = peaks(path)
        print(
            f"| {num_images:,} | {rows[num_images][0]:.0f} | {rows[num_images][1]:.0f} |",
            flush=True,
        )
    few, many = args.num_images
    ratios = [large / small for small, large in zip(rows[few], rows[many], strict=True)]
    print(f"\nratios, {many:,} to {few:,} images: launcher {ratios[0]:.2f}, worker {ratios[1]:.2f}")


if __name__ == "__main__":
    main()

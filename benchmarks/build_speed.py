"""How close is the build to process pools that only decode and resize the same files?

    python benchmarks/build_speed.py --num_images 84484 --stored

One pool uses Pillow, as the build does; the other simplejpeg and OpenCV, which are faster and give
other pixels. All read the same zip on the same cores in one run. The build's time is that of the
whole command: interpreter, imports, listing, planning, engine, writing, checking, manifest. The
pools run before and after each build, and the limit is the mean of both, because the speed of a
shared machine drifts. With `--cold` the zip is out of the page cache when a build begins. A
deflated zip flatters the build, which inflates faster than the pools; with `--stored` the zip is
not compressed.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import io
import multiprocessing
import os
import statistics
import subprocess
import time
import zipfile
from pathlib import Path

from PIL import Image
from sample_archive import SAMPLE, build_command, make_archive

SIZE = (224, 224)
_archive: zipfile.ZipFile


def _open_archive(path: Path) -> None:
    global _archive
    _archive = zipfile.ZipFile(path)


def _by_pillow(name: str) -> int:
    with Image.open(io.BytesIO(_archive.read(name))) as image:
        return len(image.resize(SIZE, Image.Resampling.BILINEAR).tobytes())


def _by_simplejpeg(name: str) -> int:
    import cv2
    import simplejpeg

    pixels = simplejpeg.decode_jpeg(_archive.read(name), "GRAY")
    return len(cv2.resize(pixels, SIZE, interpolation=cv2.INTER_AREA).tobytes())


POOLS = {"Pillow": _by_pillow}
if importlib.util.find_spec("simplejpeg") and importlib.util.find_spec("cv2"):
    POOLS["simplejpeg and OpenCV"] = _by_simplejpeg


def pool_seconds(path: Path, decoder: str) -> float:
    """Returns the wall time of a pool for all images of a zip."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".jpeg")]
    start = time.perf_counter()
    with multiprocessing.Pool(len(os.sched_getaffinity(0)), _open_archive, (path,)) as pool:
        total = sum(pool.imap_unordered(POOLS[decoder], names, chunksize=64))
    assert total == len(names) * SIZE[0] * SIZE[1]
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--num_images", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cold", action="store_true", help="build from a cold disk")
    parser.add_argument("--stored", action="store_true", help="a zip without compression")
    parser.add_argument("--sample", type=Path, default=SAMPLE)
    args = parser.parse_args()
    path = make_archive(args.sample, args.num_images, stored=args.stored)
    runs = {name: functools.partial(pool_seconds, path, name) for name in POOLS}
    print(f"{args.num_images:,} images, in images/s:\n")
    print("| run | build | pool | before, after | ratio |\n| --- | --- | --- | --- | --- |")
    ratios: dict[str, list[float]] = {name: [] for name in POOLS}
    before = {name: run() for name, run in runs.items()}
    for number in range(args.repeats):
        if args.cold:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        command = build_command(path)
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        build = time.perf_counter() - start
        after = {name: run() for name, run in runs.items()}
        for name in POOLS:
            ratios[name].append((before[name] + after[name]) / 2 / build)
            speeds = [args.num_images / seconds for seconds in (build, before[name], after[name])]
            print(
                f"| {number + 1} | {speeds[0]:.0f} | {name} | {speeds[1]:.0f}, {speeds[2]:.0f} "
                f"| {ratios[name][-1]:.3f} |",
                flush=True,
            )
        before = after
    for name, found in ratios.items():
        print(f"\nmedian ratio {statistics.median(found):.3f} against {name}")


if __name__ == "__main__":
    main()

"""How long does a build take that copies what an earlier dataset has, with `--reuse`?

    python benchmarks/reuse_speed.py --num_images 84484

Against the same build from nothing, in one run. The earlier dataset is of the first images of the
same archive. All files differ, so that each copied record is another one; their pixels are those of
the sample again and again. Both times are those of the whole command. Whether both leave the same
bytes is checked by the SHA-256 of all shards and of examples.parquet.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import statistics
from pathlib import Path

import sample_archive


def digests(output: Path) -> dict[str, str]:
    """Returns the SHA-256 of the shards and the table of examples, by name."""
    paths = [*sorted(output.glob("*.tfrecord")), output / "examples.parquet"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_images", type=int, default=20_000)
    parser.add_argument("--share", type=float, default=0.98, help="of the images that are copied")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--stored", action="store_true", help="a zip without compression")
    parser.add_argument(
        "--sample", type=Path, default=Path("../shared/data/kermany2018-sample.zip")
    )
    args = parser.parse_args()
    num_old = round(args.share * args.num_images)
    old, output = sample_archive.WORK_DIR / "reuse_old", sample_archive.WORK_DIR / "reuse"
    few, many = (
        sample_archive.make_archive(args.sample, number, stored=args.stored, unique=True)
        for number in (num_old, args.num_images)
    )
    sample_archive.build(few, old)
    print(f"{args.num_images:,} images; the earlier dataset has {num_old:,} of them:\n")
    print("| run | from nothing, s | with --reuse, s | ratio |")
    print("| --- | --- | --- | --- |")
    ratios = []
    for run in range(args.repeats):
        without = sample_archive.build(many, output)
        wanted = digests(output)
        reusing = sample_archive.build(many, output, f"--reuse={old}")
        assert digests(output) == wanted, "the bytes differ"
        ratios.append(reusing / without)
        print(f"| {run + 1} | {without:.1f} | {reusing:.1f} | {ratios[-1]:.3f} |", flush=True)
    print(f"\nmedian ratio {statistics.median(ratios):.3f} (wanted: 0.5), the same bytes")
    shutil.rmtree(old)
    shutil.rmtree(output)


if __name__ == "__main__":
    main()

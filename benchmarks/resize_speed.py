"""How fast is the resize in C, and are its bytes those of Pillow?

    python benchmarks/resize_speed.py --num_shapes 20000

First real scans, of 512×496 pixels in the Kermany data, become 224×224 on one core: the kernel and
Pillow take turns, and the ratio is that of their fastest rounds. The scans are few, so that they
are in the processor's cache, as one that was just decoded is. Then come pictures of random shapes,
filters and content.
"""

from __future__ import annotations

import argparse
import io
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from sample_archive import SAMPLE

from tfrecord_io.decoding import resize
from tfrecord_io.decoding.options import Preprocessing


def real_scans(sample: Path, num_scans: int) -> list[Image.Image]:
    """Returns decoded scans of the commonest size among the first ones."""
    scans = []
    with zipfile.ZipFile(sample) as archive:
        names = [name for name in archive.namelist() if name.endswith(".jpeg")]
        for name in names[: 2 * num_scans]:
            scans.append(Image.open(io.BytesIO(archive.read(name))))
            scans[-1].load()
    sizes = [scan.size for scan in scans]
    size = max(sizes, key=sizes.count)
    return [scan for scan in scans if scan.size == size][:num_scans]


def speed(scans: list[Image.Image], rounds: int) -> tuple[float, float]:
    """Returns the microseconds a scan of the kernel and of Pillow."""
    options, box = Preprocessing(), (0, 0, 224, 224)
    resizers: list[Callable[[Image.Image], bytes | None]] = [
        lambda scan: resize._by_kernel(scan, box, options),
        lambda scan: resize._by_pillow(scan, box, options).tobytes(),
    ]
    best = [float("inf")] * 2
    for _ in range(rounds):
        for place, resizer in enumerate(resizers):
            start = time.perf_counter()
            for scan in scans:
                resizer(scan)
            best[place] = min(best[place], (time.perf_counter() - start) / len(scans) * 1e6)
    return best[0], best[1]


def num_different(num_shapes: int, seed: int) -> int:
    """Returns how many of random pictures have other bytes than Pillow's."""
    generator = np.random.default_rng(seed)
    different = 0
    for _ in range(num_shapes):
        # Most sides are short, so that there are many pictures.
        width, height, new_width, new_height = np.exp(generator.uniform(0, np.log(3001), 4))
        channels, content = int(generator.choice([1, 3])), generator.integers(3)
        shape = (int(height), int(width)) if channels == 1 else (int(height), int(width), 3)
        pixels = generator.integers(0, 256, shape, np.uint8)
        pixels = [pixels, pixels // 128 * 255, pixels | 255][content]
        options = Preprocessing(
            width=int(new_width), height=int(new_height), channels=channels,
            resize=str(generator.choice(["bilinear", "box"])),
            fit=str(generator.choice(["stretch", "pad"])),
        )  # fmt: skip
        image = Image.fromarray(pixels)
        box = options.box(*image.size)
        found = resize._by_kernel(image, box, options)
        expected = resize._by_pillow(image, box, options).tobytes()
        different += found is not None and found != expected
    return different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_shapes", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--sample", type=Path, default=SAMPLE)
    args = parser.parse_args()
    print(f"resizes with {resize.resizer()}")
    kernel, pillow = speed(real_scans(args.sample, 3), args.rounds)
    print(f"µs a scan: kernel {kernel:.0f}, Pillow {pillow:.0f}, ratio {pillow / kernel:.1f}"
          " (wanted: 7)")  # fmt: skip
    different = num_different(args.num_shapes, args.seed)
    print(f"{different} of {args.num_shapes:,} random pictures have other bytes (wanted: 0)")


if __name__ == "__main__":
    main()

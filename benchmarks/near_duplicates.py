"""How well are near duplicates found?

    python benchmarks/near_duplicates.py --input kermany2018-sample.zip
    python benchmarks/near_duplicates.py --input SCANS --sizes 32 48 64 96 128 224 --num_copied 150

It measures recall on copies of scans, and precision on all pairs of different scans, with the
functions of the build and the audit; the thresholds come from it. SCANS is the sample, or a folder
that the synthetic source wrote.
"""

from __future__ import annotations

import argparse
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tfrecord_io.auditing import twins
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.preprocess import decode_image
from tfrecord_io.format import side_facts

Change = Callable[[Image.Image], Image.Image]


def pointwise(change: Callable[[int], float]) -> Change:
    """Returns a change of every grey value by itself."""
    return lambda image: image.point(lambda value: min(max(round(change(value)), 0), 255))


def resized(by: float) -> Change:
    """Returns a change of the size by a factor."""
    return lambda i: i.resize((round(i.width * by), round(i.height * by)), BICUBIC)


def cropped(share: float) -> Change:
    """Returns a crop that cuts off this share of width and height."""

    def crop(image: Image.Image) -> Image.Image:
        x, y = round(image.width * share / 2), round(image.height * share / 2)
        return image.crop((x, y, image.width - x, image.height - y))

    return crop


def same(image: Image.Image) -> Image.Image:
    return image


BICUBIC = Image.Resampling.BICUBIC
#: (name, change, JPEG quality) of copies that must be found.
COPIES: list[tuple[str, Change, int]] = [
    *((f"quality {q}", same, q) for q in (50, 60, 75, 85, 95)),
    *(
        (f"brightness {by:+d}", pointwise(lambda value, by=by: value + by), 90)
        for by in (-20, -10, 10, 20, 40)
    ),
    *((f"contrast ×{by}", pointwise(lambda value, by=by: value * by), 90) for by in (0.8, 1.25)),
    *((f"size ×{by}", resized(by), 90) for by in (0.5, 0.75, 1.5)),
    ("512×512", lambda image: image.resize((512, 512), Image.Resampling.BILINEAR), 85),
]
#: Copies that need not be found.
BEYOND: list[tuple[str, Change, int]] = [
    ("gamma 1.5", pointwise(lambda value: 255 * (value / 255) ** (1 / 1.5)), 90),
    ("2 % cropped", cropped(0.02), 90),
    ("5 % cropped", cropped(0.05), 90),
    ("quality 20", same, 20),
    ("mirrored", lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), 90),
]


class Pictures:
    """The hashes and the fine detail of pictures, stored with a size of so many pixels a side."""

    def __init__(self, files: list[bytes], size: int) -> None:
        options = Preprocessing(height=size, width=size, fit="stretch")
        stored = [decode_image(data, options).pixels for data in files]
        pixels = np.frombuffer(b"".join(stored), np.uint8).reshape(-1, size, size, 1)
        self.hashes = side_facts.perceptual_hash(side_facts.thumbnails(pixels))
        self.details = np.stack([twins.detail(Image.fromarray(each[..., 0])) for each in pixels])


def copy_of(data: bytes, change: Change, quality: int) -> bytes:
    """Returns a changed image as a JPEG file."""
    with Image.open(io.BytesIO(data)) as image, io.BytesIO() as file:
        change(image.convert("L")).save(file, "JPEG", quality=quality)
        return file.getvalue()


def compare(a: np.ndarray, b: np.ndarray, similarity: np.ndarray, size: int) -> Any:
    """Returns the bits in which hashes differ, and whether the audit takes each pair for copies."""
    bits = np.bitwise_count(a ^ b).sum(axis=-1)
    return bits, (bits <= twins.MAX_DISTANCE) & (similarity >= twins.min_similarity(size))


def report(names: list[str], files: list[bytes], size: int, num_copied: int) -> None:
    """Prints how far copies and different scans are apart, and which the audit takes for copies.

    The patient is between the dashes of a name. Pictures are stored with `size` pixels a side.
    """
    scans = Pictures(files, size)
    chosen = np.sort(np.random.default_rng(0).permutation(len(files))[:num_copied])
    needed = twins.min_similarity(size)
    print(f"\n{len(files)} scans, stored at {size}×{size}; similarity asked for: {needed:.2f}\n")
    print("| copy | bits, median | bits, most | similarity, least | found |")
    print("| --- | --- | --- | --- | --- |")
    for title, group in (("promised", COPIES), ("beyond", BEYOND)):
        found = []
        for name, change, quality in group:
            copies = Pictures([copy_of(files[row], change, quality) for row in chosen], size)
            alike = (scans.details[chosen] * copies.details).sum(1)
            bits, taken = compare(scans.hashes[chosen], copies.hashes, alike, size)
            found.append(taken)
            print(
                f"| {title}: {name} | {np.median(bits):.0f} | {bits.max()} | {alike.min():.3f} | "
                f"{found[-1].mean():.1%} |"
            )
        print(f"| **{title}, all {np.size(found):,}** | | | | **{np.mean(found):.2%}** |")
    patients = np.array([name.rsplit("/", 1)[-1].split("-")[1] for name in names])
    first, second = np.triu_indices(len(names), 1)
    alike = (scans.details @ scans.details.T)[first, second]
    bits, taken = compare(scans.hashes[first], scans.hashes[second], alike, size)
    same_patient = patients[first] == patients[second]
    print(
        "\n| pairs of different scans | pairs | least bits | most similarity | taken for copies |"
    )
    print("| --- | --- | --- | --- | --- |")
    for title, rows in (("of one patient", same_patient), ("of different patients", ~same_patient)):
        least = ", ".join(map(str, np.sort(bits[rows])[:2]))
        most = ", ".join(f"{value:.3f}" for value in np.sort(alike[rows])[::-1][:2])
        print(f"| {title} | {rows.sum():,} | {least} | {most} | {taken[rows].sum()} |", flush=True)
    for pair in np.flatnonzero(taken):
        print(f"\ntaken: {names[first[pair]]} and {names[second[pair]]}: {bits[pair]} bits, "
              f"similarity {alike[pair]:.2f}")  # fmt: skip


def read_scans(path: Path, most: int) -> tuple[list[str], list[bytes]]:
    """Returns names and contents of the scans in the sample archive or in a folder."""
    if path.is_dir():
        paths = sorted(path.rglob("*.jpeg"))[:most]
        return [str(file) for file in paths], [file.read_bytes() for file in paths]
    with zipfile.ZipFile(path) as archive:
        names = [n for n in archive.namelist() if n.startswith("OCT2017 /") and n.endswith(".jpeg")]
        return names[:most], [archive.read(name) for name in names[:most]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", required=True, help="kermany2018-sample.zip, or a folder")
    parser.add_argument("--sizes", type=int, nargs="*", default=[224], help="stored sizes [224]")
    parser.add_argument("--num_images", type=int, default=1_000_000, help="most scans to use")
    parser.add_argument("--num_copied", type=int, default=1_000_000, help="most scans to copy")
    args = parser.parse_args()
    names, files = read_scans(Path(args.input), args.num_images)
    for size in args.sizes:
        report(names, files, size, args.num_copied)


if __name__ == "__main__":
    main()

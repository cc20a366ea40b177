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

import numpy as np
from PIL import Image

from tfrecord_io.auditing import twins
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.preprocess import decode_image
from tfrecord_io.format import side_facts

Change = Callable[[Image.Image], Image.Image]


def shifted(image: Image.Image, by: int) -> Image.Image:
    """Returns a grey image with a constant added to its pixels."""
    return image.point(lambda value: min(max(value + by, 0), 255))


def scaled(image: Image.Image, by: float) -> Image.Image:
    """Returns a grey image with its pixels multiplied by a factor."""
    return image.point(lambda value: min(round(value * by), 255))


def resized(image: Image.Image, by: float) -> Image.Image:
    """Returns an image resized by a factor."""
    size = round(image.width * by), round(image.height * by)
    return image.resize(size, Image.Resampling.BICUBIC)


def cropped(image: Image.Image, share: float) -> Image.Image:
    """Returns an image without this share of its width and height."""
    x, y = round(image.width * share / 2), round(image.height * share / 2)
    return image.crop((x, y, image.width - x, image.height - y))


#: (name, change, JPEG quality) of copies that must be found.
COPIES: list[tuple[str, Change, int]] = [
    *((f"quality {q}", lambda image: image, q) for q in (50, 60, 75, 85, 95)),
    *(
        (f"brightness {by:+d}", lambda image, by=by: shifted(image, by), 90)
        for by in (-20, -10, 10, 20, 40)
    ),
    *((f"contrast ×{by}", lambda image, by=by: scaled(image, by), 90) for by in (0.8, 1.25)),
    *((f"size ×{by}", lambda image, by=by: resized(image, by), 90) for by in (0.5, 0.75, 1.5)),
    ("512×512", lambda image: image.resize((512, 512), Image.Resampling.BILINEAR), 85),
]
#: Copies that need not be found.
BEYOND: list[tuple[str, Change, int]] = [
    ("gamma 1.5", lambda i: i.point(lambda v: round(255 * (v / 255) ** (1 / 1.5))), 90),
    ("2 % cropped", lambda image: cropped(image, 0.02), 90),
    ("5 % cropped", lambda image: cropped(image, 0.05), 90),
    ("quality 20", lambda image: image, 20),
    ("mirrored", lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), 90),
]


class Pictures:
    """The hashes and the fine detail of pictures, stored with a size of so many pixels a side."""

    def __init__(self, files: list[bytes], size: int) -> None:
        options = Preprocessing(height=size, width=size)
        stored = [decode_image(data, options).pixels for data in files]
        pixels = np.frombuffer(b"".join(stored), np.uint8).reshape(-1, size, size, 1)
        self.hashes = side_facts.perceptual_hash(side_facts.thumbnails(pixels))
        self.details = np.stack([twins.detail(Image.fromarray(each[..., 0])) for each in pixels])


def copy_of(data: bytes, change: Change, quality: int) -> bytes:
    """Returns a changed image as a JPEG file."""
    with Image.open(io.BytesIO(data)) as image, io.BytesIO() as file:
        change(image.convert("L")).save(file, "JPEG", quality=quality)
        return file.getvalue()


def distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns the number of bits in which hashes differ."""
    return np.bitwise_count(a ^ b).sum(axis=-1)


def report(names: list[str], files: list[bytes], size: int, num_copied: int) -> None:
    """Prints how far copies and different scans are apart, and which the audit takes for copies.

    Args:
        names: of the scans, with the patient between the dashes.
        files: the scans, as image files.
        size: pixels a side of the stored pictures.
        num_copied: how many scans have copies.
    """
    needed = twins.min_similarity(size)
    scans = Pictures(files, size)
    chosen = np.sort(np.random.default_rng(0).permutation(len(files))[:num_copied])
    print(f"\n{len(files)} scans, stored at {size}×{size}; similarity asked for: {needed:.2f}\n")
    print("| copy | bits, median | bits, most | similarity, least | found |")
    print("| --- | --- | --- | --- | --- |")
    for title, group in (("promised", COPIES), ("beyond", BEYOND)):
        found = []
        for name, change, quality in group:
            copies = Pictures([copy_of(files[row], change, quality) for row in chosen], size)
            bits = distances(scans.hashes[chosen], copies.hashes)
            alike = (scans.details[chosen] * copies.details).sum(1)
            found.append((bits <= twins.MAX_DISTANCE) & (alike >= needed))
            print(
                f"| {title}: {name} | {np.median(bits):.0f} | {bits.max()} | {alike.min():.3f} | "
                f"{found[-1].mean():.1%} |"
            )
        print(f"| **{title}, all {np.size(found):,}** | | | | **{np.mean(found):.2%}** |")
    patients = np.array([name.rsplit("/", 1)[-1].split("-")[1] for name in names])
    first, second = np.triu_indices(len(names), 1)
    bits = distances(scans.hashes[first], scans.hashes[second])
    alike = (scans.details @ scans.details.T)[first, second]
    taken = (bits <= twins.MAX_DISTANCE) & (alike >= needed)
    same = patients[first] == patients[second]
    print(
        "\n| pairs of different scans | pairs | least bits | most similarity | taken for copies |"
    )
    print("| --- | --- | --- | --- | --- |")
    for title, rows in (("of one patient", same), ("of different patients", ~same)):
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
        return [file.relative_to(path).as_posix() for file in paths], [
            file.read_bytes() for file in paths
        ]
    with zipfile.ZipFile(path) as archive:
        names = [
            name
            for name in archive.namelist()
            if name.startswith("OCT2017 /") and name.endswith(".jpeg") and "/._" not in name
        ][:most]
        return names, [archive.read(name) for name in names]


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

"""How well and how fast are near duplicates found?

    python benchmarks/near_duplicates.py --input kermany2018-sample.zip
    python benchmarks/near_duplicates.py --input kermany2018-sample.zip --search 100000 1000000
    python benchmarks/near_duplicates.py --input SCANS --sizes 28 48 64 96 128 224

The first command measures recall on copies of real scans, and precision on all pairs of different
scans, with the functions of the build and the audit. The second adds one copy of each real scan to
many other hashes and times the search for the copies. The third shows for several stored sizes how
far copies and different scans are apart; the thresholds come from it. SCANS is the sample, or a
folder that the synthetic source wrote.
"""

from __future__ import annotations

import argparse
import io
import resource
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from tfrecord_io.auditing import twins
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.preprocess import DecodedImage, decode_image
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
    """Decoded pictures with their hashes and fine detail.

    Args:
        decoded: the pictures.
        shape: (height, width) of all pictures.
    """

    def __init__(self, decoded: list[DecodedImage], shape: tuple[int, int]) -> None:
        images = [Image.frombytes("L", shape[::-1], image.pixels) for image in decoded]
        self.hashes = hashes_of(decoded, shape)
        self.details = np.stack([twins.detail(image) for image in images])


def hashes_of(decoded: list[DecodedImage], shape: tuple[int, int]) -> np.ndarray:
    """Returns the perceptual hashes of pictures of one shape (height, width)."""
    pictures = np.frombuffer(b"".join(image.pixels for image in decoded), np.uint8)
    thumbnails = side_facts.thumbnails(pictures.reshape(-1, *shape, 1))
    return side_facts.perceptual_hash(thumbnails)


def distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns the number of bits in which hashes differ."""
    return np.bitwise_count(a ^ b).sum(axis=-1)


def report_copies(names: list[str], files: list[bytes], preprocessing: Preprocessing) -> None:
    """Prints how far copies are from their originals, and which are found."""
    shape = preprocessing.height, preprocessing.width
    originals = Pictures([decode_image(data, preprocessing) for data in files], shape)
    print(f"{len(files)} scans, stored as {shape[1]}×{shape[0]}\n")
    print("| copy | bits, median | bits, most | similarity, least | found |")
    print("| --- | --- | --- | --- | --- |")
    for title, group in (("", COPIES), ("beyond: ", BEYOND)):
        found = total = 0
        for name, change, quality in group:
            decoded = []
            for data in files:
                with Image.open(io.BytesIO(data)) as image, io.BytesIO() as file:
                    change(image.convert("L")).save(file, "JPEG", quality=quality)
                    decoded.append(decode_image(file.getvalue(), preprocessing))
            copies = Pictures(decoded, shape)
            bits = distances(originals.hashes, copies.hashes)
            alike = (originals.details * copies.details).sum(1)
            hits = taken_for_copies(bits, alike, shape)
            found, total = found + hits.sum(), total + len(hits)
            print(
                f"| {title}{name} | {np.median(bits):.0f} | {bits.max()} | {alike.min():.2f} | "
                f"{hits.mean():.1%} |"
            )
        print(f"| **{title or 'promised: '}{total:,} copies** | | | | **{found / total:.2%}** |")
    report_others(names, originals, shape)


def taken_for_copies(bits: np.ndarray, alike: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Returns which pairs are near duplicates by the rules of the audit."""
    is_alike = alike >= twins.min_similarity(min(shape))
    return (bits <= twins.MAX_DISTANCE) & is_alike


def patients_of(names: list[str]) -> np.ndarray:
    """Returns the patient of each scan, from its file name."""
    return np.array([name.rsplit("/", 1)[-1].split("-")[1] for name in names])


def compare_all(originals: Pictures) -> tuple[np.ndarray, np.ndarray]:
    """Returns bits and similarity of all pairs, in the order of `np.triu_indices`."""
    hashes = originals.hashes
    bits = np.concatenate([distances(hashes[i], hashes[i + 1 :]) for i in range(len(hashes) - 1)])
    alike = originals.details @ originals.details.T
    return bits, alike[np.triu_indices(len(hashes), 1)]


def report_others(names: list[str], originals: Pictures, shape: tuple[int, int]) -> None:
    """Prints how far different scans are apart, separately for pairs of one patient."""
    patients = patients_of(names)
    first, second = np.triu_indices(len(names), 1)
    bits, alike = compare_all(originals)
    same = patients[first] == patients[second]
    print(
        "\n| pairs of different scans | pairs | bits, least | similarity, most | taken for copies |"
    )
    print("| --- | --- | --- | --- | --- |")
    taken = taken_for_copies(bits, alike, shape)
    for title, chosen in (("of one patient", same), ("of different patients", ~same)):
        print(
            f"| {title} | {chosen.sum():,} | {_join(np.sort(bits[chosen])[:2])} | "
            f"{_join(np.sort(alike[chosen])[::-1][:2])} | {taken[chosen].sum()} |"
        )
    for pair in np.flatnonzero(taken):
        print(
            f"\ntaken: {names[first[pair]]} and {names[second[pair]]}: {bits[pair]} bits, "
            f"similarity {alike[pair]:.2f}"
        )


def _join(values: np.ndarray) -> str:
    return ", ".join(f"{value:.2f}" if values.dtype.kind == "f" else str(value) for value in values)


def report_sizes(names: list[str], files: list[bytes], sizes: list[int], num_copied: int) -> None:
    """Prints for each stored size how far copies and scans of different patients are apart."""
    chosen = np.sort(np.random.default_rng(0).permutation(len(files))[:num_copied])
    copies = []
    for _, change, quality in COPIES:
        for row in chosen:
            with Image.open(io.BytesIO(files[row])) as image, io.BytesIO() as file:
                change(image.convert("L")).save(file, "JPEG", quality=quality)
                copies.append(file.getvalue())
    patients = patients_of(names)
    first, second = np.triu_indices(len(names), 1)
    differ = patients[first] != patients[second]
    print(
        f"{len(files):,} scans, {len(copies):,} copies of {len(chosen)} of them, "
        f"{differ.sum():,} pairs of different patients\n\n"
        "| side | needed | copies: least alike | found | pairs: most alike | of those proposed | "
        "proposed | taken for copies |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    for size in sizes:
        preprocessing, shape = Preprocessing(height=size, width=size), (size, size)
        originals = Pictures([decode_image(data, preprocessing) for data in files], shape)
        changed = Pictures([decode_image(data, preprocessing) for data in copies], shape)
        rows = np.tile(chosen, len(COPIES))
        copied = (originals.details[rows] * changed.details).sum(1)
        found = taken_for_copies(distances(originals.hashes[rows], changed.hashes), copied, shape)
        bits, alike = compare_all(originals)
        bits, alike = bits[differ], alike[differ]
        proposed = alike[bits <= twins.MAX_DISTANCE]
        taken = taken_for_copies(bits, alike, shape).sum()
        # Smaller sizes are shown to explain why the audit does not search in them.
        looked_for = size >= twins.MIN_SIDE
        needed = f"{twins.min_similarity(size):.2f}" if looked_for else "–"
        print(
            f"| {size} | {needed} | "
            f"{copied.min():.3f} | {f'{found.mean():.1%}' if looked_for else '–'} | "
            f"{alike.max():.3f} | {proposed.max(initial=0):.3f} | {len(proposed):,} | "
            f"{taken if looked_for else '–'} |",
            flush=True,
        )


def crowd(files: list[bytes], num_hashes: int) -> np.ndarray:
    """Returns hashes of real scans, each moved, stretched, sheared and perhaps mirrored at random.

    Args:
        files: the scans, as image files.
        num_hashes: number of hashes.
    """
    random = np.random.default_rng(0)
    small = []
    for data in files:
        with Image.open(io.BytesIO(data)) as image:
            small.append(image.convert("L").resize((64, 64), Image.Resampling.BOX))
    hashes = np.empty((num_hashes, side_facts.HASH_LENGTH), np.uint8)
    for number in range(num_hashes):
        image = small[number % len(small)]
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        shear = random.uniform(-0.15, 0.15)
        stretch_x, stretch_y = random.uniform(0.8, 1.1, 2)
        move_x, move_y = random.uniform(-14, 14, 2)
        moved = image.transform(
            (32, 32),
            Image.Transform.AFFINE,
            (2 * stretch_x, shear, move_x, shear, 2 * stretch_y, move_y),
            Image.Resampling.BILINEAR,
        )
        (hashes[number],) = side_facts.perceptual_hash(np.asarray(moved)[None])
    return hashes


def report_search(files: list[bytes], sizes: list[int], preprocessing: Preprocessing) -> None:
    """Prints the time and the recall of a search for planted copies among other hashes."""
    random = np.random.default_rng(1)
    originals = [decode_image(data, preprocessing) for data in files]
    copies = []
    for data in files:
        _, change, quality = COPIES[random.integers(len(COPIES))]
        with Image.open(io.BytesIO(data)) as image, io.BytesIO() as file:
            change(image.convert("L")).save(file, "JPEG", quality=quality)
            copies.append(decode_image(file.getvalue(), preprocessing))
    planted = hashes_of([*originals, *copies], (preprocessing.height, preprocessing.width))
    print("| hashes | seconds | planted pairs found | pairs proposed | memory added, MB |")
    print("| --- | --- | --- | --- | --- |")
    for size in sizes:
        hashes = np.concatenate([planted, crowd(files, size - len(planted))])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        pairs, _, _ = twins.find_pairs(hashes)
        seconds = time.perf_counter() - start
        added = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        found = set(map(tuple, pairs.tolist()))
        hits = sum((row, row + len(files)) in found for row in range(len(files)))
        print(
            f"| {size:,} | {seconds:.1f} | {hits:,} of {len(files):,} | {len(pairs):,} | "
            f"{added:.0f} |",
            flush=True,
        )


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
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--num_images", type=int, default=1_000_000, help="most scans to use")
    parser.add_argument("--search", type=int, nargs="*", help="search so many hashes")
    parser.add_argument("--sizes", type=int, nargs="*", help="compare these stored sizes")
    parser.add_argument("--num_copied", type=int, default=150, help="scans copied for --sizes")
    args = parser.parse_args()
    preprocessing = Preprocessing(height=args.image_size, width=args.image_size)
    names, files = read_scans(Path(args.input), args.num_images)
    if args.sizes:
        report_sizes(names, files, args.sizes, args.num_copied)
    elif args.search:
        report_search(files, args.search, preprocessing)
    else:
        report_copies(names, files, preprocessing)


if __name__ == "__main__":
    main()

"""Draws a contact sheet of a dataset's images."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tfrecord_io import manifest, schema, visible
from tfrecord_io.kinds.numbers import ranges_of
from tfrecord_io.printing import printable, refuse
from tfrecord_io.shards import map_records

_MARGIN = 6
_CAPTION_HEIGHT = 18


def contact_sheet(
    directory: str | Path, split: str, *, num_per_class: int = 6, tile_size: int = 160
) -> Image.Image:
    """Returns a picture with one row of stored images per class, or per range of a number.

    Args:
        directory: folder of the dataset.
        split: name of the split; its first examples of each class are shown, in stored order.
        num_per_class: number of images in a row.
        tile_size: longer side of a tile in pixels.

    Raises:
        manifest.ManifestError: if the dataset is unusable or has no such split.
        OSError: if a shard cannot be read.
    """
    dataset = manifest.Manifest.load(directory)
    shards = [
        map_records(Path(directory) / shard.name, shard.num_bytes, dataset.layout.stride)
        for shard in dataset.split(split).shards
        if shard.num_examples
    ]
    names, counts, labels = _classes(dataset, split, shards)
    images = _first_of_each_class(dataset.layout, shards, labels, len(names), num_per_class)
    height, width, _ = dataset.image_shape
    scale = tile_size / max(height, width)
    tile = max(round(width * scale), 1), max(round(height * scale), 1)
    row_height = tile[1] + _CAPTION_HEIGHT + _MARGIN
    size = _MARGIN + num_per_class * (tile[0] + _MARGIN), _MARGIN + len(names) * row_height
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(13)
    for row, (label, members) in enumerate(zip(names, images, strict=True)):
        top = _MARGIN + row * row_height
        caption = f"{printable(label)} · {split} · {counts[row]:,} examples"
        draw.text((_MARGIN, top), caption, fill="black", font=font)
        for column, pixels in enumerate(members):
            picture = visible.picture(pixels)
            place = (_MARGIN + column * (tile[0] + _MARGIN), top + _CAPTION_HEIGHT)
            sheet.paste(picture.convert("RGB").resize(tile, Image.Resampling.LANCZOS), place)
    return sheet


def _classes(
    dataset: manifest.Manifest, split: str, shards: Sequence[np.ndarray]
) -> tuple[Sequence[str], Sequence[int], Iterable[np.ndarray]]:
    """Returns names and counts of the rows, and which examples of each shard are in which row."""
    labels = map(dataset.layout.labels_in, shards)
    if not dataset.label_kind.is_number or not shards:
        return dataset.label_names, dataset.split(split).label_counts, labels
    numbers = [values[:, 0] for values in labels]
    names, codes = ranges_of(np.concatenate(numbers))
    members = codes[:, None] == np.arange(len(names))
    ends = np.cumsum([len(values) for values in numbers])[:-1]
    return names, members.sum(0).tolist(), np.split(members, ends)


def _first_of_each_class(
    layout: schema.RecordLayout,
    shards: Sequence[np.ndarray],
    labels: Iterable[np.ndarray],
    num_classes: int,
    num_per_class: int,
) -> list[list[np.ndarray]]:
    """Returns, for each class, up to `num_per_class` images, [height, width, channels]."""
    images: list[list[np.ndarray]] = [[] for _ in range(num_classes)]
    for records, members in zip(shards, labels, strict=True):
        # An image with several labels is shown for each of them.
        for row, index in np.argwhere(members).tolist():
            if len(images[index]) < num_per_class:
                images[index].append(layout.images_in(records[row : row + 1])[0].copy())
        if all(len(members) == num_per_class for members in images):
            break
    return images


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `python -m tfrecord_io show`."""
    parser.add_argument("directory", help="the dataset")
    parser.add_argument("--split", default="train", help="the split to show (default: train)")
    parser.add_argument(
        "--output", default="grid.png", metavar="PNG", help="the picture (default: %(default)s)"
    )
    parser.add_argument(
        "--num_per_class", type=int, default=6, metavar="N", help="images of a class (default: 6)"
    )


def run(args: argparse.Namespace) -> int:
    """Writes the contact sheet; returns the exit code."""
    if Image.registered_extensions().get(Path(args.output).suffix.lower()) not in Image.SAVE:
        return refuse(f"--output {args.output} must end in .png, or like another picture")
    if args.num_per_class < 1:
        return refuse(f"--num_per_class must be at least 1, received {args.num_per_class}")
    contact_sheet(args.directory, args.split, num_per_class=args.num_per_class).save(args.output)
    print(f"wrote {args.output}")
    return 0

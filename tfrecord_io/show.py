"""Draws a contact sheet of a dataset's images."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tfrecord_io import manifest, schema, visible
from tfrecord_io.printing import printable

_MARGIN = 6
_CAPTION_HEIGHT = 18
_MAX_TILE = 224


def contact_sheet(
    directory: str | Path, split: str, *, num_per_class: int = 6, tile_size: int = 160
) -> Image.Image:
    """Returns a picture with one row of stored images per class.

    Args:
        directory: folder of the dataset.
        split: name of the split; its first examples of each class are shown, in stored order.
        num_per_class: number of images in a row.
        tile_size: longer side of a tile in pixels.

    Raises:
        manifest.ManifestError: if the dataset is unusable or has no such split.
        OSError: if a shard cannot be read.
    """
    found = manifest.Manifest.load(directory)
    images = _first_of_each_class(Path(directory), found, split, num_per_class)
    height, width, _ = found.image_shape
    scale = min(tile_size, _MAX_TILE) / max(height, width)
    tile = max(round(width * scale), 1), max(round(height * scale), 1)
    row_height = tile[1] + _CAPTION_HEIGHT + _MARGIN
    sheet = Image.new(
        "RGB",
        (
            _MARGIN + num_per_class * (tile[0] + _MARGIN),
            _MARGIN + found.num_classes * row_height,
        ),
        "white",
    )
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(13)
    counts = found.split(split).label_counts
    for row, (label, members) in enumerate(zip(found.label_names, images, strict=True)):
        top = _MARGIN + row * row_height
        caption = f"{printable(label)} · {split} · {counts[row]:,} examples"
        draw.text((_MARGIN, top), caption, fill="black", font=font)
        for column, pixels in enumerate(members):
            picture = visible.picture(pixels)
            place = (_MARGIN + column * (tile[0] + _MARGIN), top + _CAPTION_HEIGHT)
            sheet.paste(picture.convert("RGB").resize(tile, Image.Resampling.LANCZOS), place)
    return sheet


def _first_of_each_class(
    directory: Path, found: manifest.Manifest, split: str, num_per_class: int
) -> list[list[np.ndarray]]:
    """Returns, for each class, up to `num_per_class` images, [height, width, channels]."""
    layout = found.layout
    label = layout.features[schema.LABEL]
    images: list[list[np.ndarray]] = [[] for _ in found.label_names]
    for shard in found.split(split).shards:
        if shard.num_examples == 0:
            continue
        records = np.memmap(directory / shard.name, np.uint8, "r").reshape(-1, layout.stride)
        labels = records[:, label.offset : label.offset + label.length].copy().view("<f4")
        # An image with several labels is shown for each of them.
        for row, index in np.argwhere(labels).tolist():
            if len(images[index]) < num_per_class:
                images[index].append(layout.images_in(records[row : row + 1])[0].copy())
        if all(len(members) == num_per_class for members in images):
            break
    return images


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `python -m tfrecord_io show`."""
    parser.add_argument("directory", help="the dataset")
    parser.add_argument("--split", default="train", help="default: %(default)s")
    parser.add_argument("--output", default="grid.png", metavar="PNG", help="default: %(default)s")
    parser.add_argument(
        "--num_per_class", type=int, default=6, metavar="N", help="default: %(default)s"
    )


def run(args: argparse.Namespace) -> int:
    """Writes the contact sheet; returns the exit code."""
    contact_sheet(args.directory, args.split, num_per_class=args.num_per_class).save(args.output)
    print(f"wrote {args.output}")
    return 0

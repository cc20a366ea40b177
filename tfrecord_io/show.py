"""Draws a contact sheet of a dataset's images."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from PIL import Image, ImageDraw, ImageFont

from tfrecord_io import manifest
from tfrecord_io.auditing import columns
from tfrecord_io.auditing.twins import ImageReader
from tfrecord_io.printing import printable, refuse

_MARGIN = 6
_CAPTION_HEIGHT = 18


def contact_sheet(
    directory: str | Path, split: str, *, num_per_class: int = 6, tile_size: int = 160
) -> Image.Image:
    """Returns a picture with a row of stored images per class, or per range of a number.

    They are the first `num_per_class` ones of the split, without augmented copies; `tile_size` is
    the longer side of a tile in pixels.

    Raises:
        manifest.ManifestError: if the dataset is unusable or has no such split.
        OSError: if the table of examples or a shard cannot be read.
    """
    dataset = manifest.Manifest.load(directory)
    table = columns.read_examples(Path(directory) / manifest.EXAMPLES_FILE_NAME)
    stored = dataset  # whose records hold numbers, and not their ranges
    dataset, table = columns.as_classes(dataset, table)
    counts = dataset.split(split).label_counts
    examples = table.filter(pc.equal(table["split"], split)).select(["shard", "row", "label"])
    try:
        has = dataset.label_kind.has(examples["label"].to_pylist(), dataset.label_names)
    except KeyError as error:
        raise columns.other_dataset(f"the label {error}") from None
    height, width, _ = dataset.image_shape
    scale = tile_size / max(height, width)
    tile = max(round(width * scale), 1), max(round(height * scale), 1)
    row_height = tile[1] + _CAPTION_HEIGHT + _MARGIN
    size = _MARGIN + num_per_class * (tile[0] + _MARGIN), _MARGIN + len(counts) * row_height
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(13)
    images = ImageReader.of_folder(Path(directory), stored)
    for row, (label, count) in enumerate(zip(dataset.label_names, counts, strict=True)):
        top = _MARGIN + row * row_height
        caption = f"{printable(label)} · {split} · {count:,} examples"
        draw.text((_MARGIN, top), caption, fill="black", font=font)
        # An image with several labels is shown for each of them.
        members = examples.take(np.flatnonzero(has[:, row])[:num_per_class])
        for column, example in enumerate(members.to_pylist()):
            picture = images.read(example["shard"], example["row"]).convert("RGB")
            place = (_MARGIN + column * (tile[0] + _MARGIN), top + _CAPTION_HEIGHT)
            sheet.paste(picture.resize(tile, Image.Resampling.LANCZOS), place)
    return sheet


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

"""Occlusion maps: which parts of an image an answer depends on; and the examples of a page."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from tfrecord_io.format import visible
from tfrecord_io.pages.pictures import data_url
from tfrecord_io.terminal.printing import printable
from train.kinds.task import OneAnswer
from train.results.predictions import Predictions

#: Stored images [num_images, height, width, channels] → probabilities [num_images, num_classes].
Predict = Callable[[np.ndarray], np.ndarray]

#: Colours of the overlay, for parts that speak for the answer and against it: the red and the blue
#: ends of ColorBrewer's RdBu, which colour-blind readers can tell apart.
_FOR, _AGAINST = np.array([202, 0, 32]), np.array([5, 113, 176])

#: Opacity of the overlay at the largest value of the map.
_MAX_OPACITY = 0.65

_BATCH_SIZE = 64

#: Most mistakes that are shown; their pictures, two each, take most of a page's bytes.
MAX_MISTAKES = 12

# Pictures up to this side are shown to the pixel, larger ones as JPEG, which takes fewer bytes.
_EXACT_SIDE, _PICTURE_SIDE = 224, 512

# Longer side of each picture in a file.
_MAP_SIDE = 480

# Approximate number of places of the patch; those at the edges may exceed it.
_NUM_PLACES = 144


def occlusion_map(
    predict: Predict, image: np.ndarray, patch: int | None, output: int
) -> np.ndarray:
    """Returns how much a probability drops if a part is covered.

    A patch with the mean colour of the image covers one place after another, half its side apart.
    The value of a pixel is the mean over all patches that cover it. Source: Zeiler and Fergus 2014,
    "Visualizing and understanding convolutional networks".

    Args:
        predict: gives probabilities. It always gets 64 images, so that one graph is enough.
        image: [height, width, channels], as stored.
        patch: side of the patch in pixels, which the shorter side of the image limits; None for
            that of `patch_of`.
        output: the probability to look at.

    Returns:
        float64 [height, width] drop in probability; negative where covering raises it.
    """
    height, width, _ = image.shape
    patch = min(patch or patch_of(image.shape), height, width)
    fill = image.mean(axis=(0, 1)).astype(image.dtype)
    places = [
        (slice(top, top + patch), slice(left, left + patch))
        for top in _starts(height, patch)
        for left in _starts(width, patch)
    ]
    # The first image is the original; copies of it fill the last batch.
    covered = [(slice(0, 0), slice(0, 0)), *places]
    rows = []
    for start in range(0, len(covered), _BATCH_SIZE):
        images = np.repeat(image[None], _BATCH_SIZE, axis=0)
        for index, place in enumerate(covered[start : start + _BATCH_SIZE]):
            images[(index, *place)] = fill
        rows.append(predict(images)[:, output])
    whole, *others = np.concatenate(rows).astype(np.float64)
    drops, covers = np.zeros((height, width)), np.zeros((height, width))
    for place, row in zip(places, others, strict=False):
        drops[place] += whole - row
        covers[place] += 1
    return drops / covers


def patch_of(image_shape: tuple[int, ...]) -> int:
    """Returns the side in pixels of a patch that has about 144 places in an image."""
    height, width = image_shape[:2]
    return min(2 * math.ceil(math.sqrt(height * width / _NUM_PLACES)), height, width)


def _starts(length: int, patch: int) -> list[int]:
    """Returns the places of a patch along a side; the last patch ends at the edge."""
    return [*range(0, length - patch, (patch + 1) // 2), length - patch]


def overlay(image: np.ndarray, drops: np.ndarray) -> np.ndarray:
    """Returns an image in grey, coloured red where it speaks for the answer and blue where against.

    Of a stored image and its `occlusion_map` this is uint8 [height, width, 3].
    """
    grey = visible.eight_bits(image).mean(-1, keepdims=True)
    sizes = np.abs(drops)[..., None]
    opacity = _MAX_OPACITY * sizes / (sizes.max() or 1)
    colour = np.where(drops[..., None] > 0, _FOR, _AGAINST)
    return ((1 - opacity) * grey + opacity * colour).round().astype(np.uint8)


def pictures_of(image: np.ndarray, drops: np.ndarray) -> dict[str, Image.Image]:
    """Returns pictures of a stored image without and under its `occlusion_map`, by their titles."""
    return {
        "what the network sees": visible.picture(image),
        "what mattered": visible.picture(overlay(image, drops)),
    }


def draw_map(image: np.ndarray, drops: np.ndarray, answer: str) -> Image.Image:
    """Returns the `pictures_of` an image beside each other.

    A caption names the answer that the map is about, and the largest drop.
    """
    size, how = (_MAP_SIDE, _MAP_SIDE), Image.Resampling.LANCZOS
    pictures = pictures_of(image, drops).values()
    sides = [ImageOps.contain(side.convert("RGB"), size, how) for side in pictures]
    width, height = sides[0].size
    sheet = Image.new("RGB", (max(2 * width + 10, _MAP_SIDE), height + 52), "white")
    for place, side in enumerate(sides):
        sheet.paste(side, (place * (width + 10), 0))
    caption = (
        f"{printable(answer)}: covering a red part lowers the answer, a blue part raises it,\n"
        f"by up to {np.abs(drops).max():.3g}"
    )
    font = ImageFont.load_default(16)
    ImageDraw.Draw(sheet).multiline_text((4, height + 4), caption, "black", font)
    return sheet


# ---- examples of a network's answers


class ShownAnswer(NamedTuple):
    """An answer with its image [height, width, channels] and, of a mistake, its `occlusion_map`.

    The path is that of the source file, or the key if the dataset does not name files.
    """

    answer: OneAnswer
    image: np.ndarray
    drops: np.ndarray | None
    path: str

    def pictures(self) -> dict[str, str]:
        """Returns the data URLs of its pictures by what they show."""
        shown = {"what the network sees": visible.picture(self.image)}
        if self.drops is not None:
            shown = pictures_of(self.image, self.drops)
        kind = "PNG" if max(self.image.shape) <= _EXACT_SIDE else "JPEG"
        return {title: data_url(shown[title], _PICTURE_SIDE, kind) for title in shown}


def find_examples(
    predict: Predict | None, predictions: Predictions
) -> dict[str, list[ShownAnswer]]:
    """Returns the images of `Task.examples`; the map of a mistake costs about 150 predictions.

    `predict` is the function of stored images that gave the probabilities; None, as of several
    networks, for no maps. Of several answers to an image, the first one is looked at.
    """
    _, firsts = np.unique(predictions.rows, return_index=True)
    predictions = predictions.some(firsts)
    examples = {}
    for name, answers in predictions.task.examples(predictions, MAX_MISTAKES).items():
        if not answers:
            continue
        shown = predictions.some(np.array([answer.place for answer in answers]))
        images = shown.dataset.stored[shown.rows][0]
        found = answers, images, shown.values("path"), shown.values("key")
        examples[name] = []
        for answer, image, path, key in zip(*found, strict=True):
            drops = None
            if predict and name == "wrong":
                drops = occlusion_map(predict, image, None, answer.output)
                # The probability of a negative answer rises where that of its label drops.
                drops = -drops if answer.is_negative else drops
            examples[name].append(ShownAnswer(answer, image, drops, path or key))
    return examples

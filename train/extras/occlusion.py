"""Occlusion maps: the parts of an image that an answer depends on."""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup
from PIL import Image

from tfrecord_io.decoding.preprocess import decode_image
from tfrecord_io.pages import page
from tfrecord_io.terminal.printing import printable
from train.results.classifier import Classifier, Prediction, pixels_of, predict_images

if TYPE_CHECKING:
    from train.kinds.task import OneAnswer
    from train.results.mistakes import Explanation, Predict

# Colours of parts that speak for the answer and against it, which colour-blind readers can tell
# apart (the ends of ColorBrewer's RdBu), and their opacity at the largest value of the map.
_FOR, _AGAINST, _MAX_OPACITY = np.array([202, 0, 32]), np.array([5, 113, 176]), 0.65

# Keras keeps the output of every layer until a batch is answered: some 80 MB an image with
# efficientnet_lite0 at 224 pixels.
_MAX_BATCH, _MAX_PIXELS = 64, 16 * 224 * 224

# Places of the patch, without those at the edges, and predictions of a square image with them.
_NUM_PLACES, _NUM_PREDICTIONS = 144, 170


def occlusion_map(
    predict: Predict, image: np.ndarray, output: int, patch: int | None = None
) -> np.ndarray:
    """Returns how much a probability drops if a part is covered.

    A patch with the mean colour of the image covers one place after another, half its side apart.
    The value of a pixel is the mean over all patches that cover it. Source: Zeiler and Fergus 2014,
    "Visualizing and understanding convolutional networks".

    Args:
        predict: gives probabilities. It always gets as many images, so that one graph is enough.
        image: [height, width, channels], as stored.
        output: the probability to look at.
        patch: side of the patch in pixels; None for one that has about 144 places.

    Returns:
        float64 [height, width] drop in probability; negative where covering raises it.
    """
    height, width, _ = image.shape
    patch = patch or 2 * math.ceil(math.sqrt(height * width / _NUM_PLACES))
    patch = min(patch, height, width)
    fill = image.mean(axis=(0, 1)).astype(image.dtype)
    # The last patch ends at the edge.
    tops, lefts = (
        [*range(0, side - patch, (patch + 1) // 2), side - patch] for side in (height, width)
    )
    places = [
        (slice(top, top + patch), slice(left, left + patch)) for top in tops for left in lefts
    ]
    # The first image is the original; copies of it fill the last batch.
    covered = [(slice(0, 0), slice(0, 0)), *places]
    most = min(max(1, _MAX_PIXELS // (height * width)), _MAX_BATCH)
    size = math.ceil(len(covered) / math.ceil(len(covered) / most))
    rows = []
    for start in range(0, len(covered), size):
        images = np.repeat(image[None], size, axis=0)
        for index, place in enumerate(covered[start : start + size]):
            images[(index, *place)] = fill
        rows.append(predict(images)[:, output])
    whole, *others = np.concatenate(rows).astype(np.float64)
    drops, covers = np.zeros((height, width)), np.zeros((height, width))
    for place, row in zip(places, others, strict=False):
        drops[place] += whole - row
        covers[place] += 1
    return drops / covers


def overlay(image: np.ndarray, drops: np.ndarray) -> np.ndarray:
    """Returns an image in grey, red where it speaks for the answer and blue where against.

    Of a stored image and its `occlusion_map` this is uint8 [height, width, 3].
    """
    grey, sizes = image.mean(-1, keepdims=True), np.abs(drops)[..., None]
    opacity = _MAX_OPACITY * sizes / (sizes.max() or 1)
    colour = np.where(drops[..., None] > 0, _FOR, _AGAINST)
    return ((1 - opacity) * grey + opacity * colour).round().astype(np.uint8)


def explain(predict: Predict) -> Explanation:
    """Returns what a page shows beside mistakes: a map, which costs about 150 predictions each."""
    from train.results.mistakes import Explanation

    def picture(image: np.ndarray, answer: OneAnswer) -> Image.Image:
        drops = occlusion_map(predict, image, answer.output)
        # The probability of a negative answer rises where that of its label drops.
        return page.picture(overlay(image, -drops if answer.is_negative else drops))

    red, blue = (
        Markup(f'<span class="key" style="background: #{bytes(colour.tolist()).hex()}"></span>')
        for colour in (_FOR, _AGAINST)
    )
    legend = Markup(
        " If covering a part lowers the probability of the answer, the part is {} red; if covering "
        "it raises it, it is {} blue. This does not show why, or what a doctor would look at."
    ).format(red, blue)
    return Explanation("what mattered", legend, picture)


def num_maps(seconds_of_training: float, seconds_of_answer: float) -> int:
    """Returns how many maps fit into a twentieth of the time that a training took."""
    return int(seconds_of_training / 20 / (_NUM_PREDICTIONS * seconds_of_answer))


def write_maps(folder: Path, classifier: Classifier, predictions: Sequence[Prediction]) -> None:
    """Writes a map for each image that was predicted into a folder."""
    settings, names = classifier.preprocessing, classifier.label_names
    predict = functools.partial(predict_images, classifier)
    for index, prediction in enumerate(predictions):
        if prediction.probabilities is None:
            continue
        read = decode_image(prediction.path.read_bytes(), settings, prediction.frame)
        image = pixels_of(read, settings)
        output = int(prediction.probabilities.argmax())
        drops = occlusion_map(predict, image, output)
        # Files of several folders may share a name. A name of a file has at most 255 bytes.
        stem = os.fsencode(prediction.path.stem)[:200].decode(errors="ignore")
        path = folder / f"{index:04d}-{stem}.png"
        page.picture(overlay(image, drops)).save(path)
        answer = f"{names[output]} {prediction.probabilities[output]:.1%}"
        print(printable(f"{path}: what speaks for {answer} is red"), file=sys.stderr)

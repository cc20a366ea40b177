"""Maps of what mattered to a classifier: cover a part of the image and see what is lost."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

#: Takes uint8 [num_images, height, width, channels], returns [num_images, num_classes]
#: probabilities.
Predict = Callable[[np.ndarray], np.ndarray]

#: Colours of the overlay: what spoke for the answer, and what spoke against it. Red and blue of
#: the ends of ColorBrewer's RdBu, which colour-blind readers can tell apart.
_FOR, _AGAINST = np.array([202, 0, 32]), np.array([5, 113, 176])

#: Opacity of the overlay where the map is largest.
_MAX_OPACITY = 0.65


def occlusion_map(
    predict: Predict, image: np.ndarray, *, patch: int, stride: int, batch_size: int = 64
) -> np.ndarray:
    """Returns how much the likeliest class loses when a patch of the image is covered.

    The patch has the image's mean colour. A pixel's value is the mean over the patches that cover
    it. Source: Zeiler and Fergus 2014, "Visualizing and understanding convolutional networks".

    Args:
        predict: gives probabilities; always asked for `batch_size` images, so that one graph
            serves all.
        image: uint8 [height, width, channels].
        patch: side of the patch in pixels; no longer than a side of the image.
        stride: pixels from one place of the patch to the next.
        batch_size: images that are predicted at a time.

    Returns:
        float64 [height, width] drop in probability; below 0 where covering helps the class.
    """
    height, width, _ = image.shape
    fill = image.mean(axis=(0, 1)).astype(np.uint8)
    places = [
        (slice(top, top + patch), slice(left, left + patch))
        for top in _starts(height, patch, stride)
        for left in _starts(width, patch, stride)
    ]
    # The image itself is the first of them; copies of it fill up the last batch.
    num_images = -(-(1 + len(places)) // batch_size) * batch_size
    rows = []
    for start in range(0, num_images, batch_size):
        images = np.repeat(image[None], batch_size, axis=0)
        for index in range(max(start, 1), min(start + batch_size, len(places) + 1)):
            images[(index - start, *places[index - 1])] = fill
        rows.append(predict(images))
    probabilities = np.concatenate(rows).astype(np.float64)
    likeliest = int(probabilities[0].argmax())
    drops, covers = np.zeros((height, width)), np.zeros((height, width))
    for place, row in zip(places, probabilities[1:], strict=False):
        drops[place] += probabilities[0, likeliest] - row[likeliest]
        covers[place] += 1
    # A stride longer than the patch leaves pixels that nothing covers.
    return np.divide(drops, covers, out=np.zeros_like(drops), where=covers > 0)


def patch_and_stride(image_shape: tuple[int, ...], *, max_places: int = 144) -> tuple[int, int]:
    """Returns a patch and a stride of half of it that need about so many places, or fewer.

    Args:
        image_shape: (height, width, ...) in pixels.
        max_places: of the patch, give or take those at the edges.
    """
    height, width = image_shape[:2]
    stride = max(1, math.ceil(math.sqrt(height * width / max_places)))
    return min(2 * stride, height, width), min(stride, height, width)


def overlay(image: np.ndarray, drops: np.ndarray) -> np.ndarray:
    """Returns an image in grey, with red where it spoke for the answer and blue where against.

    Args:
        image: uint8 [height, width, channels].
        drops: float [height, width], what `occlusion_map` returned.

    Returns:
        uint8 [height, width, 3].
    """
    grey = image.mean(-1, keepdims=True).repeat(3, axis=-1)
    limit = np.abs(drops).max(initial=0)
    if not limit:
        return grey.round().astype(np.uint8)
    opacity = _MAX_OPACITY * (np.abs(drops) / limit)[..., None]
    colour = np.where(drops[..., None] > 0, _FOR, _AGAINST)
    return ((1 - opacity) * grey + opacity * colour).round().astype(np.uint8)


def _starts(length: int, patch: int, stride: int) -> list[int]:
    """Places of a patch along a side; the last one ends at the edge."""
    return [*range(0, length - patch, stride), length - patch]

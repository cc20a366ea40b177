"""Makes stored images visible: pictures of eight bits, whatever the type."""

from __future__ import annotations

import numpy as np
from PIL import Image


def eight_bits(images: np.ndarray) -> np.ndarray:
    """Returns images of eight bits, in which each image of another type uses the whole range.

    `images` has the shape [..., height, width, channels], as the result has. uint8 is returned
    unchanged; else the lowest value of each image becomes 0 and its highest 255.
    """
    if images.dtype == np.uint8:
        return images
    axes = (-3, -2, -1)
    low, high = (extreme(images, axis=axes, keepdims=True) for extreme in (np.min, np.max))
    # In float64, in which the difference of any two values of the other types is exact enough.
    low = low.astype(np.float64)
    span = high - low
    scaled = (images - low) * (255 / np.where(span > 0, span, 1))
    return np.rint(scaled).astype(np.uint8)


def picture(image: np.ndarray) -> Image.Image:
    """Returns an image as a grey or RGB picture of eight bits.

    Args:
        image: [height, width, channels] with 1 or 3 channels.
    """
    visible = eight_bits(image)
    return Image.fromarray(visible[..., 0] if visible.shape[-1] == 1 else visible)

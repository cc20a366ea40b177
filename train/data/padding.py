"""Where the picture is in images that were padded with black to keep their shapes."""

from __future__ import annotations

import keras


def inside(images):
    """Tells the picture from its padding: rows and columns of black at the sides of an image.

    Args:
        images: [batch, height, width, channels], not negative, 0 in the padding.

    Returns:
        float32 [batch, height, width, 1], 1 in the picture and 0 in the padding.
    """
    ops = keras.ops
    mask = 1.0
    for side, other in ((1, 2), (2, 1)):
        is_lit = ops.cast(ops.max(images, axis=(other, 3), keepdims=True) > 0, "float32")
        num_before = ops.cumsum(is_lit, axis=side)
        num_behind = ops.sum(is_lit, axis=side, keepdims=True) - num_before + is_lit
        mask = mask * ops.cast(ops.logical_and(num_before > 0, num_behind > 0), "float32")
    return mask


def share(mask):
    """Returns the share of each image that is picture, float32 [batch, 1, 1, 1], above 0."""
    return keras.ops.maximum(keras.ops.mean(mask, axis=(1, 2, 3), keepdims=True), 1e-6)

"""Random changes of training images, computed on the device from numbers that come with a batch.

Each example brings its own random numbers, which depend on the seed and the step alone. So a step
gives the same images on one replica or on many, on TensorFlow or on JAX, and after a resume;
nothing random has to be saved.
"""

from __future__ import annotations

import math

import keras
import numpy as np

#: Random numbers that come with each example: one for each choice below, and one for MixUp.
NUM_DRAWS = 21

# The largest changes at strength 1. A retinal scan is taken from another angle and distance each
# time; the ranges were tried on scans of held-out patients (benchmarks/README.md).
_MAX_TURN = 0.26  # radians
_MAX_ZOOM = 0.23  # of the logarithm of the scale
_MAX_STRETCH = 0.13  # of the logarithm of width to height
_MAX_SHIFT = 0.13  # of the side
_MAX_CONTRAST = 0.4  # of the logarithm of the factor
_MAX_BRIGHTNESS = 22.0  # grey levels of 256
_MAX_NOISE = 10.0  # standard deviation in grey levels of 256
_NUM_ERASED = 2
_ERASE_CHANCE = 0.5
_MIN_ERASED, _MAX_ERASED = 0.05, 0.4  # of the side


def augment(images, draws, strength: float):
    """Returns the images changed at random: mirrored, moved, turned, scaled, lit, erased, noisy.

    Args:
        images: float32 [batch, height, width, channels] in 0..255.
        draws: float32 [batch, NUM_DRAWS], uniform in 0..1.
        strength: 1 for the ranges of this module, 0 for no change except the mirroring.

    Returns:
        float32, of the shape of the images; values may leave 0..255.
    """
    next_draw = iter(keras.ops.unstack(draws[:, : NUM_DRAWS - 1], axis=1)).__next__
    images = _warp(images, next_draw, strength)
    if not strength:
        return images
    images = _change_light(images, next_draw, strength)
    images = _erase(images, next_draw, strength)
    return images + _noise(images.shape[1:], next_draw, strength)


def mix(images, labels, draws):
    """Returns MixUp of each example with its neighbour in the batch, 0 with 1, 2 with 3, ...

    Source: Zhang et al. 2018, "mixup: Beyond Empirical Risk Minimization". A neighbour is the
    same example on any number of replicas of an even batch; the last example of an odd batch
    stays as it is.

    Args:
        images: float32 [batch, height, width, channels].
        labels: float32 [batch, num_classes].
        draws: float32 [batch], each the share that an example keeps of itself, in 0..1.

    Returns:
        (images, labels) of the same shapes.
    """
    batch = images.shape[0]
    partners = np.arange(batch) ^ 1
    partners[partners == batch] = batch - 1

    def blend(values):
        kept = keras.ops.reshape(draws, (-1,) + (1,) * (len(values.shape) - 1))
        return values * kept + keras.ops.take(values, partners, axis=0) * (1 - kept)

    return blend(images), blend(labels)


def _between(draw, low: float, high: float):
    return low + (high - low) * draw


def _warp(images, next_draw, strength: float):
    """Mirrors, turns, scales, stretches and shifts, in one interpolation."""
    ops = keras.ops
    height, width = images.shape[1:3]
    mirror = ops.where(next_draw() < 0.5, -1.0, 1.0)
    turn, zoom, stretch, shift_x, shift_y = (
        _between(next_draw(), -limit, limit) * strength
        for limit in (_MAX_TURN, _MAX_ZOOM, _MAX_STRETCH, _MAX_SHIFT, _MAX_SHIFT)
    )
    scale = ops.exp(zoom)
    cosine, sine = ops.cos(turn) * scale, ops.sin(turn) * scale
    # Where each pixel of the result is taken from: x' = a x + b y + c, y' = d x + e y + f.
    a, b = cosine * mirror * ops.exp(stretch), -sine
    d, e = sine * mirror, cosine * ops.exp(-stretch)
    # The centre stays where it is, apart from the shift.
    x, y = (width - 1) / 2, (height - 1) / 2
    c = x - a * x - b * y + shift_x * width
    f = y - d * x - e * y + shift_y * height
    zeros = ops.zeros_like(a)
    transform = ops.stack([a, b, c, d, e, f, zeros, zeros], axis=1)
    return ops.image.affine_transform(
        images,
        transform,
        interpolation="bilinear",
        fill_mode="reflect",
        data_format="channels_last",
    )


def _change_light(images, next_draw, strength: float):
    contrast = keras.ops.exp(_between(next_draw(), -_MAX_CONTRAST, _MAX_CONTRAST) * strength)
    brightness = _between(next_draw(), -_MAX_BRIGHTNESS, _MAX_BRIGHTNESS) * strength
    means = keras.ops.mean(images, axis=(1, 2, 3), keepdims=True)
    return (images - means) * _by_example(contrast) + means + _by_example(brightness)


def _erase(images, next_draw, strength: float):
    """Covers rectangles with the image's mean. Source: Zhong et al. 2020, "Random erasing"."""
    ops = keras.ops
    height, width = images.shape[1:3]
    rows, columns = ((np.arange(side, dtype=np.float32) + 0.5) / side for side in (height, width))
    fill = ops.mean(images, axis=(1, 2), keepdims=True)
    for _ in range(_NUM_ERASED):
        is_erased = next_draw() < _ERASE_CHANCE
        inside = [
            ops.abs(places[None] - next_draw()[:, None])
            < _between(next_draw(), _MIN_ERASED, _MAX_ERASED)[:, None] * strength / 2
            for places in (rows, columns)
        ]
        covered = ops.logical_and(inside[0][:, :, None], inside[1][:, None, :])
        covered = ops.logical_and(covered, is_erased[:, None, None])[..., None]
        images = ops.where(covered, fill, images)
    return images


def _noise(shape: tuple[int, ...], next_draw, strength: float):
    """Returns normal noise [batch, *shape] of a random level for each example.

    It is one fixed field of noise, begun at another pixel for each example: as good as new noise
    for training, and it needs one random number instead of one for each pixel.
    """
    ops = keras.ops
    size = math.prod(shape)
    field = np.random.default_rng(0).standard_normal(size, np.float32)
    level, begin = next_draw() * _MAX_NOISE * strength, ops.floor(next_draw() * size)
    places = ops.cast(begin, "int32")[:, None] + np.arange(size, dtype=np.int32)
    noise = ops.take(ops.convert_to_tensor(np.concatenate([field, field])), places)
    return ops.reshape(noise, (-1, *shape)) * _by_example(level)


def _by_example(values):
    """Returns [batch] values so that they apply to [batch, height, width, channels]."""
    return keras.ops.reshape(values, (-1, 1, 1, 1))

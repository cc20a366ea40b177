"""Random augmentation of training images on the device, from random numbers in the batch.

Each example comes with its own random numbers. The host draws them, and they depend only on the
seed, the step and the place in the global batch. A step therefore gives the same images on one
replica or on many, on TensorFlow or on JAX, and after a resume; no random state has to be saved.
"""

from __future__ import annotations

import math

import keras
import numpy as np

#: Random numbers per example: one for each random choice in this module, the last one for MixUp.
NUM_DRAWS = 21

# The largest changes at strength 1. The angle and the distance differ between scans of one retina.
# These ranges were chosen on scans of held-out patients (benchmarks/README.md).
_MAX_TURN = 0.26  # radians
_MAX_ZOOM = 0.23  # logarithm of the scale
_MAX_STRETCH = 0.13  # logarithm of the factor of x; y gets the inverse factor
_MAX_SHIFT = 0.13  # share of the side
_MAX_CONTRAST = 0.4  # logarithm of the factor
_MAX_BRIGHTNESS = 22.0  # grey levels of 256
_MAX_NOISE = 10.0  # standard deviation in grey levels of 256
_NUM_ERASED = 2
_ERASE_CHANCE = 0.5
_MIN_ERASED, _MAX_ERASED = 0.05, 0.4  # share of the side


def draw(seed: int, step: int, *, batch_size: int, mixup: float) -> np.ndarray:
    """Returns the random numbers of a global batch, by a generator of this step's own.

    Float32 [batch_size, NUM_DRAWS], uniform in 0..1; with `mixup` the last number of an example is
    the share that it keeps of itself, the larger one of Beta(mixup, mixup).
    """
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, step], np.uint64)))
    draws = generator.random((batch_size, NUM_DRAWS), np.float32)
    if mixup:
        kept = generator.beta(mixup, mixup, batch_size)
        draws[:, -1] = np.maximum(kept, 1 - kept)
    return draws


def augment(images, draws, strength: float, *, is_padded: bool = False):
    """Mirrors, warps, lights and partly erases images at random, and adds noise.

    Args:
        images: float32 [batch, height, width, channels] in 0..255; the result may lie outside.
        draws: float32 [batch, NUM_DRAWS], uniform in 0..1.
        strength: factor of the ranges of this module; 0 leaves only the mirroring.
        is_padded: whether pictures are padded with black. The padding moves with the picture and
            stays black, as does what comes in from outside, which is a mirror image otherwise.
    """
    next_draw = iter(keras.ops.unstack(draws[:, :-1], axis=1)).__next__
    if is_padded:
        images = keras.ops.concatenate([images, inside_padding(images)], axis=-1)
    images = _warp(images, next_draw, strength, "constant" if is_padded else "reflect")
    mask = share = 1.0
    if is_padded:
        images, mask = images[..., :-1], images[..., -1:]
        share = picture_share(mask)
    if not strength:
        return images
    images = _change_light(images, next_draw, strength, share) * mask
    images = _erase(images, next_draw, strength, share)
    level = next_draw() * _MAX_NOISE * strength
    return (images + _noise(images.shape[1:], level, next_draw())) * mask


def mix(images, labels, draws):
    """Applies MixUp: blends each example with its neighbour in the batch, 0 with 1, 2 with 3, ...

    The draws are the share that each example keeps of itself, float32 [batch]. If the batch of each
    replica is even, the pairs do not depend on the number of replicas. The last example of an odd
    batch stays unchanged. Source: Zhang et al. 2018, "mixup: Beyond Empirical Risk Minimization".
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


def _warp(images, next_draw, strength: float, fill_mode: str):
    """Mirrors, turns, scales, stretches and shifts images with a single interpolation."""
    ops = keras.ops
    height, width = images.shape[1:3]
    mirror = ops.where(next_draw() < 0.5, -1.0, 1.0)
    turn, zoom, stretch, shift_x, shift_y = (
        _between(next_draw(), -limit, limit) * strength
        for limit in (_MAX_TURN, _MAX_ZOOM, _MAX_STRETCH, _MAX_SHIFT, _MAX_SHIFT)
    )
    scale = ops.exp(zoom)
    cosine, sine = ops.cos(turn) * scale, ops.sin(turn) * scale
    # Maps a pixel of the result to its place in the image: x' = a x + b y + c, y' = d x + e y + f.
    a, b = cosine * mirror * ops.exp(stretch), -sine
    d, e = sine * mirror, cosine * ops.exp(-stretch)
    # Turn and scale around the centre of the image.
    x, y = (width - 1) / 2, (height - 1) / 2
    c = x - a * x - b * y + shift_x * width
    f = y - d * x - e * y + shift_y * height
    zeros = ops.zeros_like(a)
    transform = ops.stack([a, b, c, d, e, f, zeros, zeros], axis=1)
    return ops.image.affine_transform(
        images, transform, "bilinear", fill_mode, data_format="channels_last"
    )


def _change_light(images, next_draw, strength: float, share):
    contrast = keras.ops.exp(_between(next_draw(), -_MAX_CONTRAST, _MAX_CONTRAST) * strength)
    brightness = _between(next_draw(), -_MAX_BRIGHTNESS, _MAX_BRIGHTNESS) * strength
    means = keras.ops.mean(images, axis=(1, 2, 3), keepdims=True) / share
    contrast, brightness = (values[:, None, None, None] for values in (contrast, brightness))
    return (images - means) * contrast + means + brightness


def _erase(images, next_draw, strength: float, share):
    """Fills rectangles with the mean colour. Source: Zhong et al. 2020, "Random erasing"."""
    ops = keras.ops
    height, width = images.shape[1:3]
    rows, columns = ((np.arange(side, dtype=np.float32) + 0.5) / side for side in (height, width))
    fill = ops.mean(images, axis=(1, 2), keepdims=True) / share
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


def _noise(shape: tuple[int, ...], level, place):
    """Returns normal noise [batch, *shape] with the standard deviations `level` [batch].

    All examples read one fixed noise field, each from a random start, `place` in 0..1. That trains
    as well as fresh noise, and needs one random number per example instead of one per pixel.
    """
    ops = keras.ops
    size = math.prod(shape)
    field = np.random.default_rng(0).standard_normal(size, np.float32)
    begin = ops.floor(place * size)
    places = ops.cast(begin, "int32")[:, None] + np.arange(size, dtype=np.int32)
    noise = ops.take(ops.convert_to_tensor(np.concatenate([field, field])), places)
    return ops.reshape(noise, (-1, *shape)) * level[:, None, None, None]


def inside_padding(images):
    """Tells a picture from its padding: rows and columns of black at the sides of an image.

    Returns float32 [batch, height, width, 1], 1 in the picture and 0 in the padding, of images
    [batch, height, width, channels] that are not negative.
    """
    ops = keras.ops
    mask = 1.0
    for side, other in ((1, 2), (2, 1)):
        is_lit = ops.cast(ops.max(images, axis=(other, 3), keepdims=True) > 0, "float32")
        num_before = ops.cumsum(is_lit, axis=side)
        num_behind = ops.sum(is_lit, axis=side, keepdims=True) - num_before + is_lit
        mask = mask * ops.cast(ops.logical_and(num_before > 0, num_behind > 0), "float32")
    return mask


def picture_share(mask):
    """Returns the share of each image that is picture, float32 [batch, 1, 1, 1], above 0."""
    return keras.ops.maximum(keras.ops.mean(mask, axis=(1, 2, 3), keepdims=True), 1e-6)

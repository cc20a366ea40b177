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
# These ranges were chosen on scans of held-out patients.
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

    A pixel of the result needs four stored pixels, the means of the stored image and no other
    result, so that XLA makes a single loop of it all, which writes each pixel once.

    Args:
        images: [batch, height, width, channels] of any type, in 0..255.
        draws: float32 [batch, NUM_DRAWS], uniform in 0..1.
        strength: factor of the ranges of this module; 0 leaves only the mirroring.
        is_padded: whether pictures are padded with black. The padding moves with the picture and
            stays black, as does what comes in from outside, which is a mirror image otherwise.

    Returns:
        float32 [batch, height, width, channels]; values may lie outside of 0..255.
    """
    ops = keras.ops
    height, width, channels = images.shape[1:]
    next_draw = iter(ops.unstack(draws[:, :-1, None, None], axis=1)).__next__
    # The channels of a row lie in one axis: compilers vectorize the innermost loop, if it is long.
    columns, channel = np.divmod(np.arange(width * channels, dtype=np.int32), channels)
    rows = np.arange(height, dtype=np.int32)[:, None]
    x, y = _sources(rows, columns, (height, width), next_draw, strength)
    if is_padded:
        first, last = picture_ends(images)
        # What interpolation gives of 1 inside of the picture, and 0 elsewhere.
        mask = ops.clip(ops.minimum(y - first[0], last[0] - y) + 1, 0.0, 1.0)
        mask = mask * ops.clip(ops.minimum(x - first[1], last[1] - x) + 1, 0.0, 1.0)
        y, x = ops.clip(y, first[0], last[0]), ops.clip(x, first[1], last[1])
    changed = _interpolate(images, channel, x, y)
    if strength:
        means = ops.mean(ops.cast(images, "float32"), axis=(1, 2))[:, None, None]
        if is_padded:  # the share of each image that is picture
            (top, left), (bottom, right) = first, last
            share = (bottom - top + 1) * (right - left + 1) / (height * width)
            means = means / share[..., None]
        grey, means = ops.mean(means, axis=3), ops.take(means[:, 0], channel, axis=2)
        contrast = ops.exp(_between(next_draw(), -_MAX_CONTRAST, _MAX_CONTRAST) * strength)
        brightness = _between(next_draw(), -_MAX_BRIGHTNESS, _MAX_BRIGHTNESS) * strength
        changed, fill = (
            (level - grey) * contrast + grey + brightness for level in (changed, means)
        )
        for _ in range(_NUM_ERASED):
            is_erased = _rectangle(rows, columns, (height, width), next_draw, strength)
            changed = ops.where(is_erased, fill, changed)
        changed = changed + _noise(changed.shape[1:], next_draw, strength)
    if is_padded:
        changed = changed * mask
    return ops.reshape(changed, (-1, height, width, channels))


def partners(values):
    """Returns the neighbour of each example of a batch: 1 of 0, 0 of 1, 3 of 2, ...

    If the batch of each replica is even, the pairs do not depend on the number of replicas. The
    last example of an odd batch is its own partner.
    """
    ops = keras.ops
    batch, *shape = values.shape
    paired = batch // 2 * 2
    pairs = ops.reshape(values[:paired], (paired // 2, 2, *shape))
    swapped = ops.reshape(ops.flip(pairs, axis=1), (paired, *shape))
    return ops.concatenate([swapped, values[paired:]]) if batch > paired else swapped


def mix(values, others, draws):
    """Applies MixUp: blends values [batch, ...] with those of their `partners`.

    The draws are the share that each example keeps of itself, float32 [batch]. Source: Zhang et al.
    2018, "mixup: Beyond Empirical Risk Minimization".
    """
    kept = keras.ops.reshape(draws, (-1,) + (1,) * (len(values.shape) - 1))
    return values * kept + others * (1 - kept)


def _between(draw, low: float, high: float):
    return low + (high - low) * draw


def _sources(rows, columns, size: tuple[int, int], next_draw, strength: float):
    """Returns where pixels of mirrored, turned, scaled, stretched and shifted images come from.

    These are x and y, float32 [batch, *rows.shape, *columns.shape], in pixels of the image; some
    lie outside of it.
    """
    ops = keras.ops
    mirror = ops.where(next_draw() < 0.5, -1.0, 1.0)
    turn, zoom, stretch, shift_x, shift_y = (
        _between(next_draw(), -limit, limit) * strength
        for limit in (_MAX_TURN, _MAX_ZOOM, _MAX_STRETCH, _MAX_SHIFT, _MAX_SHIFT)
    )
    scale = ops.exp(zoom)
    cosine, sine = ops.cos(turn) * scale, ops.sin(turn) * scale
    # Turn and scale around the centre of the image.
    (height, width), (middle_y, middle_x) = size, ((side - 1) / 2 for side in size)
    across, down = np.float32(columns - middle_x), np.float32(rows - middle_y)
    x = cosine * mirror * ops.exp(stretch) * across - sine * down + shift_x * width + middle_x
    y = sine * mirror * across + cosine * ops.exp(-stretch) * down + shift_y * height + middle_y
    return x, y


def _interpolate(images, channel, x, y):
    """Returns bilinear pixels of images at x and y, float32 of their shape.

    Beyond an edge is the mirror image, so row -1 is row 0. The images are of any type; x and y are
    float32 [batch, height, width * channels], in pixels; `channel` is that of each column, int32.
    """
    ops = keras.ops
    height, width, channels = images.shape[1:]
    size = height * width * channels

    def split(places, side):
        """Returns the pixel before a place, and the share of the one behind it."""
        from_edge = places + 0.5
        from_edge = ops.abs(from_edge - 2 * side * ops.round(from_edge / (2 * side)))
        places = ops.clip(from_edge - 0.5, 0.0, side - 1.0)
        before = ops.minimum(ops.floor(places), max(side - 2.0, 0.0))
        return ops.cast(before, "int32"), places - before

    (column, of_right), (row, of_lower) = split(x, width), split(y, height)
    begin = ops.reshape((row * width + column) * channels + channel, (-1, size))
    stored = ops.reshape(images, (-1, size))

    def pixels(offset):
        found = ops.take_along_axis(stored, begin + offset, axis=1)
        return ops.cast(ops.reshape(found, (-1, *x.shape[1:])), "float32")

    right, below = channels * (width > 1), width * channels * (height > 1)
    upper, lower = (
        left + (pixels(offset + right) - left) * of_right
        for offset in (0, below)
        for left in [pixels(offset)]
    )
    return upper + (lower - upper) * of_lower


def _rectangle(rows, columns, size: tuple[int, int], next_draw, strength: float):
    """Returns which pixels to erase, bool. Source: Zhong et al. 2020, "Random erasing"."""
    ops = keras.ops
    inside = next_draw() < _ERASE_CHANCE
    for places, side in zip((rows, columns), size, strict=True):
        middle, length = next_draw(), _between(next_draw(), _MIN_ERASED, _MAX_ERASED) * strength
        distance = ops.abs(np.float32((places + 0.5) / side) - middle)
        inside = ops.logical_and(inside, distance < length / 2)
    return inside


def _noise(shape: tuple[int, int], next_draw, strength: float):
    """Returns normal noise [batch, *shape].

    Each example reads its slice of one fixed noise field, from a random start. That trains as well
    as fresh noise, and needs one random number per example instead of one per pixel.
    """
    ops = keras.ops
    size = math.prod(shape)
    field = np.random.default_rng(0).standard_normal(2 * size, np.float32)
    level = next_draw() * _MAX_NOISE * strength
    begin = ops.cast(ops.floor(next_draw() * size), "int32")
    places = begin + np.arange(size, dtype=np.int32).reshape(shape)
    return ops.take(ops.convert_to_tensor(field), places) * level


def picture_ends(images):
    """Tells pictures from their padding: rows and columns of black at the sides of an image.

    Returns the first and the last (row, column) of the pictures, each float32 [batch, 1, 1], of
    images [batch, height, width, channels] that are not negative. Of a black image the last comes
    before the first.
    """
    ops = keras.ops
    ends = []
    for axis, other in ((1, 2), (2, 1)):
        size = images.shape[axis]
        is_lit = ops.max(images, axis=(other, 3)) > 0
        places = np.arange(size, dtype=np.float32)
        first = ops.min(ops.where(is_lit, places, float(size)), axis=1)
        last = ops.max(ops.where(is_lit, places, -1.0), axis=1)
        ends.append((first[:, None, None], last[:, None, None]))
    return tuple(zip(*ends, strict=True))

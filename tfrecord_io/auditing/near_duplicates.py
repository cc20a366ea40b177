"""Finds pictures that are the same picture again: saved anew, brightened, or resized.

Two steps. A perceptual hash, made while a shard is written, proposes pairs: it is 32 bytes an
image, so a million of them are searched in memory. The stored pixels then decide about each
proposed pair: copies of one picture share its finest detail, its noise, and two scans of one eye
do not, however alike they look. docs/audit.md has the measurements behind the thresholds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
from PIL import Image, ImageFilter

#: Bytes of a perceptual hash.
HASH_LENGTH = 32

#: Bits in which the hashes of two pictures may differ to be looked at. In the real sample, copies
#: differ in at most 29 and different scans in at least 54, but for one scan that was taken twice.
MAX_DISTANCE = 40

#: Shorter side in pixels below which near duplicates are not looked for. At 48 pixels different
#: scans correlate by up to 0.92 and copies by 0.98 or more, too close to each other to decide.
MIN_SIDE = 64

# Side in pixels, and the correlation of the fine detail from which two pictures are the same one.
# The smaller a picture, the coarser its finest detail, which different scans have in common more
# often. Each value lies in the middle between the most alike scans and the least alike copies.
_SIDES, _MIN_SIMILARITIES = (MIN_SIDE, 224), (0.93, 0.80)

#: Rows and columns of what the hash sees.
THUMBNAIL_SHAPE = (32, 32)

_FREQUENCIES = 16
_DETAIL_SIDE = 128
_DETAIL_RADIUS = 2
# Few enough pictures for a linear algebra library to start no threads, in each of many workers.
_HASHED_AT_ONCE = 16

# Rows of the DCT-II, rounded to integers: sums of products of integers this small are exact in
# float64, so the hash is the same whatever the order in which a linear algebra library adds.
_DCT = np.round(
    1024
    * np.cos(
        np.pi
        * np.arange(_FREQUENCIES)[:, None]
        * (2 * np.arange(THUMBNAIL_SHAPE[0]) + 1)
        / (2 * THUMBNAIL_SHAPE[0])
    )
)
_DCT_OF_ONES = np.outer(_DCT.sum(axis=1), _DCT.sum(axis=1))
# The hash leaves out the first coefficient, the mean. It takes the others in an order that gives
# every byte low and high frequencies, for the search sorts by a few neighbouring bytes at a time.
_NUM_BITS = _FREQUENCIES * _FREQUENCIES - 1
_BIT_ORDER = np.append(1 + (np.arange(_NUM_BITS) * 97) % _NUM_BITS, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pairs:
    """Pairs of rows that are close.

    Attributes:
        first: int64 [num_pairs], rows.
        second: int64 [num_pairs], rows, each larger than its `first`.
        distance: int16 [num_pairs], bits in which the two hashes differ.
        complete: False if there were more pairs than wanted and the search stopped.
    """

    first: np.ndarray
    second: np.ndarray
    distance: np.ndarray
    complete: bool = True

    def __len__(self) -> int:
        return len(self.first)


def thumbnails(pictures: np.ndarray) -> np.ndarray:
    """Returns what the hash sees of pictures: each pixel the mean of its area, in grey.

    Args:
        pictures: uint8 [pictures, height, width, channels].

    Returns:
        uint8 [pictures, 32, 32].
    """
    num_pictures, height, width, channels = pictures.shape
    rows, columns = THUMBNAIL_SHAPE
    if channels == 1:
        grey = pictures[..., 0]
    else:  # below each other, all pictures are one
        colour = Image.fromarray(pictures.reshape(-1, width, channels))
        grey = np.asarray(colour.convert("L")).reshape(num_pictures, height, width)
    if height % rows == 0 and width % columns == 0:
        return _area_means(grey, height // rows, width // columns)
    found = np.empty((num_pictures, rows, columns), np.uint8)
    for number, picture in enumerate(grey):
        found[number] = Image.fromarray(picture).resize((columns, rows), Image.Resampling.BOX)
    return found


def _area_means(pictures: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Returns the means of areas of whole pixels, a half rounded up.

    Pillow's `reduce` takes twice as long, and rounds in fixed point.

    Args:
        pictures: uint8 [pictures, height, width].
        rows: of an area; divides the height.
        columns: of an area; divides the width.

    Returns:
        uint8 [pictures, height / rows, width / columns].
    """
    num_pictures, height, width = pictures.shape
    num_pixels = rows * columns
    half = num_pixels // 2
    dtype = np.uint16 if 255 * num_pixels + half <= np.iinfo(np.uint16).max else np.uint32
    in_columns = pictures[:, ::rows].astype(dtype)
    for row in range(1, rows):
        in_columns += pictures[:, row::rows]
    sums = np.full((num_pictures, height // rows, width // columns), half, dtype)
    for column in range(columns):
        sums += in_columns[..., column::columns]
    sums //= num_pixels
    return sums.astype(np.uint8)


def perceptual_hash(thumbnails: np.ndarray) -> np.ndarray:
    """Returns 255 bits for each picture, which a copy of it nearly shares, and a one.

    A bit is the sign of one of the lowest 16x16 coefficients of the discrete cosine transform,
    the mean left out, so brightness and contrast do not matter. Signs of DCT coefficients as a
    hash: Zauner 2010, "Implementation and Benchmarking of Perceptual Image Hash Functions", ch. 3,
    there with 64 bits and the median for zero.

    Args:
        thumbnails: uint8 [pictures, 32, 32], see `thumbnails`.

    Returns:
        uint8 [pictures, HASH_LENGTH]; all zero for a picture of one colour.
    """
    hashes = np.empty((len(thumbnails), HASH_LENGTH), np.uint8)
    for first in range(0, len(thumbnails), _HASHED_AT_ONCE):
        some = thumbnails[first : first + _HASHED_AT_ONCE]
        coefficients = _dct(some).reshape(len(some), -1)
        bits = coefficients[:, _BIT_ORDER] > 0
        bits[:, -1] = coefficients.any(axis=1)
        hashes[first : first + len(some)] = np.packbits(bits, axis=1)
    return hashes


def _dct(thumbnails: np.ndarray) -> np.ndarray:
    """Returns the lowest coefficients of pictures without their mean, in whole numbers.

    They are multiplied by the number of pixels, so that the mean is whole as well and a picture
    of one colour is zero.

    Args:
        thumbnails: uint8 [pictures, 32, 32].

    Returns:
        float64 [pictures, 16, 16].
    """
    # In one direction sums stay below 2**24 and are exact in float32 too.
    rows = thumbnails.reshape(-1, THUMBNAIL_SHAPE[1]).astype(np.float32) @ _DCT.T.astype(np.float32)
    rows = rows.reshape(len(thumbnails), THUMBNAIL_SHAPE[0], _FREQUENCIES)
    sums = thumbnails.reshape(len(thumbnails), -1).sum(axis=1, dtype=np.int64)
    of_mean = np.multiply.outer(sums, _DCT_OF_ONES)
    return math.prod(THUMBNAIL_SHAPE) * (_DCT @ rows.astype(np.float64)) - of_mean


def find_pairs(
    hashes: np.ndarray,
    max_distance: int = MAX_DISTANCE,
    window: int = 8,
    max_pairs: int = 1_000_000,
) -> Pairs:
    """Finds pairs of hashes that differ in few bits, without comparing all with all.

    The hashes are sorted 32 times, each time by the bits from another byte on, and each is
    compared with the next `window` in that order. Close hashes share most bits, so at least one
    of the orders brings them together. Time grows as n log n; memory is some 200 bytes a hash,
    whatever the data. Source of the idea: Charikar 2002, "Similarity estimation techniques from
    rounding algorithms", section 3 (sorted random permutations).

    Args:
        hashes: uint8 [num_hashes, HASH_LENGTH].
        max_distance: bits.
        window: neighbours compared in each order. It bounds the work where thousands are alike;
            then not every pair is found, but each of them with one alike.
        max_pairs: the search stops when it has found more.

    Returns:
        the pairs, ordered by `first`, then `second`.

    Raises:
        ValueError: if the hashes have another shape or type.
    """
    if hashes.ndim != 2 or hashes.shape[1] != HASH_LENGTH or hashes.dtype != np.uint8:
        raise ValueError(
            f"expected hashes of type uint8 and shape [n, {HASH_LENGTH}], received "
            f"{hashes.dtype} {hashes.shape}"
        )
    num_hashes = len(hashes)
    found = np.empty(0, np.int64)
    distances = np.empty(0, np.int16)
    complete = True
    for key in _sort_keys(hashes):
        order = np.argsort(key)
        words = np.ascontiguousarray(hashes[order]).view(np.uint64)
        for shift in range(1, min(window, num_hashes - 1) + 1):
            rows, distance = _close_rows(words, shift, max_distance)
            a, b = order[rows], order[rows + shift]
            codes = np.minimum(a, b) * num_hashes + np.maximum(a, b)
            found = np.concatenate([found, codes])
            distances = np.concatenate([distances, distance])
        found, unique = np.unique(found, return_index=True)
        distances = distances[unique]
        if len(found) > max_pairs:
            found, distances, complete = found[:max_pairs], distances[:max_pairs], False
            break
    return Pairs(
        first=found // max(num_hashes, 1),
        second=found % max(num_hashes, 1),
        distance=distances,
        complete=complete,
    )


def detail(image: Image.Image) -> np.ndarray:
    """Returns the finest structure of a picture, to compare by `similarity`.

    It is what is left of a grey 128x128 version after its own 5x5 means are taken away, of mean
    zero and length one, so that brightness and contrast do not matter.

    Args:
        image: grey or RGB, of any size.

    Returns:
        float32 [16384]; all zero for a picture of one colour.
    """
    grey = image if image.mode == "L" else image.convert("L")
    small = grey.resize((_DETAIL_SIDE, _DETAIL_SIDE), Image.Resampling.BOX)
    smooth = small.filter(ImageFilter.BoxBlur(_DETAIL_RADIUS))
    residual = np.asarray(small, np.float32) - np.asarray(smooth, np.float32)
    residual = residual.ravel() - residual.mean()
    length = float(np.linalg.norm(residual))
    return residual / length if length > 0 else residual


def min_similarity(side: int) -> float:
    """Returns the correlation of the fine detail from which two pictures are the same one.

    Args:
        side: the shorter one of the stored pictures, in pixels.

    Returns:
        0.93 up to 64 pixels, falling evenly to 0.80 at 224 pixels and beyond.
    """
    return float(np.interp(side, _SIDES, _MIN_SIMILARITIES))


def similarity(detail_a: np.ndarray, detail_b: np.ndarray) -> float:
    """Returns the correlation of two pictures' fine detail: 1 for copies, about 0 for others."""
    return float(detail_a @ detail_b)


def _sort_keys(hashes: np.ndarray) -> Iterator[np.ndarray]:
    """Yields uint64 [n] for each starting byte: eight bytes from there on, the first leading."""
    for start in range(HASH_LENGTH):
        columns = (start + np.arange(8)) % HASH_LENGTH
        yield np.ascontiguousarray(hashes[:, columns]).view(">u8").ravel().astype(np.uint64)


def _close_rows(words: np.ndarray, shift: int, max_distance: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows that are close to the row `shift` further on, and their distances."""
    distance = np.zeros(len(words) - shift, np.int16)
    for column in range(words.shape[1]):
        distance += np.bitwise_count(words[shift:, column] ^ words[:-shift, column])
    rows = np.flatnonzero(distance <= max_distance)
    return rows, distance[rows]

"""Finds copies of a picture that were saved again, brightened or resized.

First, perceptual hashes propose pairs. They are computed while a shard is written and take 32 bytes
per image, so a million of them are searched in memory. Then the stored pixels decide about each
pair: copies of a picture share its finest detail, its noise, while two scans of one eye do not,
even if they look alike. docs/audit.md has the measurements behind the thresholds.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from PIL import Image, ImageFilter

#: Length of a perceptual hash in bytes.
HASH_LENGTH = 32

#: Largest number of different bits in the hashes of a proposed pair. In the real sample, copies
#: differ in at most 29 bits and different scans in at least 54, except one scan taken twice.
MAX_DISTANCE = 40

#: Smallest shorter side in pixels for which near duplicates are looked for. At 48 pixels different
#: scans correlate by up to 0.92 and copies by 0.98 or more, which is too close to decide.
MIN_SIDE = 64

# Sides in pixels, and the smallest correlation of the fine detail of two copies at each. The finest
# detail of a smaller picture is coarser, so different scans share more of it. Each value is halfway
# between the most similar scans and the least similar copies.
_SIDES, _MIN_SIMILARITIES = (MIN_SIDE, 224), (0.93, 0.80)

#: Rows and columns of the thumbnail from which the hash is computed.
THUMBNAIL_SHAPE = (32, 32)

_FREQUENCIES = 16
_DETAIL_SIDE = 128
_DETAIL_RADIUS = 2
# With so few pictures a linear algebra library starts no threads, which would disturb the other
# workers of the machine.
_HASHED_AT_ONCE = 16

# Rows of the DCT-II, rounded to integers. Sums of products of such small integers are exact in
# float64, so the hash does not depend on the order in which a linear algebra library adds.
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
# The hash leaves out the first coefficient, the mean. The order of the others gives every byte low
# and high frequencies, because the search sorts by a few neighbouring bytes at a time.
_NUM_BITS = _FREQUENCIES * _FREQUENCIES - 1
_BIT_ORDER = np.append(1 + (np.arange(_NUM_BITS) * 97) % _NUM_BITS, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pairs:
    """Pairs of rows whose hashes are close.

    Attributes:
        first: int64 [num_pairs], the first row of each pair.
        second: int64 [num_pairs], the second row, larger than the first.
        distance: int16 [num_pairs], number of bits in which the two hashes differ.
        complete: False if the search stopped because it found too many pairs.
    """

    first: np.ndarray
    second: np.ndarray
    distance: np.ndarray
    complete: bool


def thumbnails(pictures: np.ndarray) -> np.ndarray:
    """Returns small grey versions of pictures, in which each pixel is the mean of its area.

    Args:
        pictures: uint8 [num_pictures, height, width, channels].

    Returns:
        uint8 [num_pictures, 32, 32].
    """
    num_pictures, height, width, channels = pictures.shape
    rows, columns = THUMBNAIL_SHAPE
    if channels == 1:
        grey = pictures[..., 0]
    else:  # converts all pictures at once, stacked into one
        colour = Image.fromarray(pictures.reshape(-1, width, channels))
        grey = np.asarray(colour.convert("L")).reshape(num_pictures, height, width)
    if height % rows == 0 and width % columns == 0:
        return _area_means(grey, height // rows, width // columns)
    small = np.empty((num_pictures, rows, columns), np.uint8)
    for number, picture in enumerate(grey):
        small[number] = Image.fromarray(picture).resize((columns, rows), Image.Resampling.BOX)
    return small


def _area_means(pictures: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Returns the means of areas of whole pixels, uint8 like `pictures`, with halves rounded up.

    Pillow's `reduce` takes twice as long, and rounds in fixed point.
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
    """Returns the perceptual hash of each picture: 255 bits that copies nearly share, and a one.

    Each bit is the sign of one of the lowest 16x16 coefficients of the discrete cosine transform
    without the mean, so brightness and contrast do not matter. Source: Zauner 2010,
    "Implementation and Benchmarking of Perceptual Image Hash Functions", ch. 3, which uses 64 bits
    and compares with the median instead of zero.

    Args:
        thumbnails: uint8 [num_pictures, 32, 32], see `thumbnails`.

    Returns:
        uint8 [num_pictures, HASH_LENGTH]; all zero for a picture of one colour.
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
    """Returns the lowest coefficients of pictures minus their mean, float64 [num_pictures, 16, 16].

    They are exact integers: the coefficients times the number of pixels, so that the mean is an
    integer too and a picture of one colour gives zeros.
    """
    # The sums along the rows stay below 2**24, so they are exact in float32 too.
    rows = thumbnails.reshape(-1, THUMBNAIL_SHAPE[1]).astype(np.float32) @ _DCT.T.astype(np.float32)
    rows = rows.reshape(len(thumbnails), THUMBNAIL_SHAPE[0], _FREQUENCIES)
    sums = thumbnails.reshape(len(thumbnails), -1).sum(axis=1, dtype=np.int64)
    of_mean = np.multiply.outer(sums, _DCT_OF_ONES)
    return math.prod(THUMBNAIL_SHAPE) * (_DCT @ rows.astype(np.float64)) - of_mean


def find_pairs(hashes: np.ndarray, window: int = 8, max_pairs: int = 1_000_000) -> Pairs:
    """Finds pairs of hashes that differ in at most `MAX_DISTANCE` bits, without comparing all.

    The hashes are sorted 32 times, each time by the bytes from another position on, and each hash
    is compared with the next `window` hashes in that order. Close hashes share most bits, so they
    are neighbours in at least one order. Time grows as n log n; memory is about 200 bytes per hash.
    Source of the idea: Charikar 2002, "Similarity estimation techniques from rounding algorithms",
    section 3 (sorted random permutations).

    Args:
        hashes: uint8 [num_hashes, HASH_LENGTH].
        window: number of neighbours compared in each order. It limits the work if thousands of
            hashes are close; then not every pair is found, but each hash is in some pair.
        max_pairs: number of pairs after which the search stops.

    Returns:
        the pairs, ordered by `first`, then `second`.
    """
    num_hashes = len(hashes)
    pair_codes = np.empty(0, np.int64)
    distances = np.empty(0, np.int16)
    complete = True
    for start in range(HASH_LENGTH):
        # The eight bytes from this position on, as one number.
        columns = (start + np.arange(8)) % HASH_LENGTH
        keys = np.ascontiguousarray(hashes[:, columns]).view(">u8").ravel().astype(np.uint64)
        order = np.argsort(keys)
        words = np.ascontiguousarray(hashes[order]).view(np.uint64)
        for shift in range(1, min(window, num_hashes - 1) + 1):
            rows, distance = _close_rows(words, shift)
            a, b = order[rows], order[rows + shift]
            codes = np.minimum(a, b) * num_hashes + np.maximum(a, b)
            pair_codes = np.concatenate([pair_codes, codes])
            distances = np.concatenate([distances, distance])
        pair_codes, unique = np.unique(pair_codes, return_index=True)
        distances = distances[unique]
        if len(pair_codes) > max_pairs:
            pair_codes, distances, complete = pair_codes[:max_pairs], distances[:max_pairs], False
            break
    return Pairs(
        first=pair_codes // max(num_hashes, 1),
        second=pair_codes % max(num_hashes, 1),
        distance=distances,
        complete=complete,
    )


def detail(image: Image.Image) -> np.ndarray:
    """Returns the fine detail of a grey or RGB picture, for `similarity`.

    It is a grey 128x128 version minus its 5x5 means, normalized to mean zero and length one, so
    that brightness and contrast do not matter.

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
    """Returns the smallest correlation of the fine detail at which two pictures count as copies.

    It is 0.93 up to 64 pixels on the shorter side, and falls linearly to 0.80 at 224 and more.
    """
    return float(np.interp(side, _SIDES, _MIN_SIMILARITIES))


def similarity(detail_a: np.ndarray, detail_b: np.ndarray) -> float:
    """Returns the correlation of two pictures' `detail`: near 1 for copies, else near 0."""
    return float(detail_a @ detail_b)


def _close_rows(words: np.ndarray, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows that are close to the row `shift` rows later, and their distances."""
    distance = np.zeros(len(words) - shift, np.int16)
    for column in range(words.shape[1]):
        distance += np.bitwise_count(words[shift:, column] ^ words[:-shift, column])
    rows = np.flatnonzero(distance <= MAX_DISTANCE)
    return rows, distance[rows]

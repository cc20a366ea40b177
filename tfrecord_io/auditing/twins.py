"""Finds pictures that are in a dataset more than once: exactly, saved again, brightened or resized.

Perceptual hashes propose pairs, and the stored pixels decide: copies of a picture share its finest
detail, its noise, while two scans of one eye do not, even if they look alike. docs/audit.md has the
measurements behind the thresholds.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image, ImageFilter

from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.format import schema
from tfrecord_io.format.examples import HASH_LENGTH, encode
from tfrecord_io.format.groups import believe, group_images
from tfrecord_io.format.manifest import Manifest
from tfrecord_io.pages.page import picture
from tfrecord_io.stores import remote
from tfrecord_io.stores.folder import Folder

#: Largest number of different bits in the hashes of a proposed pair. In the real sample, copies
#: differ in at most 29 bits and different scans in at least 54, except one scan taken twice.
MAX_DISTANCE = 40

#: Smallest shorter side in pixels for which near duplicates are looked for. At 48 pixels different
#: scans correlate by up to 0.92 and copies by 0.98 or more, which is too close to decide.
MIN_SIDE = 64

#: Largest number of proposed pairs whose pixels are compared; each takes about half a millisecond.
MAX_CHECKED = 50_000

# Shorter sides in pixels, and the smallest correlation of the fine detail of two copies at each;
# between them it is linear. The finest detail of a smaller picture is coarser, so different scans
# share more of it. Each value is halfway between the most similar scans and the least similar
# copies.
_SIDES, _MIN_SIMILARITIES = (MIN_SIDE, 224), (0.93, 0.80)

_DETAIL_SIDE = 128
_DETAIL_RADIUS = 2

# What many pictures share, such as the frame of a screen, is the mean detail of so many of them. Of
# fewer than the least, copies of a picture would count as what is shared.
_LEAST_SHARED, _MOST_SHARED = 32, 256

# Neighbours with which a hash is compared in each order.
_WINDOW = 8

# Hashes of which this many orders have no more neighbours than are compared are of a crowd, and so
# are all of a small dataset: they are compared with each other, up to the largest number.
_CROWDED_ORDERS, _FEW_HASHES, _MOST_HASHES = 8, 5_000, 20_000


@dataclasses.dataclass(frozen=True)
class ImageReader:
    """Reads single images out of the shards of a folder."""

    layout: schema.RecordLayout
    folder: Folder

    def read(self, shard: str, row: int) -> Image.Image:
        """Returns the image of a record, grey or RGB, see `page.picture`.

        Raises:
            OSError: if the shard is missing or has no such record.
        """
        slot = self.layout.features[schema.IMAGE]
        place = row * self.layout.stride + slot.offset
        pixels = remote.read(self.folder.path(shard), place, slot.length)
        if len(pixels) != slot.length:
            raise OSError(f"{shard} ends before its record {row}")
        values = np.frombuffer(pixels, np.uint8)
        return picture(values.reshape(self.layout.image_shape))


class NearPair(NamedTuple):
    """Two pictures that are nearly the same: their first rows in the examples table.

    `similarity` is the correlation of the fine detail, up to 1.
    """

    first: int
    second: int
    similarity: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Twins:
    """Which examples are the same picture.

    Attributes:
        groups: int64 [num_examples]; examples with the same pixels have the same number.
        is_blank: bool [num_examples], which pictures have one colour: they look alike without
            being copies.
        near: pairs with different pixels that are nearly the same picture and are in different
            splits or groups, or have different labels; the most similar first.
        min_similarity: smallest correlation of the fine detail of a pair in `near`; None if near
            duplicates were not looked for.
        num_unchecked: proposed pairs that were too many to be compared.
        long_chains: numbers of pictures of the chains of pairs that are not believed.
        complete: False if the search may have missed pairs, or did not believe some.
    """

    groups: np.ndarray
    is_blank: np.ndarray
    near: tuple[NearPair, ...] = ()
    min_similarity: float | None = None
    num_unchecked: int = 0
    long_chains: tuple[int, ...] = ()
    complete: bool = True

    @functools.cached_property
    def _rows(self) -> list[np.ndarray]:
        """The rows, in order, of each number in `groups`."""
        ends = np.cumsum(np.bincount(self.groups))
        return np.split(np.argsort(self.groups, kind="stable"), ends[:-1])

    @property
    def pairs(self) -> np.ndarray:
        """int64 [num_pairs, 2], rows of pictures that are the same or nearly, but not blank.

        Chains of these pairs join all copies; not every two of them are a pair.
        """
        copies = [(rows[0], row) for rows in self.exact_groups() for row in rows[1:]]
        copies = [pair for pair in copies if not self.is_blank[pair[0]]]
        return np.array([*copies, *(pair[:2] for pair in self.near)], np.int64).reshape(-1, 2)

    def believed(self, codes: np.ndarray) -> Twins:
        """Returns the same without the near pairs of chains of too many pictures.

        `codes`, int64 [num_examples], are the groups within which pairs make no chain.
        """
        is_believed, long_chains = believe(codes, self.pairs)
        rest = is_believed[len(is_believed) - len(self.near) :]
        near = tuple(compress(self.near, rest))
        complete = self.complete and bool(rest.all())
        return dataclasses.replace(self, near=near, long_chains=long_chains, complete=complete)

    def exact_groups(self) -> list[np.ndarray]:
        """Returns the rows, in order, of each picture that occurs more than once."""
        return [rows for rows in self._rows if len(rows) > 1]

    def near_across(self, codes: np.ndarray) -> Iterator[NearPair]:
        """Yields the near pairs that have rows of different codes, as two such rows.

        All rows of both pictures count, exact copies included: a picture in train and test and its
        near duplicate in train are across splits. `codes` is as in `have_different`.
        """
        for pair in self.near:
            first, second = (self._rows[group] for group in self.groups[list(pair[:2])])
            pairs = [(first[0], row) for row in second] + [(row, second[0]) for row in first]
            for one, other in pairs:
                if codes[one] != codes[other]:
                    yield pair._replace(first=int(one), second=int(other))
                    break


def find_twins(examples: pa.Table, images: ImageReader, dataset: Manifest) -> Twins:
    """Finds examples with the same pixels, and near duplicates.

    Near duplicates of one patient (or whatever `groups.group_images` knows) within one split and
    label are left out, because many images of one patient look alike, and nothing follows from it.
    Of the manifest, only what decides the pixels and labels is used.
    """
    groups, _ = encode(examples["pixels_xxh3"])
    first_rows = np.unique(groups, return_index=True)[1]  # of each picture
    joined = b"".join(examples["perceptual_hash"].take(pa.array(first_rows)).to_pylist())
    hashes = np.frombuffer(joined, np.uint8).reshape(-1, HASH_LENGTH)
    blank = ~np.any(hashes, axis=1)
    side = min(images.layout.image_shape[:2])
    if side < MIN_SIDE:
        return Twins(groups=groups, is_blank=blank[groups])
    candidates = np.flatnonzero(~blank)
    rows, distance, complete = find_pairs(hashes[candidates])
    first, second = candidates[rows.T]
    split, label = (encode(examples[name])[0] for name in ("split", "label"))
    across = have_different(split, groups, first, second)
    across |= have_different(label, groups, first, second)
    codes = group_images(examples).codes
    chosen = np.flatnonzero(across | have_different(codes, groups, first, second))
    # If there are too many pairs, those across splits or labels come first, and then the nearest.
    order = np.lexsort((distance[chosen], ~across[chosen]))
    # They are compared in order of their rows, so that the details of a scan are computed once.
    nearest = np.sort(chosen[order][:MAX_CHECKED])
    near: list[NearPair] = []
    compare = _comparer(examples, images, dataset, first_rows[candidates if len(nearest) else []])
    for a, b in first_rows[np.stack([first, second], 1)[nearest]].tolist():
        alike, smaller_side = compare(a, b)
        if alike >= min_similarity(smaller_side):
            near.append(NearPair(a, b, round(alike, 4)))
    return Twins(
        groups=groups,
        is_blank=blank[groups],
        near=tuple(sorted(near, key=lambda pair: (-pair.similarity, pair.first, pair.second))),
        min_similarity=min_similarity(side),
        num_unchecked=len(chosen) - len(nearest),
        complete=complete,
    ).believed(codes)


def _comparer(
    examples: pa.Table, images: ImageReader, dataset: Manifest, rows: np.ndarray
) -> Callable[[int, int], tuple[float, int]]:
    """Returns what compares two examples: the similarity of their fine detail, and at which side.

    That is the smaller side in pixels. Both are compared without their padding, in the lower of
    their resolutions, and without the detail that many pictures share, of a sample of `rows`.
    """
    columns = [name for name in ("shard", "row", "shape") if name in examples.column_names]
    places = examples.select(columns)
    height, width, _ = images.layout.image_shape
    # A stretched picture has no padding.
    facts = dataset.preprocessing
    fit = Preprocessing.from_dict(facts) if facts.get("fit") == "pad" else None

    @functools.lru_cache(maxsize=512)
    def picture(row: int) -> Image.Image:
        (place,) = places.slice(row, 1).to_pylist()
        shape, whole = place.pop("shape", None), images.read(**place)
        return whole.crop(fit.box(shape, 1)) if fit and shape else whole

    def own(row: int, size: tuple[int, int]) -> np.ndarray:
        whole = picture(row)
        return detail(whole if whole.size == size else whole.resize(size, Image.Resampling.BOX))

    shared = np.float32(0)
    if len(rows) >= _LEAST_SHARED:
        sample = rows[np.unique(np.linspace(0, len(rows) - 1, _MOST_SHARED).astype(int))]
        shared = np.mean([own(row, (width, height)) for row in sample.tolist()], axis=0)

    @functools.lru_cache(maxsize=512)
    def rest(row: int, size: tuple[int, int]) -> np.ndarray:
        return _normalized(own(row, size) - shared)

    def compare(a: int, b: int) -> tuple[float, int]:
        sizes = picture(a).size, picture(b).size
        size = min(sizes[0][0], sizes[1][0]), min(sizes[0][1], sizes[1][1])
        return float(rest(a, size) @ rest(b, size)), min(size)

    return compare


def have_different(
    codes: np.ndarray, groups: np.ndarray, first: np.ndarray, second: np.ndarray
) -> np.ndarray:
    """Tells which pairs of pictures have rows of different codes, bool [num_pairs].

    `codes` and `groups`, int64 [num_examples], are such as each example's split, and its picture.
    """
    low = np.full(groups.max(initial=-1) + 1, codes.max(initial=0), np.int64)
    high = np.full(groups.max(initial=-1) + 1, -1, np.int64)
    np.minimum.at(low, groups, codes)
    np.maximum.at(high, groups, codes)
    return np.maximum(high[first], high[second]) > np.minimum(low[first], low[second])


def find_pairs(
    hashes: np.ndarray, max_pairs: int = 2_000_000
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Finds pairs of hashes that differ in at most `MAX_DISTANCE` bits, without comparing all.

    The hashes, uint8 [num_hashes, HASH_LENGTH], are sorted 32 times, each time by the bytes from
    another position on, and each is compared with its next neighbours. Close hashes share most
    bits, so they are neighbours in at least one order, but for crowds of like hashes: these are
    compared with each other. Source: Charikar 2002, "Similarity estimation techniques from rounding
    algorithms", section 3.

    Returns:
        int64 [num_pairs, 2], the rows of the pairs in ascending order, the smaller row first; int16
        [num_pairs], in how many bits they differ; and whether the search is complete: it did not
        stop after `max_pairs`, and no crowd was too large.
    """
    # uint64 [HASH_LENGTH / 8, num_hashes].
    words = np.ascontiguousarray(np.ascontiguousarray(hashes).view(np.uint64).T)
    num_hashes = len(hashes)
    codes, num_crowded = np.empty(0, np.int64), np.zeros(num_hashes, np.int64)
    for start in range(HASH_LENGTH):
        # The eight bytes from this position on, as one number.
        columns = (start + np.arange(8)) % HASH_LENGTH
        keys = np.ascontiguousarray(hashes[:, columns]).view(">u8").ravel().astype(np.uint64)
        order = np.argsort(keys)
        ordered, keys, found = words[:, order], keys[order], [codes]
        for shift in range(1, min(_WINDOW, num_hashes - 1) + 1):
            distance = _distances(ordered[:, shift:], ordered[:, :-shift])
            near = np.flatnonzero(distance <= MAX_DISTANCE)
            found.append(_codes(order[near], order[near + shift], num_hashes))
        codes = _distinct(found)
        # More hashes than the window share three bytes, which chance does not do.
        crowd = np.flatnonzero((keys[_WINDOW:] ^ keys[:-_WINDOW]) >> np.uint64(40) == 0)
        num_crowded[order[np.unique([crowd, crowd + _WINDOW])]] += 1
        if len(codes) > max_pairs:
            break
    is_crowded = num_crowded >= _CROWDED_ORDERS
    ends = np.stack(np.divmod(codes, max(num_hashes, 1)))
    # What is close to one of a crowd may share too few orders with it to count as crowded itself.
    is_crowded[ends[::-1][is_crowded[ends]]] = True
    rows = np.flatnonzero(is_crowded | (num_hashes <= _FEW_HASHES))
    crowded, found, num_pairs = words[:, rows], [codes], len(codes)
    for place, row in enumerate(rows[:-1] if len(rows) <= _MOST_HASHES else ()):
        if num_pairs > max_pairs:
            break
        distance = _distances(crowded[:, place + 1 :], crowded[:, place : place + 1])
        near = rows[place + 1 :][distance <= MAX_DISTANCE]
        found.append(_codes(near, row, num_hashes))
        num_pairs += len(near)
    codes = _distinct(found)
    first, second = np.divmod(codes, max(num_hashes, 1))
    distances = _distances(words[:, first], words[:, second])
    complete = num_pairs <= max_pairs and len(rows) <= _MOST_HASHES
    return np.stack([first, second], axis=1), distances, complete


def _distances(words: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns in how many bits hashes differ, int16, of uint64 [HASH_LENGTH / 8, num_hashes]."""
    distance = np.zeros(words.shape[1], np.int16)
    for word, other in zip(words, others, strict=True):
        distance += np.bitwise_count(word ^ other)
    return distance


def _codes(rows: np.ndarray, others: np.ndarray, num_hashes: int) -> np.ndarray:
    """Returns pairs of rows as numbers, in the order of the smaller row."""
    return np.minimum(rows, others) * num_hashes + np.maximum(rows, others)


def _distinct(found: Sequence[np.ndarray]) -> np.ndarray:
    """Returns each number of some arrays once, in ascending order."""
    # NumPy 2.3 hashes in `np.unique`, which takes a minute for some millions of these numbers.
    codes = np.sort(np.concatenate(found))
    return codes[np.diff(codes, prepend=-1) > 0]


def detail(image: Image.Image) -> np.ndarray:
    """Returns the fine detail of a grey or RGB picture; a dot product of two is their correlation.

    It is a grey 128x128 version minus its 5x5 means, normalized to mean zero and length one, so
    that brightness and contrast do not matter.

    Returns:
        float32 [16384]; all zero for a picture of one colour.
    """
    grey = image if image.mode == "L" else image.convert("L")
    small = grey.resize((_DETAIL_SIDE, _DETAIL_SIDE), Image.Resampling.BOX)
    smooth = small.filter(ImageFilter.BoxBlur(_DETAIL_RADIUS))
    residual = np.asarray(small, np.float32) - np.asarray(smooth, np.float32)
    return _normalized(residual.ravel() - residual.mean())


def _normalized(values: np.ndarray) -> np.ndarray:
    return values / (float(np.linalg.norm(values)) or 1.0)


def min_similarity(side: int) -> float:
    """Returns the correlation of the fine detail from which two pictures count as copies."""
    return float(np.interp(side, _SIDES, _MIN_SIMILARITIES))

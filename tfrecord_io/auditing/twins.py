"""Finds pictures that are in a dataset more than once: exactly, saved again, brightened or resized.

Perceptual hashes propose pairs, and the stored pixels decide: copies of a picture share its finest
detail, its noise, while two scans of one eye do not, even if they look alike. docs/audit.md has the
measurements behind the thresholds.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image, ImageFilter

from tfrecord_io import schema, visible
from tfrecord_io.auditing.columns import encode, encode_labels, other_dataset
from tfrecord_io.auditing.side_facts import HASH_LENGTH
from tfrecord_io.groups import group_images
from tfrecord_io.kinds import LabelKind
from tfrecord_io.manifest import Manifest
from tfrecord_io.pages.pictures import data_url

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

_MAX_OPEN_SHARDS = 64

_PAIR_SIDE = 224


class ImageReader:
    """Reads single images out of shards, which `open_shard` opens by name."""

    def __init__(
        self, layout: schema.RecordLayout, open_shard: Callable[[str], IO[bytes] | pa.NativeFile]
    ) -> None:
        self.layout = layout
        self._open_shard = functools.lru_cache(_MAX_OPEN_SHARDS)(open_shard)

    @classmethod
    def of_folder(cls, directory: Path, dataset: Manifest) -> ImageReader:
        """Reads the shards of a dataset on a local disk; another name is a ManifestError."""
        paths = {shard.name: directory / shard.name for shard in dataset.shards}

        def open_shard(name: str) -> pa.NativeFile:
            if name in paths:
                return pa.OSFile(str(paths[name]))
            raise other_dataset(f"the shard {name!r}")

        return cls(dataset.layout, open_shard)

    def values(self, shard: str, row: int) -> np.ndarray:
        """Returns the image of a record as it is stored, [height, width, channels].

        Raises:
            OSError: if the shard is missing or has no such record.
        """
        slot, file = self.layout.features[schema.IMAGE], self._open_shard(shard)
        file.seek(row * self.layout.stride + slot.offset)
        pixels = file.read(slot.length)
        if len(pixels) != slot.length:
            raise OSError(f"{shard} ends before its record {row}")
        values = np.frombuffer(pixels, self.layout.numpy_dtype)
        return values.reshape(self.layout.image_shape)

    def read(self, shard: str, row: int) -> Image.Image:
        """Returns the image of a record, grey or RGB, see `visible.picture`."""
        return visible.picture(self.values(shard, row))


def pairs(
    listed: Iterable[Mapping[str, Any]], images: ImageReader, most: int
) -> list[dict[str, Any]]:
    """Returns up to `most` pairs that a finding lists, with the pictures to show side by side."""
    shown = []
    for pair in islice(listed, most):
        sides = [
            {**side, "src": data_url(images.read(side["shard"], side["row"]), _PAIR_SIDE)}
            for side in (pair["first"], pair["second"])
        ]
        shown.append({"sides": sides, "similarity": pair["similarity"]})
    return shown


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
        num_unchecked: proposed pairs across splits or labels that were too many to be compared.
        num_unchecked_within: the others of these.
        complete: False if the search for pairs stopped early.
    """

    groups: np.ndarray
    is_blank: np.ndarray
    near: tuple[NearPair, ...] = ()
    min_similarity: float | None = None
    num_unchecked: int = 0
    num_unchecked_within: int = 0
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

    def exact_groups(self) -> list[np.ndarray]:
        """Returns the rows, in order, of each picture that occurs more than once."""
        return [rows for rows in self._rows if len(rows) > 1]

    def copies_of(self, *rows: int) -> np.ndarray:
        """Returns the rows with the same pixels as one of `rows`, including these."""
        return np.concatenate([self._rows[group] for group in self.groups[list(rows)]])

    def near_across(self, codes: np.ndarray) -> Iterator[NearPair]:
        """Yields the near pairs that have rows of different codes, as two such rows.

        All rows of both pictures count, exact copies included: a picture in train and test and its
        near duplicate in train are across splits. `codes` is as in `have_different`.
        """
        for pair in self.near:
            first, second = self.copies_of(pair.first), self.copies_of(pair.second)
            pairs = [(first[0], row) for row in second] + [(row, second[0]) for row in first]
            for one, other in pairs:
                if codes[one] != codes[other]:
                    yield pair._replace(first=int(one), second=int(other))
                    break


def find_twins(examples: pa.Table, images: ImageReader, kind: LabelKind) -> Twins:
    """Finds examples with the same pixels, and near duplicates. Numbers count as their ranges.

    Near duplicates of one patient (or whatever `groups.group_images` knows) within one split and
    label are left out, because many images of one patient look alike, and nothing follows from it.
    """
    groups, first_rows = number_pictures(examples)
    hashes = hashes_in(examples.take(pa.array(first_rows)))
    blank = ~np.any(hashes, axis=1)
    side = min(images.layout.image_shape[:2])
    if side < MIN_SIDE:
        return Twins(groups=groups, is_blank=blank[groups])
    candidates = np.flatnonzero(~blank)
    rows, distance, complete = find_pairs(hashes[candidates])
    first, second = candidates[rows.T]
    split, label = encode(examples["split"])[0], encode_labels(examples, kind)[1]
    across = have_different(split, groups, first, second)
    across |= have_different(label, groups, first, second)
    by_group = have_different(group_images(examples).codes, groups, first, second)
    chosen = np.flatnonzero(across | by_group)
    # If there are too many pairs, those across splits or labels come first, and then the nearest.
    order = np.lexsort((distance[chosen], ~across[chosen]))
    # They are compared in order of their rows, so that the details of a scan are computed once.
    nearest = np.sort(chosen[order][:MAX_CHECKED])
    num_unchecked = int(across.sum() - across[nearest].sum())
    needed = min_similarity(side)
    near: list[NearPair] = []
    places = examples.select(["shard", "row"])

    @functools.lru_cache(maxsize=512)
    def detail_of(row: int) -> np.ndarray:
        (place,) = places.slice(row, 1).to_pylist()
        return detail(images.read(**place))

    for a, b in first_rows[np.stack([first, second], 1)[nearest]].tolist():
        alike = float(detail_of(a) @ detail_of(b))
        if alike >= needed:
            near.append(NearPair(a, b, round(alike, 4)))
    return Twins(
        groups=groups,
        is_blank=blank[groups],
        near=tuple(sorted(near, key=lambda pair: (-pair.similarity, pair.first, pair.second))),
        min_similarity=needed,
        num_unchecked=num_unchecked,
        num_unchecked_within=len(chosen) - len(nearest) - num_unchecked,
        complete=complete,
    )


def number_pictures(examples: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Returns the number of each example's picture, and the first row of each picture."""
    pictures, _ = encode(examples["pixels_xxh3"])
    return pictures, np.unique(pictures, return_index=True)[1]


def hashes_in(examples: pa.Table) -> np.ndarray:
    """Returns the column `perceptual_hash`, uint8 [num_examples, HASH_LENGTH]."""
    joined = b"".join(examples["perceptual_hash"].to_pylist())
    return np.frombuffer(joined, np.uint8).reshape(-1, HASH_LENGTH)


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
    hashes: np.ndarray, window: int = 8, max_pairs: int = 1_000_000
) -> tuple[np.ndarray, np.ndarray, bool]:
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
        int64 [num_pairs, 2], the rows of the pairs in ascending order, the smaller row first; int16
        [num_pairs], in how many bits they differ; and whether the search did not stop early.
    """
    num_hashes = len(hashes)
    pair_codes, distances = np.empty(0, np.int64), np.empty(0, np.int16)
    for start in range(HASH_LENGTH):
        # The eight bytes from this position on, as one number.
        columns = (start + np.arange(8)) % HASH_LENGTH
        keys = np.ascontiguousarray(hashes[:, columns]).view(">u8").ravel().astype(np.uint64)
        order = np.argsort(keys)
        words = np.ascontiguousarray(hashes[order]).view(np.uint64)
        for shift in range(1, min(window, num_hashes - 1) + 1):
            distance = np.zeros(num_hashes - shift, np.int16)
            for column in range(words.shape[1]):
                distance += np.bitwise_count(words[shift:, column] ^ words[:-shift, column])
            rows = np.flatnonzero(distance <= MAX_DISTANCE)
            a, b = order[rows], order[rows + shift]
            codes = np.minimum(a, b) * num_hashes + np.maximum(a, b)
            pair_codes = np.concatenate([pair_codes, codes])
            distances = np.concatenate([distances, distance[rows]])
        pair_codes, unique = np.unique(pair_codes, return_index=True)
        distances = distances[unique]
        if len(pair_codes) > max_pairs:
            break
    pairs = np.stack(np.divmod(pair_codes[:max_pairs], max(num_hashes, 1)), axis=1)
    return pairs, distances[:max_pairs], len(pair_codes) <= max_pairs


def count_near(hashes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns of each hash how many others are within `MAX_DISTANCE`, int64 [num_hashes].

    Every pair is compared: 10,000 hashes with 100,000 others take some ten seconds.

    Args:
        hashes: uint8 [num_hashes, HASH_LENGTH]; those of pictures of one colour have no others.
        others: uint8 [num_others, HASH_LENGTH].
    """
    columns = np.ascontiguousarray(others[others.any(axis=1)]).view(np.uint64).T
    counts = np.zeros(len(hashes), np.int64)
    for row, words in enumerate(np.ascontiguousarray(hashes).view(np.uint64)):
        if words.any():
            bits = [np.bitwise_count(a ^ b) for a, b in zip(columns, words, strict=True)]
            counts[row] = np.count_nonzero(np.sum(bits, axis=0, dtype=np.int16) <= MAX_DISTANCE)
    return counts


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
    residual = residual.ravel() - residual.mean()
    length = float(np.linalg.norm(residual))
    return residual / length if length > 0 else residual


def min_similarity(side: int) -> float:
    """Returns the correlation of the fine detail from which two pictures count as copies."""
    return float(np.interp(side, _SIDES, _MIN_SIMILARITIES))

"""Finds pictures that are in a dataset more than once, exactly or nearly."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
from PIL import Image

from tfrecord_io import manifest, schema, visible
from tfrecord_io.auditing import near_duplicates
from tfrecord_io.auditing.columns import encode
from tfrecord_io.auditing.ranges import with_ranges
from tfrecord_io.groups import group_images
from tfrecord_io.kinds.label_kind import LabelKind

#: Largest number of proposed pairs whose pixels are compared; each takes about half a millisecond.
MAX_CHECKED = 50_000

_MAX_OPEN_SHARDS = 64


class ImageReader:
    """Reads single images out of shards, which `open_shard` opens by name."""

    def __init__(
        self,
        layout: schema.RecordLayout,
        open_shard: Callable[[str], contextlib.AbstractContextManager[IO[bytes]]],
    ) -> None:
        self._layout = layout
        self._open_shard = open_shard
        self._files: dict[str, IO[bytes]] = {}
        self._stack = contextlib.ExitStack()

    @classmethod
    def of_folder(cls, directory: Path, dataset: manifest.Manifest) -> ImageReader:
        """Reads the shards of a dataset on a local disk, and no other file.

        `read` raises ManifestError for a name that the manifest does not have.
        """
        known = {shard.name for shard in dataset.shards}

        def open_shard(name: str) -> IO[bytes]:
            if name not in known:
                raise manifest.ManifestError(
                    f"{manifest.EXAMPLES_FILE_NAME} names the shard {name!r}, which the manifest "
                    "does not have: they are of different datasets"
                )
            return (directory / name).open("rb")

        return cls(dataset.layout, open_shard)

    def __enter__(self) -> ImageReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self._close()

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of every image."""
        return self._layout.image_shape

    def read(self, shard: str, row: int) -> Image.Image:
        """Returns the image of a record, grey or RGB, see `visible.picture`.

        Raises:
            OSError: if the shard is missing or has no such record.
        """
        if shard not in self._files:
            if len(self._files) >= _MAX_OPEN_SHARDS:
                self._close()
            self._files[shard] = self._stack.enter_context(self._open_shard(shard))
        slot = self._layout.features[schema.IMAGE]
        file = self._files[shard]
        file.seek(row * self._layout.stride + slot.offset)
        pixels = file.read(slot.length)
        if len(pixels) != slot.length:
            raise OSError(f"{shard} ends before its record {row}")
        values = np.frombuffer(pixels, self._layout.numpy_dtype)
        return visible.picture(values.reshape(self._layout.image_shape))

    def _close(self) -> None:
        self._files.clear()
        self._stack.close()


@dataclasses.dataclass(frozen=True, kw_only=True)
class NearPair:
    """Two pictures that are nearly the same, or may be.

    Attributes:
        first: row of the first picture in the examples table; if several rows have its pixels,
            the first of them.
        second: row of the second picture, chosen in the same way.
        similarity: correlation of the fine detail, or cosine of the features; up to 1.
        why: what stands out, in words; empty for pictures whose pixels were compared.
    """

    first: int
    second: int
    similarity: float
    why: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Twins:
    """Which examples are the same picture.

    Attributes:
        groups: int64 [num_examples]; examples with the same pixels have the same number.
        near: pairs with different pixels that are nearly the same picture and are in different
            splits or groups, or have different labels; the most similar first.
        min_similarity: smallest correlation of the fine detail of a pair in `near`; None if near
            duplicates were not looked for.
        is_blank: bool [num_examples], which pictures have one colour: they look alike without
            being copies; None if that is not known.
        num_unchecked: number of proposed pairs across splits or labels beyond the limit, which were
            not compared.
        num_unchecked_within: number of the others.
        complete: False if the search for pairs stopped early.
    """

    groups: np.ndarray
    near: tuple[NearPair, ...] = ()
    min_similarity: float | None = None
    is_blank: np.ndarray | None = None
    num_unchecked: int = 0
    num_unchecked_within: int = 0
    complete: bool = True

    @property
    def pairs(self) -> np.ndarray:
        """int64 [num_pairs, 2], rows of pictures that are the same or nearly, but not blank.

        Chains of these pairs join all copies; not every two of them are a pair.
        """
        _, first = np.unique(self.groups, return_index=True)
        copies = np.stack([first[self.groups], np.arange(len(self.groups))], 1)
        copies = copies[copies[:, 0] != copies[:, 1]]
        if self.is_blank is not None:
            copies = copies[~self.is_blank[copies[:, 0]]]
        near = np.array([(pair.first, pair.second) for pair in self.near], np.int64)
        return np.concatenate([copies, near.reshape(-1, 2)])

    @functools.cached_property
    def _order(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows sorted by group, the start of each group, and its number of rows."""
        order = np.argsort(self.groups, kind="stable")
        _, starts, counts = np.unique(self.groups[order], return_index=True, return_counts=True)
        return order, starts, counts

    def exact_groups(self) -> Iterator[np.ndarray]:
        """Yields the rows, in order, of each picture that occurs more than once."""
        order, starts, counts = self._order
        for index in np.flatnonzero(counts > 1).tolist():
            yield order[starts[index] : starts[index] + counts[index]]

    def copies_of(self, *rows: int) -> np.ndarray:
        """Returns the rows with the same pixels as one of `rows`, including these."""
        order, starts, counts = self._order
        groups = self.groups[list(rows)].tolist()
        return np.concatenate([order[starts[g] : starts[g] + counts[g]] for g in groups])

    def near_across(self, codes: np.ndarray) -> Iterator[NearPair]:
        """Yields the near pairs that have rows of different codes, as two such rows.

        All rows of both pictures count, exact copies included: a picture in train and test and its
        near duplicate in train are across splits.

        Args:
            codes: int64 [num_examples], such as each example's split.
        """
        for pair in self.near:
            first, second = self.copies_of(pair.first), self.copies_of(pair.second)
            others = second[codes[second] != codes[first[0]]]
            if len(others):
                yield dataclasses.replace(pair, first=int(first[0]), second=int(others[0]))
                continue
            others = first[codes[first] != codes[second[0]]]
            if len(others):
                yield dataclasses.replace(pair, first=int(others[0]), second=int(second[0]))


def find_twins(examples: pa.Table, images: ImageReader, kind: LabelKind) -> Twins:
    """Finds examples with the same pixels, and near duplicates. Numbers count as their ranges.

    Near duplicates of one patient (or whatever `groups.group_images` knows) within one split and
    label are left out, because many images of one patient look alike, and nothing follows from it.
    They are looked for if `examples` has the column `perceptual_hash`.
    """
    groups, first_rows = number_pictures(examples)
    if "perceptual_hash" not in examples.column_names or not len(groups):
        return Twins(groups=groups)
    hashes = hashes_in(examples.take(pa.array(first_rows)))
    blank = ~np.any(hashes, axis=1)
    side = min(images.image_shape[:2])
    if side < near_duplicates.MIN_SIDE:
        return Twins(groups=groups, is_blank=blank[groups])
    candidates = np.flatnonzero(~blank)
    pairs = near_duplicates.find_pairs(hashes[candidates])
    first, second = candidates[pairs.first], candidates[pairs.second]
    split, label, group = (
        have_different(codes, groups, first, second)
        for codes in (
            encode(examples.column("split"))[0],
            encode(with_ranges(examples, kind)["label"])[0],
            group_images(examples).codes,
        )
    )
    across = split | label
    chosen = np.flatnonzero(across | group)
    # If there are too many pairs, those across splits or labels come first, and then the nearest.
    order = np.lexsort((pairs.distance[chosen], ~across[chosen]))
    # They are compared in order of their rows, so that the details of a scan are computed once.
    nearest = np.sort(chosen[order][:MAX_CHECKED])
    num_unchecked = int(across.sum() - across[nearest].sum())
    min_similarity = near_duplicates.min_similarity(side)
    rows = first_rows[first[nearest]], first_rows[second[nearest]]
    near = _check(examples, images, min_similarity, *rows)
    return Twins(
        groups=groups,
        near=near,
        min_similarity=min_similarity,
        is_blank=blank[groups],
        num_unchecked=num_unchecked,
        num_unchecked_within=len(chosen) - len(nearest) - num_unchecked,
        complete=pairs.complete,
    )


def _check(
    examples: pa.Table,
    images: ImageReader,
    min_similarity: float,
    first: np.ndarray,
    second: np.ndarray,
) -> tuple[NearPair, ...]:
    """Compares the pixels of proposed pairs; returns the confirmed ones, most similar first."""
    shards, rows = examples.column("shard"), examples.column("row")

    @functools.lru_cache(maxsize=512)
    def detail(row: int) -> np.ndarray:
        return near_duplicates.detail(images.read(shards[row].as_py(), rows[row].as_py()))

    confirmed = []
    for a, b in zip(first.tolist(), second.tolist(), strict=True):
        alike = near_duplicates.similarity(detail(a), detail(b))
        if alike >= min_similarity:
            confirmed.append(NearPair(first=a, second=b, similarity=round(alike, 4)))
    return tuple(sorted(confirmed, key=lambda pair: (-pair.similarity, pair.first, pair.second)))


def number_pictures(examples: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Numbers the pictures with different pixels, in the order of their first rows.

    Returns:
        int64 [num_examples], the picture of each example; and int64 [num_pictures], the first row
        of each picture.
    """
    pictures, _ = encode(examples["pixels_xxh3"])
    return pictures, np.unique(pictures, return_index=True)[1]


def hashes_in(examples: pa.Table) -> np.ndarray:
    """Returns the column `perceptual_hash`, uint8 [num_examples, HASH_LENGTH]."""
    column, length = examples["perceptual_hash"].combine_chunks(), near_duplicates.HASH_LENGTH
    data = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * length :]
    return data[: len(column) * length].reshape(-1, length)


def have_different(
    codes: np.ndarray, groups: np.ndarray, first: np.ndarray, second: np.ndarray
) -> np.ndarray:
    """Tells which pairs of pictures have rows of different codes, bool [num_pairs].

    Args:
        codes: int64 [num_examples], such as each example's split.
        groups: int64 [num_examples], the picture of each example.
        first: int64 [num_pairs], pictures.
        second: int64 [num_pairs], pictures.
    """
    low = np.full(groups.max(initial=-1) + 1, codes.max(initial=0), np.int64)
    high = np.full(groups.max(initial=-1) + 1, -1, np.int64)
    np.minimum.at(low, groups, codes)
    np.maximum.at(high, groups, codes)
    return np.maximum(high[first], high[second]) > np.minimum(low[first], low[second])

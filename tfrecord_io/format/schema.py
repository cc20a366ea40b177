"""The example: encodes an image, its label and its key as a record, and parses records.

>>> layout = RecordLayout(image_shape=(224, 224, 1), num_classes=4)
>>> layout.stride, layout.features["image"].offset
(50688, 64)

Encoding does not need TensorFlow: the serialized examples of a dataset differ only in three fixed
ranges of bytes.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import math
import struct
from collections.abc import Iterator, Mapping
from typing import IO

import google_crc32c
import numpy as np

from tfrecord_io.format.kinds import CLASSES, LabelKind

IMAGE, KEY, LABEL = "image", "key", "label"

#: The splits, by the names that folders and tables use for them, in lower case; and a pattern of
#: such a name in that of a file or folder.
SPLITS = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
SPLIT_NAME = f"(?<![a-z])({'|'.join(SPLITS)})(?![a-z])"

# Features of zeros that align the image and the stride. Their names sort first and last.
_HEAD_PADDING, _TAIL_PADDING = "head_padding", "tail_padding"

# Images are aligned to so many bytes, as TensorFlow requires to use memory without a copy
# (EIGEN_MAX_ALIGN_BYTES with AVX-512, as `tsl::Allocator` guarantees).
_IMAGE_ALIGNMENT = 64

# Blocks of this length are copied as fast as whole images, and smaller blocks need less padding.
# Small images get smaller blocks, so that padding stays a small share.
_BLOCK_LENGTH, _BLOCKS_PER_IMAGE = 512, 32

#: Length in bytes of a key: 128 bits in hexadecimal digits.
KEY_LENGTH = 32

# A TFRecord frames each record as length (uint64), masked CRC of the length (uint32), data, masked
# CRC of the data (uint32), little-endian. Source: tensorflow/core/lib/io/record_writer.h.
HEADER_LENGTH, FOOTER_LENGTH = 12, 4

# Protocol Buffers cannot read a message of 2 GiB or more; everything but the pixels takes much less
# than a MiB.
_MAX_IMAGE_LENGTH = 2**31 - 2**20


def mask_crc(crc: int) -> int:
    """Returns the checksum that a TFRecord stores for a CRC-32C, rotated and offset.

    Source of the formula: tensorflow/core/lib/hash/crc32c.h (`Mask`).
    """
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def image_key(source_path: str) -> str:
    """Returns the stable identity of an image: 32 hexadecimal digits of its path's SHA-256."""
    return hashlib.sha256(source_path.encode("utf-8")).hexdigest()[:KEY_LENGTH]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureSlot:
    """The position of one feature's payload in every record, in bytes from its frame's start."""

    offset: int
    length: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordLayout:
    """The layout of a record, which follows from the image's shape and the number of classes.

    Record r of a shard starts at byte `r * stride`, and its features have constant offsets in it.
    So a shard is both a TFRecord file of `tf.train.Example` and a strided array that can be mapped.

    Two features of zeros align the image to 64 bytes, and the stride to `block_length`, which also
    divides the image's length. So a batch of images is one gather of blocks.

    Attributes:
        image_shape: (height, width, channels) in pixels, with 1 or 3 channels.
        num_classes: length of the label.

    Raises:
        ValueError: if these cannot be, or an image takes 2 GiB or more.
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    label_kind: LabelKind = CLASSES

    def __post_init__(self) -> None:
        shape = self.image_shape
        if len(shape) != 3 or min(shape) < 1 or shape[2] not in (1, 3):
            raise ValueError(
                "image_shape must be positive (height, width, channels) with 1 or 3 channels, "
                f"received {shape}"
            )
        if self.image_length > _MAX_IMAGE_LENGTH:
            raise ValueError(f"an image must be smaller than 2 GiB, received shape {shape}")
        if self.num_classes < 1:
            raise ValueError(f"num_classes must be at least 1, received {self.num_classes}")

    @property
    def image_length(self) -> int:
        """Size of the pixels in bytes: height * width * channels values."""
        return math.prod(self.image_shape)

    @functools.cached_property
    def block_length(self) -> int:
        """Size of a block in bytes: the smallest divisor of `image_length` that is large enough."""
        length = self.image_length
        least = min(_BLOCK_LENGTH, length // _BLOCKS_PER_IMAGE)
        small = [divisor for divisor in range(1, math.isqrt(length) + 1) if not length % divisor]
        return min(d for s in small for d in (s, length // s) if d >= least)

    @functools.cached_property
    def _parts(self) -> tuple[bytes, bytes, bytes, bytes]:
        """The bytes that all records share: before image, key and label, and behind the label.

        The frame's header is in the first, but its footer in none.
        """
        head_padding, tail_padding = self._find_padding()
        before_image = _entry(_HEAD_PADDING, bytes(head_padding))
        before_image += _entry(IMAGE, b"", self.image_length)
        # Sorted by name, as SerializeToString(deterministic=True) does.
        before_key = _entry(KEY, b"", KEY_LENGTH)
        label_length = 4 * self.num_classes
        before_label = _entry(LABEL, b"", label_length)
        end = _entry(_TAIL_PADDING, bytes(tail_padding))
        rest = len(before_key) + KEY_LENGTH + len(before_label) + label_length + len(end)
        example = _field(1, before_image, self.image_length + rest)
        frame = struct.pack("<Q", len(example) + self.image_length + rest)
        header = frame + struct.pack("<I", mask_crc(google_crc32c.value(frame)))
        return header + example, before_key, before_label, end

    @functools.cached_property
    def features(self) -> Mapping[str, FeatureSlot]:
        """Position of each feature's payload, by feature name."""
        lengths = {IMAGE: self.image_length, KEY: KEY_LENGTH, LABEL: 4 * self.num_classes}
        slots: dict[str, FeatureSlot] = {}
        offset = 0
        for (name, length), before in zip(lengths.items(), self._parts, strict=False):
            slots[name] = FeatureSlot(offset=offset + len(before), length=length)
            offset += len(before) + length
        return slots

    @property
    def stride(self) -> int:
        """Bytes from the start of one record to the start of the next."""
        label = self.features[LABEL]
        return label.offset + label.length + len(self._parts[-1]) + FOOTER_LENGTH

    @property
    def length(self) -> int:
        """Size of a serialized example in bytes, without the TFRecord frame."""
        return self.stride - HEADER_LENGTH - FOOTER_LENGTH

    def _find_padding(self) -> tuple[int, int]:
        """Returns the smallest lengths of the two features of zeros that align image and stride."""

        def length(name: str, payload_length: int) -> int:
            return len(_entry(name, b"", payload_length)) + payload_length

        before_image = len(_entry(IMAGE, b"", self.image_length))
        others = length(KEY, KEY_LENGTH) + length(LABEL, 4 * self.num_classes)
        # The start of the entries depends on their length, which is encoded in one byte or more,
        # and their length depends on their start. So each start is tried.
        for start in itertools.count(HEADER_LENGTH + 2):
            # So short a feature grows by one byte with each zero.
            head = -(start + length(_HEAD_PADDING, 0) + before_image) % _IMAGE_ALIGNMENT
            fixed = length(_HEAD_PADDING, head) + before_image + self.image_length + others
            for tail in itertools.count():
                entries = fixed + length(_TAIL_PADDING, tail)
                needed = HEADER_LENGTH + 1 + len(_varint(entries))
                if needed > start:
                    break
                if needed == start and (start + entries + FOOTER_LENGTH) % self.block_length == 0:
                    return head, tail
        raise AssertionError  # not reached: some start always fits

    def read_records(self, file: IO[bytes], num_at_once: int) -> Iterator[np.ndarray]:
        """Yields the records of a shard, uint8 [up to num_at_once, stride], but not one cut off."""
        while block := file.read(num_at_once * self.stride):
            whole = len(block) // self.stride
            yield np.frombuffer(block, np.uint8, whole * self.stride).reshape(whole, self.stride)

    def bytes_in(self, records: np.ndarray, name: str) -> np.ndarray:
        """Returns the bytes of a feature of framed records, uint8 [num_records, length], a view."""
        slot = self.features[name]
        return records[:, slot.offset : slot.offset + slot.length]

    def find_damaged(self, records: np.ndarray, rows: np.ndarray | None = None) -> int | None:
        """Returns the first record that does not match its frame's checksums, or None.

        The records are uint8 [num_records, stride], C-contiguous; `rows` are those that are looked
        at, int64 [num_rows], all if not given.
        """
        rows = np.arange(len(records)) if rows is None else rows
        header = np.frombuffer(self._parts[0], np.uint8, HEADER_LENGTH)
        is_damaged = (records[rows, :HEADER_LENGTH] != header).any(axis=1)
        stored = np.ascontiguousarray(records[rows, -FOOTER_LENGTH:]).view("<u4")[:, 0]
        crcs = [google_crc32c.value(records[row, HEADER_LENGTH:-FOOTER_LENGTH]) for row in rows]
        is_damaged |= stored != [mask_crc(crc) for crc in crcs]
        return int(rows[is_damaged.argmax()]) if is_damaged.any() else None

    def encode_record(self, image: bytes, label: np.ndarray, key: str) -> bytes:
        """Returns one framed record of `stride` bytes, ready to be appended to a shard.

        `tf.io.TFRecordWriter` writes the same for `Example.SerializeToString(deterministic=True)`.

        Args:
            image: pixels, uint8, row-major [height, width, channels].
            label: float32 [num_classes], such as one-hot; see `LabelKind.vectors`.
            key: the example's key, see `image_key`.

        Raises:
            ValueError: if the image, the label or the key does not fit the layout.
        """
        if len(image) != self.image_length:
            raise ValueError(
                f"expected {self.image_length} bytes of pixels for shape {self.image_shape}, "
                f"received {len(image)}"
            )
        # Adding zero turns -0 into 0, so that equal labels have equal bytes.
        values = (label + np.float32(0)).astype("<f4")
        if values.shape != (self.num_classes,) or not self.label_kind.is_label(values):
            raise ValueError(
                f"expected a label of {self.num_classes} values, {self.label_kind.values}, "
                f"received {label.tolist()}"
            )
        key_bytes = key.encode("ascii")
        if len(key_bytes) != KEY_LENGTH:
            raise ValueError(f"a key must have {KEY_LENGTH} characters, received {key!r}")
        head, before_key, before_label, end = self._parts
        tail = b"".join((before_key, key_bytes, before_label, values.tobytes(), end))
        # In parts, so that the image is copied only once.
        crc = google_crc32c.value(head[HEADER_LENGTH:])
        for part in (image, tail):
            crc = google_crc32c.extend(crc, part)
        return b"".join((head, image, tail, struct.pack("<I", mask_crc(crc))))


def _varint(value: int) -> bytes:
    """Returns a Protocol Buffers varint: seven bits per byte, the least significant first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _field(number: int, payload: bytes, more: int = 0) -> bytes:
    """Returns a length-delimited Protocol Buffers field without the last `more` bytes of it."""
    return bytes([number << 3 | 2]) + _varint(len(payload) + more) + payload


def _entry(name: str, payload: bytes, more: int = 0) -> bytes:
    """Returns the bytes of a feature, floats for the label, else bytes, without the last `more`.

    Source: tensorflow/core/example/feature.proto. Features.feature = 1 (map: key = 1, value = 2),
    Feature.bytes_list = 1, Feature.float_list = 2, *List.value = 1 (floats packed).
    """
    value = _field(1, payload, more)
    value = _field(2 if name == LABEL else 1, value, more)
    value = _field(2, value, more)
    return _field(1, _field(1, name.encode()) + value, more)

"""The example: how one image, its label and its key become bytes, and how they come back.

Encoding and parsing stand side by side so that neither can change alone. Encoding needs no
TensorFlow: pixels of one size make every serialized example of a dataset the same bytes but for
three fixed places, so a record is a template with holes. That is also what makes a shard a
strided array (see `RecordLayout`).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import google_crc32c

if TYPE_CHECKING:
    import tensorflow as tf

IMAGE = "image"
KEY = "key"
LABEL = "label"

#: Length in bytes of a key: 128 bits in hexadecimal digits.
KEY_LENGTH = 32

# A TFRecord frames each record as length (uint64) + masked CRC of the length (uint32)
# + data + masked CRC of the data (uint32), little-endian.
# Source: tensorflow/core/lib/io/record_writer.h.
HEADER_LENGTH = 12
FOOTER_LENGTH = 4

_CRC_MASK_DELTA = 0xA282EAD8

# Protocol Buffers reads no message of 2 GiB or more; what is no pixel takes well below a MiB.
_MAX_IMAGE_LENGTH = 2**31 - 2**20


def masked_crc32c(data: bytes | bytearray | memoryview) -> int:
    """Returns the checksum a TFRecord stores for `data`: CRC-32C, rotated and offset.

    Source of the formula: tensorflow/core/lib/hash/crc32c.h (`Mask`).
    """
    crc = google_crc32c.value(bytes(data))
    return (((crc >> 15) | (crc << 17)) + _CRC_MASK_DELTA) & 0xFFFFFFFF


def image_key(source_path: str) -> str:
    """Returns the stable identity of an image: 32 hexadecimal digits of its path's SHA-256.

    Args:
        source_path: the image's path inside its tree, such as `train/CNV/CNV-1-1.jpeg`.
    """
    return hashlib.sha256(source_path.encode("utf-8")).hexdigest()[:KEY_LENGTH]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureSlot:
    """Where one feature's payload lies in every record of a dataset.

    Attributes:
        offset: bytes from the start of the record's frame in the shard file.
        length: bytes.
    """

    offset: int
    length: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordLayout:
    """The bytes of a record, fixed by the image's shape and the number of classes.

    Record r of a shard starts at byte `r * stride` of the file, and its features lie at constant
    offsets in it, so a shard is at once a TFRecord file of `tf.train.Example` and an array with
    a stride that can be mapped into memory.

    Attributes:
        image_shape: (height, width, channels) in pixels.
        num_classes: length of the one-hot label.

    Raises:
        ValueError: if a dimension is not positive, or an image has 2 GiB.
    """

    image_shape: tuple[int, int, int]
    num_classes: int

    def __post_init__(self) -> None:
        if len(self.image_shape) != 3 or min(self.image_shape) < 1:
            raise ValueError(
                f"image_shape must be three positive numbers (height, width, channels), "
                f"received {self.image_shape}"
            )
        if self.image_length > _MAX_IMAGE_LENGTH:
            raise ValueError(
                f"an image must be smaller than 2 GiB, the most that a tf.train.Example holds, "
                f"received shape {self.image_shape}"
            )
        if self.num_classes < 1:
            raise ValueError(f"num_classes must be at least 1, received {self.num_classes}")

    @property
    def image_length(self) -> int:
        """Bytes of the pixels: height * width * channels, one byte each."""
        return math.prod(self.image_shape)

    @property
    def label_length(self) -> int:
        """Bytes of the one-hot label: four (float32) a class."""
        return 4 * self.num_classes

    @property
    def length(self) -> int:
        """Bytes of a serialized example, without the TFRecord frame."""
        return len(self._template[0]) - HEADER_LENGTH - FOOTER_LENGTH

    @property
    def stride(self) -> int:
        """Bytes from the start of one record to the start of the next."""
        return len(self._template[0])

    @property
    def features(self) -> Mapping[str, FeatureSlot]:
        """Where each feature's payload lies, by feature name."""
        return self._template[1]

    @functools.cached_property
    def _template(self) -> tuple[bytes, Mapping[str, FeatureSlot]]:
        """A framed record with zeros for payloads (its data CRC not yet right), and its slots."""
        payloads = {
            IMAGE: _bytes_feature(bytes(self.image_length)),
            KEY: _bytes_feature(bytes(KEY_LENGTH)),
            LABEL: _float_feature(bytes(self.label_length)),
        }
        lengths = {IMAGE: self.image_length, KEY: KEY_LENGTH, LABEL: self.label_length}
        entries = b""
        ends = {}
        # Sorted by name: the order of SerializeToString(deterministic=True). The payload is the
        # last thing in each entry, so its slot ends where the entry ends.
        for name in sorted(payloads):
            entries += _field(1, _field(1, name.encode()) + _field(2, payloads[name]))
            ends[name] = len(entries)
        example = _field(1, entries)
        entries_start = HEADER_LENGTH + len(example) - len(entries)
        slots = {
            name: FeatureSlot(offset=entries_start + end - lengths[name], length=lengths[name])
            for name, end in ends.items()
        }
        length = struct.pack("<Q", len(example))
        header = length + struct.pack("<I", masked_crc32c(length))
        return header + example + bytes(FOOTER_LENGTH), slots

    @functools.cached_property
    def _one_hot(self) -> tuple[bytes, ...]:
        """The label payload of each class."""
        rows = ([float(i == j) for j in range(self.num_classes)] for i in range(self.num_classes))
        return tuple(struct.pack(f"<{self.num_classes}f", *row) for row in rows)

    def encode_record(self, image: bytes, label_index: int, key: str) -> bytes:
        """Returns one framed record, ready to be appended to a shard.

        The bytes equal those of `tf.io.TFRecordWriter` given
        `tf.train.Example.SerializeToString(deterministic=True)`.

        Args:
            image: uint8 pixels, row-major [height, width, channels].
            label_index: position of the class in the dataset's label names.
            key: the example's identity, see `image_key`.

        Returns:
            bytes of length `stride`.

        Raises:
            ValueError: if the image, the label or the key does not fit the layout.
        """
        if len(image) != self.image_length:
            raise ValueError(
                f"expected {self.image_length} bytes of pixels for shape {self.image_shape}, "
                f"received {len(image)}"
            )
        if not 0 <= label_index < self.num_classes:
            raise ValueError(
                f"label_index must be in 0..{self.num_classes - 1}, received {label_index}"
            )
        key_bytes = key.encode("ascii")
        if len(key_bytes) != KEY_LENGTH:
            raise ValueError(f"a key has {KEY_LENGTH} characters, received {key!r}")
        template, slots = self._template
        record = bytearray(template)
        for name, payload in (
            (IMAGE, image),
            (KEY, key_bytes),
            (LABEL, self._one_hot[label_index]),
        ):
            slot = slots[name]
            record[slot.offset : slot.offset + slot.length] = payload
        data = memoryview(record)[HEADER_LENGTH:-FOOTER_LENGTH]
        struct.pack_into("<I", record, len(record) - FOOTER_LENGTH, masked_crc32c(data))
        return bytes(record)

    def feature_spec(self) -> dict[str, Any]:
        """Returns what `tf.io.parse_example` needs to read these records without this package."""
        import tensorflow as tf

        return {
            IMAGE: tf.io.FixedLenFeature([], tf.string),
            KEY: tf.io.FixedLenFeature([], tf.string),
            LABEL: tf.io.FixedLenFeature([self.num_classes], tf.float32),
        }

    def parse_batch(self, records: tf.Tensor) -> dict[str, tf.Tensor]:
        """Parses a batch of serialized examples, in a tf.data graph or eagerly.

        Args:
            records: string [batch], each a serialized `tf.train.Example`.

        Returns:
            `image` uint8 [batch, height, width, channels], `label` float32 [batch, num_classes]
            one-hot, `key` string [batch].
        """
        import tensorflow as tf

        features = tf.io.parse_example(records, self.feature_spec())
        pixels = tf.io.decode_raw(features[IMAGE], tf.uint8, fixed_length=self.image_length)
        features[IMAGE] = tf.reshape(pixels, (-1, *self.image_shape))
        return features


def _varint(value: int) -> bytes:
    """Protocol Buffers' variable-length integer: seven bits a byte, least significant first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _field(number: int, payload: bytes) -> bytes:
    """A length-delimited Protocol Buffers field."""
    return bytes([number << 3 | 2]) + _varint(len(payload)) + payload


# Field numbers from tensorflow/core/example/feature.proto and example.proto:
# Example.features = 1, Features.feature = 1 (map: key = 1, value = 2),
# Feature.bytes_list = 1, Feature.float_list = 2, *List.value = 1 (floats packed).
def _bytes_feature(payload: bytes) -> bytes:
    return _field(1, _field(1, payload))


def _float_feature(packed: bytes) -> bytes:
    return _field(2, _field(1, packed))

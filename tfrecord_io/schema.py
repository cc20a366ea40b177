"""The example: encodes an image, its label and its key as a record, and parses records.

>>> layout = RecordLayout(image_shape=(224, 224, 1), num_classes=4)
>>> layout.stride, layout.features["image"].offset
(50688, 64)

Encoding does not need TensorFlow: all images of a dataset have the same size, so its serialized
examples differ only in three fixed ranges of bytes, and a record is a template in which these are
filled in. For the same reason a shard is a strided array (see `RecordLayout`).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import math
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np

from tfrecord_io.kinds.classes import CLASSES
from tfrecord_io.kinds.label_kind import LabelKind

if TYPE_CHECKING:
    import tensorflow as tf

IMAGE, KEY, LABEL = "image", "key", "label"

# Features of zeros that align the image and the stride. Their names sort first and last.
_HEAD_PADDING, _TAIL_PADDING = "head_padding", "tail_padding"

# Each image begins at a multiple of this many bytes, the alignment that TensorFlow requires to use
# memory without a copy (EIGEN_MAX_ALIGN_BYTES with AVX-512, as `tsl::Allocator` guarantees).
_IMAGE_ALIGNMENT = 64

# Blocks of this length are copied as fast as whole images (benchmarks/README.md), and smaller
# blocks need less padding. Small images get smaller blocks, so that padding stays a small share.
_BLOCK_LENGTH, _BLOCKS_PER_IMAGE = 512, 32

#: Types of the values of images. uint8 is the default, and all that format version 1 knows.
DTYPES = ("uint8", "uint16", "float16", "float32")

#: Length in bytes of a key: 128 bits in hexadecimal digits.
KEY_LENGTH = 32

# A TFRecord frames each record as length (uint64) + masked CRC of the length (uint32)
# + data + masked CRC of the data (uint32), little-endian.
# Source: tensorflow/core/lib/io/record_writer.h.
HEADER_LENGTH, FOOTER_LENGTH = 12, 4

# Protocol Buffers cannot read a message of 2 GiB or more; everything but the pixels takes much less
# than a MiB.
_MAX_IMAGE_LENGTH = 2**31 - 2**20


def masked_crc32c(data: bytes | bytearray | memoryview | np.ndarray) -> int:
    """Returns the checksum that a TFRecord stores for `data`: CRC-32C, rotated and offset."""
    # Without a copy, where google_crc32c takes the type.
    return _mask(google_crc32c.value(data if isinstance(data, np.ndarray) else bytes(data)))


def _mask(crc: int) -> int:
    """Source of the formula: tensorflow/core/lib/hash/crc32c.h (`Mask`)."""
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

    Record r of a shard starts at byte `r * stride` of the file, and its features have constant
    offsets in it. So a shard is both a TFRecord file of `tf.train.Example` and a strided array
    that can be mapped into memory.

    Two features of zeros, before and after the others, align the image to a multiple of 64 bytes
    and make the stride a multiple of `block_length`, which also divides the image's length. So a
    mapped shard is an array of blocks too, and a batch of images is one gather of blocks, which
    copies each pixel once and nothing else.

    Attributes:
        image_shape: (height, width, channels) in pixels. Feature maps have any number of channels.
        num_classes: length of the label.
        dtype: type of the image's values, one of `DTYPES`; they are stored little-endian.

    Raises:
        ValueError: if these cannot be, or an image takes 2 GiB or more.
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    dtype: str = "uint8"
    label_kind: LabelKind = CLASSES

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, received {self.dtype!r}")
        shape = self.image_shape
        if len(shape) != 3 or min(shape) < 1:
            raise ValueError(
                f"image_shape must be three positive numbers (height, width, channels), "
                f"received {shape}"
            )
        if self.image_length > _MAX_IMAGE_LENGTH:
            raise ValueError(f"an image must be smaller than 2 GiB, received shape {shape}")
        if self.num_classes < 1:
            raise ValueError(f"num_classes must be at least 1, received {self.num_classes}")

    @property
    def image_length(self) -> int:
        """Size of the pixels in bytes: height * width * channels values."""
        return math.prod(self.image_shape) * self.numpy_dtype.itemsize

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Type of the image's values as they are stored, which is little-endian."""
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def format_version(self) -> int:
        """The oldest version of the format that has such records."""
        return max(1 if self.dtype == "uint8" else 2, self.label_kind.format_version)

    @property
    def holds_pictures(self) -> bool:
        """Whether the images are grey or RGB pictures of whole numbers, and not feature maps."""
        return self.numpy_dtype.kind == "u" and self.image_shape[2] in (1, 3)

    @property
    def label_length(self) -> int:
        """Size of the label in bytes: four (float32) per class."""
        return 4 * self.num_classes

    @functools.cached_property
    def block_length(self) -> int:
        """Size of a block in bytes: the smallest divisor of `image_length` that is large enough."""
        length = self.image_length
        least = min(_BLOCK_LENGTH, length // _BLOCKS_PER_IMAGE)
        small = [divisor for divisor in range(1, math.isqrt(length) + 1) if not length % divisor]
        return min(d for s in small for d in (s, length // s) if d >= least)

    @property
    def stride(self) -> int:
        """Bytes from the start of one record to the start of the next."""
        template = self._template
        return len(template.head) + self.image_length + len(template.tail) + FOOTER_LENGTH

    @property
    def length(self) -> int:
        """Size of a serialized example in bytes, without the TFRecord frame."""
        return self.stride - HEADER_LENGTH - FOOTER_LENGTH

    @property
    def features(self) -> Mapping[str, FeatureSlot]:
        """Position of each feature's payload, by feature name."""
        return self._template.features

    @functools.cached_property
    def _template(self) -> _Template:
        return _make_template(self.image_length, self.label_length, self.block_length)

    def bytes_in(self, records: np.ndarray, name: str) -> np.ndarray:
        """Returns the bytes of a feature of framed records, uint8 [num_records, length], a view."""
        slot = self.features[name]
        return records[:, slot.offset : slot.offset + slot.length]

    def labels_in(self, records: np.ndarray) -> np.ndarray:
        """Returns the labels of framed records, float32 [num_records, num_classes], a copy."""
        return self.bytes_in(records, LABEL).copy().view("<f4")

    def images_in(self, records: np.ndarray) -> np.ndarray:
        """Returns the images of framed records, a view where NumPy can make one.

        They are of type `numpy_dtype`, [num_records, height, width, channels].
        """
        pixels = self.bytes_in(records, IMAGE)
        return pixels.view(self.numpy_dtype).reshape(len(records), *self.image_shape)

    def find_damaged(self, records: np.ndarray) -> int | None:
        """Returns the place of the first record that does not match its frame's checksums, or None.

        The records are uint8 [num_records, stride], C-contiguous.
        """
        header = np.frombuffer(self._template.head, np.uint8, HEADER_LENGTH)
        is_framed = (records[:, :HEADER_LENGTH] == header).all(axis=1)
        for place, record in enumerate(records):
            (stored,) = struct.unpack("<I", record[-FOOTER_LENGTH:])
            crc = masked_crc32c(record[HEADER_LENGTH:-FOOTER_LENGTH])
            if not is_framed[place] or stored != crc:
                return place
        return None

    def encode_record(self, image: bytes, label: np.ndarray, key: str) -> bytes:
        """Returns one framed record of `stride` bytes, ready to be appended to a shard.

        The bytes equal those of `tf.io.TFRecordWriter` given
        `tf.train.Example.SerializeToString(deterministic=True)`.

        Args:
            image: pixels of type `dtype`, little-endian, row-major [height, width, channels].
            label: float32 [num_classes], such as one-hot; see `LabelKind.vectors`.
            key: the example's key, see `image_key`.

        Raises:
            ValueError: if the image, the label or the key does not fit the layout.
        """
        record = bytearray(self.stride)
        self.encode_into(record, image, label, key)
        return bytes(record)

    def encode_into(
        self, record: bytearray | memoryview, image: bytes, label: np.ndarray, key: str
    ) -> None:
        """Writes one framed record into memory of `stride` bytes; otherwise as `encode_record`."""
        if len(image) != self.image_length:
            raise ValueError(
                f"expected {self.image_length} bytes of pixels for shape {self.image_shape} of "
                f"{self.dtype}, received {len(image)}"
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
        template = self._template
        head_end = len(template.head)
        image_end = head_end + len(image)
        tail = bytearray(template.tail)
        for name, payload in ((KEY, key_bytes), (LABEL, values.tobytes())):
            first = template.features[name].offset - image_end
            tail[first : first + len(payload)] = payload
        # The checksum is computed in parts, so that the image is copied only once.
        crc = google_crc32c.extend(google_crc32c.extend(template.head_crc, image), bytes(tail))
        record[:head_end] = template.head
        record[head_end:image_end] = image
        record[image_end:] = tail + struct.pack("<I", _mask(crc))

    def parse_batch(self, records: tf.Tensor) -> dict[str, tf.Tensor]:
        """Parses a batch of serialized examples, in a tf.data graph or eagerly.

        Returns `image` of type `dtype` [batch, height, width, channels], `label` float32 [batch,
        num_classes], `key` string [batch].
        """
        import tensorflow as tf

        text = tf.io.FixedLenFeature([], tf.string)
        label = tf.io.FixedLenFeature([self.num_classes], tf.float32)
        spec = {IMAGE: text, KEY: text, LABEL: label}
        features: dict[str, Any] = tf.io.parse_example(records, spec)
        pixels = tf.io.decode_raw(features[IMAGE], tf.uint8, fixed_length=self.image_length)
        features[IMAGE] = self.images_of(pixels)
        return features

    def images_of(self, pixels: tf.Tensor) -> tf.Tensor:
        """Gives the bytes of images, uint8 [batch, ...], their type and shape, without a copy."""
        import tensorflow as tf

        size = self.numpy_dtype.itemsize
        if size > 1:
            values = tf.reshape(pixels, (-1, self.image_length // size, size))
            pixels = tf.bitcast(values, self.dtype)
        return tf.reshape(pixels, (-1, *self.image_shape))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Template:
    """The bytes that all records share, before and after the pixels, with zeros for key and label.

    The head includes the frame's header, its checksum does not; the tail is without the footer.
    """

    head: bytes
    head_crc: int
    tail: bytes
    features: Mapping[str, FeatureSlot]


@functools.lru_cache
def _make_template(image_length: int, label_length: int, block_length: int) -> _Template:
    head_padding, tail_padding = _find_padding(image_length, label_length, block_length)
    before = _entry_prefix(_HEAD_PADDING, head_padding) + bytes(head_padding)
    before += _entry_prefix(IMAGE, image_length)
    tail, lengths, places = b"", {IMAGE: image_length}, {IMAGE: 0}
    # Sorted by name, as SerializeToString(deterministic=True) does.
    for name, length in ((KEY, KEY_LENGTH), (LABEL, label_length), (_TAIL_PADDING, tail_padding)):
        tail += _entry_prefix(name, length)
        lengths[name], places[name] = length, image_length + len(tail)
        tail += bytes(length)
    example_head = _field(1, before, image_length + len(tail))
    frame = struct.pack("<Q", len(example_head) + image_length + len(tail))
    head = frame + struct.pack("<I", masked_crc32c(frame)) + example_head
    return _Template(
        head=head,
        head_crc=google_crc32c.value(example_head),
        tail=tail,
        features={
            name: FeatureSlot(offset=len(head) + places[name], length=lengths[name])
            for name in (IMAGE, KEY, LABEL)
        },
    )


def _find_padding(image_length: int, label_length: int, block_length: int) -> tuple[int, int]:
    """Returns the smallest lengths of the two features of zeros that give the wanted alignment."""
    image_start = len(_entry_prefix(IMAGE, image_length))
    others = _entry_length(KEY, KEY_LENGTH) + _entry_length(LABEL, label_length)
    # The start of the entries depends on their length, which is encoded in one byte or more, and
    # their length depends on their start. So each start is tried.
    for start in itertools.count(HEADER_LENGTH + 2):
        head = next(
            length
            for length in itertools.count()
            if (start + _entry_length(_HEAD_PADDING, length) + image_start) % _IMAGE_ALIGNMENT == 0
        )
        fixed = _entry_length(_HEAD_PADDING, head) + image_start + image_length + others
        for tail in itertools.count():
            entries = fixed + _entry_length(_TAIL_PADDING, tail)
            needed = HEADER_LENGTH + 1 + len(_varint(entries))
            if needed > start:
                break
            if needed == start and (start + entries + FOOTER_LENGTH) % block_length == 0:
                return head, tail
    raise AssertionError  # not reached: some start always fits


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


def _entry_prefix(name: str, payload_length: int) -> bytes:
    """Returns the bytes of a feature before its payload: floats for the label, else bytes.

    Source: tensorflow/core/example/feature.proto and example.proto. Example.features = 1,
    Features.feature = 1 (map: key = 1, value = 2), Feature.bytes_list = 1, Feature.float_list = 2,
    *List.value = 1 (floats packed).
    """
    value = _field(1, b"", payload_length)
    value = _field(2 if name == LABEL else 1, value, payload_length)
    value = _field(2, value, payload_length)
    return _field(1, _field(1, name.encode()) + value, payload_length)


def _entry_length(name: str, payload_length: int) -> int:
    return len(_entry_prefix(name, payload_length)) + payload_length

"""Records of one length as an array, out of which a batch is gathered."""

from __future__ import annotations

import numpy as np

from tfrecord_io import schema


class Records:
    """Records in memory, which is mapped, or that of a batch.

    Attributes:
        layout: of a record.
        array: uint8 [rows, stride].
        blocks: uint8 [blocks, block length of the layout]: the same bytes, from the first image on.
            With `stride / block_length` blocks a row, the image of row r is the first `image_length
            / block_length` of its blocks, and its key and label are in the others.
    """

    def __init__(self, layout: schema.RecordLayout, memory: np.ndarray) -> None:
        """Takes uint8 [(rows + 1) * stride]; the last row's blocks reach into one more."""
        first = layout.features[schema.IMAGE].offset
        last = first + len(memory) - layout.stride
        self.layout = layout
        self.array = memory[: -layout.stride].reshape(-1, layout.stride)
        self.blocks = memory[first:last].reshape(-1, layout.block_length)

    def feature(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Returns the bytes of one feature of rows, a copy.

        Args:
            name: of the feature.
            rows: int64 [batch].

        Returns:
            uint8 [batch, length of the feature].
        """
        slot = self.layout.features[name]
        return self.array[:, slot.offset : slot.offset + slot.length][rows]

    def gather(self, rows: np.ndarray, memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the images and the labels of rows.

        Args:
            rows: int64 [batch].
            memory: uint8 [at least the bytes of the images], into which they are written.

        Returns:
            (images, labels): [batch, height, width, channels] of the dataset's type, float32
            [batch, num_classes].
        """
        layout, length = self.layout, self.layout.block_length
        firsts = rows[:, np.newaxis] * (layout.stride // length)
        blocks = (firsts + np.arange(layout.image_length // length)).ravel()
        images = memory[: len(rows) * layout.image_length]
        # All are in range; with mode="raise" NumPy would first write to a copy.
        np.take(self.blocks, blocks, 0, images.reshape(-1, length), mode="clip")
        images = images.view(layout.numpy_dtype).reshape(-1, *layout.image_shape)
        return images, self.feature(schema.LABEL, rows).view("<f4")

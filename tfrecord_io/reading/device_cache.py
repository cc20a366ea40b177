"""Keeps a split in an accelerator's memory, as it is stored, and gathers batches there.

The images of a split are read once and stay on the device (84,484 scans of 224x224 take 4.2 GB). A
step then sends only the places of its examples to the device, a few hundred bytes.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator

import numpy as np
import psutil
import tensorflow as tf

from tfrecord_io.reading.mapped import MappedDataset


class DeviceSplit:
    """The examples of one split as tensors on one device.

    Attributes:
        device: its name, such as `GPU:0`.
        images: [num_examples, height, width, channels] of the dataset's type.
        labels: float32 [num_examples, num_classes] one-hot.
        keys: string [num_examples], in the host's memory: no accelerator holds strings.
    """

    def __init__(self, dataset: MappedDataset, device: str) -> None:
        """Copies a split to a device, in its stored order.

        Raises:
            tf.errors.ResourceExhaustedError: if the device has no room after all.
        """
        every = np.arange(len(dataset))
        images, labels = dataset[every]
        self.device = device
        with tf.device("CPU:0"):
            self.keys = tf.constant(dataset.keys(every))
        with tf.device(device):
            self.images = tf.constant(images)
            self.labels = tf.constant(labels)

    def copy_to(self, device: str) -> DeviceSplit:
        """Returns the same examples on another device, for another replica.

        Raises:
            tf.errors.ResourceExhaustedError: if it has no room.
        """
        other = copy.copy(self)
        other.device = device
        with tf.device(device):
            other.images, other.labels = tf.identity(self.images), tf.identity(self.labels)
        return other

    def gather(self, examples: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns a batch, on the device; eagerly or in a graph.

        Args:
            examples: int64 [batch], places in the split.

        Returns:
            (image, label): [batch, height, width, channels] of the dataset's type, float32
            [batch, num_classes].
        """
        with tf.device(self.device):
            return tf.gather(self.images, examples), tf.gather(self.labels, examples)

    def gather_keys(self, examples: tf.Tensor) -> tf.Tensor:
        """Returns the keys of a batch, string [batch], in the host's memory."""
        with tf.device("CPU:0"):
            return tf.gather(self.keys, examples)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class DeviceDataset:
    """Batches of a `DeviceSplit`: an iterable that can be gone through again and again.

    It is not a `tf.data.Dataset`, whose elements are in the host's memory: a batch would be copied
    back there. A compiled step takes the elements of `order`, and calls `split.gather` itself.

    Attributes:
        split: the examples.
        order: a `tf.data.Dataset` of (examples int64 [batch], weights float32 [batch]).
    """

    split: DeviceSplit
    order: tf.data.Dataset
    with_weights: bool
    with_keys: bool

    def __iter__(self) -> Iterator[tuple[tf.Tensor, ...]]:
        """Yields (image, label), then weight, then key, as `reader.make_dataset` says."""
        for examples, weights in self.order:
            batch = self.split.gather(examples)
            if self.with_weights:
                batch += (weights,)
            if self.with_keys:
                batch += (self.split.gather_keys(examples),)
            yield batch

    def __len__(self) -> int:
        """Returns the number of batches; raises TypeError if they are endless."""
        return len(self.order)


def choose_device() -> str:
    """Returns the first GPU that this process may use, or else the CPU."""
    names = [device.name for device in tf.config.list_logical_devices("GPU")]
    return names[0].removeprefix("/device:") if names else "CPU:0"


def has_room(device: str, needed: int) -> bool:
    """Tells whether the free memory of a device could hold a split twice.

    The other half is left to the training. TensorFlow cannot report the free memory of an
    accelerator, so that much memory is allocated, and freed at once.
    """
    if device.startswith("CPU"):
        return 2 * needed <= psutil.virtual_memory().available
    try:
        with tf.device(device):
            # The length as int64: it may be more than 2 GB.
            tf.fill(tf.constant([2 * needed], tf.int64), tf.constant(0, tf.uint8))
    except tf.errors.ResourceExhaustedError:
        return False
    return True

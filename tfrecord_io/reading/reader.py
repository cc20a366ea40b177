"""Batches for training, read from finished shards: a step only copies bytes.

A batch is a gather of pixels in TensorFlow's threads, out of files that are mapped into memory.
Records of a store are read ahead until this machine's disk holds them all.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import pickle
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import psutil
import tensorflow as tf

from tfrecord_io import schema
from tfrecord_io.reading.batches import Batches, Engine, make_batches
from tfrecord_io.reading.mapped import MappedDataset
from tfrecord_io.reading.opening import Verify
from tfrecord_io.reading.order import BatchOrder
from tfrecord_io.reading.records import BufferPool

_log = logging.getLogger(__name__)

# Largest number of threads that gather batches; more would only wait for memory.
_MAX_GATHERS = 8


# Without this, AutoGraph searches the function for control flow that depends on tensors. There is
# none, and the search takes most of the time to the first batch.
@tf.autograph.experimental.do_not_convert
def make_dataset(
    directory: str | os.PathLike[str],
    *,
    split: str | Sequence[str],
    batch_size: int,
    seed: int = 0,
    shuffle: bool = True,
    epochs: int | None = 1,
    drop_remainder: bool = False,
    pad_remainder: bool = False,
    engine: Engine = "auto",
    num_replicas: int = 1,
    replica_index: int = 0,
    start_step: int = 0,
    with_keys: bool = False,
    verify: Verify = "size",
    cache: Literal["device"] | None = None,
    examples: Sequence[int] | np.ndarray | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_gb: float | None = None,
) -> tf.data.Dataset | DeviceDataset:
    """Returns the batches of a split, in an order that the seed decides.

    The order is that of `BatchOrder`. Iterating the same dataset twice gives the same batches
    twice; for Keras `fit` over several epochs ask for `epochs=None` and give `steps_per_epoch`.

    Args:
        directory: of a finished dataset; a local folder or a URL, see docs/reader.md.
        split: name of the split; or several, such as `("train", "val")`, which are read as one.
        batch_size: examples of a global batch, over all replicas.
        seed: decides the order.
        shuffle: if False, examples come in the order of the shards.
        epochs: how often each example occurs; None for endless batches.
        drop_remainder: leave out a last batch that is not full.
        pad_remainder: fill up a last batch that is not full with copies of its last example, and
            give each example a weight: 1, or 0 for a copy.
        engine: where the operating system cannot map the shards into memory, `mmap` raises an
            error, and `auto` reads each record from its file.
        num_replicas: readers (such as workers) that share each global batch in equal slices.
        replica_index: which slice this reader gets.
        start_step: batches to skip, at no cost: the state of a reader is its number of steps.
        with_keys: whether to give each example's key as well.
        verify: how much of the shards is checked now: `size`, `crc` or `sha256`.
        cache: `device` reads the split now, once, into the memory of the first GPU (of the CPU
            if there is none) and gathers batches there. A split that takes more than half of the
            free memory is read from its files instead, with a warning in the log.
        examples: places in the split, in the order of the shards, of the examples to read; all if
            not given. An epoch is a permutation of these.
        cache_dir: folder in which what a URL gives is kept; the user's cache folder if not given.
        cache_gb: 10^9 bytes that this folder may take; half of what is free there if not given.

    Returns:
        a dataset (with `cache="device"` a `DeviceDataset`, which is iterated like one) of
        (image, label), then weight with `pad_remainder`, then key with `with_keys`:
        image [batch, height, width, channels] of the dataset's type (uint8 by default), label
        float32 [batch, num_classes] one-hot (or 0 and 1 for each of several labels, or [batch, 1]
        of numbers), weight float32 [batch], key string [batch]. `batch` is batch_size /
        num_replicas; in a last batch that is neither dropped nor padded it is less, and may be 0
        for a replica.

    Raises:
        ManifestError: as `opening.open_split` does; or if the split is smaller than a batch where
            all batches must be full.
        ValueError: if an argument is out of range, or the arguments do not fit together.
        OSError: if `mmap` was asked for and the operating system cannot map the files.
        UserError, StoreError: if the URL, the cache or the store cannot be used.
    """
    if cache not in (None, "device"):
        raise ValueError(f"cache must be None or 'device', received {cache!r}")
    batches = make_batches(
        directory,
        split=split,
        batch_size=batch_size,
        seed=seed,
        shuffle=shuffle,
        epochs=epochs,
        drop_remainder=drop_remainder,
        pad_remainder=pad_remainder,
        engine=engine,
        num_replicas=num_replicas,
        replica_index=replica_index,
        start_step=start_step,
        with_keys=with_keys,
        verify=verify,
        examples=examples,
        cache_dir=cache_dir,
        cache_gb=cache_gb,
    )
    loaded = _load_to_device(batches.dataset) if cache == "device" else None
    if loaded is None:
        return _finish(_gathered(batches), batches)
    return DeviceDataset(loaded, _finish(_order(batches), batches), pad_remainder, with_keys)


@dataclasses.dataclass(frozen=True, eq=False)
class DeviceSplit:
    """The examples of one split, as they are stored, on a device such as `GPU:0`.

    The keys are in the host's memory: no accelerator holds strings.
    """

    device: str
    images: tf.Tensor
    labels: tf.Tensor
    keys: tf.Tensor

    def gather(self, examples: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (image, label) of int64 [batch] places in the split, eagerly or in a graph."""
        with tf.device(self.device):
            return tf.gather(self.images, examples), tf.gather(self.labels, examples)


@dataclasses.dataclass(frozen=True, eq=False)
class DeviceDataset:
    """Batches of a `DeviceSplit`: an iterable that can be gone through again and again.

    It is not a `tf.data.Dataset`, whose elements are in the host's memory. A compiled step takes
    the elements of `order`, (examples int64 [batch], weights float32 [batch]), and calls
    `split.gather` itself.
    """

    split: DeviceSplit
    order: tf.data.Dataset
    with_weights: bool
    with_keys: bool

    def __iter__(self) -> Iterator[tuple[tf.Tensor, ...]]:
        """Yields batches as `make_dataset` describes them."""
        for examples, weights in self.order:
            batch = self.split.gather(examples)
            if self.with_weights:
                batch += (weights,)
            if self.with_keys:
                with tf.device("CPU:0"):
                    batch += (tf.gather(self.split.keys, examples),)
            yield batch

    def __len__(self) -> int:
        """Returns the number of batches; raises TypeError if they are endless."""
        return len(self.order)


def _load_to_device(dataset: MappedDataset) -> DeviceSplit | None:
    """Reads a split into the memory of the first GPU, or else the CPU; None if it has no room."""
    gpus = tf.config.list_logical_devices("GPU")
    device = gpus[0].name.removeprefix("/device:") if gpus else "CPU:0"
    needed = len(dataset) * (dataset.layout.image_length + dataset.layout.label_length)
    try:
        # As much again is left to the training. TensorFlow cannot report the free memory of an
        # accelerator, so that much is allocated, and freed at once.
        if gpus:
            with tf.device(device):
                # The length as int64: it may be more than 2 GB.
                tf.fill(tf.constant([2 * needed], tf.int64), tf.constant(0, tf.uint8))
        if gpus or 2 * needed <= psutil.virtual_memory().available:
            every = np.arange(len(dataset))
            images, labels = dataset[every]
            with tf.device("CPU:0"):
                keys = tf.constant(dataset.keys(every))
            with tf.device(device):
                return DeviceSplit(device, tf.constant(images), tf.constant(labels), keys)
    except tf.errors.ResourceExhaustedError:
        pass
    _log.warning(
        "%s takes %.1f GB, more than half of the free memory of %s; reading it from its files "
        "instead of cache='device'",
        dataset.name,
        needed / 1e9,
        device,
    )
    return None


def _gathered(batches: Batches) -> tf.data.Dataset:
    """Batches that are gathered out of records in memory, all mapped or some read for a batch."""
    order, layout, with_keys = batches.order, batches.dataset.layout, batches.with_keys

    # tf.data copies a tensor that a dataset or its functions hold into the graph of each iterator.
    # A tensor that is made while the iterator runs is passed by reference. So the files are mapped
    # when an iterator starts, and unmapped when it ends. TensorFlow never frees a function that it
    # was given, so these hold no open dataset.
    pickled = pickle.dumps(batches)

    def split(blocks: tf.Tensor, *many: tf.Tensor) -> tf.data.Dataset:
        every = tf.data.Dataset.from_tensors(blocks).repeat()
        return tf.data.Dataset.zip((every, *map(tf.data.Dataset.from_tensor_slices, many)))

    def gather(blocks: tf.Tensor, rows: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        image, label, key = _gather(layout, blocks, rows)
        others = (weights,) if order.pad_remainder else ()
        return image, label, *others, *((key,) if with_keys else ())

    blocks = tf.TensorSpec((None, layout.block_length), tf.uint8)

    def read() -> Iterator[tuple[np.ndarray, ...]]:
        return ((records.blocks, *part) for records, *part in pickle.loads(pickled).parts())

    parts = _from_iterator(read, (blocks, *_signature(order)))
    num_gathers = min(_MAX_GATHERS, os.cpu_count() or 1)
    rows = parts.prefetch(1).flat_map(split)
    # In a function, where TensorFlow's deterministic mode leaves the threads as they are.
    return tf.data.Dataset.range(1).flat_map(
        lambda _: rows.map(gather, num_gathers, deterministic=True)
    )


def _gather(
    layout: schema.RecordLayout, blocks: tf.Tensor, rows: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Gathers (image, label, key) of rows, int64 [batch], out of `Records.blocks`."""
    per_record = layout.stride // layout.block_length
    per_image = layout.image_length // layout.block_length
    starts = rows[:, tf.newaxis] * per_record
    # Copies each pixel once, to where it is wanted. TensorFlow has no other op that does.
    image = tf.gather(blocks, starts + tf.range(per_image, dtype=tf.int64))
    rest = tf.gather(blocks, starts + tf.range(per_image, per_record, dtype=tf.int64))
    rest = tf.reshape(rest, (-1, layout.stride - layout.image_length))
    # One split costs less than as many slices: it copies whole rows.
    key, label = layout.features[schema.KEY], layout.features[schema.LABEL]
    first = layout.features[schema.IMAGE].offset + layout.image_length
    between = label.offset - key.offset - key.length
    lengths = (key.offset - first, key.length, between, label.length, -1)
    _, keys, _, labels, _ = tf.split(rest, lengths, axis=1)
    labels = tf.reshape(labels, (-1, layout.num_classes, 4))
    characters = tf.cast(keys, tf.int32)
    return (
        layout.images_of(image),
        tf.bitcast(labels, tf.float32),
        tf.strings.unicode_encode(characters, "UTF-8"),
    )


def _order(batches: Batches) -> tf.data.Dataset:
    """Elements (places in the split, weights), int64 and float32 [replica_batch_size]."""
    order, examples, start_step = batches.order, batches.examples, batches.start_step

    def read() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return ((examples[places], weights) for places, weights in order.parts(start_step))

    parts = _from_iterator(read, _signature(order)).prefetch(1)
    return parts.flat_map(lambda *many: tf.data.Dataset.from_tensor_slices(many))


def _from_iterator(
    start: Callable[[], Iterator[tuple[np.ndarray, ...]]], signature: tuple[tf.TensorSpec, ...]
) -> tf.data.Dataset:
    """Elements of an iterator; no array may have length 0.

    `Dataset.from_generator` runs Python within another function of tf.data, for which TensorFlow's
    deterministic mode would print an error, and warns when a program ends before the iterator.
    """
    running: dict[int, Iterator[tuple[np.ndarray, ...]]] = {}
    types, shapes = [spec.dtype for spec in signature], [spec.shape for spec in signature]
    end = [np.empty([size or 0 for size in spec.shape], spec.dtype.name) for spec in signature]

    def begin() -> np.ndarray:
        iterator = start()
        # TensorFlow makes no copy of memory that begins at a page: it frees this array when it
        # frees the last tensor, and that ends the iterator.
        ticket = BufferPool(8).take().view(np.int64)
        ticket[0] = id(iterator)
        running[id(iterator)] = iterator
        weakref.finalize(ticket, running.pop, id(iterator))
        return ticket

    def proceed(ticket: tf.Tensor) -> tuple[tf.Tensor, ...]:
        arrays = tf.numpy_function(lambda ticket: next(running[ticket[0]], end), [ticket], types)
        return tuple(map(tf.ensure_shape, arrays, shapes))

    tickets = tf.data.Dataset.range(1).map(lambda _: tf.numpy_function(begin, [], tf.int64))
    tickets = tickets.flat_map(lambda ticket: tf.data.Dataset.from_tensors(ticket).repeat())
    return tickets.map(proceed).take_while(lambda *part: tf.shape(part[-1])[0] > 0)


def _signature(order: BatchOrder) -> tuple[tf.TensorSpec, tf.TensorSpec]:
    """Types of the places, or rows, and the weights of many batches at once."""
    has_one_size = order.num_steps in (None, order.num_full_steps)
    shape = None, order.replica_batch_size if has_one_size else None
    return tf.TensorSpec(shape, tf.int64), tf.TensorSpec(shape, tf.float32)


def _finish(dataset: tf.data.Dataset, batches: Batches) -> tf.data.Dataset:
    """Adds what every dataset of this module has: a known length, order, and a batch ahead."""
    is_endless = batches.order.num_steps is None
    num_batches = tf.data.INFINITE_CARDINALITY if is_endless else len(batches)
    options = tf.data.Options()
    options.deterministic = True
    # Workers share batches by num_replicas; tf.data must not cut the data a second time.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(num_batches))
    return dataset.prefetch(2).with_options(options)

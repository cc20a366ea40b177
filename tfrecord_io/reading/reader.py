"""Batches for training, read from finished shards: a step only copies bytes.

All records of a split are there at once, because the files are mapped into memory, and a batch is a
gather of their pixels. Records that are not mapped, such as those of a store that the cache does
not hold, are read ahead, and a batch with any of them is cut out of its records.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import tensorflow as tf

from tfrecord_io import schema
from tfrecord_io.manifest import Manifest, ManifestError
from tfrecord_io.reading import device_cache
from tfrecord_io.reading.cache import CacheOptions, options_with
from tfrecord_io.reading.cold import ColdShards
from tfrecord_io.reading.device_cache import DeviceDataset, DeviceSplit
from tfrecord_io.reading.mapped import MappedSplit, RowIndex
from tfrecord_io.reading.opening import Verify, make_order
from tfrecord_io.reading.order import BatchOrder

Engine = Literal["auto", "mmap"]
Cache = Literal["device"]

_log = logging.getLogger(__name__)

# The order is computed in Python for this many examples at once, about a millisecond's work, so
# that a step runs no Python.
_BLOCK_EXAMPLES = 8192

# Examples read at once into a device's memory.
_LOAD_BATCH_SIZE = 512

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
    cache: Cache | None = None,
    examples: Sequence[int] | np.ndarray | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_gb: float | None = None,
) -> tf.data.Dataset | DeviceDataset:
    """Returns the batches of a split, in an order that the seed decides.

    The order is that of `order.BatchOrder`: epochs follow each other without a gap, each in a
    permutation of its own of the whole split, and batch k is rows [k * batch_size,
    (k + 1) * batch_size) of that sequence. Iterating the same dataset twice gives the same
    batches twice; for Keras `fit` over several epochs ask for `epochs=None` and give
    `steps_per_epoch`.

    Args:
        directory: of a finished dataset; a local folder or a URL, see docs/reader.md.
        split: name of the split, such as `train`; or several, such as `("train", "val")`, which
            are then read as one whose second part follows the first.
        batch_size: examples of a global batch, over all replicas.
        seed: decides the order.
        shuffle: if False, examples come in the order of the shards.
        epochs: how often each example occurs; None for endless batches.
        drop_remainder: leave out a last batch that is not full.
        pad_remainder: fill up a last batch that is not full with copies of its last example, and
            give each example a weight: 1, or 0 for a copy.
        engine: `mmap` raises an error where the operating system cannot map the shards into memory;
            `auto` reads each record from its file then.
        num_replicas: readers (such as workers) that share each global batch in equal slices.
        replica_index: which slice this reader gets.
        start_step: batches to skip, at no cost: the state of a reader is its number of steps.
        with_keys: whether to give each example's key as well.
        verify: how much of the shards is checked now: `size`, `crc` or `sha256`.
        cache: `device` reads the split now, once, into the memory of the first GPU (of the CPU
            if there is none) and gathers batches there. A split that takes more than half of the
            free memory is read from its files instead, with a warning in the log.
        examples: places in the split, counted from 0 in the order of the shards, of the examples
            to read; all if not given. The others do not exist for this dataset: an epoch is a
            permutation of these.
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
        ManifestError: if the dataset is unfinished, of a newer format or has no such split; if
            the split is smaller than a batch where all batches must be full; if a shard is
            missing or not as the manifest says.
        ValueError: if an argument is out of range, or the arguments do not fit together.
        OSError: if `mmap` was asked for and the operating system cannot map the files.
        UserError: if the URL or the folder of the cache cannot be used.
        StoreError: if the store does not answer, or refuses.
    """
    if engine == "stream":
        raise ValueError(
            "engine='stream' is not needed any more: every dataset, local or remote, is read in "
            "the order of engine='mmap'; leave it out"
        )
    if engine not in ("auto", "mmap"):
        raise ValueError(f"engine must be auto or mmap, received {engine!r}")
    kept = options_with(cache_dir, cache_gb)
    mapped = MappedSplit(
        directory, split, verify=verify, must_map=engine == "mmap", cache_options=kept
    )
    manifest, is_fetched, versions = mapped.manifest, mapped.fetcher is not None, mapped.versions
    del mapped  # mapped again by each iterator
    order, chosen = make_order(
        directory,
        split,
        manifest,
        examples=examples,
        start_step=start_step,
        batch_size=batch_size,
        seed=seed,
        shuffle=shuffle,
        epochs=epochs,
        drop_remainder=drop_remainder,
        pad_remainder=pad_remainder,
        num_replicas=num_replicas,
        replica_index=replica_index,
    )
    if cache not in (None, "device"):
        raise ValueError(f"cache must be None or 'device', received {cache!r}")
    if cache is not None:
        on_device = _load_to_device(directory, split, manifest, cache_dir, cache_gb)
        if on_device is not None:
            rows = _finish(_row_batches(order, start_step, _choose(chosen)), order, start_step)
            return DeviceDataset(
                split=on_device, order=rows, with_weights=pad_remainder, with_keys=with_keys
            )
    features = _Features(layout=manifest.layout, with_weights=pad_remainder, with_keys=with_keys)
    dataset = _batches(
        directory,
        split,
        manifest,
        versions,
        order,
        start_step,
        features,
        chosen,
        kept,
        is_fetched=is_fetched,
    )
    return _finish(dataset, order, start_step)


def _choose(chosen: np.ndarray | None) -> Callable[[np.ndarray], np.ndarray]:
    """Returns what turns places among the chosen examples into places in the split."""
    return (lambda places: places) if chosen is None else (lambda places: chosen[places])


def _load_to_device(
    directory: str | os.PathLike[str],
    split: str | Sequence[str],
    manifest: Manifest,
    cache_dir: str | os.PathLike[str] | None,
    cache_gb: float | None,
) -> DeviceSplit | None:
    """Returns a split in the memory of a device, or None if there is no room for it."""
    num_examples = manifest.split(split).num_examples
    device = device_cache.choose_device()
    needed = num_examples * (manifest.layout.image_length + manifest.layout.label_length)
    if device_cache.has_room(device, needed):
        batches = make_dataset(
            directory,
            split=split,
            batch_size=min(_LOAD_BATCH_SIZE, num_examples),
            shuffle=False,
            with_keys=True,
            cache_dir=cache_dir,
            cache_gb=cache_gb,
        )
        try:
            return DeviceSplit(batches, manifest, num_examples, device)
        except tf.errors.ResourceExhaustedError:
            pass
    _log.warning(
        "split %r takes %.1f GB, more than half of the free memory of %s; reading it from its "
        "files instead of cache='device'",
        split,
        needed / 1e9,
        device,
    )
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Features:
    """Makes batches of features from the bytes of records, in a graph.

    Each method returns (image, label, ...) as `make_dataset` promises. Weights are float32
    [batch].
    """

    layout: schema.RecordLayout
    with_weights: bool
    with_keys: bool

    def gather(
        self, blocks: tf.Tensor, rows: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """Gathers records out of `MappedSplit.blocks`; rows are int64 [batch]."""
        layout = self.layout
        first = layout.features[schema.IMAGE].offset + layout.image_length
        per_record = layout.stride // layout.block_length
        per_image = layout.image_length // layout.block_length
        starts = rows[:, tf.newaxis] * per_record
        # Copies each pixel once, to where it is wanted. TensorFlow has no other op that does.
        image = tf.gather(blocks, starts + tf.range(per_image, dtype=tf.int64))
        rest = tf.gather(blocks, starts + tf.range(per_image, per_record, dtype=tf.int64))
        rest = tf.reshape(rest, (-1, layout.stride - layout.image_length))
        parts = self._cut(rest, first, (schema.KEY, schema.LABEL))
        return self._finish({schema.IMAGE: image, **parts}, weights)

    def cut(self, records: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Cuts features out of records, uint8 [batch, stride]."""
        names = schema.IMAGE, schema.KEY, schema.LABEL
        return self._finish(self._cut(records, 0, names), weights)

    def _cut(self, batch: tf.Tensor, first: int, names: Sequence[str]) -> dict[str, tf.Tensor]:
        """Returns the bytes of each feature, uint8 [batch, length], by its name.

        Args:
            batch: uint8 [batch, bytes of a part of a record].
            first: where in the record that part begins.
            names: of the features, in their order in a record.
        """
        lengths: list[int] = []
        for name in names:
            slot = self.layout.features[name]
            lengths += [slot.offset - first, slot.length]
            first = slot.offset + slot.length
        # One split costs less than as many slices: it copies whole rows.
        parts = tf.split(batch, [*lengths, -1], axis=1)
        return dict(zip(names, parts[1::2], strict=True))

    def _finish(self, parts: dict[str, tf.Tensor], weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        layout = self.layout
        image = layout.images_of(parts[schema.IMAGE])
        label = tf.reshape(parts[schema.LABEL], (-1, layout.num_classes, 4))
        features = image, tf.bitcast(label, tf.float32)
        if self.with_weights:
            features += (weights,)
        if self.with_keys:
            characters = tf.cast(parts[schema.KEY], tf.int32)
            features += (tf.strings.unicode_encode(characters, "UTF-8"),)
        return features


def _batches(
    directory: str | os.PathLike[str],
    split: str | Sequence[str],
    manifest: Manifest,
    versions: str,
    order: BatchOrder,
    start_step: int,
    features: _Features,
    chosen: np.ndarray | None,
    kept: CacheOptions,
    *,
    is_fetched: bool,
) -> tf.data.Dataset:
    """Batches that draw from all records of the split, mapped into memory or fetched."""
    shard_sizes = [shard.num_examples for shard in manifest.split(split).shards]
    layout, fingerprint = manifest.layout, manifest.fingerprint
    row_index, choose = RowIndex(shard_sizes, layout.stride), _choose(chosen)
    cold = ColdShards.of(directory, manifest, split)
    opened: dict[int, MappedSplit] = {}
    numbers = itertools.count()

    # tf.data copies a tensor that a dataset or its functions hold into the graph of each iterator.
    # A tensor that is made while the iterator runs is passed by reference. So the files are mapped
    # when an iterator starts, and unmapped when it ends. TensorFlow never frees a function that it
    # was given, so these hold only names, and a split from its opening until it is fetched.
    def map_files() -> tuple[np.ndarray, np.ndarray]:
        mapped = MappedSplit(directory, split, cache_options=kept)
        if (mapped.manifest.fingerprint, mapped.versions) != (fingerprint, versions):
            raise ManifestError(
                f"{os.fspath(directory)} was built anew, or a shard of it replaced, since it was "
                "opened; start again"
            )
        number = next(numbers)
        if is_fetched:
            opened[number] = mapped
        return mapped.blocks, np.array(number)

    def map_files_in_graph(_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        blocks, number = tf.numpy_function(map_files, [], [tf.uint8, tf.int64])
        return tf.ensure_shape(blocks, (None, layout.block_length)), tf.ensure_shape(number, ())

    def fetch(number: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        mapped = opened.pop(int(number))
        for examples, records in mapped.in_order(order, chosen, start_step):
            yield (
                mapped.rows(examples),
                np.array(records or (), np.uint8).reshape(-1, layout.stride),
            )

    def fetched_batches(blocks: tf.Tensor, number: tf.Tensor) -> tf.data.Dataset:
        has_one_size = order.pad_remainder or not order.remainder
        batch_size = order.replica_batch_size if has_one_size else None
        rows_and_records = tf.data.Dataset.from_generator(
            fetch,
            args=(number,),
            output_signature=(
                tf.TensorSpec((batch_size,), tf.int64),
                tf.TensorSpec((None, layout.stride), tf.uint8),
            ),
        )
        return _map_in_order(
            lambda fetched, weights: tf.cond(
                tf.size(fetched[1]) > 0,
                lambda: features.cut(
                    tf.ensure_shape(fetched[1], (batch_size, layout.stride)), weights
                ),
                lambda: features.gather(blocks, fetched[0], weights),
            ),
            tf.data.Dataset.zip(rows_and_records, _weight_batches(order, start_step)),
        )

    def find_rows(places: np.ndarray) -> np.ndarray:
        examples = choose(places)
        cold.announce(examples.ravel())
        return row_index(examples)

    def mapped_batches(blocks: tf.Tensor, _: tf.Tensor) -> tf.data.Dataset:
        return _map_in_order(lambda places, weights: features.gather(blocks, places, weights), rows)

    whole = tf.data.Dataset.range(1).map(map_files_in_graph)
    if is_fetched:
        return whole.flat_map(fetched_batches)
    # Made out here, because TensorFlow's deterministic mode would slow down and print an error if
    # a function of tf.data that runs Python were made within another.
    rows = _row_batches(order, start_step, find_rows)
    return whole.flat_map(mapped_batches)


def _map_in_order(
    function: Callable[..., tuple[tf.Tensor, ...]], dataset: tf.data.Dataset
) -> tf.data.Dataset:
    """Maps several elements at a time, and keeps their order."""
    num_threads = min(_MAX_GATHERS, os.cpu_count() or 1)
    return dataset.map(function, num_parallel_calls=num_threads, deterministic=True)


def _row_batches(
    order: BatchOrder, start_step: int, row_index: Callable[[np.ndarray], np.ndarray]
) -> tf.data.Dataset:
    """Elements (rows, weights), int64 and float32 [replica_batch_size], one for each batch."""
    full = _num_full_steps(order)
    steps_per_block = max(1, _BLOCK_EXAMPLES // order.replica_batch_size)

    def compute(block: np.ndarray) -> np.ndarray:
        first_step = max(int(block) * steps_per_block, start_step)
        last_step = min((int(block) + 1) * steps_per_block, full)
        return row_index(order.examples_at(order.positions(first_step, last_step)))

    def compute_in_graph(block: tf.Tensor) -> tf.Tensor:
        rows = tf.numpy_function(compute, [block], tf.int64)
        return tf.ensure_shape(rows, (None, order.replica_batch_size))

    blocks = 0, 0
    if start_step < full:
        blocks = start_step // steps_per_block, -(-full // steps_per_block)
    rows = tf.data.Dataset.range(*blocks).map(compute_in_graph).prefetch(1)
    rows = rows.flat_map(tf.data.Dataset.from_tensor_slices)
    last_step = order.remainder_step
    if last_step is not None and start_step <= last_step:
        last = row_index(order.examples_at(order.positions(last_step, last_step + 1)))
        rows = rows.concatenate(tf.data.Dataset.from_tensor_slices(last))
    return tf.data.Dataset.zip(rows, _weight_batches(order, start_step))


def _weight_batches(order: BatchOrder, start_step: int) -> tf.data.Dataset:
    """Elements float32 [replica_batch_size]: 1 for an example, 0 for a copy; one for each batch."""
    ones = tf.data.Dataset.from_tensors(tf.ones([order.replica_batch_size]))
    last_step = order.remainder_step
    if last_step is None or start_step > last_step:
        return ones.repeat()
    last = order.weights(last_step, last_step + 1)
    ones = ones.repeat(last_step - start_step)
    return ones.concatenate(tf.data.Dataset.from_tensor_slices(last))


def _num_full_steps(order: BatchOrder) -> int:
    """Number of full batches, or as many as can be counted."""
    if order.num_full_steps is not None:
        return order.num_full_steps
    return np.iinfo(np.int64).max // (2 * order.batch_size)


def _finish(dataset: tf.data.Dataset, order: BatchOrder, start_step: int) -> tf.data.Dataset:
    """Adds what every dataset of this module has: a known length, order, and a batch ahead."""
    if order.num_steps is None:
        num_batches = tf.data.INFINITE_CARDINALITY
    else:
        num_batches = order.num_steps - start_step
    options = tf.data.Options()
    options.deterministic = True
    # Workers share batches by num_replicas; tf.data must not cut the data a second time.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(num_batches))
    return dataset.prefetch(2).with_options(options)

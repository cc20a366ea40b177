"""Batches for training, read from finished shards: a step only copies bytes.

Two engines keep one contract (docs/reader.md). `mmap` has all records of the split at once,
because the files are mapped into memory, and a batch is a gather of their pixels; `stream` reads
runs of records, and cuts the pixels out of them.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import tensorflow as tf

from tfrecord_io import schema
from tfrecord_io.manifest import Manifest, ManifestError
from tfrecord_io.reading import device_cache
from tfrecord_io.reading.device_cache import DeviceDataset, DeviceSplit
from tfrecord_io.reading.mapped import MappedSplit, RowIndex
from tfrecord_io.reading.opening import Verify, is_remote, open_order, shard_path
from tfrecord_io.reading.order import BatchOrder
from tfrecord_io.reading.stream_order import RUN_LENGTH, Segments, StreamOrder

Engine = Literal["auto", "mmap", "stream"]
Cache = Literal["device"]

_log = logging.getLogger(__name__)

# The order is computed in Python for this many examples at once, about a millisecond's work, so
# that a step runs no Python.
_BLOCK_EXAMPLES = 8192

# The stream engine holds a split of up to this many examples in memory, in the global order.
_HELD_EXAMPLES = 2048

# Read at once from a remote store by each of the stream engine's readers; TensorFlow's own choice
# for TFRecords. A local file is read without a buffer, which saves a copy of every record.
_REMOTE_BUFFER_LENGTH = 256 * 1024

# Requests of the stream engine at a time.
_NUM_STREAM_READS = 8

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
) -> tf.data.Dataset | DeviceDataset:
    """Returns the batches of a split, in an order that the seed decides.

    The order is that of `order.BatchOrder`: epochs follow each other without a gap, each in a
    permutation of its own of the whole split, and batch k is rows [k * batch_size,
    (k + 1) * batch_size) of that sequence. Iterating the same dataset twice gives the same
    batches twice; for Keras `fit` over several epochs ask for `epochs=None` and give
    `steps_per_epoch`. With `engine="stream"` the shuffle is weaker, see `stream_order`.

    Args:
        directory: of a finished dataset; a local folder, or a URL that `tf.io.gfile` reads.
        split: name of the split, such as `train`; or several, such as `("train", "val")`, which
            are then read as one whose second part follows the first.
        batch_size: examples of a global batch, over all replicas.
        seed: decides the order.
        shuffle: if False, examples come in the order of the shards.
        epochs: how often each example occurs; None for endless batches.
        drop_remainder: leave out a last batch that is not full.
        pad_remainder: fill up a last batch that is not full with copies of its last example, and
            give each example a weight: 1, or 0 for a copy.
        engine: `mmap` for a local folder; `stream` for any; `auto` takes `mmap` where it can.
        num_replicas: readers (such as workers) that share each global batch in equal slices.
        replica_index: which slice this reader gets.
        start_step: batches to skip, at no cost: the state of a reader is its number of steps.
        with_keys: whether to give each example's key as well.
        verify: how much of the shards is checked now: `size`, `crc` or `sha256`.
        cache: `device` reads the split now, once, into the memory of the first GPU (of the CPU
            if there is none) and gathers batches there, in the order of `mmap` whatever the
            engine. A split that takes more than half of the free memory is read from its files
            instead, with a warning in the log.
        examples: places in the split, counted from 0 in the order of the shards, of the examples
            to read; all if not given. The others do not exist for this dataset: an epoch is a
            permutation of these. Not for `engine="stream"`.

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
    """
    manifest, order, chosen = open_order(
        directory,
        split,
        verify=verify,
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
    engine = _choose_engine(engine, directory, split)
    if cache is not None:
        on_device = _load_to_device(directory, split, manifest, engine)
        if on_device is not None:
            rows = _finish(_row_batches(order, start_step, _choose(chosen)), order, start_step)
            return DeviceDataset(
                split=on_device, order=rows, with_weights=pad_remainder, with_keys=with_keys
            )
    features = _Features(layout=manifest.layout, with_weights=pad_remainder, with_keys=with_keys)
    if engine == "mmap":
        dataset = _mapped_batches(directory, split, manifest, order, start_step, features, chosen)
    elif chosen is not None:
        raise ValueError(
            "examples can be chosen where the split is mapped into memory; copy the dataset to a "
            "local disk, or leave engine='stream' out"
        )
    else:
        dataset = _streamed_batches(directory, split, manifest, order, start_step, features)
    return _finish(dataset, order, start_step)


def _choose(chosen: np.ndarray | None) -> Callable[[np.ndarray], np.ndarray]:
    """Returns what turns places among the chosen examples into places in the split."""
    return (lambda places: places) if chosen is None else (lambda places: chosen[places])


def _choose_engine(
    engine: Engine, directory: str | os.PathLike[str], split: str | Sequence[str]
) -> Literal["mmap", "stream"]:
    """Returns the engine to use: what was asked for, or the best that works here."""
    if engine not in ("auto", "mmap", "stream"):
        raise ValueError(f"engine must be auto, mmap or stream, received {engine!r}")
    if engine == "stream" or (engine == "auto" and is_remote(directory)):
        return "stream"
    if is_remote(directory):
        raise ValueError(
            f"engine='mmap' needs a local folder, received {os.fspath(directory)}; use "
            "engine='stream', or copy the dataset here"
        )
    try:
        MappedSplit(directory, split)
    except (OSError, AttributeError, ImportError) as error:
        # Windows lacks the C function, and `ulimit -v` may leave too few addresses.
        if engine == "mmap":
            raise
        _log.warning(
            "%s cannot be mapped into memory (%s); reading it with engine='stream', whose "
            "shuffle is weaker (docs/reader.md)",
            os.fspath(directory),
            error,
        )
        return "stream"
    return "mmap"


def _load_to_device(
    directory: str | os.PathLike[str],
    split: str | Sequence[str],
    manifest: Manifest,
    engine: Engine,
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
            engine=engine,
            with_keys=True,
        )
        try:
            return DeviceSplit(batches, manifest, num_examples, device)
        except tf.errors.ResourceExhaustedError:
            pass
    _log.warning(
        "split %r takes %.1f GB, more than half of the free memory of %s; reading it with "
        "engine=%r instead of cache='device'",
        split,
        needed / 1e9,
        device,
        engine,
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

    def cut(self, examples: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Cuts features out of serialized examples, uint8 [batch, length of an example]."""
        names = schema.IMAGE, schema.KEY, schema.LABEL
        return self._finish(self._cut(examples, schema.HEADER_LENGTH, names), weights)

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


def _mapped_batches(
    directory: str | os.PathLike[str],
    split: str | Sequence[str],
    manifest: Manifest,
    order: BatchOrder,
    start_step: int,
    features: _Features,
    chosen: np.ndarray | None,
) -> tf.data.Dataset:
    """Batches that draw from all records of the split, which is mapped into memory."""
    shard_sizes = [shard.num_examples for shard in manifest.split(split).shards]
    layout = manifest.layout
    row_index, choose = RowIndex(shard_sizes, layout.stride), _choose(chosen)
    rows = _row_batches(order, start_step, lambda places: row_index(choose(places)))
    fingerprint = manifest.fingerprint

    # tf.data copies a tensor that a dataset or its functions hold into the graph of each iterator.
    # A tensor that is made while the iterator runs is passed by reference. So the files are mapped
    # when an iterator starts, and unmapped when it ends. TensorFlow never frees a function that it
    # was given, so this one holds only names.
    def map_files() -> np.ndarray:
        mapped = MappedSplit(directory, split)
        if mapped.manifest.fingerprint != fingerprint:
            raise ManifestError(f"{os.fspath(directory)} was built anew since it was opened")
        return mapped.blocks

    def map_files_in_graph(_: tf.Tensor) -> tf.Tensor:
        blocks = tf.numpy_function(map_files, [], tf.uint8)
        return tf.ensure_shape(blocks, (None, layout.block_length))

    whole = tf.data.Dataset.range(1).map(map_files_in_graph)
    return whole.flat_map(
        lambda blocks: _map_in_order(functools.partial(features.gather, blocks), rows)
    )


def _streamed_batches(
    directory: str | os.PathLike[str],
    split: str | Sequence[str],
    manifest: Manifest,
    order: BatchOrder,
    start_step: int,
    features: _Features,
) -> tf.data.Dataset:
    """Batches that draw from a window of records at a time, read in long runs."""
    shards = manifest.split(split).shards
    sizes = np.array([shard.num_examples for shard in shards], np.int64)
    paths = [shard_path(directory, shard) for shard in shards]
    reader = _SegmentReader(paths, manifest.layout)
    if order.shuffle and order.num_examples <= _HELD_EXAMPLES:
        # The whole split is held in memory, so it can have the global order.
        batch = BatchOrder(
            num_examples=order.num_examples, batch_size=order.num_examples, shuffle=False
        )
        segments = StreamOrder(batch, sizes).window_segments(0, 0, 1)
        whole = reader.read_batch(segments).map(reader.as_tensor)
        rows = _row_batches(order, start_step, _choose(None))

        def draw(examples: tf.Tensor) -> tf.data.Dataset:
            return _map_in_order(
                lambda rows, weights: features.cut(tf.gather(examples, rows), weights), rows
            )

        return whole.flat_map(draw)

    stream_order = StreamOrder(order, sizes)
    full = _num_full_steps(order)

    def plan(window: np.ndarray) -> Segments[np.ndarray]:
        return stream_order.window_segments(int(window), start_step, full)

    def read_window(window: tf.Tensor) -> tf.data.Dataset:
        arrays = tf.numpy_function(plan, [window], [tf.int64] * 4)
        segments = Segments(*(tf.ensure_shape(array, (None,)) for array in arrays))
        return reader.read(segments, by_turns=order.shuffle)

    windows = 0, 0
    if start_step < full:
        windows = (
            stream_order.window_of(start_step * order.batch_size),
            stream_order.window_of(full * order.batch_size - 1) + 1,
        )
    batches = tf.data.Dataset.range(*windows).flat_map(read_window)
    batches = batches.batch(order.replica_batch_size, drop_remainder=True)
    last_step = order.remainder_step
    if last_step is not None and start_step <= last_step:
        last = stream_order.remainder_segments(last_step)
        batches = batches.concatenate(reader.read_batch(last))
    if order.pad_remainder or not order.remainder:  # all batches have the same length
        batches = batches.map(lambda rows: tf.ensure_shape(rows, (order.replica_batch_size,)))
    return _map_in_order(
        lambda records, weights: features.cut(reader.as_tensor(records), weights),
        tf.data.Dataset.zip(batches, _weight_batches(order, start_step)),
    )


class _SegmentReader:
    """Reads runs of neighbouring records."""

    def __init__(self, paths: Sequence[str], layout: schema.RecordLayout) -> None:
        self._paths = paths
        self._layout = layout

    def read(self, segments: Segments[tf.Tensor], *, by_turns: bool = False) -> tf.data.Dataset:
        """Returns one string a record, taken by turns from each run, or run after run."""
        num_runs = tf.size(segments.run_splits, tf.int64) - 1
        num_readers = tf.maximum(tf.minimum(num_runs, _NUM_STREAM_READS), 1)
        if not by_turns:
            return tf.data.Dataset.range(num_runs).interleave(
                lambda run: self._read_run(segments, run),
                cycle_length=num_readers,
                block_length=RUN_LENGTH,  # a whole run
                num_parallel_calls=num_readers,
                deterministic=True,
            )

        # Each reader reads neighbouring runs, and passes on its records of a turn together: passing
        # on a single record costs as much as copying it.
        def read_turns(reader: tf.Tensor) -> tf.data.Dataset:
            first, last = (number * num_runs // num_readers for number in (reader, reader + 1))
            runs = tf.data.Dataset.range(first, last)
            turns = runs.interleave(
                lambda run: self._read_run(segments, run), cycle_length=tf.maximum(last - first, 1)
            )
            return turns.batch(tf.maximum(last - first, 1))

        turns = tf.data.Dataset.range(num_readers).interleave(
            read_turns, cycle_length=num_readers, num_parallel_calls=num_readers, deterministic=True
        )
        return turns.unbatch()

    def read_batch(self, segments: Segments[np.ndarray]) -> tf.data.Dataset:
        """Returns one element, string [records]; there may be none."""
        if not len(segments.shards):
            return tf.data.Dataset.from_tensors(tf.zeros([0], tf.string))
        arrays = (tf.constant(array, tf.int64) for array in segments)
        return self.read(Segments(*arrays)).batch(int(segments.num_records.sum()))

    def as_tensor(self, records: tf.Tensor) -> tf.Tensor:
        """Returns the bytes of serialized examples, uint8 [records, length of an example]."""
        return tf.reshape(tf.io.decode_raw(records, tf.uint8), (-1, self._layout.length))

    def _read_run(self, segments: Segments[tf.Tensor], run: tf.Tensor) -> tf.data.Dataset:
        mine = slice(segments.run_splits[run], segments.run_splits[run + 1])
        return tf.data.Dataset.from_tensor_slices(
            (segments.shards[mine], segments.first_records[mine], segments.num_records[mine])
        ).flat_map(self._read_segment)

    def _read_segment(
        self, shard: tf.Tensor, first_record: tf.Tensor, num_records: tf.Tensor
    ) -> tf.data.Dataset:
        # Only the raw op can start at an offset without reading the bytes before it. It also
        # compares each record's checksums.
        variant = tf.raw_ops.TFRecordDatasetV2(
            filenames=[tf.gather(self._paths, shard)],
            compression_type="",
            buffer_size=_REMOTE_BUFFER_LENGTH if is_remote(self._paths[0]) else 0,
            byte_offsets=[first_record * self._layout.stride],
        )
        dataset = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
        return dataset.take(num_records)


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

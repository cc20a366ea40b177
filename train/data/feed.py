"""From the reader's batches to what a step takes: weights that add up, one batch a replica.

The reader's epochs follow each other without a gap, so in training only the very last batch may
be short; in evaluation the last of a split. The reader fills it up with copies of weight zero: a
step wants one shape, because another shape means another graph, and a replica without any
example means NaN. What is left to do here is to make the weights of a step add up to one, and to
add the random numbers of its examples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

import tfrecord_io
from tfrecord_io.ahead import map_ahead
from tfrecord_io.reading.mapped import MappedDataset
from tfrecord_io.stores.folder import DataPath
from train.data import augmentation
from train.data.dataset import Part
from train.data.options import InputOptions
from train.devices import Devices

if TYPE_CHECKING:
    import jax
    import tensorflow as tf

    from tfrecord_io.reading.batches import Batches
    from tfrecord_io.reading.device_cache import DeviceSplit

# Batches that wait on JAX's devices while these work on another.
_NUM_AHEAD = 2


@dataclasses.dataclass(frozen=True)
class DeviceBatches:
    """Batches that are gathered on the devices, each from its own copy of the split.

    Attributes:
        order: a dataset of (examples int64 [replica_batch_size], weights and draws as in
            `training_batches`), one element a replica.
        splits: the training split on each device of this process.
    """

    order: tf.data.Dataset
    splits: tuple[DeviceSplit, ...]

    def iterate(self, strategy: tf.distribute.Strategy) -> DeviceIterator:
        """Returns an iterator for the training graph."""

        def on_replica(name: str) -> Any:
            return strategy.experimental_distribute_values_from_function(
                lambda context: getattr(
                    self.splits[context.replica_id_in_sync_group % len(self.splits)], name
                )
            )

        order = iter(strategy.distribute_datasets_from_function(lambda context: self.order))
        return DeviceIterator(strategy, order, on_replica("images"), on_replica("labels"))


@dataclasses.dataclass(frozen=True, eq=False)
class DeviceIterator:
    """Looks like an iterator of (images, labels, weights, draws) to the training graph.

    It tells TensorFlow what it is made of, so that a second one does not need a second graph.
    """

    strategy: tf.distribute.Strategy
    order: Any
    images: Any
    labels: Any

    def __tf_flatten__(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return (self.strategy,), (self.order, self.images, self.labels)

    @classmethod
    def __tf_unflatten__(
        cls, metadata: tuple[Any, ...], components: tuple[Any, ...]
    ) -> DeviceIterator:
        return cls(*metadata, *components)

    def get_next(self) -> tuple[Any, Any, Any, Any]:
        import tensorflow as tf

        examples, weights, draws = self.order.get_next()
        images, labels = self.strategy.run(
            lambda *tables, rows: tuple(tf.gather(table, rows) for table in tables),
            args=(self.images, self.labels),
            kwargs={"rows": examples},
        )
        return images, labels, weights, draws


def training_batches(
    options: InputOptions, mixup: float, devices: Devices, part: Part, *, start_step: int
) -> tf.data.Dataset | DeviceBatches | Iterator[tuple[Any, ...]]:
    """Returns the training batches of this worker from a step on, to the end of the run.

    Args:
        options: resolved.
        mixup: see `augmentation.draw`.
        devices: how many workers and replicas share a batch.
        part: to train on.
        start_step: steps done before, over all epochs.

    Returns:
        a dataset of (stored images [replica_batch_size, height, width, channels], labels float32
        [replica_batch_size, num_classes], weights float32 [replica_batch_size], draws float32
        [replica_batch_size, augmentation.NUM_DRAWS]). The weights of the replica batches of one
        step add up to 1 over all replicas; if examples have weights of their own (`Part.weights`),
        they do on average. With `--cache device` the same as `DeviceBatches`, if the training
        images fit. On JAX an iterator of the same four, as arrays that lie on the devices, each of
        all local replicas together.
    """
    batch_size = options.global_batch_size or 0
    num_full_steps, num_in_last_step = divmod(part.num_examples * (options.epochs or 0), batch_size)
    share = batch_size // devices.num_workers
    first = devices.worker_index * share
    reading: dict[str, Any] = {
        "split": part.splits,
        "engine": options.engine,
        "batch_size": batch_size,
        "seed": options.seed,
        "epochs": options.epochs,
        "pad_remainder": True,
        "num_replicas": devices.num_workers,
        "replica_index": devices.worker_index,
        "start_step": start_step,
        "examples": part.examples,
    }

    def draw(step: int) -> np.ndarray:
        draws = augmentation.draw(options.seed, int(step), batch_size=batch_size, mixup=mixup)
        return draws[first : first + share]

    if devices.backend == "jax":
        batches = tfrecord_io.make_batches(options.data_path, **reading)
        order = batches.order
        fetched, put = _fetcher(options, devices, batches)

        def read(
            step_and_batch: tuple[int, tuple[np.ndarray, Any]],
        ) -> tuple[jax.Array, ...]:
            step, (places, batch) = step_and_batch
            in_step = batch_size if step < num_full_steps else num_in_last_step
            weights = order.weights(step) / np.float32(in_step)
            if part.weights is not None:
                weights = weights * part.weights[places]
            return *put(batch), *_put(devices, (weights, draw(step)))

        steps = enumerate(zip(order.batches(start_step), fetched, strict=True), start_step)
        return map_ahead(read, steps, _NUM_AHEAD, num_threads=1)

    import tensorflow as tf

    from tfrecord_io.reading.device_cache import DeviceDataset

    dataset = tfrecord_io.make_dataset(
        options.data_path,
        with_keys=part.weights is not None,
        cache=None if options.cache == "none" else options.cache,
        **reading,
    )
    splits = ()
    if isinstance(dataset, DeviceDataset):
        split = dataset.split
        splits = tuple(split.copy_to(name) for name in devices.names)
        dataset = dataset.order
        if part.weights is not None:
            dataset = dataset.map(lambda rows, counts: (rows, counts, split.gather_keys(rows)))
    if part.weights is not None:
        dataset = _weigh(dataset, options.data_path, part)

    def finish(step: tf.Tensor, features: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        *others, weights = features
        in_step = tf.where(step < num_full_steps, batch_size, num_in_last_step)
        draws = tf.numpy_function(draw, [step], tf.float32)
        draws = tf.ensure_shape(draws, (share, augmentation.NUM_DRAWS))
        return *others, weights / tf.cast(in_step, weights.dtype), draws

    dataset = dataset.enumerate(start_step).map(finish)
    dataset = _cut_for_replicas(dataset, devices.num_local_replicas)
    return DeviceBatches(dataset, splits) if splits else dataset


@dataclasses.dataclass(frozen=True, eq=False)
class PlacedBatches:
    """JAX: batches that `put` brings to the devices, each time anew that they are gone through."""

    batches: Batches
    put: Callable[[tuple[np.ndarray, ...]], tuple[Any, ...]]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return map_ahead(self.put, self.batches, _NUM_AHEAD, num_threads=1)


def evaluation_batches(
    options: InputOptions, devices: Devices, part: Part
) -> tf.data.Dataset | PlacedBatches:
    """Returns a part in its stored order, on each worker the whole part.

    It opens the shards, and can be gone through again and again.

    Returns:
        what `training_batches` returns, without draws, but each example's weight is 1 and that
        of a copy 0.
    """
    num_local = (options.replica_batch_size or 0) * devices.num_local_replicas
    reading: dict[str, Any] = {
        "split": part.splits,
        "engine": options.engine,
        "shuffle": False,
        "pad_remainder": True,
        "examples": part.examples,
    }
    if devices.backend == "jax":
        # On JAX all workers together put a batch on the devices, each its share.
        num_workers, worker = devices.num_workers, devices.worker_index
        if num_workers == 1:  # after `Devices.alone`, which keeps the worker's index
            worker = 0
        batches = tfrecord_io.make_batches(
            options.data_path, batch_size=num_local * num_workers, **reading
        )

        def put(batch: tuple[np.ndarray, ...]) -> tuple[Any, ...]:
            images, *others = batch
            return _put(devices, images[worker * num_local :][:num_local]), *others

        return PlacedBatches(batches, put)
    dataset = tfrecord_io.make_dataset(options.data_path, batch_size=num_local, **reading)
    return _cut_for_replicas(dataset, devices.num_local_replicas)


def _weigh(dataset: tf.data.Dataset, data: DataPath, part: Part) -> tf.data.Dataset:
    """Replaces the keys, last in each element, by a factor of the weights before them."""
    import tensorflow as tf

    keys = MappedDataset(data, part.splits).keys(part.places)
    of_keys = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant(keys), tf.constant(part.weights)), 0.0
    )

    def weigh(*features: tf.Tensor) -> tuple[tf.Tensor, ...]:
        *others, weights, batch_keys = features
        return *others, weights * of_keys.lookup(batch_keys)

    return dataset.map(weigh)


def _cut_for_replicas(dataset: tf.data.Dataset, num_local_replicas: int) -> tf.data.Dataset:
    """Cuts each batch into one a replica, in order."""
    import tensorflow as tf

    def cut(*tensors: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tuple(
            tf.reshape(tensor, (num_local_replicas, -1, *tensor.shape[1:])) for tensor in tensors
        )

    if num_local_replicas > 1:
        dataset = dataset.map(cut).unbatch()
    # The next batch of each replica waits in memory while the devices work.
    return dataset.prefetch(2 * num_local_replicas)


def _fetcher(
    options: InputOptions, devices: Devices, batches: Batches
) -> tuple[Iterator[Any], Callable[[Any], tuple[jax.Array, jax.Array]]]:
    """JAX: returns what yields batches, and what puts one on the devices: (images, labels)."""
    import jax

    if options.cache == "device":
        examples = batches.examples
        manifest = batches.dataset.manifest
        needed = len(examples) * (manifest.layout.image_length + 4 * manifest.num_classes)
        if 2 * needed <= _free_memory(devices):
            images, labels = jax.device_put(batches.dataset[examples], devices.copied)
            gather = jax.jit(
                lambda images, labels, places: (images[places], labels[places]),
                out_shardings=devices.batch_sharding,
            )
            # What they are places in is on the devices.
            places = batches.order.batches(batches.start_step)
            return places, lambda batch: gather(
                images, labels, _put(devices, batch.astype(np.int32))
            )
        devices.say(
            f"warning: the training images take {needed / 1e9:.1f} GB, more than half of the "
            f"free memory of {devices.names[0]}; reading them from the files instead of "
            "--cache device"
        )
    pool = batches.buffer_pool()
    return batches.fetched(), lambda batch: _put(devices, batch[0].gather(batch[1], pool.take()))


def _free_memory(devices: Devices) -> int:
    """Returns the free bytes of the first device; a CPU's are those of the machine."""
    statistics = devices.mesh.local_devices[0].memory_stats()
    if not statistics or "bytes_limit" not in statistics:
        return psutil.virtual_memory().available
    return statistics["bytes_limit"] - statistics["bytes_in_use"]


def _put(devices: Devices, arrays: Any) -> Any:
    """JAX: brings this worker's share of a batch, arrays in any structure, to the devices."""
    import jax

    sharding = devices.batch_sharding
    if devices.num_workers == 1:
        return jax.device_put(arrays, sharding)
    return jax.tree.map(
        lambda array: jax.make_array_from_process_local_data(sharding, array), arrays
    )

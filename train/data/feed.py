"""From the reader's batches to what a step takes: weights that add up, one batch a replica.

The reader fills up a short last batch with copies of weight zero: a step wants one shape, because
another shape means another graph, and a replica without any example means NaN. What is left to do
here is to make the weights of a step add up to one, and to add the random numbers of its examples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

import tfrecord_io
from tfrecord_io.ahead import map_ahead
from tfrecord_io.reading.order import BatchOrder
from train.data import augmentation
from train.data.dataset import Part
from train.data.options import InputOptions
from train.devices import Devices

if TYPE_CHECKING:
    import jax
    import tensorflow as tf

    from tfrecord_io.reading.batches import Batches
    from tfrecord_io.reading.reader import DeviceDataset

# Batches that wait on JAX's devices while these work on another.
_NUM_AHEAD = 2


@dataclasses.dataclass(frozen=True, eq=False)
class DeviceIterator:
    """TensorFlow: gathers batches on the devices, each from its own copy of the split.

    It looks like an iterator of (images, labels, weights, draws) to the training graph, and tells
    TensorFlow what it is made of, so that a second one does not need a second graph.
    """

    strategy: tf.distribute.Strategy
    order: Any
    images: Any
    labels: Any

    @classmethod
    def of(cls, batches: DeviceDataset, devices: Devices) -> DeviceIterator:
        """Copies the split to each device."""
        import tensorflow as tf

        strategy, names = devices.strategy, devices.names

        def copy(table: tf.Tensor) -> Any:
            def on_replica(context: Any) -> tf.Tensor:
                with tf.device(names[context.replica_id_in_sync_group % len(names)]):
                    return tf.identity(table)

            return strategy.experimental_distribute_values_from_function(on_replica)

        order = strategy.distribute_datasets_from_function(lambda context: batches.order)
        return cls(strategy, iter(order), copy(batches.split.images), copy(batches.split.labels))

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
) -> tf.data.Dataset | DeviceDataset | Iterator[tuple[Any, ...]]:
    """Returns the training batches of this worker from a step on, to the end of the run.

    Returns:
        a dataset of (stored images [replica_batch_size, height, width, channels], labels float32
        [replica_batch_size, num_classes], weights float32 [replica_batch_size], draws float32
        [replica_batch_size, augmentation.NUM_DRAWS]). The weights of the replica batches of one
        step add up to 1 over all replicas. With `--cache device`, if the training images fit, a
        `DeviceDataset` whose order also has weights and draws. On JAX an iterator of the same four,
        as arrays on the devices, each of all local replicas together.
    """
    batch_size = options.global_batch_size or 0
    ordered: dict[str, Any] = {
        "batch_size": batch_size,
        "seed": options.seed,
        "epochs": options.epochs,
        "pad_remainder": True,
        "num_replicas": devices.num_workers,
        "replica_index": devices.worker_index,
    }
    order = BatchOrder(num_examples=part.num_examples, **ordered)
    reading = {**_reading(options, part), **ordered, "start_step": start_step}
    share = order.replica_batch_size
    first = devices.worker_index * share

    def beside(step: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the weights and the draws of this worker's examples of a step."""
        _, weights = order.batch(int(step))
        in_step = min(batch_size, order.num_positions - int(step) * batch_size)
        draws = augmentation.draw(options.seed, int(step), batch_size=batch_size, mixup=mixup)
        return weights / np.float32(in_step), draws[first : first + share]

    if devices.backend == "jax":
        batches = tfrecord_io.make_batches(options.data_path, **reading)
        gather = _load_on_jax(devices, batches) if options.cache == "device" else None

        def put(step_and_batch: tuple[int, Any]) -> tuple[jax.Array, ...]:
            step, batch = step_and_batch
            examples = gather(batch) if gather else _put(devices, batch[:2])
            return *examples, *_put(devices, beside(step))

        source = order.batches(start_step) if gather else batches
        return map_ahead(put, enumerate(source, start_step), _NUM_AHEAD, num_threads=1)

    import tensorflow as tf

    from tfrecord_io.reading.reader import DeviceDataset

    cache = None if options.cache == "none" else options.cache
    dataset = found = tfrecord_io.make_dataset(options.data_path, cache=cache, **reading)
    if isinstance(found, DeviceDataset):
        dataset = found.order

    def finish(step: tf.Tensor, features: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        weights, draws = tf.numpy_function(beside, [step], [tf.float32, tf.float32])
        draws = tf.ensure_shape(draws, (share, augmentation.NUM_DRAWS))
        return *features[:-1], tf.ensure_shape(weights, share), draws

    dataset = dataset.enumerate(start_step).map(finish)
    dataset = _cut_for_replicas(dataset, devices.num_local_replicas)
    if isinstance(found, DeviceDataset):
        return dataclasses.replace(found, order=dataset)
    return dataset


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
    """Returns a part in its stored order, on each worker the whole part, again and again.

    Its batches are those of `training_batches` without draws, but each example's weight is 1 and
    that of a copy 0.
    """
    num_local = (options.replica_batch_size or 0) * devices.num_local_replicas
    reading = {**_reading(options, part), "shuffle": False, "pad_remainder": True}
    if devices.backend == "jax":
        # On JAX all workers together put a batch on the devices, each its share.
        num_workers, worker = devices.num_workers, devices.worker_index
        batches = tfrecord_io.make_batches(
            options.data_path, batch_size=num_local * num_workers, **reading
        )

        def put(batch: tuple[np.ndarray, ...]) -> tuple[Any, ...]:
            images, *others = batch
            return _put(devices, images[worker * num_local :][:num_local]), *others

        return PlacedBatches(batches, put)
    dataset = tfrecord_io.make_dataset(options.data_path, batch_size=num_local, **reading)
    return _cut_for_replicas(dataset, devices.num_local_replicas)


def _reading(options: InputOptions, part: Part) -> dict[str, Any]:
    return {"split": part.splits, "examples": part.examples, "engine": options.engine}


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


def _load_on_jax(
    devices: Devices, batches: Batches
) -> Callable[[np.ndarray], tuple[jax.Array, jax.Array]] | None:
    """Loads all examples to each device; returns what gathers (images, labels) by places there.

    None, with a warning, if they take more than half of the free memory.
    """
    import jax

    layout, num_examples = batches.dataset.layout, len(batches.examples)
    needed = num_examples * (layout.image_length + layout.label_length)
    statistics = devices.mesh.local_devices[0].memory_stats() or {}
    if "bytes_limit" in statistics:
        free = statistics["bytes_limit"] - statistics["bytes_in_use"]
    else:
        free = psutil.virtual_memory().available
    if 2 * needed > free:
        devices.say(
            f"warning: the training images take {needed / 1e9:.1f} GB, more than half of the "
            f"free memory of {devices.names[0]}; reading them from the files instead of "
            "--cache device"
        )
        return None
    tables = jax.device_put(batches.dataset[batches.examples], devices.copied)
    gather = jax.jit(
        lambda tables, places: tuple(table[places] for table in tables),
        out_shardings=devices.batch_sharding,
    )
    return lambda places: gather(tables, _put(devices, places.astype(np.int32)))


def _put(devices: Devices, arrays: Any) -> Any:
    """JAX: brings this worker's share of a batch, arrays in any structure, to the devices."""
    import jax

    sharding = devices.batch_sharding
    if devices.num_workers == 1:
        return jax.device_put(arrays, sharding)
    return jax.tree.map(
        lambda array: jax.make_array_from_process_local_data(sharding, array), arrays
    )

"""From the reader's batches to what a step takes: weights that add up, one batch a replica.

The reader fills up a short last batch with copies of weight zero: a step wants one shape, because
another shape means another graph, and a replica without any example means NaN. What is left to do
here is to make the weights of a step add up to one, and to add the random numbers of its examples.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

import tfrecord_io
from tfrecord_io.reading.order import BatchOrder
from tfrecord_io.stores.ahead import map_ahead
from train.data import augmentation
from train.data.dataset import Dataset, Part
from train.data.options import InputOptions
from train.machine.devices import Devices

if TYPE_CHECKING:
    import jax
    import tensorflow as tf

    from tfrecord_io.reading.batches import Batches

# Batches that wait on JAX's devices while these work on another.
_NUM_AHEAD = 2


def training_batches(
    data: Dataset,
    part: Part,
    options: InputOptions,
    devices: Devices,
    *,
    mixup: float,
    start_step: int,
) -> tf.data.Dataset | Iterator[tuple[Any, ...]]:
    """Returns the training batches of this worker from a step on, to the end of the run.

    Returns:
        a dataset of (stored images [replica_batch_size, height, width, channels], labels float32
        [replica_batch_size, num_classes], weights float32 [replica_batch_size], draws float32
        [replica_batch_size, augmentation.NUM_DRAWS]). The weights of the replica batches of one
        step add up to 1 over all replicas. On JAX an iterator of the same four, as arrays on the
        devices, each of all local replicas together.
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
    reading = {**_reading(data, part, options), **ordered, "start_step": start_step}
    share = order.replica_batch_size
    first = devices.worker_index * share

    def beside(step: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the weights and the draws of this worker's examples of a step."""
        in_step = min(batch_size, order.num_positions - int(step) * batch_size)
        draws = augmentation.draw(options.seed, int(step), batch_size=batch_size, mixup=mixup)
        return order.weights(int(step)) / np.float32(in_step), draws[first : first + share]

    if devices.backend == "jax":
        batches = tfrecord_io.make_batches(data.path, **reading)

        def put(step_and_batch: tuple[int, Any]) -> tuple[jax.Array, ...]:
            step, batch = step_and_batch
            return *_put(devices, batch[:2]), *_put(devices, beside(step))

        return map_ahead(put, enumerate(batches, start_step), _NUM_AHEAD, num_threads=1)

    import tensorflow as tf

    def finish(step: tf.Tensor, features: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        weights, draws = tf.numpy_function(beside, [step], [tf.float32, tf.float32])
        draws = tf.ensure_shape(draws, (share, augmentation.NUM_DRAWS))
        return *features[:-1], tf.ensure_shape(weights, share), draws

    dataset = tfrecord_io.make_dataset(data.path, **reading)
    dataset = dataset.enumerate(start_step).map(finish)
    return _cut_for_replicas(dataset, len(devices.names))


@dataclasses.dataclass(frozen=True, eq=False)
class PlacedBatches:
    """JAX: batches that `put` brings to the devices, each time anew that they are gone through."""

    batches: Batches
    put: Callable[[tuple[np.ndarray, ...]], tuple[Any, ...]]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return map_ahead(self.put, self.batches, _NUM_AHEAD, num_threads=1)


def evaluation_batches(
    data: Dataset, part: Part, options: InputOptions, devices: Devices
) -> tf.data.Dataset | PlacedBatches:
    """Returns a part in its stored order, on each worker the whole part, again and again.

    Its batches are those of `training_batches` without draws, but each example's weight is 1 and
    that of a copy 0.
    """
    size = (options.replica_batch_size or 0) * len(devices.names)
    reading = {**_reading(data, part, options), "shuffle": False, "pad_remainder": True}
    if devices.backend == "jax":
        # On JAX all workers together put a batch on the devices, each its share.
        whole, first = size * devices.num_workers, size * devices.worker_index
        batches = tfrecord_io.make_batches(data.path, batch_size=whole, **reading)

        def put(batch: tuple[np.ndarray, ...]) -> tuple[Any, ...]:
            images, *others = batch
            return _put(devices, images[first : first + size]), *others

        return PlacedBatches(batches, put)
    dataset = tfrecord_io.make_dataset(data.path, batch_size=size, **reading)
    return _cut_for_replicas(dataset, len(devices.names))


def _reading(data: Dataset, part: Part, options: InputOptions) -> dict[str, Any]:
    return {"split": data.splits, "examples": part.rows, "engine": options.engine}


def _cut_for_replicas(dataset: tf.data.Dataset, num_local_replicas: int) -> tf.data.Dataset:
    """Cuts each batch into one a replica, in order."""
    if num_local_replicas > 1:
        size = dataset.element_spec[0].shape[0] // num_local_replicas
        dataset = dataset.rebatch(size, drop_remainder=True)
    # The next batch of each replica waits in memory while the devices work.
    return dataset.prefetch(2 * num_local_replicas)


def _put(devices: Devices, arrays: Any) -> Any:
    """JAX: brings this worker's share of a batch, arrays in any structure, to the devices."""
    import jax

    sharding = devices.sharding("batch")
    put = functools.partial(jax.make_array_from_process_local_data, sharding)
    return jax.tree.map(put, arrays)

"""From the reader's batches to what a step takes: weights that add up, one batch a replica.

The reader fills up a short last batch with copies of weight zero: another shape means another
graph, and a replica without any example means NaN. Here the weights of a step are made to add up to
one, and the random numbers of its examples are added.
"""

from __future__ import annotations

import dataclasses
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
    """Returns the training batches from a step on, to the end of the run.

    Returns:
        a dataset of (stored images [replica_batch_size, height, width, channels], labels float32
        [replica_batch_size, num_classes], weights float32 [replica_batch_size], draws float32
        [replica_batch_size, augmentation.NUM_DRAWS]). The weights of the replica batches of one
        step add up to 1 over all replicas. On JAX an iterator of the same four, as arrays on the
        devices, each of all replicas together.
    """
    batch_size = options.global_batch_size or 0
    ordered: dict[str, Any] = {
        "batch_size": batch_size,
        "seed": options.seed,
        "epochs": options.epochs,
        "pad_remainder": True,
    }
    order = BatchOrder(num_examples=part.num_examples, **ordered)
    reading = {**_reading(data, part), **ordered, "start_step": start_step}

    def beside(step: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the weights and the draws of the examples of a step."""
        in_step = min(batch_size, order.num_positions - int(step) * batch_size)
        draws = augmentation.draw(options.seed, int(step), batch_size=batch_size, mixup=mixup)
        return order.weights(int(step)) / np.float32(in_step), draws

    if devices.backend == "jax":
        batches = tfrecord_io.make_batches(data.path, **reading)

        def put(step_and_batch: tuple[int, Any]) -> tuple[Any, ...]:
            step, (images, labels, *_) = step_and_batch
            return _put(devices, (images, labels, *beside(step)))

        return map_ahead(put, enumerate(batches, start_step), _NUM_AHEAD, num_threads=1)

    import tensorflow as tf

    def finish(step: tf.Tensor, features: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        weights, draws = tf.numpy_function(beside, [step], [tf.float32, tf.float32])
        draws = tf.ensure_shape(draws, (batch_size, augmentation.NUM_DRAWS))
        return *features[:-1], tf.ensure_shape(weights, batch_size), draws

    dataset = tfrecord_io.make_dataset(data.path, **reading)
    dataset = dataset.enumerate(start_step).map(finish)
    return _cut_for_replicas(dataset, devices.num_replicas)


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
    """Returns a part in its stored order, again and again.

    Its batches are those of `training_batches` without draws, but each example's weight is 1 and
    that of a copy 0.
    """
    size = (options.replica_batch_size or 0) * devices.num_replicas
    reading = {**_reading(data, part), "batch_size": size, "shuffle": False, "pad_remainder": True}
    if devices.backend == "jax":

        def put(batch: tuple[np.ndarray, ...]) -> tuple[Any, ...]:
            images, *others = batch
            return _put(devices, images), *others

        return PlacedBatches(tfrecord_io.make_batches(data.path, **reading), put)
    dataset = tfrecord_io.make_dataset(data.path, **reading)
    return _cut_for_replicas(dataset, devices.num_replicas)


def _reading(data: Dataset, part: Part) -> dict[str, Any]:
    return {"split": data.splits, "examples": part.rows}


def _cut_for_replicas(dataset: tf.data.Dataset, num_replicas: int) -> tf.data.Dataset:
    """Cuts each batch into one a replica, in order."""
    if num_replicas > 1:
        size = dataset.element_spec[0].shape[0] // num_replicas
        dataset = dataset.rebatch(size, drop_remainder=True)
    # The next batch of each replica waits in memory while the devices work.
    return dataset.prefetch(2 * num_replicas)


def _put(devices: Devices, arrays: Any) -> Any:
    """JAX: brings arrays of a batch to the devices, to each its part."""
    import jax

    return jax.device_put(arrays, devices.sharding("batch"))

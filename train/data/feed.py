"""From the reader's batches to what a step takes: weights that add up, one batch a replica.

The reader fills up a short last batch with copies of weight zero: another shape means another
graph, and a replica without any example means NaN. Here the weights of a step are made to add up to
one, and the random numbers of its examples are added.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

import tfrecord_io
from tfrecord_io.reading.order import BatchOrder
from train.data import augmentation
from train.data.dataset import Dataset, Part
from train.data.options import InputOptions
from train.machine.devices import Devices

if TYPE_CHECKING:
    import tensorflow as tf

    from tfrecord_io.reading.batches import Batches


def training_batches(
    data: Dataset,
    part: Part,
    options: InputOptions,
    devices: Devices,
    *,
    mixup: float,
    start_step: int,
) -> tf.data.Dataset | Iterator[tuple[np.ndarray, ...]]:
    """Returns the training batches from a step on, to the end of the run.

    Returns:
        a dataset of (stored images [replica_batch_size, height, width, channels], labels float32
        [replica_batch_size, num_classes], weights float32 [replica_batch_size], draws float32
        [replica_batch_size, augmentation.NUM_DRAWS]). The weights of the replica batches of one
        step add up to 1 over all replicas. On JAX an iterator of the same four, as arrays of all
        replicas together.
    """
    batch_size = options.global_batch_size or 0
    ordered: dict[str, Any] = {
        "batch_size": batch_size,
        "seed": options.seed,
        "epochs": options.epochs,
        "pad_remainder": True,
    }
    order = BatchOrder(num_examples=part.num_examples, **ordered)
    reading = {"split": data.splits, "examples": part.rows, **ordered, "start_step": start_step}

    def beside(step: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the weights and the draws of the examples of a step."""
        in_step = min(batch_size, order.num_positions - int(step) * batch_size)
        draws = augmentation.draw(options.seed, int(step), batch_size=batch_size, mixup=mixup)
        return order.weights(int(step)) / np.float32(in_step), draws

    if devices.backend == "jax":
        batches = tfrecord_io.make_batches(data.path, **reading)
        steps = enumerate(batches, start_step)
        return ((images, labels, *beside(step)) for step, (images, labels, *_) in steps)

    import tensorflow as tf

    def finish(step: tf.Tensor, features: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        weights, draws = tf.numpy_function(beside, [step], [tf.float32, tf.float32])
        draws = tf.ensure_shape(draws, (batch_size, augmentation.NUM_DRAWS))
        return *features[:-1], tf.ensure_shape(weights, batch_size), draws

    dataset = tfrecord_io.make_dataset(data.path, **reading)
    dataset = dataset.enumerate(start_step).map(finish)
    return _cut_for_replicas(dataset, devices.num_replicas)


def evaluation_batches(
    data: Dataset, part: Part, options: InputOptions, devices: Devices
) -> tf.data.Dataset | Batches:
    """Returns a part in its stored order, each time anew that it is gone through.

    Its batches are those of `training_batches` without draws, but each example's weight is 1 and
    that of a copy 0.
    """
    make = tfrecord_io.make_batches if devices.backend == "jax" else tfrecord_io.make_dataset
    batches = make(
        data.path,
        split=data.splits,
        examples=part.rows,
        batch_size=(options.replica_batch_size or 0) * devices.num_replicas,
        shuffle=False,
        pad_remainder=True,
    )
    if devices.backend == "jax":
        return batches
    return _cut_for_replicas(batches, devices.num_replicas)


def _cut_for_replicas(dataset: tf.data.Dataset, num_replicas: int) -> tf.data.Dataset:
    """Cuts each batch into one a replica, in order."""
    if num_replicas > 1:
        size = dataset.element_spec[0].shape[0] // num_replicas
        dataset = dataset.rebatch(size, drop_remainder=True)
    # The next batch of each replica waits in memory while the devices work.
    return dataset.prefetch(2 * num_replicas)

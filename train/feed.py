"""From the reader's batches to what a step takes: weights that add up, one batch a replica.

The reader's epochs follow each other without a gap, so in training only the very last batch may
be short; in evaluation the last of a split. The reader fills it up with copies of weight zero: a
step wants one shape, because another shape means another graph, and a replica without any
example means NaN. What is left to do here is to make the weights of a step add up to one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import tfrecord_io
from train.config import TrainConfig
from train.strategy import Devices

if TYPE_CHECKING:
    import tensorflow as tf


def end_step(epoch: int, *, num_examples: int, global_batch_size: int) -> int:
    """Returns how many steps are done when an epoch (counted from 0) is: its last example's step.

    Epochs are not rounded up to whole batches: a batch may hold the end of one and the start of
    the next.
    """
    return math.ceil((epoch + 1) * num_examples / global_batch_size)


def training_batches(
    config: TrainConfig, devices: Devices, *, num_examples: int, start_step: int
) -> tf.data.Dataset:
    """Returns the training batches of this worker from a step on, to the end of the run.

    Args:
        config: resolved; gives data, batch size, seed, engine.
        devices: how many workers and replicas share a batch.
        num_examples: in the training split.
        start_step: steps done before, over all epochs.

    Returns:
        a dataset of (images uint8 [replica_batch_size, height, width, channels], labels float32
        [replica_batch_size, num_classes], weights float32 [replica_batch_size]); the weights of
        the replica batches of one step add up to 1 over all replicas.
    """
    import tensorflow as tf

    global_batch_size = config.global_batch_size or 0
    dataset = tfrecord_io.make_dataset(
        config.data,
        split="train",
        batch_size=global_batch_size,
        seed=config.seed,
        epochs=config.epochs,
        pad_remainder=True,
        engine=config.engine,
        num_replicas=devices.num_workers,
        replica_index=devices.worker_index,
        start_step=start_step,
    )
    num_in_all = num_examples * config.epochs
    num_full_steps, num_in_last_step = divmod(num_in_all, global_batch_size)

    def divide_weights(step: tf.Tensor, features: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        images, labels, weights = features
        in_step = tf.where(step < num_full_steps, global_batch_size, num_in_last_step)
        return images, labels, weights / tf.cast(in_step, weights.dtype)

    dataset = dataset.enumerate(start_step).map(divide_weights)
    return _cut_for_replicas(dataset, devices.num_local_replicas)


def evaluation_batches(config: TrainConfig, devices: Devices, split: str) -> tf.data.Dataset:
    """Returns one pass over a split in its stored order, on each worker the whole split.

    Returns:
        a dataset like that of `training_batches`, but each example's weight is 1 and that of
        a copy 0.
    """
    dataset = tfrecord_io.make_dataset(
        config.data,
        split=split,
        batch_size=config.replica_batch_size * devices.num_local_replicas,
        shuffle=False,
        pad_remainder=True,
        engine=config.engine,
    )
    return _cut_for_replicas(dataset, devices.num_local_replicas)


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

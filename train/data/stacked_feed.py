"""The batches of many runs, with the runs as the first axis of all arrays, see `many_heads`.

Each run has the examples, weights and random numbers that `feed.training_batches` gives it alone.
The examples of all runs are those of one table in memory, from which a step gathers its batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import tfrecord_io
from tfrecord_io.reading.order import BatchOrder
from train.config import TrainConfig
from train.data import feed
from train.devices import Devices

if TYPE_CHECKING:
    import tensorflow as tf


class Table(NamedTuple):
    """Examples in memory.

    Attributes:
        images: [num_examples, height, width, channels], as stored.
        labels: float32 [num_examples, num_classes].
    """

    images: np.ndarray
    labels: np.ndarray


class Source(NamedTuple):
    """What a run trains on.

    Attributes:
        config: resolved; gives the seed and MixUp.
        order: of its batches, as places in `examples`.
        examples: int64, places in the table.
        weights: see `parts.Part`.
    """

    config: TrainConfig
    order: BatchOrder
    examples: np.ndarray
    weights: np.ndarray | None


def training_batches(
    sources: Sequence[Source], table: Table, manifest: tfrecord_io.Manifest, devices: Devices
) -> feed.DeviceBatches | Iterator[tuple[Any, ...]]:
    """Returns the batches of all runs, to the end of the longest, for `iterate` of `steps.Steps`.

    Args:
        sources: of each run; their batches have the same size.
        table: that they choose their examples from.
        manifest: of the dataset.
        devices: a single one.

    Returns:
        batches of (images [runs, batch, height, width, channels] as stored, labels float32 [runs,
        batch, num_classes], weights float32 [runs, batch], draws float32 [runs, batch,
        augmentation.NUM_DRAWS]). The weights of a run add up to 1 until it is over, then to 0.
    """
    # The random numbers of a step depend on the seed alone.
    configs = {source.config.seed: source.config for source in sources}
    seed_of_run = [list(configs).index(source.config.seed) for source in sources]
    if devices.backend == "jax":
        return _jax_batches(sources, table, list(configs.values()), seed_of_run, devices)

    import tensorflow as tf

    from tfrecord_io.reading.device_cache import DeviceSplit

    def add_draws(step: tf.Tensor, batch: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        draws = [feed.draw_step(config, devices, step) for config in configs.values()]
        return *batch, tf.gather(tf.stack(draws), seed_of_run)

    shape = (len(sources), sources[0].order.batch_size)
    signature = (tf.TensorSpec(shape, tf.int32), tf.TensorSpec(shape, tf.float32))
    order = tf.data.Dataset.from_generator(lambda: _plan(sources), output_signature=signature)
    keys = np.zeros(len(table.images), "S1")  # training has no use for them
    split = DeviceSplit([(*table, keys)], manifest, len(keys), devices.names[0])
    return feed.DeviceBatches(order.enumerate().map(add_draws).prefetch(2), (split,))


def _jax_batches(
    sources: Sequence[Source],
    table: Table,
    configs: Sequence[TrainConfig],
    seed_of_run: Sequence[int],
    devices: Devices,
) -> Iterator[tuple[Any, ...]]:
    import jax

    from train.data.draws import draw_step

    arrays = jax.device_put(tuple(table), devices.copied)
    gather = jax.jit(lambda arrays, rows: tuple(array[rows] for array in arrays))
    for step, (rows, weights) in enumerate(_plan(sources)):
        draws = [
            draw_step(config.seed, step, batch_size=rows.shape[1], mixup=config.mixup)
            for config in configs
        ]
        yield *gather(arrays, rows), *jax.device_put((weights, np.stack(draws)[seed_of_run]))


def _plan(sources: Sequence[Source]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (places in the table int32, weights float32) of each step, both [runs, batch]."""
    batches = [source.order.batches() for source in sources]
    shape = (len(sources), sources[0].order.batch_size)
    for step in range(max(len(source.order) for source in sources)):
        rows, weights = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        for index, (_, order, examples, factors) in enumerate(sources):
            if step < len(order):
                places = next(batches[index])
                rows[index] = examples[places]
                own = order.weights(step, step + 1)[0]
                weights[index] = own / own.sum() * (1 if factors is None else factors[places])
        yield rows, weights

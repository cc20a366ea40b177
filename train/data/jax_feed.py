"""Batches for JAX: gathered in NumPy by a thread, which brings them to the devices ahead of time.

The same examples, weights and random numbers as those of `feed`, without TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import psutil

import tfrecord_io
from tfrecord_io.ahead import map_ahead
from tfrecord_io.reading.batches import Batches
from train.data import augmentation
from train.data.options import InputOptions
from train.data.parts import Part
from train.devices import Devices

# Batches that wait on the devices while these work on another.
_NUM_AHEAD = 2


def training_batches(
    options: InputOptions, mixup: float, devices: Devices, part: Part, *, start_step: int
) -> Iterator[tuple[jax.Array, ...]]:
    """Yields what `feed.training_batches` says: global batches, cut over the devices."""
    batches = tfrecord_io.make_batches(
        options.data,
        split=part.splits,
        batch_size=options.global_batch_size or 0,
        seed=options.seed,
        epochs=options.epochs,
        pad_remainder=True,
        num_replicas=devices.num_workers,
        replica_index=devices.worker_index,
        start_step=start_step,
        examples=part.examples,
    )
    order = batches.order
    share = slice(order.first_column, order.first_column + order.replica_batch_size)
    fetch = _fetcher(options, devices, batches)

    def read(step_and_places: tuple[int, np.ndarray]) -> tuple[jax.Array, ...]:
        step, places = step_and_places
        in_step = order.batch_size if step < (order.num_full_steps or 0) else order.remainder
        weights = order.weights(step, step + 1)[0] / np.float32(in_step)
        if part.weights is not None:
            weights = weights * part.weights[places]
        draws = augmentation.draw(options.seed, step, batch_size=order.batch_size, mixup=mixup)
        return *fetch(places), *devices.put_batch((weights, draws[share]))

    steps = enumerate(order.batches(start_step), start_step)
    return map_ahead(read, steps, _NUM_AHEAD, num_threads=1)


def evaluation_batches(
    options: InputOptions, devices: Devices, part: Part
) -> Iterator[tuple[Any, ...]]:
    """Yields what `feed.evaluation_batches` says; the images are on the devices."""
    num_local = options.replica_batch_size * devices.num_local_replicas
    batches = tfrecord_io.make_batches(
        options.data,
        split=part.splits,
        batch_size=num_local * devices.num_workers,
        shuffle=False,
        pad_remainder=True,
        examples=part.examples,
    )
    share = slice(devices.worker_index * num_local, (devices.worker_index + 1) * num_local)
    if devices.num_workers == 1:  # after `Devices.alone`, which keeps the worker's index
        share = slice(None)

    def put(batch: tuple[np.ndarray, ...]) -> tuple[Any, ...]:
        images, *others = batch
        return devices.put_batch(images[share]), *others

    return map_ahead(put, batches, _NUM_AHEAD, num_threads=1)


def _fetcher(
    options: InputOptions, devices: Devices, batches: Batches
) -> Callable[[np.ndarray], tuple[jax.Array, jax.Array]]:
    """Returns a function that puts a batch, given its places, on the devices: (images, labels)."""
    examples = batches.examples
    if options.cache == "device":
        if examples is None:
            examples = np.arange(len(batches.dataset))
        manifest = batches.dataset.mapped.manifest
        needed = len(examples) * (manifest.layout.image_length + 4 * manifest.num_classes)
        if 2 * needed <= _free_memory(devices):
            images, labels = jax.device_put(batches.dataset[examples], devices.copied)
            gather = jax.jit(
                lambda images, labels, places: (images[places], labels[places]),
                out_shardings=devices.batch_sharding,
            )
            return lambda places: gather(images, labels, devices.put_batch(places.astype(np.int32)))
        devices.say(
            f"warning: the training images take {needed / 1e9:.1f} GB, more than half of the "
            f"free memory of {devices.names[0]}; reading them from the files instead of "
            "--cache device"
        )
        examples = batches.examples
    pool = batches.buffer_pool()

    def fetch(places: np.ndarray) -> tuple[jax.Array, jax.Array]:
        rows = places if examples is None else examples[places]
        return devices.put_batch(batches.dataset.gather(rows, pool.take()))

    return fetch


def _free_memory(devices: Devices) -> int:
    """Returns the free bytes of the first device; a CPU's are those of the machine."""
    statistics = devices.mesh.local_devices[0].memory_stats()
    if not statistics or "bytes_limit" not in statistics:
        return psutil.virtual_memory().available
    return statistics["bytes_limit"] - statistics["bytes_in_use"]

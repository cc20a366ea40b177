"""Batches for training, read from finished shards: a step only copies bytes.

A batch is a gather of pixels in TensorFlow's threads, out of files that are mapped into memory.
Records of a store are read ahead until this machine's disk holds them all.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import pickle
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import tensorflow as tf

from tfrecord_io.format import schema
from tfrecord_io.reading.batches import make_batches
from tfrecord_io.terminal.errors import ToldError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# The last error of a reader in this process; TensorFlow passes on its text only.
_raised: collections.deque[ToldError] = collections.deque(maxlen=1)

# Largest number of threads that gather batches; more would only wait for memory.
_MAX_GATHERS = 8


def _takes_those_of(
    other: Callable[Arguments, object],
) -> Callable[[Callable[..., Result]], Callable[Arguments, Result]]:
    """Declares the arguments of another function for one, to checks of types and to `help`."""
    return cast(Any, functools.partial(functools.update_wrapper, wrapped=other, assigned=()))


# Without `do_not_convert`, AutoGraph searches the function for control flow that depends on
# tensors. There is none, and the search takes most of the time to the first batch.
@_takes_those_of(make_batches)
@tf.autograph.experimental.do_not_convert
def make_dataset(*args: Any, **arguments: Any) -> tf.data.Dataset:
    """Returns the batches of `make_batches`, whose arguments it takes, as a `tf.data.Dataset`.

    Its elements are the arrays of `make_batches` as tensors, each key a string. Iterating the same
    dataset twice gives the same batches twice; for Keras `fit` over several epochs ask for
    `epochs=None` and give `steps_per_epoch`.

    Raises:
        ManifestError, TypeError, ValueError, OSError, UserError, StoreError: as `make_batches`.
    """
    batches = make_batches(*args, **arguments)
    order, layout, with_keys = batches.order, batches.dataset.layout, batches.with_keys
    # A tensor that is made while an iterator runs is passed by reference; others are copied into
    # the graph. So the files are mapped when an iterator starts, and unmapped when it ends.
    # TensorFlow never frees a function that it was given, so these hold no open dataset.
    pickled = pickle.dumps(batches)

    def read() -> Iterator[tuple[np.ndarray, ...]]:
        try:
            for records, *part in pickle.loads(pickled).parts():
                yield records.blocks, *part
        except ToldError as error:
            _raised.append(error)
            raise

    def split(blocks: tf.Tensor, *many: tf.Tensor) -> tf.data.Dataset:
        every = tf.data.Dataset.from_tensors(blocks).repeat()
        return tf.data.Dataset.zip((every, *map(tf.data.Dataset.from_tensor_slices, many)))

    def gather(blocks: tf.Tensor, rows: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        image, label, key = _gather(layout, blocks, rows)
        others = (weights,) if order.pad_remainder else ()
        return image, label, *others, *((key,) if with_keys else ())

    has_one_size = order.num_steps in (None, order.num_full_steps)
    shape = None, order.replica_batch_size if has_one_size else None
    specs = (
        tf.TensorSpec((None, layout.block_length), tf.uint8),
        tf.TensorSpec(shape, tf.int64),
        tf.TensorSpec(shape, tf.float32),
    )
    # Arrays that begin at a multiple of 64 bytes, as the blocks do, are passed by reference.
    parts = tf.data.Dataset.from_generator(read, output_signature=specs)
    num_gathers = min(_MAX_GATHERS, os.cpu_count() or 1)
    rows = parts.prefetch(1).flat_map(split)
    # Inside a function, TensorFlow's deterministic mode does not reduce the number of threads.
    dataset = tf.data.Dataset.range(1).flat_map(
        lambda _: rows.map(gather, num_gathers, deterministic=True)
    )
    options = tf.data.Options()
    options.deterministic = True
    # Workers share batches by num_replicas; tf.data must not cut the data a second time.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    num_batches = tf.data.INFINITE_CARDINALITY if order.num_steps is None else len(batches)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(num_batches))
    return dataset.prefetch(batches.prefetch).with_options(options)


@contextlib.contextmanager
def errors_as_raised() -> Iterator[None]:
    """Raises the error of a reader in the block as it was, instead of TensorFlow's."""
    _raised.clear()
    try:
        yield
    except tf.errors.OpError as error:
        if not _raised:
            raise
        raise _raised.pop() from error


def _gather(
    layout: schema.RecordLayout, blocks: tf.Tensor, rows: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Gathers (image, label, key) of rows, int64 [batch], out of `Records.blocks`."""
    per_record = layout.stride // layout.block_length
    per_image = layout.image_length // layout.block_length
    starts = rows[:, tf.newaxis] * per_record
    # Copies each pixel once, to where it is wanted. TensorFlow has no other op that does.
    image = tf.gather(blocks, starts + tf.range(per_image, dtype=tf.int64))
    rest = tf.gather(blocks, starts + tf.range(per_image, per_record, dtype=tf.int64))
    rest = tf.reshape(rest, (-1, layout.stride - layout.image_length))
    # One split costs less than as many slices: it copies whole rows.
    key, label = layout.features[schema.KEY], layout.features[schema.LABEL]
    first = layout.features[schema.IMAGE].offset + layout.image_length
    between = label.offset - key.offset - key.length
    lengths = (key.offset - first, key.length, between, label.length, -1)
    _, keys, _, labels, _ = tf.split(rest, lengths, axis=1)
    labels = tf.reshape(labels, (-1, layout.num_classes, 4))
    return (
        tf.reshape(image, (-1, *layout.image_shape)),
        tf.bitcast(labels, tf.float32),
        tf.strings.unicode_encode(tf.cast(keys, tf.int32), "UTF-8"),
    )

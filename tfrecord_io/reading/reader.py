"""Batches for training, read from finished shards: a step only copies bytes.

A batch is a gather of pixels in TensorFlow's threads, out of files that are mapped into memory.
Records of a store are read ahead until this machine's disk holds them all.

No thread of TensorFlow runs Python: one that is about to when the program ends waits for Python for
ever, and the program for the thread. So an iterator sends a message when it starts, a thread of
this module fills a queue with parts of a loop, and the iterator takes them from there.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import functools
import itertools
import os
import pickle
import threading
import traceback
import types
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from tfrecord_io.format import schema
from tfrecord_io.reading.batches import Batches, Engine, make_batches
from tfrecord_io.reading.opening import Verify
from tfrecord_io.reading.records import Records
from tfrecord_io.terminal.errors import MessageError

# The last error of a reader in this process; TensorFlow passes on its text only.
_raised: collections.deque[MessageError] = collections.deque(maxlen=1)

# Largest number of threads that gather batches; more would only wait for memory.
_MAX_GATHERS = 8

# What an iterator says; the program says `_STOP` at its end.
_BEGIN, _COUNT, _END, _STOP = range(4)

# Time in which threads end with the program; they may be waiting for a store.
_EXIT_SECONDS = 10.0


def make_dataset(
    directory: str | os.PathLike[str],
    split: str | Sequence[str],
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    epochs: int | None = 1,
    drop_remainder: bool = False,
    pad_remainder: bool = False,
    engine: Engine = "auto",
    num_replicas: int | None = None,
    replica_index: int = 0,
    start_step: int = 0,
    with_keys: bool = False,
    verify: Verify = "size",
    examples: Sequence[int] | np.ndarray | None = None,
    prefetch: int = 2,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_gb: float | None = None,
) -> tf.data.Dataset:
    """Returns the batches of a split as a `tf.data.Dataset`, in an order that the seed decides.

    Each new loop over the dataset is the next epoch, or the next `epochs` of them, as in the epochs
    of Keras's `fit`. A loop counts from its 16th batch on, or its last: a look at the first batch,
    which Keras takes to build the model, changes nothing.

    Args:
        directory: of a finished dataset; a local folder or a URL, see docs/reader.md.
        split: name of the split; or several, such as `("train", "val")`, which are read as one.
        batch_size: examples of a global batch, over all replicas.
        seed: decides the order.
        shuffle: if False, examples come in the order of the shards.
        epochs: how often each example occurs in a loop; None for endless batches.
        drop_remainder: leave out a last batch that is not full.
        pad_remainder: fill up a last batch that is not full with copies of its last example, and
            give each example a weight: 1, or 0 for a copy.
        engine: where the operating system cannot map the shards into memory, `mmap` raises an
            error, and `auto` reads each record from its file.
        num_replicas: readers (such as workers) that share each global batch in equal slices; 1 if
            not given, but where TF_CONFIG names several workers it must be.
        replica_index: which slice this reader gets.
        start_step: batches to skip, at no cost, counted over all loops. So k times `len` of the
            result begins with epoch k. The state of a reader is its number of steps.
        with_keys: whether to give each example's key as well.
        verify: what is checked besides the size of each shard. `size`: each record's checksums,
            when this process first reads it. `crc`: the checksums of all records, now. `sha256`:
            the digest of each shard, now. `none`: nothing, but records from a URL always are.
        examples: places in the split, in the order of the shards, of the examples to read, or a
            mask, bool [examples of the split]; all if not given. An epoch is a permutation of
            these.
        prefetch: batches that TensorFlow makes ahead.
        cache_dir: folder in which what a URL gives is kept; the user's cache folder if not given.
        cache_gb: 10^9 bytes that this folder may take; half of what is free there if not given.

    Returns:
        a dataset of tensors (image, label), then weight with `pad_remainder`, then key with
        `with_keys`: image uint8 [batch, height, width, channels], label float32 [batch,
        num_classes] one-hot (or 0 and 1 for each of several labels), weight float32 [batch], key
        string [batch]. `batch` is batch_size / num_replicas; in a last batch that is neither
        dropped nor padded it is less, and may be 0 for a replica. The cardinality is the number of
        batches of a loop; unknown if `start_step` is inside of an epoch, as the first loop is
        shorter than the others then.

    Raises:
        ManifestError: if the dataset is unfinished, of a newer format, or has no such split; if the
            split is empty; if a shard is missing or is not as the manifest says; if no batch of
            the split is full, but all must be.
        TypeError, ValueError: if an argument is wrong, or the arguments do not fit together.
        OSError: if `mmap` was asked for and the operating system cannot map the files.
        UserError, StoreError: if the URL, the cache or the store cannot be used.
        tf.errors.InvalidArgumentError: while batches are read, with the words of a StoreError: a
            record is damaged, or a shard was replaced.
    """
    batches = make_batches(
        directory,
        split,
        batch_size,
        seed=seed,
        shuffle=shuffle,
        epochs=epochs,
        drop_remainder=drop_remainder,
        pad_remainder=pad_remainder,
        engine=engine,
        num_replicas=num_replicas,
        replica_index=replica_index,
        start_step=start_step,
        with_keys=with_keys,
        verify=verify,
        examples=examples,
        prefetch=prefetch,
        cache_dir=cache_dir,
        cache_gb=cache_gb,
    )
    # Iterators are started and stopped in eager mode, whatever function calls this one.
    with tf.init_scope(), tf.device("CPU:0"):
        return _dataset(batches)


# Without `do_not_convert`, AutoGraph searches the function for control flow that depends on
# tensors. There is none, and the search takes most of the time to the first batch.
@tf.autograph.experimental.do_not_convert
def _dataset(batches: Batches) -> tf.data.Dataset:
    order, layout, with_keys = batches.order, batches.dataset.layout, batches.with_keys

    def split(loop: tf.Tensor, blocks: tf.Tensor, *many: tf.Tensor) -> tf.data.Dataset:
        every = tf.data.Dataset.from_tensors((loop, blocks)).repeat()
        return tf.data.Dataset.zip((every, *map(tf.data.Dataset.from_tensor_slices, many)))

    def gather(
        part: tuple[tf.Tensor, tf.Tensor], rows: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        loop, blocks = part
        image, label, key = _gather(layout, blocks, rows)
        others = (weights,) if order.pad_remainder else ()
        return loop, image, label, *others, *((key,) if with_keys else ())

    def count(number: tf.Tensor, batch: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        loop, *features = batch
        is_time = tf.equal(number, loop[2])
        sent = tf.cond(is_time, lambda: _send(_COUNT, loop[0], loop[1]), lambda: tf.constant(0))
        with tf.control_dependencies([sent]):
            return tuple(map(tf.identity, features))

    num_gathers = min(_MAX_GATHERS, os.cpu_count() or 1)
    feed = _Feed(batches)

    def read(queue: tf.Tensor) -> tf.data.Dataset:
        rows = feed.parts(queue).prefetch(1).flat_map(split)
        return rows.map(gather, num_gathers, deterministic=True)

    # Inside a function, TensorFlow's deterministic mode does not reduce the number of threads.
    dataset = feed.loop().flat_map(read)
    dataset = dataset.prefetch(batches.prefetch).enumerate(1).map(count)
    options = tf.data.Options()
    options.deterministic = True
    # Workers share batches by num_replicas; tf.data must not cut the data a second time.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    num_batches = order.num_steps
    if num_batches is None:
        num_batches = tf.data.INFINITE_CARDINALITY
    if order.num_steps is None or not order.start_step % order.num_steps:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(num_batches))
    return dataset.with_options(options)


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


# ---- loops, whose parts threads make and iterators take


class _Feed:
    """Starts the loops over a dataset. The next one that will start is always in `offers`."""

    def __init__(self, batches: Batches) -> None:
        self.number = next(_numbers)
        self.order, layout = batches.order, batches.dataset.layout
        self.pickled = pickle.dumps(batches)
        has_one_size = self.order.num_steps in (None, self.order.num_full_steps)
        shape = None, self.order.replica_batch_size if has_one_size else None
        self.specs = (
            tf.TensorSpec(3, tf.int64),
            tf.TensorSpec((None, layout.block_length), tf.uint8),
            tf.TensorSpec(shape, tf.int64),
            tf.TensorSpec(shape, tf.float32),
        )
        self.offers = tf.queue.FIFOQueue(1, (tf.int64, tf.resource), ((), ()))
        _feeds[self.number] = self
        self.offer()

    def offer(self) -> None:
        loop = _Loop(self)
        _loops[loop.number] = loop
        self.offers.enqueue((loop.number, loop.queue.queue_ref))

    def loop(self) -> tf.data.Dataset:
        """Returns a dataset whose only element is the queue of a loop, for as long as it lasts."""

        def begin() -> tuple[tf.Tensor, tf.Tensor]:
            number, queue = self.offers.dequeue()
            with tf.control_dependencies([_send(_BEGIN, number)]):
                return tf.identity(number), tf.identity(queue)

        def take(number: tf.Tensor, queue: tf.Tensor) -> tf.Tensor:
            return tf.identity(queue)

        def end(number: tf.Tensor, queue: tf.Tensor) -> tf.Tensor:
            return _send(_END, number)

        # The only dataset that says when its iterator ends.
        state = tf.TensorSpec((), tf.int64), tf.TensorSpec((), tf.resource)
        functions = {
            "init": tf.function(begin, autograph=False).get_concrete_function(),
            "next": tf.function(take, autograph=False).get_concrete_function(*state),
            "finalize": tf.function(end, autograph=False).get_concrete_function(*state),
        }
        inputs = {f"{name}_func_other_args": f.captured_inputs for name, f in functions.items()}
        variant = tf.raw_ops.GeneratorDataset(
            **{f"{name}_func": function for name, function in functions.items()},
            **inputs,
            output_types=[tf.resource],
            output_shapes=[()],
        )
        return tf.data.experimental.from_variant(variant, state[1]).take(1)

    def parts(self, queue: tf.Tensor) -> tf.data.Dataset:
        """Returns the parts of a loop as they are in its queue, without the text of an error."""

        def take(_: tf.Tensor) -> tuple[tf.Tensor, ...]:
            error, *part = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=_Loop.types)
            with tf.control_dependencies([tf.debugging.Assert(tf.equal(error, ""), [error])]):
                shapes = (spec.shape for spec in self.specs)
                return tuple(map(tf.ensure_shape, part, shapes))

        return tf.data.Dataset.counter().map(take).take_while(lambda loop, *_: loop[2] > 0)


class _Loop:
    """A loop over a dataset: a thread puts parts of it into a queue.

    An element of the queue is the text of an error; the number of the feed, the loop's first step
    and the number of batches with which it counts, 0 at the end; `Records.blocks`; and rows and
    weights, as `Batches.parts` yields them.
    """

    types = (tf.string, tf.int64, tf.uint8, tf.int64, tf.float32)

    def __init__(self, feed: _Feed) -> None:
        self.number = next(_numbers)
        self.queue = tf.queue.FIFOQueue(1, self.types)
        self.thread = threading.Thread(target=self._run, name="make_dataset", daemon=True)
        self._feed, self._first_step = feed, 0
        # Kept until the iterator has ended, because Python runs when the last reference ends.
        self._blocks: tf.Tensor | None = None

    def begin(self) -> None:
        self._first_step = self._feed.order.next_loop()
        self.thread.start()
        self._feed.offer()

    def close(self) -> None:
        """Ends the thread."""
        self.queue.close(cancel_pending_enqueues=True)

    def _run(self) -> None:
        try:
            with tf.device("CPU:0"):
                self._fill()
        except tf.errors.CancelledError as error:  # the queue is closed
            # TensorFlow's errors refer to themselves. Without their variables the files are
            # unmapped now, and not when Python looks for garbage.
            traceback.clear_frames(error.__traceback__)

    def _fill(self) -> None:
        first = self._first_step
        facts = [self._feed.number, first, self._feed.order.num_looks(first)]
        shapes = [[size or 0 for size in spec.shape] for spec in self._feed.specs[1:]]
        dtypes = [spec.dtype.as_numpy_dtype for spec in self._feed.specs[1:]]
        end = [*facts[:2], 0], *map(np.zeros, shapes, dtypes)
        try:
            # The files are mapped when a loop starts, and unmapped when it ends.
            batches: Batches = pickle.loads(self._feed.pickled)
            for records, *part in batches.parts(first):
                is_mapped = records is batches.dataset.records
                blocks = self._shared(records) if is_mapped else records.blocks
                self.queue.enqueue(("", facts, blocks, *part))
            self.queue.enqueue(("", *end))
        except tf.errors.CancelledError:
            raise
        except BaseException as error:
            if isinstance(error, MessageError):
                _raised.append(error)
            self.queue.enqueue((f"{type(error).__name__}: {error}", *end))

    def _shared(self, records: Records) -> tf.Tensor:
        """Returns the blocks of records as a tensor of the same memory."""
        if self._blocks is None:
            # DLPack cannot say that memory is read-only; TensorFlow does not write to a tensor.
            facts = dict(records.blocks.__array_interface__)
            facts["data"] = facts["data"][0], False
            writable = types.SimpleNamespace(__array_interface__=facts, records=records)
            self._blocks = tf.experimental.dlpack.from_dlpack(np.asarray(writable).__dlpack__())
        return self._blocks


_feeds: dict[int, _Feed] = {}
_loops: dict[int, _Loop] = {}
_numbers = itertools.count()


@functools.cache
def _messages() -> tf.queue.FIFOQueue:
    """Returns the queue of messages of iterators, which a thread answers in their order."""
    messages = tf.queue.FIFOQueue(1 << 30, (tf.int64,) * 3, ((),) * 3)

    def answer() -> None:
        with tf.device("CPU:0"):
            while True:
                what, number, first_step = map(int, messages.dequeue())
                if what == _BEGIN:
                    _loops[number].begin()
                elif what == _COUNT:
                    _feeds[number].order.count_loop(first_step)
                elif what == _END:
                    _loops.pop(number).close()
                else:
                    return

    def stop() -> None:
        messages.enqueue((_STOP, 0, 0))
        thread.join(_EXIT_SECONDS)
        for loop in _loops.values():
            loop.close()
        for loop in _loops.values():
            if loop.thread.ident is not None:
                loop.thread.join(_EXIT_SECONDS)

    thread = threading.Thread(target=answer, name="make_dataset", daemon=True)
    thread.start()
    atexit.register(stop)
    return messages


def _send(what: int, number: tf.Tensor, first_step: tf.Tensor | int = 0) -> tf.Tensor:
    """Sends a message, as a part of a graph; returns a tensor to depend on."""
    message = tf.constant(what, tf.int64), number, tf.cast(first_step, tf.int64)
    with tf.control_dependencies([_messages().enqueue(message)]):
        return tf.constant(0)

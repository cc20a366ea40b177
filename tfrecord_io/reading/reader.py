"""Batches for training, read from finished shards: a step only copies bytes.

A batch is a gather of pixels in TensorFlow's threads, out of files that are mapped into memory.
Records of a store are read ahead until this machine's disk holds them all.

No thread of TensorFlow runs Python: one that is about to when the program ends waits for Python for
ever, and the program for the thread. So threads of this module fill a queue for each loop over a
dataset with parts of it, and its iterator takes them from there.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import ctypes
import functools
import itertools
import os
import threading
import traceback
import types
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrecord_io.reading.batches import Batches, Engine, make_batches
from tfrecord_io.reading.mapped import Verify
from tfrecord_io.terminal.errors import MessageError

# The last error of a reader in this process; TensorFlow passes on its text only.
_raised: collections.deque[MessageError] = collections.deque(maxlen=1)

# Largest number of threads that gather batches; more would only wait for memory.
_MAX_GATHERS = 8

# Options of mallopt: how many free bytes of a heap stay, how many are added to a heap at once, and
# the largest block in a heap. The last two are the largest that work. Source: malloc.h, and the
# constant HEAP_MAX_SIZE of glibc's malloc.
_MALLOC_OPTIONS = {-1: 512 << 20, -2: 64 << 20, -3: 32 << 20}

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
    # A function that is traced keeps the tensor of a dataset, but not the object.
    is_traced = not tf.executing_eagerly()
    # Iterators are started and stopped in eager mode, whatever function calls this one.
    with tf.init_scope(), tf.device("CPU:0"):
        dataset = _dataset(batches, is_traced)
    _keep_freed_memory()
    return dataset


def _keep_freed_memory() -> None:
    """Lets malloc of glibc keep the memory of batches, unless the user has set it up.

    Otherwise each batch gets new pages from the system, which take longer than the gather does. It
    is called for each dataset, because TensorFlow's own `GeneratorDataset` sets the opposite.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    with contextlib.suppress(AttributeError, OSError):  # of another C library
        set_option = ctypes.CDLL(None).mallopt
        for option, num_bytes in _MALLOC_OPTIONS.items():
            set_option(option, num_bytes)


# Without `do_not_convert`, AutoGraph searches the functions for control flow that depends on
# tensors. There is none, and the search takes most of the time to the first batch.
@tf.autograph.experimental.do_not_convert
def _dataset(batches: Batches, is_kept: bool) -> tf.data.Dataset:
    order, layout, with_keys = batches.order, batches.dataset.layout, batches.with_keys
    has_one_size = order.num_steps in (None, order.num_full_steps)
    rows = None, order.replica_batch_size if has_one_size else None
    shapes = [rows, (*rows, layout.num_classes)] + [rows] * (order.pad_remainder + with_keys)
    number = next(_numbers)
    _sources[number] = _Source(batches)
    # The step at which the next loop begins: a variable that belongs to no strategy.
    next_step = tf.raw_ops.VarHandleOp(
        dtype=tf.int64, shape=(1,), shared_name=f"tfrecord_io_next_step_{number}"
    )
    tf.raw_ops.AssignVariableOp(resource=next_step, value=tf.constant([order.start_step], tf.int64))

    def split(facts: tf.Tensor, blocks: tf.Tensor, *features: tf.Tensor) -> tf.data.Dataset:
        blocks = tf.ensure_shape(blocks, (None, layout.block_length))
        every = tf.data.Dataset.from_tensors((tf.ensure_shape(facts, 2), blocks)).repeat()
        firsts, labels, weights, keys = features
        chosen = [firsts, labels, *[weights] * order.pad_remainder, *[keys] * with_keys]
        each = tuple(map(tf.ensure_shape, chosen, shapes))
        return tf.data.Dataset.zip((every, tf.data.Dataset.from_tensor_slices(each)))

    image_blocks = np.arange(layout.image_length // layout.block_length)

    def gather(
        part: tuple[tf.Tensor, tf.Tensor], batch: tuple[tf.Tensor, ...]
    ) -> tuple[tf.Tensor, ...]:
        (facts, blocks), (firsts, *features) = part, batch
        # Copies each pixel once, to where it is wanted. TensorFlow has no other op that does.
        image = tf.gather(blocks, firsts[:, tf.newaxis] + image_blocks)
        return facts, tf.reshape(image, (-1, *layout.image_shape)), *features

    def count(number: tf.Tensor, batch: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        facts, *features = batch
        step = tf.where(number == facts[0], facts[1], 0)
        # In one op: with a read and a write, another loop could count between them.
        counted = tf.raw_ops.ResourceScatterMax(resource=next_step, indices=0, updates=step)
        with tf.control_dependencies([counted]):
            return tuple(map(tf.identity, features))

    # Each function costs milliseconds at the start of each loop.
    dataset = _parts_of_loop(number, next_step).prefetch(1).flat_map(split)
    num_gathers = min(_MAX_GATHERS, os.cpu_count() or 1)
    dataset = dataset.map(gather, num_gathers, deterministic=True).prefetch(batches.prefetch)
    dataset = dataset.enumerate(1).map(count)
    options = tf.data.Options()
    options.deterministic = True
    # Workers share batches by num_replicas; tf.data must not cut the data a second time.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    num_batches = order.num_steps
    if num_batches is None:
        num_batches = tf.data.INFINITE_CARDINALITY
    if order.num_steps is None or not order.start_step % order.num_steps:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(num_batches))
    dataset = dataset.with_options(options)
    if not is_kept:
        # Its iterators, and the datasets that are made of it, refer to it.
        ended = weakref.finalize(dataset, _sources.pop, number)
        ended.atexit = False  # pyrefly: ignore[missing-attribute]
    return dataset


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


# ---- loops, whose parts threads make and iterators take

# A part of a loop: the text of an error; int64 [2], the number of batches with which the loop
# counts, and the first step of the loop after it; `Records.blocks`, and the first block of each
# image there, int64 [steps, batch]; labels, weights and keys as `Batches.parts` yields them.
_PART = (tf.string, tf.int64, tf.uint8, tf.int64, tf.float32, tf.float32, tf.string)
_NO_PART = ((0, 0), *(tf.zeros((0, 0), dtype) for dtype in _PART[2:]))


class _Source:
    """What a dataset reads.

    Attributes:
        batches: what each loop reads.
        blocks: a tensor of the same memory as the blocks of the mapped records.
    """

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        # DLPack cannot say that memory is read-only; TensorFlow does not write to a tensor.
        records = batches.dataset.records
        facts = dict(records.blocks.__array_interface__)
        facts["data"] = facts["data"][0], False
        writable = types.SimpleNamespace(__array_interface__=facts, records=records)
        self.blocks = tf.experimental.dlpack.from_dlpack(np.asarray(writable).__dlpack__())


_numbers = itertools.count()
# Of the datasets that exist, by their numbers.
_sources: dict[int, _Source] = {}


def _parts_of_loop(number: int, next_step: tf.Tensor) -> tf.data.Dataset:
    """Returns a dataset of the parts of a loop, which starts and ends with its iterator."""
    offers = _loops().offers

    def begin() -> tuple[tf.Tensor, tf.Tensor]:
        parts, states = offers.dequeue()
        step = tf.raw_ops.ReadVariableOp(resource=next_step, dtype=tf.int64)
        which = [tf.constant(number, tf.int64), tf.reshape(step, ())]
        sent = tf.raw_ops.QueueEnqueueV2(handle=states, components=which)
        with tf.control_dependencies([sent]):
            return tf.identity(parts), tf.identity(states)

    def take(parts: tf.Tensor, states: tf.Tensor) -> tuple[tf.Tensor, ...]:
        error, *part = tf.raw_ops.QueueDequeueV2(handle=parts, component_types=_PART)
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(error, ""), [error])]):
            return tuple(map(tf.identity, part))

    def end(parts: tf.Tensor, states: tf.Tensor) -> tf.Tensor:
        close = functools.partial(tf.raw_ops.QueueCloseV2, cancel_pending_enqueues=True)
        # In this order: when `states` is closed, the thread ends, and both queues with it.
        with tf.control_dependencies([close(handle=parts)]):
            ended = close(handle=states)
        with tf.control_dependencies([ended]):
            return tf.constant(0)

    # The only dataset that says when its iterator ends.
    queues = [tf.TensorSpec((), tf.resource)] * 2
    functions = {
        "init": tf.function(begin, autograph=False).get_concrete_function(),
        "next": tf.function(take, autograph=False).get_concrete_function(*queues),
        "finalize": tf.function(end, autograph=False).get_concrete_function(*queues),
    }
    any_shape: Any = None
    spec = tuple(tf.TensorSpec(any_shape, dtype) for dtype in _PART[1:])
    variant = tf.raw_ops.GeneratorDataset(
        **{f"{name}_func": function for name, function in functions.items()},
        **{f"{name}_func_other_args": f.captured_inputs for name, f in functions.items()},
        output_types=[part.dtype for part in spec],
        output_shapes=[part.shape for part in spec],
    )
    return tf.data.experimental.from_variant(variant, spec)


class _Loops:
    """Offers a loop to the next iterator that starts, of whatever dataset of this process."""

    def __init__(self) -> None:
        self.offers = tf.queue.FIFOQueue(1, (tf.resource, tf.resource), ((), ()))
        self._loops: list[_Loop] = []
        self._thread = threading.Thread(target=self._offer, name="make_dataset", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def _offer(self) -> None:
        with tf.device("CPU:0"), contextlib.suppress(tf.errors.CancelledError):
            while True:
                loop = _Loop(self._loops)
                self._loops.append(loop)
                loop.start()
                self.offers.enqueue((loop.parts.queue_ref, loop.states.queue_ref))
                del loop

    def _end(self) -> None:
        self.offers.close(cancel_pending_enqueues=True)
        self._thread.join(_EXIT_SECONDS)
        loops = [*self._loops]
        for loop in loops:
            loop.states.close(cancel_pending_enqueues=True)
            loop.parts.close(cancel_pending_enqueues=True)
        for loop in loops:
            loop.join(_EXIT_SECONDS)
        # Python runs when the last reference to the memory of a tensor ends, so it never does.
        for source in _sources.values():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(source.blocks))


@functools.cache
def _loops() -> _Loops:
    return _Loops()


class _Loop(threading.Thread):
    """Puts the parts of a loop, or an error, into a queue until the iterator closes it.

    Attributes:
        states: gives this thread the number of the dataset and the loop's first step, and is closed
            when the iterator ends.
        parts: closed at the end of the loop or of the iterator.
    """

    def __init__(self, loops: list[_Loop]) -> None:
        super().__init__(name="make_dataset", daemon=True)
        self.states = tf.queue.FIFOQueue(1, (tf.int64, tf.int64), ((), ()))
        self.parts = tf.queue.FIFOQueue(1, _PART)
        self._loops = loops
        self._source: _Source | None = None

    def run(self) -> None:
        try:
            with tf.device("CPU:0"):
                self._fill(*map(int, self.states.dequeue()))
                self.parts.close()
                self.states.dequeue()  # waits for the end of the iterator, which uses the memory
        except (tf.errors.CancelledError, tf.errors.OutOfRangeError) as error:  # it is closed
            # TensorFlow's errors refer to themselves. Without their variables the files are
            # unmapped now, and not when Python looks for garbage.
            traceback.clear_frames(error.__traceback__)
        self._loops.remove(self)

    def _fill(self, number: int, first_step: int) -> None:
        try:
            self._source = source = _sources.get(number)
            if source is None:
                raise ReferenceError("the result of make_dataset is gone; keep it while it is read")
            batches, order = source.batches, source.batches.order
            facts = order.num_looks(first_step), order.end_of_loop(first_step)
            for records, rows, *features in batches.parts(first_step):
                is_mapped = records is batches.dataset.records
                blocks = source.blocks if is_mapped else records.blocks
                firsts = rows * records.blocks_per_row
                self.parts.enqueue(("", facts, blocks, firsts, *features))
        except tf.errors.CancelledError:
            raise
        except BaseException as error:
            if isinstance(error, MessageError):
                _raised.append(error)
            while True:
                self.parts.enqueue((f"{type(error).__name__}: {error}", *_NO_PART))

"""Batches as NumPy arrays, for JAX, PyTorch and other programs without TensorFlow.

The order and the bytes are those of `reader.make_dataset`: a batch is one gather out of the mapped
shards. Two threads gather ahead; they copy without holding the GIL.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import numpy as np

from tfrecord_io import schema
from tfrecord_io.ahead import map_ahead
from tfrecord_io.manifest import ManifestError
from tfrecord_io.reading.mapped import MappedDataset
from tfrecord_io.reading.opening import Verify
from tfrecord_io.reading.order import EXAMPLES_AT_ONCE, BatchOrder
from tfrecord_io.reading.records import BufferPool, Records
from tfrecord_io.stores.folder import DataPath

Engine = Literal["auto", "mmap"]

# One thread that copies does not use all of the bandwidth of the memory.
_NUM_THREADS = 2
# Two parts of large images may be announced to the system at once, and must stay in its memory.
_ANNOUNCED_BYTES = 1 << 29


def make_batches(
    directory: str | os.PathLike[str],
    *,
    split: str | Sequence[str],
    batch_size: int,
    seed: int = 0,
    shuffle: bool = True,
    epochs: int | None = 1,
    drop_remainder: bool = False,
    pad_remainder: bool = False,
    engine: Engine = "auto",
    num_replicas: int = 1,
    replica_index: int = 0,
    start_step: int = 0,
    with_keys: bool = False,
    verify: Verify = "size",
    examples: Sequence[int] | np.ndarray | None = None,
    prefetch: int = 2,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_gb: float | None = None,
) -> Batches:
    """Returns the batches of a split as NumPy arrays, in an order that the seed decides.

    They are those that `reader.make_dataset` gives for the same arguments, which it describes, as
    it does the errors; TensorFlow is not imported. Each loop over the result starts from the
    beginning and gives the same batches. Threads make `prefetch` batches ahead; with 0, the thread
    that asks makes them.

    Returns:
        an iterable of the arrays that `make_dataset` describes, but each key is bytes. They are
        copies, the caller's own.

    Raises:
        StoreError: when the batches are read, also if a record is damaged, or the store has
            another version of a shard by then.
    """
    if prefetch < 0:
        raise ValueError(f"prefetch must be at least 0, received {prefetch}")
    if engine not in get_args(Engine):
        raise ValueError(f"engine must be auto or mmap, received {engine!r}")
    path = DataPath.of(directory, cache_dir, cache_gb)
    dataset = MappedDataset(path, split, verify=verify, must_map=engine == "mmap")
    chosen = np.asarray(range(len(dataset)) if examples is None else examples, np.int64)
    last = len(dataset) - 1
    if chosen.ndim != 1 or not chosen.size or chosen.min() < 0 or chosen.max() > last:
        raise ValueError(f"examples must be a list of places in 0..{last}, received {chosen}")
    order = BatchOrder(
        num_examples=len(chosen),
        batch_size=batch_size,
        seed=seed,
        shuffle=shuffle,
        epochs=epochs,
        drop_remainder=drop_remainder,
        pad_remainder=pad_remainder,
        num_replicas=num_replicas,
        replica_index=replica_index,
    )
    order.check_start(start_step)
    if len(chosen) < batch_size and (drop_remainder or epochs is None):
        raise ManifestError(
            f"{dataset.name} has {len(chosen)} examples, fewer than a batch of {batch_size}; use a "
            "smaller batch_size, or finite epochs without drop_remainder"
        )
    return Batches(dataset, order, chosen, start_step, with_keys, prefetch)


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
    """What `make_batches` returns: an iterable that can be gone through again and again.

    Attributes:
        order: which examples each batch holds: places in `examples`.
        examples: int64, places in the split.
    """

    dataset: MappedDataset
    order: BatchOrder
    examples: np.ndarray
    start_step: int
    with_keys: bool
    prefetch: int

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        pool = BufferPool(self.order.replica_batch_size * self.dataset.layout.image_length)

        def gather(step: tuple[Records, np.ndarray, np.ndarray]) -> tuple[np.ndarray, ...]:
            records, rows, weights = step
            batch: tuple[np.ndarray, ...] = records.gather(rows, pool.take())
            if self.order.pad_remainder:
                batch += (weights,)
            if self.with_keys:
                keys = records.feature(schema.KEY, rows)
                batch += (keys.view(f"S{schema.KEY_LENGTH}").ravel(),)
            return batch

        steps = (
            (records, *step)
            for records, rows, weights in self.parts()
            for step in zip(rows, weights, strict=True)
        )
        return map_ahead(gather, steps, self.prefetch, num_threads=_NUM_THREADS)

    def parts(self) -> Iterator[tuple[Records, np.ndarray, np.ndarray]]:
        """Yields batches that are not gathered yet, many at once when all records are mapped.

        Their records; their rows there, int64 [steps, batch]; and float32 weights, as many.
        """
        dataset, order, examples, step = self.dataset, self.order, self.examples, self.start_step
        batches = (examples[places] for places in order.batches(step))
        for records, rows in dataset.until_mapped(batches, examples):
            yield records, rows[np.newaxis], order.batch(step)[1][np.newaxis]
            step += 1
        waiting: list[tuple[Records, np.ndarray, np.ndarray]] = []
        most = min(EXAMPLES_AT_ONCE, _ANNOUNCED_BYTES // dataset.layout.stride)
        for places, weights in order.parts(step, most):
            rows = dataset.rows(examples[places])
            dataset.cold.announce(rows.ravel())
            # So that a part is announced before the one ahead of it is read.
            yield from waiting
            waiting = [(dataset.records, rows, weights)]
        yield from waiting

    def __len__(self) -> int:
        """Returns the number of batches; raises TypeError if they are endless."""
        return len(self.order) - self.start_step

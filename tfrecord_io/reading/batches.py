"""Batches as NumPy arrays, for JAX, PyTorch and other programs without TensorFlow.

The order and the bytes are those of `reader.make_dataset`: a batch is one gather out of the mapped
shards. Two threads gather ahead; they copy without holding the GIL.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from tfrecord_io import schema
from tfrecord_io.ahead import map_ahead
from tfrecord_io.manifest import ManifestError
from tfrecord_io.reading.buffers import BufferPool
from tfrecord_io.reading.fetch import Fetched
from tfrecord_io.reading.mapped import MappedDataset
from tfrecord_io.reading.opening import Verify
from tfrecord_io.reading.order import BatchOrder
from tfrecord_io.stores.folder import DataPath

Engine = Literal["auto", "mmap"]

# One thread that copies does not use all of the bandwidth of the memory.
_NUM_THREADS = 2


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

    They are those that `reader.make_dataset` gives for the same arguments, which it describes;
    TensorFlow is not imported. Each loop over the result starts from the beginning and gives the
    same batches; `iter(result)` is an ordinary iterator. Threads make `prefetch` batches ahead;
    with 0, the thread that asks makes them.

    Returns:
        an iterable of (image, label), then weight with `pad_remainder`, then key with
        `with_keys`: image [batch, height, width, channels] of the dataset's type (uint8 by
        default), label float32 [batch, num_classes] one-hot (or 0 and 1 for each of several
        labels, or [batch, 1] of numbers), weight float32 [batch], key bytes [batch]. The arrays
        are copies, the caller's own. `batch` is batch_size / num_replicas; in a last batch that is
        neither dropped nor padded it is less, and may be 0 for a replica.

    Raises:
        ManifestError: if the dataset is unfinished, of a newer format or has no such split; if
            the split is smaller than a batch where all batches must be full; if a shard is
            missing or not as the manifest says.
        ValueError: if an argument is out of range, or the arguments do not fit together.
        OSError: if `mmap` was asked for and the operating system cannot map the files.
        UserError: if the URL or the folder of the cache cannot be used.
        StoreError: if the store does not answer, refuses, or has another version of a shard; when
            the batches are read, also if a record is damaged.
    """
    if prefetch < 0:
        raise ValueError(f"prefetch must be at least 0, received {prefetch}")
    if engine == "stream":
        raise ValueError(
            "engine='stream' is not needed any more: every dataset, local or remote, is read in "
            "the order of engine='mmap'; leave it out"
        )
    if engine not in ("auto", "mmap"):
        raise ValueError(f"engine must be auto or mmap, received {engine!r}")
    path = DataPath.of(directory, cache_dir, cache_gb)
    dataset = MappedDataset(path, split, verify=verify, must_map=engine == "mmap")
    chosen = np.asarray(range(len(dataset)) if examples is None else examples, np.int64)
    if chosen.ndim != 1 or not chosen.size:
        raise ValueError(f"examples must be a list of places, received shape {chosen.shape}")
    if chosen.min() < 0 or chosen.max() >= len(dataset):
        raise ValueError(
            f"examples must be in 0..{len(dataset) - 1}, received {chosen.min()}..{chosen.max()}"
        )
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
    if order.num_examples < order.batch_size and (order.drop_remainder or order.epochs is None):
        raise ManifestError(
            f"{dataset.name} has {order.num_examples} examples, fewer than a batch of "
            f"{order.batch_size}; use a smaller batch_size, or finite epochs without drop_remainder"
        )
    return Batches(
        dataset=dataset,
        order=order,
        examples=chosen,
        start_step=start_step,
        with_keys=with_keys,
        prefetch=prefetch,
    )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
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
        steps = enumerate(self.fetched(), self.start_step)
        gather = functools.partial(self._gather, self.buffer_pool())
        return map_ahead(gather, steps, self.prefetch, num_threads=_NUM_THREADS)

    def fetched(self) -> Iterator[Fetched]:
        """Yields each batch: what holds its records, and their rows there."""
        return self.dataset.ahead(self._places(), self.examples)

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yields batches that are not gathered yet, many at once when all records are mapped.

        Yields:
            (blocks, rows, weights): `Records.blocks`; the rows of the batches, int64 [steps,
            batch]; and float32 [steps, batch].
        """
        dataset, step = self.dataset, self.start_step
        for records, rows in dataset.until_mapped(self._places(), self.examples):
            yield records.blocks, rows[np.newaxis], self.order.weights(step)[np.newaxis]
            step += 1
        for places, weights in self.order.parts(step):
            rows = dataset.rows(self.examples[places])
            dataset.cold.announce(rows.ravel())
            yield dataset.records.blocks, rows, weights

    def _places(self) -> Iterator[np.ndarray]:
        return map(self.examples.__getitem__, self.order.batches(self.start_step))

    def buffer_pool(self) -> BufferPool:
        """Returns memory for the images of a batch, for `Records.gather`."""
        return BufferPool(self.order.replica_batch_size * self.dataset.layout.image_length)

    def __len__(self) -> int:
        """Returns the number of batches; raises TypeError if they are endless."""
        return len(self.order) - self.start_step

    def _gather(
        self, pool: BufferPool, step_and_fetched: tuple[int, Fetched]
    ) -> tuple[np.ndarray, ...]:
        step, (records, rows) = step_and_fetched
        batch: tuple[np.ndarray, ...] = records.gather(rows, pool.take())
        if self.order.pad_remainder:
            batch += (self.order.weights(step),)
        if self.with_keys:
            keys = records.feature(schema.KEY, rows)
            batch += (keys.view(f"S{schema.KEY_LENGTH}").ravel(),)
        return batch

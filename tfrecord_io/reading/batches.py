"""Batches as NumPy arrays, for JAX, PyTorch and other programs without TensorFlow.

The order and the bytes are those of `reader.make_dataset` with `engine="mmap"`: a batch is one
gather out of the mapped shards. Two threads gather ahead; they copy without holding the GIL.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence

import numpy as np

from tfrecord_io.ahead import map_ahead
from tfrecord_io.reading.buffers import BufferPool
from tfrecord_io.reading.mapped import MappedDataset
from tfrecord_io.reading.opening import Verify, is_remote, open_order
from tfrecord_io.reading.order import BatchOrder

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
    num_replicas: int = 1,
    replica_index: int = 0,
    start_step: int = 0,
    with_keys: bool = False,
    verify: Verify = "size",
    examples: Sequence[int] | np.ndarray | None = None,
    prefetch: int = 2,
) -> Batches:
    """Returns the batches of a split as NumPy arrays, in an order that the seed decides.

    They are those that `reader.make_dataset` gives for the same arguments, which it describes;
    TensorFlow is not imported, and the folder must be local. Each loop over the result starts from
    the beginning and gives the same batches; `iter(result)` is an ordinary iterator. Threads make
    `prefetch` batches ahead; with 0, the thread that asks makes them.

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
        OSError: if the operating system cannot map the files.
    """
    if prefetch < 0:
        raise ValueError(f"prefetch must be at least 0, received {prefetch}")
    if is_remote(directory):
        raise ValueError(
            f"make_batches reads a local folder, received {os.fspath(directory)}; copy the "
            "dataset here, or read it with make_dataset(engine='stream')"
        )
    _, order, chosen = open_order(
        directory,
        split,
        verify=verify,
        examples=examples,
        start_step=start_step,
        batch_size=batch_size,
        seed=seed,
        shuffle=shuffle,
        epochs=epochs,
        drop_remainder=drop_remainder,
        pad_remainder=pad_remainder,
        num_replicas=num_replicas,
        replica_index=replica_index,
    )
    return Batches(
        dataset=MappedDataset(directory, split),
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
        examples: int64, places in the split; None for all, in their order.
    """

    dataset: MappedDataset
    order: BatchOrder
    examples: np.ndarray | None
    start_step: int
    with_keys: bool
    prefetch: int

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        steps = enumerate(self.order.batches(self.start_step), self.start_step)
        gather = functools.partial(self._gather, self.buffer_pool())
        return map_ahead(gather, steps, self.prefetch, num_threads=_NUM_THREADS)

    def buffer_pool(self) -> BufferPool:
        """Returns memory for the images of a batch, for `MappedDataset.gather`."""
        layout = self.dataset.mapped.manifest.layout
        return BufferPool(self.order.replica_batch_size * layout.image_length)

    def __len__(self) -> int:
        """Returns the number of batches; raises TypeError if they are endless."""
        return len(self.order) - self.start_step

    def _gather(
        self, pool: BufferPool, step_and_places: tuple[int, np.ndarray]
    ) -> tuple[np.ndarray, ...]:
        step, places = step_and_places
        examples = places if self.examples is None else self.examples[places]
        batch: tuple[np.ndarray, ...] = self.dataset.gather(examples, pool.take())
        if self.order.pad_remainder:
            batch += (self.order.weights(step, step + 1)[0],)
        if self.with_keys:
            batch += (np.array(self.dataset.keys(examples), "S"),)
        return batch

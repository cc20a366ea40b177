"""Batches as NumPy arrays, for JAX, PyTorch and other programs without TensorFlow.

A batch is one gather out of the mapped shards. Two threads gather ahead, without holding the GIL.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np

from tfrecord_io.format.manifest import ManifestError
from tfrecord_io.reading.mapped import MappedDataset, Verify, as_places
from tfrecord_io.reading.order import EXAMPLES_AT_ONCE, BatchOrder, check_type
from tfrecord_io.reading.records import BufferPool, Records
from tfrecord_io.stores.ahead import map_ahead
from tfrecord_io.stores.folder import Folder

Engine = Literal["auto", "mmap"]
#: What `Batches.parts` yields.
Part = tuple[Records, np.ndarray, np.ndarray, np.ndarray, np.ndarray]

# One thread that copies does not use all of the bandwidth of the memory.
_NUM_THREADS = 2
# Two parts of large images may be announced to the system at once, and must stay in its memory.
_ANNOUNCED_BYTES = 1 << 29
# Records that are compared with their checksums before the first batch of a part is given.
_CHECKED_BYTES = 1 << 24


def make_batches(
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
) -> Batches:
    """Returns the batches of a split as NumPy arrays, in an order that the seed decides.

    Arguments, order and errors are those of `make_dataset`, but TensorFlow is not imported, and
    `prefetch` is the number of batches that threads make ahead; with 0, the thread that asks makes
    them.

    Returns:
        an iterable; each loop over it is the next epoch. It yields arrays (image, label), then
        weight with `pad_remainder`, then key with `with_keys`: image uint8 [batch, height, width,
        channels], label float32 [batch, num_classes] one-hot (or 0 and 1 for each of several
        labels), weight float32 [batch], key bytes [batch]. They are copies, the caller's own.

    Raises:
        ManifestError, TypeError, ValueError, OSError, UserError, StoreError: as `make_dataset`;
            StoreError also while batches are read, if a record is damaged or a shard was replaced.
    """
    check_type("prefetch", prefetch, int)
    check_type("with_keys", with_keys, bool)
    if prefetch < 0:
        raise ValueError(f"prefetch must be at least 0, received {prefetch}")
    if engine not in get_args(Engine):
        raise ValueError(f"engine must be auto or mmap, received {engine!r}")
    folder = Folder(directory, cache_dir, cache_gb)
    dataset = MappedDataset(folder, split, verify=verify, must_map=engine == "mmap")
    last = len(dataset) - 1
    chosen = as_places(range(last + 1) if examples is None else examples, last + 1)
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
        num_replicas=_only_reader() if num_replicas is None else num_replicas,
        replica_index=replica_index,
        start_step=start_step,
    )
    if len(chosen) < batch_size and (drop_remainder or epochs is None):
        raise ManifestError(
            f"{dataset.name} has {len(chosen)} examples, fewer than a batch of {batch_size}; use a "
            "smaller batch_size, or finite epochs without drop_remainder"
        )
    batches = Batches(dataset, order, chosen, with_keys, prefetch)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if (needed := batches.most_examples * dataset.layout.stride) > memory:
        raise ValueError(
            f"a batch of {batches.most_examples:,} examples takes {needed / 1e9:.1f} GB, but this "
            f"machine has {memory / 1e9:.1f} GB of memory; use a smaller batch_size"
        )
    return batches


def _only_reader() -> int:
    """Returns 1; raises ValueError if TF_CONFIG names several workers."""
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    cluster, task = config.get("cluster", {}), config.get("task", {})
    num_workers = sum(len(cluster.get(job, ())) for job in ("chief", "worker"))
    if num_workers > 1 and task.get("type") != "evaluator":  # which reads alone
        raise ValueError(
            f"TF_CONFIG names {num_workers} workers, which would all read the same examples; give "
            f"num_replicas={num_workers} and replica_index=0..{num_workers - 1} here (or 1 and 0 "
            "to read all on each), and see docs/reader.md for fit"
        )
    return 1


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
    """What `make_batches` returns: an iterable; each loop over it is the next epoch.

    `order` holds places in `examples`, which are places in the split, int64.
    """

    dataset: MappedDataset
    order: BatchOrder
    examples: np.ndarray
    with_keys: bool
    prefetch: int

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        first = self.order.next_loop()
        pool = BufferPool(self.most_examples * self.dataset.layout.image_length)

        def gather(step: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
            records, rows, labels, weights, keys = step
            others = (weights,) * self.order.pad_remainder + (keys,) * self.with_keys
            return records.images(rows, pool.take()), labels, *others

        steps = (
            (records, *step)
            for records, *arrays in self.parts(first)
            for step in zip(*arrays, strict=True)
        )
        batches = map_ahead(gather, steps, self.prefetch, num_threads=_NUM_THREADS)
        yield from self.order.counted(first, batches)

    @property
    def most_examples(self) -> int:
        """Examples of the largest batch of this replica."""
        most = self.order.replica_batch_size
        return most if self.order.pad_remainder else min(most, self.order.num_positions)

    def parts(self, first_step: int) -> Iterator[Part]:
        """Yields the batches of a loop before they are gathered, many at once if all are mapped.

        Their records; their rows there, int64 [steps, batch]; their labels, float32 [steps, batch,
        num_classes]; weights, float32 [steps, batch]; and keys, bytes [steps, batch or 0].
        """
        dataset, order, examples, step = self.dataset, self.order, self.examples, first_step
        batches = (examples[places] for part, _ in order.parts(step) for places in part)
        for records, rows in dataset.until_mapped(batches, examples):
            yield self._part(records, rows[np.newaxis], order.weights(step)[np.newaxis])
            step += 1
        if order.num_steps and step == order.end_of_loop(first_step):
            return
        ahead: Iterator[Part] = iter(())
        most = min(EXAMPLES_AT_ONCE, _ANNOUNCED_BYTES // dataset.layout.stride)
        for places, weights in order.parts(step, most):
            rows = dataset.rows(examples[places])
            dataset.cold.announce(rows.ravel())
            yield from ahead  # while the disk reads what was just announced
            ahead = self._checked(rows, weights)
        yield from ahead

    def _checked(self, rows: np.ndarray, weights: np.ndarray) -> Iterator[Part]:
        """Yields a part in growing pieces, and compares the checksums of each piece before."""
        dataset, num_steps = self.dataset, len(rows)
        if not dataset.is_checked(rows):
            step_bytes = self.order.replica_batch_size * dataset.layout.stride
            num_steps = max(1, _CHECKED_BYTES // step_bytes)
        while len(rows):
            dataset.check(rows[:num_steps])
            yield self._part(dataset.records, rows[:num_steps], weights[:num_steps])
            rows, weights, num_steps = rows[num_steps:], weights[num_steps:], 2 * num_steps

    def _part(self, records: Records, rows: np.ndarray, weights: np.ndarray) -> Part:
        keys = records.keys(rows) if self.with_keys else np.zeros((len(rows), 0), np.bytes_)
        return records, rows, records.labels(rows), weights, keys

    def __len__(self) -> int:
        """Returns the number of batches of the first loop; raises TypeError if it is endless."""
        return len(self.order) - self.order.start_step % len(self.order)

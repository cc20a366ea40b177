"""The order of a stream: shuffled, yet made of long runs of neighbouring records.

On a store each jump to a record costs a request, so the global order of `BatchOrder` would be too
slow. This order reads the shards in another sequence each epoch and mixes within windows. It too is
arithmetic, not the state of a buffer: it can begin at any step, and replicas that share batches
read disjoint parts of the files.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import numpy as np

from tfrecord_io.reading.order import BatchOrder, draw, permute

#: Records of a run, so a window has this many batches.
RUN_LENGTH = 128

# Keep these draws apart from the permutations of epochs, which count from 0.
_SHARD_KEYS = 1 << 61
_ROTATION_KEYS = 1 << 62


# An array before it enters a graph, a tensor inside of it.
Array = TypeVar("Array")


class Segments(NamedTuple, Generic[Array]):
    """Neighbouring records that are read one after the other.

    Attributes:
        shards: int64 [segments], index of the shard.
        first_records: int64 [segments], place in the shard.
        num_records: int64 [segments], each at least 1.
        run_splits: int64 [runs + 1]: run i is segments run_splits[i]..run_splits[i + 1] - 1. The
            records come in turn from each run.
    """

    shards: Array
    first_records: Array
    num_records: Array
    run_splits: Array


class StreamOrder:
    """Which records a replica reads for its share of the batches, and in which order.

    An epoch is the sequence of its shards, in an order drawn for the epoch. Windows of the
    sequence, `RUN_LENGTH` batches long, are cut into `batch_size` runs of neighbours, and a
    batch takes one record of each: the next, beginning at a place that is drawn for the run. So
    any two records of a window that are not in one run can meet, a replica reads only the runs
    of its places in the batch, and any number of replicas yields the same global batches.
    """

    def __init__(self, order: BatchOrder, shard_sizes: np.ndarray) -> None:
        """Takes what the order depends on, with the number of examples of each shard."""
        self._order = order
        self._sizes = np.asarray(shard_sizes, np.int64)
        self._window = RUN_LENGTH * order.batch_size
        self._windows_per_epoch = -(-order.num_examples // self._window)

    def window_of(self, position: int) -> int:
        """Returns the window that a place of the sequence of batches lies in, counted from 0."""
        epoch, place = divmod(position, self._order.num_examples)
        return epoch * self._windows_per_epoch + place // self._window

    def window_segments(self, window: int, first_step: int, last_step: int) -> Segments[np.ndarray]:
        """Returns what this replica reads of a window, for the batches first_step..last_step-1."""
        order = self._order
        epoch, index = divmod(window, self._windows_per_epoch)
        low = epoch * order.num_examples + index * self._window
        high = min(low + self._window, (epoch + 1) * order.num_examples)
        low = max(low, first_step * order.batch_size)
        high = min(high, last_step * order.batch_size)
        positions = np.arange(low, high)
        place = positions % order.batch_size - order.first_column
        mine = positions[(place >= 0) & (place < order.replica_batch_size)]
        if not order.shuffle:
            return self._segments(mine, np.arange(0, len(mine), RUN_LENGTH))
        # Turn the order of batches into that of runs: every replica_batch_size-th position is of
        # the same run, and the first runs may be longer by one.
        num_runs = min(order.replica_batch_size, len(mine))
        run = np.arange(len(mine)) % max(num_runs, 1)
        by_run = np.argsort(run, kind="stable")
        run_starts = np.searchsorted(run[by_run], np.arange(num_runs))
        return self._segments(mine[by_run], run_starts)

    def remainder_segments(self, step: int) -> Segments[np.ndarray]:
        """Returns what this replica reads for a last batch that is not full: record by record."""
        (positions,) = self._order.positions(step, step + 1)
        return self._segments(positions, np.arange(len(positions)))

    def _mix(self, position: np.ndarray) -> np.ndarray:
        """Returns the place in the sequence of records of each position."""
        order = self._order
        if not order.shuffle:
            return position
        epoch, place = np.divmod(position, order.num_examples)
        window = place // self._window
        low = window * self._window
        length = np.minimum(order.num_examples - low, self._window)
        rank, run = np.divmod(place - low, order.batch_size)
        # Runs divide the window evenly; the first ones are longer by one if it must be.
        short, num_long = np.divmod(length, order.batch_size)
        run_start = low + run * short + np.minimum(run, num_long)
        run_length = short + (run < num_long)
        key = (epoch * self._windows_per_epoch + window) * order.batch_size + run
        rotation = draw(run_length, seed=order.seed, key=_ROTATION_KEYS + key)
        return epoch * order.num_examples + run_start + (rank + rotation) % run_length

    def _locate(self, sequence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the shard, and the place in the shard, of each place of the sequence."""
        epochs, places = np.divmod(sequence, self._order.num_examples)
        shards = np.empty_like(places)
        records = np.empty_like(places)
        for epoch in np.unique(epochs):
            shard_order = np.arange(len(self._sizes))
            if self._order.shuffle:
                shard_order = permute(
                    shard_order,
                    len(shard_order),
                    seed=self._order.seed,
                    epoch=_SHARD_KEYS + int(epoch),
                )
            ends = np.cumsum(self._sizes[shard_order])
            here = epochs == epoch
            slot = np.searchsorted(ends, places[here], side="right")
            shards[here] = shard_order[slot]
            records[here] = places[here] - (ends - self._sizes[shard_order])[slot]
        return shards, records

    def _segments(self, positions: np.ndarray, run_starts: np.ndarray) -> Segments[np.ndarray]:
        """Joins neighbouring records of each run."""
        shards, records = self._locate(self._mix(positions))
        is_first = np.zeros(len(positions), bool)
        is_first[run_starts] = True
        is_first[1:] |= (np.diff(shards) != 0) | (np.diff(records) != 1)
        (firsts,) = np.nonzero(is_first)
        return Segments(
            shards=shards[firsts],
            first_records=records[firsts],
            num_records=np.diff(np.append(firsts, len(positions))),
            run_splits=np.append(np.searchsorted(firsts, run_starts), len(firsts)),
        )

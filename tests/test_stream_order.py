"""A stream's order has every record once an epoch, in long runs, whoever shares the batches."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tfrecord_io.reading.order import BatchOrder
from tfrecord_io.reading.stream_order import RUN_LENGTH, Segments, StreamOrder

seeds = st.integers(0, 2**63 - 1)
shard_sizes = st.lists(st.integers(0, 400), min_size=1, max_size=6).filter(any)


def _records(segments: Segments, shard_sizes: list[int]) -> list[int]:
    """Places in the split of what segments read, taken in turn from each run."""
    starts = np.cumsum(shard_sizes) - shard_sizes
    runs = []
    for first, last in zip(segments.run_splits, segments.run_splits[1:], strict=False):
        runs.append(
            [
                starts[segments.shards[i]] + segments.first_records[i] + record
                for i in range(first, last)
                for record in range(segments.num_records[i])
            ]
        )
    turns = range(max(map(len, runs), default=0))
    return [int(run[turn]) for turn in turns for run in runs if turn < len(run)]


def _read(order: BatchOrder, sizes: list[int], first_step: int, last_step: int) -> list[int]:
    """Places in the split of what a replica reads for some batches, in order."""
    stream = StreamOrder(order, np.array(sizes))
    first = stream.window_of(first_step * order.batch_size)
    last = stream.window_of(last_step * order.batch_size - 1)
    return [
        record
        for window in range(first, last + 1)
        for record in _records(stream.window_segments(window, first_step, last_step), sizes)
    ]


@given(sizes=shard_sizes, batch_size=st.integers(1, 5), seed=seeds, epoch=st.integers(0, 1000))
def test_each_epoch_has_every_record_exactly_once(
    sizes: list[int], batch_size: int, seed: int, epoch: int
) -> None:
    total = sum(sizes)
    order = BatchOrder(num_examples=total, batch_size=batch_size, seed=seed, epochs=None)
    # A whole number of epochs fills as many batches as an epoch has examples.
    found = _read(order, sizes, epoch * total, (epoch + 1) * total)
    for first in range(0, len(found), total):
        assert sorted(found[first : first + total]) == list(range(total))


@given(
    sizes=shard_sizes,
    shares=st.integers(1, 3),
    replicas=st.integers(1, 3),
    start=st.integers(0, 5),
    seed=seeds,
)
def test_replicas_read_their_columns_of_the_same_batches_from_any_step_on(
    sizes: list[int], shares: int, replicas: int, start: int, seed: int
) -> None:
    order = BatchOrder(num_examples=sum(sizes), batch_size=shares * replicas, seed=seed, epochs=2)
    full = order.num_full_steps
    if start >= full:
        return
    batches = np.array(_read(order, sizes, 0, full)).reshape(full, order.batch_size)
    for replica_index in range(replicas):
        share = dataclasses.replace(order, num_replicas=replicas, replica_index=replica_index)
        columns = share.first_column + np.arange(share.replica_batch_size)
        assert _read(share, sizes, start, full) == batches[start:, columns].ravel().tolist()


def test_the_order_of_a_seed_never_changes() -> None:
    order = BatchOrder(num_examples=12, batch_size=2, seed=7, epochs=2)
    first = [9, 11, 10, 0, 5, 1, 6, 2, 7, 3, 8, 4]
    second = [2, 11, 3, 5, 4, 6, 9, 7, 0, 8, 1, 10]
    assert _read(order, [5, 4, 3], 0, 12) == first + second


def test_a_window_is_read_in_long_runs() -> None:
    order = BatchOrder(num_examples=8 * RUN_LENGTH, batch_size=8, seed=1)
    segments = StreamOrder(order, np.array([8 * RUN_LENGTH])).window_segments(0, 0, RUN_LENGTH)
    # Each run begins anywhere, so it is cut in two at most.
    assert len(segments.shards) <= 2 * 8
    assert segments.num_records.sum() == 8 * RUN_LENGTH


def test_records_of_different_shards_meet_in_a_batch() -> None:
    order = BatchOrder(num_examples=512, batch_size=4, seed=1)
    examples = np.array(_read(order, [128] * 4, 0, 128)).reshape(128, 4)
    assert len({tuple(sorted(set(row // 128))) for row in examples}) == 1
    assert set(examples[0] // 128) == {0, 1, 2, 3}

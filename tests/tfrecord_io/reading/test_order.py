"""The order is a permutation, new in each epoch, and does not depend on who reads it."""

import dataclasses
import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tfrecord_io.reading.order import BatchOrder

sizes = st.integers(1, 300)
seeds = st.integers(0, 2**63 - 1)


@given(num_examples=sizes, seed=seeds, epoch=st.integers(0, 10**9))
def test_each_epoch_has_every_example_exactly_once(num_examples, seed, epoch):
    order = BatchOrder(num_examples=num_examples, batch_size=1, seed=seed, epochs=None)
    positions = epoch * num_examples + np.arange(num_examples)
    assert sorted(order.examples_at(positions)) == list(range(num_examples))


def test_the_order_of_a_seed_never_changes():
    order = BatchOrder(num_examples=10, batch_size=5, seed=1)
    expected = [[9, 1, 7, 3, 8], [6, 0, 5, 2, 4]]
    assert [batch.tolist() for batch in order] == expected
    later = [6, 4, 0, 9, 1, 5, 8, 2, 7, 3, 7, 0, 4, 9, 3, 5, 2, 8, 6, 1]  # the next two epochs
    assert order.examples_at(np.arange(10, 30)).tolist() == later
    large = BatchOrder(num_examples=5000, batch_size=5, seed=1)
    assert next(iter(large)).tolist() == [3597, 3005, 4665, 2419, 754]
    other = BatchOrder(num_examples=10, batch_size=5, seed=2)
    assert [batch.tolist() for batch in other] != expected


@given(
    num_examples=st.integers(1, 60),
    shares=st.integers(1, 5),
    replicas=st.integers(1, 4),
    epochs=st.integers(1, 3),
    seed=seeds,
)
def test_replicas_together_read_the_global_batches(num_examples, shares, replicas, epochs, seed):
    size = shares * replicas
    order = BatchOrder(num_examples=num_examples, batch_size=size, seed=seed, epochs=epochs)
    whole = [batch.tolist() for batch in order]
    parts = [
        list(dataclasses.replace(order, num_replicas=replicas, replica_index=index))
        for index in range(replicas)
    ]
    together = [np.concatenate(shares).tolist() for shares in zip(*parts, strict=True)]
    assert together == whole


@given(
    num_examples=st.integers(3, 60), start=st.integers(0, 30), seed=seeds, most=st.integers(1, 20)
)
def test_a_later_start_gives_the_rest_of_the_same_batches_however_many_come_at_once(
    num_examples, start, seed, most
):
    order = BatchOrder(num_examples=num_examples, batch_size=3, seed=seed)
    start = min(start, len(order))
    every = [batch.tolist() for batch in order]
    every += [batch.tolist() for batch in order]  # the next epoch
    parts = list(order.parts(start, most))
    rest = [batch.tolist() for examples, _ in parts for batch in examples]
    assert rest == every[start : order.end_of_loop(start)]
    assert all(examples.size <= max(most, 3) for examples, _ in parts)
    (examples, _), *_ = order.parts()
    assert examples[0].tolist() == every[0]


@given(num_examples=st.integers(1, 60), loops=st.integers(1, 3), seed=seeds)
def test_each_loop_goes_on_with_the_next_epochs(num_examples, loops, seed):
    order = BatchOrder(num_examples=num_examples, batch_size=7, seed=seed, epochs=2)
    found = [np.concatenate(list(order)).tolist() for _ in range(loops)]
    epochs = np.split(order.examples_at(np.arange(2 * loops * num_examples)), loops)
    assert found == [epoch.tolist() for epoch in epochs]
    later = dataclasses.replace(order, start_step=(loops - 1) * len(order))
    assert np.concatenate(list(later)).tolist() == found[-1]


def test_a_look_at_the_first_batches_does_not_count_as_a_loop():
    order = BatchOrder(num_examples=100, batch_size=5, seed=1)
    for num_taken, counts in ((1, False), (15, False), (16, True)):
        before = next(iter(order)).tolist()
        assert len(list(itertools.islice(order, num_taken))) == num_taken
        assert (next(iter(order)).tolist() != before) == counts


def test_a_remainder_is_dropped_or_padded_and_an_endless_loop_counts_as_an_epoch():
    order = BatchOrder(num_examples=11, batch_size=4, drop_remainder=True)
    assert [len(examples) for examples in order] == [4, 4]
    assert BatchOrder(num_examples=11, batch_size=4, epochs=None).end_of_loop(5) == 8
    padded = BatchOrder(num_examples=11, batch_size=4, pad_remainder=True)
    assert [padded.weights(step).tolist() for step in range(3)] == [[1] * 4, [1] * 4, [1, 1, 1, 0]]

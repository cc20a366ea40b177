"""NumPy batches are made ahead by threads, without TensorFlow."""

import threading
import time

import numpy as np
import pytest
from builds import wait_until
from dataset_factory import assert_same

import tfrecord_io
from tfrecord_io import ManifestError
from tfrecord_io.stores.ahead import map_ahead


def _batches(small_dataset, **options):
    return tfrecord_io.make_batches(
        small_dataset, **{"split": "train", "batch_size": 6, "seed": 3, **options}
    )


@pytest.fixture
def started():
    """Returns the names of the threads that the test has started and that have not ended.

    The error of another test may still hold an iterator, and its threads.
    """
    before = set(threading.enumerate())

    def find():
        names = [thread.name for thread in set(threading.enumerate()) - before]
        return [name for name in names if name.startswith("map_ahead")]

    return find


def test_batches_belong_to_the_caller(small_dataset):
    batches = _batches(small_dataset, shuffle=False)
    first = []
    for images, _ in batches:
        first.append(images.tolist())
        images[:] = 0
    assert [images.tolist() for images, _ in batches] == first


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"prefetch": -1}, ValueError, "prefetch"),
        ({"engine": "stream"}, ValueError, "engine must be auto or mmap, received 'stream'"),
        ({"examples": []}, ValueError, r"a list of places in 0\.\.22, received \[\]"),
        ({"examples": [[1, 2]]}, ValueError, r"received \[\[1 2\]\]"),
        ({"examples": [0, 23]}, ValueError, r"in 0\.\.22, received \[ 0 23\]"),
        ({"examples": [-1, 2]}, ValueError, r"received \[-1  2\]"),
        ({"examples": [1.7]}, TypeError, r"whole numbers, or a mask .*received .*1\.7"),
        ({"examples": [True, False]}, ValueError, r"a mask of 23 examples, received .* \(2,\)"),
        ({"split": ["train", "train"]}, ManifestError, r"several different ones, received \["),
        ({"start_step": -1}, ValueError, "start_step must be at least 0, received -1"),
        ({"start_step": 1.5}, TypeError, "start_step must be a whole number, received 1.5"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, received 0"),
        ({"epochs": 0}, ValueError, "epochs must be at least 1, received 0"),
        ({"num_replicas": 4}, ValueError, "received 6, which 4 replicas cannot share equally"),
        ({"replica_index": 1}, ValueError, r"replica_index must be in 0\.\.0, received 1"),
        ({"drop_remainder": True, "pad_remainder": True}, ValueError, "exclude each other"),
        ({"shuffle": "no"}, TypeError, "shuffle must be True or False, received 'no'"),
        ({"seed": True}, TypeError, "seed must be a whole number, received True"),
        (
            {"batch_size": 10**9, "pad_remainder": True},
            ValueError,
            r"a batch of 1,000,000,000 examples takes .* GB of memory; use a smaller batch_size",
        ),
        ({"split": ("train", "other")}, ManifestError, r"/.*: no split 'other' in this dataset"),
        ({"batch_size": 24, "epochs": None}, ManifestError, "fewer than a batch of 24"),
        ({"batch_size": 24, "drop_remainder": True}, ManifestError, "smaller batch_size"),
    ],
)
def test_what_cannot_be_read_is_refused_before_the_first_batch(
    small_dataset, options, error, message
):
    with pytest.raises(error, match=message):
        _batches(small_dataset, **options)


def test_a_mask_chooses_the_examples_where_it_is_true(small_dataset):
    mask = np.arange(23) % 5 == 2
    chosen = [images for images, *_ in _batches(small_dataset, examples=[2, 7, 12, 17, 22])]
    assert_same([images for images, *_ in _batches(small_dataset, examples=mask)], chosen)


def test_batches_may_be_endless_or_one_that_holds_the_whole_split(small_dataset):
    endless = _batches(small_dataset, epochs=None)
    with pytest.raises(TypeError, match="endless"):
        len(endless)
    iterator = iter(endless)
    assert sum(len(next(iterator)[0]) for _ in range(50)) == 300
    assert [len(images) for images, *_ in _batches(small_dataset, batch_size=10**9)] == [23]


def test_threads_compute_as_many_results_ahead_as_they_are_told():
    called = []

    def double(item):
        called.append((item, threading.current_thread().name))
        return 2 * item

    iterator = map_ahead(double, range(100), 3, num_threads=1)
    assert next(iterator) == 0
    wait_until(lambda: len(called) == 4)
    time.sleep(0.05)
    assert [item for item, _ in called] == [0, 1, 2, 3]
    assert threading.current_thread().name not in {name for _, name in called}
    assert list(iterator) == list(range(2, 200, 2))


def test_several_threads_compute_at_the_same_time_and_the_order_stays():
    together = threading.Barrier(2, timeout=20)

    def wait_for_the_other(item):
        together.wait()
        return item

    assert list(map_ahead(wait_for_the_other, range(40), 2, num_threads=2)) == list(range(40))


def test_an_error_of_the_thread_reaches_the_reader_in_its_turn(started):
    def invert(item):
        return 1 / item

    iterator = map_ahead(invert, [1, 0, 1], 2, num_threads=2)
    assert next(iterator) == 1
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    assert not started()


def test_memory_is_used_again_when_the_last_view_of_a_batch_is_gone(small_dataset):
    batches = _batches(small_dataset, epochs=40, batch_size=2, shuffle=False)
    views = [images[1:, :1] for images, _ in batches]
    copies, addresses = [], set()
    for images, _ in batches:
        copies.append(images[1:, :1].copy())
        addresses.add(images.ctypes.data)
        del images
    np.testing.assert_array_equal(np.stack(views), np.stack(copies))
    # Two that wait, two in the making, one in use.
    assert len(addresses) <= 5


def test_the_threads_end_when_nobody_reads_any_more(small_dataset, started):
    iterator = iter(_batches(small_dataset, epochs=None))
    next(iterator)
    assert started()
    del iterator
    assert not started()
    for _ in _batches(small_dataset, epochs=None):
        break
    assert not started()

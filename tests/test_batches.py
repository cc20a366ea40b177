"""NumPy batches are those of make_dataset, made ahead by a thread, without TensorFlow."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from builds import ROOT
from dataset_factory import write_dataset

import tfrecord_io
from tfrecord_io import ManifestError
from tfrecord_io.ahead import map_ahead
from tfrecord_io.reading.mapped import MappedDataset

NUM_EXAMPLES = 23


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("batches")
    write_dataset(path, num_examples={"train": NUM_EXAMPLES + 2}, num_shards=4, num_left_out=2)
    return path


def _batches(directory: Path, **options: object) -> tfrecord_io.reading.batches.Batches:
    return tfrecord_io.make_batches(
        directory, **{"split": "train", "batch_size": 6, "seed": 3, **options}
    )


@pytest.fixture
def started() -> Callable[[], list[str]]:
    """Returns the names of the threads that the test has started and that have not ended.

    The error of another test may still hold an iterator, and its threads.
    """
    before = set(threading.enumerate())

    def find() -> list[str]:
        names = [thread.name for thread in set(threading.enumerate()) - before]
        return [name for name in names if name.startswith("map_ahead")]

    return find


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prefetch": 0},
        {"shuffle": False},
        {"epochs": 3, "start_step": 5},
        {"epochs": 2, "drop_remainder": True},
        {"epochs": 2, "pad_remainder": True, "with_keys": True},
        {"num_replicas": 3, "replica_index": 1, "with_keys": True},
        {"batch_size": 22, "num_replicas": 2, "replica_index": 0},
        {"examples": [20, 1, 7, 8, 22], "batch_size": 2, "epochs": 2},
    ],
    ids=str,
)
def test_batches_are_those_of_make_dataset(directory: Path, options: dict[str, object]) -> None:
    found = _batches(directory, **options)
    options.pop("prefetch", None)
    wanted = tfrecord_io.make_dataset(
        directory, **{"split": "train", "batch_size": 6, "seed": 3, **options}
    )
    assert len(found) == len(wanted)
    for batch, expected in zip(found, wanted.as_numpy_iterator(), strict=True):
        for array, other in zip(batch, expected, strict=True):
            assert array.tolist() == other.tolist()
            assert array.shape == other.shape
        assert [array.dtype for array in batch[:2]] == [np.uint8, np.float32]


def test_batches_can_be_gone_through_again_and_belong_to_the_caller(directory: Path) -> None:
    batches = _batches(directory)
    first = []
    for images, _ in batches:
        first.append(images.tolist())
        images[:] = 0
    assert [images.tolist() for images, _ in batches] == first


def test_endless_batches_go_on_and_have_no_length(directory: Path) -> None:
    endless = _batches(directory, epochs=None)
    with pytest.raises(TypeError, match="endless"):
        len(endless)
    iterator = iter(endless)
    assert sum(len(next(iterator)[0]) for _ in range(50)) == 300


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"prefetch": -1}, ValueError, "prefetch"),
        ({"examples": [23]}, ValueError, r"0\.\.22"),
        ({"start_step": 5}, ValueError, "start_step"),
        ({"split": "other"}, ManifestError, "other"),
        ({"batch_size": 24, "epochs": None}, ManifestError, "fewer than a batch of 24"),
    ],
)
def test_what_cannot_be_read_is_refused_before_the_first_batch(
    directory: Path, options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        _batches(directory, **options)


def test_threads_compute_as_many_results_ahead_as_they_are_told() -> None:
    called = []

    def double(item: int) -> int:
        called.append((item, threading.current_thread().name))
        return 2 * item

    iterator = map_ahead(double, range(100), 3, num_threads=1)
    assert next(iterator) == 0
    deadline = time.monotonic() + 20
    while len(called) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert [item for item, _ in called] == [0, 1, 2, 3]
    assert threading.current_thread().name not in {name for _, name in called}
    assert list(iterator) == list(range(2, 200, 2))


def test_several_threads_compute_at_the_same_time_and_the_order_stays() -> None:
    together = threading.Barrier(2, timeout=20)

    def wait_for_the_other(item: int) -> int:
        together.wait()
        return item

    assert list(map_ahead(wait_for_the_other, range(40), 2, num_threads=2)) == list(range(40))


def test_an_error_of_the_thread_reaches_the_reader_in_its_turn(
    started: Callable[[], list[str]],
) -> None:
    def invert(item: int) -> float:
        return 1 / item

    iterator = map_ahead(invert, [1, 0, 1], 2, num_threads=2)
    assert next(iterator) == 1
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    assert not started()


def test_a_batch_that_is_kept_is_not_written_to_by_later_ones(directory: Path) -> None:
    batches = _batches(directory, epochs=40, batch_size=2)
    views = [images[1:, :1] for images, _ in batches]
    expected = [images[1:, :1] for images, _ in _batches(directory, epochs=40, batch_size=2)]
    assert len(views) == 460
    np.testing.assert_array_equal(np.stack(views), np.stack(expected))


def test_the_memory_of_a_dropped_batch_is_used_again(directory: Path) -> None:
    addresses = set()
    for images, _ in _batches(directory, epochs=40, batch_size=2):
        addresses.add(images.ctypes.data)
        del images
    # Two that wait, two in the making, one in use.
    assert len(addresses) <= 5


def test_the_threads_end_when_nobody_reads_any_more(
    directory: Path, started: Callable[[], list[str]]
) -> None:
    iterator = iter(_batches(directory, epochs=None))
    next(iterator)
    assert started()
    del iterator
    assert not started()
    for _ in _batches(directory, epochs=None):
        break
    assert not started()


def _run(program: str, directory: Path) -> list:
    """Runs a program in a process of its own; returns the JSON that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(directory)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_process_reads_batches_without_tensorflow_and_ends_in_the_middle(
    directory: Path,
) -> None:
    program = """
import json, sys
import tfrecord_io

modules = ["tensorflow" in sys.modules]
batches = iter(tfrecord_io.make_batches(sys.argv[1], split="train", batch_size=4, epochs=None))
next(batches)
print(json.dumps([*modules, "tensorflow" in sys.modules]))
"""
    assert _run(program, directory) == [False, False]


@pytest.mark.skipif(find_spec("grain") is None, reason="Grain is not installed")
def test_grain_reads_a_mapped_split_as_a_random_access_source(directory: Path) -> None:
    # In a process of its own: Grain's DataLoader wants absl's flags to be its own.
    program = """
import json, sys
import grain.python as grain
from tfrecord_io.reading.mapped import MappedDataset

source = MappedDataset(sys.argv[1], "train")
loader = grain.DataLoader(
    data_source=source,
    sampler=grain.IndexSampler(len(source), shuffle=True, seed=1, num_epochs=1),
    operations=[grain.Batch(batch_size=5)],
    worker_count=0,
)
batches = list(loader)
print(json.dumps([
    [list(images.shape) for images, _ in batches],
    sorted(images[row].tolist() for images, _ in batches for row in range(len(images))),
    "tensorflow" in sys.modules,
]))
"""
    shapes, images, has_tensorflow = _run(program, directory)
    assert not has_tensorflow
    assert shapes == [[5, 6, 5, 1]] * 4 + [[3, 6, 5, 1]]
    assert images == sorted(MappedDataset(directory, "train")[range(NUM_EXAMPLES)][0].tolist())

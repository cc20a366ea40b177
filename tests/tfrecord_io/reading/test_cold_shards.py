"""Which records of local shards the system is told of."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from dataset_factory import write_dataset

import tfrecord_io
from tfrecord_io import Manifest
from tfrecord_io.reading.mapped import MappedDataset

NUM_EXAMPLES = 1300


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    write_dataset(directory, num_examples={"train": NUM_EXAMPLES}, num_shards=3)
    return directory


def join():
    for thread in threading.enumerate():
        if thread.name == "announce":
            thread.join()


@pytest.fixture
def told(data, monkeypatch):
    """What the system is told of, as it happens, on a disk none of which is in memory."""
    join()  # the threads of other tests
    happened: list[tuple[str, int, int]] = []

    def advise(file, start, length, advice):
        assert advice == os.POSIX_FADV_WILLNEED
        happened.append((Path(f"/proc/self/fd/{file}").readlink().name, start, length))

    def preadv(*_):
        raise BlockingIOError

    monkeypatch.setattr(os, "posix_fadvise", advise)
    monkeypatch.setattr(os, "preadv", preadv)
    return happened


def records_of(data, examples):
    """Returns the file, start and length of the record of each example."""
    manifest = Manifest.load(data)
    stride, rows = manifest.layout.stride, []
    for shard in manifest.split("train").shards:
        rows += [(shard.name, row * stride, stride) for row in range(shard.num_examples)]
    return [rows[example] for example in examples]


def test_records_are_announced_in_the_order_of_their_places(data, told):
    examples = np.random.default_rng(1).permutation(NUM_EXAMPLES)
    dataset = MappedDataset(data, "train")
    dataset.cold.announce(dataset.rows(examples))
    join()
    assert len(told) == NUM_EXAMPLES
    for first in range(0, NUM_EXAMPLES, 64):
        group = examples[first : first + 64]
        assert told[first : first + 64] == sorted(records_of(data, group))


def test_what_is_in_memory_is_not_announced(data, told, monkeypatch):
    for path in data.glob("*.tfrecord"):
        path.read_bytes()
    monkeypatch.setattr(os, "preadv", lambda *_: 1)
    for _ in tfrecord_io.make_batches(data, split="train", batch_size=10):
        pass
    join()
    assert not told

"""A split in a device's memory gives the batches that its files give; the CPU is a device, too."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import psutil
import pytest
import tensorflow as tf
from dataset_factory import write_dataset

import tfrecord_io
from tfrecord_io.reading.reader import DeviceDataset

NUM_EXAMPLES = 23


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cached")
    write_dataset(path, num_examples={"train": NUM_EXAMPLES}, num_shards=4)
    return path


def _dataset(directory: Path, **options: object) -> tf.data.Dataset | DeviceDataset:
    return tfrecord_io.make_dataset(
        directory, **{"split": "train", "batch_size": 6, "seed": 3, **options}
    )


def _batches(directory: Path, **options: object) -> list[list[list]]:
    found = _dataset(directory, **options)
    return [[tensor.numpy().tolist() for tensor in batch] for batch in found]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"with_keys": True},
        {"shuffle": False},
        {"epochs": 3, "start_step": 5},
        {"drop_remainder": True},
        {"pad_remainder": True, "with_keys": True},
        {"num_replicas": 2, "replica_index": 1},
    ],
    ids=str,
)
def test_batches_are_those_of_mmap(directory: Path, options: dict[str, object]) -> None:
    expected = _batches(directory, **{**options, "engine": "mmap"})
    assert _batches(directory, **options, cache="device") == expected


def test_types_and_shapes_are_those_of_the_dataset(directory: Path) -> None:
    image, label = next(iter(_dataset(directory, cache="device")))
    assert (image.dtype, tuple(image.shape)) == (tf.uint8, (6, 6, 5, 1))
    assert (label.dtype, tuple(label.shape)) == (tf.float32, (6, 4))


def test_it_is_read_once_and_iterated_often(directory: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path, num_examples={"train": NUM_EXAMPLES}, num_shards=4)
    dataset = _dataset(tmp_path, cache="device")
    for path in tmp_path.glob("*.tfrecord"):
        path.unlink()
    first, second = ([image.numpy().tolist() for image, _ in dataset] for _ in range(2))
    assert len(dataset) == 4
    assert first == second == [image for image, _ in _batches(directory)]


def test_a_compiled_step_gathers_by_itself(directory: Path) -> None:
    dataset = _dataset(directory, cache="device")

    def add(total: tf.Tensor, batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        image, _ = dataset.split.gather(batch[0])
        return total + tf.reduce_sum(tf.cast(image, tf.int64))

    # Not a loop over the dataset: one that AutoGraph does not convert would be traced without end.
    @tf.function
    def pixel_sum() -> tf.Tensor:
        return dataset.order.reduce(tf.constant(0, tf.int64), add)

    assert pixel_sum().numpy() == sum(np.sum(image) for image, _ in _batches(directory))


def test_a_split_without_room_is_read_from_its_files_and_says_so(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    available = psutil.virtual_memory()._replace(available=1000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: available)
    with caplog.at_level(logging.WARNING, logger="tfrecord_io.reading.reader"):
        dataset = _dataset(directory, cache="device")
    assert isinstance(dataset, tf.data.Dataset)
    assert "more than half of the free memory of CPU:0" in caplog.text
    assert [image.numpy().tolist() for image, _ in dataset] == [
        image for image, _ in _batches(directory)
    ]


def test_an_unknown_cache_is_refused(directory: Path) -> None:
    with pytest.raises(ValueError, match="received 'disk'"):
        _dataset(directory, cache="disk")

"""Batches hold what the shards hold, in the promised order, whichever engine reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from dataset_factory import write_dataset

import tfrecord_io
from tfrecord_io import ManifestError, schema
from tfrecord_io.order import BatchOrder

NUM_EXAMPLES = 23
ENGINES = ("mmap", "stream")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A split of 23 examples, two of its shards one short."""
    directory = tmp_path_factory.mktemp("dataset")
    write_dataset(directory, num_examples={"train": NUM_EXAMPLES + 2}, num_shards=4, num_left_out=2)
    return directory


def _records(directory: Path) -> list[tuple[bytes, list[float], bytes]]:
    """All examples in file order, read with TensorFlow alone."""
    names = sorted(str(path) for path in directory.glob("train-*.tfrecord"))
    spec = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([4], tf.float32),
        "key": tf.io.FixedLenFeature([], tf.string),
    }
    parsed = (tf.io.parse_single_example(record, spec) for record in tf.data.TFRecordDataset(names))
    return [(e["image"].numpy(), e["label"].numpy().tolist(), e["key"].numpy()) for e in parsed]


def _batches(directory: Path, **options: object) -> list[tuple[np.ndarray, ...]]:
    found = tfrecord_io.make_dataset(
        directory, **{"split": "train", "batch_size": 5, "seed": 7, "with_keys": True, **options}
    )
    return [tuple(tensor.numpy() for tensor in batch) for batch in found]


@pytest.mark.parametrize("engine", ENGINES)
def test_batches_are_what_plain_tensorflow_parses_from_the_same_files(
    dataset: Path, engine: str
) -> None:
    expected = _records(dataset)
    order = BatchOrder(num_examples=NUM_EXAMPLES, batch_size=5, seed=7)
    for (images, labels, keys), examples in zip(
        _batches(dataset, engine=engine), order, strict=True
    ):
        assert images.dtype == np.uint8
        assert images.shape == (len(examples), 6, 5, 1)
        assert labels.dtype == np.float32
        for row, example in enumerate(examples):
            image, label, key = expected[example]
            assert images[row].tobytes() == image
            assert labels[row].tolist() == label
            assert keys[row] == key


@pytest.mark.parametrize("engine", ENGINES)
def test_an_epoch_has_every_key_exactly_once(dataset: Path, engine: str) -> None:
    keys = [key for batch in _batches(dataset, engine=engine) for key in batch[2]]
    assert sorted(keys) == sorted(key for _, _, key in _records(dataset))


@pytest.mark.parametrize("engine", ENGINES)
def test_without_shuffle_the_order_is_that_of_the_files(dataset: Path, engine: str) -> None:
    keys = [key for batch in _batches(dataset, engine=engine, shuffle=False) for key in batch[2]]
    assert keys == [key for _, _, key in _records(dataset)]


@pytest.mark.parametrize("engine", ENGINES)
def test_starting_at_a_step_gives_the_rest_bit_for_bit(dataset: Path, engine: str) -> None:
    every = _batches(dataset, engine=engine, epochs=3)
    rest = _batches(dataset, engine=engine, epochs=3, start_step=6)
    assert len(rest) == len(every) - 6
    for ours, theirs in zip(rest, every[6:], strict=True):
        for tensor, other in zip(ours, theirs, strict=True):
            assert tensor.tolist() == other.tolist()


def test_a_million_steps_in_the_next_batch_is_still_the_one_of_the_order(dataset: Path) -> None:
    found = tfrecord_io.make_dataset(
        dataset, split="train", batch_size=5, seed=7, epochs=None, start_step=1_000_000,
        with_keys=True,
    )  # fmt: skip
    keys = next(iter(found))[2].numpy().tolist()
    order = BatchOrder(num_examples=NUM_EXAMPLES, batch_size=5, seed=7, epochs=None)
    examples = next(order.batches(1_000_000))
    records = _records(dataset)
    assert keys == [records[example][2] for example in examples]


@pytest.mark.parametrize("engine", ENGINES)
def test_two_readers_share_each_batch(dataset: Path, engine: str) -> None:
    whole = _batches(dataset, engine=engine, batch_size=4, drop_remainder=True)
    shares = [
        _batches(
            dataset, engine=engine, batch_size=4, drop_remainder=True,
            num_replicas=2, replica_index=index,
        )
        for index in range(2)
    ]  # fmt: skip
    together = [np.concatenate([a[2], b[2]]).tolist() for a, b in zip(*shares, strict=True)]
    assert together == [batch[2].tolist() for batch in whole]


def test_a_padded_last_batch_counts_each_image_once(dataset: Path) -> None:
    found = tfrecord_io.make_dataset(dataset, split="train", batch_size=5, pad_remainder=True)
    weights = np.concatenate([weight.numpy() for _, _, weight in found])
    assert len(weights) == 25
    assert weights.sum() == NUM_EXAMPLES


def test_a_missing_manifest_says_that_the_build_did_not_finish(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="run the same build command again"):
        tfrecord_io.make_dataset(tmp_path, split="train", batch_size=2)


def test_a_missing_shard_is_named_before_the_first_step(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path)
    shard = manifest.splits["train"].shards[1].name
    (tmp_path / shard).unlink()
    with pytest.raises(ManifestError, match=shard):
        tfrecord_io.make_dataset(tmp_path, split="train", batch_size=2)


def test_a_truncated_shard_is_named_before_the_first_step(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path)
    path = tmp_path / manifest.splits["train"].shards[0].name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ManifestError, match=path.name):
        tfrecord_io.make_dataset(tmp_path, split="train", batch_size=2)


@pytest.mark.parametrize("verify", ["crc", "sha256"])
def test_a_flipped_pixel_is_found_when_asked_for(tmp_path: Path, verify: str) -> None:
    manifest = write_dataset(tmp_path)
    path = tmp_path / manifest.splits["train"].shards[0].name
    data = bytearray(path.read_bytes())
    data[manifest.layout.features[schema.IMAGE].offset] ^= 1
    path.write_bytes(data)
    tfrecord_io.make_dataset(tmp_path, split="train", batch_size=2)  # sizes alone still fit
    with pytest.raises(ManifestError, match=path.name):
        tfrecord_io.make_dataset(tmp_path, split="train", batch_size=2, verify=verify)


def test_an_unknown_split_names_those_there_are(dataset: Path) -> None:
    with pytest.raises(ManifestError, match="it has train"):
        tfrecord_io.make_dataset(dataset, split="dev", batch_size=2)


def test_a_batch_larger_than_the_split_is_refused_where_it_must_be_full(dataset: Path) -> None:
    with pytest.raises(ManifestError, match="smaller batch_size"):
        tfrecord_io.make_dataset(dataset, split="train", batch_size=64, drop_remainder=True)

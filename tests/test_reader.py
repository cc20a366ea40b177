"""Batches hold what the shards hold, in the promised order."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from builds import wait_until
from dataset_factory import write_dataset

import tfrecord_io
from tfrecord_io import ManifestError, schema
from tfrecord_io.reading.order import BatchOrder

NUM_EXAMPLES = 23


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


def test_batches_are_what_plain_tensorflow_parses_from_the_same_files(dataset: Path) -> None:
    expected = _records(dataset)
    order = BatchOrder(num_examples=NUM_EXAMPLES, batch_size=5, seed=7)
    for (images, labels, keys), examples in zip(_batches(dataset), order, strict=True):
        assert images.dtype == np.uint8
        assert images.shape == (len(examples), 6, 5, 1)
        assert labels.dtype == np.float32
        for row, example in enumerate(examples):
            image, label, key = expected[example]
            assert images[row].tobytes() == image
            assert labels[row].tolist() == label
            assert keys[row] == key


def test_starting_at_a_step_gives_the_rest_bit_for_bit(dataset: Path) -> None:
    every = _batches(dataset, epochs=3)
    rest = _batches(dataset, epochs=3, start_step=6)
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


def _keys(directory: Path, **options: object) -> list[list[bytes]]:
    return [batch[-1].tolist() for batch in _batches(directory, **options)]


def test_slices_of_three_readers_are_disjoint_and_complete(dataset: Path) -> None:
    options = {"batch_size": 6, "epochs": 2}
    slices = [_keys(dataset, num_replicas=3, replica_index=index, **options) for index in range(3)]
    whole = _keys(dataset, **options)
    assert [[*a, *b, *c] for a, b, c in zip(*slices, strict=True)] == whole
    assert len(whole[-1]) < 6


def test_going_on_with_other_readers_continues_the_same_order(dataset: Path) -> None:
    options = {"batch_size": 6, "drop_remainder": True}
    later = [
        _keys(dataset, start_step=2, num_replicas=2, replica_index=index, **options)
        for index in range(2)
    ]
    together = [first + second for first, second in zip(*later, strict=True)]
    assert together == _keys(dataset, **options)[2:]


def test_the_last_batch_is_short_dropped_or_padded_with_weight_zero(dataset: Path) -> None:
    options = {"with_keys": True}
    short = _batches(dataset, **options)
    assert [len(batch[0]) for batch in short] == [5, 5, 5, 5, 3]
    dropped = _batches(dataset, drop_remainder=True, **options)
    assert [len(batch[0]) for batch in dropped] == [5, 5, 5, 5]
    padded = _batches(dataset, pad_remainder=True, **options)
    *full, last = [weights.tolist() for _, _, weights, _ in padded]
    assert full == [[1.0] * 5] * 4
    assert last == [1.0, 1.0, 1.0, 0.0, 0.0]
    keys = padded[-1][3].tolist()
    assert keys[:3] == short[-1][2].tolist()
    assert keys[3:] == [keys[2]] * 2


def _assert_refused(directory: Path, *words: str) -> None:
    """The error before the first step has all the words, among them the file and the remedy."""
    with pytest.raises(ManifestError) as error:
        tfrecord_io.make_dataset(directory, split="train", batch_size=2)
    assert [word for word in words if word not in str(error.value)] == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path, _: path.unlink(), ("is missing", "copy the dataset again")),
        (lambda path, _: path.write_bytes(path.read_bytes()[:-1]), ("cut off", "--overwrite")),
        (
            lambda path, stride: path.write_bytes(path.read_bytes() + bytes(stride)),
            ("bytes, the manifest says", "replaced; copy the dataset again"),
        ),
    ],
    ids=["missing", "cut off", "longer"],
)
def test_a_shard_of_another_length_is_named_before_the_first_step(
    tmp_path: Path, damage: Callable, words: tuple[str, ...]
) -> None:
    manifest = write_dataset(tmp_path)
    path = tmp_path / manifest.splits["train"].shards[1].name
    damage(path, manifest.layout.stride)
    _assert_refused(tmp_path, str(path), *words)


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


def test_a_batch_larger_than_the_split_is_refused_where_it_must_be_full(dataset: Path) -> None:
    with pytest.raises(ManifestError, match="smaller batch_size"):
        tfrecord_io.make_dataset(dataset, split="train", batch_size=64, drop_remainder=True)


@pytest.fixture(scope="module")
def two_splits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("two_splits")
    write_dataset(directory, num_examples={"train": 13, "val": 8}, num_shards=3)
    return directory


def _all_keys(directory: Path, **options: object) -> list[bytes]:
    return [key for *_, keys in _batches(directory, **options) for key in keys.tolist()]


def test_two_splits_are_read_as_one_whose_second_follows_the_first(two_splits: Path) -> None:
    def read(split: object, **options: object) -> list[bytes]:
        return _all_keys(two_splits, split=split, **options)

    both = ("train", "val")
    one_by_one = read("train", shuffle=False) + read("val", shuffle=False)
    assert read(both, shuffle=False) == one_by_one
    assert read(["val", "train"], shuffle=False) == one_by_one[13:] + one_by_one[:13]
    mixed = read(both, epochs=2)
    assert sorted(mixed[:21]) == sorted(mixed[21:]) == sorted(one_by_one)
    assert mixed[:21] != mixed[21:]
    assert read(both, cache="device") == read(both)


def test_a_split_that_is_missing_among_several_is_named(two_splits: Path) -> None:
    with pytest.raises(ManifestError, match=r"/.*: no split 'test' in this dataset; it has"):
        _batches(two_splits, split=("train", "test"))


CHOSEN = (20, 3, 4, 0, 17, 9, 12)


@pytest.mark.parametrize("cache", [None, "device"])
def test_an_epoch_of_chosen_examples_is_a_permutation_of_them(
    two_splits: Path, cache: str | None
) -> None:
    both = {"split": ("train", "val"), "cache": cache}
    stored = _all_keys(two_splits, **both, shuffle=False)
    expected = [stored[place] for place in CHOSEN]
    # In the order in which they were named, if not shuffled.
    assert _all_keys(two_splits, **both, shuffle=False, examples=CHOSEN) == expected
    read = _all_keys(two_splits, **both, epochs=3, examples=np.array(CHOSEN))
    epochs = [read[start : start + 7] for start in (0, 7, 14)]
    assert [sorted(epoch) for epoch in epochs] == [sorted(expected)] * 3
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("cache", [None, "device"])
def test_replicas_share_the_batches_of_chosen_examples(two_splits: Path, cache: str | None) -> None:
    options = {
        "split": ("train", "val"), "examples": CHOSEN, "batch_size": 4, "epochs": 3,
        "pad_remainder": True, "cache": cache,
    }  # fmt: skip
    whole = _batches(two_splits, **options)
    shares = [
        _batches(two_splits, **options, num_replicas=2, replica_index=index) for index in range(2)
    ]
    for batch, *parts in zip(whole, *shares, strict=True):
        for number, tensor in enumerate(batch):
            joined = np.concatenate([part[number] for part in parts])
            np.testing.assert_array_equal(joined, tensor)
    assert sum(weights.sum() for *_, weights, _ in whole) == 3 * len(CHOSEN)
    later = _batches(two_splits, **options, start_step=2)
    assert [keys.tolist() for *_, keys in later] == [keys.tolist() for *_, keys in whole[2:]]


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([], r"examples must be a list of places, received shape \(0,\)"),
        ([[1, 2]], r"received shape \(1, 2\)"),
        ([0, 13], r"examples must be in 0\.\.12, received 0\.\.13"),
        ([-1, 2], r"received -1\.\.2"),
    ],
)
def test_places_that_are_not_in_the_split_are_refused(
    two_splits: Path, examples: list, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _batches(two_splits, examples=examples)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the files that are mapped")
def test_the_files_are_unmapped_when_nobody_reads_any_more(tmp_path: Path) -> None:
    write_dataset(tmp_path, num_examples={"train": 20})
    found = tfrecord_io.make_dataset(tmp_path, split="train", batch_size=5, epochs=None)

    def is_mapped() -> bool:
        return str(tmp_path) in Path("/proc/self/maps").read_text(encoding="utf-8")

    iterator = iter(found)
    next(iterator)
    assert is_mapped()
    del iterator
    # TensorFlow ends its threads a moment later.
    wait_until(lambda: not is_mapped())


def test_an_engine_that_does_not_exist_is_refused(dataset: Path) -> None:
    with pytest.raises(ValueError, match="engine must be auto or mmap, received 'stream'"):
        _batches(dataset, engine="stream")

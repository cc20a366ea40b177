"""Batches hold what the shards hold, in the promised order, on each way to read them."""

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from builds import wait_until
from dataset_factory import assert_same, parsed_by_tensorflow, write_dataset

import tfrecord_io
from tfrecord_io import BatchOrder, Manifest, ManifestError, MappedDataset, read_examples
from tfrecord_io.format import schema
from tfrecord_io.reading import mapped
from tfrecord_io.reading.mapped import open_split
from tfrecord_io.terminal.errors import StoreError

BOTH = ("train", "val")
DEFAULTS = {"split": "train", "batch_size": 5, "seed": 7, "with_keys": True}


def _records(directory):
    """All examples in file order, read with TensorFlow alone."""
    parsed = parsed_by_tensorflow(directory.glob("train-*.tfrecord"), num_classes=4)
    return [(example["image"], example["label"].tolist(), example["key"]) for example in parsed]


def _batches(directory, **options):
    found = tfrecord_io.make_dataset(directory, **{**DEFAULTS, **options})
    return [tuple(tensor.numpy() for tensor in batch) for batch in found]


def _keys(directory, **options):
    batches = tfrecord_io.make_batches(directory, **{**DEFAULTS, **options})
    return [key for *_, keys in batches for key in keys.tolist()]


def test_batches_are_what_plain_tensorflow_parses_from_the_same_files(small_dataset):
    expected = _records(small_dataset)
    order = BatchOrder(num_examples=23, batch_size=5, seed=7)
    for (images, labels, keys), examples in zip(_batches(small_dataset), order, strict=True):
        assert images.dtype == np.uint8
        assert images.shape == (len(examples), 6, 5, 1)
        assert labels.dtype == np.float32
        for row, example in enumerate(examples):
            assert (images[row].tobytes(), labels[row].tolist(), keys[row]) == expected[example]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"with_keys": False, "shuffle": False, "split": BOTH},
        {"prefetch": 0, "epochs": 3, "start_step": 5, "drop_remainder": True},
        {"epochs": 2, "pad_remainder": True, "num_replicas": 5, "replica_index": 1},
        {"batch_size": 22, "num_replicas": 2},
        {"examples": [20, 1, 7, 8, 22], "batch_size": 2, "epochs": 2},
    ],
    ids=str,
)
def test_numpy_has_the_batches_of_tensorflow(small_dataset, options):
    batches = tfrecord_io.make_batches(small_dataset, **{**DEFAULTS, **options})
    dataset = tfrecord_io.make_dataset(small_dataset, **{**DEFAULTS, **options})
    for _ in range(3):
        found, wanted = list(batches), list(dataset.as_numpy_iterator())
        assert_same([batch[:2] for batch in found], [batch[:2] for batch in wanted])
        for batch, expected in zip(found, wanted, strict=True):
            assert [part.tolist() for part in batch[2:]] == [part.tolist() for part in expected[2:]]


def test_the_last_batch_is_short_dropped_or_padded_with_weight_zero(small_dataset):
    def batches(**options):
        return list(tfrecord_io.make_batches(small_dataset, **{**DEFAULTS, **options}))

    short = batches()
    assert [len(batch[0]) for batch in short] == [5, 5, 5, 5, 3]
    assert [len(batch[0]) for batch in batches(drop_remainder=True)] == [5, 5, 5, 5]
    padded = batches(pad_remainder=True)
    *full, last = [weights.tolist() for _, _, weights, _ in padded]
    assert full == [[1.0] * 5] * 4
    assert last == [1.0, 1.0, 1.0, 0.0, 0.0]
    keys = padded[-1][3].tolist()
    assert keys[:3] == short[-1][2].tolist()
    assert keys[3:] == [keys[2]] * 2


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path, _: path.unlink(), "is missing"),
        (lambda path, _: path.write_bytes(path.read_bytes()[:-1]), "cut off"),
        (lambda path, stride: path.write_bytes(path.read_bytes() + bytes(stride)), "replaced"),
    ],
    ids=["missing", "cut off", "longer"],
)
def test_a_shard_of_another_length_is_named_before_the_first_step(tmp_path, damage, words):
    manifest = write_dataset(tmp_path)
    path = tmp_path / manifest.splits["train"].shards[1].name
    damage(path, manifest.layout.stride)
    with pytest.raises(ManifestError, match=rf"{path} .*{words}.*copy .* again, or .*--overwrite"):
        tfrecord_io.make_dataset(tmp_path, split="train", batch_size=2)


@pytest.mark.parametrize("num_bits", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_flipped_bit_is_served(tmp_path, num_bits):
    manifest = write_dataset(tmp_path, num_shards=1)
    path = tmp_path / manifest.splits["train"].shards[0].name
    content, stride = path.read_bytes(), manifest.layout.stride
    generator = np.random.default_rng(3)
    for _ in range(num_bits):
        position, bit = int(generator.integers(len(content))), int(generator.integers(8))
        damaged = bytearray(content)
        damaged[position] ^= 1 << bit
        path.write_bytes(damaged)
        mapped._checked.clear()  # as another process
        with pytest.raises(StoreError, match=rf"{path.name}: record {position // stride} "):
            list(tfrecord_io.make_batches(tmp_path, "train", 5))
        assert list(tfrecord_io.make_batches(tmp_path, "train", 5, verify="none"))
        mapped._checked.clear()


@pytest.mark.parametrize("feature", [schema.IMAGE, schema.LABEL, schema.KEY])
def test_each_reader_names_the_record_that_is_damaged(tmp_path, feature):
    manifest = write_dataset(tmp_path)
    path = tmp_path / manifest.splits["train"].shards[1].name
    content = bytearray(path.read_bytes())
    content[3 * manifest.layout.stride + manifest.layout.features[feature].offset] ^= 1
    path.write_bytes(content)
    open_split(tmp_path, "train")  # sizes alone still fit
    dataset = MappedDataset(tmp_path, "train")
    named = rf"{path.name}: record 3 does not match its checksum"
    with pytest.raises(StoreError, match=named):
        dataset[range(23)]
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"StoreError: {named}"):
        list(tfrecord_io.make_dataset(tmp_path, "train", 2))
    for verify in ("crc", "sha256"):
        with pytest.raises(ManifestError, match=path.name):
            tfrecord_io.make_dataset(tmp_path, "train", 2, verify=verify)


def test_two_splits_are_read_as_one_whose_second_follows_the_first(small_dataset):
    one_by_one = [*_keys(small_dataset, shuffle=False)]
    one_by_one += _keys(small_dataset, split="val", shuffle=False)
    assert _keys(small_dataset, split=BOTH, shuffle=False) == one_by_one
    backwards = _keys(small_dataset, split=["val", "train"], shuffle=False)
    assert backwards == one_by_one[23:] + one_by_one[:23]
    mixed = _keys(small_dataset, split=BOTH, epochs=2)
    size = len(one_by_one)
    assert sorted(mixed[:size]) == sorted(mixed[size:]) == sorted(one_by_one)
    assert mixed[:size] != mixed[size:]


CHOSEN = (24, 3, 4, 0, 17, 9, 12)


def test_an_epoch_of_chosen_examples_is_a_permutation_of_them(small_dataset):
    both = {"split": BOTH}
    stored = _keys(small_dataset, **both, shuffle=False)
    expected = [stored[place] for place in CHOSEN]
    # In the order in which they were named, if not shuffled.
    assert _keys(small_dataset, **both, shuffle=False, examples=CHOSEN) == expected
    read = _keys(small_dataset, **both, epochs=3, examples=np.array(CHOSEN))
    epochs = [read[start : start + 7] for start in (0, 7, 14)]
    assert [sorted(epoch) for epoch in epochs] == [sorted(expected)] * 3
    assert epochs[0] != epochs[1] != epochs[2]


def test_replicas_share_the_batches_and_a_later_start_gives_their_rest(small_dataset):
    def batches(**more):
        options = {"split": BOTH, "examples": CHOSEN, "batch_size": 4, "epochs": 3, **more}
        return list(
            tfrecord_io.make_batches(small_dataset, **DEFAULTS | options, pad_remainder=True)
        )

    whole = batches()
    shares = [batches(start_step=2, num_replicas=2, replica_index=index) for index in range(2)]
    joined = [map(np.concatenate, zip(*parts, strict=True)) for parts in zip(*shares, strict=True)]
    assert_same(joined, whole[2:])
    assert sum(weights.sum() for *_, weights, _ in whole) == 3 * len(CHOSEN)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the files that are mapped")
def test_the_files_are_unmapped_when_nobody_reads_any_more(tmp_path):
    write_dataset(tmp_path, num_examples={"train": 20})
    found = tfrecord_io.make_dataset(tmp_path, split="train", batch_size=5, epochs=None)

    def is_mapped():
        return str(tmp_path) in Path("/proc/self/maps").read_text(encoding="utf-8")

    iterator = iter(found)
    next(iterator)
    assert is_mapped()
    del iterator, found
    # TensorFlow ends its threads a moment later.
    wait_until(lambda: not is_mapped())


# ---- the table of examples


def test_the_examples_are_a_table_in_the_stored_order_of_splits_that_exist(built_dataset):
    table = read_examples(built_dataset)
    assert table.equals(pq.read_table(built_dataset / "examples.parquet"))
    val = read_examples(built_dataset, "val")
    assert val["split"].unique().to_pylist() == ["val"]
    assert val.num_rows == Manifest.load(built_dataset).split("val").num_examples
    with pytest.raises(ManifestError, match="no split 'dev'"):
        read_examples(built_dataset, "dev")

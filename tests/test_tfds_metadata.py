import json

import numpy as np
import pytest
import tensorflow_datasets as tfds

from tfrecord_io.manifest import Manifest
from tfrecord_io.reading import tfds_metadata

# TFDS 4.9.10 asks protobuf 6 for a field's label, in the way of protobuf 5.
pytestmark = pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")


@pytest.fixture(scope="module")
def builder(built_dataset):
    return tfds.builder_from_directory(built_dataset)


def test_tfds_finds_the_splits_shards_and_counts(builder, built_dataset):
    found = Manifest.load(built_dataset)
    assert builder.info.name == found.name
    assert sorted(builder.info.splits) == sorted(found.splits)
    for name, split in found.splits.items():
        assert builder.info.splits[name].num_examples == split.num_examples
        assert builder.info.splits[name].num_shards == len(split.shards)
        assert builder.info.splits[name].num_bytes == split.num_bytes


def records_of(built_dataset, split):
    """Returns (pixels, label, key) of every record, cut out at the manifest's offsets."""
    found = Manifest.load(built_dataset)
    slots = found.layout.features
    rows = []
    for shard in found.split(split).shards:
        data = (built_dataset / shard.name).read_bytes()
        for start in range(0, len(data), found.layout.stride):
            parts = {
                name: data[start + slot.offset : start + slot.offset + slot.length]
                for name, slot in slots.items()
            }
            pixels = np.frombuffer(parts["image"], np.uint8).reshape(found.image_shape)
            rows.append((pixels, np.frombuffer(parts["label"], "<f4"), parts["key"]))
    return rows


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_tfds_reads_the_same_examples_in_the_same_order(builder, built_dataset, split):
    examples = list(tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False)))
    expected = records_of(built_dataset, split)
    assert len(examples) == len(expected)
    for example, (pixels, label, key) in zip(examples, expected, strict=True):
        assert example["image"].dtype == np.uint8
        np.testing.assert_array_equal(example["image"], pixels)
        np.testing.assert_array_equal(example["label"], label)
        assert example["key"] == key


def test_a_part_of_a_split_can_be_asked_for(builder, built_dataset):
    examples = list(tfds.as_numpy(builder.as_dataset(split="train[3:7]", shuffle_files=False)))
    expected = records_of(built_dataset, "train")[3:7]
    assert [example["key"] for example in examples] == [key for _, _, key in expected]


def test_the_files_are_those_that_a_build_leaves(built_dataset):
    described = tfds_metadata.describe(Manifest.load(built_dataset))
    assert set(described) == {"features.json", "dataset_info.json"}
    for name, text in described.items():
        assert (built_dataset / name).read_text() == text
        json.loads(text)

import json

import numpy as np
import pytest
import tensorflow_datasets as tfds
from dataset_factory import stored

from tfrecord_io import tfds_metadata
from tfrecord_io.manifest import Manifest

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
        lengths = [shard.num_examples for shard in split.shards]
        assert builder.info.splits[name].shard_lengths == lengths
        assert builder.info.splits[name].num_bytes == split.num_bytes


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_tfds_reads_the_same_examples_in_the_same_order(builder, built_dataset, split):
    examples = list(tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False)))
    images, labels, keys = stored(built_dataset, split)
    assert examples[0]["image"].dtype == np.uint8
    np.testing.assert_array_equal([example["image"] for example in examples], images)
    np.testing.assert_array_equal([example["label"] for example in examples], labels)
    assert [example["key"].decode() for example in examples] == keys


def test_the_files_are_those_that_a_build_leaves(built_dataset):
    described = tfds_metadata.describe(Manifest.load(built_dataset))
    assert set(described) == {"features.json", "dataset_info.json"}
    for name, text in described.items():
        assert (built_dataset / name).read_text() == text
        json.loads(text)

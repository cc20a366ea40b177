"""TFDS reads a dataset by its files."""

import numpy as np
import pytest
from dataset_factory import assert_same, stored

from tfrecord_io.format.manifest import Manifest

# TFDS 4.9.10 asks protobuf 6 for a field's label, in the way of protobuf 5.
pytestmark = pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")


def read_by_tfds(builder, split):
    """Returns what TFDS reads of a split, as `stored` does."""
    import tensorflow_datasets as tfds

    examples = list(tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False)))
    images, labels = (np.stack([one[name] for one in examples]) for name in ("image", "label"))
    return images, labels, [one["key"].decode() for one in examples]


@pytest.mark.slow  # TFDS takes seconds to import
def test_tfds_reads_the_same_splits_shards_and_examples_in_the_same_order(built_dataset):
    import tensorflow_datasets as tfds

    builder, found = tfds.builder_from_directory(built_dataset), Manifest.load(built_dataset)
    assert builder.info.name == found.name
    assert sorted(builder.info.splits) == sorted(found.splits)
    for name, split in found.splits.items():
        info, lengths = builder.info.splits[name], [shard.num_examples for shard in split.shards]
        assert (info.shard_lengths, info.num_bytes) == (lengths, split.num_bytes)
        assert_same([read_by_tfds(builder, name)], [stored(built_dataset, name)])

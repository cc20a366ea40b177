"""The table of a dataset's examples, in one call."""

import pyarrow.parquet as pq
import pytest

from tfrecord_io import Manifest, ManifestError, read_examples


def test_the_examples_are_a_table_in_the_stored_order(built_dataset):
    table = read_examples(built_dataset)
    assert table.equals(pq.read_table(built_dataset / "examples.parquet"))
    val = read_examples(built_dataset, "val")
    assert val["split"].unique().to_pylist() == ["val"]
    assert val.num_rows == Manifest.load(built_dataset).split("val").num_examples


def test_the_examples_of_an_unknown_split_or_no_dataset_are_an_error(built_dataset, tmp_path):
    with pytest.raises(ManifestError, match="no split 'dev'"):
        read_examples(built_dataset, "dev")
    with pytest.raises(ManifestError, match="is missing"):
        read_examples(tmp_path)

"""What other programs read: TFDS, and those that know Croissant."""

import hashlib
import json
import re

import numpy as np
import pyarrow.parquet as pq
import pytest
from builds import build_here
from dataset_factory import assert_same, stored
from image_files import jpeg, write_tree

from tfrecord_io.format.examples import CROISSANT_FILE
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


@pytest.fixture
def written(built_dataset):
    return json.loads((built_dataset / CROISSANT_FILE).read_text())


def test_every_shard_and_the_table_are_listed_with_size_and_sha256(written, built_dataset):
    assert not re.search(r"20\d\d-\d\d", json.dumps(written))  # nor when it was made
    listed = {entry["contentUrl"]: entry for entry in written["distribution"]}
    files = [*sorted(built_dataset.glob("*.tfrecord")), built_dataset / "examples.parquet"]
    assert set(listed) == {path.name for path in files}
    for path in files:
        entry = listed[path.name]
        assert entry["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert entry["contentSize"] == f"{path.stat().st_size} B"


def test_columns_of_a_label_table_are_fields_by_their_types_except_bytes_and_lists(tmp_path):
    source = write_tree(tmp_path / "in", {f"{n}.jpeg": jpeg(n) for n in range(3)})
    labels = tmp_path / "labels.csv"
    labels.write_text("path,label,age (years)\n0.jpeg,a,63\n1.jpeg,b,\n2.jpeg,b,50\n")
    built = build_here(source, tmp_path / "out", f"--labels={labels}")
    content = json.loads((built / CROISSANT_FILE).read_text())
    fields = {field["name"]: field for field in content["recordSet"][0]["field"]}
    columns = set(pq.read_schema(built / "examples.parquet").names)
    assert set(fields) == columns - {"perceptual_hash"}
    assert fields["age (years)"]["dataType"] == "sc:Integer"
    assert fields["age (years)"]["@id"] == "examples/age%20%28years%29"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # mlcroissant's calls of rdflib, pandas
def test_mlcroissant_finds_no_error_and_reads_the_examples_table(built_dataset):
    mlcroissant = pytest.importorskip("mlcroissant", reason="mlcroissant is not installed")
    dataset = mlcroissant.Dataset(str(built_dataset / CROISSANT_FILE))
    assert not dataset.metadata.ctx.issues.errors
    assert len(dataset.metadata.distribution) == len(list(built_dataset.glob("*.tfrecord"))) + 1
    rows = pq.read_table(built_dataset / "examples.parquet").to_pylist()
    records = list(dataset.records("examples"))
    assert len(records) == len(rows) == Manifest.load(built_dataset).num_examples
    for record, row in zip(records, rows, strict=True):
        for column in ("split", "shard", "key", "label", "path"):
            assert record[f"examples/{column}"].decode() == row[column]
        assert record["examples/row"] == row["row"]
        assert record["examples/brightness"] == pytest.approx(row["brightness"])

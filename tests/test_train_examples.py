import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from marked_images import examples_in, write_marked_dataset

from tfrecord_io.shards import shard_name


def test_patients_and_paths_are_joined_by_key(tmp_path):
    write_marked_dataset(tmp_path, num_examples={"train": 4, "test": 5})
    examples = examples_in(tmp_path, "test")
    assert examples.patients == ("test-0", "test-0", "test-1", "test-1", "test-2")
    assert [path.rpartition("/")[2] for path in examples.paths] == [f"{i}.jpeg" for i in range(5)]


def test_places_in_shards_and_keys_give_the_same_rows(tmp_path):
    write_marked_dataset(tmp_path, num_examples={"train": 4, "val": 0, "test": 5})
    path = tmp_path / "examples.parquet"
    table = pq.read_table(path)
    table = table.take(pc.sort_indices(table, [("key", "ascending")]))
    pq.write_table(table, path)
    by_key = examples_in(tmp_path, "test", "train")
    names = pa.array([shard_name(split, 0, 1) for split in table["split"].to_pylist()])
    pq.write_table(table.set_column(table.schema.get_field_index("shard"), "shard", names), path)
    by_place = examples_in(tmp_path, "test", "train")
    assert by_place.keys == by_key.keys
    assert by_place.patients == by_key.patients
    assert by_place.groups.names.equals(by_key.groups.names)
    assert by_key.patients[:5] == ("test-0", "test-0", "test-1", "test-1", "test-2")


def test_a_dataset_without_a_whole_table_has_keys_alone(tmp_path):
    write_marked_dataset(tmp_path, num_examples={"test": 5})
    path = tmp_path / "examples.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    partial = examples_in(tmp_path, "test")
    path.unlink()
    for examples in (partial, examples_in(tmp_path, "test")):
        assert len(set(examples.keys)) == 5
        assert examples.patients is None

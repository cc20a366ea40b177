from marked_images import write_marked_dataset

from train.data.examples import read_examples


def test_patients_and_paths_are_joined_by_key(tmp_path):
    write_marked_dataset(tmp_path, num_examples={"train": 4, "test": 5})
    examples = read_examples(str(tmp_path), "test")
    assert examples.patients == ("test-0", "test-0", "test-1", "test-1", "test-2")
    assert [path.rpartition("/")[2] for path in examples.paths] == [f"{i}.jpeg" for i in range(5)]


def test_a_dataset_without_the_table_has_keys_alone(tmp_path):
    write_marked_dataset(tmp_path, num_examples={"test": 5}, with_patients=False)
    examples = read_examples(str(tmp_path), "test")
    assert len(set(examples.keys)) == 5
    assert examples.patients is None

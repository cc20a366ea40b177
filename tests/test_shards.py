from hypothesis import given
from hypothesis import strategies as st

from tfrecord_io import shards


@given(num_shards=st.integers(2, 99_999), data=st.data())
def test_names_sort_as_their_indices_do(num_shards, data):
    first = data.draw(st.integers(0, num_shards - 2))
    second = data.draw(st.integers(first + 1, num_shards - 1))
    assert shards.shard_name("train", first, num_shards) < shards.shard_name(
        "train", second, num_shards
    )


def test_the_name_is_the_usual_one_of_tensorflow():
    assert shards.shard_name("train", 0, 64) == "train-00000-of-00064.tfrecord"
    assert shards.sidecar_name("train-00000-of-00064.tfrecord") == "train-00000-of-00064.json"

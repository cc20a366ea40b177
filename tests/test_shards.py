from tfrecord_io import shards


def test_the_name_is_the_usual_one_of_tensorflow():
    assert shards.shard_name("train", 0, 64) == "train-00000-of-00064.tfrecord"
    assert shards.sidecar_name("train-00000-of-00064.tfrecord") == "train-00000-of-00064.json"

import hashlib
import io

import numpy as np
import pytest

from tfrecord_io import schema, shards
from tfrecord_io.auditing.side_facts import side_facts
from tfrecord_io.shard_writer import ShardWriter
from tfrecord_io.statistics import PixelStatistics


def make_examples(layout, num_examples):
    generator = np.random.default_rng(num_examples)
    pictures = generator.integers(256, size=(num_examples, *layout.image_shape), dtype=np.uint8)
    one_hot = np.eye(layout.num_classes, dtype=np.float32)
    return [
        (picture.tobytes(), one_hot[number % layout.num_classes], schema.image_key(f"{number}"))
        for number, picture in enumerate(pictures)
    ], pictures


@pytest.mark.parametrize("shape", [(224, 224, 1), (20, 31, 3), (1, 1, 1), (1200, 1000, 1)])
@pytest.mark.parametrize("num_examples", [0, 1, 45])
def test_a_shard_is_its_records_one_after_another(shape, num_examples):
    layout = schema.RecordLayout(image_shape=shape, num_classes=4)
    num_examples = min(num_examples, 3) if shape[0] > 1000 else num_examples
    examples, pictures = make_examples(layout, num_examples)
    file = io.BytesIO()
    with ShardWriter(file, layout) as shard:
        for example in examples:
            shard.write(*example)
    assert file.getvalue() == b"".join(layout.encode_record(*example) for example in examples)
    assert shard.sha256 == hashlib.sha256(file.getvalue()).hexdigest()
    some = pictures if num_examples else np.empty((0, 8, 8, 1), np.uint8)
    for name, column in side_facts(some).items():
        assert shard.facts()[name].tolist() == column.tolist()
    assert shard.statistics() == PixelStatistics.from_images(pictures)


def test_nothing_is_written_after_an_error():
    layout = schema.RecordLayout(image_shape=(8, 8, 1), num_classes=2)
    (example,), _ = make_examples(layout, 1)
    file = io.BytesIO()

    def stop_half_way():
        with ShardWriter(file, layout) as shard:
            shard.write(*example)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_half_way()
    assert file.getvalue() == b""


def test_an_image_that_does_not_fit_is_refused_and_leaves_the_others():
    layout = schema.RecordLayout(image_shape=(8, 8, 1), num_classes=2)
    examples, _ = make_examples(layout, 2)
    file = io.BytesIO()
    with ShardWriter(file, layout) as shard:
        shard.write(*examples[0])
        with pytest.raises(ValueError, match="expected 64 bytes of pixels"):
            shard.write(b"short", np.eye(2)[0], schema.image_key("a"))
        shard.write(*examples[1])
    assert file.getvalue() == b"".join(layout.encode_record(*example) for example in examples)


def test_the_name_of_a_shard_is_the_usual_one_of_tensorflow():
    assert shards.shard_name("train", 0, 64) == "train-00000-of-00064.tfrecord"
    assert shards.sidecar_name("train-00000-of-00064.tfrecord") == "train-00000-of-00064.json"

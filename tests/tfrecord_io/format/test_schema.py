"""Records, and the shards that are made of them."""

import hashlib
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfrecord_io.format import schema
from tfrecord_io.format.kinds import CLASSES, MULTI_LABEL
from tfrecord_io.format.schema import RecordLayout, image_key
from tfrecord_io.format.shard_writer import ShardWriter
from tfrecord_io.format.side_facts import side_facts
from tfrecord_io.format.statistics import PixelStatistics

KEY = image_key("train/CNV/CNV-1-1.jpeg")


def pixels_of(shape, seed=0):
    return np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)


def bytes_feature(value):
    import tensorflow as tf

    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def record_of(shape, num_classes, label_index, folder):
    """Returns a record, which must have the bytes that TensorFlow writes, and its layout."""
    import tensorflow as tf

    pixels = pixels_of(shape)
    layout = RecordLayout(image_shape=shape, num_classes=num_classes)
    label = np.eye(num_classes)[label_index]
    record = layout.encode_record(pixels.tobytes(), label, KEY)
    parsed = tf.train.Example.FromString(record[12:-4]).features.feature
    padding = {name: parsed[name].bytes_list.value[0] for name in ("head_padding", "tail_padding")}
    assert not any(b"".join(padding.values()))
    features = tf.train.Features(
        feature={
            "image": bytes_feature(pixels.tobytes()),
            "label": tf.train.Feature(float_list=tf.train.FloatList(value=label)),
            "key": bytes_feature(KEY.encode()),
            **{name: bytes_feature(zeros) for name, zeros in padding.items()},
        }
    )
    path = folder / "one.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(tf.train.Example(features=features).SerializeToString(deterministic=True))
    assert record == path.read_bytes()
    return record, layout


@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 3])),
    num_classes=st.integers(1, 40),
    data=st.data(),
)
def test_a_record_has_the_bytes_that_tensorflow_writes(tmp_path, shape, num_classes, data):
    label_index = data.draw(st.integers(0, num_classes - 1))
    record, layout = record_of(shape, num_classes, label_index, tmp_path)
    assert len(record) == layout.stride == layout.length + 16


def test_lengths_at_a_varint_border_have_the_bytes_that_tensorflow_writes(tmp_path):
    """A varint takes another byte at 2^7, 2^14 and 2^21."""
    for height, width in ((1, 127), (1, 128), (127, 129), (128, 128), (1448, 1448), (1449, 1449)):
        record_of((height, width, 1), 4, 3, tmp_path)


@given(
    shape=st.tuples(st.integers(1, 700), st.integers(1, 700), st.sampled_from([1, 3])),
    num_classes=st.integers(1, 1200),
)
def test_images_begin_at_places_that_need_no_copy_and_records_are_whole_blocks(shape, num_classes):
    layout = RecordLayout(image_shape=shape, num_classes=num_classes)
    assert layout.features[schema.IMAGE].offset % 64 == 0
    assert layout.stride % layout.block_length == 0
    assert layout.image_length % layout.block_length == 0


@pytest.mark.parametrize(
    ("shape", "block_length", "stride"),
    [
        ((224, 224, 1), 512, 50_688),
        ((224, 224, 3), 512, 151_040),
        ((299, 299, 3), 529, 268_732),  # 23 * 23
        ((521, 521, 1), 521, 271_962),  # of a prime's square no other divisor
        ((28, 28, 1), 28, 952),
        ((1, 1, 1), 1, 167),
    ],
)
def test_padding_is_a_small_part_of_a_record(shape, block_length, stride):
    layout = RecordLayout(image_shape=shape, num_classes=4)
    assert (layout.block_length, layout.stride) == (block_length, stride)


@pytest.mark.parametrize(
    ("image", "label", "key", "kind", "message"),
    [
        (bytes(7), [1, 0, 0, 0], KEY, CLASSES, "6 bytes of pixels"),
        (bytes(6), [1, 0, 0], KEY, CLASSES, "4 values, one-hot"),
        (bytes(6), [0, 0.5, 0.5, 0], KEY, CLASSES, "4 values, one-hot"),
        (bytes(6), [0.5, 0, 1, 0], KEY, MULTI_LABEL, "4 values, of 0 and 1"),
        (bytes(6), [-1, 0, 0, 0], KEY, MULTI_LABEL, "4 values, of 0 and 1"),
        (bytes(6), [1, 0, 0, 0], KEY + "0", CLASSES, "32 characters"),
        (bytes(6), [1, 0, 0, 0], "é" * 32, CLASSES, "ascii"),
    ],
)
def test_what_does_not_fit_the_layout_is_refused(image, label, key, kind, message):
    layout = RecordLayout(image_shape=(2, 3, 1), num_classes=4, label_kind=kind)
    with pytest.raises(ValueError, match=message):
        layout.encode_record(image, np.array(label, np.float32), key)


def test_a_layout_that_cannot_be_is_refused():
    for shape, num_classes in (((0, 1, 1), 4), ((1, 1), 4), ((1, 1, 2), 4), ((1, 1, 1), 0)):
        with pytest.raises(ValueError, match=r"(image_shape|num_classes) must be"):
            RecordLayout(image_shape=shape, num_classes=num_classes)


# ---- shards


def make_examples(layout, num_examples):
    generator, shape = np.random.default_rng(num_examples), (num_examples, *layout.image_shape)
    pictures = generator.integers(256, size=shape, dtype=np.uint8)
    one_hot = np.eye(layout.num_classes, dtype=np.float32)
    return [
        (picture.tobytes(), one_hot[number % layout.num_classes], image_key(f"{number}"))
        for number, picture in enumerate(pictures)
    ], pictures


@pytest.mark.parametrize("shape", [(224, 224, 1), (20, 31, 3), (1, 1, 1)])
@pytest.mark.parametrize("num_examples", [0, 45])
def test_a_shard_is_its_records_one_after_another(shape, num_examples):
    layout = RecordLayout(image_shape=shape, num_classes=4)
    examples, pictures = make_examples(layout, num_examples)
    file = io.BytesIO()
    with ShardWriter(file, layout) as shard:
        for example in examples:
            shard.write(*example)
    assert file.getvalue() == b"".join(layout.encode_record(*example) for example in examples)
    assert shard.sha256 == hashlib.sha256(file.getvalue()).hexdigest()
    some, facts = pictures if num_examples else np.empty((0, 8, 8, 1), np.uint8), shard.facts()
    for name, column in side_facts(some).items():
        assert facts[name].tolist() == column.tolist()
    grey = np.mean(pictures, axis=(1, 2, 3))
    assert shape[2] == 3 or facts["brightness"] == pytest.approx(grey, abs=0.5)
    assert shard.statistics == PixelStatistics.from_images(pictures)


def test_an_image_that_does_not_fit_leaves_the_others_and_another_error_leaves_nothing():
    layout = RecordLayout(image_shape=(8, 8, 1), num_classes=2)
    examples, _ = make_examples(layout, 2)
    file, stopped = io.BytesIO(), io.BytesIO()
    with ShardWriter(file, layout) as shard:
        shard.write(*examples[0])
        with pytest.raises(ValueError, match="expected 64 bytes of pixels"):
            shard.write(b"short", np.eye(2)[0], image_key("a"))
        shard.write(*examples[1])
    assert file.getvalue() == b"".join(layout.encode_record(*example) for example in examples)

    def stop_half_way():
        with ShardWriter(stopped, layout) as shard:
            shard.write(*examples[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_half_way()
    assert stopped.getvalue() == b""

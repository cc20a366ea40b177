"""Datasets of other types than uint8, through every way in which a dataset is read."""

import functools
import itertools
import json

import numpy as np
import pytest
from builds import build_here, build_of
from dataset_factory import parsed_by_tensorflow, stored, write_dataset
from image_files import encoded, write_tree

import tfrecord_io
from pipelines.errors import BuildError, UserError
from tfrecord_io import Manifest
from tfrecord_io.extras.sample import verify
from tfrecord_io.format import visible
from tfrecord_io.format.manifest import FILE_NAME
from tfrecord_io.reading.mapped import MappedDataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("typed")
    write_dataset(path, num_examples={"train": 23}, image_shape=(4, 6, 3), dtype="uint16")
    return path


assert_same = functools.partial(np.testing.assert_array_equal, strict=True)


def test_every_reader_gets_the_stored_values_and_numpy_to_keep(dataset):
    options = {"split": "train", "batch_size": 10, "shuffle": False}
    for read in (tfrecord_io.make_dataset, tfrecord_io.make_batches):
        batches = list(read(dataset, **options))
        assert_same(np.concatenate([image for image, _ in batches]), stored(dataset)[0])
    batches[0][0][:] = 0  # the caller's own
    found = Manifest.load(dataset)
    assert json.loads((dataset / FILE_NAME).read_text())["format_version"] == 2
    parsed = parsed_by_tensorflow(dataset.glob("*.tfrecord"), len(found.label_names))
    images = np.stack([np.frombuffer(example["image"], found.dtype) for example in parsed])
    assert_same(images.reshape(-1, *found.image_shape), stored(dataset)[0])


@pytest.mark.parametrize(
    ("image", "shown"),
    [
        (np.array([[[1000], [1001]], [[1051], [1100]]], np.uint16), [[0, 3], [130, 255]]),
        (np.full((1, 2, 1), 7, np.uint16), [[0, 0]]),
    ],
)
def test_an_image_is_shown_from_its_darkest_to_its_brightest_value(image, shown):
    picture = visible.picture(image)
    assert (picture.mode, np.asarray(picture).tolist()) == ("L", shown)


# ---- 16 bits from the files to a prediction


def deep_scan(label, number):
    """Returns uint16 [40, 40] of 12 bits, in which one half is brighter."""
    values = np.random.default_rng(number).integers(1_000, 1_400, (40, 40))
    values[:20] += 900 * (label == "ABOVE")
    values[20:] += 900 * (label == "BELOW")
    return values.astype(np.uint16)


@pytest.fixture(scope="module")
def deep_tree(tmp_path_factory):
    files = {
        f"{split}/{label}/{label}-{split}{number // 2}-{number}.{kind.lower()}": encoded(
            deep_scan(label, number), kind
        )
        for split, count in (("train", 24), ("val", 4), ("test", 4))
        for label in ("ABOVE", "BELOW")
        for number, kind in zip(range(count), itertools.cycle(["PNG", "TIFF"]), strict=False)
    }
    return write_tree(tmp_path_factory.mktemp("deep") / "scans", files)


deep_dataset = build_of("deep_tree", "--image_size=40", "--dtype=uint16", "--num_shards=2")


def test_a_build_keeps_every_value_of_16_bit_files(deep_tree, deep_dataset):
    mapped = MappedDataset(deep_dataset, "test")
    images, _ = mapped[range(len(mapped))]
    found = dict(zip(mapped.keys(range(len(mapped))), images, strict=True))
    for path in deep_tree.glob("test/*/*"):
        key = tfrecord_io.image_key(path.relative_to(deep_tree).as_posix())
        expected = deep_scan(path.parent.name, int(path.stem.rpartition("-")[2]))
        np.testing.assert_array_equal(found[key][:, :, 0], expected)
    assert verify(deep_dataset, source_input=deep_tree) == []


def test_16_bits_are_another_dataset_than_8_without_copies(deep_tree, deep_dataset, tmp_path):
    identity = Manifest.load(deep_dataset).options
    assert identity["dtype"] == "uint16"
    with pytest.raises(UserError, match="dtype: 'uint16' there, 'uint8' now"):
        build_here(deep_tree, deep_dataset, "--image_size=40", "--num_shards=2")
    with pytest.raises(UserError, match=r"leave it out: .*train.* augments images of any"):
        build_here(deep_tree, tmp_path / "out", "--dtype=uint16", "--variants=1")


def test_16_bit_files_are_rejected_where_uint8_is_stored(deep_tree, tmp_path):
    with pytest.raises(
        BuildError, match=r"all 64 images were rejected: 64 more_than_8_bits; --dtype uint16 keeps"
    ):
        build_here(deep_tree, tmp_path / "out")
    assert (tmp_path / "out" / "rejects.csv").read_text().count("more_than_8_bits") == 64


@pytest.mark.slow
def test_a_model_learns_from_12_bits_and_predicts_from_the_files(deep_tree, deep_dataset, tmp_path):

    from train.results.classifier import load_classifier, predict_files
    from train.training.config import TrainConfig
    from train.training.trainer import train_and_evaluate

    workdir = tmp_path / "run"
    config = TrainConfig.of(
        data=str(deep_dataset), model="convnet", epochs=12, replica_batch_size=12,
        learning_rate=3e-3, strategy="single", bootstrap_samples=5,
    )  # fmt: skip
    train_and_evaluate(config, workdir)
    content = json.loads((workdir / "export" / "preprocessing.json").read_text())
    assert (content["input"]["dtype"], content["preprocessing"]["dtype"]) == ("uint16", "uint16")
    classifier = load_classifier(workdir / "export")
    paths = sorted(deep_tree.glob("test/*/*"))
    found = list(predict_files(classifier, paths))
    for path, prediction in zip(paths, found, strict=True):
        assert classifier.label_names[prediction.probabilities.argmax()] == path.parent.name

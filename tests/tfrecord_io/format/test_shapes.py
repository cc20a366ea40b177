"""Which shapes a dataset has, and which a network was not trained on."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from builds import ROOT

from tfrecord_io import Manifest
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.format import shapes

SQUARE = Preprocessing(fit="stretch")
GOLDEN = Manifest.load(ROOT / "tests" / "testdata" / "golden_v1")


def dataset_of(fit="stretch", **of_splits):
    """Returns a manifest of pictures stored as squares."""
    return dataclasses.replace(
        GOLDEN,
        image_shape=(224, 224, 1),
        preprocessing=Preprocessing(fit=fit).to_dict(),
        audit={"measures": {"shapes": of_splits}},
    )


def test_shapes_within_one_percent_are_one():
    assert shapes.distinct([2.0, 1.0, 1.005, 1.0, 3.0968, 1.02]) == [1.0, 1.02, 2.0, 3.0968]


def test_the_shapes_of_a_dataset_are_those_of_the_splits_that_are_asked_for():
    dataset = dataset_of(train=[1.0, 2.0], val=[1.0, 1.5])
    assert shapes.of_dataset(dataset) == [1.0, 1.5, 2.0]
    assert shapes.of_dataset(dataset, ["train"]) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("dataset", "told"),
    [
        (
            dataset_of(train=[1.0323, 1.0, 3.0968], test=[0.7742]),
            "the images are 0.77 to 3.1 times as wide as high (4 shapes); all are stretched to "
            "224 x 224 pixels (--fit pad keeps all but very wide or high ones)",
        ),
        (
            dataset_of("pad", train=[12.5]),
            "the images are 12 times as wide as high; all are padded with black to 224 x 224 "
            "pixels",
        ),
        *((dataset, None) for dataset in (dataset_of(train=[1.0, 0.995]), dataset_of(), GOLDEN)),
    ],
)
def test_the_build_says_what_became_of_shapes_that_are_not_the_stored_one(dataset, told):
    assert shapes.describe(dataset) == told


def test_a_shape_far_from_all_of_the_training_images_is_warned_of():
    warning = shapes.warn_of_unseen([1.81, 1.03, 2.0], [1.0323, 1.5484, 2.0645], SQUARE)
    assert "1.8 times as wide as high, which no training image is (those are 1.0 to 2" in warning
    assert "stretched to 224 x 224 pixels" in warning
    # Shapes like those of the training images, and unknown ones.
    assert shapes.warn_of_unseen([1.08, 1.45], [1.0, 1.5], SQUARE) is None
    assert shapes.warn_of_unseen([1.08, 1.45], [], SQUARE) is None


def test_the_share_of_padding_is_known_of_padded_datasets_alone():
    examples = pa.table({"shape": np.array([1.0, 1.6, 0.25], np.float32)})
    padded = shapes.with_padding(dataset_of("pad"), examples)
    assert padded["padding"].to_pylist() == [0, 38, 50]
    assert shapes.with_padding(dataset_of(), examples) is examples

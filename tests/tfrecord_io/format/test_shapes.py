"""Which shapes a dataset has, and which a network was not trained on."""

import dataclasses

from builds import ROOT

from tfrecord_io import Manifest
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.format import shapes

SQUARE = Preprocessing(fit="stretch")
GOLDEN = Manifest.load(ROOT / "tests" / "testdata" / "golden_v1")


def test_the_shapes_of_a_dataset_are_those_of_the_splits_that_are_asked_for():
    assert shapes.distinct([2.0, 1.0, 1.005, 1.0, 3.0968, 1.02]) == [1.0, 1.02, 2.0, 3.0968]
    dataset = dataclasses.replace(
        GOLDEN, audit={"measures": {"shapes": {"train": [1.0, 2.0], "val": [1.0, 1.5]}}}
    )
    assert shapes.of_dataset(dataset) == [1.0, 1.5, 2.0]
    assert shapes.of_dataset(dataset, ["train"]) == [1.0, 2.0]


def test_a_shape_far_from_all_of_the_training_images_is_warned_of():
    warning = shapes.warn_of_unseen([1.81, 1.03, 2.0], [1.0323, 1.5484, 2.0645], SQUARE)
    assert "1.8 times as wide as high, which no training image is (those are 1.0 to 2" in warning
    assert "stretched to 224 x 224 pixels" in warning
    # Shapes like those of the training images, and unknown ones.
    assert shapes.warn_of_unseen([1.08, 1.45], [1.0, 1.5], SQUARE) is None
    assert shapes.warn_of_unseen([1.08, 1.45], [], SQUARE) is None

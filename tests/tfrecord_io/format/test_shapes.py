"""Which shapes a dataset has."""

import dataclasses

from builds import ROOT

from tfrecord_io import Manifest
from tfrecord_io.format import shapes

GOLDEN = Manifest.load(ROOT / "tests" / "testdata" / "golden_v1")


def test_the_shapes_of_a_dataset_are_those_of_the_splits_that_are_asked_for():
    assert shapes.distinct([2.0, 1.0, 1.005, 1.0, 3.0968, 1.02]) == [1.0, 1.02, 2.0, 3.0968]
    dataset = dataclasses.replace(
        GOLDEN, audit={"measures": {"shapes": {"train": [1.0, 2.0], "val": [1.0, 1.5]}}}
    )
    assert shapes.of_dataset(dataset) == [1.0, 1.5, 2.0]
    assert shapes.of_dataset(dataset, ["train"]) == [1.0, 2.0]

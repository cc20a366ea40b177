"""Prints how many epochs show about this many images: epochs.py DATASET IMAGES, for `make run`."""

from __future__ import annotations

import sys

from tfrecord_io import Manifest


def main(dataset: str, num_images: str) -> None:
    """Prints the number of epochs over the train split of a dataset, at least 1."""
    train = Manifest.load(dataset).splits.get("train")
    print(max(1, int(num_images) // train.num_examples) if train and train.num_examples else 1)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Shapes of pictures: which a dataset has, and which a network was not trained on.

A shape is the width of a picture divided by its height, see `DecodedImage.shape`.

>>> distinct([2.0, 1.0, 1.005, 1.0, 3.0968, 1.02])
[1.0, 1.02, 2.0, 3.0968]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from tfrecord_io.format.manifest import Manifest

# Shapes that differ by less than this factor count as one.
_SAME = 1.01

# Shapes are unseen that differ from each of the training images by this factor.
_UNSEEN = 1.1


def distinct(shapes: Iterable[float]) -> list[float]:
    """Returns the shapes in ascending order, one of those that differ by less than a percent."""
    found: list[float] = []
    for shape in sorted(set(shapes)):
        if not found or shape >= found[-1] * _SAME:
            found.append(round(shape, 4))
    return found


def of_dataset(dataset: Manifest, splits: Iterable[str] | None = None) -> list[float]:
    """Returns the `distinct` shapes of some splits, or of all; none if its audit does not say."""
    known = dataset.audit.get("measures", {}).get("shapes", {})
    names = known if splits is None else splits
    return distinct(itertools.chain.from_iterable(known.get(name, ()) for name in names))


def warn_of_unseen(shapes: Iterable[float], trained: Sequence[float]) -> str | None:
    """Returns a warning if a network was not trained on the shapes of some images, or None.

    `trained` are the `distinct` shapes of the training images; none if they are unknown.
    """
    unseen = [
        shape
        for shape in distinct(shapes)
        if not any(known / _UNSEEN < shape < known * _UNSEEN for known in trained)
    ]
    if not trained or not unseen:
        return None
    return (
        f"some images are {unseen[-1]:.2g} times as wide as high, which no training image is, so "
        "the network's answers may be wrong. Cut them to such a shape, or train on some of them"
    )

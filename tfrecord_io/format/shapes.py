"""Shapes of pictures: which a dataset has, and which a network was not trained on.

A shape is the width of a picture divided by its height, see `DecodedImage.shape`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from tfrecord_io.decoding.options import FITS, Preprocessing
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


def with_padding(dataset: Manifest, examples: pa.Table) -> pa.Table:
    """Adds a column `padding`, the percentage of each stored image, to that of a padded dataset."""
    if not dataset.is_padded:
        return examples
    fit = Preprocessing.from_dict(dataset.preprocessing)
    unique, places = np.unique(examples["shape"].to_numpy(), return_inverse=True)
    boxes = np.array([fit.box(shape, 1) for shape in unique]).reshape(-1, 4)
    filled = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) / (fit.width * fit.height)
    percentages = np.rint(100 - 100 * filled).astype(np.int64)[places]
    return examples.append_column("padding", pa.array(percentages))


def describe(dataset: Manifest) -> str | None:
    """Says what was done to the shapes of a dataset; None if all images have the stored one."""
    preprocessing, shapes = Preprocessing.from_dict(dataset.preprocessing), of_dataset(dataset)
    stored = preprocessing.width / preprocessing.height
    if all(1 / _SAME < shape / stored < _SAME for shape in shapes):
        return None
    several = f" ({len(shapes)} shapes)" if len(shapes) > 1 else ""
    is_stretched = preprocessing.fit == "stretch"
    advice = " (--fit pad keeps all but very wide or high ones)" if is_stretched else ""
    done = _fitted(preprocessing)
    return f"the images are {_range(shapes)} times as wide as high{several}; {done}{advice}"


def warn_of_unseen(
    shapes: Iterable[float], trained: Sequence[float], preprocessing: Preprocessing
) -> str | None:
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
        f"some images are {_range(unseen)} times as wide as high, which no training image is "
        f"(those are {_range(trained)} times); {_fitted(preprocessing)}, so they look like nothing "
        "that the network has learned, and its answers may be wrong. Cut them to such a shape, or "
        "train on some of them"
    )


def _fitted(preprocessing: Preprocessing) -> str:
    size = f"{preprocessing.width} x {preprocessing.height} pixels"
    how = "padded with black" if preprocessing.fit == "pad" else FITS[preprocessing.fit]
    return f"all are {how} to {size}"


def _range(shapes: Sequence[float]) -> str:
    texts = (f"{shape:#.2g}".rstrip(".") for shape in (shapes[0], shapes[-1]))
    return " to ".join(dict.fromkeys(texts))

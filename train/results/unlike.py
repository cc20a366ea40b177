"""How unlike the training images an image is, as the network sees it.

Source: Sun et al. 2022, "Out-of-distribution detection with deep nearest neighbors".
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import keras
import numpy as np

from train.data.dataset import Dataset, Part

FILE_NAME = "features.npz"

# Most training images whose features are kept, 1 MB of small_resnet; more make a run longer.
_MAX_VECTORS = 1_000

# An image is unlike if its distance is above that of so many percent of the validation images.
_PERCENTILE = 95

_NEIGHBOUR = 10


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Known:
    """What a network knows of its training images.

    Attributes:
        model: stored images → (answers, features), see `with_features`.
        vectors: features of training images, each of length 1, float32 [num_vectors, num_features].
        limit: distance above which an image is unlike them.
        val_share: share of the validation images that are.
    """

    model: keras.Model
    vectors: np.ndarray
    limit: float = 0.0
    val_share: float = 0.0

    def answer(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the answers, float32 [batch, num_classes], and the distances, float32 [batch]."""
        answers, features = map(keras.ops.convert_to_numpy, self.model(images, training=False))
        return answers, self.distances(features)

    def distances(self, features: np.ndarray) -> np.ndarray:
        """Returns the cosine distances of features to the 10th nearest vector, float32 [batch].

        If there are fewer vectors, to the last.
        """
        likeness, place = _unit(features) @ self.vectors.T, min(_NEIGHBOUR, len(self.vectors))
        return np.maximum(1 - np.partition(likeness, -place, axis=1)[:, -place], 0)


def with_features(model: keras.Model) -> keras.Model:
    """Returns a network of the same layers that gives answers and features in one pass.

    Features are the input of the layer `logits`, float32 [batch, num_features], with the mean over
    an image and its mirror image if the answer is such a mean.
    """
    (inner,) = (layer for layer in model.layers if isinstance(layer, keras.Model))
    both = keras.Model(inner.input, [inner.output, inner.get_layer("logits").input])
    features = []

    def call(layer: Any, *arguments: Any, **options: Any) -> Any:
        if layer is not inner:
            return layer(*arguments, **options)
        answer, found = both(*arguments, **options)
        features.append(found)
        return answer

    copy = keras.models.clone_model(model, clone_function=lambda layer: layer, call_function=call)
    mean = keras.layers.Average(dtype="float32", name="features")
    return keras.Model(copy.input, [copy.output, mean(features)])


def write_vectors(folder: Path, model: keras.Model, data: Dataset, train: Part, val: Part) -> None:
    """Writes features of training images and the limit of validation images into an export."""
    both = with_features(model)

    def features(part: Part) -> np.ndarray:
        rows = np.random.default_rng(0).permutation(part.rows[~data.is_copy(part)])[:_MAX_VECTORS]
        blocks = np.array_split(rows, len(rows) // 64 + 1)
        # In a graph, which takes half as long as one call after the other.
        images = ((data.stored[block][0],) for block in blocks)
        return both.predict(images, steps=len(blocks), verbose=0)[1]

    known = Known(model=both, vectors=_unit(features(train)))
    distances = known.distances(features(val))
    limit = np.percentile(distances, _PERCENTILE)
    facts = {"limit": limit, "val_share": np.mean(distances > limit)}
    np.savez(folder / FILE_NAME, vectors=known.vectors.astype(np.float16), **facts)


def read_vectors(folder: Path, model: keras.Model) -> list[Known]:
    """Returns what the network of an export knows; nothing if the export has no vectors."""
    if not (folder / FILE_NAME).exists():
        return []
    with np.load(folder / FILE_NAME) as arrays:
        facts = {name: float(arrays[name]) for name in ("limit", "val_share")}
        return [Known(model=with_features(model), vectors=_unit(arrays["vectors"]), **facts)]


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Returns vectors of length 1, float32; zeros stay zeros."""
    vectors = vectors.astype(np.float32)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)

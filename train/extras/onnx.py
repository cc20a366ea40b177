"""export/model.onnx, for ONNX Runtime, which runs the model without Keras.

Only with the packages of the extra `onnx`, and on TensorFlow.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import keras

FILE_NAME = "model.onnx"

# ONNX Runtime has kernels of its own, which round in other places.
_TOLERANCE = 1e-4


def write(export: Path) -> None:
    """Writes the model of an export folder as ONNX, loads it again and compares its answers.

    Without the packages, or on another backend than TensorFlow, nothing is written.

    Raises:
        TrainingError: if they differ.
    """
    import keras

    from train.networks.export import answer, noise_for, require_same

    has_packages = all(map(importlib.util.find_spec, ("tf2onnx", "onnxruntime")))
    if not has_packages or keras.backend.backend() != "tensorflow":
        return
    # A copy lies on one device; the trained model may be spread over replicas.
    copy = keras.saving.load_model(export / "model.keras", compile=False)
    images = noise_for(copy)
    answers = convert(copy, export / FILE_NAME, images)
    require_same(FILE_NAME, answers, answer(copy, images), _TOLERANCE)


def convert(model: keras.Model, path: Path, images: np.ndarray) -> np.ndarray:
    """Writes a model as ONNX, and returns what ONNX Runtime answers to stored images."""
    import onnxruntime
    import tensorflow as tf
    import tf2onnx

    # Not `model.export(format="onnx")`, which calls the same converter: it makes inputs of the mean
    # and the variance of `keras.layers.Normalization`, so nobody could call the model.
    taken = tf.TensorSpec((None, *images.shape[1:]), images.dtype, name="image")
    tf2onnx.convert.from_keras(model, [taken], output_path=str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"image": images})[0]

"""Exports the trained model in several forms, and loads each again to try it.

    model.keras         the whole model, for Keras
    saved_model/        TensorFlow's serving format; `serving_default` takes stored images. Only
                        where TensorFlow is installed
    model.weights.h5    weights alone
    architecture.json   layers alone
    preprocessing.json  how a file becomes the model's input, and what its outputs are called
    thresholds.json     see `thresholds.choose_thresholds`; only if any were chosen

Nothing of this project is needed to load them: the models are built of Keras' own layers.
"""

from __future__ import annotations

import importlib.util
import timeit
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

import tfrecord_io
from tfrecord_io.decoding import dicom
from tfrecord_io.decoding.preprocess import decoder_versions
from tfrecord_io.format import shapes
from tfrecord_io.stores.files import write_json
from train.kinds.task import require_numbers
from train.machine.errors import TrainingError
from train.machine.places import OWN_FILES
from train.results import thresholds

EXPORT_NAME = "export"

#: Largest difference of a probability between the model and its reloaded copy. Another graph may
#: add in another order.
_TOLERANCE = 1e-5


def export_model(
    model: keras.Model,
    directory: Path,
    manifest: tfrecord_io.Manifest,
    *,
    splits: Sequence[str],
    chosen: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Writes the model in every form, and how files become its input; replaces an old export.

    The manifest is that of the training data, and `splits` have the training images, whose shapes
    `predict` compares. The `chosen` are thresholds.

    Raises:
        TrainingError: if a form, loaded again, predicts something else, or no numbers.
    """
    images = _noise_for(model)
    expected = answer(model, images)
    require_numbers(expected, "images of noise")
    directory.mkdir(exist_ok=True)
    # A run that was killed while it exported leaves a part of them.
    for path in filter(Path.is_file, directory.rglob("*")):
        if OWN_FILES.fullmatch(f"{EXPORT_NAME}/{path.relative_to(directory).as_posix()}"):
            path.unlink()
    model.save(directory / "model.keras")
    # The other forms are written from the copy, which lies on one device.
    copy = keras.saving.load_model(directory / "model.keras", compile=False)
    _require_same("model.keras", copied := answer(copy, images), expected)
    copy.save_weights(directory / "model.weights.h5")
    (directory / "architecture.json").write_text(copy.to_json(), encoding="utf-8")
    rebuilt = keras.models.model_from_json(copy.to_json())
    rebuilt.load_weights(directory / "model.weights.h5")
    _require_same("model.weights.h5", answer(rebuilt, images), copied)
    if importlib.util.find_spec("tensorflow") is not None:
        served = _serve(copy, directory / "saved_model", images)
        _require_same("saved_model", served, copied)
    else:
        print("note: the export has no saved_model, which TensorFlow writes")
    content = {
        "input": {"shape": list(manifest.image_shape), "dtype": "uint8", "name": "image"},
        "preprocessing": dict(manifest.preprocessing),
        "shapes": shapes.of_dataset(manifest, splits),
        "label_names": list(manifest.label_names),
        **manifest.label_kind.entry,
        # What made the pixels of the files.
        "decoder": {
            name: manifest.versions[name]
            for name in (*decoder_versions(), *dicom.PACKAGES)
            if name in manifest.versions
        },
        "dataset": {"name": manifest.name, "fingerprint": manifest.fingerprint},
    }
    write_json(directory / "preprocessing.json", content)
    if chosen:
        write_json(directory / thresholds.FILE_NAME, chosen)


def _noise_for(model: keras.Model) -> np.ndarray:
    """Returns eight images of noise, as a model takes them."""
    size = (8, *model.input_shape[1:])
    return np.random.default_rng(0).integers(256, size=size, dtype=np.uint8)


def _require_same(form: str, answers: np.ndarray, expected: np.ndarray) -> None:
    """Raises TrainingError if a form, loaded again, answers otherwise than the model."""
    difference = float(np.abs(answers - expected).max())
    if not difference <= _TOLERANCE:
        raise TrainingError(
            f"{form}, loaded again, predicts something else than the trained model: its answers "
            f"differ by up to {difference:.2g}, allowed is {_TOLERANCE:g}; do not use this export"
        )


def answer(model: keras.Model, images: np.ndarray) -> np.ndarray:
    """Returns float32 [batch, num_classes] probabilities of stored images."""
    return keras.ops.convert_to_numpy(model(images, training=False))


def milliseconds_of(model: keras.Model) -> float:
    """Returns how long the model takes to answer to one image, the shortest of three times."""
    image = _noise_for(model)[:1]
    answer(model, image)
    return 1000 * min(timeit.repeat(lambda: answer(model, image), number=1, repeat=3))


def _serve(model: keras.Model, path: Path, images: np.ndarray) -> np.ndarray:
    """Writes TensorFlow's serving format, and returns what it answers when it is loaded again."""
    import tensorflow as tf
    from absl import logging

    # TensorFlow's warnings while saving and loading concern training.
    logging.set_verbosity(logging.ERROR)
    # Not `model.export`: it leaves `training` open, and then augmentation stays active.
    archive = keras.export.ExportArchive()
    archive.track(model)
    taken = tf.TensorSpec((None, *images.shape[1:]), images.dtype, name="image")
    archive.add_endpoint("serve", lambda image: model(image, training=False), [taken])
    archive.write_out(path, verbose=False)
    served = tf.saved_model.load(str(path)).signatures["serving_default"]
    (found,) = served(image=tf.constant(images)).values()
    return found.numpy()

"""Exports the trained model in several forms, and loads each again to try it.

    model.keras         the whole model, for Keras
    saved_model/        TensorFlow's serving format; `serving_default` takes stored images. Only
                        where TensorFlow is installed
    model.weights.h5    weights alone
    architecture.json   layers alone
    preprocessing.json  how a file becomes the model's input, and what its outputs are called
    thresholds.json     see `thresholds.choose_thresholds`; only if some were chosen

Nothing of this project is needed to load them: the models are built of Keras' own layers.
"""

from __future__ import annotations

import importlib.util
import shutil
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
from train.networks.models import Network
from train.results import thresholds
from train.training.run_setup import Run

FOLDER_NAME = "export"
SAVED_MODEL_NAME = "saved_model"

#: Largest difference of a probability between the model and its reloaded copy. Another graph may
#: add in another order.
_TOLERANCE = 1e-5


def export_model(
    model: keras.Model,
    directory: Path,
    manifest: tfrecord_io.Manifest,
    *,
    splits: Sequence[str],
) -> None:
    """Writes the model in every form, loads each again and compares their predictions.

    Args:
        model: images of the manifest's type → float32 probabilities.
        directory: made; if it is there, it is emptied first.
        manifest: of the training data, for preprocessing and names.
        splits: names of those with the training images, whose shapes `predict` compares.

    Raises:
        TrainingError: if a form predicts something else than the model, or the model predicts no
            numbers.
    """
    images = np.random.default_rng(0).integers(
        np.iinfo(manifest.dtype).max + 1, size=(8, *manifest.image_shape), dtype=manifest.dtype
    )
    expected = answer(model, images)
    require_numbers(expected, "images of noise")
    # A run that was killed while it exported leaves temporary files here.
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()

    def compare(name: str, found: np.ndarray) -> None:
        # Probabilities are at most 1; numbers can be large, and their last digits differ.
        allowed = _TOLERANCE * max(1.0, float(np.abs(expected).max()))
        is_alike = found.shape == expected.shape
        difference = float(np.abs(found - expected).max()) if is_alike else np.inf
        if not difference <= allowed:
            raise TrainingError(
                f"{name}, loaded again, predicts something else than the trained model: its "
                f"answers differ by up to {difference:.2g}, allowed is {allowed:g}; do not use "
                "this export"
            )

    path = directory / "model.keras"
    model.save(path)
    copy = keras.saving.load_model(path, compile=False)
    compare(path.name, answer(copy, images))

    path, architecture = directory / "model.weights.h5", model.to_json()
    model.save_weights(path)
    (directory / "architecture.json").write_text(architecture, encoding="utf-8")
    rebuilt = keras.models.model_from_json(architecture)
    rebuilt.load_weights(path)
    compare(path.name, answer(rebuilt, images))

    if importlib.util.find_spec("tensorflow") is not None:
        # The reloaded copy lies on one device; the trained model may be spread over replicas.
        compare(SAVED_MODEL_NAME, _serve(copy, directory / SAVED_MODEL_NAME, images))
    else:
        print(f"note: the export has no {SAVED_MODEL_NAME}, which TensorFlow writes")

    content = {
        "input": {"shape": list(manifest.image_shape), "dtype": manifest.dtype, "name": "image"},
        "preprocessing": dict(manifest.preprocessing),
        "shapes": shapes.of_dataset(manifest, splits),
        "label_names": list(manifest.label_names),
        **manifest.label_kind.entry,
        # What made the pixels of the files; predict warns where it differs.
        "decoder": {
            name: manifest.versions[name]
            for name in (*decoder_versions(), *dicom.PACKAGES)
            if name in manifest.versions
        },
        "dataset": {"name": manifest.name, "fingerprint": manifest.fingerprint},
    }
    write_json(directory / "preprocessing.json", content)


def export_run(run: Run, network: Network, chosen: Sequence[Mapping[str, Any]]) -> None:
    """Exports the network of a run, and its thresholds."""
    folder, splits = run.folder / FOLDER_NAME, run.parts.train.splits
    export_model(network.model, folder, run.data.manifest, splits=splits)
    if chosen:
        write_json(folder / thresholds.FILE_NAME, chosen)


def answer(model: keras.Model, images: np.ndarray) -> np.ndarray:
    """Returns float32 [batch, num_classes] probabilities of stored images."""
    return keras.ops.convert_to_numpy(model(images, training=False))


def _serve(model: keras.Model, path: Path, images: np.ndarray) -> np.ndarray:
    """Writes TensorFlow's serving format, and returns what it answers when it is loaded again."""
    import tensorflow as tf
    from absl import logging

    # TensorFlow's warnings while saving and loading concern training.
    logging.set_verbosity(logging.ERROR)
    # Not `model.export`: it leaves `training` open, and then augmentation stays active.
    archive = keras.export.ExportArchive()
    archive.track(model)
    taken = tf.TensorSpec((None, *model.input_shape[1:]), model.inputs[0].dtype, name="image")
    archive.add_endpoint("serve", lambda image: model(image, training=False), [taken])
    archive.write_out(path, verbose=False)
    served = tf.saved_model.load(str(path)).signatures["serving_default"]
    (found,) = served(image=tf.constant(images)).values()
    return found.numpy()

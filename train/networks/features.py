"""Training on features that a trunk made: the layers above the trunk, and the whole model.

A dataset of features has a copy of its trunk, with the layers above the cut inside. Training starts
with these, and the export puts the trunk below them again.
"""

from __future__ import annotations

import dataclasses
import tempfile
import zipfile
from pathlib import Path
from typing import BinaryIO

import keras

import tfrecord_io
from tfrecord_io.stores.folder import open_file
from tfrecord_io.trunk import FILE_NAME, REST_NAME, Trunk
from train.networks import models
from train.run_setup import Run


def build_network(run: Run, *, temperature: float = 1.0) -> models.Network:
    """Builds the network from a feature map on; the layers above the trunk have its weights.

    Args:
        run: on features.
        temperature: divisor of the log probabilities, see `kinds.temperature`.

    Returns:
        a network whose inputs are stored feature maps. Its `backbone` is the layers between the
        trunk and the head.
    """
    options, seed = run.config.network, run.config.input.seed
    with open_file(run.config.input.data, FILE_NAME) as file:
        rest = _load_rest(file)
    features = keras.Input(run.manifest.image_shape, dtype="float32", name="features")
    classes = models.add_head(rest(features), options, run.manifest.num_classes, seed)
    logits = keras.Model(features, classes, name=options.model)
    model = models.classifier(
        logits, options, run.task, dtype=run.manifest.dtype, factor=1.0, temperature=temperature
    )
    # As for images, `--trainable_layers` does not count the layer that makes the map flat.
    backbone = keras.Model(rest.input, rest.layers[-1].input)
    return models.Network(logits=logits, model=model, backbone=backbone)


def whole_model(run: Run, network: models.Network) -> keras.Model:
    """Returns the trunk and the trained layers as one model: uint8 images → probabilities.

    It rounds the features as the dataset stores them, so it answers what the evaluation measured.
    """
    # Keras reads local files only.
    with (
        tempfile.TemporaryDirectory() as folder,
        open_file(run.config.input.data, FILE_NAME) as file,
    ):
        path = Path(folder) / FILE_NAME
        path.write_bytes(file.read())
        trunk = keras.saving.load_model(path, compile=False)
    trunk.trainable = False
    images = keras.Input(trunk.input_shape[1:], dtype="uint8", name="image")
    stored = keras.layers.Rescaling(1.0, dtype=run.manifest.dtype, name="as_stored")
    probabilities = network.model(stored(trunk(images)))
    return keras.Model(images, probabilities, name=f"{run.config.network.model}_whole")


def manifest_of_images(manifest: tfrecord_io.Manifest, trunk: Trunk) -> tfrecord_io.Manifest:
    """Returns the manifest of features with the facts of the images that the trunk takes."""
    images = manifest.source["dataset"]
    return dataclasses.replace(
        manifest,
        name=images["name"],
        fingerprint=images["fingerprint"],
        image_shape=trunk.image_shape,
        dtype="uint8",
    )


def _load_rest(file: BinaryIO) -> keras.Model:
    """Returns the layers between the trunk and the head, in the precision that is set."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(file) as archive:
        saved = keras.saving.load_model(archive.extract(REST_NAME, folder), compile=False)

    def copy(layer: keras.layers.Layer) -> keras.layers.Layer:
        # Keras saves the precision with each layer.
        return type(layer).from_config(layer.get_config() | {"dtype": keras.config.dtype_policy()})

    rest = keras.models.clone_model(saved, clone_function=copy)
    rest.set_weights(saved.get_weights())
    return rest

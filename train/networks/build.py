"""The network of a run: on images, or on features above the trunk that made them.

A dataset of features has a copy of its trunk, with the layers above the cut inside. Training starts
with these, and the export puts the trunk below them again.
"""

from __future__ import annotations

import dataclasses
import io
import tempfile
import zipfile
from pathlib import Path

import keras

import tfrecord_io
from tfrecord_io.trunk import FILE_NAME, REST_NAME, Trunk
from train.devices import set_precision
from train.networks import models
from train.run_setup import Run


def build_network(
    run: Run,
    precision: str,
    *,
    weights: str | None = "none",
    temperature: float = 1.0,
    is_final: bool = False,
) -> models.Network:
    """Builds the network of a run on its devices.

    Args:
        run: resolved.
        precision: arithmetic of the layers, such as `float32` or `bfloat16`.
        weights: see `NetworkOptions`; "none" where a checkpoint overrides them all. Layers on the
            features of a trunk have those that the trunk's file holds.
        temperature: divisor of the log probabilities, see `kinds.temperature`.
        is_final: whether it is the one to export.

    Raises:
        ConfigError: if the images do not suit the network or the weights cannot be loaded.
    """
    set_precision(precision)
    manifest = run.data.manifest
    with run.devices.scope():
        if run.data.trunk is not None:
            return _build_above_trunk(run, temperature)
        return models.build_network(
            dataclasses.replace(run.config.network, weights=weights),
            image_shape=manifest.image_shape,
            num_classes=manifest.num_classes,
            seed=run.config.input.seed,
            task=run.task,
            image_dtype=manifest.dtype,
            grey_factor=run.grey_factor,
            statistics=run.statistics,
            is_padded=manifest.is_padded,
            temperature=temperature,
            # Not in what is exported: other backends refuse to load it.
            synchronized=run.devices.must_synchronize and not is_final,
        )


def _build_above_trunk(run: Run, temperature: float) -> models.Network:
    """Builds a network whose inputs are stored feature maps.

    Its `backbone` is the layers between the trunk and the head, with the weights of the trunk.
    """
    options, manifest = run.config.network, run.data.manifest
    with (
        tempfile.TemporaryDirectory() as folder,
        zipfile.ZipFile(io.BytesIO(run.data.trunk_file)) as archive,
    ):
        saved = keras.saving.load_model(archive.extract(REST_NAME, folder), compile=False)

    def copy(layer: keras.layers.Layer) -> keras.layers.Layer:
        # Keras saves the precision with each layer.
        return type(layer).from_config(layer.get_config() | {"dtype": keras.config.dtype_policy()})

    rest = keras.models.clone_model(saved, clone_function=copy)
    rest.set_weights(saved.get_weights())
    features = keras.Input(manifest.image_shape, dtype="float32", name="features")
    classes = models.add_head(rest(features), options, manifest.num_classes, run.config.input.seed)
    logits = keras.Model(features, classes, name=options.model)
    model = models.classifier(
        logits, options, run.task, dtype=manifest.dtype, factor=1.0, temperature=temperature
    )
    # As for images, `--trainable_layers` does not count the layer that makes the map flat.
    backbone = keras.Model(rest.input, rest.layers[-1].input)
    return models.Network(logits=logits, model=model, backbone=backbone)


def whole_model(run: Run, network: models.Network) -> keras.Model:
    """Returns the trunk and the trained layers as one model: uint8 images → probabilities.

    It rounds the features as the dataset stores them, so it answers what the evaluation measured.
    """
    # Keras reads files only.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / FILE_NAME
        path.write_bytes(run.data.trunk_file)
        trunk = keras.saving.load_model(path, compile=False)
    trunk.trainable = False
    images = keras.Input(trunk.input_shape[1:], dtype="uint8", name="image")
    stored = keras.layers.Rescaling(1.0, dtype=run.data.manifest.dtype, name="as_stored")
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

"""The network of a run: on images, or on features above the trunk that made them."""

from __future__ import annotations

import dataclasses
import io
import tempfile
import zipfile

import keras

import tfrecord_io
from tfrecord_io.trunk import REST_NAME, Trunk
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
        run: to train, or trained.
        precision: arithmetic of the layers, such as `float32` or `bfloat16`.
        weights: see `NetworkOptions`; "none" where a checkpoint overrides them all. Layers above a
            trunk have those that the trunk's file holds.
        temperature: see `models.build_network`.
        is_final: whether it is the one to export.

    Raises:
        ConfigError: if the images do not suit the network or the weights cannot be loaded.
    """
    keras.config.set_dtype_policy(precision if precision == "float32" else f"mixed_{precision}")
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

    Its `backbone` is the layers between the trunk and the head, with the weights that lie in the
    trunk's file.
    """
    options, manifest = run.config.network, run.data.manifest
    with zipfile.ZipFile(io.BytesIO(run.data.trunk_file)) as archive:
        saved = _load_model(archive.read(REST_NAME))

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


def _load_model(content: bytes) -> keras.Model:
    """Returns the model in a file's content; Keras reads files only."""
    with tempfile.NamedTemporaryFile(suffix=".keras") as file:
        file.write(content)
        file.flush()
        return keras.saving.load_model(file.name, compile=False)


def whole_model(run: Run, network: models.Network) -> keras.Model:
    """Returns the trunk and the trained layers as one model: uint8 images → probabilities.

    It rounds the features as the dataset stores them, so it answers what the evaluation measured.
    """
    trunk = _load_model(run.data.trunk_file)
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

"""The networks: uint8 images in, class probabilities out, all on the device.

Everything between the stored bytes and the answer is a layer of the model: the cast to float,
grey widened to three channels, augmentation, the scaling its weights were trained with. So a
saved model needs no recipe beside it, and a host thread never touches a pixel. Pure Keras 3: the
same code runs on TensorFlow and on JAX.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import keras

from train.config import ConfigError, TrainConfig

#: Keras downloads and checks the hash of the files of `weights="imagenet"`.
_IMAGENET = "imagenet"

LOGITS_LAYER = "logits"


#: Means of ImageNet in 0..255, blue, green, red: what VGG16 and ResNet50 were trained less.
#: Source: keras.applications.imagenet_utils (`mode="caffe"`).
CAFFE_MEANS = (103.939, 116.779, 123.68)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backbone:
    """A network of keras.applications and the input its published weights expect.

    Attributes:
        build: the constructor in keras.applications.
        scale: turns 0..255 RGB into that input.
        smallest: least height and width in pixels.
    """

    build: Callable[..., keras.Model]
    scale: Callable[[keras.KerasTensor], keras.KerasTensor]
    smallest: int


def _scale_caffe(images: keras.KerasTensor) -> keras.KerasTensor:
    """RGB in 0..255 → BGR less the means, with Keras' own layers, so that any Keras loads it.

    The 2018 tutorial fed pixels in 0..1 to weights trained on this, and lost accuracy by it.
    """
    reversed_channels = keras.ops.flip(images, axis=-1)
    return keras.layers.Normalization(
        mean=CAFFE_MEANS, variance=(1.0, 1.0, 1.0), name="imagenet_scaling"
    )(reversed_channels)


BACKBONES = {
    "vgg16": Backbone(build=keras.applications.VGG16, scale=_scale_caffe, smallest=32),
    "resnet50": Backbone(build=keras.applications.ResNet50, scale=_scale_caffe, smallest=32),
    "efficientnetv2b0": Backbone(
        build=keras.applications.EfficientNetV2B0,
        # Its own first layers scale 0..255 (include_preprocessing=True is the default).
        scale=lambda images: images,
        smallest=32,
    ),
}


@dataclasses.dataclass(frozen=True)
class Network:
    """A model with the parts that training needs to tell apart.

    Attributes:
        model: uint8 [batch, height, width, channels] → float32 [batch, num_classes]
            probabilities.
        logits: the same layers up to the logits: the loss is computed from them, because the
            logarithm of a rounded probability loses the gradient of confident mistakes.
        backbone: the pretrained part, or None.
    """

    model: keras.Model
    logits: keras.Model
    backbone: keras.Model | None


def build_network(
    config: TrainConfig, *, image_shape: tuple[int, int, int], num_classes: int
) -> Network:
    """Builds the network of a configuration.

    Args:
        config: names the model, its weights, head and augmentation.
        image_shape: (height, width, channels) of the stored uint8 images.
        num_classes: outputs.

    Raises:
        ConfigError: if the image does not suit the network or the weights cannot be had.
    """
    images = keras.Input(image_shape, dtype="uint8", name="image")
    features = keras.layers.Rescaling(1.0, name="to_float")(images)
    if config.augment:
        features = _augment(features, config.seed)
    backbone = None
    if config.model == "convnet":
        features = keras.layers.Rescaling(1 / 255, name="to_unit_range")(features)
        features = _convnet(features, image_shape)
    else:
        features, backbone = _backbone(features, config, image_shape)
    if config.head_units:
        features = keras.layers.Dense(config.head_units, activation="relu", name="head")(features)
    if config.dropout:
        features = keras.layers.Dropout(config.dropout, seed=config.seed + 1, name="dropout")(
            features
        )
    logits = keras.layers.Dense(num_classes, name=LOGITS_LAYER)(features)
    # In reduced precision a softmax would round; probabilities are always float32.
    probabilities = keras.layers.Softmax(dtype="float32", name="probabilities")(logits)
    model = keras.Model(images, probabilities, name=config.model)
    if config.model == "convnet" and config.weights not in (None, "none"):
        _load_weights(model, str(config.weights))
    return Network(model=model, logits=keras.Model(images, logits), backbone=backbone)


def set_trainable(network: Network, *, phase: str, trainable_layers: int | None) -> None:
    """Freezes and unfreezes layers for a phase of training.

    Batch normalization inside a pretrained backbone stays frozen in every phase: its statistics
    were computed over ImageNet, and a few steps on small batches would destroy what the layers
    above rely on (Keras' guide to transfer learning says the same).

    Args:
        network: what `build_network` returned.
        phase: `head` trains what is new alone; `all` the last layers of the backbone too.
        trainable_layers: layers counted from the backbone's end, pooling included (4 is block 5
            of VGG16, as in the 2018 tutorial's `layers[:-4]`); None means all, for a network
            that starts from nothing.
    """
    if network.backbone is None:
        return
    layers = network.backbone.layers
    if phase == "head":
        unfrozen = 0
    else:
        unfrozen = len(layers) if trainable_layers is None else trainable_layers
    first = len(layers) - min(unfrozen, len(layers))
    network.backbone.trainable = True
    for index, layer in enumerate(layers):
        keeps_statistics = trainable_layers is not None and isinstance(
            layer, keras.layers.BatchNormalization
        )
        layer.trainable = index >= first and not keeps_statistics


def _augment(features, seed: int):
    """Random changes a scan may show anyway: mirrored eye, another position, other contrast."""
    layers = (
        keras.layers.RandomFlip("horizontal", seed=seed + 2, name="augment_flip"),
        keras.layers.RandomTranslation(
            0.1, 0.05, fill_mode="nearest", seed=seed + 3, name="augment_shift"
        ),
        keras.layers.RandomContrast(
            0.2, value_range=(0, 255), seed=seed + 4, name="augment_contrast"
        ),
    )
    for layer in layers:
        features = layer(features)
    return features


def _convnet(features, image_shape: tuple[int, int, int]):
    """Convolutions of 32, 64, 64 with pooling between: the 2018 tutorial's Fashion-MNIST network.

    There the last 3x3x64 map was flattened. Larger images are pooled further until at most 8x8
    is left, so that the dense layer stays small at any input size (28x28 gives the original).
    """
    for filters in (32, 64):
        features = keras.layers.Conv2D(filters, 3, activation="relu", padding=_padding(features))(
            features
        )
        features = _pool(features)
    features = keras.layers.Conv2D(64, 3, activation="relu", padding=_padding(features))(features)
    while max(features.shape[1:3]) > 8:
        features = _pool(features)
    return keras.layers.Flatten()(features)


def _padding(features) -> str:
    # Tiny images would vanish under valid convolutions.
    return "valid" if min(features.shape[1:3]) >= 5 else "same"


def _pool(features):
    size = tuple(min(2, side) for side in features.shape[1:3])
    return keras.layers.MaxPooling2D(size)(features)


def _backbone(features, config: TrainConfig, image_shape: tuple[int, int, int]):
    backbone_kind = BACKBONES[config.model]
    height, width, channels = image_shape
    if min(height, width) < backbone_kind.smallest:
        raise ConfigError(
            f"--model {config.model} needs images of at least {backbone_kind.smallest} pixels a "
            f"side, this dataset has {height}x{width}; use --model convnet or build larger images"
        )
    if channels == 1:
        features = keras.layers.Concatenate(name="grey_to_rgb")([features] * 3)
    elif channels != 3:
        raise ConfigError(f"--model {config.model} needs 1 or 3 channels, received {channels}")
    features = backbone_kind.scale(features)
    weights = config.weights or _IMAGENET
    try:
        backbone = backbone_kind.build(
            include_top=False,
            weights=_IMAGENET if weights == _IMAGENET else None,
            input_shape=(height, width, 3),
        )
    except Exception as error:
        # Keras raises a bare Exception when its download fails.
        if weights != _IMAGENET:
            raise
        raise ConfigError(
            f"the ImageNet weights of {config.model} could not be had: {error}\n"
            "Use --weights FILE with a file fetched elsewhere (Keras names it "
            f"{config.model}_..._notop.h5), or --weights none to start from nothing"
        ) from error
    if weights not in (_IMAGENET, "none"):
        _load_weights(backbone, weights)
    features = backbone(features)
    pooled = keras.layers.GlobalAveragePooling2D(name="pool")
    flat = keras.layers.Flatten(name="flatten") if config.model == "vgg16" else pooled
    return flat(features), backbone


def _load_weights(model: keras.Model, path: str) -> None:
    """Loads a weights file: Keras' own .weights.h5, or the .h5 that Keras publishes."""
    if not Path(path).is_file():
        raise ConfigError(
            f"--weights {path}: there is no such file; expected imagenet, none or a weights file"
        )
    try:
        model.load_weights(path)
    except Exception as error:  # h5py and Keras raise many kinds for a file that does not fit
        raise ConfigError(f"--weights {path} does not fit {model.name}: {error}") from error

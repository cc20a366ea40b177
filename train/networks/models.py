"""The networks: stored images in, probabilities out, all on the device.

Everything between the stored bytes and the answer is a layer of the model, of Keras' own, so a
saved model needs no code of this project, and the host never changes a pixel.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import keras
import numpy as np

from tfrecord_io.format.statistics import PixelStatistics
from tfrecord_io.terminal.address import local_path
from tfrecord_io.terminal.errors import UserError
from train.kinds.classes import CLASSES
from train.kinds.task import Task
from train.machine.errors import TrainingError
from train.networks.efficientnet_lite import efficientnet_lite0
from train.networks.options import (
    APPLICATIONS,
    LITE_MODEL,
    OWN_MODELS,
    TUTORIAL_MODELS,
    NetworkOptions,
)

# An image of a single grey level has a standard deviation of 0; this avoids the division by 0.
_LEAST_STD = 1.0


@dataclasses.dataclass(frozen=True)
class Network:
    """A model and the parts of it that training needs.

    Attributes:
        logits: float32 [batch, height, width, channels] in 0..255 → logits [batch, num_classes].
            Training runs it on augmented images and computes the loss from the logits: the
            logarithm of a rounded probability loses the gradient of confident mistakes.
        model: stored images [batch, height, width, channels] → float32 [batch, num_classes]
            probabilities. Evaluation and export use it; it shares the layers of `logits`.
        backbone: the network without its top that others trained, or could have; or None.
    """

    logits: keras.Model
    model: keras.Model
    backbone: keras.Model | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pixels:
    """What a network must know of the stored images.

    Attributes:
        shape: (height, width, channels).
        statistics: of the training pixels, by which small_resnet normalizes.
        is_padded: whether pictures are padded with black, see `picture_ends`.
    """

    shape: tuple[int, int, int]
    statistics: PixelStatistics | None = None
    is_padded: bool = False


def build_network(
    options: NetworkOptions,
    stored: Pixels,
    *,
    num_classes: int,
    seed: int = 0,
    task: Task = CLASSES,
    temperature: float = 1.0,
    with_mirror: bool = True,
    synchronized: bool = False,
) -> Network:
    """Builds the network of a resolved configuration.

    Args:
        options: of the network.
        stored: the images that it takes.
        num_classes: number of outputs.
        seed: of the head's weights and its dropout.
        task: says what the outputs are.
        temperature: divisor of the log probabilities, see `kinds.task`; 1 adds no layer.
        with_mirror: whether a probability is the mean over an image and its mirror image.
        synchronized: whether replicas exchange their batch statistics in training.

    Raises:
        UserError: if the images do not suit the network or the weights cannot be loaded.
    """
    pixels = keras.Input(stored.shape, dtype="float32", name="pixels")
    backbone = None
    if options.model not in OWN_MODELS:
        features, backbone = _backbone(pixels, options)
    elif options.model == "convnet":
        features = _convnet(pixels)
    else:
        features = _small_resnet(pixels, stored.statistics, synchronized)
    if options.model in TUTORIAL_MODELS:
        features = keras.layers.Dense(64, activation="relu", name="head")(features)
    else:
        features = keras.layers.Dropout(0.3, seed=seed + 1, name="dropout")(features)
    # With small weights, the untrained network finds all classes about equally likely.
    kernel = keras.initializers.RandomNormal(stddev=0.01, seed=seed)
    outputs = keras.layers.Dense(num_classes, kernel_initializer=kernel, name="logits")(features)
    logits = keras.Model(pixels, outputs, name=options.model)
    images = keras.Input(stored.shape, dtype="uint8", name="image")
    pixels = keras.layers.Rescaling(1.0, dtype="float32", name="to_float")(images)
    # Probabilities are always float32: in reduced precision they are rounded too much.
    activate = functools.partial(keras.layers.Activation, task.activation, dtype="float32")
    activation = activate(name=task.activation)
    probabilities = activation(logits(pixels))
    if with_mirror:
        mirrored = activation(logits(keras.ops.flip(pixels, axis=2)))
        mean = keras.layers.Average(dtype="float32", name="flip_mean")
        probabilities = mean([probabilities, mirrored])
    if temperature != 1.0:
        scaled = task.logits_of(probabilities) / temperature
        probabilities = activate(name="temperature")(scaled)
    model = keras.Model(images, probabilities, name=f"{options.model}_classifier")
    return Network(logits=logits, model=model, backbone=backbone)


def freeze(backbone: keras.Model, trainable_layers: int | None) -> None:
    """Freezes all but the last layers of a pretrained network, and its batch normalization.

    The statistics of that were computed over ImageNet, and a few steps on small batches would
    destroy what the layers above rely on. Source: Keras' guide "Transfer learning & fine-tuning".

    Args:
        backbone: of a `Network`.
        trainable_layers: number of layers from its end that are trained, including pooling layers
            (4 is block 5 of VGG16, the 2018 tutorial's `layers[:-4]`); None for all.
    """
    num_layers = len(backbone.layers)
    num_frozen = 0 if trainable_layers is None else max(0, num_layers - trainable_layers)
    for place, layer in enumerate(backbone.layers):
        is_norm = isinstance(layer, keras.layers.BatchNormalization)
        layer.trainable = place >= num_frozen and not is_norm


def restore(variables: Sequence[keras.Variable], values: Sequence[np.ndarray]) -> None:
    """Sets variables to arrays of a checkpoint; TrainingError if number or shapes differ."""
    ours = [tuple(variable.shape) for variable in variables]
    theirs = [value.shape for value in values]
    if ours != theirs:
        raise TrainingError(
            f"the checkpoint has {len(theirs)} variables and this network {len(ours)}, or their "
            "shapes differ: it belongs to another configuration. Use another --workdir"
        )
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


# (filters, blocks) of each stage of small_resnet; stages after the first halve the grid.
_STAGES = ((32, 1), (64, 1), (128, 2), (256, 1))


def _small_resnet(features, statistics: PixelStatistics | None, synchronized: bool):
    """A residual network with 1.5 million parameters, for a few hundred images and more.

    Blocks are pre-activated (He et al. 2016, "Identity mappings in deep residual networks"), and
    their branches start at zero (Goyal et al. 2017, "Accurate, large minibatch SGD", section 5.1).
    Batch normalization is over the global batch, so that any number of replicas learns the same.

    The first convolution reduces the image to a grid of 28 to 72 cells per side. The head gets the
    mean and the maximum over the last grid, because a finding may fill the scan or a single cell.
    """
    layers = keras.layers
    conv = functools.partial(layers.Conv2D, padding="same", kernel_initializer="he_normal")
    assert statistics is not None  # the session computes them for this network
    variance = [max(std, _LEAST_STD) ** 2 for std in statistics.std]
    features = layers.Normalization(mean=statistics.mean, variance=variance, name="normalization")(
        features
    )
    side = max(features.shape[1:3])
    if shrink := side // 289:  # images with a larger side are averaged down
        features = layers.AveragePooling2D(shrink + 1, name="shrink")(features)
        side //= shrink + 1
    stride = 1 if side < 56 else 2 if side < 112 else 4
    features = conv(_STAGES[0][0], max(3, 2 * stride - 1), stride)(features)
    for stage, (filters, num_blocks) in enumerate(_STAGES):
        for block in range(num_blocks):
            halving = 2 if stage and not block else 1
            normalize = layers.BatchNormalization(momentum=0.9, synchronized=synchronized)
            activated = layers.Activation("relu")(normalize(features))
            if halving > 1:
                pooled = layers.AveragePooling2D(halving, padding="same")(activated)
                features = conv(filters, 1, use_bias=False)(pooled)
            branch = conv(filters, 3, halving)(activated)
            branch = layers.Activation("relu")(branch)
            branch = conv(filters, 3, kernel_initializer="zeros")(branch)
            features = layers.Add()([features, branch])
    features = layers.Activation("relu")(features)
    mean = layers.GlobalAveragePooling2D(name="pool_mean")(features)
    maximum = layers.GlobalMaxPooling2D(name="pool_maximum")(features)
    return layers.Concatenate(name="pool")([mean, maximum])


def _convnet(features):
    """The 2018 tutorial's network for Fashion-MNIST: convolutions of 32, 64 and 64 filters.

    The tutorial flattened the last 3x3x64 map. Larger images are pooled further, to at most 8x8, so
    that the dense layer stays small at any input size.
    """

    def pool(features):
        size = tuple(min(2, side) for side in features.shape[1:3])
        return keras.layers.MaxPooling2D(size)(features)

    features = keras.layers.Rescaling(1 / 255, name="to_unit_range")(features)
    for place, filters in enumerate((32, 64, 64)):
        features = pool(features) if place else features
        # Valid convolutions would leave nothing of tiny images.
        padding = "valid" if min(features.shape[1:3]) >= 5 else "same"
        features = keras.layers.Conv2D(filters, 3, activation="relu", padding=padding)(features)
    while max(features.shape[1:3]) > 8:
        features = pool(features)
    return keras.layers.Flatten()(features)


def _backbone(features, options: NetworkOptions):
    """Returns flat features [batch, channels] of pixels in 0..255, and the network inside."""
    name, (_, height, width, channels) = options.model, features.shape
    if channels == 1:
        features = keras.layers.Concatenate(name="grey_to_rgb")([features] * 3)
    elif channels != 3:
        raise UserError(f"--model {name} needs 1 or 3 channels, received {channels}")
    weights = options.initial_weights
    if name == LITE_MODEL:
        features = scale(features, "lite")
        backbone = efficientnet_lite0(pretrained=weights == "imagenet")
    else:
        constructor, mode = APPLICATIONS[name]
        features = scale(features, mode)
        build = getattr(keras.applications, constructor)
        published = "imagenet" if weights == "imagenet" else None
        try:
            shape = (height, width, 3)
            backbone = build(include_top=False, weights=published, input_shape=shape)
        except ValueError as error:
            raise UserError(
                f"--model {name} does not take images of {height}x{width} pixels: {error}; "
                "use --model small_resnet or build larger images"
            ) from error
        except Exception as error:
            # Keras raises a plain Exception if a download fails.
            if not published:
                raise
            raise UserError(
                f"the ImageNet weights of {name} could not be downloaded: {error}\nUse --model "
                f"{LITE_MODEL}, whose weights are a package, --weights FILE with a file that was "
                f"downloaded elsewhere (Keras names it {name}_..._notop.h5), or --weights none "
                "for random weights"
            ) from error
    if weights not in ("imagenet", "none"):
        try:
            backbone.load_weights(local_path(weights))
        except Exception as error:  # h5py and Keras raise many types for a wrong file
            reason = str(error).strip().partition("\n")[0]
            raise UserError(
                f"--weights {weights} does not fit {name}: {reason:.300}; expected imagenet, none, "
                "or a file of its weights as Keras saves or publishes them. The network of another "
                "run is taken with --init RUN"
            ) from error
    if name == "vgg16":
        return keras.layers.Flatten(name="flatten")(backbone(features)), backbone
    return keras.layers.GlobalAveragePooling2D(name="pool")(backbone(features)), backbone


def scale(images, mode: str):
    """Converts RGB in 0..255 to what published weights expect, see `APPLICATIONS`.

    The 2018 tutorial fed pixels in 0..1 to weights of the mode `caffe`, which cost accuracy. Source
    of modes and numbers: keras.applications.imagenet_utils.
    """
    name = "imagenet_scaling"
    if mode == "inside":  # the network has layers that scale
        return images
    if mode == "tf":
        return keras.layers.Rescaling(1 / 127.5, offset=-1.0, name=name)(images)
    if mode == "lite":
        return keras.layers.Rescaling(1 / 128, offset=-127 / 128, name=name)(images)
    if mode == "caffe":  # ImageNet's means of blue, green, red
        images = keras.ops.flip(images, axis=-1)
        mean, variance = (103.939, 116.779, 123.68), (1.0, 1.0, 1.0)
    else:  # torch: means and standard deviations of red, green, blue
        mean = tuple(255 * value for value in (0.485, 0.456, 0.406))
        variance = tuple((255 * value) ** 2 for value in (0.229, 0.224, 0.225))
    return keras.layers.Normalization(mean=mean, variance=variance, name=name)(images)

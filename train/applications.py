"""The classifiers of keras.applications, and the input that their published weights expect."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

# Keras takes seconds to import and --help needs only the names, so functions import it.
if TYPE_CHECKING:
    import keras

#: ImageNet's channel means in 0..255, in the order blue, green, red. VGG and ResNet (version 1)
#: were trained with these subtracted. Source: keras.applications.imagenet_utils (`mode="caffe"`).
CAFFE_MEANS = (103.939, 116.779, 123.68)

#: ImageNet's channel means and standard deviations in 0..1, in the order red, green, blue. DenseNet
#: was trained with these. Source: keras.applications.imagenet_utils (`mode="torch"`).
TORCH_MEANS = (0.485, 0.456, 0.406)
TORCH_STDS = (0.229, 0.224, 0.225)

_Scale = Callable[["keras.KerasTensor"], "keras.KerasTensor"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Application:
    """A network of keras.applications.

    Attributes:
        name: name of the constructor in keras.applications.
        scale: converts RGB in 0..255 to the input that the published weights expect.
        smallest: smallest height and width that the network accepts, in pixels.
    """

    name: str
    scale: _Scale
    smallest: int


def _scale_caffe(images: keras.KerasTensor) -> keras.KerasTensor:
    """Converts RGB to BGR and subtracts the means; Keras' own layers need no custom code to load.

    The 2018 tutorial fed pixels in 0..1 to weights trained with this scaling, which cost accuracy.
    """
    import keras

    reversed_channels = keras.ops.flip(images, axis=-1)
    return keras.layers.Normalization(
        mean=CAFFE_MEANS, variance=(1.0, 1.0, 1.0), name="imagenet_scaling"
    )(reversed_channels)


def _scale_tf(images: keras.KerasTensor) -> keras.KerasTensor:
    """Scales 0..255 to -1..1. Source: keras.applications.imagenet_utils (`mode="tf"`)."""
    import keras

    return keras.layers.Rescaling(1 / 127.5, offset=-1.0, name="imagenet_scaling")(images)


def _scale_torch(images: keras.KerasTensor) -> keras.KerasTensor:
    import keras

    return keras.layers.Normalization(
        mean=[255 * mean for mean in TORCH_MEANS],
        variance=[(255 * std) ** 2 for std in TORCH_STDS],
        name="imagenet_scaling",
    )(images)


def _scale_inside(images: keras.KerasTensor) -> keras.KerasTensor:
    """Returns the images unchanged: these networks contain layers that scale 0..255."""
    return images


# (constructors, scaling, smallest side). Sources: `preprocess_input` and the docstring of each.
_FAMILIES: tuple[tuple[tuple[str, ...], _Scale, int], ...] = (
    (("VGG16", "VGG19", "ResNet50", "ResNet101", "ResNet152"), _scale_caffe, 32),
    (("ResNet50V2", "ResNet101V2", "ResNet152V2"), _scale_tf, 32),
    (("MobileNet", "MobileNetV2", "NASNetMobile", "NASNetLarge"), _scale_tf, 32),
    (("Xception",), _scale_tf, 71),
    (("InceptionV3", "InceptionResNetV2"), _scale_tf, 75),
    (("DenseNet121", "DenseNet169", "DenseNet201"), _scale_torch, 32),
    (("MobileNetV3Small", "MobileNetV3Large"), _scale_inside, 32),
    (tuple(f"EfficientNetB{size}" for size in range(8)), _scale_inside, 32),
    (tuple(f"EfficientNetV2{size}" for size in ("B0", "B1", "B2", "B3", "S", "M", "L")),
     _scale_inside, 32),
    (tuple(f"ConvNeXt{size}" for size in ("Tiny", "Small", "Base", "Large", "XLarge")),
     _scale_inside, 32),
)  # fmt: skip

#: Applications by the value of --model: the constructor's name in lower case.
APPLICATIONS = {
    name.lower(): Application(name=name, scale=scale, smallest=smallest)
    for names, scale, smallest in _FAMILIES
    for name in names
}

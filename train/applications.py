"""The classifiers of keras.applications, and the input that their published weights expect."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

_SCALING = "imagenet_scaling"

# Keras takes seconds to import and --help needs only the names, so functions import it.
if TYPE_CHECKING:
    import keras


@dataclasses.dataclass(frozen=True, kw_only=True)
class Application:
    """A network of keras.applications.

    Attributes:
        name: name of the constructor in keras.applications.
        mode: of the scaling that the published weights expect, see `scale`.
        smallest: smallest height and width that the network accepts, in pixels.
    """

    name: str
    mode: str
    smallest: int

    def scale(self, images: keras.KerasTensor) -> keras.KerasTensor:
        """Converts RGB in 0..255 to what the weights expect, by layers that Keras can load alone.

        The 2018 tutorial fed pixels in 0..1 to weights of the mode `caffe`, which cost accuracy.
        Source of modes and numbers: keras.applications.imagenet_utils.
        """
        import keras

        if self.mode == "inside":  # the network has layers that scale
            return images
        if self.mode == "tf":
            return keras.layers.Rescaling(1 / 127.5, offset=-1.0, name=_SCALING)(images)
        if self.mode == "caffe":  # ImageNet's means of blue, green, red
            images = keras.ops.flip(images, axis=-1)
            mean, variance = (103.939, 116.779, 123.68), (1.0, 1.0, 1.0)
        else:  # torch: means and standard deviations of red, green, blue
            mean = tuple(255 * each for each in (0.485, 0.456, 0.406))
            variance = tuple((255 * each) ** 2 for each in (0.229, 0.224, 0.225))
        return keras.layers.Normalization(mean=mean, variance=variance, name=_SCALING)(images)


# (constructors, mode, smallest side). Sources: `preprocess_input` and the docstring of each.
_FAMILIES: tuple[tuple[tuple[str, ...], str, int], ...] = (
    (("VGG16", "VGG19", "ResNet50", "ResNet101", "ResNet152"), "caffe", 32),
    (("ResNet50V2", "ResNet101V2", "ResNet152V2"), "tf", 32),
    (("MobileNet", "MobileNetV2", "NASNetMobile", "NASNetLarge"), "tf", 32),
    (("Xception",), "tf", 71),
    (("InceptionV3", "InceptionResNetV2"), "tf", 75),
    (("DenseNet121", "DenseNet169", "DenseNet201"), "torch", 32),
    (("MobileNetV3Small", "MobileNetV3Large"), "inside", 32),
    (tuple(f"EfficientNetB{size}" for size in range(8)), "inside", 32),
    (tuple(f"EfficientNetV2{size}" for size in ("B0", "B1", "B2", "B3", "S", "M", "L")),
     "inside", 32),
    (tuple(f"ConvNeXt{size}" for size in ("Tiny", "Small", "Base", "Large", "XLarge")),
     "inside", 32),
)  # fmt: skip

#: Applications by the value of --model: the constructor's name in lower case.
APPLICATIONS = {
    name.lower(): Application(name=name, mode=mode, smallest=smallest)
    for names, mode, smallest in _FAMILIES
    for name in names
}

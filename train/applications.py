"""The classifiers of keras.applications, by name; without Keras, which takes seconds to import."""

from __future__ import annotations

from typing import NamedTuple


class Application(NamedTuple):
    """A constructor in keras.applications, and what its weights expect, see `models.scale`."""

    name: str
    mode: str


# The constructors by their mode. Source: the function `preprocess_input` of each.
_NAMES = {
    "caffe": ("VGG16", "VGG19", "ResNet50", "ResNet101", "ResNet152"),
    "tf": (
        "ResNet50V2", "ResNet101V2", "ResNet152V2", "MobileNet", "MobileNetV2", "NASNetMobile",
        "NASNetLarge", "Xception", "InceptionV3", "InceptionResNetV2",
    ),
    "torch": ("DenseNet121", "DenseNet169", "DenseNet201"),
    "inside": (
        "MobileNetV3Small", "MobileNetV3Large",
        *(f"EfficientNetB{size}" for size in range(8)),
        *(f"EfficientNetV2{size}" for size in ("B0", "B1", "B2", "B3", "S", "M", "L")),
        *(f"ConvNeXt{size}" for size in ("Tiny", "Small", "Base", "Large", "XLarge")),
    ),
}  # fmt: skip

#: Applications by the value of --model: the constructor's name in lower case.
APPLICATIONS = {
    name.lower(): Application(name, mode) for mode, names in _NAMES.items() for name in names
}

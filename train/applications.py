"""The classifiers of keras.applications, by name; without Keras, which takes seconds to import."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Application:
    """A network of keras.applications.

    Attributes:
        name: name of the constructor in keras.applications.
        mode: of the scaling that the published weights expect, see `models.scale`.
        smallest: smallest height and width that the network accepts, in pixels.
    """

    name: str
    mode: str
    smallest: int


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

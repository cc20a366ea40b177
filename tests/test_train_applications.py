"""Every network of keras.applications gets the input that its published weights expect."""

import importlib
import inspect

import keras
import numpy as np
import pytest
from marked_images import KERAS_ARRAY_WARNING, run_python

from train.applications import APPLICATIONS
from train.errors import ConfigError
from train.networks.models import build_network
from train.networks.options import NetworkOptions

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAY_WARNING)


def test_they_are_all_that_keras_has():
    constructors = {
        name
        for name, value in inspect.getmembers(keras.applications)
        if inspect.isfunction(value) and name[0].isupper()
    }
    assert {application.name for application in APPLICATIONS.values()} == constructors
    assert all(name == application.name.lower() for name, application in APPLICATIONS.items())


def test_their_names_are_known_without_importing_keras():
    script = (
        "import sys; from train import config; from train.networks import options; "
        "assert 'densenet121' in options.MODELS; assert 'keras' not in sys.modules"
    )
    done = run_python(script)
    assert done.returncode == 0, done.stderr


#: The module of keras.applications with the preprocess_input of each network.
_MODULES = {
    "vgg16": "vgg16", "vgg19": "vgg19", "resnet50": "resnet", "resnet101": "resnet",
    "resnet152": "resnet", "resnet50v2": "resnet_v2", "resnet101v2": "resnet_v2",
    "resnet152v2": "resnet_v2", "mobilenet": "mobilenet", "mobilenetv2": "mobilenet_v2",
    "nasnetmobile": "nasnet", "nasnetlarge": "nasnet", "xception": "xception",
    "inceptionv3": "inception_v3", "inceptionresnetv2": "inception_resnet_v2",
    "densenet121": "densenet", "densenet169": "densenet", "densenet201": "densenet",
    "mobilenetv3small": "mobilenet_v3", "mobilenetv3large": "mobilenet_v3",
}  # fmt: skip


def _module(name):
    for beginning in ("efficientnetv2", "efficientnet", "convnext"):
        if name.startswith(beginning):
            return {"efficientnetv2": "efficientnet_v2"}.get(beginning, beginning)
    return _MODULES[name]


@pytest.mark.parametrize("name", sorted(APPLICATIONS))
def test_pixels_are_scaled_as_keras_does_for_the_weights(name):
    module = importlib.import_module(f"keras.applications.{_module(name)}")
    images = np.random.default_rng(0).integers(256, size=(2, 5, 4, 3)).astype(np.float32)
    inputs = keras.Input((5, 4, 3))
    scaled = keras.Model(inputs, APPLICATIONS[name].scale(inputs))(images)
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(scaled), module.preprocess_input(images.copy()), atol=1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_parameters"),
    # Without the top, as Keras' table counts them.
    [("mobilenet", 3_228_864), ("densenet121", 7_037_504), ("resnet50v2", 23_564_800)],
)
def test_a_name_builds_its_network(name, num_parameters):
    config = NetworkOptions(model=name, weights="none")
    network = build_network(config, image_shape=(32, 40, 1), num_classes=3)
    assert network.backbone.name.startswith(name[:8])
    assert network.backbone.count_params() == num_parameters
    assert network.logits.output_shape == (None, 3)


@pytest.mark.parametrize(
    ("name", "smallest"), [("xception", 71), ("inceptionv3", 75), ("resnet50", 32)]
)
def test_an_image_too_small_for_a_network_is_refused_with_advice(name, smallest):
    config, shape = NetworkOptions(model=name, weights="none"), (smallest - 1, 80, 1)
    message = f"{smallest} pixels per side, but this dataset has {smallest - 1}x80; use --model"
    with pytest.raises(ConfigError, match=message):
        build_network(config, image_shape=shape, num_classes=3)

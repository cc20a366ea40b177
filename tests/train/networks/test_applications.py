"""Every network of keras.applications gets the input that its published weights expect."""

import inspect

import keras
import numpy as np
import pytest
from marked_images import KERAS_ARRAY_WARNING

from train.machine.errors import ConfigError
from train.networks.models import build_network, scale
from train.networks.options import APPLICATIONS, NetworkOptions

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAY_WARNING)


def test_they_are_all_that_keras_has():
    constructors = {
        name
        for name, value in inspect.getmembers(keras.applications)
        if inspect.isfunction(value) and name[0].isupper()
    }
    assert {constructor for constructor, _ in APPLICATIONS.values()} == constructors
    assert all(name == constructor.lower() for name, (constructor, _) in APPLICATIONS.items())


def _module(name):
    """Returns the module of keras.applications with the preprocess_input of a network."""
    if name.startswith("mobilenetv3"):
        return keras.applications.mobilenet_v3
    modules = (module for _, module in inspect.getmembers(keras.applications, inspect.ismodule))
    return next(module for module in modules if hasattr(module, APPLICATIONS[name][0]))


@pytest.mark.parametrize("name", sorted(APPLICATIONS))
def test_pixels_are_scaled_as_keras_does_for_the_weights(name):
    images = np.random.default_rng(0).integers(256, size=(2, 5, 4, 3)).astype(np.float32)
    inputs = keras.Input((5, 4, 3))
    scaled = keras.Model(inputs, scale(inputs, APPLICATIONS[name][1]))(images)
    expected = _module(name).preprocess_input(images.copy())
    np.testing.assert_allclose(keras.ops.convert_to_numpy(scaled), expected, atol=1e-4)


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
    message = f"does not take images of {smallest - 1}x80 pixels: .* at least {smallest}x{smallest}"
    with pytest.raises(ConfigError, match=message):
        build_network(config, image_shape=shape, num_classes=3)

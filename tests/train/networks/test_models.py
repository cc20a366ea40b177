import inspect

import keras
import numpy as np
import pytest

from tfrecord_io.format.statistics import PixelStatistics
from tfrecord_io.terminal.errors import UserError
from train.kinds.classes import CLASSES
from train.networks.models import Pixels, build_network, freeze, scale
from train.networks.options import APPLICATIONS, NetworkOptions


def images_of(shape, num_images=3):
    return np.random.default_rng(0).integers(256, size=(num_images, *shape), dtype=np.uint8)


def build(shape=(16, 16, 1), num_classes=4, **fields):
    keras.utils.set_random_seed(0)
    facts = {name: fields.pop(name) for name in {"temperature", "with_mirror"} & fields.keys()}
    statistics = PixelStatistics.from_images(fields.pop("images", images_of(shape)))
    options = NetworkOptions(**({"model": "convnet", "weights": "none"} | fields))
    pixels = Pixels(shape=shape, statistics=statistics)
    return build_network(options, pixels, num_classes=num_classes, **facts)


def shaken(network, images):
    """Moves the weights at random, so that the logits of these images differ by about 1."""
    generator = np.random.default_rng(0)
    for variable in network.logits.trainable_variables:
        variable.assign(variable.numpy() + generator.normal(0, 0.05, variable.shape))
    logits = answer(network.logits, images.astype(np.float32))
    kernel, bias = network.logits.get_layer("logits").weights
    spread = logits.std(axis=0).mean()
    kernel.assign(kernel.numpy() / spread)
    bias.assign((bias.numpy() - logits.mean(axis=0)) / spread)
    return network


def answer(model, images, training=False):
    return keras.ops.convert_to_numpy(model(images, training=training))


LARGE = ("small_resnet", "efficientnet_lite0", "vgg16", "resnet50")


@pytest.mark.parametrize(
    "model", ["convnet", *(pytest.param(each, marks=pytest.mark.slow) for each in LARGE)]
)
def test_each_network_takes_uint8_and_answers_with_probabilities(model):
    images = images_of((32, 32, 1))
    network = build((32, 32, 1), model=model, with_mirror=False)
    probabilities = answer(network.model, images)
    assert probabilities.dtype == np.float32
    if network.backbone is None:  # Untrained, it finds all classes as likely.
        np.testing.assert_allclose(probabilities, np.full((3, 4), 0.25), atol=0.15)
    shaken(network, images)
    powers = np.exp(answer(network.logits, images.astype(np.float32)))
    expected = powers / powers.sum(-1, keepdims=True)
    np.testing.assert_allclose(answer(network.model, images), expected, rtol=1e-4)
    assert np.abs(expected[0] - expected[1]).max() > 0.05


def test_the_convnet_on_fashion_mnist_is_the_tutorials_network_and_fits_any_input():
    # Conv 3x3x1x32, Conv 3x3x32x64, Conv 3x3x64x64, Dense 576x64, Dense 64x10, with biases.
    expected = 320 + 18496 + 36928 + 36928 + 650
    assert build((28, 28, 1), 10).model.count_params() == expected
    for shape in ((1, 1, 1), (3, 40, 3), (6, 5, 1), (97, 61, 2), (224, 224, 1)):
        assert build(shape).model.count_params() < 400_000


def test_an_image_and_its_mirror_image_get_the_same_answer_the_mean_of_both():
    images = images_of((16, 16, 1))
    network, plain = (shaken(build(with_mirror=flip), images) for flip in (True, False))
    first, second = (answer(plain.model, each) for each in (images, images[:, :, ::-1]))
    assert np.abs(first - second).max() > 0.1
    for each in (images, images[:, :, ::-1]):
        np.testing.assert_allclose(answer(network.model, each), (first + second) / 2, atol=1e-6)


def test_a_temperature_in_the_network_is_the_one_of_the_calibration():
    images = images_of((16, 16, 1))
    before, after = (
        answer(shaken(build(temperature=each), images).model, images) for each in (1.0, 0.4)
    )
    np.testing.assert_allclose(after, CLASSES.cool(before, 0.4), atol=1e-6)
    assert np.abs(after - before).max() > 0.1


def normalized(network, images):
    """Returns what the first convolution sees."""
    layers = network.logits.layers
    first = next(each for each in layers if isinstance(each, keras.layers.Conv2D))
    return answer(keras.Model(network.logits.input, first.input), images.astype(np.float32))


def test_pixels_are_scaled_by_their_range_or_by_those_of_the_training_also_those_of_one_level():
    images = images_of((20, 24, 3)) // 2
    floats = images.astype(np.float64)
    standardized = (floats - floats.mean((0, 1, 2))) / floats.std((0, 1, 2))
    for model, pixels in {"convnet": floats / 255, "small_resnet": standardized}.items():
        network = build((20, 24, 3), model=model, images=images)
        np.testing.assert_allclose(normalized(network, images), pixels, atol=1e-4)
        grey = np.full_like(images, 7)
        network = build((20, 24, 3), model=model, images=grey)
        assert np.isfinite(answer(network.model, grey)).all()


def test_the_last_layers_of_a_pretrained_network_are_trained_but_its_normalization_never():
    layers = [keras.layers.Dense(2) for _ in range(4)]
    layers.insert(2, keras.layers.BatchNormalization())
    backbone = keras.Sequential([keras.Input((2,)), *layers])
    for trainable_layers, trained in ((0, []), (3, [3, 4]), (None, [0, 1, 3, 4])):
        freeze(backbone, trainable_layers)
        assert [place for place in range(5) if layers[place].trainable_weights] == trained


def test_images_and_weights_that_do_not_fit_a_network_are_refused_with_advice(tmp_path):
    path = tmp_path / "another.weights.h5"
    build().logits.save_weights(path)
    advice = r"does not fit mobilenet.*; expected imagenet, none, or a file .* --init RUN"
    for facts, message in (
        ({"weights": str(path)}, advice),
        ({"weights": str(tmp_path / "missing.weights.h5")}, advice),
        ({"shape": (31, 40, 1)}, r"does not take images of 31x40 pixels: .* 32x32"),
    ):
        with pytest.raises(UserError, match=message):
            build(**{"model": "mobilenet", "shape": (32, 32, 1)} | facts)


def _module(name):
    """Returns the module of keras.applications with the preprocess_input of a network."""
    if name.startswith("mobilenetv3"):
        return keras.applications.mobilenet_v3
    modules = (module for _, module in inspect.getmembers(keras.applications, inspect.ismodule))
    return next(module for module in modules if hasattr(module, APPLICATIONS[name][0]))


def test_pixels_are_scaled_as_keras_does_for_the_weights():
    images = np.random.default_rng(0).integers(256, size=(2, 5, 4, 3)).astype(np.float32)
    inputs = keras.Input((5, 4, 3))
    for name, (_, mode) in APPLICATIONS.items():
        found = keras.Model(inputs, scale(inputs, mode))(images)
        expected = _module(name).preprocess_input(images.copy())
        np.testing.assert_allclose(found, expected, atol=1e-4, err_msg=name)

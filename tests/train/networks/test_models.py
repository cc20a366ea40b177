import keras
import numpy as np
import pytest
from marked_images import KERAS_ARRAY_WARNING

from tfrecord_io import PixelStatistics
from train.kinds.classes import CLASSES
from train.machine.errors import ConfigError
from train.networks.models import build_network, set_trainable
from train.networks.options import NetworkOptions

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAY_WARNING)


def images_of(shape, num_images=3):
    return np.random.default_rng(0).integers(256, size=(num_images, *shape), dtype=np.uint8)


def build(shape=(32, 32, 1), num_classes=4, **fields):
    keras.utils.set_random_seed(0)
    names = {"statistics", "temperature", "is_padded"} & fields.keys()
    facts = {name: fields.pop(name) for name in names}
    options = NetworkOptions(**({"weights": "none"} | fields))
    return build_network(options, image_shape=shape, num_classes=num_classes, **facts)


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


@pytest.mark.parametrize("model", ["small_resnet", "convnet", "vgg16", "resnet50"])
def test_each_network_takes_uint8_and_answers_with_probabilities(model):
    network = build(model=model)
    probabilities = answer(network.model, images_of((32, 32, 1)))
    assert probabilities.shape == (3, 4)
    assert probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-5)


def test_the_convnet_on_fashion_mnist_is_the_tutorials_network():
    # Conv 3x3x1x32, Conv 3x3x32x64, Conv 3x3x64x64, Dense 576x64, Dense 64x10, with biases.
    expected = 320 + 18496 + 36928 + 36928 + 650
    network = build((28, 28, 1), 10, model="convnet", head_units=64)
    assert network.model.count_params() == expected


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 40, 3), (6, 5, 1), (97, 61, 2), (224, 224, 1)])
def test_the_convnet_fits_any_input(shape):
    network = build(shape, model="convnet", head_units=64)
    assert answer(network.model, images_of(shape, 1)).shape == (1, 4)
    assert network.model.count_params() < 400_000


@pytest.mark.parametrize(
    ("shape", "grid"),
    [
        ((28, 28, 1), 28),
        ((64, 64, 1), 32),
        ((97, 61, 3), 49),
        ((224, 224, 1), 56),
        ((512, 512, 3), 64),
        ((7, 3, 1), 7),
    ],
)
def test_the_small_resnet_brings_any_image_to_a_small_grid(shape, grid):
    network = build(shape)
    assert answer(network.model, images_of(shape, 1)).shape == (1, 4)
    assert 1_520_000 < network.model.count_params() < 1_530_000
    first = next(layer for layer in network.logits.layers if isinstance(layer, keras.layers.Conv2D))
    assert max(first.output.shape[1:3]) == grid


@pytest.mark.parametrize("model", ["small_resnet", "convnet"])
def test_the_logits_are_those_of_the_probabilities(model):
    images = images_of((32, 32, 1))
    network = shaken(build(model=model, test_time_flip=False), images)
    logits = answer(network.logits, images.astype(np.float32))
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(answer(network.model, images), expected, rtol=1e-5)
    assert np.abs(expected[0] - expected[1]).max() > 0.1


def test_an_untrained_network_finds_all_classes_as_likely():
    for model in ("small_resnet", "convnet"):
        probabilities = answer(build(model=model).model, images_of((32, 32, 1)))
        np.testing.assert_allclose(probabilities, 0.25, atol=0.15)


def test_an_image_and_its_mirror_image_get_the_same_answer_the_mean_of_both():
    images = images_of((32, 32, 1))
    network, plain = (shaken(build(test_time_flip=flip), images) for flip in (True, False))
    mirrored = images[:, :, ::-1]
    np.testing.assert_allclose(
        answer(network.model, images), answer(network.model, mirrored), atol=1e-6
    )
    first, second = answer(plain.model, images), answer(plain.model, mirrored)
    assert np.abs(first - second).max() > 0.1
    np.testing.assert_allclose(answer(network.model, images), (first + second) / 2, atol=1e-6)


@pytest.mark.parametrize("flip", [True, False])
def test_a_temperature_in_the_network_is_the_one_of_the_calibration(flip):
    images = images_of((32, 32, 1), 5)
    plain, cooled = (
        shaken(build(test_time_flip=flip, temperature=temperature), images)
        for temperature in (1.0, 0.4)
    )
    before = answer(plain.model, images)
    after = answer(cooled.model, images)
    np.testing.assert_allclose(after, CLASSES.cool(before, 0.4), atol=1e-6)
    assert np.abs(after - before).max() > 0.1


def normalized(network, images):
    """Returns what the first convolution sees."""
    first = next(layer for layer in network.logits.layers if isinstance(layer, keras.layers.Conv2D))
    return answer(keras.Model(network.logits.input, first.input), images.astype(np.float32))


@pytest.mark.parametrize("model", ["small_resnet", "convnet"])
def test_pixels_are_scaled_as_asked(model):
    images = images_of((20, 24, 3)) // 2
    statistics = PixelStatistics.from_images(images)
    floats = images.astype(np.float64)

    def seen(kind):
        return normalized(
            build(images.shape[1:], model=model, normalize=kind, statistics=statistics), images
        )

    np.testing.assert_allclose(seen("unit"), floats / 255, atol=1e-6)
    expected = (floats - floats.mean((0, 1, 2))) / floats.std((0, 1, 2))
    np.testing.assert_allclose(seen("data"), expected, atol=1e-4)
    expected = (floats - floats.mean((1, 2), keepdims=True)) / floats.std((1, 2), keepdims=True)
    np.testing.assert_allclose(seen("image"), expected, atol=1e-4)


def test_the_size_of_the_padding_does_not_change_how_a_picture_is_normalized():
    images = np.maximum(images_of((20, 24, 3)) // 2, 1)
    padded = np.pad(images, ((0, 0), (3, 5), (0, 0), (0, 0)))
    network = build(padded.shape[1:], normalize="image", is_padded=True)
    floats = images.astype(np.float64)
    expected = (floats - floats.mean((1, 2), keepdims=True)) / floats.std((1, 2), keepdims=True)
    np.testing.assert_allclose(normalized(network, padded)[:, 3:-5], expected, atol=1e-4)
    black = np.zeros_like(padded)
    assert np.isfinite(answer(network.model, black)).all()


@pytest.mark.parametrize("normalize", ["data", "image"])
def test_images_of_one_grey_level_have_finite_answers(normalize):
    images = np.full((2, 16, 16, 1), 7, np.uint8)
    statistics = PixelStatistics.from_images(images)
    network = build((16, 16, 1), normalize=normalize, statistics=statistics)
    assert np.isfinite(answer(network.model, images)).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_vgg16_sees_what_keras_preprocessing_for_its_weights_gives(channels):
    network = build((32, 32, channels), model="vgg16")
    images = images_of((32, 32, channels)).astype(np.float32)
    rgb = np.repeat(images, 3, axis=-1) if channels == 1 else images
    expected = keras.applications.vgg16.preprocess_input(rgb.copy())
    scaled = keras.Model(network.logits.input, network.logits.get_layer("imagenet_scaling").output)
    np.testing.assert_allclose(answer(scaled, images), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("model", "phase", "trainable_layers", "kinds"),
    [
        ("vgg16", "head", 4, set()),
        ("vgg16", "all", 4, {"block5_conv1", "block5_conv2", "block5_conv3"}),
        # The statistics of a pretrained network stay as they are.
        ("resnet50", "all", 30, {"conv"}),
        ("resnet50", "all", None, {"bn", "conv"}),
    ],
)
def test_each_phase_trains_its_layers(model, phase, trainable_layers, kinds):
    network = build(model=model, head_units=64)
    set_trainable(network, phase=phase, trainable_layers=trainable_layers)
    trained = {layer.name for layer in network.backbone.layers if layer.trainable_weights}
    if model == "resnet50":
        trained = {name.rpartition("_")[2] for name in trained}
    assert trained == kinds
    if phase == "head":
        assert len(network.model.trainable_variables) == 4  # two dense layers


def test_weights_come_from_a_file(tmp_path):
    path = tmp_path / "vgg16_notop.weights.h5"
    source = keras.applications.VGG16(include_top=False, weights=None, input_shape=(32, 32, 3))
    source.save_weights(path)
    network = build(model="vgg16", weights=str(path))
    for ours, theirs in zip(network.backbone.weights, source.weights, strict=True):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(ours), keras.ops.convert_to_numpy(theirs)
        )


def test_a_weights_file_that_is_missing_or_does_not_fit_is_named(tmp_path):
    with pytest.raises(ConfigError, match="this file does not exist"):
        build(model="vgg16", weights=str(tmp_path / "none.h5"))
    path = tmp_path / "other.weights.h5"
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)]).save_weights(path)
    with pytest.raises(ConfigError, match="does not fit"):
        build(model="vgg16", weights=str(path))


def test_the_dropout_acts_in_training_alone():
    images = images_of((32, 32, 1)).astype(np.float32)
    network = shaken(build(dropout=0.5), images)
    np.testing.assert_array_equal(answer(network.logits, images), answer(network.logits, images))
    first, second = (answer(network.logits, images, training=True) for _ in range(2))
    assert np.abs(first - second).max() > 0.1

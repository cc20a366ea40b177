import keras
import numpy as np
import pytest
from marked_images import KERAS_ARRAY_WARNING

from train.config import ConfigError, TrainConfig
from train.models import build_network, set_trainable

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAY_WARNING)


def images_of(shape, num_images=3):
    return np.random.default_rng(0).integers(256, size=(num_images, *shape), dtype=np.uint8)


def build(shape=(32, 32, 1), num_classes=4, **fields):
    keras.utils.set_random_seed(0)
    config = TrainConfig(**({"weights": "none"} | fields))
    return build_network(config, image_shape=shape, num_classes=num_classes)


def answer(model, images, training=False):
    return keras.ops.convert_to_numpy(model(images, training=training))


@pytest.mark.parametrize("model", ["convnet", "vgg16", "resnet50", "efficientnetv2b0"])
def test_each_network_takes_uint8_and_answers_with_probabilities(model):
    network = build(model=model)
    probabilities = answer(network.model, images_of((32, 32, 1)))
    assert probabilities.shape == (3, 4)
    assert probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-5)


def test_the_convnet_on_fashion_mnist_is_the_tutorials_network():
    # Conv 3x3x1x32, Conv 3x3x32x64, Conv 3x3x64x64, Dense 576x64, Dense 64x10, with biases.
    expected = 320 + 18496 + 36928 + 36928 + 650
    assert build((28, 28, 1), 10).model.count_params() == expected


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 40, 3), (6, 5, 1), (97, 61, 2), (224, 224, 1)])
def test_the_convnet_fits_any_input(shape):
    network = build(shape)
    assert answer(network.model, images_of(shape, 1)).shape == (1, 4)
    assert network.model.count_params() < 400_000


def test_the_logits_are_those_of_the_probabilities():
    network = build()
    images = images_of((32, 32, 1))
    logits = answer(network.logits, images)
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(answer(network.model, images), expected, rtol=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
def test_vgg16_sees_what_keras_preprocessing_for_its_weights_gives(channels):
    network = build((32, 32, channels), model="vgg16")
    images = images_of((32, 32, channels))
    rgb = np.repeat(images, 3, axis=-1) if channels == 1 else images
    expected = keras.applications.vgg16.preprocess_input(rgb.astype(np.float32))
    scaled = keras.Model(network.model.input, network.model.get_layer("imagenet_scaling").output)
    np.testing.assert_allclose(answer(scaled, images), expected, atol=1e-4)


def trainable_names(network):
    return {layer.name for layer in network.backbone.layers if layer.trainable_weights}


def test_the_head_phase_trains_what_is_new_alone():
    network = build(model="vgg16")
    set_trainable(network, phase="head", trainable_layers=4)
    assert trainable_names(network) == set()
    assert len(network.model.trainable_variables) == 4  # two dense layers


def test_four_layers_of_vgg16_are_its_block_5():
    network = build(model="vgg16")
    set_trainable(network, phase="all", trainable_layers=4)
    assert trainable_names(network) == {"block5_conv1", "block5_conv2", "block5_conv3"}


def test_batch_normalization_of_a_pretrained_network_stays_frozen():
    network = build(model="resnet50")
    set_trainable(network, phase="all", trainable_layers=30)
    trained = [layer for layer in network.backbone.layers if layer.trainable_weights]
    assert trained
    assert not any(isinstance(layer, keras.layers.BatchNormalization) for layer in trained)


def test_from_nothing_everything_is_trained():
    network = build(model="resnet50")
    set_trainable(network, phase="all", trainable_layers=None)
    assert any(
        isinstance(layer, keras.layers.BatchNormalization) and layer.trainable_weights
        for layer in network.backbone.layers
    )


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
    with pytest.raises(ConfigError, match="there is no such file"):
        build(model="vgg16", weights=str(tmp_path / "none.h5"))
    path = tmp_path / "other.weights.h5"
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)]).save_weights(path)
    with pytest.raises(ConfigError, match="does not fit"):
        build(model="vgg16", weights=str(path))


def test_images_too_small_for_a_network_are_refused_with_advice():
    with pytest.raises(ConfigError, match="at least 32 pixels a side, this dataset has 16x40"):
        build((16, 40, 1), model="resnet50")


def test_augmentation_acts_in_training_alone():
    plain, augmented = build(), build(augment=True)
    images = images_of((32, 32, 1))
    np.testing.assert_array_equal(answer(augmented.model, images), answer(plain.model, images))
    in_training = answer(augmented.model, images, training=True)
    assert not np.allclose(in_training, answer(plain.model, images), atol=1e-6)
    assert not np.allclose(in_training, answer(augmented.model, images, training=True), atol=1e-6)

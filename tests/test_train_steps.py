import importlib.util
import json
import math
import subprocess
import sys

import keras
import numpy as np
import pytest
from marked_images import REPOSITORY, environment, write_marked_dataset

from train.config import TrainConfig
from train.models import build_network
from train.steps import _loss_and_totals

NUM_EXAMPLES = {"train": 30, "test": 11}
SHAPE = (10, 8, 1)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("steps")
    write_marked_dataset(path, num_examples=NUM_EXAMPLES, image_shape=SHAPE)
    return path


def run_variants(data, variants, **variables):
    result = subprocess.run(
        [sys.executable, "tests/replica_runs.py", str(data), json.dumps(variants)],
        cwd=REPOSITORY,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


VARIANTS = [
    {"gpus": 1},
    {"gpus": 2},
    {"gpus": 2, "steps_per_execution": 5},
    {"gpus": 1, "jit_compile": True},
    {"gpus": 2, "augment": True, "dropout": 0.3},
    {"gpus": 1, "cache": "device"},
    {"gpus": 2, "cache": "device"},
]


@pytest.fixture(scope="module")
def runs(data):
    return run_variants(data, VARIANTS)


@pytest.mark.parametrize(("cached", "plain"), [(5, 0), (6, 1)])
def test_images_cached_on_one_and_two_devices_give_the_losses_of_the_files(runs, cached, plain):
    assert runs[cached]["counts"] == runs[plain]["counts"]
    assert runs[cached]["losses"] == pytest.approx(runs[plain]["losses"], rel=1e-5)
    assert runs[cached]["num_traces"] == runs[plain]["num_traces"]


def check_agreement(one, two):
    assert (one["replicas"], two["replicas"]) == (1, 2)
    # Three epochs of 30 in batches of 8: the last batch is ragged, with 2 examples.
    assert one["counts"] == two["counts"] == [8.0] * 11 + [2.0]
    assert np.isfinite(one["losses"]).all()
    assert one["losses"][0] != pytest.approx(one["losses"][-1], rel=1e-2)
    np.testing.assert_allclose(two["losses"], one["losses"], rtol=1e-4)
    assert len(one["probabilities"]) == NUM_EXAMPLES["test"]
    np.testing.assert_allclose(two["probabilities"], one["probabilities"], atol=1e-4)


def test_one_and_two_replicas_agree_over_several_epochs(runs):
    check_agreement(runs[0], runs[1])


def test_several_steps_in_one_go_are_the_same_steps(runs):
    np.testing.assert_allclose(runs[2]["losses"], runs[1]["losses"], rtol=1e-5)


def test_a_compiled_step_is_the_same_step(runs):
    np.testing.assert_allclose(runs[3]["losses"], runs[1]["losses"], rtol=1e-4)


def test_random_layers_work_on_several_replicas(runs):
    assert np.isfinite(runs[4]["losses"]).all()
    assert runs[4]["losses"] != pytest.approx(runs[1]["losses"], rel=1e-3)


def test_each_run_builds_its_graph_once_whatever_the_number_of_steps(runs):
    assert [run["num_traces"] for run in runs] == [1] * len(VARIANTS)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_one_and_two_replicas_agree_on_jax(data):
    one, two = run_variants(data, VARIANTS[:2], KERAS_BACKEND="jax")
    check_agreement(one, two)
    assert one["num_traces"] == two["num_traces"] == 1


def test_the_first_steps_are_those_of_keras_fit(runs, data):
    """An independent computation of the same thing: Keras' own loop on the same batches."""
    import tensorflow as tf

    import tfrecord_io

    manifest = tfrecord_io.Manifest.load(data)
    keras.utils.set_random_seed(1)
    network = build_network(TrainConfig(data=str(data), seed=1), image_shape=SHAPE, num_classes=4)
    network.logits.compile(
        keras.optimizers.Adam(1e-3), keras.losses.CategoricalCrossentropy(from_logits=True)
    )
    weights = tf.constant(manifest.class_weights("train"))
    dataset = tfrecord_io.make_dataset(data, split="train", batch_size=8, seed=1, epochs=3)
    for step, (images, labels) in enumerate(dataset):
        # Before the update, like the loss of a training step.
        expected = network.logits.evaluate(images, labels, verbose=0)
        assert runs[0]["losses"][step] == pytest.approx(expected, rel=1e-3)
        network.logits.fit(
            images, labels, sample_weight=tf.linalg.matvec(labels, weights), verbose=0,
            batch_size=8,
        )  # fmt: skip
    assert step == 11


def test_the_loss_is_weighted_by_class_and_filling_copies_count_nothing():
    labels = np.eye(2, dtype=np.float32)[[0, 1, 1]]
    logits = np.array([[0.0, 0.0], [0.0, 0.0], [-np.inf, np.inf]], np.float32)
    weights = np.array([0.5, 0.5, 0.0], np.float32)
    loss, totals = _loss_and_totals(
        labels[:2], logits[:2], weights[:2], np.array([1.0, 3.0], np.float32)
    )
    assert float(loss) == pytest.approx(math.log(2) * (0.5 * 1 + 0.5 * 3))
    assert np.asarray(totals)[0] == pytest.approx(2 * math.log(2))  # the plain cross-entropy
    _, totals = _loss_and_totals(labels, logits, weights, np.ones(2, np.float32))
    assert np.asarray(totals).tolist() == pytest.approx([2 * math.log(2), 1, 2])

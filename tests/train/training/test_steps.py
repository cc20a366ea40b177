import dataclasses
import json
import math
import sys

import keras
import numpy as np
import pytest
from builds import run_command
from marked_images import ALL_ON, QUICK, environment, marked_data

from train.data.augmentation import NUM_DRAWS
from train.kinds.classes import CLASSES
from train.networks.models import Pixels, build_network
from train.training.config import TrainConfig
from train.training.session import open_sessions

NUM_EXAMPLES = {"train": 30, "test": 11}
SHAPE = (10, 8, 1)


data = marked_data(NUM_EXAMPLES, image_shape=SHAPE)


def run_variants(data, variants, **variables):
    words = [sys.executable, "tests/helpers/replica_runs.py", str(data), json.dumps(variants)]
    result = run_command(words, environment(**variables), timeout=600)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_one_and_two_replicas_agree_also_with_all_that_the_recipe_has(data, backend):
    """Augmentation, MixUp, smooth labels, class weights, AdamW, cosine and moving average."""
    pytest.importorskip(backend)
    variants = [{**recipe, "gpus": gpus} for recipe in (QUICK, ALL_ON) for gpus in (1, 2)]
    runs = run_variants(data, variants, KERAS_BACKEND=backend)
    for one, two in (runs[:2], runs[2:]):
        assert (one["replicas"], two["replicas"]) == (1, 2)
        assert one["num_traces"] == two["num_traces"] == 1
        # Three epochs of 30 in batches of 8: the last batch is ragged, with 2 examples.
        assert one["counts"] == two["counts"] == [8.0] * 11 + [2.0]
        assert np.isfinite(one["losses"]).all()
        assert one["losses"][0] != pytest.approx(one["losses"][-1], rel=1e-3)
        np.testing.assert_allclose(two["losses"], one["losses"], rtol=1e-4)
        assert len(one["probabilities"]) == NUM_EXAMPLES["test"]
        np.testing.assert_allclose(two["probabilities"], one["probabilities"], atol=1e-4)
    assert runs[2]["losses"] != pytest.approx(runs[0]["losses"], rel=1e-2)


@pytest.mark.slow
def test_the_first_steps_are_those_of_keras_fit(data):
    """An independent computation of the same thing: Keras' own loop on the same batches."""
    import tensorflow as tf

    import tfrecord_io

    losses = run_variants(data, [QUICK | {"gpus": 1}])[0]["losses"]
    manifest = tfrecord_io.Manifest.load(data)
    keras.utils.set_random_seed(1)
    config = TrainConfig.of(data=str(data), seed=1, **QUICK)
    network = build_network(config.network, Pixels(shape=SHAPE), num_classes=4, seed=1)
    network.logits.compile(
        keras.optimizers.Adam(config.optimizer.learning_rate),
        keras.losses.CategoricalCrossentropy(from_logits=True),
    )
    split = manifest.split("train")
    weights = tf.constant(CLASSES.class_weights(split.label_counts, split.num_examples, 1.0))
    dataset = tfrecord_io.make_dataset(data, split="train", batch_size=8, seed=1, epochs=3)
    for step, (images, labels) in enumerate(dataset):
        # Before the update, like the loss of a training step.
        expected = network.logits.evaluate(images, labels, verbose=0)
        assert losses[step] == pytest.approx(expected, rel=1e-3)
        network.logits.fit(
            images, labels, sample_weight=tf.linalg.matvec(labels, weights), verbose=0,
            batch_size=8,
        )  # fmt: skip
    assert step == 11


def session_with(data, **fields):
    fields = {"label_smoothing": 0.0, "augment": False, "mixup": 0.0} | fields
    return open_sessions(TrainConfig.of(data=str(data), **fields))[0]


def loss_and_totals(data, labels, logits, weights, **fields):
    objective = session_with(data, **{"class_weight_power": 0.0} | fields).objective
    loss, totals = objective.loss_and_totals(labels, logits, weights)
    return float(loss), np.asarray(totals).tolist()


def test_the_loss_is_weighted_by_class_and_filling_copies_count_nothing(data):
    session = session_with(data)
    counts = session.data.label_counts(session.parts.train)
    of_class = CLASSES.class_weights(counts, NUM_EXAMPLES["train"], 0.5)
    labels = np.eye(4, dtype=np.float32)[[0, 1, 1]]
    logits = np.array([[0.0] * 4, [0.0] * 4, [-np.inf, np.inf, 0.0, 0.0]], np.float32)
    weights = np.array([0.5, 0.5, 0.0], np.float32)
    given = labels[:2], logits[:2], weights[:2]
    loss, totals = loss_and_totals(data, *given, class_weight_power=0.5)
    assert loss == pytest.approx(math.log(4) * (0.5 * of_class[0] + 0.5 * of_class[1]))
    assert totals[0] == pytest.approx(2 * math.log(4))  # the plain cross-entropy
    _, totals = loss_and_totals(data, labels, logits, weights)
    assert totals == pytest.approx([2 * math.log(4), 1, 2])
    # A mixture of classes has the mixture of their weights.
    given = np.array([[0.75, 0.25, 0.0, 0.0]], np.float32), logits[:1], np.ones(1, np.float32)
    loss, _ = loss_and_totals(data, *given, class_weight_power=0.5)
    assert loss == pytest.approx(math.log(4) * (0.75 * of_class[0] + 0.25 * of_class[1]))


def test_smooth_labels_change_what_is_learnt_and_not_what_is_reported(data):
    labels = np.eye(4, dtype=np.float32)[[0, 2]]
    logits = np.array([[3.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 2.0]], np.float32)
    logarithms = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    smooth, weights = 0.9 * labels + 0.1 / 4, np.full(2, 0.5, np.float32)
    loss, totals = loss_and_totals(data, labels, logits, weights, label_smoothing=0.1)
    assert loss == pytest.approx(-(smooth * logarithms).sum(-1).mean())
    assert totals == pytest.approx([-(labels * logarithms).sum(), 1, 2])


@pytest.mark.parametrize("fields", [{}, {"augment": True}, {"mixup": 0.3}], ids=str)
def test_augmentation_changes_images_alone_and_mixup_labels_too(data, fields):
    images = np.random.default_rng(0).integers(256, size=(4, *SHAPE), dtype=np.uint8)
    labels = np.eye(4, dtype=np.float32)
    draws = np.random.default_rng(1).random((4, NUM_DRAWS), np.float32)
    objective = session_with(data, **fields).objective
    prepared, prepared_labels = map(np.asarray, objective.prepare(images, labels, draws))
    assert prepared.dtype == np.float32
    change = np.abs(prepared - images).mean()
    assert change > 1 if fields else change == 0
    assert ((prepared_labels > 0).sum(-1) == 1 + ("mixup" in fields)).all()
    np.testing.assert_allclose(prepared_labels.sum(-1), 1, rtol=1e-6)


def test_the_augmentation_knows_that_the_images_are_padded(data):
    session = session_with(data, augment=True, mixup=0.3)
    draws = np.random.default_rng(1).random((4, NUM_DRAWS), np.float32)
    black = np.zeros((4, *SHAPE), np.uint8), np.eye(4, dtype=np.float32), draws
    for fit in ("pad", "stretch"):
        manifest = dataclasses.replace(session.data.manifest, preprocessing={"fit": fit})
        changed = dataclasses.replace(session.data, manifest=manifest)
        objective = dataclasses.replace(session, data=changed).objective
        assert np.any(objective.prepare(*black)[0]) == (fit == "stretch")

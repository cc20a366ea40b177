"""Tests of train/networks/stacked.py: what runs do side by side is what each does alone."""

import keras
import numpy as np
import pytest
from marked_images import KERAS_ARRAY_WARNING

from train.config import TrainConfig
from train.measuring.tasks import CLASSES, MULTI_LABEL, Number
from train.networks.models import Network, add_head
from train.networks.stacked import stack_networks
from train.training.steps import Objective

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAY_WARNING)

BATCH_SIZE, CHANNELS, NUM_CLASSES = 6, 5, 3


def head(seed):
    config = TrainConfig(seed=seed, head_units=4, dropout=0.5)
    pooled = keras.Input((1, 1, CHANNELS))
    rest = keras.Model(pooled, keras.layers.Flatten()(pooled))
    features = keras.Input((1, 1, CHANNELS))
    logits = keras.Model(features, add_head(rest(features), config, NUM_CLASSES))
    return Network(logits=logits, model=logits, backbone=rest)


def batch_of(num_runs):
    generator = np.random.default_rng(1)
    images = generator.normal(size=(num_runs, BATCH_SIZE, 1, 1, CHANNELS)).astype(np.float32)
    labels = np.eye(NUM_CLASSES, dtype=np.float32)[
        generator.integers(NUM_CLASSES, size=(num_runs, BATCH_SIZE))
    ]
    # The last example only fills up the batch.
    weights = np.full((num_runs, BATCH_SIZE), 1 / (BATCH_SIZE - 1), np.float32)
    weights[:, -1] = 0
    draws = generator.uniform(0.5, size=(num_runs, BATCH_SIZE, 1)).astype(np.float32)
    return images, labels, weights, draws


def test_networks_side_by_side_give_the_logits_of_each_and_drop_what_each_drops():
    networks = [network for seed in (3, 8) for network in [head(seed)] * 2]
    stacked = stack_networks(networks, BATCH_SIZE)
    images, *_ = batch_of(len(networks))
    for _ in range(2):  # the second time with other random numbers
        answer = keras.ops.convert_to_numpy(stacked.logits(images, training=True))
        for index in range(0, len(networks), 2):
            # One call for both runs of the seed, because each call takes new random numbers.
            (dropout,) = (
                layer
                for layer in networks[index].logits.layers
                if isinstance(layer, keras.layers.Dropout)
            )
            state = dropout.seed_generator.state.numpy()
            for run in (index, index + 1):
                dropout.seed_generator.state.assign(state)
                alone = networks[run].logits(images[run], training=True)
                np.testing.assert_allclose(answer[run], alone, atol=1e-6)


@pytest.mark.parametrize(
    "tasks",
    [(CLASSES, CLASSES), (MULTI_LABEL, MULTI_LABEL), (Number(0.5, 2.0), Number(-1.0, 0.3))],
)
def test_the_objective_of_several_runs_is_that_of_each(tasks):
    images, labels, weights, draws = batch_of(2)
    labels = labels[..., :1] if isinstance(tasks[0], Number) else labels
    options = {"label_smoothing": 0.1, "mixup": True}
    counts = (2, 3, 5), (8, 1, 1)
    class_weights = [
        task.class_weights(of_run, 10, 0.5) for task, of_run in zip(tasks, counts, strict=True)
    ]
    stacked = Objective(
        task=tasks[0].side_by_side(tasks),
        class_weights=tuple((of_run,) for of_run in class_weights),
        **options,
    )
    mixed, mixed_labels = stacked.prepare(images, labels, draws)
    logits = np.random.default_rng(2).normal(size=labels.shape).astype(np.float32)
    loss, totals = stacked.loss_and_totals(mixed_labels, logits, weights)
    losses = []
    for run, of_run in enumerate(class_weights):
        one = Objective(task=tasks[run], class_weights=of_run, **options)
        alone, alone_labels = one.prepare(images[run], labels[run], draws[run])
        np.testing.assert_allclose(mixed[run], alone, rtol=1e-6)
        np.testing.assert_allclose(mixed_labels[run], alone_labels, rtol=1e-6)
        one_loss, one_totals = one.loss_and_totals(alone_labels, logits[run], weights[run])
        losses.append(float(one_loss))
        np.testing.assert_allclose(totals[:, run], one_totals, rtol=1e-5)
    assert float(loss) == pytest.approx(sum(losses), rel=1e-5)
    assert losses[0] != pytest.approx(losses[1], rel=1e-2)

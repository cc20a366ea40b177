import collections
import math
from pathlib import Path

import numpy as np
import pytest
from dataset_factory import assert_same
from marked_images import write_marked_dataset

import tfrecord_io
from train.data import augmentation, feed
from train.data.dataset import choose_parts, open_dataset
from train.machine.devices import Devices
from train.training.config import TrainConfig
from train.training.run_setup import make_run

NUM_EXAMPLES = 23


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("feed")
    write_marked_dataset(path, num_examples={"train": NUM_EXAMPLES, "test": 10})
    return str(path)


def devices_of(num_replicas=1, num_workers=1, worker_index=0):
    names = tuple(f"CPU:{index}" for index in range(num_replicas))
    return Devices(
        backend="tensorflow", names=names, num_workers=num_workers, worker_index=worker_index
    )


def parts_of(config):
    return choose_parts(open_dataset(config.input.data), config.folds)


def training_batches(config, devices, start_step):
    part, mixup = parts_of(config).train, config.augmentation.mixup
    return feed.training_batches(config.input, mixup, devices, part, start_step=start_step)


def batches_of(data, devices, *, batch_size=8, epochs=2, start_step=0, **fields):
    config = TrainConfig.of(
        data=data,
        epochs=epochs,
        global_batch_size=batch_size,
        replica_batch_size=batch_size // devices.num_replicas,
        **fields,
    )
    return list(training_batches(config, devices, start_step).as_numpy_iterator())


@pytest.mark.parametrize(("epoch", "step"), [(0, 3), (1, 6), (2, 9), (7, 23)])
def test_an_epoch_ends_with_the_step_of_its_last_example(data, epoch, step):
    run = make_run(
        TrainConfig.of(data=data, global_batch_size=8, epochs=8, strategy="single"), Path()
    )
    assert run.steps_after[epoch + 1] == step


def test_all_batches_have_one_shape_and_their_weights_add_up_to_one(data):
    batches = batches_of(data, devices_of())
    assert len(batches) == math.ceil(2 * NUM_EXAMPLES / 8)
    for images, labels, weights, draws in batches:
        assert images.shape == (8, 12, 12, 1)
        assert images.dtype == np.uint8
        assert labels.shape == (8, 4)
        assert weights.sum() == pytest.approx(1)
        assert draws.shape == (8, augmentation.NUM_DRAWS)
    assert [np.count_nonzero(weights) for *_, weights, _ in batches] == [8, 8, 8, 8, 8, 6]


def test_every_example_counts_once_an_epoch(data):
    batches = batches_of(data, devices_of(), epochs=3)
    seen = collections.Counter(
        image.tobytes() for images, _, weights, _ in batches for image in images[weights > 0]
    )
    assert list(seen.values()) == [3] * NUM_EXAMPLES


def test_replicas_get_the_pieces_of_the_global_batch_in_order(data):
    whole, cut = batches_of(data, devices_of(1)), batches_of(data, devices_of(2))
    halves = zip(cut[::2], cut[1::2], strict=True)
    assert_same([map(np.concatenate, zip(*pair, strict=True)) for pair in halves], whole)


def test_workers_share_each_step_and_their_weights_add_up(data):
    by_worker = [batches_of(data, devices_of(1, 2, index)) for index in range(2)]
    # In order, so that an image meets the same random numbers and the same neighbour.
    pairs = zip(*by_worker, strict=True)
    joined = [map(np.concatenate, zip(*pair, strict=True)) for pair in pairs]
    assert_same(joined, batches_of(data, devices_of()))


@pytest.mark.parametrize(("num_replicas", "start_step"), [(1, 3), (2, 5)])
def test_starting_later_gives_the_same_batches(data, num_replicas, start_step):
    devices = devices_of(num_replicas)
    whole = batches_of(data, devices)
    later = batches_of(data, devices, start_step=start_step)
    assert_same(later, whole[start_step * num_replicas :])


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_evaluation_gives_each_example_once_in_the_stored_order(data, num_replicas):
    config = TrainConfig.of(data=data, replica_batch_size=4)
    part = parts_of(config).test
    batches = feed.evaluation_batches(config.input, devices_of(num_replicas), part)
    images = np.concatenate([images[weights > 0] for images, _, weights in batches])
    stored = tfrecord_io.make_dataset(data, split="test", batch_size=10, shuffle=False)
    np.testing.assert_array_equal(images, next(stored.as_numpy_iterator())[0])


def jax_devices_of():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    devices = jax.devices("cpu")[:1]
    return Devices(
        backend="jax",
        names=("cpu:0",),
        mesh=jax.sharding.Mesh(np.array(devices), ("batch",)),
    )


@pytest.mark.parametrize(
    ("fields", "start_step"),
    [({}, 0), ({"mixup": 0.0}, 4), ({"folds": 3, "fold": 1}, 2)],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:jax")
def test_jax_gets_the_batches_of_tensorflow(data, fields, start_step):
    devices = jax_devices_of()
    config = TrainConfig.of(
        data=data, epochs=2, global_batch_size=8, replica_batch_size=8, seed=5, **fields
    )
    found = list(training_batches(config, devices, start_step))
    wanted = training_batches(config, devices_of(), start_step)
    assert_same(found, wanted.as_numpy_iterator())


@pytest.mark.filterwarnings("ignore::DeprecationWarning:jax")
def test_jax_evaluates_the_batches_of_tensorflow_as_often_as_it_is_asked(data):
    config = TrainConfig.of(data=data, replica_batch_size=4)
    part = parts_of(config).test
    wanted = feed.evaluation_batches(config.input, devices_of(), part)
    found = feed.evaluation_batches(config.input, jax_devices_of(), part)
    for _ in range(2):
        assert_same(found, wanted.as_numpy_iterator())


def draws_of(data, **fields):
    return np.concatenate([draws for *_, draws in batches_of(data, devices_of(), **fields)])


def test_each_example_of_each_step_has_random_numbers_of_its_own_from_0_to_1(data):
    draws = draws_of(data, mixup=0.0)
    assert 0 <= draws.min() < 0.01 < 0.99 < draws.max() < 1
    assert len(np.unique(draws, axis=0)) == len(draws)
    # Another seed gives other numbers, the same seed the same.
    np.testing.assert_array_equal(draws_of(data, mixup=0.0, seed=0), draws)
    assert (draws_of(data, mixup=0.0, seed=1) != draws).all(axis=-1).any()


def test_the_last_number_is_the_share_of_itself_that_an_example_keeps_in_mixup(data):
    plain, mixed = (draws_of(data, epochs=30, mixup=mixup) for mixup in (0.0, 0.4))
    np.testing.assert_array_equal(mixed[:, :-1], plain[:, :-1])
    kept = mixed[:, -1]
    assert 0.5 <= kept.min() < 0.6
    assert 0.9 < kept.max() <= 1
    # The larger share of Beta(0.4, 0.4) has a mean of about 0.83.
    generator = np.random.default_rng(0)
    expected = generator.beta(0.4, 0.4, 100_000)
    assert kept.mean() == pytest.approx(np.maximum(expected, 1 - expected).mean(), abs=0.03)

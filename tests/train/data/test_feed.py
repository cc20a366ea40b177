import collections

import numpy as np
import pytest
from dataset_factory import assert_same
from marked_images import marked_data

import tfrecord_io
from train.data import augmentation, feed
from train.data.dataset import choose_parts, open_dataset
from train.machine.devices import Devices
from train.training.config import TrainConfig
from train.training.session import open_sessions

NUM_EXAMPLES = 23


data = marked_data({"train": NUM_EXAMPLES, "test": 10})


def devices_of(num_replicas=1, backend="tensorflow"):
    mesh = None
    if backend == "jax":
        jax = pytest.importorskip("jax", reason="JAX is not installed")
        mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:1]), ("batch",))
    names = tuple(f"CPU:{index}" for index in range(num_replicas))
    return Devices(backend=backend, names=names, mesh=mesh)


def training_batches(data, devices, *, start_step=0, **fields):
    """Returns two epochs in batches of 8; the numbers of mixup are not drawn."""
    size = 8 // devices.num_replicas
    fields = {"global_batch_size": 8, "replica_batch_size": size, "mixup": 0.0, **fields}
    config = TrainConfig.of(data=str(data), epochs=2, **fields)
    dataset, mixup = open_dataset(config.input.data), config.augmentation.mixup
    part = choose_parts(dataset, config.folds).train
    batches = feed.training_batches(
        dataset, part, config.input, devices, mixup=mixup, start_step=start_step
    )
    return list(batches if devices.mesh else batches.as_numpy_iterator())


def evaluation_batches(data, devices):
    config, dataset = TrainConfig.of(data=str(data), replica_batch_size=4), open_dataset(str(data))
    return feed.evaluation_batches(dataset, dataset.part("test"), config.input, devices)


def test_an_epoch_ends_with_the_step_of_its_last_example(data):
    config = TrainConfig.of(data=str(data), global_batch_size=8, epochs=8)
    assert open_sessions(config)[0].steps_after == [0, 3, 6, 9, 12, 15, 18, 21, 23]


@pytest.fixture(scope="module")
def whole(data):
    return training_batches(data, devices_of())


def test_all_batches_have_one_shape_and_their_weights_add_up_to_one(whole):
    for images, labels, weights, draws in whole:
        assert (images.shape, images.dtype, labels.shape) == ((8, 12, 12, 1), np.uint8, (8, 4))
        assert weights.sum() == pytest.approx(1)
        assert draws.shape == (8, augmentation.NUM_DRAWS)
    assert [np.count_nonzero(weights) for *_, weights, _ in whole] == [8, 8, 8, 8, 8, 6]
    # Every example counts once an epoch.
    seen = collections.Counter(
        image.tobytes() for images, _, weights, _ in whole for image in images[weights > 0]
    )
    assert list(seen.values()) == [2] * NUM_EXAMPLES


def test_replicas_get_the_pieces_of_the_global_batch_in_order_also_from_a_later_step(data, whole):
    cut = training_batches(data, devices_of(2), start_step=4)
    joined = (
        map(np.concatenate, zip(*pair, strict=True))
        for pair in zip(cut[::2], cut[1::2], strict=True)
    )
    assert_same(joined, whole[4:])


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_evaluation_gives_each_example_once_in_the_stored_order(data, num_replicas):
    batches = evaluation_batches(data, devices_of(num_replicas))
    images = np.concatenate([images[weights > 0] for images, _, weights in batches])
    stored = tfrecord_io.make_dataset(data, split="test", batch_size=10, shuffle=False)
    np.testing.assert_array_equal(images, next(stored.as_numpy_iterator())[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:jax")
def test_jax_gets_the_batches_of_tensorflow_as_often_as_it_is_asked(data):
    for fields, start_step in (({"mixup": 0.4}, 0), ({}, 4), ({"folds": 3, "fold": 1}, 2)):
        found, wanted = (
            training_batches(data, devices_of(1, name), start_step=start_step, seed=5, **fields)
            for name in ("jax", "tensorflow")
        )
        assert_same(found, wanted)
    found, wanted = (
        evaluation_batches(data, devices_of(1, name)) for name in ("jax", "tensorflow")
    )
    for _ in range(2):
        assert_same(found, wanted.as_numpy_iterator())


def test_each_example_of_each_step_has_random_numbers_of_its_own_from_0_to_1(whole):
    draws = np.concatenate([draws for *_, draws in whole])
    assert 0 <= draws.min() < 0.01 < 0.99 < draws.max() < 1
    assert len(np.unique(draws, axis=0)) == len(draws)
    assert (augmentation.draw(1, 0, batch_size=8, mixup=0.0) != draws[:8]).any()


def test_the_last_number_is_the_share_of_itself_that_an_example_keeps_in_mixup():
    plain, mixed = (augmentation.draw(0, 1, batch_size=900, mixup=each) for each in (0.0, 0.4))
    np.testing.assert_array_equal(mixed[:, :20], plain[:, :20])
    kept = mixed[:, -1]
    assert 0.5 <= kept.min() < 0.6 < 0.9 < kept.max() <= 1
    # The larger share of Beta(0.4, 0.4) has a mean of about 0.83.
    expected = np.random.default_rng(0).beta(0.4, 0.4, 100_000)
    assert kept.mean() == pytest.approx(np.maximum(expected, 1 - expected).mean(), abs=0.03)

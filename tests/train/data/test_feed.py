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
from train.training.session import session_of

NUM_EXAMPLES = 23


data = marked_data({"train": NUM_EXAMPLES, "test": 10})


def devices_of(num_replicas=1):
    names = tuple(f"CPU:{index}" for index in range(num_replicas))
    return Devices(backend="tensorflow", names=names)


def training_batches(config, devices, start_step):
    data, mixup = open_dataset(config.input.data), config.augmentation.mixup
    part = choose_parts(data, config.folds).train
    return feed.training_batches(
        data, part, config.input, devices, mixup=mixup, start_step=start_step
    )


def evaluation_batches(config, devices):
    data = open_dataset(config.input.data)
    return feed.evaluation_batches(data, data.part("test"), config.input, devices)


def batches_of(data, devices, *, start_step=0, seed=0):
    """Returns two epochs in batches of 8; the numbers of mixup are not drawn."""
    config = TrainConfig.of(
        data=str(data), epochs=2, global_batch_size=8, replica_batch_size=8 // devices.num_replicas,
        seed=seed, mixup=0.0,
    )  # fmt: skip
    return list(training_batches(config, devices, start_step).as_numpy_iterator())


def test_an_epoch_ends_with_the_step_of_its_last_example(data):
    config = TrainConfig.of(data=str(data), global_batch_size=8, epochs=8)
    assert session_of(config).plan.steps_after == [0, 3, 6, 9, 12, 15, 18, 21, 23]


@pytest.fixture(scope="module")
def whole(data):
    return batches_of(data, devices_of())


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
    cut = batches_of(data, devices_of(2), start_step=4)
    joined = (
        map(np.concatenate, zip(*pair, strict=True))
        for pair in zip(cut[::2], cut[1::2], strict=True)
    )
    assert_same(joined, whole[4:])


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_evaluation_gives_each_example_once_in_the_stored_order(data, num_replicas):
    config = TrainConfig.of(data=str(data), replica_batch_size=4)
    batches = evaluation_batches(config, devices_of(num_replicas))
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
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:jax")
def test_jax_gets_the_batches_of_tensorflow(data, fields, start_step):
    devices = jax_devices_of()
    config = TrainConfig.of(
        data=str(data), epochs=2, global_batch_size=8, replica_batch_size=8, seed=5, **fields
    )
    found = list(training_batches(config, devices, start_step))
    wanted = training_batches(config, devices_of(), start_step)
    assert_same(found, wanted.as_numpy_iterator())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:jax")
def test_jax_evaluates_the_batches_of_tensorflow_as_often_as_it_is_asked(data):
    config = TrainConfig.of(data=str(data), replica_batch_size=4)
    wanted = evaluation_batches(config, devices_of())
    found = evaluation_batches(config, jax_devices_of())
    for _ in range(2):
        assert_same(found, wanted.as_numpy_iterator())


def draws_of(batches):
    return np.concatenate([draws for *_, draws in batches])


def test_each_example_of_each_step_has_random_numbers_of_its_own_from_0_to_1(data, whole):
    draws = draws_of(whole)
    assert 0 <= draws.min() < 0.01 < 0.99 < draws.max() < 1
    assert len(np.unique(draws, axis=0)) == len(draws)
    # Another seed gives other numbers.
    assert (draws_of(batches_of(data, devices_of(), seed=1)) != draws).any()


def test_the_last_number_is_the_share_of_itself_that_an_example_keeps_in_mixup():
    plain, mixed = (
        np.concatenate(
            [augmentation.draw(0, step, batch_size=100, mixup=mixup) for step in range(9)]
        )
        for mixup in (0.0, 0.4)
    )
    # Those of another device, between the others and the last, are drawn after it.
    np.testing.assert_array_equal(mixed[:, :20], plain[:, :20])
    kept = mixed[:, -1]
    assert 0.5 <= kept.min() < 0.6
    assert 0.9 < kept.max() <= 1
    # The larger share of Beta(0.4, 0.4) has a mean of about 0.83.
    generator = np.random.default_rng(0)
    expected = generator.beta(0.4, 0.4, 100_000)
    assert kept.mean() == pytest.approx(np.maximum(expected, 1 - expected).mean(), abs=0.03)

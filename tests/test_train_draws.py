import numpy as np
import pytest
import tensorflow as tf

from train.data import augmentation, draws


@pytest.mark.parametrize("seed", [0, 7, -3, 2**62])
@pytest.mark.parametrize("step", [0, 1, 2**33])
def test_uniform_numbers_are_those_of_tensorflow(seed, step):
    expected = tf.random.stateless_uniform(
        (5, augmentation.NUM_DRAWS), tf.constant([seed, step], tf.int64), alg="philox"
    )
    found = draws.draw_step(seed, step, batch_size=5, mixup=0.0)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("alpha", [0.05, 0.3, 1.0, 2.5])
def test_the_share_of_mixup_is_that_of_tensorflow(alpha):
    for step in range(20):
        first, second = tf.random.stateless_gamma((2, 64), [3, step], alpha=alpha).numpy()
        kept = first / np.maximum(first + second, np.finfo(np.float32).tiny)
        found = draws.draw_step(3, step, batch_size=64, mixup=alpha)
        np.testing.assert_allclose(found[:, -1], np.maximum(kept, 1 - kept), rtol=1e-6)
        plain = draws.draw_step(3, step, batch_size=64, mixup=0.0)
        np.testing.assert_array_equal(found[:, :-1], plain[:, :-1])

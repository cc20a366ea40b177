import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfrecord_io.format.statistics import PixelStatistics


def random_images(shape, seed=0):
    return np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)


def sums_in_python(images):
    """Returns the statistics by the definition, one pixel after another."""
    channels = images.reshape(-1, images.shape[-1]).T.tolist()
    return PixelStatistics(
        num_pixels=len(channels[0]),
        sums=tuple(map(sum, channels)),
        sums_of_squares=tuple(sum(value**2 for value in channel) for channel in channels),
    )


@given(
    num_images=st.integers(1, 5),
    height=st.sampled_from([1, 3, 100, 255, 256, 257, 600]),
    width=st.integers(1, 4),
    channels=st.sampled_from([1, 3]),
)
def test_sums_are_those_of_the_definition(num_images, height, width, channels):
    images = random_images((num_images, height, width, channels))
    assert PixelStatistics.from_images(images) == sums_in_python(images)


def test_white_images_overflow_nothing():
    num_pixels = 3 * 70_000 * 2
    found = PixelStatistics.from_images(np.full((3, 70_000, 2, 3), 255, np.uint8))
    assert found.num_pixels == num_pixels
    assert found.sums == (255 * num_pixels,) * 3
    assert found.sums_of_squares == (255**2 * num_pixels,) * 3


def test_mean_and_std_are_those_of_numpy_by_channel():
    images = random_images((7, 20, 31, 3)) // np.array([1, 2, 5], np.uint8)
    found = PixelStatistics.from_images(images)
    assert found.mean == pytest.approx(images.mean(axis=(0, 1, 2)), rel=1e-12)
    assert found.std == pytest.approx(images.std(axis=(0, 1, 2)), rel=1e-12)


def test_the_deviation_of_a_huge_dataset_keeps_its_digits():
    # 10^15 pixels of 254 and one of 255: in floats the squares would cancel to nothing.
    many = 10**15
    found = PixelStatistics(
        num_pixels=many + 1, sums=(254 * many + 255,), sums_of_squares=(254**2 * many + 255**2,)
    )
    assert found.std[0] == pytest.approx(math.sqrt(many) / (many + 1), rel=1e-12)

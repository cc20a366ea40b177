import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfrecord_io.format.statistics import PixelStatistics


@given(
    num_images=st.integers(1, 5),
    height=st.sampled_from([1, 3, 100, 255, 256, 257, 600]),
    width=st.integers(1, 4),
    channels=st.sampled_from([1, 3]),
)
def test_sums_mean_and_deviation_are_those_of_the_definition(num_images, height, width, channels):
    shape = num_images, height, width, channels
    images = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
    found, values = PixelStatistics.from_images(images), images.reshape(-1, channels).T.tolist()
    assert found.num_pixels == len(values[0])
    assert found.sums == tuple(map(sum, values))
    assert found.sums_of_squares == tuple(sum(value**2 for value in each) for each in values)
    assert found.mean == pytest.approx(images.mean(axis=(0, 1, 2)), rel=1e-12)
    assert found.std == pytest.approx(images.std(axis=(0, 1, 2)), rel=1e-9, abs=1e-9)


def test_white_images_overflow_nothing():
    num_pixels = 3 * 70_000 * 2
    found = PixelStatistics.from_images(np.full((3, 70_000, 2, 3), 255, np.uint8))
    assert found.num_pixels == num_pixels
    assert found.sums == (255 * num_pixels,) * 3
    assert found.sums_of_squares == (255**2 * num_pixels,) * 3


def test_the_deviation_of_a_huge_dataset_keeps_its_digits():
    # 10^15 pixels of 254 and one of 255: in floats the squares would cancel to nothing.
    many = 10**15
    found = PixelStatistics(
        num_pixels=many + 1, sums=(254 * many + 255,), sums_of_squares=(254**2 * many + 255**2,)
    )
    assert found.std[0] == pytest.approx(math.sqrt(many) / (many + 1), rel=1e-12)

import numpy as np
import pytest

from tfrecord_io.auditing import near_duplicates
from tfrecord_io.auditing.side_facts import side_facts, white_border


def test_facts_are_those_of_each_picture_in_order():
    pictures = np.random.default_rng(0).integers(256, size=(70, 224, 224, 1), dtype=np.uint8)
    pictures = pictures // np.arange(1, 71, dtype=np.uint8)[:, None, None, None]
    found = side_facts(pictures)
    thumbnails = near_duplicates.thumbnails(pictures)
    assert found["brightness"].tolist() == [one.mean() for one in thumbnails]
    assert found["white_border"].tolist() == white_border(pictures).tolist()
    hashes = near_duplicates.perceptual_hash(thumbnails)
    assert found["perceptual_hash"].tolist() == hashes.tolist()


@pytest.mark.parametrize(("dtype", "scale"), [(np.uint8, 1), (np.uint16, 257)])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_white_border_is_the_share_of_the_ring_alone(channels, dtype, scale):
    pictures = np.zeros((3, 6, 5, channels), dtype)
    pictures[0, 2:4, 2:3] = 255 * scale  # inside
    pictures[1, 0] = 250 * scale  # five of the eighteen pixels of the ring
    pictures[2] = 249 * scale  # nearly white
    assert white_border(pictures).tolist() == [0, 5 / 18, 0]


@pytest.mark.parametrize("size", [(1, 1), (1, 4), (4, 1), (2, 2)])
def test_a_picture_that_is_all_ring_has_a_border(size):
    assert white_border(np.full((2, *size, 1), 255, np.uint8)).tolist() == [1, 1]

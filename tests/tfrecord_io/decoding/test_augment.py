"""Variants of a picture: the same bytes everywhere, and still the same picture."""

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from image_files import grey_pixels

from tfrecord_io.decoding import augment
from tfrecord_io.format.schema import image_key

SHAPE = (40, 56, 1)
PICTURE = grey_pixels(3, 40, 56).tobytes()
DIGEST = "4490a751a48495dec4531fa2762d1d87401b80d7353db4530ad64882fd661caa"


def vary(key, pixels=PICTURE, shape=SHAPE):
    varied = augment.vary(pixels, shape, image_key(key), (0, 0, shape[1], shape[0]))
    return np.frombuffer(varied, np.uint8).reshape(shape)


def test_a_variant_is_the_same_bytes_for_ever_and_another_one_for_each_key():
    # Whoever changes them raises the version in the recipe, which is part of the fingerprint.
    varied = [vary(str(number)).tobytes() for number in range(8)]
    assert augment.RECIPE["version"] == 1
    assert hashlib.sha256(b"".join(varied)).hexdigest() == DIGEST
    assert len(set(varied)) == 8


def test_padding_stays_as_it_is_and_the_picture_varies_as_it_does_alone():
    picture = grey_pixels(3, 24, 56)
    padded = np.pad(picture, ((8, 8), (0, 0)))[..., None]
    for number in range(8):
        varied = augment.vary(padded.tobytes(), SHAPE, image_key(str(number)), (0, 8, 56, 32))
        found = np.frombuffer(varied, np.uint8).reshape(SHAPE)
        assert not found[:8].any()
        assert not found[32:].any()
        alone = vary(str(number), picture.tobytes(), (24, 56, 1))
        np.testing.assert_array_equal(found[8:32], alone)


def test_the_channels_of_a_grey_picture_stay_equal():
    picture = np.repeat(grey_pixels(1, 40, 56)[:, :, None], 3, axis=2)
    found = vary("key", picture.tobytes(), (40, 56, 3))
    assert (found[..., 0] == found[..., 1]).all()
    assert (found[..., 0] == found[..., 2]).all()
    assert (found[..., 0] == vary("key", picture[..., 0].tobytes())[..., 0]).all()


@given(
    shape=st.tuples(st.integers(1, 12), st.integers(1, 12), st.sampled_from([1, 3])),
    key=st.integers(0, 2**128 - 1),
)
def test_any_shape_gives_a_picture_of_that_shape(shape, key):
    size, box = shape[0] * shape[1] * shape[2], (0, 0, shape[1], shape[0])
    assert len(augment.vary((bytes(range(256)) * 2)[:size], shape, f"{key:032x}", box)) == size

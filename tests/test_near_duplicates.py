import numpy as np
import pytest
from image_files import grey_pixels
from PIL import Image
from planted_scans import LOOK_ALIKES, brightened, full_scan, pixels, saved_again, scan

from tfrecord_io.auditing import near_duplicates
from tfrecord_io.auditing.near_duplicates import (
    HASH_LENGTH,
    MAX_DISTANCE,
    find_pairs,
    min_similarity,
)

WAVES_HASH = "2f2e1c8b161349096244a9a5271ebfc6dee94416a863263ce5861356878f6aaf"


def hash_of(image):
    pixels = np.asarray(image).reshape(1, image.height, image.width, -1)
    (found,) = near_duplicates.perceptual_hash(near_duplicates.thumbnails(pixels))
    return found


def picture(data, size=224):
    return Image.fromarray(pixels(data)).resize((size, size), Image.Resampling.BILINEAR)


def bits(a, b):
    return int(np.bitwise_count(hash_of(a) ^ hash_of(b)).sum())


def alike(a, b):
    return near_duplicates.similarity(near_duplicates.detail(a), near_duplicates.detail(b))


def random_hashes(num_hashes, seed=0):
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (num_hashes, HASH_LENGTH), dtype=np.uint8)


def flipped(hashes, num_bits, seed=1):
    """Returns the hashes with some bits of each, drawn at random, turned over."""
    generator = np.random.default_rng(seed)
    unpacked = np.unpackbits(hashes, axis=1)
    for row in unpacked:
        row[generator.choice(8 * HASH_LENGTH, num_bits, replace=False)] ^= 1
    return np.packbits(unpacked, axis=1)


def pairs_of(found):
    return set(zip(found.first.tolist(), found.second.tolist(), strict=True))


# ---- the hash and the detail


@pytest.mark.parametrize("size", [64, 96, 224, 300])
@pytest.mark.parametrize(
    "change",
    [
        lambda data: saved_again(data, 50),
        lambda data: saved_again(data, 95),
        lambda data: brightened(data, 20),
        lambda data: brightened(data, -10),
    ],
    ids=["quality 50", "quality 95", "brighter", "darker"],
)
def test_a_copy_is_close_in_hash_and_in_detail_at_any_stored_size(change, size):
    data = scan("CNV", 5, 1)
    a, b = picture(data, size), picture(change(data), size)
    assert bits(a, b) <= MAX_DISTANCE
    assert alike(a, b) >= min_similarity(size)


@pytest.mark.parametrize("size", [64, 96, 224])
def test_two_scans_of_one_patient_are_no_copies(size):
    scans = [picture(scan("CNV", 5, index), size) for index in range(1, 7)]
    for number, a in enumerate(scans):
        for b in scans[number + 1 :]:
            assert alike(a, b) < min_similarity(size)


@pytest.mark.parametrize("pair", LOOK_ALIKES, ids=str)
def test_scans_that_look_alike_when_stored_small_are_no_copies(pair):
    a, b = (picture(full_scan(*one), 64) for one in pair)
    assert bits(a, b) <= MAX_DISTANCE  # so the pixels have to decide
    assert 0.75 < alike(a, b) < min_similarity(64)


@pytest.mark.parametrize(
    ("side", "expected"), [(1, 0.93), (64, 0.93), (144, 0.865), (224, 0.80), (512, 0.80)]
)
def test_the_smaller_the_picture_the_more_alike_two_must_be(side, expected):
    assert min_similarity(side) == pytest.approx(expected)


def test_brightness_alone_does_not_change_the_hash():
    image = Image.fromarray(grey_pixels(3, 64, 64) // 2)
    brighter = image.point(lambda value: value + 100)
    assert bits(image, brighter) == 0
    assert alike(image, brighter) == pytest.approx(1)


def test_a_picture_of_one_colour_has_the_hash_zero_and_no_detail():
    image = Image.new("L", (50, 40), 131)
    assert not hash_of(image).any()
    assert not near_duplicates.detail(image).any()


def test_colour_and_grey_versions_have_one_hash():
    image = Image.fromarray(grey_pixels(2, 70, 90))
    assert bits(image, image.convert("RGB")) == 0


def test_the_hash_does_not_change_between_versions():
    waves = (np.multiply.outer(np.arange(32), np.arange(32)) % 251).astype(np.uint8)
    assert near_duplicates.perceptual_hash(waves[None]).tobytes().hex() == WAVES_HASH


def test_a_picture_that_is_only_a_slope_is_not_taken_for_one_of_one_colour():
    slope = np.add.outer(np.arange(32), 3 * np.arange(32)).astype(np.uint8)
    assert near_duplicates.perceptual_hash(slope[None]).any()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(32, 32), (224, 224), (70, 90), (90, 70), (20, 31), (1, 1)])
def test_a_picture_has_the_same_thumbnail_among_any_others(size, channels):
    shape = (5, *size, channels)
    pictures = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
    together = near_duplicates.thumbnails(pictures)
    alone = [near_duplicates.thumbnails(picture[None])[0] for picture in pictures]
    assert together.tolist() == np.stack(alone).tolist()


@pytest.mark.parametrize(("height", "width"), [(224, 224), (32, 64), (640, 96), (512, 512)])
def test_a_thumbnail_is_the_rounded_mean_of_areas(height, width):
    picture = np.random.default_rng(0).integers(256, size=(height, width), dtype=np.uint8)
    picture[: height // 32, : width // 32] = 255  # the largest sum there is
    means = picture.reshape(32, height // 32, 32, width // 32).mean(axis=(1, 3))
    (found,) = near_duplicates.thumbnails(picture[None, :, :, None])
    assert found.tolist() == np.floor(means + 0.5).tolist()


def test_a_picture_has_the_same_hash_among_any_others():
    pictures = np.random.default_rng(0).integers(256, size=(700, 32, 32), dtype=np.uint8)
    hashes = near_duplicates.perceptual_hash(pictures)
    assert hashes.shape == (700, HASH_LENGTH)
    for number in (0, 255, 256, 699):
        (alone,) = near_duplicates.perceptual_hash(pictures[number : number + 1])
        assert alone.tolist() == hashes[number].tolist()


# ---- the search


@pytest.mark.parametrize("num_bits", [0, 8, 20, 32])
def test_planted_pairs_are_found_in_a_crowd_and_nothing_else(num_bits):
    crowd, originals = random_hashes(20_000), random_hashes(300, seed=2)
    hashes = np.concatenate([originals, crowd, flipped(originals, num_bits)])
    found = find_pairs(hashes)
    planted = {(row, 20_300 + row) for row in range(300)}
    assert pairs_of(found) <= planted
    assert len(found.first) >= (300 if num_bits <= 20 else 290)
    assert (found.distance == num_bits).all()
    assert found.complete


def test_thousands_of_equal_hashes_take_no_square_and_each_finds_one_like_it():
    hashes = np.repeat(random_hashes(1), 5000, axis=0)
    found = find_pairs(hashes, window=4)
    assert len(found.first) <= 5000 * 4 * HASH_LENGTH
    assert set(found.first.tolist()) | set(found.second.tolist()) == set(range(5000))


def test_the_search_stops_at_its_limit_and_says_so():
    hashes = np.repeat(random_hashes(1), 500, axis=0)
    found = find_pairs(hashes, max_pairs=100)
    assert len(found.first) == 100
    assert not found.complete


@pytest.mark.parametrize("num_hashes", [0, 1, 2])
def test_few_hashes_are_no_trouble(num_hashes):
    found = find_pairs(np.zeros((num_hashes, HASH_LENGTH), np.uint8))
    assert len(found.first) == (num_hashes == 2)

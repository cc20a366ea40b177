import itertools

import numpy as np
import pytest
from PIL import Image
from planted_scans import brightened, pixels, saved_again, scan

from tfrecord_io.auditing.twins import MAX_DISTANCE, detail, find_pairs, min_similarity
from tfrecord_io.format.examples import HASH_LENGTH
from tfrecord_io.format.side_facts import perceptual_hash, side_facts, thumbnails

WAVES_HASH = "2f2e1c8b161349096244a9a5271ebfc6dee94416a863263ce5861356878f6aaf"


def hash_of(image):
    pixels = np.asarray(image).reshape(1, image.height, image.width, -1)
    (found,) = perceptual_hash(thumbnails(pixels))
    return found


def picture(data, size):
    return Image.fromarray(pixels(data)).resize((size, size), Image.Resampling.BILINEAR)


def bits(a, b):
    return int(np.bitwise_count(hash_of(a) ^ hash_of(b)).sum())


def alike(a, b):
    return detail(a) @ detail(b)


def random_hashes(num_hashes, seed=0):
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (num_hashes, HASH_LENGTH), dtype=np.uint8)


def flipped(hashes, num_bits):
    """Returns the hashes with some bits of each, drawn at random, turned over."""
    flips = np.repeat([[1] * num_bits + [0] * (8 * HASH_LENGTH - num_bits)], len(hashes), axis=0)
    flips = np.random.default_rng(1).permuted(flips.astype(np.uint8), axis=1)
    return hashes ^ np.packbits(flips, axis=1)


# ---- the hash and the detail


@pytest.mark.parametrize("size", [64, 96, 224, 300])
@pytest.mark.parametrize(
    ("change", "by"), [(saved_again, 50), (saved_again, 95), (brightened, 20), (brightened, -10)]
)
def test_a_copy_is_close_in_hash_and_in_detail_at_any_stored_size(change, by, size):
    data = scan("CNV", 5, 1)
    a, b = picture(data, size), picture(change(data, by), size)
    assert bits(a, b) <= MAX_DISTANCE
    assert alike(a, b) >= min_similarity(size)


@pytest.mark.parametrize("size", [64, 96, 224])
def test_two_scans_of_one_patient_are_no_copies(size):
    scans = [picture(scan("CNV", 5, index), size) for index in range(1, 7)]
    assert max(alike(*pair) for pair in itertools.combinations(scans, 2)) < min_similarity(size)


def test_the_hash_does_not_change_between_versions():
    waves = (np.multiply.outer(np.arange(32), np.arange(32)) % 251).astype(np.uint8)
    assert perceptual_hash(waves[None]).tobytes().hex() == WAVES_HASH
    slope = np.add.outer(np.arange(32), 3 * np.arange(32)).astype(np.uint8)
    assert perceptual_hash(slope[None]).any()  # it is not of one colour


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(32, 32), (224, 224), (70, 90), (90, 70), (20, 31), (1, 1)])
def test_a_picture_has_the_same_facts_among_any_others(size, channels):
    shape = (35, *size, channels)
    pictures = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
    together = side_facts(pictures)
    assert together["perceptual_hash"].shape == (35, HASH_LENGTH)
    grey = [Image.fromarray(one[..., 0] if channels == 1 else one).convert("L") for one in pictures]
    means = thumbnails(np.stack(grey)[..., np.newaxis]).mean(axis=(1, 2))
    assert together["brightness"].tolist() == means.tolist()
    for number in (0, 15, 16, 34):
        for name, (fact,) in side_facts(pictures[number : number + 1]).items():
            assert fact.tolist() == together[name][number].tolist()


@pytest.mark.parametrize("channels", [1, 3])
def test_the_white_border_is_the_share_of_the_ring_alone(channels):
    pictures = np.zeros((3, 6, 5, channels), np.uint8)
    pictures[0, 2:4, 2:3] = 255  # inside
    pictures[1, 0] = 250  # five of the eighteen pixels of the ring
    pictures[2] = 249  # nearly white
    assert side_facts(pictures)["white_border"].tolist() == [0, 5 / 18, 0]
    for size in ((1, 1), (1, 4), (4, 1), (2, 2)):  # all of it is the ring
        white = np.full((2, *size, channels), 255, np.uint8)
        assert side_facts(white)["white_border"].tolist() == [1, 1]


# ---- the search


@pytest.mark.parametrize("num_bits", [0, 8, 20, 32])
def test_planted_pairs_are_found_in_a_crowd_and_nothing_else(num_bits):
    crowd, originals = random_hashes(20_000), random_hashes(300, seed=2)
    pairs, distances, complete = find_pairs(
        np.concatenate([originals, crowd, flipped(originals, num_bits)])
    )
    assert set(map(tuple, pairs.tolist())) <= {(row, 20_300 + row) for row in range(300)}
    assert len(pairs) >= (300 if num_bits <= 20 else 290)
    assert (distances == num_bits).all()
    assert complete


def of_one_coarse_structure(num_hashes):
    """Hashes that share their first four bytes of eight, and the copies of some of them."""
    hashes = random_hashes(num_hashes)
    hashes.reshape(-1, 4, 8)[:, :, :4] = hashes[:1].reshape(-1, 4, 8)[:, :, :4]
    return np.concatenate([hashes, flipped(hashes[:120], 20)])


@pytest.mark.parametrize("num_hashes", [1_500, 6_000])
def test_copies_in_a_crowd_of_one_coarse_structure_are_found(num_hashes):
    pairs, _, complete = find_pairs(of_one_coarse_structure(num_hashes))
    found = set(map(tuple, pairs.tolist()))
    assert sum((row, num_hashes + row) in found for row in range(120)) >= 119
    assert complete


def test_the_search_stops_at_its_limit_and_says_so_and_each_finds_one_like_it():
    equal = np.zeros((5000, HASH_LENGTH), np.uint8)
    for num_hashes, num_pairs, is_complete in ((0, 0, True), (1, 0, True), (2, 1, True)):
        pairs, distances, complete = find_pairs(equal[:num_hashes])
        assert (len(pairs), len(distances), complete) == (num_pairs, num_pairs, is_complete)
    pairs, _, complete = find_pairs(equal, max_pairs=100_000)
    assert len(pairs) <= 5000 * 8 * HASH_LENGTH  # and no square
    assert np.unique(pairs).tolist() == list(range(5000))
    assert not complete

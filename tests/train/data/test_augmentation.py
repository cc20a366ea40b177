"""Training images change at random, by numbers that come with them, and within bounds."""

import importlib.util

import keras
import numpy as np
import pytest
from marked_images import run_on_jax
from scipy.ndimage import map_coordinates

from train.data import augmentation
from train.data.augmentation import NUM_DRAWS

# Places of the numbers among the draws of an example.
MIRROR, TURN, ZOOM, STRETCH, SHIFT_X, SHIFT_Y, *_ = range(8)
ERASED = (8, 13)  # each followed by row, height, column, width
NOISE_LEVEL, NOISE_PLACE = 18, 19
KEPT = 20
GEOMETRY = (TURN, ZOOM, STRETCH, SHIFT_X, SHIFT_Y)
LIMITS = [
    getattr(augmentation, f"_MAX_{name}") for name in ("TURN", "ZOOM", "STRETCH", "SHIFT", "SHIFT")
]


def neutral(batch):
    """Returns draws that leave an image as it is."""
    draws = np.full((batch, NUM_DRAWS), 0.5, np.float32)
    draws[:, NOISE_LEVEL] = 0
    return draws


def random_draws(batch, seed=0):
    return np.random.default_rng(seed).random((batch, NUM_DRAWS), np.float32)


def random_images(batch=4, shape=(16, 12, 1), seed=0):
    return np.random.default_rng(seed).integers(256, size=(batch, *shape)).astype(np.float32)


def augment(images, draws, strength=1.0, **options):
    return keras.ops.convert_to_numpy(augmentation.augment(images, draws, strength, **options))


def warped(image, draws, mode):
    """The image where SciPy finds the pixels of its mirrored, turned, scaled and shifted self."""
    height, width, channels = image.shape
    turn, zoom, stretch, shift_x, shift_y = (2 * draws[list(GEOMETRY)] - 1) * LIMITS
    rows, columns = np.indices((height, width), np.float64)
    across, down = columns - (width - 1) / 2, rows - (height - 1) / 2
    across = across if draws[MIRROR] >= 0.5 else -across
    scale, cosine, sine = np.exp(zoom), np.cos(turn), np.sin(turn)
    x = scale * (cosine * np.exp(stretch) * across - sine * down) + shift_x * width
    y = scale * (sine * across + cosine * np.exp(-stretch) * down) + shift_y * height
    places = np.stack([y + (height - 1) / 2, x + (width - 1) / 2])
    planes = [map_coordinates(image[..., c], places, order=1, mode=mode) for c in range(channels)]
    return np.stack(planes, axis=-1)


@pytest.mark.parametrize("strength", [1.0, 4.0])
@pytest.mark.parametrize("shape", [(48, 40, 1), (20, 64, 3), (1, 9, 1)])
def test_pixels_are_those_that_scipy_interpolates_with_mirror_images_around(shape, strength):
    images, draws = random_images(6, shape), neutral(6)
    draws[:, GEOMETRY] = random_draws(6)[:, GEOMETRY]
    draws[:, MIRROR] = [0.2, 0.8] * 3
    stronger = draws.astype(np.float64)
    stronger[:, GEOMETRY] = 0.5 + strength * (stronger[:, GEOMETRY] - 0.5)
    expected = [warped(*each, "reflect") for each in zip(images, stronger, strict=True)]
    for kind in (np.float32, np.uint8, np.uint16):
        changed = augment(images.astype(kind), draws, strength)
        np.testing.assert_allclose(changed, expected, atol=0.02)


def test_padding_stays_black():
    def padded(images):
        return np.pad(images, ((0, 0), (4, 4), (0, 0), (0, 0)))

    images, draws = 1 + random_images(6, (24, 40, 3)) / 2, neutral(6)
    draws[:, GEOMETRY] = random_draws(6)[:, GEOMETRY]
    expected = [warped(*each, "grid-constant") for each in zip(padded(images), draws, strict=True)]
    found = augment(padded(images), draws, is_padded=True)
    np.testing.assert_allclose(found, expected, atol=0.02)
    draws = random_draws(6)
    assert not augment(0 * images, draws, is_padded=True).any()
    # The picture changes in light as it does alone.
    draws[:, GEOMETRY], draws[:, NOISE_LEVEL], draws[:, list(ERASED)] = 0.5, 0, 1
    changed = augment(padded(images), draws, is_padded=True)[:, 4:-4]
    np.testing.assert_allclose(changed, augment(images, draws), atol=1e-2)


def test_an_image_changes_by_its_own_numbers_alone_so_replicas_can_share_a_batch():
    images, draws = random_images(8, (12, 12, 3)), random_draws(8)
    halves = [augment(images[half], draws[half]) for half in (slice(4), slice(4, 8))]
    np.testing.assert_allclose(np.concatenate(halves), augment(images, draws), atol=1e-3)


def test_every_number_but_the_one_of_mixup_changes_something():
    before, after = neutral(KEPT), neutral(KEPT)
    for place in range(KEPT):
        # A rectangle or the noise is there, so that its place can matter.
        for first in ERASED:
            before[place, first] = 0.0 if first < place <= first + 4 else 0.5
        before[place, NOISE_LEVEL] = float(place == NOISE_PLACE)
        after[place] = before[place]
        after[place, place] = 0.1 if place in (MIRROR, *ERASED) else 0.95
    images = np.repeat(random_images(1, (112, 96, 1)), KEPT, axis=0)
    change = np.abs(augment(images, after) - augment(images, before))
    assert (change.max(axis=(1, 2, 3)) > 1).all()


@pytest.mark.parametrize("strength", [0.5, 2.0])
def test_light_and_noise_stay_within_their_ranges_times_the_strength(strength):
    grey = np.full((200, 16, 16, 1), 100, np.float32)
    changed = augment(grey, random_draws(200), strength) - 100
    shift, level = np.abs(changed.mean(axis=(1, 2, 3))).max(), changed.std(axis=(1, 2, 3)).max()
    brightness, noise = augmentation._MAX_BRIGHTNESS, augmentation._MAX_NOISE
    # The mean of 256 pixels of noise is known to a sixteenth of its level.
    assert 0.8 * brightness * strength < shift < (brightness + 4 * noise / 16) * strength
    assert 0.8 * noise * strength < level < 1.3 * noise * strength


def test_erasing_covers_a_rectangle_with_the_mean_of_the_image():
    images, draws = random_images(1, (40, 20, 1)), neutral(1)
    first = ERASED[0]
    draws[0, first : first + 5] = [0.0, 0.5, 1.0, 0.5, 1.0]  # in the middle, as large as can be
    changed = augment(images, draws)[0, ..., 0]
    rows, columns = np.nonzero(np.abs(changed - images[0, ..., 0]) > 0.01)
    covered = changed[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    assert covered.shape == (augmentation._MAX_ERASED * 40, augmentation._MAX_ERASED * 20)
    assert (rows.min() + rows.max(), columns.min() + columns.max()) == (39, 19)
    np.testing.assert_allclose(covered, images.mean(), rtol=1e-4)


def test_mixup_pairs_neighbours_and_leaves_the_last_example_of_an_odd_batch():
    images, kept = random_images(5), np.array([0.75, 0.5, 1.0, 0.6, 0.7], np.float32)
    labels = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1]]
    mixed, mixed_labels = (
        keras.ops.convert_to_numpy(augmentation.mix(each, augmentation.partners(each), kept))
        for each in (images, labels)
    )
    np.testing.assert_allclose(mixed[0], 0.75 * images[0] + 0.25 * images[1], rtol=1e-5)
    np.testing.assert_allclose(mixed[[2, 4]], images[[2, 4]], rtol=1e-6)
    expected = [[0.75, 0.25, 0], [0.5, 0.5, 0], [0, 0, 1], [0.6, 0, 0.4], [0, 1, 0]]
    np.testing.assert_allclose(mixed_labels, expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_tensorflow_and_jax_change_images_alike_to_a_fiftieth_of_a_grey_level(tmp_path):
    import tensorflow as tf

    images, draws = random_images(16, (112, 96, 3)), random_draws(16)
    np.savez(tmp_path / "in.npz", images=images, draws=draws)
    script = (
        "import sys, jax, numpy as np; from train.data import augmentation; "
        "given = np.load(sys.argv[1]); "
        "change = jax.jit(lambda *given: augmentation.augment(*given, 1.0)); "
        "np.save(sys.argv[2], change(given['images'], given['draws']))"
    )
    run_on_jax(script, tmp_path / "in.npz", tmp_path / "out.npy")
    # XLA rounds another way than the same operations one by one.
    compiled = tf.function(augmentation.augment, autograph=False, jit_compile=True)(
        images, draws, 1.0
    )
    for changed in (compiled, augment(images, draws)):
        np.testing.assert_allclose(np.load(tmp_path / "out.npy"), changed, atol=0.02)

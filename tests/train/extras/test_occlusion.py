import numpy as np
import pytest

from train.extras import occlusion


def spot_classifier(images):
    """Is sure of class 1 exactly if the pixel at (5, 9) is bright."""
    bright = images[:, 5, 9, 0] / 255
    return np.stack([1 - bright, bright], axis=-1)


def image_with_a_spot(height=24, width=20):
    image = np.zeros((height, width, 1), np.uint8)
    image[5, 9] = 255
    return image


@pytest.mark.parametrize("patch", [1, 5, 20])
def test_the_map_is_high_where_the_decision_is_made_and_low_where_something_speaks_against(patch):
    image = image_with_a_spot()
    drops = occlusion.occlusion_map(spot_classifier, image, 1, patch)
    np.testing.assert_array_equal(image, image_with_a_spot())  # it covers copies
    assert drops.shape == (24, 20)
    assert drops[5, 9] == drops.max() > 0.9
    if patch < 20:
        assert drops[15, 15] == 0
    # The other output of the classifier is sure where the spot is not bright.
    drops = occlusion.occlusion_map(spot_classifier, image, 0, patch)
    assert drops[5, 9] == drops.min() < -0.3


@pytest.mark.parametrize("shape", [(28, 28), (1, 1), (512, 3), (1024, 768)])
def test_the_number_of_places_is_bounded_whatever_the_image_shape(shape):
    calls = []

    def predict(images):
        calls.append(images.shape)
        return np.full((len(images), 2), 0.5)

    drops = occlusion.occlusion_map(predict, np.zeros((*shape, 1), np.uint8), 0)
    assert drops.shape == shape
    # Each call has the same number of images, so that one graph is enough.
    ((size, *rest),) = set(calls)
    assert rest == [*shape, 1]
    assert size <= 64
    assert size == 1 or size * np.prod(shape) <= 16 * 224 * 224
    assert size * len(calls) <= 304 + len(calls)


def test_the_overlay_is_red_where_the_image_spoke_for_the_answer_and_grey_without_a_drop():
    image = np.tile(np.array([80, 100, 120], np.uint8), (1, 4, 1))
    ((red, weak, plain, blue),) = occlusion.overlay(image, np.array([[0.4, 0.2, 0, -0.4]]))
    assert int(red[0]) > 100 + int(red[2])
    assert int(blue[2]) > 100 + int(blue[0])
    assert red[0] > weak[0] > 100
    assert plain.tolist() == [100] * 3
    assert (occlusion.overlay(image, np.zeros((1, 4))) == 100).all()


def test_maps_take_a_twentieth_of_the_time_of_the_training_at_most():
    for seconds, answer in ((738, 0.04), (60, 0.01), (6, 0.08)):
        number = occlusion.num_maps(seconds, answer)
        assert 170 * answer * number <= seconds / 20 < 170 * answer * (number + 1)
    assert occlusion.num_maps(6, 0.08) == 0

"""`--fit pad`: what is stored, and the same by hand with Pillow and NumPy."""

import dataclasses
import math

import numpy as np
import pytest
from dicom_files import dicom_file
from image_files import encoded, grey_pixels, jpeg, png, rgb_pixels
from PIL import Image

from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.preprocess import decode_image

SPACING = (0x0028, 0x0030, "DS")
OF_ALL_FRAMES = {
    (0x5200, 0x9229, "SQ"): [{(0x0028, 0x9110, "SQ"): [{SPACING: "0.1\\0.3"}]}],
}

#: Files, the frame to read, and the height of a pixel divided by its width.
FILES = {
    "wide": (png(0, 20, 60), None, 1.0),
    "tall": (jpeg(1, 41, 16), None, 1.0),
    "colour": (encoded(rgb_pixels(2, 20, 29)), None, 1.0),
    "deep": (encoded(grey_pixels(7, 30, 50).astype(np.uint16) * 200), None, 1.0),
    "ratio": (dicom_file(grey_pixels(3), {(0x0028, 0x0034, "IS"): "3\\2"}), 0, 1.5),
    "white is zero": (
        dicom_file(grey_pixels(4) // 2, {SPACING: "0.4\\0.2"}, photometric="MONOCHROME1"), 0, 2.0,
    ),
    "frame": (dicom_file(np.stack([grey_pixels(5), grey_pixels(6)]), OF_ALL_FRAMES), 2, 1 / 3),
}  # fmt: skip


def by_hand(picture, aspect, rows, columns):
    """Pads a picture in its own size, [height, width, channels], with Pillow and NumPy alone."""
    height, width, _ = picture.shape
    if width / (height * aspect) > columns / rows:
        inner = columns, max(round(height * aspect / width * columns), math.ceil(rows / 2))
    else:
        inner = max(round(width / (height * aspect) * rows), math.ceil(columns / 2)), rows
    left, top = round((columns - inner[0]) / 2), round((rows - inner[1]) / 2)
    stored = np.zeros((rows, columns, picture.shape[2]), picture.dtype)
    resized = [
        np.asarray(Image.fromarray(plane).resize(inner, Image.Resampling.BILINEAR))
        for plane in np.moveaxis(picture, 2, 0)
    ]
    stored[top : top + inner[1], left : left + inner[0]] = np.stack(resized, axis=-1)
    return stored


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", FILES)
def test_a_file_and_a_few_lines_by_hand_give_the_same_pixels(name, channels):
    data, frame, aspect = FILES[name]
    settings = Preprocessing(height=24, width=17, channels=channels)
    found = decode_image(data, settings, frame)
    own = dataclasses.replace(settings, height=found.height, width=found.width, fit="stretch")
    picture = np.frombuffer(decode_image(data, own, frame).pixels, np.uint8)
    expected = by_hand(picture.reshape(own.image_shape), aspect, 24, 17)
    assert found.pixels == expected.tobytes()


@pytest.mark.parametrize(
    ("height", "width", "box", "whole"),
    [
        (496, 768, (0, 40, 224, 185), (0, 40, 224, 185)),
        (496, 1536, (0, 56, 224, 168), (0, 76, 224, 148)),
        (1, 500, (0, 56, 224, 168), (0, 112, 224, 113)),
        (1536, 496, (56, 0, 168, 224), (76, 0, 148, 224)),
        (496, 992, (0, 56, 224, 168), (0, 56, 224, 168)),
    ],
)
def test_a_picture_fills_the_least_share_of_each_side(height, width, box, whole):
    assert Preprocessing().box(width, height) == box
    assert Preprocessing(min_fill=0).box(width, height) == whole
    assert Preprocessing(min_fill=1).box(width, height) == (0, 0, 224, 224)
    assert Preprocessing(fit="stretch").box(width, height) == (0, 0, 224, 224)


@pytest.mark.parametrize("sides", ["0\\0", "1", "x\\y", "-1\\1", "1\\100000", ""])
def test_nonsense_about_the_sides_of_pixels_is_not_believed(sides):
    data = dicom_file(grey_pixels(), {SPACING: sides, (0x0028, 0x0034, "IS"): "2\\1"})
    assert decode_image(data, Preprocessing(fit="pad"), 0).shape == 28 / 20 / 2
    data = dicom_file(grey_pixels(), {SPACING: sides})
    assert decode_image(data, Preprocessing(), 0).shape == 1.4

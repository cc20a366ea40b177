"""`--fit pad`: the build, and the same by hand from what the manifest says."""

import dataclasses
import math

import numpy as np
import pytest
from builds import build_here, rows_of
from dataset_factory import pixels_of
from dicom_files import dicom_file
from image_files import encoded, grey_pixels, jpeg, png, rgb_pixels, write_tree
from PIL import Image, ImageOps

from tfrecord_io import Manifest
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.preprocess import decode_image

SPACING = (0x0028, 0x0030, "DS")
OF_ALL_FRAMES = {
    (0x5200, 0x9229, "SQ"): [{(0x0028, 0x9110, "SQ"): [{SPACING: "0.1\\0.3"}]}],
}

#: Files by name, and the height of a pixel divided by its width.
FILES = {
    "wide.png": (png(0, 20, 60), 1.0),
    "tall.jpeg": (jpeg(1, 41, 16), 1.0),
    "colour.png": (encoded(rgb_pixels(2, 20, 29)), 1.0),
    "ratio.dcm": (dicom_file(grey_pixels(3), {(0x0028, 0x0034, "IS"): "3\\2"}), 1.5),
    "white.dcm": (
        dicom_file(grey_pixels(4) // 2, {SPACING: "0.4\\0.2"}, photometric="MONOCHROME1"),
        2.0,
    ),
    "frames.dcm": (dicom_file(np.stack([grey_pixels(5), grey_pixels(6)]), OF_ALL_FRAMES), 1 / 3),
    "deep.png": (encoded(grey_pixels(7, 30, 50).astype(np.uint16) * 200), 1.0),
}
HEIGHT, WIDTH = 24, 17


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    files = {
        f"train/{'CNV' if name.endswith('.dcm') else 'DME'}/{name}": data
        for name, (data, _) in FILES.items()
    }
    return write_tree(tmp_path_factory.mktemp("source"), files)


@pytest.fixture(scope="module", params=[1, 3])
def built(request, source, tmp_path_factory):
    channels = request.param
    return build_here(
        source,
        tmp_path_factory.mktemp("built") / "out",
        "--fit=pad",
        f"--image_size={HEIGHT}x{WIDTH}",
        f"--channels={channels}",
        "--max_reject_fraction=0.2",
    )


def stored_pictures(built):
    """Yields (path, number of the frame, stored pixels)."""
    pixels = pixels_of(built)
    for row in rows_of(built):
        path, _, frame = row["path"].partition("#frame-")
        yield path, int(frame or 0) or None, pixels[row["key"]]


def by_hand(picture, aspect, settings):
    """Pads a picture in its own size, [height, width, channels], with Pillow and NumPy alone."""
    height, width, _ = picture.shape
    columns, rows = settings["width"], settings["height"]
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


def test_the_build_and_a_few_lines_by_hand_give_the_same_pixels(built):
    settings = Manifest.load(built).preprocessing
    preprocessing, seen = Preprocessing.from_dict(settings), set()
    for path, frame, image in stored_pictures(built):
        name = path.rpartition("/")[2]
        data, aspect = FILES[name]
        frame = 0 if name.endswith(".dcm") and frame is None else frame
        size = decode_image(data, preprocessing, frame)
        assert size.pixels == image.tobytes()
        own = dataclasses.replace(
            preprocessing, height=size.height, width=size.width, fit="stretch"
        )
        picture = np.frombuffer(decode_image(data, own, frame).pixels, np.uint8)
        picture = picture.reshape(own.image_shape)
        np.testing.assert_array_equal(by_hand(picture, aspect, settings), image)
        seen.add((name, frame))
    assert len(seen) == len(FILES) + 1


def test_square_pixels_are_padded_as_pillow_pads():
    settings = Preprocessing(height=33, width=47, fit="pad", min_fill=0)
    for height, width in ((20, 60), (60, 20), (31, 44), (1, 500), (500, 1), (33, 47)):
        picture = grey_pixels(1, height, width)
        found = np.frombuffer(decode_image(encoded(picture), settings).pixels, np.uint8)
        if min(height, width) == 1:  # of which Pillow's function would leave no pixel
            assert np.count_nonzero(found.reshape(33, 47).any(axis=int(width == 1) ^ 1)) == 1
            continue
        expected = ImageOps.pad(Image.fromarray(picture), (47, 33), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(found.reshape(33, 47), np.asarray(expected))


@pytest.mark.parametrize(
    ("height", "width", "box"),
    [
        (496, 768, (0, 40, 224, 185)),
        (496, 1536, (0, 56, 224, 168)),
        (1, 500, (0, 56, 224, 168)),
        (1536, 496, (56, 0, 168, 224)),
        (496, 992, (0, 56, 224, 168)),
    ],
)
def test_a_picture_fills_at_least_half_of_each_side(height, width, box):
    assert Preprocessing(fit="pad").box(width, height) == box
    assert Preprocessing(fit="pad", min_fill=1).box(width, height) == (0, 0, 224, 224)
    assert Preprocessing(fit="stretch").box(width, height) == (0, 0, 224, 224)


def test_without_a_least_share_every_shape_is_kept():
    assert Preprocessing(fit="pad", min_fill=0).box(1536, 496) == (0, 76, 224, 148)
    assert Preprocessing(fit="pad", min_fill=0).box(1, 500) == (112, 0, 113, 224)
    values = Preprocessing(fit="pad").to_dict()
    del values["min_fill"]
    assert Preprocessing.from_dict(values).min_fill == 0


@pytest.mark.parametrize("sides", ["0\\0", "1", "x\\y", "-1\\1", "1\\100000", ""])
def test_nonsense_about_the_sides_of_pixels_is_not_believed(sides):
    data = dicom_file(grey_pixels(), {SPACING: sides, (0x0028, 0x0034, "IS"): "2\\1"})
    assert decode_image(data, Preprocessing(fit="pad"), 0).shape == 28 / 20 / 2
    data = dicom_file(grey_pixels(), {SPACING: sides})
    assert decode_image(data, Preprocessing(), 0).shape == 1.4

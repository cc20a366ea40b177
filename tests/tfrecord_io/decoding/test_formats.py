"""Which pictures are accepted, what they become, and why others are rejected."""

import contextlib
import dataclasses
import io
import struct

import numpy as np
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st
from image_files import encoded, grey_pixels, jpeg, png, png_of_rows, rgb_pixels
from PIL import Image, TiffImagePlugin
from tiff_files import tiff_file

from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.preprocess import decode_image
from tfrecord_io.decoding.rejects import Reject

# Pillow warns of odd metadata and of large pictures; the job silences it where it decodes.
pytestmark = pytest.mark.filterwarnings("ignore")

HEIGHT, WIDTH = 20, 28
#: The size of the generated pictures: nothing is resized, so pixels can be compared exactly.
SAME_SIZE = Preprocessing(height=HEIGHT, width=WIDTH)
SAME_SIZE_RGB = Preprocessing(height=HEIGHT, width=WIDTH, channels=3)
GREY, RGB = grey_pixels(), rgb_pixels()
DEEP = GREY.astype(np.uint16) * 251 + 7


def pixels(data, preprocessing=SAME_SIZE):
    decoded = decode_image(data, preprocessing)
    return np.frombuffer(decoded.pixels, np.uint8).reshape(preprocessing.image_shape)


def reason(data, preprocessing=SAME_SIZE):
    with pytest.raises(Reject) as raised:
        decode_image(data, preprocessing)
    assert raised.value.detail
    return raised.value.reason


def luma(rgb):
    """ITU-R 601-2 in the fixed point of Pillow's documentation."""
    red, green, blue = (rgb[..., i].astype(np.uint32) for i in range(3))
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).astype(np.uint8)


@pytest.mark.parametrize("file_format", ["PNG", "BMP", "TIFF", "PPM", "GIF", "WEBP", "JPEG2000"])
def test_the_pixels_of_a_lossless_file_come_out_as_they_are(file_format):
    settings = {"lossless": True} if file_format == "WEBP" else {}
    data = encoded(GREY, file_format, **settings)
    np.testing.assert_array_equal(pixels(data)[:, :, 0], GREY)
    np.testing.assert_array_equal(pixels(data, SAME_SIZE_RGB), np.repeat(GREY[..., None], 3, 2))
    if file_format not in ("GIF", "WEBP"):  # of which the first has no colour but palettes
        data = encoded(RGB, file_format)
        np.testing.assert_array_equal(pixels(data)[:, :, 0], luma(RGB))
        np.testing.assert_array_equal(pixels(data, SAME_SIZE_RGB), RGB)


def test_a_jpeg_gives_what_pillow_decodes_and_its_quality_is_kept():
    coarse, fine = (encoded(GREY, "JPEG", quality=quality) for quality in (30, 95))
    decoded = decode_image(coarse, SAME_SIZE)
    with Image.open(io.BytesIO(coarse)) as image:
        assert decoded.pixels == image.tobytes()
    assert (decoded.mode, decoded.file_format) == ("L", "JPEG")
    assert (decoded.height, decoded.width) == (HEIGHT, WIDTH)
    assert decoded.quantization > decode_image(fine, SAME_SIZE).quantization > 0
    assert decode_image(png(), SAME_SIZE).quantization == 0


# ---- transparency


def bmp_with_alpha(alpha):
    """Returns a BMP of 8x8 pixels of (9, 9, 9) that says that its fourth byte is alpha."""
    masks = struct.pack("<4I", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    header = struct.pack("<IiiHHIIiiII", 108, 8, 8, 1, 32, 3, 256, 0, 0, 0, 0) + masks + bytes(52)
    return b"BM" + struct.pack("<IHHI", 378, 0, 0, 122) + header + bytes([9, 9, 9, alpha]) * 64


def test_a_background_shows_behind_transparent_pixels_and_without_one_they_are_a_reject():
    image = Image.new("LA", (WIDTH, HEIGHT), (100, 255))
    image.putpixel((3, 4), (200, 51))  # a fifth
    assert reason(encoded(image)) == "transparency"
    for background, level in (("black", 40), ("white", 244)):
        shown = pixels(encoded(image), dataclasses.replace(SAME_SIZE_RGB, background=background))
        assert shown[4, 3].tolist() == [level] * 3
        assert shown[0, 0].tolist() == [100] * 3


@pytest.mark.parametrize("background", [None, "black", "white"])
def test_alpha_that_is_0_everywhere_says_nothing(background):
    settings = Preprocessing(height=8, width=8, background=background)
    for alpha in (0, 255):
        assert set(pixels(bmp_with_alpha(alpha), settings).ravel()) == {9}


# ---- orientation


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_the_picture_is_turned_as_viewers_turn_it(file_format):
    image = Image.fromarray(GREY)
    settings = {"lossless": True} if file_format == "WEBP" else {}
    stored = pixels(encoded(image, file_format, **settings))[:, :, 0]
    # EXIF 2.3, 4.6.4: where row 0 and column 0 of the stored picture are in the viewed one.
    for orientation, upright in {
        2: stored[:, ::-1], 3: stored[::-1, ::-1], 5: stored.T, 6: stored.T[:, ::-1], 77: stored,
    }.items():  # fmt: skip
        exif = Image.Exif()
        exif[0x0112] = orientation
        height, width = upright.shape
        data = encoded(image, file_format, exif=exif, **settings)
        found = pixels(data, Preprocessing(height=height, width=width))
        np.testing.assert_array_equal(found[:, :, 0], upright)


# ---- more than eight bits


def pgm(values, maximum):
    return b"P5 4 4 %d\n" % maximum + values.astype(">u2").tobytes()


STEPS = np.arange(16).reshape(4, 4) * 4369
TWELVE = np.array([[0, 1, 2048, 4095]] * 4, np.uint16)
ROWS = [row.tobytes() for row in STEPS.astype(">u2")]
DEEP_GREY = {
    "png": (png_of_rows(4, 4, ROWS, bits=16), STEPS, 65_535),
    "tiff": (tiff_file([DEEP]), DEEP, 65_535),
    "tiff, white is zero": (tiff_file([DEEP], photometric="miniswhite"), 65_535 - DEEP, 65_535),
    "tiff of 12 bits": (tiff_file([TWELVE], bitspersample=12, compression="none"), TWELVE, 4095),
    "pgm": (pgm(STEPS, 65_535), STEPS, 65_535),
    "pgm of 10 bits": (pgm(STEPS >> 6, 1023), STEPS >> 6, 1023),
}


@pytest.mark.parametrize(("data", "values", "white"), DEEP_GREY.values(), ids=DEEP_GREY)
def test_deeper_grey_is_scaled_by_its_range(data, values, white):
    height, width = values.shape
    found = pixels(data, Preprocessing(height=height, width=width))[..., 0]
    expected = np.rint(values * (255 / white))
    assert np.abs(found - expected).max() <= (white == 1023)


def test_tifffile_reads_what_pillow_does_not():
    deep = np.stack([DEEP, DEEP.T.reshape(DEEP.shape), DEEP[::-1]], axis=-1)
    for data in (
        tiff_file([deep]),
        tiff_file([np.moveaxis(deep, -1, 0)], photometric="rgb", planarconfig="separate"),
        tiff_file([deep], compression="zstd"),
    ):
        found = pixels(data, SAME_SIZE_RGB).astype(int)
        assert np.abs(found - deep / 257).max() <= 1


# ---- what is left out, and why


@pytest.mark.parametrize(
    "data",
    [
        b"password=SECRET",
        b"P5\nSECRET 1\n255\n",
        b"P2 2 2 255\nSECRET",
        b"P5 12345678901SECRET 1 255\n",
        encoded(GREY)[:33] + b"\0\0\0\7SECRETS" + encoded(GREY)[33:],
    ],
)
def test_a_reject_never_quotes_the_file(data):
    with pytest.raises(Reject) as raised:
        decode_image(data, Preprocessing())
    assert "SECR" not in str(raised.value)


def with_sample_format(number):
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    tags[339] = number
    return encoded(GREY, "TIFF", tiffinfo=tags)


def nearly_opaque(mode):
    image = Image.fromarray(GREY).convert(mode)
    image.putpixel((3, 4), (*(50,) * (len(mode) - 1), 254))
    return encoded(image)


def several(file_format):
    more = [Image.fromarray(grey_pixels(seed)) for seed in (1, 2)]
    return encoded(GREY, file_format, save_all=True, append_images=more)


def stack_of_imagej():
    """Returns a TIFF of three planes and one page, of which Pillow sees the first plane."""
    file = io.BytesIO()
    tifffile.imwrite(file, np.stack([GREY, GREY, GREY]), imagej=True)
    return file.getvalue()


def bomb_png(width, height):
    """Returns a PNG of a few bytes that claims to be enormous."""
    return png_of_rows(width, height, [bytes(28)])


def damaged_png():
    """Near their end Pillow has all rows before the stream turns out to be damaged."""
    data = bytearray(encoded(GREY))
    end = data.index(b"IEND") - 8
    data[end - 48 : end - 32] = bytes(16)
    return bytes(data)


def tiff_without_rows():
    data = encoded(GREY, "TIFF")
    place = data.index(b"\1\1\4\0\1\0\0\0") + 8  # of ImageLength
    return data[:place] + bytes(4) + data[place + 4 :]


REJECTED = {
    "transparency": [nearly_opaque("LA"), nearly_opaque("RGBA")],
    # Signed samples and floats, and spaces of colour that Pillow cannot turn into grey.
    "unsupported_mode": [
        with_sample_format(2),
        encoded(GREY.astype(np.float32), "TIFF"),
        encoded(GREY.astype(np.int32), "TIFF"),
        tiff_file([np.stack([GREY] * 3, axis=-1).astype(np.float32)]),
        encoded(Image.fromarray(RGB).convert("CMYK"), "JPEG"),
        encoded(Image.merge("LAB", Image.fromarray(RGB).split()), "TIFF"),
    ],
    "multiple_frames": [
        *(several(name) for name in ("GIF", "PNG", "TIFF", "WEBP")),
        stack_of_imagej(),
        tiff_file([np.stack([DEEP] * 3, axis=-1)] * 2),  # which Pillow does not read
    ],
    "too_many_pixels": [
        bomb_png(*size)
        for size in ((9460, 9460), (13_500, 13_500), (60_000, 60_000), (2**31 - 1, 1))
    ],
    "empty": [b""],
    "not_an_image": [
        b"\0", b"GIF", b"hello, this is text", b"<svg></svg>", b"%PDF-1.4", b"PK\3\4", bytes(999),
        # Formats in which nobody stores scans are not even tried.
        b"\xff\xd8\xff\xf7\0\x0b\x08" + bytes(99), b"....ftypheic" + bytes(600),
        encoded(GREY, "SGI"), b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    ],
    "undecodable": [
        tiff_without_rows(), damaged_png(), png()[: png().index(b"IEND") - 6],
        jpeg().replace(b"\xff\xc0\0\x0b\x08", b"\xff\xc0\0\x0b\x0c"),  # 12 bits
    ],
    "truncated": [jpeg()[: len(jpeg()) * 3 // 4], encoded(GREY, "BMP")[:-100]],
}  # fmt: skip


@pytest.mark.parametrize(
    ("data", "expected"), [(data, name) for name, files in REJECTED.items() for data in files]
)
@pytest.mark.parametrize("settings", [SAME_SIZE, SAME_SIZE_RGB], ids=["grey", "RGB"])
def test_what_is_not_one_whole_picture_is_a_reject(data, expected, settings):
    assert reason(data, settings) == expected


MPO = encoded(GREY, "MPO", save_all=True, append_images=[Image.fromarray(grey_pixels(1))])


@pytest.mark.parametrize(
    "data", [MPO, jpeg() + jpeg(1), jpeg() + bytes(999), encoded(GREY, "JPEG") + b"....ftypmp42"]
)
def test_of_a_jpeg_the_first_picture_counts(data):
    found = decode_image(data, SAME_SIZE)
    assert (found.pixels, found.file_format) == (decode_image(jpeg(), SAME_SIZE).pixels, "JPEG")


WHOLE = {
    "jpeg": jpeg(),
    "progressive jpeg": encoded(GREY, "JPEG", progressive=True),
    "colour jpeg": encoded(RGB, "JPEG"),
    "png": png(),
    "interlaced palette gif": encoded(GREY, "GIF", interlace=True),
    "bmp": encoded(GREY, "BMP"),
    "tiff": encoded(GREY, "TIFF"),
    "compressed tiff": encoded(GREY, "TIFF", compression="tiff_lzw"),
    "webp": encoded(GREY, "WEBP"),
    "pgm": encoded(GREY, "PPM"),
    "jpeg 2000": encoded(GREY, "JPEG2000"),
}


@given(kind=st.sampled_from(sorted(WHOLE)), data=st.data())
def test_a_file_cut_or_damaged_anywhere_is_rejected_or_shows_a_picture(kind, data):
    whole = WHOLE[kind]
    cut = whole[: data.draw(st.integers(0, len(whole) - 1), label="cut")]
    with contextlib.suppress(Reject):
        assert decode_image(cut, SAME_SIZE).pixels == decode_image(whole, SAME_SIZE).pixels
    damaged = bytearray(whole)
    changes = st.tuples(st.integers(0, len(damaged) - 1), st.integers(0, 255))
    for place, value in data.draw(st.lists(changes, min_size=1, max_size=8)):
        damaged[place] = value
    with contextlib.suppress(Reject):
        assert len(decode_image(bytes(damaged), SAME_SIZE).pixels) == HEIGHT * WIDTH

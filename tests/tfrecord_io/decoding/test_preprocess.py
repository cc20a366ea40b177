import contextlib
import dataclasses
import io
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_files import encoded, grey_pixels, jpeg, png, png_of_rows, rgb_pixels
from PIL import Image, PngImagePlugin, TiffImagePlugin
from tiff_files import tiff_file

from tfrecord_io.decoding import preprocess
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.preprocess import decode_image
from tfrecord_io.decoding.rejects import Reject
from tfrecord_io.decoding.unread import what_is

# Pillow warns of odd metadata and of large pictures; the job silences it where it decodes.
pytestmark = pytest.mark.filterwarnings("ignore")

HEIGHT, WIDTH = 20, 28
#: The size of the generated pictures: nothing is resized, so pixels can be compared exactly.
SAME_SIZE = Preprocessing(height=HEIGHT, width=WIDTH)
SAME_SIZE_RGB = Preprocessing(height=HEIGHT, width=WIDTH, channels=3)
DEEP = Preprocessing(height=4, width=4)
GREY, RGB = grey_pixels(), rgb_pixels()
ORIENTATION = 0x0112


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


@pytest.mark.parametrize("file_format", ["PNG", "BMP", "TIFF", "PPM", "GIF", "WEBP"])
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


@pytest.mark.parametrize("mode", ["1", "P", "LA", "RGBA", "PA"])
def test_modes_that_hold_grey_of_eight_bits_are_converted_without_loss(mode):
    grey = (GREY > 90).astype(np.uint8) * 255 if mode == "1" else GREY
    image = Image.fromarray(grey)
    if mode == "P":
        # A palette in which the index is not the value.
        image = Image.fromarray(255 - grey)
        image.putpalette([value for level in range(256) for value in (255 - level,) * 3])
    else:
        image = image.convert(mode)
    file_format = "TIFF" if mode == "PA" else "PNG"
    np.testing.assert_array_equal(pixels(encoded(image, file_format))[:, :, 0], grey)


def test_a_palette_of_colours_keeps_them():
    image = Image.fromarray(GREY // 64)
    colours = np.array([(255, 0, 0), (0, 255, 0), (0, 0, 255), (9, 99, 199)], np.uint8)
    image.putpalette(colours.ravel().tolist())
    expected = colours[GREY // 64]
    np.testing.assert_array_equal(pixels(encoded(image), SAME_SIZE_RGB), expected)
    np.testing.assert_array_equal(pixels(encoded(image))[:, :, 0], luma(expected))


@pytest.mark.parametrize("mode", ["P", "PA"])
def test_a_tiff_palette_of_old_writers_with_colours_up_to_255_keeps_them(mode):
    image = Image.fromarray(GREY // 64)
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 99, 199])
    written = encoded(image.convert(mode), "TIFF")
    with Image.open(io.BytesIO(written)) as tiff:
        colours = np.array(tiff.tag_v2[320], "<u2")
    old = written.replace(colours.tobytes(), (colours >> 8).tobytes())
    assert old != written
    np.testing.assert_array_equal(pixels(old, SAME_SIZE_RGB), pixels(written, SAME_SIZE_RGB))


def test_a_background_shows_behind_transparent_pixels_and_the_reject_says_how():
    image = Image.new("LA", (WIDTH, HEIGHT), (100, 255))
    image.putpixel((3, 4), (200, 51))  # a fifth
    with pytest.raises(Reject) as raised:
        decode_image(encoded(image), SAME_SIZE_RGB)
    share = 1 / (WIDTH * HEIGHT)
    expected = f"{share:.2%} of the pixels are not opaque (alpha down to 51 of 255); --background"
    assert str(raised.value.detail).startswith(expected)
    for background, level in (("black", 40), ("white", 244)):
        settings = dataclasses.replace(SAME_SIZE_RGB, background=background)
        shown = pixels(encoded(image), settings)
        assert shown[4, 3].tolist() == [level] * 3
        assert shown[0, 0].tolist() == [100] * 3


@pytest.mark.parametrize(
    ("mode", "transparent"), [("P", 7), ("L", 255), ("RGB", (1, 2, 3)), ("1", 0)]
)
def test_a_transparent_colour_is_rejected_only_if_a_pixel_has_it(mode, transparent):
    image = Image.new("L", (WIDTH, HEIGHT), 200).convert(mode, dither=Image.Dither.NONE)
    assert pixels(encoded(image, transparency=transparent)).shape == (HEIGHT, WIDTH, 1)
    image.putpixel((3, 4), transparent)
    assert reason(encoded(image, transparency=transparent)) == "transparency"


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
def test_an_orientation_in_xmp_turns_the_picture_as_one_in_exif_does(file_format):
    exif = Image.Exif()
    exif[ORIENTATION] = 3
    xmp = b'<x:xmpmeta><rdf:Description tiff:Orientation="3"/></x:xmpmeta>'
    if file_format == "PNG":
        info = PngImagePlugin.PngInfo()
        info.add_itxt("XML:com.adobe.xmp", xmp.decode())
    settings = {"pnginfo": info} if file_format == "PNG" else {"xmp": xmp}
    found, expected = (encoded(GREY, file_format, **kind) for kind in (settings, {"exif": exif}))
    np.testing.assert_array_equal(pixels(found), pixels(expected))
    assert (pixels(found) != pixels(encoded(GREY, file_format))).any()


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", [*range(10), 77])
def test_the_picture_is_turned_as_viewers_turn_it(orientation, file_format):
    image = Image.fromarray(GREY)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    settings = {"lossless": True} if file_format == "WEBP" else {}
    data = encoded(image, file_format, exif=exif, **settings)
    stored = pixels(encoded(image, file_format, **settings))[:, :, 0]
    # EXIF 2.3, 4.6.4: where row 0 and column 0 of the stored picture are in the viewed one.
    upright = {
        2: stored[:, ::-1],
        3: stored[::-1, ::-1],
        4: stored[::-1],
        5: stored.T,
        6: stored.T[:, ::-1],
        7: stored[::-1, ::-1].T,
        8: stored.T[::-1],
    }.get(orientation, stored)
    height, width = upright.shape
    decoded = decode_image(data, Preprocessing(height=height, width=width))
    assert (decoded.height, decoded.width) == (height, width)
    np.testing.assert_array_equal(
        np.frombuffer(decoded.pixels, np.uint8).reshape(upright.shape), upright
    )


@pytest.mark.parametrize("resize", ["bilinear", "bicubic", "lanczos", "box"])
def test_resizing_is_that_of_pillow_with_the_named_filter(resize):
    preprocessing = Preprocessing(height=7, width=9, resize=resize, fit="stretch")
    for image in (GREY, RGB):  # which becomes grey first
        grey = Image.fromarray(image).convert("L")
        expected = grey.resize((9, 7), Image.Resampling[resize.upper()])
        found = pixels(encoded(image), preprocessing)[:, :, 0]
        np.testing.assert_array_equal(found, np.asarray(expected))


# ---- what is left out, and why


def sixteen_bit_png(channels):
    """Returns a PNG of 16 bits a sample, which Pillow reads in colour but does not write."""
    colour_type = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    row = bytes(range(2 * 4 * channels))
    return png_of_rows(4, 4, [row] * 4, bits=16, colour_type=colour_type)


def sixteen_bit_tiff(channels, photometric=1):
    """Returns a TIFF of 16 bits a sample."""
    samples = np.arange(32 * channels, dtype=np.uint8).view("<u2").reshape(4, 4 * channels)
    return tiff_file([samples], {1: {256: 4, 262: photometric, 277: channels}})


def twelve_bit_tiff(values):
    """Returns a TIFF of rows of an even number of values, two in three bytes."""
    first, second = np.array(values)[:, ::2], np.array(values)[:, 1::2]
    packed = np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], axis=-1)
    rows = packed.astype(np.uint8).reshape(len(packed), -1)
    return tiff_file([rows], {1: {256: 2 * first.shape[1], 258: 12}})


def netpbm(kind, maximum, channels):
    samples = np.arange(16 * channels) * 7 % (maximum + 1)
    return b"%s 4 4 %d\n" % (kind, maximum) + samples.astype(">u2").tobytes()


#: What Pillow would reduce to eight bits, and what uint16 can hold.
REDUCED = {
    **{f"png of {n} channels": sixteen_bit_png(n) for n in (2, 3, 4)},
    "tiff in colour": sixteen_bit_tiff(3, photometric=2),
    "tiff of floats": encoded(GREY.astype(np.float32), "TIFF"),
    "tiff of 32-bit integers": encoded(GREY.astype(np.int32), "TIFF"),
    "ppm": netpbm(b"P6", 65535, 3),
    "ppm of 10 bits": netpbm(b"P6", 1023, 3),
    "ppm as text": b"P3 1 1 65535 1 2 3\n",
}
DEEP_GREY = {
    "png grey, by Pillow": encoded(GREY.astype(np.uint16) * 256),
    "png grey": sixteen_bit_png(1),
    "tiff grey, by Pillow": encoded(GREY.astype(np.uint16) * 256, "TIFF"),
    "tiff grey": sixteen_bit_tiff(1),
    "pgm": netpbm(b"P5", 65535, 1),
    "pgm of 10 bits": netpbm(b"P5", 1023, 1),
}


# ---- sixteen bits


BYTES = np.arange(32, dtype="u1")
BIG_ENDIAN = encoded(Image.frombytes("I;16B", (4, 4), BYTES.tobytes()), "TIFF")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (sixteen_bit_png(1), np.tile(BYTES[:8].view(">u2"), 4)),
        (sixteen_bit_tiff(1), BYTES.view("<u2")),
        (sixteen_bit_tiff(1, photometric=0), 65_535 - BYTES.view("<u2")),
        (BIG_ENDIAN, BYTES.view(">u2")),
        (netpbm(b"P5", 65535, 1), np.arange(16) * 7),
        (twelve_bit_tiff([[0, 1, 2048, 4095]] * 4), np.array([0, 16, 32_776, 65_535] * 4)),
    ],
    ids=["png", "tiff", "tiff, white is zero", "big-endian tiff", "pgm", "tiff of 12 bits"],
)
def test_grey_of_16_bits_is_scaled_by_its_range(data, expected):
    assert pixels(data, DEEP).ravel().tolist() == np.rint(expected / 257).tolist()
    assert BIG_ENDIAN.startswith(b"MM")


@pytest.mark.parametrize(
    "data",
    [
        b"password=SECRET",
        b"SECRET",
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


def test_unsigned_samples_of_a_tiff_may_be_named_so():
    assert pixels(with_sample_format(1)).tobytes() == GREY.tobytes()


def nearly_opaque(mode):
    image = Image.fromarray(GREY).convert(mode)
    image.putpixel((3, 4), (*(50,) * (len(mode) - 1), 254))
    return encoded(image)


def several(file_format):
    more = [Image.fromarray(grey_pixels(seed)) for seed in (1, 2)]
    return encoded(GREY, file_format, save_all=True, append_images=more)


def bomb_png(width, height):
    """Returns a PNG of a few bytes that claims to be enormous."""
    return png_of_rows(width, height, [bytes(28)])


def damaged_png():
    """Near their end Pillow has all rows before the stream turns out to be damaged."""
    data = bytearray(encoded(GREY))
    end = data.index(b"IEND") - 8
    data[end - 48 : end - 32] = bytes(16)
    return bytes(data)


REJECTED = {
    "transparency": [nearly_opaque("LA"), nearly_opaque("RGBA")],
    # Signed samples, and spaces of colour that Pillow cannot turn into grey.
    "unsupported_mode": [
        with_sample_format(2),
        encoded(Image.fromarray(RGB).convert("CMYK"), "JPEG"),
        encoded(Image.merge("LAB", Image.fromarray(RGB).split()), "TIFF"),
    ],
    "multiple_frames": [several(name) for name in ("GIF", "PNG", "TIFF", "WEBP")],
    "too_many_pixels": [
        bomb_png(*size)
        for size in ((9460, 9460), (13_500, 13_500), (60_000, 60_000), (2**31 - 1, 1))
    ],
    "empty": [b""],
    "not_an_image": [
        b"\0", b"GIF", b"hello, this is text", b"<svg></svg>", b"%PDF-1.4", b"PK\3\4", bytes(999),
        # Formats in which nobody stores scans are not even tried.
        encoded(GREY, "SGI"), encoded(RGB, "JPEG2000"),
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    ],
    "undecodable": [damaged_png()],
    "truncated": [
        png()[: png().index(b"IEND") - 6], jpeg()[: len(jpeg()) * 3 // 4],
        bomb_png(9459, 9459),  # as many pixels as may be, of which it has few
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("data", "expected"), [(data, name) for name, files in REJECTED.items() for data in files]
)
@pytest.mark.parametrize("settings", [SAME_SIZE, SAME_SIZE_RGB], ids=["grey", "RGB"])
def test_what_is_not_one_whole_picture_of_eight_bits_is_a_reject(data, expected, settings):
    assert reason(data, settings) == expected


def media(*brands):
    """Returns a file of boxes that has these brands, the main one first."""
    box = b"ftyp" + brands[0] + bytes(4) + b"".join(brands)
    return (len(box) + 4).to_bytes(4, "big") + box + b"\0\0\0\x08mdat"


@pytest.mark.parametrize(
    ("start", "told"),
    [
        *((media(brand), "heif-convert") for brand in (b"heic", b"heix", b"mif1", b"msf1")),
        (media(b"mif1", b"avif"), "avifdec"), (media(b"avif", b"mif1"), "avifdec"),
        (media(b"isom", b"mp42"), "a video"), (media(b"qt  "), "a video"),
        (b"\xff\x0a\xfa\x1f", "djxl"), (b"\0\0\0\x0cJXL \r\n\x87\n", "djxl"),
        (b"HSF-OCT-103\0", "Heidelberg .*oct-converter"), (b"CMDb\0\0", "e2e.*oct-converter"),
        (b"FOCTFDA\2", "Topcon .*oct-converter"), (b"\x1f\x8b\x08", "with gzip: unpack it"),
    ],
)  # fmt: skip
def test_a_file_of_another_format_is_told_with_what_converts_it(start, told):
    with pytest.raises(Reject, match=f"not_an_image: .*{told}"):
        decode_image(start + bytes(600), SAME_SIZE)


@pytest.mark.parametrize(
    ("name", "told"),
    [("a.OCT", "oct-converter"), ("a.img", "oct-converter"), ("a.fds", "oct-converter"),
     ("a.heif", "libheif"), ("a.nd2", "Bio-Formats"), ("a.mgz", "slices"), ("a.png", None)],
)  # fmt: skip
def test_a_file_of_another_format_is_told_by_its_name_as_well(name, told):
    found = what_is(name)
    assert found is None if told is None else told in found


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
}


@given(kind=st.sampled_from(sorted(WHOLE)), data=st.data())
def test_a_file_cut_anywhere_is_rejected_or_shows_the_whole_picture(kind, data):
    whole = WHOLE[kind]
    cut = whole[: data.draw(st.integers(0, len(whole) - 1), label="cut")]
    try:
        found = decode_image(cut, SAME_SIZE)
    except Reject:
        return
    assert found.pixels == decode_image(whole, SAME_SIZE).pixels


@given(kind=st.sampled_from(sorted(WHOLE)), data=st.data())
def test_damage_anywhere_raises_nothing_but_a_reject(kind, data):
    damaged = bytearray(WHOLE[kind])
    changes = st.tuples(st.integers(0, len(damaged) - 1), st.integers(0, 255))
    for place, value in data.draw(st.lists(changes, min_size=1, max_size=8)):
        damaged[place] = value
    with contextlib.suppress(Reject):
        assert len(decode_image(bytes(damaged), SAME_SIZE).pixels) == HEIGHT * WIDTH


def test_a_reject_travels_between_processes():
    reject = Reject("truncated", "3 bytes are missing")
    again = pickle.loads(pickle.dumps(reject))
    assert (again.reason, again.detail, str(again)) == (reject.reason, reject.detail, str(reject))


def test_the_versions_that_decide_the_pixels_are_named():
    versions = preprocess.decoder_versions()
    assert versions["pillow"] == Image.__version__
    assert versions["libjpeg"][0].isdigit()

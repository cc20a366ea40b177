"""Files with less or more than one whole picture, see `tfrecord_io.decoding.formats`."""

import io
import struct

import numpy as np
import pytest
from image_files import encoded, grey_pixels, jpeg, png_of_rows, rgb_pixels
from PIL import Image

from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.preprocess import decode_image, find_pictures
from tfrecord_io.decoding.rejects import Reject

pytestmark = pytest.mark.filterwarnings("ignore")

GREY, DEEP = grey_pixels(), grey_pixels().astype(np.uint16) * 251
HEIGHT, WIDTH = GREY.shape
THUMBNAIL = b"Exif\0\0" + jpeg(1, 8, 8)


def reason(data, **options):
    with pytest.raises(Reject) as raised:
        decode_image(data, Preprocessing(**options))
    return raised.value.reason


PNG_KINDS = {
    "grey": ([row.tobytes() for row in GREY], {}),
    "colour": ([row.tobytes() for row in rgb_pixels()], {"colour_type": 2}),
    "16 bits": ([row.astype(">u2").tobytes() for row in DEEP], {"bits": 16}),
    # All samples are zero, so that nothing but the length tells the rows that are missing.
    "black bits": ([bytes(-(-WIDTH // 8))] * HEIGHT, {"bits": 1}),
}


@pytest.mark.parametrize("kind", PNG_KINDS)
@pytest.mark.parametrize("missing", [1, HEIGHT // 2])
def test_a_png_with_right_checksums_and_missing_rows_is_truncated(kind, missing):
    rows, header = PNG_KINDS[kind]
    assert reason(png_of_rows(WIDTH, HEIGHT, rows[:-missing], **header)) == "truncated"
    decode_image(png_of_rows(WIDTH, HEIGHT, rows, **header), Preprocessing())


def test_an_interlaced_png_has_all_of_its_seven_passes():
    """PNG, section 8.2: the steps of each pass."""
    passes = (GREY[::8, ::8], GREY[::8, 4::8], GREY[4::8, ::4], GREY[::4, 2::4], GREY[2::4, ::2],
              GREY[::2, 1::2], GREY[1::2])  # fmt: skip
    rows = [row.tobytes() for pixels in passes for row in pixels]
    settings = Preprocessing(height=HEIGHT, width=WIDTH)
    whole = decode_image(png_of_rows(WIDTH, HEIGHT, rows, interlaced=1), settings)
    assert whole.pixels == GREY.tobytes()
    for missing in (1, 10):
        assert reason(png_of_rows(WIDTH, HEIGHT, rows[:-missing], interlaced=1)) == "truncated"


def tiff_with(tag, change, image=GREY, **settings):
    """Returns a little-endian TIFF by Pillow, with another value of a tag that has one."""
    data = bytearray(encoded(image, "TIFF", **settings))
    (directory,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, directory)
    for place in range(directory + 2, directory + 2 + 12 * count, 12):
        if struct.unpack_from("<H", data, place)[0] == tag:
            (value,) = struct.unpack_from("<I", data, place + 8)
            struct.pack_into("<I", data, place + 8, change(value))
    return bytes(data)


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "tiff_adobe_deflate", "jpeg"])
def test_a_tiff_whose_strip_is_too_short_is_a_reject(compression):
    tags = {"compression": compression}
    assert reason(tiff_with(279, lambda length: length * 3 // 4, **tags)) in (
        "truncated",
        "undecodable",
    )
    decode_image(tiff_with(279, lambda length: length, **tags), Preprocessing())


def test_a_tiff_that_is_stored_on_its_side_is_whole():
    """Each stored row has whole bytes: ten rows of two bytes, which upright are 24 bytes."""
    bits = np.zeros((10, 12), bool)
    decode_image(encoded(bits, "TIFF", tiffinfo={274: 6}), Preprocessing())


def test_a_tiff_without_its_last_strips_is_a_reject():
    assert reason(tiff_with(257, lambda height: height + 8)) == "truncated"


FILES = {
    "JPEG": jpeg(),
    "progressive JPEG": encoded(GREY, "JPEG", progressive=True),
    "JPEG with a thumbnail": encoded(GREY, "JPEG", exif=THUMBNAIL),
    "JPEG with restarts": encoded(GREY, "JPEG", restart_marker_blocks=2, comment=b"\xff\xd9"),
    "PNG": encoded(GREY),
    "BMP": encoded(rgb_pixels()[:, :27], "BMP"),
    "GIF": encoded(GREY, "GIF", comment=b"a comment"),
    "WEBP": encoded(GREY, "WEBP"),
    "PGM": encoded(GREY, "PPM"),
    "deep PGM": encoded(DEEP, "PPM"),
    "PBM": encoded(Image.fromarray(GREY).convert("1"), "PPM"),
    "plain PGM": b"P2 # a comment P2\n2 1 255\n7 9\n",
    "TIFF": encoded(GREY, "TIFF"),
}


def test_a_file_behind_the_last_page_of_a_tiff_is_not_lost():
    more = Image.fromarray(grey_pixels(1))
    data = encoded(GREY, "TIFF", save_all=True, append_images=[more])

    def frames(content):
        start = content[:100]
        return find_pictures("scan.tif", len(content), start, lambda: io.BytesIO(content)).frames

    assert list(frames(data)) == list(frames(data + bytes(9))) == [1, 2]
    assert list(frames(data + bytes(9) + jpeg(2))) == [None]
    assert reason(data + bytes(9) + jpeg(2)) == "multiple_frames"


def test_a_thumbnail_within_a_tiff_is_not_another_file():
    exif = Image.Exif()
    exif[256], exif[271] = WIDTH, "a maker"
    nested = io.BytesIO()
    Image.fromarray(GREY).save(nested, "JPEG", exif=exif)
    photoshop = {34377: nested.getvalue()}
    decode_image(encoded(GREY, "TIFF", tiffinfo=photoshop), Preprocessing())


# ---- pictures with companions


def mpo(kind, flags=0):
    """Returns an MPO of two pictures, the second of a type (CIPA DC-007, 5.2.3.3.1)."""
    data = bytearray(encoded(GREY, "MPO", save_all=True, append_images=[Image.fromarray(GREY)]))
    # Behind the header and a directory of three tags come the entries, of 16 bytes each.
    entries = data.index(b"MPF\0") + 4 + 8 + 2 + 3 * 12 + 4 + 16
    struct.pack_into("<I", data, entries, flags << 24 | kind)
    return bytes(data)


def with_xmp(text, rest):
    return encoded(GREY, "JPEG", xmp=f"<x:xmpmeta {text}/>".encode()) + rest


VIDEO = struct.pack(">I", 24) + b"ftypmp42" + bytes(12) + bytes(range(256)) * 300
ULTRA_HDR = 'hdrgm:Version="1.0" Item:Semantic="Primary" Item:Semantic="GainMap"'
COMPANIONS = {
    "a thumbnail": mpo(0x010001),
    "a dependent picture": mpo(0x020002, flags=0x40),
    "Ultra HDR": with_xmp(ULTRA_HDR, jpeg(1)),
    "a motion photo": with_xmp('GCamera:MotionPhoto="1" Item:Semantic="MotionPhoto"', VIDEO),
    "an older motion photo": with_xmp('GCamera:MicroVideo="1"', VIDEO),
    "Samsung's": jpeg() + b"\0\x08MotionPhoto_Data" + VIDEO + b"SEFT",
}  # fmt: skip


@pytest.mark.parametrize("data", COMPANIONS.values(), ids=COMPANIONS)
def test_of_a_jpeg_with_companions_the_first_picture_is_read(data):
    settings = Preprocessing(height=HEIGHT, width=WIDTH)
    found = decode_image(data, settings)
    assert (found.pixels, found.file_format) == (decode_image(jpeg(), settings).pixels, "JPEG")


@pytest.mark.parametrize(
    ("data", "wanted"),
    [(mpo(0x020001), "multiple_frames"), (mpo(0x020002), "multiple_frames"),
     (with_xmp('Item:Semantic="Other"', jpeg(1)), "multiple_frames"),
     (jpeg() + VIDEO, "trailing_data")],
    ids=["a panorama", "two eyes", "unknown", "a video that nothing declares"],
)  # fmt: skip
def test_several_pictures_of_equal_rank_are_refused_with_what_to_do(data, wanted):
    with pytest.raises(Reject, match=f"{wanted}: .*; (exiftool -b -MPImage2|save it again)"):
        decode_image(data, Preprocessing())

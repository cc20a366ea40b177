"""The pages of TIFF files, whoever wrote them, whole and damaged."""

import io
import struct

import numpy as np
import pytest
from image_files import encoded, grey_pixels
from PIL import Image
from tiff_files import NEW_SUBFILE_TYPE, SUBFILE_TYPE, places_of, tiff_file, with_damaged_page

from tfrecord_io.decoding import tiff_pages
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.preprocess import decode_image, find_pictures
from tfrecord_io.decoding.rejects import Reject

# Pillow warns of damaged tags, as the build does not.
pytestmark = pytest.mark.filterwarnings("ignore")

PAGES = [grey_pixels(seed) for seed in range(3)]
EXACT = {"height": PAGES[0].shape[0], "width": PAGES[0].shape[1]}


def kinds(data):
    return tiff_pages.read_pages(io.BytesIO(data), is_whole=True)


def decoded(data, page, dtype="uint8"):
    found = decode_image(data, Preprocessing(**EXACT, dtype=dtype), page)
    assert found.file_format == "TIFF"
    return np.frombuffer(found.pixels, dtype).reshape(PAGES[0].shape)


def by_pillow(compression, pages=PAGES, **options):
    images = [Image.fromarray(page) for page in pages]
    return encoded(
        images[0], "TIFF", save_all=True, append_images=images[1:], compression=compression,
        **options,
    )  # fmt: skip


LARGE = [grey_pixels(seed, 300, 400) for seed in range(3)]  # of two strips, as Pillow writes them
COLOUR = [np.stack([page, page[::-1], page[:, ::-1]], axis=-1) for page in LARGE]
DEEP = [page.astype(np.uint16) * 257 for page in LARGE]
FILES = {
    **{name: by_pillow(name, LARGE) for name in ("raw", "tiff_lzw", "packbits", "zstd")},
    "predictor": by_pillow("tiff_adobe_deflate", DEEP, tiffinfo={317: 2}),
    "JPEG": by_pillow("jpeg", COLOUR),
    "16 bits": by_pillow("raw", DEEP),
    "colour": by_pillow("raw", COLOUR),
    "classic": tiff_file(PAGES),
    "BigTIFF": tiff_file(PAGES, is_big_tiff=True),
    "big-endian": tiff_file(PAGES, order=">"),
}


def in_its_file(data, number):
    """Returns the whole file with another first page, which is how Pillow gets at any page."""
    file = io.BytesIO(data)
    place = places_of(data)[number - 1]
    is_big_tiff = data[2:4] in (b"+\0", b"\0+")
    kind = (">" if data.startswith(b"MM") else "<") + ("Q" if is_big_tiff else "I")
    struct.pack_into(kind, file.getbuffer(), 8 if is_big_tiff else 4, place)
    return file


def pixels_or_reason(file, number):
    try:
        return decode_image(file, Preprocessing(height=20, width=30, dtype="uint16"), number).pixels
    except Reject as reject:
        return reject.reason


@pytest.mark.parametrize("name", FILES)
def test_a_page_that_is_cut_out_has_the_pixels_that_it_has_in_its_file(name):
    data = FILES[name]
    assert kinds(data) == ["", "", ""]
    for number in (1, 2, 3):
        page = tiff_pages.with_first_page(io.BytesIO(data), number)
        assert len(page.getvalue()) < len(data) / 2
        assert pixels_or_reason(page, number) == pixels_or_reason(in_its_file(data, number), number)


@pytest.mark.parametrize("name", ["raw", "tiff_lzw", "BigTIFF"])
def test_a_damaged_page_is_read_as_it_is_in_its_file(name):
    generator = np.random.default_rng(1)
    places = places_of(FILES[name])
    whole, different = pixels_or_reason(in_its_file(FILES[name], 2), 2), 0
    for _ in range(100):
        damaged = bytearray(FILES[name])
        place = places[1] + int(generator.integers(180))
        damaged[place % len(damaged)] ^= 1 << int(generator.integers(8))
        data = bytes(damaged)
        if len(places_of(data)) > 1:
            found = pixels_or_reason(tiff_pages.with_first_page(io.BytesIO(data), 2), 2)
            assert found == pixels_or_reason(in_its_file(data, 2), 2)
            different += found != whole
    assert different > 10


@pytest.mark.parametrize(
    "tags",
    [
        {34665: 8},  # the place of another directory
        {513: 8},  # JPEG in its obsolete form, whose tables can be anywhere
    ],
)
def test_what_may_be_anywhere_in_the_file_is_looked_for_in_all_of_it(tags):
    data = tiff_file(PAGES, {2: tags})
    page = tiff_pages.with_first_page(io.BytesIO(data), 2)
    assert len(page.getvalue()) == len(data)
    assert pixels_or_reason(page, 2) == pixels_or_reason(in_its_file(data, 2), 2)


def test_a_file_of_very_many_pages_is_not_looked_through():
    page = struct.pack("<H12sI", 1, b"", 0)
    chain = bytearray(b"II*\0" + struct.pack("<I", 8))
    for number in range(20_000):
        chain += page[:-4] + struct.pack("<I", 8 + (number + 1) * 70) + bytes(70 - len(page))
    assert len(kinds(bytes(chain))) == tiff_pages.MAX_PAGES + 1
    with pytest.raises(Reject, match="multiple_frames: TIFF with several frames"):
        decode_image(tiff_file(PAGES), Preprocessing(height=8, width=8))


@pytest.mark.parametrize("order", ["<", ">"])
def test_smaller_versions_and_masks_are_told_apart_by_their_tags(order):
    tags = {
        1: {NEW_SUBFILE_TYPE: 0},
        2: {NEW_SUBFILE_TYPE: 1},
        3: {NEW_SUBFILE_TYPE: 2},  # a page of several: an image
        4: {NEW_SUBFILE_TYPE: 4},
        5: {SUBFILE_TYPE: 2},
        6: {SUBFILE_TYPE: 3},  # a page of several, in the older tag
    }
    found = kinds(tiff_file([PAGES[0]] * 6, tags, order=order))
    assert found == ["", "reduced_page", "", "mask_page", "reduced_page", ""]


IMAGEJ = "ImageJ=1.54f\nimages=5\nslices=5\nloop=false\n"
OME = '<?xml version="1.0"?><OME><Image><Pixels SizeC="1" SizeT="1" SizeZ="5"/></Image></OME>'


SHAPED, ONE_OF_SET = '{"shape": [5, 20, 28]}', '><UUID FileName="b.tif"/></Pixels></Im'


def stack_of(description, num_pages=1, **settings):
    """Returns a file of five planes, the first of which have a directory."""
    first, *more = (Image.fromarray(DEEP[0][:20, :28]) for _ in range(num_pages))
    settings |= {"save_all": True, "append_images": more}
    data = encoded(first, "TIFF", description=description, **settings)
    return data + DEEP[0][:20, :28].tobytes() * (5 - num_pages)


def frames_of(data):
    return find_pictures("a.tif", len(data), data[:600], lambda: io.BytesIO(data)).frames


@pytest.mark.parametrize("description", [IMAGEJ, SHAPED, OME])
@pytest.mark.parametrize("settings", [{}, {"big_endian": True}, {"num_pages": 2}])
def test_a_stack_that_names_more_planes_than_it_has_pages_is_refused(description, settings):
    data = stack_of(description, **settings)
    assert list(frames_of(data)) == [None]
    with pytest.raises(Reject, match=r"multiple_frames: .*; save (it with a page for )?each"):
        decode_image(data, Preprocessing(height=8, width=8, dtype="uint16"))


def test_a_stack_with_a_page_for_each_plane_and_a_file_of_a_set_are_read():
    for description in (IMAGEJ, SHAPED, OME):
        assert list(frames_of(stack_of(description, num_pages=5))) == [1, 2, 3, 4, 5]
    alone = encoded(DEEP[0][:20, :28], "TIFF", description=OME.replace("/></Im", ONE_OF_SET))
    np.testing.assert_array_equal(decoded(alone, None, "uint16"), DEEP[0][:20, :28])


@pytest.mark.parametrize(
    "description", [f"ImageJ=1\nimages={'9' * 5000}\n", '{"shape": ' + "[" * 100_000, SHAPED, OME]
)
def test_a_description_of_nonsense_does_not_stop_the_listing(description):
    data = bytearray(encoded(COLOUR[0], "TIFF", description=description))
    for tag in (256, 277):  # width, samples of a pixel
        place = data.index(struct.pack("<H", tag)) + 8
        data[place : place + 4] = bytes(4)
    assert list(frames_of(bytes(data))) == [None]


def test_smaller_pages_of_tiles_are_no_images_even_if_no_tag_says_so():
    tiles = {322: 16, 323: 16}
    sides = [(64, 96), (32, 48), (16, 24), (40, 40)]
    data = tiff_file([np.zeros(s, np.uint8) for s in sides], dict.fromkeys(range(1, 5), tiles))
    assert kinds(data) == ["", "reduced_page", "reduced_page", ""]


def test_a_damaged_page_leaves_those_before_and_after_it():
    data = with_damaged_page(tiff_file(PAGES), 2)
    np.testing.assert_array_equal(decoded(data, 1), PAGES[0])
    np.testing.assert_array_equal(decoded(data, 3), PAGES[2])
    with pytest.raises(Reject, match="undecodable: page 2 of the TIFF is damaged"):
        decoded(data, 2)


def test_a_file_cut_in_its_last_page_still_has_the_other_pages():
    data = tiff_file(PAGES)
    cut = data[: places_of(data)[2] + 30]
    assert kinds(cut) == ["", "", ""]
    np.testing.assert_array_equal(decoded(cut, 2), PAGES[1])
    with pytest.raises(Reject, match="undecodable: page 3 of the TIFF is damaged"):
        decoded(cut, 3)


def test_the_start_of_a_file_is_enough_if_all_directories_are_in_it():
    early = encoded(Image.fromarray(grey_pixels(0, 200, 300)), "TIFF")
    assert tiff_pages.read_pages(io.BytesIO(early[:1000]), is_whole=False) == kinds(early)
    late = tiff_file(PAGES)
    assert tiff_pages.read_pages(io.BytesIO(late[:1000]), is_whole=False) is None
    assert tiff_pages.read_pages(io.BytesIO(late[:6]), is_whole=False) is None


def test_pages_that_point_at_each_other_or_hold_nothing_come_to_an_end():
    data = bytearray(tiff_file(PAGES))
    first = struct.unpack_from("<I", data, 4)[0]
    data[-4:] = struct.pack("<I", first)
    assert kinds(bytes(data)) == ["", "", ""]
    # Directories of no tag, each of which names the next one.
    empty = (struct.pack("<HI", 0, 8 + 6 * number) for number in range(1, 5001))
    chain = b"II*\0" + struct.pack("<I", 8) + b"".join(empty)
    assert len(kinds(chain)) < 500

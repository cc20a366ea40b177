"""DICOM files: those of pydicom, which other programs wrote, and some written byte by byte."""

import contextlib
import io
import re
import struct
from pathlib import Path

import numpy as np
import pydicom
import pytest
from builds import build_here, files_of, rows_of
from dicom_files import dicom_file, in_syntax
from image_files import encoded, grey_pixels, png, scans_of, write_tree
from PIL import Image
from pydicom.pixels import apply_color_lut, apply_modality_lut, pixel_array

from pipelines.errors import UserError
from tfrecord_io.decoding import dicom, preprocess
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.preprocess import decode_image
from tfrecord_io.decoding.rejects import Reject
from train.results.classifier import Classifier, other_decoder

# What pydicom itself warns of while this file reads its files.
pytestmark = pytest.mark.filterwarnings("ignore")

FILES = Path(pydicom.__file__).parent / "data" / "test_files"
HEIGHT, WIDTH = 20, 28

WINDOW_CENTER, WINDOW_WIDTH = (0x0028, 0x1050, "DS"), (0x0028, 0x1051, "DS")
INTERCEPT, SLOPE = (0x0028, 0x1052, "DS"), (0x0028, 0x1053, "DS")
RESCALE_TYPE = (0x0028, 0x1054, "LO")
FUNCTION = (0x0028, 0x1056, "CS")


def decoded(data, frame=0, channels=1, **options):
    """Returns the pixels of a frame in its own size, [height, width] or [height, width, 3]."""
    dataset = pydicom.dcmread(io.BytesIO(data), force=True)
    settings = Preprocessing(
        height=dataset.Rows, width=dataset.Columns, channels=channels, **options
    )
    pixels = np.frombuffer(decode_image(data, settings, frame).pixels, np.uint8)
    return pixels.reshape(settings.image_shape).squeeze()


def reason(data, frame=0, **options):
    with pytest.raises(Reject) as raised:
        decode_image(data, Preprocessing(**options), frame)
    return raised.value.reason


# ---- files that other programs wrote


GREY = [
    "693_J2KI", "CT_small", "J2K_pixelrep_mismatch", "JPEG2000", "JPEGLSNearLossless_08",
    "JPEGLSNearLossless_16", "MR_small", "MR_small_RLE", "MR_small_bigendian", "MR_small_expb",
    "MR_small_implicit", "MR_small_padded", "MR_small_jp2klossless", "MR_small_jpeg_ls_lossless",
    "examples_overlay", "liver_1frame",
]  # fmt: skip
COLOUR = [
    "ExplVR_BigEnd", "GDCMJ2K_TextGBR", "SC_jpeg_no_color_transform", "SC_rgb_dcmtk_+eb+cr",
    "SC_rgb_dcmtk_+eb+cy+n1", "SC_rgb_dcmtk_+eb+cy+np", "SC_rgb_dcmtk_+eb+cy+s2",
    "SC_rgb_gdcm_KY", "SC_rgb_jls_lossy_line", "SC_rgb_jpeg_dcmtk", "SC_rgb_jpeg_lossy_gdcm",
    "SC_rgb_jpeg_gdcm", "SC_rgb_rle", "SC_rgb_small_odd", "SC_ybr_full_422_uncompressed",
    "examples_jpeg2k", "examples_rgb_color",
]  # fmt: skip


def test_a_palette_becomes_its_colours():
    path = FILES / "examples_palette.dcm"
    expected = apply_color_lut(pixel_array(path), pydicom.dcmread(path)) >> 8
    np.testing.assert_array_equal(decoded(path.read_bytes(), channels=3), expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SC_rgb_rle_16bit", "too_many_bits"),
        ("rtdose_1frame", "too_many_bits"),
        ("rtdose", "multiple_frames"),
        ("test-SR", "no_pixels"),
        ("rtplan", "no_pixels"),
        ("MR_truncated", "undecodable"),
        ("meta_missing_tsyntax", "missing_tag"),
    ],
)
def test_what_cannot_be_shown_faithfully_is_a_reject_with_its_reason(name, expected):
    assert reason((FILES / f"{name}.dcm").read_bytes()) == expected
    assert reason(png()) == "undecodable"  # of another kind, where DICOM was listed


@pytest.mark.parametrize("name", ["CT_small", "MR_small_implicit", "MR_small_bigendian"])
@pytest.mark.parametrize("has_meta", [True, False])
def test_a_file_without_preamble_says_how_to_mend_it(name, has_meta):
    data = (FILES / f"{name}.dcm").read_bytes()
    bare = data[132 + (0 if has_meta else 12 + int.from_bytes(data[140:144], "little")) :]
    (frame,) = preprocess.find_pictures("odd", len(bare), bare, None).frames
    with pytest.raises(Reject, match=r"not_an_image: .* DICOM without its preamble: dcmconv"):
        decode_image(bare, Preprocessing(), frame)


# ---- files written byte by byte


def words(*numbers):
    return np.array(numbers, "<u2").tobytes()


def levels(low, high, dtype=np.uint16):
    return np.linspace(low, high, HEIGHT * WIDTH).reshape(HEIGHT, WIDTH).astype(dtype)


#: All values of 12 bits, in order.
RAMP = np.arange(4096, dtype=np.uint16).reshape(64, 64)
EIGHT = np.array([[0, 1, 128, 255]], np.uint8)


PADDING, PADDING_END = (0x0028, 0x0120, "SS"), (0x0028, 0x0121, "SS")


@pytest.mark.parametrize("tags", [{PADDING: -2000}, {PADDING: -2000, PADDING_END: -1500}])
def test_padding_is_outside_of_the_range_of_the_values(tags):
    stored = levels(0, 278, np.int16)
    stored[0] = tags.get(PADDING_END, -2000)
    found = decoded(dicom_file(stored, tags))
    shown = stored[1:].astype(float)
    expected = (shown - shown.min()) / np.ptp(shown) * 255
    assert np.abs(found[1:] - expected).max() <= 0.51
    assert set(found[0]) == {0}
    # Neither does a frame of one value have a range.
    assert not decoded(dicom_file(np.full((4, 4), 278, np.int16))).any()


def lookup(descriptor, entries, kind="OW"):
    return {(0x0028, 0x3002, "US"): descriptor, (0x0028, 0x3006, kind): entries}


def modality_lut(*entries):
    item = lookup(words(len(entries), 0, 16), words(*entries), "US")
    return {(0x0028, 0x3000, "SQ"): [item]}


MODALITIES = {
    "slope": {SLOPE: "2", INTERCEPT: "-1024"},
    "negative slope": {SLOPE: "-1", INTERCEPT: "0"},
    "table": modality_lut(*(np.arange(256) ** 2 // 99)),
    "falling table": modality_lut(*range(999, 999 - 256, -1)),
}
# A file may name several windows; the first counts, or that of the flag.
WINDOWS = {
    "no window": ({}, None),
    "window": ({WINDOW_CENTER: "90\\7", WINDOW_WIDTH: "150\\8"}, None),
    "flag": ({WINDOW_CENTER: "7", WINDOW_WIDTH: "8"}, (90.0, 150.0)),
}


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("modality", MODALITIES)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_the_modality_comes_first_then_the_window_then_the_photometric_interpretation(
    dtype, modality, window, photometric
):
    """The formulas of PS3.3, C.11.1 and C.11.2.1.2.1, written out; pydicom has only the first."""
    tags, flag = WINDOWS[window]
    data = dicom_file(levels(3, 240, dtype), MODALITIES[modality] | tags, photometric=photometric)
    dataset = pydicom.dcmread(io.BytesIO(data))
    values = apply_modality_lut(dataset.pixel_array, dataset).astype(float)
    if window == "no window":
        values = (values - values.min()) / np.ptp(values)
    else:
        values = np.clip((values - 90 + 0.5) / 149 + 0.5, 0, 1)
    expected = 255 * (1 - values if photometric == "MONOCHROME1" else values)
    assert np.abs(decoded(data, window=flag) - expected).max() <= 0.51


@pytest.mark.parametrize("function", ["LINEAR_EXACT", "SIGMOID"])
def test_other_functions_of_a_window_are_those_of_pydicom(function):
    data = dicom_file(
        levels(0, 255, np.uint8),
        {WINDOW_CENTER: "100", WINDOW_WIDTH: "60", FUNCTION: function},
    )
    dataset = pydicom.dcmread(io.BytesIO(data))
    expected = pydicom.pixels.apply_windowing(dataset.pixel_array, dataset)
    assert np.abs(decoded(data).astype(float) - expected).max() <= 1


def with_table(stored, descriptor, entries, kind="OW", intercept=0):
    items = [lookup(descriptor, entries, kind)]
    tags = {(0x0028, 0x3010, "SQ"): items, SLOPE: "1", INTERCEPT: str(intercept)}
    return dicom_file(stored, tags, bits=12)


@pytest.mark.parametrize("kind", ["OW", "US"])
@pytest.mark.parametrize("entry_type", ["<u2", "u1"])
def test_a_table_of_8_bit_entries_reaches_over_all_values(kind, entry_type):
    entries = (np.arange(4096) // 16).astype(entry_type).tobytes()
    found = decoded(with_table(RAMP, words(4096, 0, 8), entries, kind))
    assert found.flat[::273].tolist() == [0, 17, 34, 51, 68, 85, 102, 119, 136, 153, 170, 187, 204,
                                          221, 238, 255]  # fmt: skip


SQUARES = np.arange(255, -1, -1, dtype="<u2") ** 2 // 255


@pytest.mark.parametrize(
    ("descriptor", "entries", "places", "expected"),
    [
        ((256, 0, 8), SQUARES, [0, 1, 100, 255, 256], [255, SQUARES[1], SQUARES[100], 0, 0]),
        # Values beyond a table have its first and last entry.
        (
            (256, 1000, 8),
            np.arange(255, -1, -1),
            [0, 1000, 1001, 1255, 4095],
            [255, 255, 254, 0, 0],
        ),
        # An entry above the bits of its table is white.
        ((5, 0, 10), [0, 512, 1023, 1024, 4095], range(6), [0, 128, 255, 255, 255, 255]),
        # 0 stands for 65,536 entries.
        ((0, 0, 16), np.arange(65_535, -1, -1), [0, 257, 4095], [255, 254, 239]),
    ],
)
def test_a_table_of_the_file_decides_the_grey_levels(descriptor, entries, places, expected):
    num_entries, first, bits = descriptor
    for intercept in (0, 7):  # the table is for rescaled values
        shifted = words(num_entries, first + intercept, bits)
        data = with_table(RAMP, shifted, words(*entries), intercept=intercept)
        assert decoded(data).ravel()[list(places)].tolist() == list(expected)
    # But not if the user names a window.
    plain = dicom_file(RAMP, {SLOPE: "1", INTERCEPT: "7"}, bits=12)
    found, expected = (decoded(file, window=(900, 50)) for file in (data, plain))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("items", [[], [{}], [{(0x0028, 0x3002, "US"): words(256, 0, 8)}]])
@pytest.mark.parametrize("sequence", [0x3000, 0x3010])  # of the modality, of the window
def test_a_sequence_without_a_whole_table_leaves_the_window(sequence, items):
    tags = {(0x0028, sequence, "SQ"): items, WINDOW_CENTER: "100.5", WINDOW_WIDTH: "101"}
    tags |= {SLOPE: "", INTERCEPT: "7"}  # no transform either
    found = decoded(dicom_file(np.array([[0, 50, 100, 150, 200]], np.uint8), tags))
    assert found.tolist() == [0, 0, 128, 255, 255]


PALETTE = tuple(range(0x1101, 0x1104)), tuple(range(0x1201, 0x1204))


def with_palette(stored, descriptor, *channels):
    tags = {(0x0028, number, "US"): descriptor for number in PALETTE[0]}
    tags |= {
        (0x0028, number, "OW"): entries
        for number, entries in zip(PALETTE[1], channels, strict=True)
    }
    return dicom_file(stored, tags, photometric="PALETTE COLOR")


@pytest.mark.parametrize("entry_type", ["<u2", "u1"])
def test_a_palette_of_8_bits_may_be_in_words_or_bytes_and_begin_anywhere(entry_type):
    """The values 9 and 300 lie beyond the palette, which has those from 10 to 13."""
    stored = np.array([[9, 10, 11, 12, 13, 14, 300]], np.uint16)
    channels = [
        np.array(entries, entry_type).tobytes()
        for entries in ((1, 2, 3, 4), (50, 60, 70, 80), (255, 254, 253, 252))
    ]
    found = decoded(with_palette(stored, words(4, 10, 8), *channels), channels=3)
    assert found.tolist() == [
        [1, 50, 255], [1, 50, 255], [2, 60, 254], [3, 70, 253], [4, 80, 252], [4, 80, 252],
        [4, 80, 252],
    ]  # fmt: skip
    if entry_type == "<u2":  # of some writers, with 16 bits said of 8
        said_16 = with_palette(stored, words(4, 10, 16), *channels)
        np.testing.assert_array_equal(decoded(said_16, channels=3), found)
    assert reason(with_palette(stored, words(512, 0, 8), *[bytes(512)] * 3)) == "unsupported_mode"


@pytest.mark.parametrize("marker", [b"\xff\xdb", b"\xff\xc0"])
def test_fill_bytes_before_a_marker_of_jpeg_are_legal(marker):
    file = io.BytesIO()
    Image.new("L", (28, 20), 77).save(file, "JPEG")
    frame = file.getvalue().replace(marker, b"\xff\xff\xff" + marker, 1)
    data = dicom_file(
        np.zeros((20, 28), np.uint8), syntax="1.2.840.10008.1.2.4.50", compressed=[frame]
    )
    assert set(decoded(data).flat) == {77}


def test_a_model_of_dicom_files_predicts_pictures_without_the_extra(monkeypatch):
    monkeypatch.setattr(dicom, "PACKAGES", ("a-missing-codec",))
    versions = preprocess.decoder_versions() | {"pydicom": "3.0.0"}
    trained = Classifier(None, None, Preprocessing(), ("CNV", "DME"), versions)
    assert other_decoder(trained) is None


def test_a_window_may_be_that_of_one_frame_or_of_all():
    frames = np.stack([levels(0, 1000)] * 2)
    narrow, wide = (
        {(0x0028, 0x9132, "SQ"): [{WINDOW_CENTER: "500", WINDOW_WIDTH: width}]}
        for width in ("101", "1001")
    )
    data = dicom_file(
        frames, {(0x5200, 0x9229, "SQ"): [wide], (0x5200, 0x9230, "SQ"): [narrow, {}]}
    )
    first, second = decoded(data, 1), decoded(data, 2)
    assert (first[0, 0], first[-1, -1]) == (0, 255)
    assert np.abs(second - frames[1] * 0.255).max() <= 1
    assert np.count_nonzero(first == 0) > np.count_nonzero(second == 0)


@pytest.mark.parametrize(
    ("name", "marker", "place", "form"),
    [
        ("MR_small_jp2klossless", b"\xff\x51", 6, ">II"),
        ("MR_small_jpeg_ls_lossless", b"\xff\xf7", 5, ">HH"),
        ("SC_rgb_jpeg_gdcm", b"\xff\xc3", 5, ">HH"),
        ("SC_rgb_jpeg_dcmtk", b"\xff\xc0", 5, ">HH"),
    ],
)
def test_a_frame_that_claims_to_be_huge_is_not_decoded(name, marker, place, form):
    data = bytearray((FILES / f"{name}.dcm").read_bytes())
    assert struct.unpack_from(form, data, data.index(marker) + place) in ((64, 64), (100, 100))
    struct.pack_into(form, data, data.index(marker) + place, 60_000, 60_000)
    with pytest.raises(Reject, match="the compressed frame has other sides than the file says"):
        decode_image(bytes(data), Preprocessing(), 0)


def test_a_jpeg_ls_frame_that_is_cut_off_is_not_decoded(monkeypatch):
    data = in_syntax(dicom_file(grey_pixels(0, 60, 60)), "1.2.840.10008.1.2.4.80")
    monkeypatch.setattr("jpeg_ls.decode_pixel_data", None)
    assert reason(data[::-1].replace(b"\xd9\xff", bytes(2), 1)[::-1]) == "truncated"


def test_a_deflated_file_is_not_inflated(monkeypatch):
    """It could grow without end."""
    data = (FILES / "image_dfl.dcm").read_bytes()
    monkeypatch.setattr("zlib.decompress", None)
    assert dicom.read_header(data) is None
    assert reason(data) == "unsupported_syntax"


@pytest.mark.parametrize(
    "name", ["MR_small", "MR_small_RLE", "MR_small_jpeg_ls_lossless", "SC_rgb_jpeg_gdcm"]
)
def test_damage_anywhere_raises_nothing_but_a_reject(name):
    whole = (FILES / f"{name}.dcm").read_bytes()
    generator = np.random.default_rng(0)
    pixels = whole.index(b"\xe0\x7f\x10\x00")
    places = *generator.integers(132, len(whole), 20), *generator.integers(pixels, pixels + 300, 30)
    for place in map(int, places):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(generator.integers(8))
        for data in (bytes(damaged), whole[:place]):
            dicom.read_header(data)
            with contextlib.suppress(Reject):
                decode_image(data, Preprocessing(height=8, width=8), 0)


@pytest.mark.parametrize(("num_frames", "frames"), [("3", [0]), ("2", [0, 1, 2]), ("0", [0])])
def test_frames_beyond_the_number_that_the_file_says_are_not_lost_in_silence(num_frames, frames):
    data = dicom_file(np.stack([grey_pixels(n) for n in range(3)]), num_frames=num_frames)
    assert {reason(data, frame) for frame in frames} == {"multiple_frames"}


def compressed_frames(syntax):
    """Returns three frames of 64 pixels a side as a codec of this syntax writes them."""
    frames = []
    for picture in (grey_pixels(seed, 64, 64) for seed in range(3)):
        frame = encoded(picture, "JPEG")
        if not syntax.endswith(".50"):
            dataset = pydicom.dcmread(io.BytesIO(in_syntax(dicom_file(picture), syntax)))
            frame = pydicom.encaps.get_frame(dataset.PixelData, 0, number_of_frames=1)
        frames.append(frame + bytes(len(frame) % 2))
    return frames


@pytest.mark.parametrize("syntax", [".4.50", ".4.80", ".4.90", ".5"])
@pytest.mark.parametrize("num_frames", [None, 1, 2])
@pytest.mark.parametrize("has_table", [False, True])
def test_compressed_frames_beyond_the_number_that_the_file_says_are_not_lost(
    syntax, num_frames, has_table
):
    syntax = f"1.2.840.10008.1.2{syntax}"
    frames = compressed_frames(syntax)
    shape = (num_frames, 64, 64) if num_frames else (64, 64)
    places = (0, 8 + len(frames[0]), 16 + len(frames[0]) + len(frames[1]))
    table = np.array(places[: num_frames or 1], "<u4").tobytes() if has_table else b""
    tags = {(0x7FE0, 0x0010, "OB"): [table, *frames]}
    data = dicom_file(
        np.zeros(shape, np.uint8), tags, syntax=syntax, num_frames=num_frames, compressed=frames
    )
    for number in (1, 2) if num_frames == 2 else (0,):
        assert reason(data, number) == "multiple_frames"
        if number:
            with pytest.raises(Reject, match="multiple_frames"):
                dicom.cut_frame(io.BytesIO(data), number)


@pytest.mark.parametrize("syntax", [".4.50", ".4.80", ".4.90"])
def test_a_frame_may_be_in_several_fragments_but_is_one_picture(syntax):
    syntax = f"1.2.840.10008.1.2{syntax}"
    first, second, _ = compressed_frames(syntax)
    blank = np.zeros((64, 64), np.uint8)
    parts = [first[place : place + 200] for place in range(0, len(first), 200)]
    whole, split, joined = (
        dicom_file(blank, syntax=syntax, compressed=fragments)
        for fragments in ([first], parts, [first + second])
    )
    np.testing.assert_array_equal(decoded(split), decoded(whole))
    assert reason(joined) == "multiple_frames"


@pytest.mark.parametrize("syntax", ["1.2.840.10008.1.2.5", "1.2.840.10008.1.2.4.80"])
@pytest.mark.parametrize("offsets", [(0, 0, 0), (0, 2, 1)])
def test_no_frame_is_taken_for_another_one_by_a_wrong_table_of_offsets(syntax, offsets):
    data = bytearray(in_syntax(dicom_file(np.stack([grey_pixels(n) for n in range(3)])), syntax))
    place = data.index(b"\xfe\xff\x00\xe0") + 8
    right = struct.unpack_from("<3I", data, place)
    struct.pack_into("<3I", data, place, *(right[frame] for frame in offsets))
    assert {reason(bytes(data), frame) for frame in (1, 2, 3)} == {"undecodable"}


def test_a_header_is_read_from_the_start_of_a_file_or_not_at_all():
    patient = {(0x0010, 0x0020, "LO"): "4711", (0x0010, 0x0010, "PN"): "Doe^Jane"}
    data = dicom_file(np.stack([grey_pixels()] * 5), patient)
    header = dicom.read_header(data[:600])
    assert header == dicom.read_header(data)
    assert header.num_frames == 5
    assert re.fullmatch("[0-9a-f]{16}", header.patient)
    assert dicom.read_header(data[:200]) is None
    assert dicom.read_header(data.replace(b"4711", b"4712")).patient != header.patient


@pytest.mark.parametrize("num_frames", ["-3", "0", "999999999", "20000"])
def test_a_number_of_frames_that_cannot_be_is_not_believed(num_frames):
    data = dicom_file(grey_pixels(0, 400, 500), num_frames=num_frames)
    assert preprocess.find_pictures("odd", len(data), data, None).frames == [0]


def without(element):
    """Returns a file that lacks an element of two bytes."""
    data = dicom_file(grey_pixels())
    place = data.index(np.array(element, "<u2").tobytes() + b"US")
    return data[:place] + data[place + 10 :]


VIDEO = "1.2.840.10008.1.2.4.100"  # MPEG-2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (without((0x0028, 0x0010)), "missing_tag: a DICOM file without Rows"),
        (without((0x0028, 0x0101)), "missing_tag: a DICOM file without BitsStored"),
        (dicom_file(grey_pixels(), syntax=VIDEO, compressed=[b"\0\0"]), "unsupported_syntax"),
        (
            dicom_file(RAMP << 4, {(0x0028, 0x0102, "US"): 15}, bits=12),
            "unsupported_mode: .* with high bit 15, expected 11",
        ),
        # A rescaling that shows nothing.
        *(
            (dicom_file(levels(0, 255), {SLOPE: slope, INTERCEPT: intercept}), "undecodable")
            for slope, intercept in (("1", "nan"), ("inf", "0"), ("0", "7"))
        ),
    ],
)
def test_tags_that_say_too_little_or_what_cannot_be_shown_make_a_reject(data, message):
    with pytest.raises(Reject, match=message):
        decode_image(data, Preprocessing(), 0)


# ---- through the command


IDENTIFIERS = {
    (0x0008, 0x0018, "UI"): "1.2.826.0.1.7777.1.{patient}",
    (0x0008, 0x0050, "SH"): "ACCESSION-8812",
    (0x0008, 0x0080, "LO"): "Hospital Planted",
    (0x0008, 0x0090, "PN"): "Refer^Planted",
    (0x0010, 0x0010, "PN"): "Plantedname^Jane",
    (0x0010, 0x0020, "LO"): "PID-PLANTED-{patient}",
    (0x0010, 0x0030, "DA"): "19470311",
    (0x0010, 0x1040, "LO"): "Planted Street 7",
    (0x0020, 0x000D, "UI"): "1.2.826.0.1.7777.2.{patient}",
    (0x0020, 0x000E, "UI"): "1.2.826.0.1.7777.3.{patient}",
    (0x0020, 0x0010, "SH"): "STUDY-PLANTED",
}


def scan(seed, patient, num_frames=1):
    elements = {tag: value.format(patient=patient) for tag, value in IDENTIFIERS.items()}
    frames = [
        grey_pixels(100 * seed + number).astype(np.uint16) * 16 for number in range(num_frames)
    ]
    return dicom_file(np.stack(frames) if num_frames > 1 else frames[0], elements, bits=12)


def tree():
    """Files of two classes and six patients: single frames, volumes, a picture, damaged ones."""
    files = {
        f"{label}/{name}-{number}{ending}": scan(seed, patient=number // 2, num_frames=frames)
        for seed, (label, name, number, ending, frames) in enumerate(
            (label, name, number, ending, frames)
            for label in ("CNV", "NORMAL")
            for name, ending, frames in (("IM", "", 1), ("volume", ".dcm", 4))
            for number in range(6)
        )
    }
    files["CNV/picture.png"] = png()
    files["CNV/renamed.png"] = scan(99, patient=0)
    files["NORMAL/cut.dcm"] = scan(98, patient=1)[:900]
    files["NORMAL/report.dcm"] = dicom_file(grey_pixels(), {(0x0028, 0x0010, "US"): 0})
    return files


folder = scans_of(tree)


FLAGS = ("--splits=patient", "--split_seed=auto", "--split_fractions=train=0.5,test=0.5",
         "--max_reject_fraction=0.5", "--num_shards=2")  # fmt: skip


def test_tags_about_an_image_are_columns_and_a_table_has_the_last_word(tmp_path):
    tags = {
        (0x0008, 0x0060, "CS"): "OPT",
        (0x0008, 0x1090, "LO"): "Spectral 9",
        (0x0020, 0x000D, "UI"): "1.2.3",
        (0x0020, 0x000E, "UI"): "1.2.3.4",
        (0x0020, 0x0062, "CS"): "L",
    }
    files = {"volume": dicom_file(np.stack([grey_pixels()] * 2), tags), "picture.png": png()}
    source = write_tree(tmp_path / "in", files)
    table = tmp_path / "labels.csv"
    table.write_text(
        "path,label,patient,age,device\nvolume,CNV,p1,61,known\npicture.png,DME,p2,40,\n"
    )
    output = build_here(source, tmp_path / "out", f"--labels={table}")
    rows = {row["path"]: row for row in rows_of(output)}
    assert sorted(rows) == ["picture.png", "volume#frame-1", "volume#frame-2"]
    frame, picture = rows["volume#frame-2"], rows["picture.png"]
    assert (frame["modality"], frame["laterality"], frame["device"]) == ("OPT", "L", "known")
    # printf 1.2.3 | sha256sum | cut -c-16, and the same of 1.2.3.4
    assert (frame["study"], frame["series"]) == ("c47f5b18b8a430e6", "6694f83c9f476da3")
    assert (frame["patient"], frame["label"], frame["age"]) == ("p1", "CNV", 61)
    assert (picture["modality"], picture["patient"]) == (None, "p2")


def test_a_patient_is_known_by_tags_and_in_one_split_and_no_identifier_is_in_any_output(
    folder, tmp_path, capfd
):
    output = build_here(folder, tmp_path / "out", *FLAGS)
    found = {(row["patient"], row["split"]) for row in rows_of(output) if row["patient"]}
    assert len(found) == len({patient for patient, _ in found}) == 3
    assert all(re.fullmatch("[0-9a-f]{16}", patient) for patient, _ in found)
    outputs = [*files_of(output).values(), "".join(capfd.readouterr()).encode()]
    assert len(outputs) > 8
    for text in (*IDENTIFIERS.values(), "Plantedname", "PLANTED", "Jane"):
        assert not [found for found in outputs if text.partition("{")[0].encode() in found]


def test_without_the_extra_dicom_files_are_refused_with_what_to_do(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(dicom, "PACKAGES", (*dicom.PACKAGES, "a-missing-codec"))
    with pytest.raises(UserError, match=r"missing-codec is not installed: run .*\[dicom\]"):
        build_here(folder, tmp_path / "out", *FLAGS)
    assert not (tmp_path / "out").exists()

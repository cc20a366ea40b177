"""DICOM files: those of pydicom, which other programs wrote, and some written byte by byte."""

import contextlib
import io
import re
import struct
from pathlib import Path

import imagecodecs
import numpy as np
import pydicom
import pytest
from builds import build_here, files_of, rows_of
from dicom_files import dicom_file, in_syntax
from image_files import encoded, grey_pixels, png, rgb_pixels, scans_of
from pydicom.pixels import apply_color_lut, apply_modality_lut, apply_voi_lut, pixel_array

from pipelines.errors import UserError
from tfrecord_io.decoding import dicom, preprocess
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.preprocess import decode_image, find_pictures
from tfrecord_io.decoding.rejects import Reject

# What pydicom itself warns of while this file reads its files.
pytestmark = pytest.mark.filterwarnings("ignore")

FILES = Path(pydicom.__file__).parent / "data" / "test_files"
HEIGHT, WIDTH = 20, 28

WINDOW_CENTER, WINDOW_WIDTH = (0x0028, 0x1050, "DS"), (0x0028, 0x1051, "DS")
INTERCEPT, SLOPE = (0x0028, 0x1052, "DS"), (0x0028, 0x1053, "DS")
FUNCTION, IMAGE_TYPE = (0x0028, 0x1056, "CS"), (0x0008, 0x0008, "CS")


def syntax(ending):
    return f"1.2.840.10008.1.2{ending}"


def decoded(data, frame=0, channels=1, **options):
    """Returns the pixels of a frame in its own size, [height, width] or [height, width, 3]."""
    dataset = pydicom.dcmread(io.BytesIO(data), force=True)
    settings = Preprocessing(
        height=dataset.Rows, width=dataset.Columns, channels=channels, fit="stretch", **options
    )
    pixels = np.frombuffer(decode_image(data, settings, frame).pixels, np.uint8)
    return pixels.reshape(settings.image_shape).squeeze()


def reason(data, frame=0):
    with pytest.raises(Reject) as raised:
        decode_image(data, Preprocessing(), frame)
    return raised.value.reason


def found_in(data, name="odd"):
    return find_pictures(name, len(data), data, lambda: io.BytesIO(data))


# ---- the files of pydicom: each is shown as pydicom decodes it, or left out with a reason


REJECTS = {
    name: reason
    for reason, names in {
        "not_an_image": "ExplVR_BigEndNoMeta ExplVR_LitEndNoMeta no_meta rtstruct",
        "undecodable": "JPEG2000-embedded-sequence-delimiter badVR",
        "truncated": "MR_truncated",
        "too_many_bits": "SC_rgb_rle_32bit SC_rgb_rle_32bit_2frame",
        "no_pixels": "UN_sequence empty_charset_LEI meta_missing_tsyntax nested_priv_SQ "
        "no_meta_group_length priv_SQ",
        "unsupported_syntax": "image_dfl",
    }.items()
    for name in names.split()
}
IGNORED = {
    name: kind
    for kind, names in {
        "segmentation": "liver_1frame liver_expb_1frame",
        "basic_text_sr": "reportsi reportsi_with_empty_number_tags",
        "comprehensive_sr": "test-SR",
        "rt_plan": "rtplan rtplan_truncated",
        "rt_dose": "rtdose rtdose_1frame rtdose_expb rtdose_expb_1frame rtdose_rle "
        "rtdose_rle_1frame",
        "12_lead_ecg_waveform": "waveform_ecg",
    }.items()
    for name in names.split()
}


def shown_by_pydicom(path, frame):
    """Returns a frame as calls of pydicom and the type's range give it."""
    dataset = pydicom.dcmread(path)
    pixels = pixel_array(dataset, index=max(frame, 1) - 1)
    if dataset.PhotometricInterpretation == "PALETTE COLOR":
        return apply_color_lut(pixels, dataset) >> 8
    if not dataset.PhotometricInterpretation.startswith("MONOCHROME"):
        return pixels >> dataset.BitsStored - 8
    values = apply_voi_lut(apply_modality_lut(pixels, dataset), dataset).astype(float)
    if dataset.get("WindowCenter") is not None:
        low, high = apply_voi_lut(np.array([-1e9, 1e9]), dataset)
    else:
        low, high = (0, 255) if dataset.BitsStored == 8 else (values.min(), values.max())
    return np.rint(255 * np.clip((values - low) / (high - low), 0, 1))


@pytest.mark.parametrize("name", sorted(path.stem for path in FILES.glob("*.dcm")))
def test_each_file_of_pydicom_is_shown_as_it_decodes_it_or_left_out_with_a_reason(name):
    path = FILES / f"{name}.dcm"
    data = path.read_bytes()
    found = found_in(data)
    assert found.ignored == ([IGNORED[name]] if name in IGNORED else ())
    for frame in list(found.frames)[:2]:
        if name in REJECTS:
            assert reason(data, frame) == REJECTS[name]
            continue
        expected = shown_by_pydicom(path, frame)
        pixels = decoded(data, frame, 3 if expected.ndim == 3 else 1)
        np.testing.assert_array_equal(pixels, expected)
        with path.open("rb") as file:  # and so is one frame of the open file
            again = decode_image(dicom.read_frame(file, frame), Preprocessing(), frame)
        assert again == decode_image(data, Preprocessing(), frame)


def test_a_name_of_another_kind_is_no_way_around_the_tags():
    data = dicom_file(grey_pixels())
    assert found_in(data, "scan.png") == preprocess.Pictures()
    with pytest.raises(Reject, match=r"not_an_image: .*ending \.dcm"):
        decode_image(data, Preprocessing())
    assert reason(png()) == "undecodable"


# ---- grey levels


def levels(low, high, dtype=np.uint16):
    return np.linspace(low, high, HEIGHT * WIDTH).reshape(HEIGHT, WIDTH).astype(dtype)


def lookup(sequence, first, bits, entries):
    table = {
        (0x0028, 0x3002, "US"): struct.pack("<3H", len(entries), first, bits),
        (0x0028, 0x3006, "US"): np.array(entries, "<u2").tobytes(),
    }
    return {(0x0028, sequence, "SQ"): [table]}


MODALITIES = {
    "none": {},
    "slope": {SLOPE: "2", INTERCEPT: "-1024"},
    "negative slope": {SLOPE: "-1", INTERCEPT: "0"},
    "table": lookup(0x3000, 0, 16, np.arange(256) ** 2 // 99),
}
# A file may name several windows; the first counts, or that of the flag.
WINDOWS = {
    "no window": ({}, None),
    "window": ({WINDOW_CENTER: "90\\7", WINDOW_WIDTH: "150\\8"}, None),
    "flag": ({WINDOW_CENTER: "7", WINDOW_WIDTH: "8", FUNCTION: "SIGMOID"}, (90.0, 150.0)),
    "flag, not a table": (lookup(0x3010, 0, 8, range(9)), (90.0, 150.0)),
}


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("modality", MODALITIES)
def test_the_modality_comes_first_then_the_window_then_the_photometric_interpretation(
    modality, window, photometric
):
    """The formulas of PS3.3, C.11.1 and C.11.2.1.2.1, written out; pydicom has only the first."""
    tags, flag = WINDOWS[window]
    data = dicom_file(levels(3, 240), MODALITIES[modality] | tags, photometric=photometric)
    dataset = pydicom.dcmread(io.BytesIO(data))
    values = apply_modality_lut(dataset.pixel_array, dataset).astype(float)
    if window == "no window":
        values = (values - values.min()) / np.ptp(values)
    else:
        values = np.clip((values - 90 + 0.5) / 149 + 0.5, 0, 1)
    expected = 255 * (1 - values if photometric == "MONOCHROME1" else values)
    assert np.abs(decoded(data, window=flag) - expected).max() <= 0.51


@pytest.mark.parametrize("intercept", [0, 7])
def test_a_table_of_the_file_decides_the_grey_levels(intercept):
    """It is for rescaled values, and has those from 1000 + intercept on."""
    tags = lookup(0x3010, 1000 + intercept, 8, range(255, -1, -1))
    data = dicom_file(levels(900, 1300), tags | {SLOPE: "1", INTERCEPT: str(intercept)}, bits=12)
    expected = 255 - np.clip(levels(900, 1300).astype(int) - 1000, 0, 255)
    np.testing.assert_array_equal(decoded(data), expected)


def test_a_window_and_the_shape_of_pixels_may_be_those_of_one_frame_or_of_all():
    narrow, wide = (
        {(0x0028, 0x9132, "SQ"): [{WINDOW_CENTER: "500", WINDOW_WIDTH: width}]}
        for width in ("101", "1001")
    )
    flat = {(0x0028, 0x9110, "SQ"): [{(0x0028, 0x0030, "DS"): "2\\1"}]}
    groups = {(0x5200, 0x9229, "SQ"): [wide | flat], (0x5200, 0x9230, "SQ"): [narrow, {}]}
    data = dicom_file(np.stack([levels(0, 1000)] * 2), groups)
    first, second = decoded(data, 1), decoded(data, 2)
    assert np.count_nonzero(first == 0) > np.count_nonzero(second == 0)
    assert np.abs(second - levels(0, 1000) * 0.255).max() <= 1
    assert decode_image(data, Preprocessing(), 1).shape == WIDTH / HEIGHT / 2


@pytest.mark.parametrize("ending", ["", ".4.70", ".4.80", ".4.90", ".5"])
@pytest.mark.parametrize("dtype", [np.uint16, np.int16])
def test_unused_high_bits_say_nothing(ending, dtype):
    stored = np.linspace(-500 * (dtype == np.int16), 1000, 64 * 64).reshape(64, 64).astype(dtype)
    used = np.bitwise_and(stored.view(np.uint16), 0x0FFF)
    data = dicom_file(used | 0xA000, bits=12)
    if ending == ".4.70":
        frame = imagecodecs.jpeg8_encode(used | 0xA000, lossless=True, bitspersample=16)
        data = dicom_file(used, bits=12, syntax=syntax(ending), compressed=[frame])
    elif ending:
        compressed = in_syntax(dicom_file(used | 0xA000), syntax(ending))
        dataset = pydicom.dcmread(io.BytesIO(compressed))
        dataset.BitsStored, dataset.HighBit = 12, 11
        pydicom.dcmwrite(file := io.BytesIO(), dataset)
        data = file.getvalue()
    if dtype == np.int16:
        data = data.replace(b"\x28\0\x03\1US\2\0\0\0", b"\x28\0\x03\1US\2\0\1\0")
    expected = (stored.astype(float) - stored.min()) / np.ptp(stored.astype(int)) * 255
    assert np.abs(decoded(data) - expected).max() <= 0.51


# ---- frames


def test_the_frames_of_a_volume_are_what_was_written_and_only_the_wanted_one_is_read():
    frames = np.stack([grey_pixels(seed, 64, 64) for seed in range(3)])
    whole = dicom_file(frames)
    for data in (whole, *(in_syntax(whole, syntax(ending)) for ending in (".4.80", ".4.90", ".5"))):
        for number, picture in enumerate(frames, start=1):
            np.testing.assert_array_equal(decoded(data, number), picture)
    part = io.BytesIO(whole[: -64 * 64])
    assert dicom.read_frame(part, 2).pixels.tolist() == frames[1].tolist()
    with pytest.raises(Reject, match="truncated: the file ends before its frame 3"):
        dicom.read_frame(part, 3)


def compressed_frames(ending):
    """Returns three frames of 64 pixels a side as a codec of this syntax writes them."""
    frames = []
    for picture in (grey_pixels(seed, 64, 64) for seed in range(3)):
        frame = encoded(picture, "JPEG")
        if ending == ".4.70":
            frame = imagecodecs.jpeg8_encode(picture, lossless=True)
        elif ending != ".4.50":
            dataset = pydicom.dcmread(io.BytesIO(in_syntax(dicom_file(picture), syntax(ending))))
            frame = pydicom.encaps.get_frame(dataset.PixelData, 0, number_of_frames=1)
        frames.append(frame + bytes(len(frame) % 2))
    return frames


BLANK = np.zeros((64, 64), np.uint8)


@pytest.mark.parametrize("ending", [".4.50", ".4.70", ".4.80", ".4.90", ".5"])
def test_a_frame_in_fragments_is_one_picture_and_one_that_is_cut_off_or_joined_a_reject(ending):
    first, second, _ = compressed_frames(ending)
    parts = [first[place : place + 200] for place in range(0, len(first), 200)]
    whole, split, cut = (
        dicom_file(BLANK, syntax=syntax(ending), compressed=fragments)
        for fragments in ([first], parts, [first[:-100]])
    )
    np.testing.assert_array_equal(decoded(split), decoded(whole))
    assert reason(cut) == ("undecodable" if ending == ".5" else "truncated")
    if ending != ".5":
        joined = dicom_file(BLANK, syntax=syntax(ending), compressed=[first + second])
        assert reason(joined) == "multiple_frames"


def test_frames_beyond_the_number_that_the_file_says_are_not_lost_in_silence():
    three = np.stack([grey_pixels(n) for n in range(3)])
    assert reason(dicom_file(three), 0) == "multiple_frames"
    assert reason(dicom_file(three, num_frames=2), 1) == "multiple_frames"
    frames = compressed_frames(".4.80")
    places = np.cumsum([0, *(8 + len(frame) for frame in frames[:-1])]).astype("<u4")
    data = dicom_file(
        BLANK, {(0x7FE0, 0x0010, "OB"): [places.tobytes(), *frames]}, syntax=syntax(".4.80"),
        compressed=frames,
    )  # fmt: skip
    assert reason(data) == "multiple_frames"


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
    struct.pack_into(form, data, data.index(marker) + place, 60_000, 60_000)
    with pytest.raises(Reject, match="the compressed frame has other sides than the file says"):
        decode_image(bytes(data), Preprocessing(), 0)


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


# ---- the header


def test_a_header_is_read_from_the_start_of_a_file_or_not_at_all():
    patient = {(0x0010, 0x0020, "LO"): "4711", (0x0010, 0x0010, "PN"): "Doe^Jane"}
    data = dicom_file(np.stack([grey_pixels()] * 5), patient)
    header = dicom.read_header(data[:600])
    assert header == dicom.read_header(data)
    assert header.num_frames == 5
    assert re.fullmatch("[0-9a-f]{16}", header.patient)
    assert dicom.read_header(data[:200]) is None
    assert dicom.read_header(data.replace(b"4711", b"4712")).patient != header.patient


def test_pictures_that_accompany_others_are_ignored_and_odd_numbers_of_frames_not_believed():
    for kind in ("LABEL", "OVERVIEW", "THUMBNAIL", "LOCALIZER"):
        found = found_in(dicom_file(grey_pixels(), {IMAGE_TYPE: f"ORIGINAL\\{kind}\\NONE"}))
        assert (found.frames, found.ignored) == ([], [f"{kind.lower()}_image"])
    for number in ("-3", "0", "999999999", "20000"):
        data = dicom_file(grey_pixels(0, 400, 500), num_frames=number)
        assert found_in(data).frames == [0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (dicom_file(grey_pixels(), syntax=syntax(".4.100"), compressed=[b"\0\0"]),
         "unsupported_syntax"),
        (dicom_file(levels(0, 4095) << 4, {(0x0028, 0x0102, "US"): 15}, bits=12),
         "unsupported_mode: .* with high bit 15, expected 11"),
        (dicom_file(levels(0, 255), {WINDOW_CENTER: "9", WINDOW_WIDTH: "0"}),
         "undecodable: .*Window Width"),
        *((dicom_file(levels(0, 255), {SLOPE: slope, INTERCEPT: intercept}),
           "undecodable: the rescale slope or intercept of the DICOM is not a number")
          for slope, intercept in (("1", "nan"), ("inf", "0"), ("", "0"), ("2", ""))),
        (dicom_file(rgb_pixels(), photometric="RGB").replace(b"RGB ", b"HSV "), "unsupported_mode"),
    ],
)  # fmt: skip
def test_tags_that_say_what_cannot_be_shown_make_a_reject(data, message):
    with pytest.raises(Reject, match=message):
        decode_image(data, Preprocessing(), 0)


# ---- through the command


IDENTIFIERS = {
    (0x0008, 0x0050, "SH"): "ACCESSION-8812",
    (0x0008, 0x0080, "LO"): "Hospital Planted",
    (0x0010, 0x0010, "PN"): "Plantedname^Jane",
    (0x0010, 0x0020, "LO"): "PID-PLANTED-{patient}",
    (0x0010, 0x0030, "DA"): "19470311",
    (0x0020, 0x000D, "UI"): "1.2.826.0.1.7777.2.{patient}",
}


def scan(seed, patient, num_frames=1):
    elements = {tag: value.format(patient=patient) for tag, value in IDENTIFIERS.items()}
    frames = [grey_pixels(9 * seed + n).astype(np.uint16) * 16 for n in range(num_frames)]
    return dicom_file(np.stack(frames) if num_frames > 1 else frames[0], elements, bits=12)


def tree():
    """Files of two classes and three patients: single frames, volumes, damaged ones."""
    files = {
        f"{label}/{frames}-{n}": scan(4 * n + frames, patient=n // 2, num_frames=frames)
        for label in ("CNV", "NORMAL")
        for frames in (1, 3)
        for n in range(6)
    }
    return files | {"CNV/renamed.png": scan(99, 0), "NORMAL/cut.dcm": scan(98, 1)[:900]}


folder = scans_of(tree)


FLAGS = ("--splits=patient", "--split_fractions=train=0.5,test=0.5",
         "--max_reject_fraction=0.5", "--num_shards=2")  # fmt: skip


def test_a_patient_is_known_by_tags_and_in_one_split_and_no_identifier_is_in_any_output(
    folder, tmp_path, capfd
):
    output = build_here(folder, tmp_path / "out", *FLAGS)
    rows = rows_of(output)
    assert len(rows) == 12 + 36
    found = {(row["patient"], row["split"]) for row in rows}
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

"""Files of DICOM: each frame is an image, and what the tags tell is counted or kept."""

from pathlib import Path

import numpy as np
import pytest
from builds import build_here, csv_rows, rows_of
from dicom_files import dicom_file
from image_files import encoded, grey_pixels, png, scans_of, write_tree
from listed import list_files, list_source, notes_of
from PIL import Image
from pydicom.data import get_testdata_file
from tiff_files import tiff_file

from pipelines import errors
from pipelines.sources.directory import DirectorySource
from tfrecord_io import Manifest
from tfrecord_io.format.schema import image_key

PATIENT, ISSUER = (0x0010, 0x0020, "LO"), (0x0010, 0x0021, "LO")
MODALITY = (0x0008, 0x0060, "CS")


def volume(seed, count):
    return dicom_file(np.stack([grey_pixels(10 * seed + number) for number in range(count)]))


folder = scans_of(lambda: {
    "CNV/volume.dcm": volume(1, 3), "CNV/without ending": volume(2, 2),
    "CNV/volume.dcm#frame-3": volume(4, 1),
    "DME/one.dcm": dicom_file(grey_pixels(3)), "DME/picture.png": png(),
    "DME/three.TIFF": tiff_file([grey_pixels(k) for k in range(3)]),
    "DME/two.gif": encoded(grey_pixels(), "GIF", save_all=True,
                           append_images=[Image.fromarray(grey_pixels(1))]),
})  # fmt: skip


def test_every_frame_of_dicom_is_an_image_and_other_files_of_several_pictures_are_rejects(
    folder, tmp_path
):
    built = build_here(folder, tmp_path / "out", "--max_reject_fraction=0.5")
    rows = {row["path"]: row for row in rows_of(built)}
    assert sorted(rows) == [
        "CNV/volume.dcm#frame-1", "CNV/volume.dcm#frame-2", "CNV/volume.dcm#frame-3",
        "CNV/without ending#frame-1", "CNV/without ending#frame-2",
        "DME/one.dcm", "DME/picture.png",
    ]  # fmt: skip
    assert all(row["key"] == image_key(path) for path, row in rows.items())
    assert {path: reason for path, reason, _ in csv_rows(built / "rejects.csv")} == {
        "DME/three.TIFF": "multiple_frames", "DME/two.gif": "multiple_frames",
        "CNV/volume.dcm#frame-3": "path_conflict",
    }  # fmt: skip
    assert Manifest.load(built).counts["files"] == 10


def test_objects_that_are_no_pictures_are_counted_and_burned_in_text_in_a_note(tmp_path):
    said = [{(0x0028, 0x0301, "CS"): text} for text in ("YES", "NO")]
    files = {f"{c}/{k}.dcm": dicom_file(grey_pixels(k), tags)
             for c in ("CNV", "DME") for k, tags in enumerate(said)}  # fmt: skip
    files["DME/report"] = Path(get_testdata_file("test-SR.dcm")).read_bytes()
    listing = list_source(DirectorySource(write_tree(tmp_path / "in", files)))
    assert (len(listing.table), listing.ledger.rejects) == (4, ())
    assert listing.ledger.ignored.total() == 1
    assert "2 images" in notes_of(listing)


def test_one_of_several_modalities_can_be_chosen():
    files = {f"{c}/{name}{k}.dcm": dicom_file(grey_pixels(k), {MODALITY: name})
             for c in ("CNV", "DME") for name in ("OPT", "OP")
             for k in range(3 if name == "OPT" else 2)}  # fmt: skip
    files["DME/plain.png"] = png()
    one = list_files(files, modality=("OPT",))
    assert (len(one.table), one.ledger.ignored, one.ledger.notes) == (6, {"other_modality": 5}, ())
    for wanted in (("CT",), ("OPT", "CT")):
        with pytest.raises(errors.UserError, match=r"--modality.* OPT 6, OP 4, none named 1"):
            list_files(files, modality=wanted)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, {"hash"}),
        ({"patient_regex": r"(\d)\.dcm"}, {"0", "1"}),
        ({"layout": ("class", "patient")}, {"p0", "p1"}),
    ],
)
def test_what_the_user_says_of_patients_goes_before_the_tags(options, wanted):
    files = {f"{c}/p{k}/{k}.dcm": dicom_file(grey_pixels(k), {PATIENT: "anonymous", ISSUER: "Bern"})
             for c in ("CNV", "DME") for k in range(2)}  # fmt: skip
    patients = {*list_files(files, **{"layout": ("class",)} | options).table["patient"].to_pylist()}
    assert patients == wanted if wanted != {"hash"} else len({*map(len, patients)}) == 1

"""Files of several images, through the command; see test_dicom.py for the frames of DICOM files."""

from collections import Counter
from pathlib import Path

import builds
import numpy as np
import pytest
from builds import build_here, build_of, bytes_read, csv_rows
from dicom_files import dicom_file
from image_files import encoded, grey_pixels, pack, png, scans_of, write_tree
from listed import list_files, notes_of
from PIL import Image
from pydicom.data import get_testdata_file
from tiff_files import tiff_file

from pipelines import errors
from pipelines.listing import frames
from pipelines.listing.listing import ListingOptions, list_images
from pipelines.listing.refs import iterate_refs
from pipelines.sources.directory import DirectorySource
from tfrecord_io import Manifest, image_key

FLAGS = ("--max_reject_fraction=0.5", "--num_shards=2")


def volume(seed, count, height=20, width=28):
    return dicom_file(np.stack([grey_pixels(10 * seed + n, height, width) for n in range(count)]))


def tree():
    """Volumes of DICOM, one of them damaged, and files of several pictures of other formats."""
    return {
        "CNV/volume.dcm": volume(6, 2),
        "CNV/without ending": volume(5, 2),
        "CNV/one.tif": tiff_file([grey_pixels()]),
        "DME/cut.dcm": volume(4, 3)[:-9],
        "DME/three.TIFF": tiff_file([grey_pixels(n) for n in range(3)]),
        "DME/picture.png": png(),
        "DME/two.gif": encoded(grey_pixels(), "GIF", save_all=True,
                               append_images=[Image.fromarray(grey_pixels(1))]),
    }  # fmt: skip


folder = scans_of(tree)
built = build_of("folder", *FLAGS)


def rows_of(dataset):
    return {row["path"]: row for row in builds.rows_of(dataset)}


def test_every_frame_of_dicom_is_an_image_and_other_files_of_several_pictures_are_rejects(built):
    rows = rows_of(built)
    assert sorted(rows) == [
        "CNV/one.tif", "CNV/volume.dcm#frame-1", "CNV/volume.dcm#frame-2",
        "CNV/without ending#frame-1", "CNV/without ending#frame-2", "DME/cut.dcm#frame-1",
        "DME/cut.dcm#frame-2", "DME/picture.png",
    ]  # fmt: skip
    assert all(row["key"] == image_key(path) for path, row in rows.items())
    assert {path: reason for path, reason, _ in csv_rows(built / "rejects.csv")} == {
        "DME/cut.dcm#frame-3": "truncated",
        "DME/three.TIFF": "multiple_frames",
        "DME/two.gif": "multiple_frames",
    }
    counts = Manifest.load(built).counts
    assert (counts["files"], counts["examples"], counts["ignored"]) == (11, 8, {})


def test_only_the_tags_of_a_file_are_read_to_list_its_frames(tmp_path):
    source = DirectorySource(write_tree(tmp_path, {"CNV/two": volume(0, 2, 1000, 1000)}))
    list_images(source, ListingOptions())  # what it imports is read now
    before = bytes_read()
    assert list_images(source, ListingOptions()).frames == {"DICOM": 2}
    assert bytes_read() - before < 250_000


@pytest.mark.usefixtures("built")  # what a build imports is read now
@pytest.mark.parametrize("name", ["in", "in.zip"])
def test_only_the_bytes_of_a_frame_are_read_to_build_it(tmp_path, name):
    files = {"CNV/volume": volume(0, 20, 200, 200), "DME/picture.png": png()}
    source = pack(tmp_path / name, files)
    before = bytes_read()
    output = build_here(source, tmp_path / "out")
    # The whole file for each frame would be twenty times its size.
    assert bytes_read() - before < 10 * len(files["CNV/volume"])
    rows = rows_of(output)
    assert rows["DME/picture.png"]["file_xxh3"]
    assert rows["CNV/volume#frame-7"]["file_xxh3"] is None


SOP_CLASS, MODALITY = (0x0008, 0x0016, "UI"), (0x0008, 0x0060, "CS")
#: Objects of a study that are not pictures: the end of their SOP class, and how they are counted.
KINDS = {
    "88.22": "structured_report", "88.59": "key_object_selection", "11.1": "presentation_state",
    "481.3": "structure_set", "104.1": "encapsulated_document", "66.4": "segmentation",
    "9.1.1": "waveform",
}  # fmt: skip


def test_objects_of_dicom_that_are_no_pictures_are_ignored_and_counted_by_their_kind(tmp_path):
    files = {f"{c}/{k}.dcm": dicom_file(grey_pixels(k)) for k in range(2) for c in ("CNV", "DME")}
    for end in KINDS:
        data = dicom_file(grey_pixels(), {SOP_CLASS: f"1.2.840.10008.5.1.4.1.1.{end}"})
        # Most of them end before any tag of a picture.
        files[f"CNV/{end}"] = data if end == "66.4" else data[: data.index(b"\x28\0\x02\0US")]
    spectra = dicom_file(grey_pixels(), {SOP_CLASS: "1.3.12.2.1107.5.9.1"})
    files["DME/spectra"] = spectra[: spectra.index(b"\x28\0\x02\0US")]
    files["DME/report"] = Path(get_testdata_file("test-SR.dcm")).read_bytes()
    out = build_here(write_tree(tmp_path / "in", files), tmp_path / "out")
    found = Manifest.load(out)
    counted = Counter([*KINDS.values(), "structured_report", "raw_data"])
    assert (found.counts["examples"], found.counts["ignored"]) == (4, dict(sorted(counted.items())))
    assert found.rejects == {}


def test_two_modalities_in_one_class_are_told_and_one_can_be_chosen(tmp_path, capsys):
    files = {
        f"{c}/{name}{k}.dcm": dicom_file(grey_pixels(k).astype(np.uint16) * bits,
                                         {MODALITY: name, **window})
        for c in ("CNV", "DME")
        for name, bits, window in (("OPT", 1, {(0x0028, 0x1050, "DS"): "99",
                                               (0x0028, 0x1051, "DS"): "99"}), ("OP", 9, {}))
        for k in range(3 if name == "OPT" else 2)
    }  # fmt: skip
    folder = write_tree(tmp_path / "in", files | {"DME/plain.png": png()})
    told = "3 modalities, mixed in 2 of 2 classes: OPT 6, OP 4, none named 1; --modality OPT uses"
    both = build_here(folder, tmp_path / "both")
    assert told in capsys.readouterr().err
    assert any(told in note for note in Manifest.load(both).audit["notes"])
    one = build_here(folder, tmp_path / "one", "--modality=OPT")
    assert "warning" not in capsys.readouterr().err
    found = Manifest.load(one)
    assert (found.counts["examples"], found.counts["ignored"]) == (6, {"other_modality": 5})
    assert found.options["modality"] == ["OPT"]
    with pytest.raises(errors.UserError, match=r"--modality CT: the modalities .* are OPT 6, OP 4"):
        list_images(DirectorySource(folder), ListingOptions(modality=("CT",)))
    with pytest.raises(errors.UserError, match="--modality CT,OPT: the modalities"):
        list_images(DirectorySource(folder), ListingOptions(modality=("OPT", "CT")))


def test_files_that_say_that_text_is_burned_in_are_counted_in_a_note():
    yes, no = ({(0x0028, 0x0301, "CS"): said} for said in ("YES", "NO"))
    files = {
        f"{c}/{k}.dcm": dicom_file(grey_pixels(k), tags)
        for c in ("CNV", "DME")
        for k, tags in enumerate((yes, no, yes))
    }
    (note,) = notes_of(list_files(files))
    assert note.startswith("4 images are of DICOM files that say BurnedInAnnotation YES")


def test_a_file_that_is_named_like_a_frame_is_a_reject_that_says_so(tmp_path):
    files = {"CNV/a.dcm": volume(0, 3), "CNV/a.dcm#frame-3": volume(1, 1)}
    output = build_here(write_tree(tmp_path / "in", files), tmp_path / "out", *FLAGS)
    detail = "this name would be that of frame 3 of CNV/a.dcm; rename it"
    assert csv_rows(output / "rejects.csv") == [["CNV/a.dcm#frame-3", "path_conflict", detail]]
    assert len(rows_of(output)) == 3


def test_a_file_that_is_tiff_and_dicom_at_once_is_what_its_name_says(tmp_path):
    """PS3.10, section 7.1, leaves the first 128 bytes to such files."""
    both = b"II*\0" + volume(0, 2)[4:]
    files = {"a/volume.dcm": both, "a/volume.tif": both, "b/picture.png": png()}
    listing = list_files(files)
    assert [(ref.path, ref.frame) for ref in iterate_refs(listing.table)] == [
        ("a/volume.dcm", 1), ("a/volume.dcm", 2), ("a/volume.tif", None), ("b/picture.png", None)
    ]  # fmt: skip


@pytest.mark.slow
def test_many_headers_are_read_by_several_processes_with_the_same_result(folder, monkeypatch):
    wanted = list_images(DirectorySource(folder), ListingOptions())
    monkeypatch.setattr(frames, "_MOST_IN_ONE_PROCESS", 1)
    monkeypatch.setattr(frames, "_NUM_AT_ONCE", 2)
    monkeypatch.setattr(frames.os, "sched_getaffinity", lambda _: {0, 1})
    found = list_images(DirectorySource(folder), ListingOptions())
    assert found.table.equals(wanted.table)
    assert (found.ledger, found.frames) == (wanted.ledger, wanted.frames)

"""`--exclude`: what a table names is in no output, and the rest is built as without it."""

import re
import unicodedata

import numpy as np
import pytest
from builds import build_here, csv_rows, files_of, rows_of, run_build_here, write_csv
from dicom_files import dicom_file
from image_files import grey_pixels, jpeg, kermany_archive, write_zip

from tfrecord_io.format.manifest import Manifest

FLAGS = ("--num_shards=2", "--max_reject_fraction=0.9")

SCANS = {
    f"{split}/{label}/{label}-{patient}-{number}.jpeg": jpeg(4 * patient + 2 * number + place)
    for patient in range(100, 107)
    for split, numbers in (("train", (0, 1)), ("test", (2,)))
    for place, label in enumerate(("CNV", "NORMAL"))
    for number in numbers
}
#: Patient 100 has a class of their own, and files that cannot be used.
ODD = {
    "train/CNV/CNV-100-7.jpeg": b"",
    "train/CNV/link-100-1.jpeg": b"no image",
    "train/ONLY/ONLY-100-1.jpeg": jpeg(77),
    "train/CNV/CNV-100-8.nii": b"a volume",
}


def excluding(folder, rows):
    """Returns the flag for a table of these rows."""
    return f"--exclude={write_csv(folder / 'withdrawn.csv', rows)}"


@pytest.fixture
def as_if_never_there(tmp_path):
    """Returns a function that compares a build with `--exclude` to one of the other files.

    Shards, tables and rejects must be equal. The function returns the output of the first build.
    """

    def compare(files, is_gone, entries, *flags):
        rest = {path: data for path, data in files.items() if not is_gone(path)}
        found = []
        for name, some in (("all", files), ("rest", rest)):
            source = write_zip(tmp_path / f"{name}.zip", some)
            more = [] if some is rest else [excluding(tmp_path, entries)]
            build_here(source, tmp_path / f"{name}.out", *FLAGS, *flags, *more)
            made = files_of(tmp_path / f"{name}.out")
            found.append({name: data for name, data in made.items()
                          if re.search(r"tfrecord|examples|rejects", name)})  # fmt: skip
        assert found[0] == found[1]
        counts, wanted = (Manifest.load(tmp_path / f"{n}.out").counts for n in ("all", "rest"))
        assert counts["files"] - counts["excluded"] - wanted["files"] == sum(
            counts["ignored"].values()
        ) - sum(wanted["ignored"].values())
        return tmp_path / "all.out"

    return compare


def of_patients(*patients):
    return lambda path: re.search(rf"-({'|'.join(patients)})-\d", path) is not None


@pytest.mark.parametrize("is_anonymous", [False, True])
def test_a_patient_leaves_no_trace(is_anonymous, secret, as_if_never_there, capsys):
    files = {**SCANS, **ODD}
    rows = [{"patient": "100"}, {"patient": "101"}, {"patient": "5557"}]
    flags = ["--splits=patient", "--split_fractions=train=0.6,test=0.4"]
    flags += ["--patient_regex=-([0-9]+)-"]
    flags += [f"--anonymize={secret}"] if is_anonymous else []
    output = as_if_never_there(files, of_patients("100", "101"), rows, *flags)
    found = Manifest.load(output)
    assert found.counts["excluded"] == 6 + 6 + 4
    assert "ONLY" not in found.label_names
    kept = files_of(output) | (files_of(secret.parent) if is_anonymous else {})
    assert not [name for name, data in kept.items() if re.search(rb"-10[01]-|5557", data)]
    said = capsys.readouterr().err
    assert "1 of 3 rows of --exclude fit no patient and no file of the input (row 3)" in said
    assert "5557" not in said


@pytest.mark.parametrize(
    ("path", "gone"),
    [("train/CNV/CNV-100-0.jpeg", "train/CNV/CNV-100-0."), ("CNV-100-0", "train/CNV/CNV-100-0."),
     ("train/CNV/", "train/CNV/"), ("test", "test/")],
)  # fmt: skip
def test_a_path_is_that_of_a_file_or_folder_or_the_end_of_one(as_if_never_there, path, gone):
    as_if_never_there(SCANS, lambda name: gone in name, [{"path": path}])


def test_the_copy_of_an_excluded_file_in_a_second_tree_does_not_take_its_place(tmp_path):
    path = "train/CNV/CNV-100-0.jpeg"
    source = write_zip(tmp_path / "scans.zip", kermany_archive(SCANS))
    flag = excluding(tmp_path, [{"path": path}])
    found = Manifest.load(build_here(source, tmp_path / "out", flag))
    assert (found.counts["excluded"], found.counts["copies"]) == (1, len(SCANS))
    assert path not in str(rows_of(tmp_path / "out"))


@pytest.mark.parametrize("entry", [{"patient": "Müller 03"}, {"path": "CNV/Müller 03"}])
def test_a_name_is_excluded_in_each_of_its_forms(as_if_never_there, entry):
    names = [f"CNV/Müller 03/{form}" for form in ("NFC", "NFD")] + ["DME/Mo 3/NFC", "CNV/Noël/NFD"]
    files = {
        unicodedata.normalize(name[-3:], f"{name}.png"): jpeg(k) for k, name in enumerate(names)
    }
    rows = [{name: unicodedata.normalize("NFD", text) for name, text in entry.items()}]
    output = as_if_never_there(
        files, lambda path: "ller 03" in path, rows, "--layout=class/patient"
    )
    assert {row["patient"] for row in rows_of(output)} == {"Noël", "Mo 3"}


@pytest.mark.parametrize("form", ["the PatientID and its issuer", "the code"])
def test_a_patient_of_dicom_files_is_found_and_each_frame_counts(as_if_never_there, tmp_path, form):
    site = {"site": "Bern"} if "issuer" in form else {}
    files = {}
    for number in range(12):
        pixels = grey_pixels(number)
        many = np.stack([pixels, grey_pixels(number + 50)]) if number == 0 else pixels
        patient = {(0x0010, 0x0020, "LO"): f"p{number // 2}"}
        patient |= {(0x0010, 0x0021, "LO"): "Bern"} if site else {}
        files[f"{('CNV', 'DME')[number % 2]}/{number}.dcm"] = dicom_file(many, patient)
    name = "p0"
    if form == "the code":
        source = write_zip(tmp_path / "first.zip", files)
        rows = rows_of(build_here(source, tmp_path / "first.out", *FLAGS))
        name = next(row["patient"] for row in rows if row["path"].endswith("/1.dcm"))
    gone = ("CNV/0.dcm", "DME/1.dcm")
    output = as_if_never_there(files, lambda path: path in gone, [{"patient": name} | site])
    assert Manifest.load(output).counts["excluded"] == 3


def test_a_patient_of_a_site_is_another_one_at_another_site(tmp_path):
    rows = [
        {"path": f"{number}.png", "label": "ab"[number % 2], "patient": str(number // 8),
         "site": ("london", "zurich")[number % 4 // 2]}
        for number in range(16)
    ]  # fmt: skip
    rows[4]["label"] = ""  # a reject, whose row tells the patient
    source = write_zip(
        tmp_path / "scans.zip", {f"scans/{row['path']}": jpeg(k) for k, row in enumerate(rows)}
    )
    labels = f"--labels={write_csv(tmp_path / 'labels.csv', rows)}"
    flag = excluding(tmp_path, [{"patient": "0", "site": "london"}])
    output = build_here(source, tmp_path / "out", labels, flag, *FLAGS)
    people = {row["patient"] for row in rows_of(output)}
    assert people == {"zurich/0", "london/1", "zurich/1"}
    assert Manifest.load(output).counts["excluded"] == 4
    assert csv_rows(output / "rejects.csv") == []


@pytest.mark.parametrize(
    "table",
    ["name\nA\n", "patient\n\n", None, "patient\n" + "\n".join(map(str, range(100, 200)))],
    ids=["no column", "no row", "no file", "everybody"],
)
def test_a_table_that_cannot_be_used_is_wrong_usage(tmp_path, capsys, table):
    source, file = write_zip(tmp_path / "scans.zip", SCANS), tmp_path / "withdrawn.csv"
    if table:
        file.write_text(table)
    assert run_build_here(source, tmp_path / "out", f"--exclude={file}") == 2
    assert "--exclude" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

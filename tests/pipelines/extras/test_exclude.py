"""`--exclude`: a build without some patients and files is that of an input that never had them."""

import json
import re
import sys
import threading
import unicodedata

import numpy as np
import pytest
from builds import (
    build_here,
    csv_rows,
    files_of,
    prepare,
    rows_of,
    run_build_here,
    write_csv,
)
from dicom_files import dicom_file
from image_files import grey_pixels, jpeg, kermany_archive, write_zip
from listed import Listed, members_of

from pipelines.extras.exclude import read_exclusion
from pipelines.listing.listing import list_images
from pipelines.listing.options import ListingOptions
from tfrecord_io.format.manifest import Manifest

BY_PATIENT = ("--splits=patient", "--split_fractions=train=0.6,test=0.4")
FLAGS = ("--num_shards=2", "--max_reject_fraction=0.9")


def excluding(folder, rows):
    """Returns the flag for a table of these rows."""
    return f"--exclude={write_csv(folder / 'withdrawn.csv', rows)}"


def content(output):
    """Returns all files of a dataset but the page, without the counts of files."""
    files = files_of(output)
    del files["report.html"]
    manifest = json.loads(files["manifest.json"])
    for name in ("files", "excluded"):
        manifest["counts"].pop(name, None)
    return files | {"manifest.json": manifest}


@pytest.fixture
def as_if_never_there(tmp_path, capsys):
    """Returns a function that compares a build with `--exclude` to one of the other files and rows.

    They must be equal, and say the same. The function returns the output of the first, and `capsys`
    has its messages.
    """

    def compare(files, is_gone, entries, *flags, labels=(), without=None, write=write_csv):
        found, said = [], []
        capsys.readouterr()
        for name in ("all", "rest"):
            is_rest, folder = name == "rest", tmp_path / name
            folder.mkdir()
            kept = {path: data for path, data in files.items() if not (is_rest and is_gone(path))}
            more = [] if is_rest else [excluding(folder, entries)]
            if labels:
                table = write(folder / "labels.csv", without if is_rest else labels)
                more.append(f"--labels={table}")
            source = write_zip(folder / "scans.zip", kept)
            output = build_here(source, tmp_path / f"{name}.out", *FLAGS, *flags, *more)
            said.append(capsys.readouterr())
            shown = "".join([*said[-1], (output / "report.html").read_text()])
            # The folders, the speed, and the number of files of which some were excluded.
            lines = re.sub(rf"{tmp_path}\S*|[\d.,]+ images/s.*", "", shown).splitlines()
            told = [line for line in lines if not re.search(r"files?|excluded|%\|", line)]
            found.append((content(output), told))
        assert found[0] == found[1]
        counts, wanted = (Manifest.load(tmp_path / f"{n}.out").counts for n in ("all", "rest"))
        assert counts["files"] - counts["excluded"] == wanted["files"]
        sys.stderr.write(said[0].err)
        return tmp_path / "all.out"

    return compare


def of_patients(*patients):
    return lambda path: re.search(rf"-({'|'.join(patients)})-\d", path) is not None


SCANS = {
    f"{split}/{label}/{label}-{patient}-{number}.jpeg": jpeg(4 * patient + 2 * number + place)
    for patient in range(100, 107)
    for split, numbers in (("train", (0, 1)), ("test", (2,)))
    for place, label in enumerate(("CNV", "NORMAL"))
    for number in numbers
}
#: Patient 100 has scans in each class, and files that are not scans.
ODD = {
    "train/CNV/CNV-100-7.jpeg": b"no image",
    "train/CNV/CNV-100-8.txt": b"a letter",
    "CNV-100-9.jpeg": b"outside the folders of classes",
    "train/ONLY/ONLY-100-1.jpeg": jpeg(77),
}


def test_a_patient_leaves_no_trace(as_if_never_there, capsys):
    files = {**SCANS, **ODD}
    rows = [{"patient": "100"}, {"patient": "101"}]
    gone = of_patients("100", "101")
    output = as_if_never_there(files, gone, rows, *BY_PATIENT)
    counts = Manifest.load(output).counts
    assert counts["excluded"] == sum(map(gone, files)) > 8
    assert "ONLY" not in Manifest.load(output).label_names
    assert not [name for name, data in files_of(output).items() if b"-100-" in data]
    said = capsys.readouterr().err
    assert f"({counts['excluded']} excluded)" in said
    assert "--exclude" not in said
    assert f"{counts['excluded']}</td>" in (output / "report.html").read_text()


@pytest.mark.parametrize(
    ("entry", "gone"),
    [
        ({"patient": "100"}, "-100-"),
        ({"path": "train/CNV/CNV-100-0.jpeg"}, "CNV-100-0"),
        ({"path": "train/CNV/CNV-100-0_aug_3.jpeg"}, "CNV-100-0_aug"),
    ],
)
def test_copies_whose_names_do_not_tell_the_patient_go_with_their_source_but_not_it_with_them(
    as_if_never_there, entry, gone
):
    ends = ("_aug_3", " (2)", "-flip")
    copies = {f"train/CNV/CNV-100-0{end}.jpeg": jpeg(90 + n) for n, end in enumerate(ends)}
    files = {**SCANS, **copies}
    output = as_if_never_there(files, lambda path: gone in path, [entry])
    assert Manifest.load(output).counts["excluded"] == sum(gone in path for path in files) > 0


@pytest.mark.parametrize("given", ["NFC", "NFD"])
@pytest.mark.parametrize("by", ["patient", "path"])
def test_a_name_is_excluded_in_each_of_its_forms(as_if_never_there, given, by):
    files = {
        unicodedata.normalize(form, f"{label}/{patient}/{label}-{number}.png"): jpeg(place)
        for place, (label, patient, number, form) in enumerate(
            (label, patient, number, form)
            for label in ("CNV", "DME")
            for patient in ("Müller 03", "Noël 04")
            for number, form in enumerate(("NFC", "NFD"))
        )
    }
    names = (
        ["Müller 03"] if by == "patient" else ["CNV/Müller 03", "DME/Müller 03/DME-0.png", "DME-1"]
    )
    is_dme = by == "path"
    output = as_if_never_there(
        files,
        lambda path: "ller 03" in path or (is_dme and path.endswith("DME-1.png")),
        [{by: unicodedata.normalize(given, name)} for name in names],
        "--layout=class/patient",
    )
    assert {row["patient"] for row in rows_of(output)} == {"Noël 04"}


def test_the_copies_of_an_excluded_file_in_a_second_tree_do_not_take_its_place(as_if_never_there):
    files, path = kermany_archive(SCANS), "train/CNV/CNV-100-0.jpeg"
    output = as_if_never_there(
        files, lambda name: name.endswith(path), [{"path": f"OCT2017 /{path}"}]
    )
    assert Manifest.load(output).counts["excluded"] == 2
    assert f"OCT2017 /{path}" not in {row["path"] for row in rows_of(output)}


TABLE = [
    {
        "path": f"{number}.png",
        "label": "ab"[number % 2],
        "patient": "17" if number < 6 else f"{number}",
        "site": ("london", "zurich")[number % 3 == 0],
        "age": "unknown" if number == 1 else f"{number}",
    }
    for number in range(16)
]


def test_rows_of_a_table_go_with_their_files_so_that_a_column_may_become_numbers(as_if_never_there):
    files = {f"scans/{row['path']}": jpeg(number) for number, row in enumerate(TABLE)}
    # A row without a file, one without a label, and one that repeats another.
    labels = [*TABLE, {**TABLE[2], "path": "lost.png"}, {**TABLE[2], "path": "scans/2.png"}]
    labels += [{**TABLE[4], "path": "empty.png", "label": ""}]
    files["scans/empty.png"] = jpeg(99)

    def is_gone(row):
        return row["patient"] == "17" and row["site"] == "london"

    names = {row["path"] for row in labels if is_gone(row)}
    output = as_if_never_there(
        files,
        lambda path: path.rpartition("/")[2] in names,
        [{"patient": "17", "site": "london"}],
        labels=labels,
        without=[row for row in labels if not is_gone(row)],
    )
    assert isinstance(rows_of(output)[0]["age"], int)
    assert {row["patient"] for row in rows_of(output)} >= {"zurich/17"}
    assert csv_rows(output / "rejects.csv") == []


GONE = {"path": "gone.png", "label": "a", "patient": "M\xfcller", "site": "london", "age": "7"}


def in_windows_1252(path, rows):
    path.write_bytes(write_csv(path, rows).read_text().encode("cp1252"))
    return path


def in_lines(path, rows):
    (path := path.with_suffix(".jsonl")).write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize(
    ("cells", "write"),
    [({}, in_windows_1252), ({"age": "x"}, in_windows_1252), ({"label": ""}, in_windows_1252),
     ({"age": "NA"}, in_windows_1252), ({"m\xf6re": "only here"}, in_lines)],
)  # fmt: skip
def test_notes_on_a_table_are_those_of_one_without_the_rows(as_if_never_there, cells, write):
    rows = [{**row, "age": "5"} for row in TABLE] + [GONE | cells]
    files = {f"scans/{row['path']}": jpeg(k) for k, row in enumerate(rows)}
    entries, less = [{"patient": "M\xfcller", "site": "london"}], rows[:-1]
    as_if_never_there(
        files, lambda path: "gone" in path, entries, labels=rows, without=less, write=write
    )


@pytest.mark.parametrize(
    ("by", "cells", "flags"),
    [
        ("patient", {"label": "7"}, ("--label_columns=label,grey",)),
        ("patient", {"split": "a split!"}, ()),
        ("patient", {"site": ""}, ()),
        ("patient", {"label": "nonsense"}, ("--target=label",)),
        ("patient", {"more": "cells"}, ()),
        ("path", {"site": ""}, ()),
        ("path", {"more": "cells"}, ()),
        ("regex", {"split": "a split!"}, ()),
    ],
)
def test_a_fault_in_what_is_excluded_does_not_stop_the_build(tmp_path, capsys, by, cells, flags):
    rows = [{**row, "label": str(k % 2), "grey": "1", "split": "train"}
            for k, row in enumerate(TABLE)]  # fmt: skip
    rows.append({**rows[0], **GONE, **{name: cells[name] for name in cells if name != "more"}})
    files = {f"scans/{row['path']}": jpeg(number) for number, row in enumerate(rows)}
    source = write_zip(tmp_path / "scans.zip", files)
    table = write_csv(tmp_path / "labels.csv", rows)
    if "more" in cells:  # than there are columns
        table.write_text(table.read_text().rstrip() + ",Robert,7\n")
    labels = f"--labels={table}"
    assert run_build_here(source, tmp_path / "out", labels, *flags) in (1, 2)
    entry = {"patient": "M\xfcller"} | ({"site": "london"} if cells.get("site") != "" else {})
    excluded = excluding(tmp_path, [entry if by == "patient" else {"path": "gone.png"}])
    if by == "regex":
        excluded = "--exclude_regex=gone"
    output = build_here(source, tmp_path / "out", labels, *flags, excluded)
    assert len(rows_of(output)) == len(TABLE)
    assert csv_rows(output / "rejects.csv") == []
    assert "ller" not in (output / "manifest.json").read_text()


@pytest.mark.parametrize(
    "entry", [{"patient": "P-07"}, {"path": "CNV/P-07"}, {"path": "masks"}, {"patient": "in tags"}]
)
def test_a_fault_in_folders_that_are_excluded_does_not_stop_the_build(tmp_path, entry):
    def is_gone(path):
        return (
            "/P-07/" in path if not {"masks", "in tags"} & {*entry.values()} else "/masks/" in path
        )

    files = {
        f"{label}/P-{patient:02d}/{label}-{number}.png": jpeg(10 * patient + number)
        for patient in range(3, 9)
        for number, label in enumerate("AB" if patient != 7 else "")
    }
    files |= {f"CNV/P-07/{folder}/{n}.png": jpeg(n) for n in (1, 2) for folder in ("", "masks")}
    files = {path.replace("//", "/"): data for path, data in files.items()}
    if entry == {"patient": "in tags"}:
        tags = {(0x0010, 0x0020, "LO"): "in tags"}
        gone = [path for path in files if is_gone(path)]
        files |= {path[:-4]: dicom_file(grey_pixels(1), tags) for path in gone}
        files = {path: data for path, data in files.items() if path not in gone}
    source = write_zip(tmp_path / "scans.zip", files)
    assert run_build_here(source, tmp_path / "out") == 2
    output = build_here(source, tmp_path / "out", excluding(tmp_path, [entry]))
    assert {row["path"] for row in rows_of(output)} == {path for path in files if not is_gone(path)}


def test_what_cannot_be_read_for_another_reason_is_still_refused(tmp_path, capsys):
    source = write_zip(tmp_path / "scans.zip", SCANS)
    labels = tmp_path / "labels.csv"
    labels.write_text("path,label,patient\nSmith,John,1,2\n")
    flags = (f"--labels={labels}", excluding(tmp_path, [{"patient": "100"}]))
    assert run_build_here(source, tmp_path / "out", *flags) == 2
    said = capsys.readouterr().err
    assert "row 1 has 4 cells instead of 3" in said
    assert "Smith" not in said


@pytest.mark.parametrize("path", ["scans/2.png", "2.png", "/home/me/scans/2.png", "2"])
def test_a_path_is_that_of_the_input_or_its_end_or_that_of_a_row(as_if_never_there, path):
    rows = [{k: row[k] for k in ("path", "label", "patient")} for row in TABLE]
    files = {f"scans/{row['path']}": jpeg(number) for number, row in enumerate(rows)}
    is_listed = path.startswith("/")
    labels = [
        row | ({"path": f"/home/me/scans/{row['path']}"} if is_listed else {}) for row in rows
    ]
    # Only patient 17 has other scans.
    output = as_if_never_there(
        files,
        lambda name: name == "scans/2.png",
        [{"path": path}],
        labels=labels,
        without=labels[:2] + labels[3:],
    )
    assert Manifest.load(output).counts["excluded"] == 1


def test_a_folder_may_be_named_and_a_patient_who_is_one(as_if_never_there):
    files = {
        f"{label}/P{number}/{scan}.png": jpeg(10 * number + scan)
        for label, numbers in (("CNV", range(1, 7)), ("NORMAL", range(7, 13)))
        for number in numbers
        for scan in range(2)
    }
    files["CNV/P1/broken.png"] = b"?"
    files["CNV/P1/notes.txt"] = b"?"
    entries = [{"patient": "P1", "path": ""}, {"patient": "", "path": "NORMAL/P7"}]
    output = as_if_never_there(files, lambda path: "/P1/" in path or "/P7/" in path, entries)
    assert Manifest.load(output).counts["excluded"] == 6


@pytest.mark.parametrize(
    "form", ["the PatientID", "the PatientID of a site", "the code in examples.parquet"]
)
def test_a_patient_of_dicom_files_is_found_and_each_frame_counts(as_if_never_there, tmp_path, form):
    site = {"site": "Bern"} if "site" in form else {}
    files = {}
    for number in range(12):
        pixels = grey_pixels(number)
        many = np.stack([pixels, grey_pixels(number + 50)]) if number == 0 else pixels
        patient = {(0x0010, 0x0020, "LO"): f"p{number // 2}", (0x0008, 0x0060, "CS"): "OPT"}
        patient |= {(0x0010, 0x0021, "LO"): "Bern"} if site else {}
        files[f"{('CNV', 'DME')[number % 2]}/{number}.dcm"] = dicom_file(many, patient)
        # Another modality, and a report: files that are not listed.
        more = {"op": {(0x0008, 0x0060, "CS"): "OP"},
                "sr": {(0x0008, 0x0016, "UI"): "1.2.840.10008.5.1.4.1.1.88.11"}}  # fmt: skip
        for kind, tag in more.items() if number in (0, 5) else ():
            files[f"CNV/{number}{kind}.dcm"] = dicom_file(pixels, patient | tag)
    name = "p0"
    if "code" in form:
        (tmp_path / "first").mkdir()
        source = write_zip(tmp_path / "first" / "scans.zip", files)
        rows = rows_of(build_here(source, tmp_path / "first.out", *FLAGS))
        name = next(row["patient"] for row in rows if row["path"].endswith("/1.dcm"))
    output = as_if_never_there(
        files,
        lambda path: path.startswith("CNV/0") or path == "DME/1.dcm",
        [{"patient": name} | site],
        "--modality=OPT",
    )
    assert Manifest.load(output).counts["excluded"] == 5


class Store(Listed):
    """A store, whose reads end when as many as it takes at a time are under way, if it is armed."""

    num_parallel_reads = 16
    together = None

    def read(self, member):
        if self.together:
            self.together.wait()
        return super().read(member)


def test_the_tags_of_files_that_are_not_listed_are_read_as_many_at_a_time_as_a_store_takes(
    tmp_path,
):
    files = {}
    for number in range(16):
        person = {(0x0010, 0x0020, "LO"): f"p{number // 2}", (0x0008, 0x0060, "CS"): "OPT"}
        other = {(0x0008, 0x0060, "CS"): "OP"}
        if number // 2 == 3:  # the reports are those of one patient
            other = {(0x0008, 0x0016, "UI"): "1.2.840.10008.5.1.4.1.1.88.11"}
        for name, tags in (("scan", person), ("other", person | other)):
            path = f"{('CNV', 'DME')[number % 2]}/{name}{number}.dcm"
            files[path] = dicom_file(grey_pixels(number), tags)
    store, disk = (kind(members_of(files), files) for kind in (Store, Listed))
    table = write_csv(tmp_path / "withdrawn.csv", [{"patient": "p3"}])
    options = ListingOptions(modality=("OPT",))

    def list_and_arm(source, options, labels):
        is_first, store.together = store.together is None, None
        images = list_images(source, options, labels)
        # Sixteen other files are read next, for the patients in their tags.
        store.together = threading.Barrier(16, timeout=20) if is_first else None
        return images

    found = read_exclusion(table, None).list(list_and_arm, store, options, None)
    assert (found.ledger.excluded, found.ledger.ignored) == (4, {"other_modality": 14})
    wanted = read_exclusion(table, None).list(list_images, disk, options, None)
    assert found.table.equals(wanted.table)
    assert found.ledger == wanted.ledger


@pytest.mark.parametrize("of_dicom", [True, False])
@pytest.mark.parametrize("also_without", [True, False])
def test_a_patient_who_stays_at_a_site_is_told(tmp_path, capsys, of_dicom, also_without):
    table = []
    files = {}
    for number in range(6):
        site = "" if number == 0 and also_without else "Bern"
        path = f"{('CNV', 'DME')[number % 2]}/{number}{'.dcm' if of_dicom else '.jpeg'}"
        patient = {(0x0010, 0x0020, "LO"): f"p{number // 2}", (0x0010, 0x0021, "LO"): site}
        files[path] = dicom_file(grey_pixels(number), patient) if of_dicom else jpeg(number)
        table.append({"path": path, "label": path[:3], "patient": f"p{number // 2}", "site": site})
    source = write_zip(tmp_path / "scans.zip", files)
    flags = () if of_dicom else (f"--labels={write_csv(tmp_path / 'labels.csv', table)}",)
    gone = write_csv(tmp_path / "gone.csv", [{"patient": "p0"}])
    output = build_here(source, tmp_path / "out", *flags, *FLAGS, f"--exclude={gone}")
    assert Manifest.load(output).counts.get("excluded", 0) == also_without
    said = capsys.readouterr().err
    assert "row 1 of --exclude names a patient without a site" in said
    assert ("fit no patient" in said) == (not also_without)
    both = write_csv(tmp_path / "both.csv", [{"patient": "p0", "site": s} for s in ("", "Bern")])
    output = build_here(source, tmp_path / "all", *flags, *FLAGS, f"--exclude={both}")
    assert Manifest.load(output).counts["excluded"] == 2
    assert "without a site" not in capsys.readouterr().err


def test_no_name_of_an_excluded_patient_is_kept_of_an_anonymous_dataset(
    secret, as_if_never_there, capsys
):
    files = {**SCANS, **ODD}
    flags = (f"--anonymize={secret}", *BY_PATIENT)
    rows = [{"patient": "100"}, {"patient": "555"}]
    output = as_if_never_there(files, of_patients("100"), rows, *flags)
    kept = files_of(output) | files_of(secret.parent)
    assert len([name for name in kept if name.endswith(".parquet")]) == 2
    assert not [name for name, data in kept.items() if b"-100-" in data]
    said = capsys.readouterr().err
    assert "1 of 2 rows of --exclude fit no patient and no file of the input (row 2)" in said
    assert "555" not in said


def test_a_row_that_names_another_form_of_who_stays_is_told_without_the_name(tmp_path, capsys):
    source = write_zip(tmp_path / "scans.zip", {f"{c}/Müller{k}/{n}.png": jpeg(9 * k + n)
                       for c in ("CNV", "DME") for k in range(3) for n in (1, 2)})  # fmt: skip
    rows = [{"patient": "müller1", "path": ""}, {"patient": "", "path": "cnv/Müller2/1.png"}]
    flags = (*FLAGS, "--layout=class/patient", excluding(tmp_path, [*rows, {"patient": "x"}]))
    build_here(source, tmp_path / "out", *flags)
    said = capsys.readouterr().err
    assert "row 1, 2 of --exclude differs only in case" in said
    assert "fit no patient" in said
    assert "ller" not in said.partition("differs only")[2]


def test_the_plan_of_a_running_build_does_not_name_who_is_excluded(tmp_path):
    source, output = write_zip(tmp_path / "scans.zip", SCANS), tmp_path / "out"
    flags = (excluding(tmp_path, [{"patient": "100"}]), "--max_reject_fraction=0")
    with prepare(source, output, *flags):
        plans = files_of(output)
        assert b"-101-" in plans[".build/plan.arrow"]
        assert not [name for name, data in plans.items() if b"-100-" in data]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("name\nA\n", "needs a column patient"),
        (None, "could not be read: [Errno 2]"),
        ("patient\n" + "\n".join(map(str, range(100, 200))), "leaves out every file"),
    ],
    ids=["no column", "no file", "everybody"],
)
def test_a_table_that_cannot_be_used_is_wrong_usage(tmp_path, capsys, table, message):
    source, file = write_zip(tmp_path / "scans.zip", SCANS), tmp_path / "withdrawn.csv"
    if table:
        file.write_text(table)
    assert run_build_here(source, tmp_path / "out", f"--exclude={file}") == 2
    said = capsys.readouterr().err
    assert message in said
    assert ("listing the images" in said) == (message == "leaves out every file")
    assert not (tmp_path / "out").exists()

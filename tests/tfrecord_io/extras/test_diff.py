"""What differs between two versions of a dataset: images, their facts, and options."""

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builds import build_here, write_csv
from dataset_factory import change_json, flip, write_table
from image_files import jpeg, write_tree
from s3_server import BUCKET
from source_files import upload
from web_server import running_web

from tfrecord_io import Manifest
from tfrecord_io.__main__ import main


def row(number, patient, split="train", label="CNV"):
    return {"path": f"{number}.jpeg", "label": label, "split": split, "patient": patient}


OLD = [
    *(row(number, f"p{number // 2}") for number in range(6)),
    row(6, "p3", "test"),
    row(7, "p4", label="NORMAL"),
    row(8, "p5", "test", label="NORMAL"),
]


def build(folder, rows, *flags, seeds=None):
    """Builds a dataset of some rows; `seeds` has the pictures that are not those of the number."""
    names = [row["path"] for row in rows]
    scans = write_tree(
        folder / "scans",
        {name: jpeg((seeds or {}).get(name, int(name.split(".")[0]))) for name in names},
    )
    table = write_csv(folder / "labels.csv", rows)
    return build_here(scans, folder / "data", f"--labels={table}", *flags)


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    return build(tmp_path_factory.mktemp("old"), OLD)


@pytest.fixture(scope="module")
def new(tmp_path_factory):
    """Image 0 is gone, 9 is new, 1 has another label, 2 another patient, 4 another picture, and
    patient p3 and image 7 are in another split."""
    rows = [dict(row) for row in OLD[1:]] + [row(9, "p5", "test", label="NORMAL")]
    rows[0]["label"], rows[1]["patient"] = "NORMAL", "p9"
    rows[5]["split"], rows[6]["split"] = "train", "test"
    return build(tmp_path_factory.mktemp("new"), rows, "--seed=3", seeds={"4.jpeg": 99})


def diff(capsys, *words):
    """Returns the exit code of the command, and what it prints."""
    capsys.readouterr()  # what a build has printed
    code = main(["diff", *map(str, words)])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return code, printed.out, printed.err


def test_a_dataset_equals_one_of_the_same_images_from_another_folder(old, tmp_path, capsys):
    scans = shutil.copytree(old.parent / "scans", tmp_path / "scans")
    os.utime(scans / "1.jpeg", (1, 1))
    again = build_here(scans, tmp_path / "data", f"--labels={old.parent / 'labels.csv'}")
    for words in ((old, again), ("--data", old, again), (old, "--data", again)):
        assert diff(capsys, *words) == (0, f"{old} and {again} are equal\n", "")
    assert (
        diff(capsys, "--data", old)[2] == "error: expected two datasets, OLD and NEW; received 1\n"
    )


def test_it_says_of_each_kind_of_difference_how_many_images_have_it(old, new, capsys):
    code, out, _ = diff(capsys, old, new)
    assert code == 1
    lines = out.splitlines()
    assert lines[:-2] == [
        "added: 1 image (9.jpeg)",
        "  test: NORMAL 1",
        "removed: 1 image (0.jpeg)",
        "  train: CNV 1",
        "other label: 1 image (1.jpeg)",
        "  train: CNV → NORMAL 1",
        lines[6],
        "  test → train: CNV 1",
        "  train → test: NORMAL 1",
        "other patient: 1 image (2.jpeg)",
        "  train: CNV 1",
        "other pixels: 1 image (4.jpeg)",
        "  train: CNV 1",
        "moved to another split: 2 patients (p3, p4)",
    ]
    assert lines[6] in {f"other split: 2 images ({a}.jpeg, {b}.jpeg)" for a, b in ("67", "76")}
    assert lines[-2].startswith("option labels: ")
    assert lines[-1] == "option seed: 0 in OLD, 3 in NEW"


def test_as_json_it_has_every_image_with_both_sides(old, new, capsys):
    code, out, _ = diff(capsys, "--json", old, new)
    found = json.loads(out)
    assert (code, found["equal"], found["moved_patients"]) == (1, False, ["p3", "p4"])
    assert found["options"]["seed"] == [0, 3]
    assert found["counts"]["split"] == {"test → train": {"CNV": 1}, "train → test": {"NORMAL": 1}}
    (image,) = found["images"]["label"]
    assert image["path"] == "1.jpeg"
    assert (image["old"]["label"], image["new"]["label"]) == ("CNV", "NORMAL")
    assert image["old"]["pixels_xxh3"] == image["new"]["pixels_xxh3"]
    assert [image["path"] for image in found["images"]["removed"]] == ["0.jpeg"]


def test_augmented_copies_are_no_images(old, tmp_path, capsys):
    flags = f"--labels={old.parent / 'labels.csv'}", "--variants=1"
    more = build_here(old.parent / "scans", tmp_path / "data", *flags)
    code, out, _ = diff(capsys, old, more)
    assert code == 1
    assert [line.split(":")[0] for line in out.splitlines()] == [
        "option augmentation",
        "option variants",
    ]


def test_of_datasets_with_different_secrets_it_says_why_no_image_is_in_both(
    old, secret, tmp_path, capsys
):
    flags = f"--labels={old.parent / 'labels.csv'}", f"--anonymize={secret}"
    hidden = build_here(old.parent / "scans", tmp_path / "data", *flags)
    code, out, _ = diff(capsys, old, hidden)
    assert code == 1
    assert "added: 9 images" in out
    assert "note: no image is in both, because --anonymize" in out


def test_a_dataset_is_compared_by_its_url_too(old, new, s3, capsys):
    code, out, _ = diff(capsys, old, upload(new, f"s3://{BUCKET}/new"))
    assert (code, out) == diff(capsys, old, new)[:2]


def test_the_password_of_a_url_is_not_shown(old, capsys):
    with running_web() as web:
        web.serve(old)
        for file in web.files.values():
            file.login = "Basic bWU6cGFzc3dvcmQ="
        url = web.url("data").replace("http://", "http://me:password@")
        code, out, err = diff(capsys, "--json", old, url)
        assert (code, err) == (0, "")
        assert json.loads(out)["new"] == web.url("data")


def test_other_rejects_and_tables_are_differences_too(old, tmp_path, capsys):
    scans = shutil.copytree(old.parent / "scans", tmp_path / "scans")
    (scans / "broken.jpeg").write_bytes(b"?")
    table = write_csv(tmp_path / "labels.csv", [*OLD, row("broken", "p1")])
    flags = f"--labels={table}", "--max_reject_fraction=0.5"
    more = build_here(scans, tmp_path / "more", *flags)
    code, out, _ = diff(capsys, old, more)
    assert code == 1
    assert "rejected: not an image: 0 in OLD, 1 in NEW" in out.splitlines()
    files = json.loads(diff(capsys, "--json", old, more)[1])["files"]
    assert "rejects.csv" in files
    reworded = shutil.copytree(more, tmp_path / "reworded")
    (reworded / "rejects.csv").write_text("path,reason,detail\nother.jpeg,not_an_image,\n")
    aged = shutil.copytree(more, tmp_path / "aged")
    with_age = pq.read_table(more / "examples.parquet")
    write_table(aged / "examples.parquet", with_age.append_column("age", with_age["path"]))
    swapped = shutil.copytree(more, tmp_path / "swapped")
    names = Manifest.load(more).label_names
    change_json(swapped / "manifest.json", label_names=names[::-1])
    recounted = shutil.copytree(more, tmp_path / "recounted")
    counts = Manifest.load(more).counts
    change_json(recounted / "manifest.json", counts={**counts, "files": counts["files"] + 1})
    reread = shutil.copytree(more, tmp_path / "reread")
    change_json(reread / "train-00000-of-00001.json", rejects=[])
    for other, name in (
        (reworded, "rejects.csv"), (aged, "examples.parquet"), (swapped, "manifest.json"),
        (recounted, "manifest.json"), (reread, "train-00000-of-00001.json"),
    ):  # fmt: skip
        assert diff(capsys, more, other) == (1, f"other content: {name}\n", "")


def lose_a_column(table):
    write_table(table, pq.read_table(table).drop_columns("pixels_xxh3"))


def make_lists(table):
    rows = [row | {"label": [row["label"]]} for row in pq.read_table(table).to_pylist()]
    write_table(table, pa.Table.from_pylist(rows))


def lose_rows(table):
    write_table(table, pq.read_table(table)[1:])


SHARD = "train-00000-of-00001.tfrecord"


@pytest.mark.parametrize(
    ("name", "damage"),
    [("manifest.json", Path.unlink), ("examples.parquet", Path.unlink), ("", shutil.rmtree),
     ("examples.parquet", lose_a_column), ("examples.parquet", make_lists),
     ("examples.parquet", lose_rows), ("examples.parquet", flip), (SHARD, Path.unlink),
     (SHARD, flip), (SHARD, lambda path: path.write_bytes(path.read_bytes()[:-1]))],
)  # fmt: skip
def test_a_dataset_that_cannot_be_used_is_an_error_and_not_a_difference(
    old, tmp_path, capsys, name, damage
):
    other = shutil.copytree(old, tmp_path / "other")
    damage(other / name)
    for pair in ((old, other), (other, old)):
        code, out, err = diff(capsys, *pair)
        assert (code, out) == (2, "")
        assert err.startswith("error: ")

"""What a run has seen: its table, and no claim on a page that the table does not prove."""

import dataclasses
import stat
from pathlib import Path

import numpy as np
import pages
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builds import build_here
from dataset_factory import bare_manifest, change_column, change_json
from image_files import scan_tree, write_tree
from marked_images import metrics_of, regroup, train, write_marked_dataset

from tfrecord_io.format.groups import Groups
from train import evaluate
from train.data.dataset import Dataset, Part, Parts
from train.data.seen import NO_PATIENT, NO_PIXELS, Seen, expose, read_seen, seen_by


def words(folder):
    return pages.words((folder / "report.html").read_text())


def claims_something(folder):
    texts = ("no image with", "no patient of", "other patients")
    return any(text in words(folder) for text in texts)


def test_a_run_lists_what_it_was_trained_and_validated_on(
    class_data, class_run, tmp_path, monkeypatch
):
    table = pq.read_table(class_run / "seen.parquet")
    assert table.column_names == ["key", "pixels_xxh3", "group", "patient", "part"]
    examples = pq.read_table(class_data / "examples.parquet").to_pylist()
    used = (row for row in examples if row["split"] != "test")
    for row, example in zip(table.to_pylist(), used, strict=True):
        assert row.pop("part") == example["split"]
        assert row.items() <= example.items()
    monkeypatch.chdir(class_run / "export")
    for folder in (class_run, class_run / "export", Path()):
        assert len(read_seen(folder).images) == 110
    # That of an anonymous dataset is its owner's alone.
    Seen().write(tmp_path / "seen.parquet", is_private=True)
    assert stat.S_IMODE((tmp_path / "seen.parquet").stat().st_mode) == 0o600


def dataset_of(*rows, **options):
    """A dataset of which nothing is known but these rows of its table and its options."""
    names = ("key", "pixels_xxh3", "file_xxh3", "group", "patient", "site")
    columns = {name: pa.array([row.get(name) for row in rows], pa.string()) for name in names}
    facts = {"image_shape": (8, 8, 1), "options": options, "fingerprint": "one"}
    return Dataset(
        path="data",
        manifest=bare_manifest(["CNV"], splits={}, **facts),
        table=pa.table(columns),
        groups=Groups(names=columns["group"]),
        measured=(),
    )


def seen_in(dataset):
    """What a network has seen that was trained on all images of a dataset."""
    rows = np.arange(len(dataset.table))
    part = Part(name="train", splits=("train",), rows=rows)
    return seen_by(dataset, Parts(train=part, val=None, test=None), None, None)


def exposed(theirs, ours):
    """What is known of all images of a dataset, for a network that was trained on ours."""
    return expose(theirs, [(seen_in(ours), np.arange(len(theirs.table)))], is_measured=False)


@pytest.mark.parametrize(
    ("seen_row", "row", "is_seen"),
    [
        ({"pixels_xxh3": "a"}, {"pixels_xxh3": "a"}, True),
        ({"pixels_xxh3": "a"}, {"pixels_xxh3": "b"}, False),
        ({"file_xxh3": "a"}, {"file_xxh3": "a"}, True),
        ({"file_xxh3": "a"}, {"pixels_xxh3": "a"}, False),
        ({"group": "study:1"}, {"group": "study:1"}, True),
        ({"patient": None}, {"patient": None}, False),
        ({"patient": "london/17"}, {"patient": "london/17"}, True),
        ({"patient": "london/17"}, {"patient": "zurich/17"}, False),
        ({"patient": "Mu\u0308ller"}, {"patient": "M\u00fcller"}, True),
    ],
)
def test_an_image_is_seen_by_its_file_its_pixels_or_its_patient(seen_row, row, is_seen):
    found = exposed(dataset_of({"key": "2"} | row), dataset_of({"key": "1"} | seen_row))
    assert found.is_seen.tolist() == [is_seen]


def test_the_others_of_a_group_of_which_one_image_was_seen_are_seen():
    known = (("1", "a", "patient:5"), ("2", "b", "patient:5"), ("3", "c", "patient:6"))
    names = ("key", "pixels_xxh3", "group")
    rows = [dict(zip(names, each, strict=True)) for each in known]
    found = exposed(dataset_of(*rows), dataset_of({"key": "9", "pixels_xxh3": "a"}))
    assert found.is_seen.tolist() == [True, True, False]


SCAN = {"key": "1", "pixels_xxh3": "a", "group": "patient:5", "patient": "5"}
OTHER = {"key": "2", "pixels_xxh3": "b", "group": "patient:6", "patient": "6"}


@pytest.mark.parametrize(
    ("row", "facts", "claims", "doubt"),
    [
        (OTHER, {}, (NO_PIXELS, NO_PATIENT), ""),
        (OTHER | {"patient": None}, {}, (NO_PIXELS,), "have no patient"),
        (OTHER, {"anonymize": "code"}, (NO_PIXELS,), "name patients in another way"),
        (OTHER, {"patient_regex": "x(.)"}, (NO_PIXELS,), "name patients in another way"),
        (OTHER | {"site": "a"}, {}, (NO_PIXELS,), "name patients in another way"),
        (OTHER | {"pixels_xxh3": None}, {}, (NO_PATIENT,), "have no hash of the pixels"),
    ],
)
def test_a_page_claims_what_could_be_compared_and_doubts_the_rest(row, facts, claims, doubt):
    found = exposed(dataset_of(row, **facts), dataset_of(SCAN))
    assert (found.num_images, found.claims, bool(found.note)) == (0, claims, bool(doubt))
    assert doubt in found.note


def test_of_unknown_weights_nothing_is_claimed_and_what_several_have_seen_counts_once():
    def exposed_by(seen):
        return expose(dataset_of(OTHER), [(seen, np.array([0]))], is_measured=False)

    seen = seen_in(dataset_of(SCAN | {"patient": None}))
    found = exposed_by(dataclasses.replace(seen, unknown="who knows"))
    assert (found.claims, found.doubts[0]) == ((), "who knows")
    both = seen.after(seen).after(seen)
    assert (both.num_in("init"), len(both.images)) == (1, 3)
    assert "1 of the 1 images that it has seen have no patient" in exposed_by(both).note


# ---- evaluation, and the page of a run


def measure(run, data, output, *more):
    words = [f"--model={run}", f"--data={data}", f"--output={output}", "--bootstrap_samples=0"]
    return evaluate.main([*words, *more])


def test_of_the_split_that_was_trained_on_nothing_is_left(class_run, class_data, tmp_path, capsys):
    assert measure(class_run, class_data, tmp_path / "out", "--split=train") == 2
    assert "nothing is left of split 'train'" in capsys.readouterr().err
    assert measure(class_run, class_data, tmp_path / "out", "--split=train", "--include_seen") == 0
    found = metrics_of(tmp_path / "out")
    assert (found["num_examples"], found["seen_images"]) == (90, 90)
    assert not claims_something(tmp_path / "out")


def test_of_another_dataset_only_unseen_patients_are_measured(class_run, tmp_path):
    """The first four of its 20 test images are of two patients of the run's dataset."""
    other = tmp_path / "data"
    write_marked_dataset(other, num_examples={"val": 4, "test": 20})
    known = {"test-0": "train-0", "test-1": "val-1"}
    table = other / "examples.parquet"
    change_column(table, "patient", lambda names: [known.get(name, name) for name in names])
    change_column(table, "pixels_xxh3", lambda hashes: [each[::-1] for each in hashes])
    change_json(other / "manifest.json", fingerprint="1" * 64)
    regroup(other)
    assert measure(class_run, other, tmp_path / "out") == 0
    found, page = metrics_of(tmp_path / "out"), words(tmp_path / "out")
    assert (found["num_examples"], found["seen_images"], found["seen_patients"]) == (16, 4, 2)
    assert "4 further images of 2 patients were left out" in page
    assert f"{NO_PIXELS}, {NO_PATIENT}." in page
    # A run claims what its own table proves.
    assert metrics_of(class_run)["seen_images"] == 0
    assert f"it had seen {NO_PIXELS}, {NO_PATIENT}." in words(class_run)


def test_without_its_table_it_cannot_be_known_and_a_damaged_one_is_named(
    class_run, class_data, tmp_path, capsys
):
    (folder := tmp_path / "run").mkdir()
    (folder / "export").symlink_to(class_run / "export")
    (folder / "seen.parquet").write_bytes(b"PAR1")
    assert measure(folder, class_data, tmp_path / "out") == 2
    assert "seen.parquet is damaged" in capsys.readouterr().err
    (folder / "seen.parquet").unlink()
    assert measure(folder, class_data, tmp_path / "out") == 0
    found = metrics_of(tmp_path / "out")
    assert found["num_examples"] == 30
    assert any("cannot be known" in note for note in found["notes"])
    assert not claims_something(tmp_path / "out")


@pytest.mark.slow
def test_a_training_on_data_with_leaks_counts_them_and_says_so_from_its_start(tmp_path, capsys):
    files = scan_tree({"train": 12, "test": 4}, classes=("CNV", "NORMAL"))
    data = build_here(write_tree(tmp_path / "scans", files), tmp_path / "data", "--image_size=12")
    assert train(data, tmp_path / "run", epochs=1) == 0
    alarm = "2 patients are in more than one split"
    said = capsys.readouterr().out
    assert said.index(alarm) < said.index("epoch 1/1")
    found = metrics_of(tmp_path / "run")
    assert found["seen_patients"] == 2
    assert any(alarm in note for note in found["notes"])
    assert not claims_something(tmp_path / "run")

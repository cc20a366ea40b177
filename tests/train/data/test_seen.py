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
from marked_images import (
    metrics_of,
    regroup,
    train,
    write_marked_dataset,
)

from tfrecord_io.format.groups import Groups
from train import evaluate
from train.data.dataset import Dataset
from train.data.seen import Seen, collect, expose, exposure_of, read_seen, seen_by
from train.training.config import TrainConfig
from train.training.session import session_of

#: What no page may say unless the table proves it.
CLAIMS = ("no image with", "no patient of", "held out", "other patients")


def words(folder):
    return pages.words((folder / "report.html").read_text())


def measure(run, data, output, *more):
    words = [f"--model={run}", f"--data={data}", f"--output={output}", "--bootstrap_samples=0"]
    return evaluate.main([*words, *more])


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Other images; the first four of its 20 test images are of two patients of `class_data`."""
    path = tmp_path_factory.mktemp("other") / "data"
    write_marked_dataset(path, num_examples={"val": 4, "test": 20})
    known = {"test-0": "train-0", "test-1": "val-1"}
    table = path / "examples.parquet"
    change_column(table, "patient", lambda names: [known.get(name, name) for name in names])
    change_column(table, "pixels_xxh3", lambda hashes: [each[::-1] for each in hashes])
    change_json(path / "manifest.json", fingerprint="1" * 64)
    regroup(path)
    return path


# ---- the table


def test_a_run_lists_what_it_was_trained_and_validated_on(class_data, class_run):
    table = pq.read_table(class_run / "seen.parquet")
    assert table.column_names == ["key", "pixels_xxh3", "group", "patient", "part"]
    names = ("split", "key", "patient", "pixels_xxh3")
    expected = [
        {name: row[name] for name in names}
        for row in pq.read_table(class_data / "examples.parquet").to_pylist()
        if row["split"] != "test"
    ]
    found = [
        {name: row["part" if name == "split" else name] for name in names}
        for row in table.to_pylist()
    ]
    assert found == expected
    assert not list((class_run / "export").rglob("seen*"))


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
    return collect(dataset, {"train": np.arange(len(dataset.table))})


def sees(seen_row, *rows):
    return exposed(dataset_of(*rows), dataset_of(seen_row)).is_seen


def exposed(theirs, ours):
    """What is known of all images of a dataset, for a network that was trained on ours."""
    return expose(theirs, [(seen_in(ours), np.arange(len(theirs.table)))], is_measured=False)


IN_LONDON = {"patient": "london/17", "site": "london"}


@pytest.mark.parametrize(
    ("seen_row", "row", "is_seen"),
    [
        ({"pixels_xxh3": "a"}, {"pixels_xxh3": "a"}, True),
        ({"pixels_xxh3": "a"}, {"pixels_xxh3": "b"}, False),
        ({"file_xxh3": "a"}, {"file_xxh3": "a"}, True),
        ({"file_xxh3": "a"}, {"pixels_xxh3": "a"}, False),
        ({"key": "2"}, {"key": "2"}, False),
        ({"group": "study:1"}, {"group": "study:1"}, True),
        ({"patient": "17"}, {"patient": "17"}, True),
        ({"patient": None}, {"patient": None}, False),
        (IN_LONDON, {"patient": "17"}, True),
        ({"patient": "17"}, IN_LONDON, True),
        (IN_LONDON, IN_LONDON, True),
        (IN_LONDON, {"patient": "zurich/17", "site": "zurich"}, False),
        ({"patient": "Mu\u0308ller"}, {"patient": "M\u00fcller"}, True),
        ({"group": "patient:Mu\u0308ller"}, {"group": "patient:M\u00fcller"}, True),
        ({"patient": "a%2Fb/17", "site": "a/b"}, {"patient": "17"}, True),
        ({"patient": "17", "site": "london"}, {"patient": "17", "site": "zurich"}, False),
    ],
)
def test_a_patient_is_the_same_unless_both_sites_are_known_and_differ(seen_row, row, is_seen):
    assert sees({"key": "1"} | seen_row, {"key": "2"} | row).tolist() == [is_seen]


def test_the_others_of_a_group_of_which_one_image_was_seen_are_seen():
    rows = [
        {"key": "1", "pixels_xxh3": "a", "group": "patient:5"},
        {"key": "2", "pixels_xxh3": "b", "group": "patient:5"},
        {"key": "3", "pixels_xxh3": "c", "group": "patient:6"},
    ]
    assert sees({"key": "9", "pixels_xxh3": "a"}, *rows).tolist() == [True, True, False]


def test_the_table_of_an_anonymous_dataset_is_its_owners_alone(tmp_path):
    Seen().write(tmp_path / "seen.parquet", is_private=True)
    assert stat.S_IMODE((tmp_path / "seen.parquet").stat().st_mode) == 0o600


SCAN = {"key": "1", "pixels_xxh3": "a", "group": "patient:5", "patient": "5"}
OTHER = {"key": "2", "pixels_xxh3": "b", "group": "patient:6", "patient": "6"}
PIXELS, NAMES = "no image with the same pixels", "no patient of the same name"


@pytest.mark.parametrize(
    ("row", "facts", "claims", "doubt"),
    [
        (OTHER, {}, (PIXELS, NAMES), None),
        (OTHER | {"patient": None}, {}, (PIXELS,), "have no patient"),
        (OTHER, {"anonymize": "code"}, (PIXELS,), "name patients in another way"),
        (OTHER, {"patient_regex": "x(.)"}, (PIXELS,), "name patients in another way"),
        (OTHER | {"pixels_xxh3": None}, {}, (NAMES,), "have no hash of the pixels"),
    ],
)
def test_a_page_claims_what_could_be_compared_and_doubts_the_rest(row, facts, claims, doubt):
    found = exposed(dataset_of(row, **facts), dataset_of(SCAN))
    assert (found.num_images, found.claims) == (0, claims)
    assert doubt in found.note if doubt else not found.note


def test_of_unknown_weights_nothing_is_claimed():
    seen = dataclasses.replace(seen_in(dataset_of(SCAN)), unknown="who knows")
    found = expose(dataset_of(OTHER), [(seen, np.array([0]))], is_measured=False)
    assert (found.claims, found.doubts[0]) == ((), "who knows")


def test_what_several_networks_have_seen_counts_once():
    seen = seen_in(dataset_of(SCAN | {"patient": None}))
    both = seen.after(seen).after(seen)
    assert (both.num_in("init"), len(both.images)) == (1, 3)
    found = expose(dataset_of(OTHER), [(both, np.array([0]))], is_measured=False)
    assert "1 of the 1 images that it has seen have no patient" in found.note


def test_patients_of_whom_only_the_number_was_seen_may_be_of_another_hospital():
    found = exposed(dataset_of(OTHER | {"patient": "5"}), dataset_of(SCAN))
    assert (found.num_images, found.num_named) == (1, 1)
    assert "if these are patients of another hospital" in found.advice


# ---- evaluation


def test_of_the_split_that_was_trained_on_nothing_is_left(class_run, class_data, tmp_path, capsys):
    assert measure(class_run, class_data, tmp_path / "out", "--split=train") == 2
    assert "nothing is left of split 'train'" in capsys.readouterr().err
    assert measure(class_run, class_data, tmp_path / "out", "--split=train", "--include_seen") == 0
    assert "not an external one" in capsys.readouterr().out
    found = metrics_of(tmp_path / "out")
    assert (found["num_examples"], found["seen_images"]) == (90, 90)
    page = words(tmp_path / "out")
    assert "show a picture or a patient that the network has learned from" in page
    assert "watched during training" in page
    assert not any(claim in page for claim in CLAIMS)


def test_of_another_dataset_only_unseen_patients_are_measured(class_run, other, tmp_path, capsys):
    assert measure(class_run, other, tmp_path) == 0
    found, page = metrics_of(tmp_path), words(tmp_path)
    assert (found["num_examples"], found["seen_images"], found["seen_patients"]) == (16, 4, 2)
    said = capsys.readouterr().out
    assert "has seen 4 of the 20 images" in said
    assert "95 %" not in said
    assert "4 further images of 2 patients were left out" in page
    assert f"{PIXELS}, {NAMES}." in page


def test_without_its_table_it_cannot_be_known_and_a_damaged_one_is_named(
    class_run, other, tmp_path, capsys
):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "export").symlink_to(class_run / "export")
    (folder / "seen.parquet").write_bytes(b"PAR1")
    assert measure(folder, other, tmp_path / "out") == 2
    assert "seen.parquet is damaged" in capsys.readouterr().err
    (folder / "seen.parquet").unlink()
    assert measure(folder, other, tmp_path / "out") == 0
    assert "cannot be known" in capsys.readouterr().out
    found, page = metrics_of(tmp_path / "out"), words(tmp_path / "out")
    assert found["num_examples"] == 20
    assert any("cannot be known" in note for note in found["notes"])
    assert "It cannot be known whether the network has seen" in page
    assert not any(claim in page for claim in CLAIMS)


def test_the_export_in_the_folder_of_a_run_has_seen_what_the_run_has(class_run, monkeypatch):
    monkeypatch.chdir(class_run / "export")
    for folder in (class_run, class_run / "export", Path()):
        assert len(read_seen(folder).images) == 110


# ---- the page of a run


def test_a_run_claims_what_its_table_proves(class_run):
    found, page = metrics_of(class_run), words(class_run)
    assert f"with these {found['num_examples']} images" in page
    assert f"it had seen {PIXELS}, {NAMES}." in page
    assert found["seen_images"] == 0


def test_a_run_on_splits_that_share_patients_counts_them_and_claims_nothing(tmp_path):
    data = tmp_path / "data"
    write_marked_dataset(data, num_examples={"train": 30, "test": 10})
    # The first four test images are of two patients of the training split.
    shared = {"test-0": "train-0", "test-1": "train-1"}
    path = data / "examples.parquet"
    change_column(path, "patient", lambda names: [shared.get(name, name) for name in names])
    session = session_of(TrainConfig.of(data=str(data)))
    parts, dataset = session.plan.parts, session.data
    found = exposure_of(dataset, parts, seen_by(dataset, parts, None, None))
    assert (found.num_images, found.num_patients, found.is_measured) == (4, 2, True)


@pytest.mark.slow
def test_a_training_on_data_with_leaks_says_so_at_its_start_in_its_notes_and_on_its_page(
    tmp_path, capsys
):
    files = scan_tree({"train": 12, "test": 4}, classes=("CNV", "NORMAL"))
    data = build_here(write_tree(tmp_path / "scans", files), tmp_path / "data", "--image_size=12")
    assert train(data, tmp_path / "run", epochs=1) == 0
    alarm = (
        "the dataset's audit says: 2 patients are in more than one split; results will be too "
        "good; build with --splits patient"
    )
    said = capsys.readouterr().out
    assert said.index(f"warning: {alarm}") < said.index("epoch 1/1")
    assert alarm in metrics_of(tmp_path / "run")["notes"]
    assert alarm[1:] in words(tmp_path / "run")

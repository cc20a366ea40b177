import collections
import random
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from builds import build_here, read_csv, shards_of
from image_files import jpeg, write_tree, write_zip

from pipelines import errors
from pipelines.listing.images import Images, Ledger
from pipelines.listing.refs import OTHER, REF_SCHEMA
from pipelines.planning import splits
from pipelines.planning.splits import SplitOptions
from tfrecord_io.auditing import verify
from tfrecord_io.format.manifest import Manifest

CLASSES = ("CNV", "DME", "DRUSEN", "NORMAL")
FRACTIONS = {"train": 0.8, "val": 0.1, "test": 0.1}


def refs_of(rows):
    """Returns a table of references from (split, label, patient, index) rows."""
    facts = {"root": "OCT2017 ", "offset": 0, "stored_size": 1, "size": 1, "version": 0}
    rows = [
        {"path": f"{split}/{label}/{label}-{patient}-{index}.jpeg", "split": split, "label": label,
         "patient": patient, **facts}
        for split, label, patient, index in rows
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, REF_SCHEMA)


def population(num_patients):
    """Returns rows of patients with one to five images each, some under two classes."""
    draw = random.Random(0)
    rows = []
    for patient in range(num_patients):
        label = draw.choices(CLASSES, (37, 11, 9, 26))[0]
        for index in range(draw.choice((1, 1, 2, 3, 5))):
            other = draw.choice(CLASSES) if draw.random() < 0.05 else label
            rows.append(("train", other, str(100 + 7 * patient), index))
    return rows


def split_of_patients(refs):
    """Returns the set of splits of each patient."""
    found = collections.defaultdict(set)
    for row in refs.select(["patient", "split"]).to_pylist():
        found[row["patient"]].add(row["split"])
    return dict(found)


def shares(refs, label=None):
    rows = [r for r in refs.select(["split", "label"]).to_pylist() if label in (None, r["label"])]
    counts = collections.Counter(row["split"] for row in rows)
    return {name: counts[name] / len(rows) for name in FRACTIONS}


class Split(NamedTuple):
    refs: pa.Table
    dropped: pa.Table
    notes: list[str]


def apply(images, read_content=None, **options):
    """Returns the result for a table of references or rows of them."""
    refs = refs_of(images) if isinstance(images, list) else images
    read_content = read_content or (lambda refs: refs["path"].to_pylist())
    listed = Images(table=refs, ledger=Ledger())
    kept, dropped, notes = splits.assign_splits(listed, SplitOptions(**options), read_content)
    return Split(kept.table, dropped, notes)


def by_patient(images, **options):
    return apply(images, splits="patient", **options)


# ---- by patient


def test_every_patient_is_in_one_split_and_each_class_and_split_has_its_share_within_a_point():
    result = by_patient(population(8_000))
    assert all(len(names) == 1 for names in split_of_patients(result.refs).values())
    assert result.dropped.num_rows == 0
    assert shares(result.refs) == pytest.approx(FRACTIONS, abs=0.01)
    for label in CLASSES:
        assert shares(result.refs, label) == pytest.approx(FRACTIONS, abs=0.02)


def test_a_patient_keeps_its_split_in_every_version_and_moves_only_into_one_that_grows():
    rows = population(600)
    before = split_of_patients(by_patient(rows[: len(rows) // 2]).refs)
    after = split_of_patients(by_patient(rows).refs)
    assert {patient: after[patient] for patient in before} == before
    without = [row for row in rows if not row[2].endswith("7")]
    fewer = split_of_patients(by_patient(without).refs)
    assert 0 < len(fewer) < len(after)
    assert {patient: after[patient] for patient in fewer} == fewer
    other = [("test", "NORMAL", patient, index) for _, _, patient, index in reversed(rows)]
    assert split_of_patients(by_patient(other).refs) == after
    fractions = (("test", 0.2), ("val", 0.1), ("train", 0.7))
    larger = split_of_patients(by_patient(rows, split_fractions=fractions).refs)
    assert all(larger[patient] == {"test"} for patient, names in after.items() if "test" in names)


def test_the_split_of_a_name_never_changes_and_splits_are_even():
    found = splits.chosen_splits([str(number) for number in range(5000)], np.full(10, 0.1), 0)
    assert np.bincount(found) == pytest.approx(500, abs=80)
    place = 0.2134769542620345
    for bound, split in ((place - 1e-15, 1), (place + 1e-15, 0)):
        assert splits.chosen_splits(["1001666"], np.array([bound, 1 - bound]), 0) == [split]


def test_without_patients_files_of_one_content_stay_together_and_the_user_is_printed():
    rows = [("train", "CNV", None, index) for index in range(400)]
    content = {f"train/CNV/CNV-None-{index}.jpeg": str(index // 4) for index in range(400)}

    def read(refs):
        return [content[path] for path in refs["path"].to_pylist()]

    with pytest.raises(errors.UserError, match=r"no patient is known.*--splits file, which makes"):
        apply(rows, read, splits="patient")
    result = apply(rows, read, splits="file")
    together = collections.defaultdict(set)
    for row in result.refs.select(["path", "split"]).to_pylist():
        together[content[row["path"]]].add(row["split"])
    assert all(len(names) == 1 for names in together.values())
    assert "--patient_regex" in result.notes[0]


def in_studies(refs):
    """Returns the images with a study for every few of them."""
    studies = pa.array([f"s{row // 5}" for row in range(len(refs))])
    return refs.append_column(f"{OTHER}study", studies)


def splits_of_studies(refs):
    pairs = zip(refs[f"{OTHER}study"].to_pylist(), refs["split"].to_pylist(), strict=True)
    return collections.Counter(study for study, _ in set(pairs))


def test_without_patients_a_study_is_in_one_split_and_the_user_is_printed():
    refs = in_studies(refs_of([("train", "CNV", None, index) for index in range(400)]))
    result = by_patient(refs)
    assert [*splits_of_studies(result.refs).values()] == [1] * 80
    assert set(shares(result.refs)) == set(FRACTIONS)
    assert "split by studies, so a patient can be" in result.notes[0]


def test_a_study_of_unknown_patients_that_is_in_two_splits_is_a_leak():
    rows = [("test", "CNV", None, 0), *(("train", "CNV", None, index) for index in range(1, 10))]
    refs = in_studies(refs_of(rows))
    result = apply(refs, leaks="drop")
    assert [*splits_of_studies(result.refs).values()] == [1, 1]
    assert result.dropped.num_rows == 4
    assert result.dropped["detail"][0].as_py() == "study s0 is in test too"
    with pytest.raises(errors.RefusedError, match="1 patient is in several splits"):
        apply(refs, leaks="fail")


def test_a_dataset_without_a_test_split_is_printed_how_to_get_one():
    (note,) = apply([("train", "CNV", "1", 1)]).notes
    assert "there is no test split; --splits patient makes one" in note
    both = [("train", "CNV", "1", 1), ("test", "CNV", "2", 1)]
    assert apply(both).notes == []


# ---- what is in several splits


LEAKY = [
    ("train", "CNV", "1", 1),
    ("train", "DME", "1", 2),
    ("val", "CNV", "1", 3),
    ("train", "CNV", "2", 1),
    ("test", "NORMAL", "2", 2),
    ("val", "NORMAL", "2", 3),
    ("train", "NORMAL", "3", 1),
    ("test", "NORMAL", "4", 1),
    ("train", "NORMAL", None, 1),
    ("test", "NORMAL", None, 2),
]


def test_drop_keeps_a_patient_in_the_most_protected_split_alone():
    result = apply(LEAKY, leaks="drop")
    kept = [tuple(row.values()) for row in result.refs.select(["split", "patient"]).to_pylist()]
    assert kept == [
        ("val", "1"), ("test", "2"), ("train", "3"), ("test", "4"), ("train", None), ("test", None),
    ]  # fmt: skip
    assert [tuple(row.values()) for row in result.dropped.to_pylist()] == [
        (f"OCT2017 /{path}", f"patient_in_{split}", f"patient {patient} is in {split} too")
        for path, split, patient in (
            ("train/CNV/CNV-2-1.jpeg", "test", 2),
            ("val/NORMAL/NORMAL-2-3.jpeg", "test", 2),
            ("train/CNV/CNV-1-1.jpeg", "val", 1),
            ("train/DME/DME-1-2.jpeg", "val", 1),
        )
    ]


def test_fail_names_the_splits_and_the_ways_out():
    with pytest.raises(errors.BuildError, match=r"1 in test and train and val, .*--splits patient"):
        apply(LEAKY, leaks="fail")
    clean = [row for row in LEAKY if row[2] not in ("1", "2")]
    assert apply(clean, leaks="fail").refs.num_rows == 4


def test_a_kept_split_stays_and_its_patients_leave_the_others():
    result = apply(LEAKY, keep_split="test")
    assert [r["reason"] for r in result.dropped.to_pylist()] == ["patient_in_test"] * 2
    assert split_of_patients(result.refs)["1"] == {"train", "val"}
    with pytest.raises(errors.UserError, match="no such split, it has test, train, val"):
        apply(LEAKY, keep_split="holdout")


def test_a_kept_split_stays_while_the_rest_is_split_anew():
    rows = population(400)
    rows = [("test" if int(row[2]) % 5 == 0 else "train", *row[1:]) for row in rows]
    rows.append(("train", "CNV", rows[0][2] if int(rows[0][2]) % 5 == 0 else "105", 99))
    refs = refs_of(rows)
    result = apply(refs, splits="patient", keep_split="test")
    of_test = {r["path"] for r in refs.to_pylist() if r["split"] == "test"}
    assert {r["path"] for r in result.refs.to_pylist() if r["split"] == "test"} == of_test
    assert all(len(names) == 1 for names in split_of_patients(result.refs).values())
    left = collections.Counter(r["split"] for r in result.refs.to_pylist())
    assert left["val"] / (left["val"] + left["train"]) == pytest.approx(1 / 9, abs=0.04)


# ---- through the build


@pytest.fixture(scope="module")
def leaky_tree(tmp_path_factory):
    """Twelve patients with four images each, of whom every second has some in test."""
    files = {}
    for number in range(48):
        patient, index = number // 4, number % 4
        split = "test" if patient % 2 and index == 3 else "train"
        label = CLASSES[patient % 4]
        files[f"{split}/{label}/{label}-{patient}-{index}.jpeg"] = jpeg(number, 40, 48)
    return write_tree(tmp_path_factory.mktemp("leaky") / "scans", files)


def test_a_build_that_drops_leaks_lists_and_counts_them(leaky_tree, tmp_path):
    output = build_here(leaky_tree, tmp_path / "out", "--leaks=drop")
    found = Manifest.load(output)
    assert found.counts["dropped"] == {"patient_in_test": 18}
    assert found.counts["files"] == 48 == found.counts["examples"] + 18
    reasons = [row["reason"] for row in read_csv(output / "dropped.csv")]
    assert reasons == ["patient_in_test"] * 18
    assert found.audit["measures"]["patients_in_several_splits"] == 0
    assert verify.verify(output) == []


def test_a_build_that_must_not_leak_fails_before_it_decodes(leaky_tree, tmp_path):
    for _ in range(2):  # the second finds the complete dataset wanting
        with pytest.raises(errors.BuildError, match="6 patients are in several splits"):
            build_here(leaky_tree, tmp_path / "out", "--leaks=fail", "--image_size=64")
        assert not list(tmp_path.glob("out/*.tfrecord")) or Manifest.load(tmp_path / "out")
        build_here(leaky_tree, tmp_path / "out", "--image_size=64")


def test_without_patients_the_build_groups_by_content_in_a_folder_as_in_a_zip(tmp_path):
    files = {f"CNV/scan{number}.jpeg": jpeg(number // 3) for number in range(30)}
    files |= {f"DME/scan{number}.jpeg": jpeg(100 + number // 3) for number in range(30)}
    folder = write_tree(tmp_path / "scans", files)
    archive = write_zip(tmp_path / "scans.zip", files)
    flags = ["--splits=auto", "--split_fractions=train=0.6,test=0.4", "--name=scans"]
    first = build_here(folder, tmp_path / "a", *flags)
    second = build_here(archive, tmp_path / "b", *flags)
    assert Manifest.load(first).audit["measures"]["duplicate_pictures_across_splits"] == 0
    assert shards_of(first) == shards_of(second)
    assert Manifest.load(first).options["splits"] == "file"

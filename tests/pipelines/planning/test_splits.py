import collections
import random
import types

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from builds import build_here, shards_of
from image_files import jpeg, write_tree, write_zip

from pipelines import errors
from pipelines.listing.images import Images, Ledger
from pipelines.listing.refs import OTHER, REF_SCHEMA
from pipelines.planning import splits
from pipelines.planning.splits import SplitOptions
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


def splits_by(refs, column):
    """Returns the splits of each patient, or of each value of another column."""
    found = collections.defaultdict(set)
    for name, split in zip(refs[column].to_pylist(), refs["split"].to_pylist(), strict=True):
        found[name].add(split)
    return dict(found)


def are_whole(groups):
    """Returns whether each group is in one split."""
    return all(len(names) == 1 for names in groups.values())


def shares(refs, label=None):
    rows = [r for r in refs.select(["split", "label"]).to_pylist() if label in (None, r["label"])]
    counts = collections.Counter(row["split"] for row in rows)
    return {name: counts[name] / len(rows) for name in FRACTIONS}


def apply(images, read_content=None, **options):
    """Returns the result for a table of references or rows of them."""
    refs = refs_of(images) if isinstance(images, list) else images
    read_content = read_content or (lambda refs: refs["path"].to_pylist())
    listed = Images(table=refs, ledger=Ledger())
    kept, dropped, notes = splits.assign_splits(listed, SplitOptions(**options), read_content)
    return types.SimpleNamespace(refs=kept.table, dropped=dropped, notes=notes)


def by_patient(rows, **options):
    """Returns the splits of each patient."""
    return splits_by(apply(rows, splits="patient", **options).refs, "patient")


def test_every_patient_is_in_one_split_and_each_class_and_split_has_its_share_within_a_point():
    result = apply(population(8_000), splits="patient")
    assert are_whole(splits_by(result.refs, "patient"))
    assert result.dropped.num_rows == 0
    assert shares(result.refs) == pytest.approx(FRACTIONS, abs=0.01)
    for label in CLASSES:
        assert shares(result.refs, label) == pytest.approx(FRACTIONS, abs=0.02)


def test_a_patient_keeps_its_split_in_every_version_and_moves_only_into_one_that_grows():
    rows = population(600)
    after = by_patient(rows)
    for fewer in (rows[: len(rows) // 2], [row for row in rows if not row[2].endswith("7")]):
        found = by_patient(fewer)
        assert 0 < len(found) < len(after)
        assert found.items() <= after.items()
    other = [("test", "NORMAL", patient, index) for _, _, patient, index in reversed(rows)]
    assert by_patient(other) == after
    larger = by_patient(rows, split_fractions=(("test", 0.2), ("val", 0.1), ("train", 0.7)))
    assert all(larger[patient] == {"test"} for patient, names in after.items() if "test" in names)


def test_the_split_of_a_name_never_changes_and_splits_are_even():
    found = splits.chosen_splits([str(number) for number in range(5000)], np.full(10, 0.1), 0)
    assert np.bincount(found) == pytest.approx(500, abs=80)
    place = 0.2134769542620345
    for bound, split in ((place - 1e-15, 1), (place + 1e-15, 0)):
        assert splits.chosen_splits(["1001666"], np.array([bound, 1 - bound]), 0) == [split]


def test_without_patients_files_of_one_content_stay_together_and_a_note_says_so():
    rows = [("train", "CNV", None, index) for index in range(400)]
    refs = refs_of(rows).append_column("content", pa.array([str(n // 4) for n in range(400)]))

    def read(refs):
        return refs["content"].to_pylist()

    with pytest.raises(errors.UserError, match="--splits file"):
        apply(refs, read, splits="patient")
    result = apply(refs, read, splits="file")
    assert are_whole(splits_by(result.refs, "content"))
    assert result.notes[0].startswith("400 of 400 images have no patient")
    assert "split by file, " in result.notes[0]
    assert result.notes[1].startswith("split by file with seed 0")
    mixed = apply([*rows, *population(9)], splits="patient").notes
    assert "split by file, " in mixed[0]
    assert mixed[1].startswith("split by group with seed 0")


def test_without_patients_a_study_is_in_one_split():
    study, rows = f"{OTHER}study", [("test", "CNV", None, 0)]
    rows += [("train", "CNV", None, index) for index in range(1, 400)]
    studies = pa.array([f"s{row // 5}" for row in range(len(rows))])
    refs = refs_of(rows).append_column(study, studies)
    result = apply(refs, splits="patient")
    assert are_whole(splits_by(result.refs, study))
    assert set(shares(result.refs)) == set(FRACTIONS)
    assert "studies" in result.notes[0]
    result = apply(refs, leaks="drop")
    assert are_whole(splits_by(result.refs, study))
    assert result.dropped["detail"].to_pylist() == ["study s0 is in test too"] * 4
    with pytest.raises(errors.RefusedError, match="1 patient is in several splits"):
        apply(refs, leaks="fail")


def test_any_seed_is_taken_and_dropping_alone_changes_what_is_built():
    assert SplitOptions(splits="file", split_seed=2**63 - 1).identity()["split_seed"] == 2**63 - 1
    decided = {leaks: SplitOptions(leaks=leaks).identity() for leaks in ("keep", "drop", "fail")}
    assert decided["keep"] == decided["fail"] == decided["drop"] | {"leaks": "keep"}
    assert decided["drop"]["leaks"] == "drop"


LEAKY = [
    *(("train", "CNV", "1", 1), ("train", "DME", "1", 2), ("val", "CNV", "1", 3)),
    *(("train", "CNV", "2", 1), ("test", "NORMAL", "2", 2), ("val", "NORMAL", "2", 3)),
    *(("train", "NORMAL", "3", 1), ("test", "NORMAL", "4", 1)),
    *(("train", "NORMAL", None, 1), ("test", "NORMAL", None, 2)),
]


def test_a_patient_stays_in_the_most_protected_split_alone_or_the_build_is_refused():
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
    with pytest.raises(errors.RefusedError, match=r"1 in test and train and val, .*--splits"):
        apply(LEAKY, leaks="fail")
    clean = [row for row in LEAKY if row[2] not in ("1", "2")]
    assert apply(clean, leaks="fail").refs.num_rows == 4


@pytest.mark.parametrize(
    ("kept", "num_left_out", "still_leaked"),
    [("test", 2, {"1"}), ("val", 4, set()), ("train", 3, set())]
)  # fmt: skip
def test_a_kept_split_stays_and_its_patients_leave_the_others(kept, num_left_out, still_leaked):
    result = apply(LEAKY, keep_split=kept)
    assert result.dropped["reason"].to_pylist() == [f"patient_in_{kept}"] * num_left_out
    found = splits_by(result.refs, "patient")
    assert {name for name in found if name and len(found[name]) > 1} == still_leaked


def test_a_kept_split_stays_while_the_rest_is_split_anew():
    rows = population(400)
    rows = [("test" if int(row[2]) % 5 == 0 else "train", *row[1:]) for row in rows]
    rows.append(("train", "CNV", "105", 99))  # of a patient of test
    result = apply(rows, splits="patient", keep_split="test")

    def of_test(refs):
        return refs.filter(pc.equal(refs["split"].cast(pa.string()), "test"))["path"]

    assert of_test(result.refs) == of_test(refs_of(rows))
    assert are_whole(splits_by(result.refs, "patient"))
    left = collections.Counter(result.refs["split"].to_pylist())
    assert left["val"] / (left["val"] + left["train"]) == pytest.approx(1 / 9, abs=0.04)


def test_without_patients_the_build_groups_by_content_in_a_folder_as_in_a_zip(tmp_path):
    names = [f"{label}/scan{number}.jpeg" for label in ("CNV", "DME") for number in range(30)]
    files = {name: jpeg(place // 3) for place, name in enumerate(names)}
    flags = ["--splits=auto", "--split_fractions=train=0.6,test=0.4", "--name=scans"]
    first = build_here(write_tree(tmp_path / "scans", files), tmp_path / "a", *flags)
    second = build_here(write_zip(tmp_path / "scans.zip", files), tmp_path / "b", *flags)
    assert Manifest.load(first).audit["measures"]["duplicate_pictures_across_splits"] == 0
    assert shards_of(first) == shards_of(second)
    assert Manifest.load(first).options["splits"] == "file"

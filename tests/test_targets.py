"""Datasets of a number or of a grade for each image, from the table to the card."""

import json
import shutil
import struct

import numpy as np
import pyarrow.parquet as pq
import pytest
from builds import IN_MEMORY
from hypothesis import given
from hypothesis import strategies as st
from image_files import png, under, write_tree
from pages import Page

import tfrecord_io
from pipelines import build_tfrecords
from tfrecord_io import schema, show, verify
from tfrecord_io.auditing import audit
from tfrecord_io.kinds.grades import GRADES
from tfrecord_io.kinds.numbers import NUMBER, number_text, ranges_of
from tfrecord_io.reading import tfds_metadata


@pytest.mark.parametrize(
    ("cell", "text"),
    [("3.50", "3.5"), (" 1e3", "1000"), ("-0", "0"), ("-7", "-7"), ("1e39", None), ("inf", None),
     ("nan", None), ("3,5", None), ("n/a", None), ("1_000", None), ("１２", None)],
)  # fmt: skip
def test_equal_numbers_have_the_same_text_and_what_is_not_finite_has_none(cell, text):
    assert number_text(cell) == text


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_text_of_a_number_stands_for_its_float32(value):
    (vector,) = NUMBER.vectors([number_text(str(value))], ["ef"])
    assert vector == [np.float32(value)]


def test_ranges_hold_about_as_many_numbers_each_and_equal_numbers_stay_together():
    names, codes = ranges_of(np.arange(12, dtype=np.float32) / 2)
    assert names == ("0 to 1", "1.5 to 2.5", "3 to 4", "4.5 to 5.5")
    assert np.bincount(codes).tolist() == [3, 3, 3, 3]
    names, codes = ranges_of(np.array([5, 0, 0, 0, 0, 5], np.float32))
    assert names == ("0", "5")
    assert codes.tolist() == [1, 0, 0, 0, 0, 1]


def test_patients_with_many_different_numbers_are_balanced_by_their_ranges():
    texts, codes = NUMBER.classes_of(["1", "30", "2", "40"], np.array([0, 1, 2, 3, 1, 0]))
    assert texts == ("1", "2", "30 to 40")
    assert codes.tolist() == [0, 2, 1, 2, 2, 0]


def test_a_record_holds_the_number():
    layout = tfrecord_io.RecordLayout(image_shape=(2, 2, 1), num_classes=1, label_kind=NUMBER)
    key = tfrecord_io.image_key("a")
    record = layout.encode_record(bytes(4), np.array([-1.5]), key)
    slot = layout.features["label"]
    assert struct.unpack("<f", record[slot.offset : slot.offset + slot.length]) == (-1.5,)
    for wrong in (np.array([np.nan]), np.array([1.0, 2.0])):
        with pytest.raises(ValueError, match="a label of 1 values, one finite number"):
            layout.encode_record(bytes(4), wrong, key)


# ---- the command


def build(source, output, *flags):
    return build_tfrecords.main(
        ["--source=directory", f"--input={source}", f"--output={output}", "--name=heart",
         "--image_size=64", IN_MEMORY, *flags]
    )  # fmt: skip


def write_table(path, rows):
    path.write_text("\n".join(["path;patient;ef;grade", *(";".join(row) for row in rows), ""]))
    return path


#: Image k is of patient k // 2 and has the number 20 + k / 2. Images 0 and 22 are the same picture.
#: Of three more the number is empty, text, and too large.
ROWS = [
    (f"{k}.png", str(k // 2), f"{20 + k / 2:.2f}", ("low", "mid", "high")[k % 3]) for k in range(24)
] + [(f"{24 + k}.png", "99", cell, "unclear") for k, cell in enumerate(("", "high", "1e40"))]
NUMBERS = {path: float(cell) for path, _, cell, _ in ROWS[:24]}


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("targets")
    files = {f"{k}.png": png(0 if k == 22 else k, 64, 64) for k in range(27)}
    return write_tree(folder / "scans", files), write_table(folder / "table.csv", ROWS)


@pytest.fixture(scope="module")
def dataset(scans, tmp_path_factory):
    source, table = scans
    output = tmp_path_factory.mktemp("number") / "out"
    flags = [f"--labels={table}", "--target=ef", "--splits=patient", "--max_reject_fraction=0.2",
             "--split_fractions=train=0.6,test=0.4", "--variants=1"]  # fmt: skip
    assert build(source, output, *flags) == 0
    return source, output, flags


def test_the_manifest_names_the_number_in_the_format_that_needs_it(dataset):
    _, output, _ = dataset
    content = json.loads((output / "manifest.json").read_text())
    assert content["format_version"] == content["options"]["format_version"] == 2
    assert content["label_kind"] == content["options"]["label_kind"] == "number"
    assert content["label_names"] == content["options"]["classes"] == ["ef"]
    manifest = tfrecord_io.Manifest.load(output)
    assert tfrecord_io.Manifest.from_json(manifest.to_json()).to_json() == manifest.to_json()
    for split in manifest.splits.values():
        assert split.label_counts == (split.num_examples,)


def test_the_reader_gives_the_number_of_each_image(dataset):
    _, output, _ = dataset
    table = pq.read_table(output / "examples.parquet").to_pylist()
    path_of = {row["key"]: row["path"] for row in table}
    found = {}
    for split in ("train", "test"):
        for _, labels, keys in tfrecord_io.make_batches(
            output, split=split, batch_size=5, shuffle=False, with_keys=True
        ):
            assert labels.shape == (len(keys), 1)
            for key, (number,) in zip(keys, labels.tolist(), strict=True):
                found.setdefault(path_of[bytes(key).decode()], set()).add(number)
    assert found == {path: {number} for path, number in NUMBERS.items()}
    assert {row["path"]: float(row["label"]) for row in table} == NUMBERS
    assert {row["grade"] for row in table} == {"low", "mid", "high"}


def test_cells_without_a_finite_number_are_rejects_with_their_reason(dataset, tmp_path, capsys):
    source, output, flags = dataset
    manifest = tfrecord_io.Manifest.load(output)
    assert manifest.rejects == {"no_label": 1, "not_a_number": 2}
    assert (
        "25.png,not_a_number,row 26 of table.csv has 'high'" in (output / "rejects.csv").read_text()
    )
    assert build(source, tmp_path / "out", *flags, "--max_reject_fraction=0.1") == 1
    assert "2 not_a_number, 1 no_label" in capsys.readouterr().err


def test_verify_finds_nothing_wrong_and_the_same_command_nothing_to_do(dataset, capsys):
    source, output, flags = dataset
    assert verify.verify(output, source_input=source) == []
    assert build(source, output, *flags) == 0
    assert "is complete" in capsys.readouterr().out


def test_a_number_that_is_not_finite_is_found(dataset, tmp_path):
    shutil.copytree(dataset[1], tmp_path / "out")
    manifest = tfrecord_io.Manifest.load(tmp_path / "out")
    layout = manifest.layout
    shard = tmp_path / "out" / manifest.split("train").shards[0].name
    content = bytearray(shard.read_bytes())
    place, end = layout.features["label"].offset, layout.stride - schema.FOOTER_LENGTH
    content[place : place + 4] = struct.pack("<f", np.inf)
    crc = schema.masked_crc32c(content[schema.HEADER_LENGTH : end])
    content[end : layout.stride] = struct.pack("<I", crc)
    shard.write_bytes(content)
    messages = [finding.message for finding in verify.verify(tmp_path / "out")]
    assert any("[inf] is not one finite number" in message for message in messages)


def test_the_audit_describes_the_numbers_and_finds_one_picture_under_two_of_them(dataset):
    found = audit.audit(dataset[1])
    table = pq.read_table(dataset[1] / "examples.parquet").to_pylist()
    target = found.measures["target"]
    assert target["name"] == "ef"
    for split, described in target["splits"].items():
        numbers = [
            float(row["label"]) for row in table if row["split"] == split and not row["variant"]
        ]
        assert described["images"] == len(numbers)
        assert described["mean"] == pytest.approx(np.mean(numbers))
        assert described["std"] == pytest.approx(np.std(numbers))
        assert (described["min"], described["max"]) == (min(numbers), max(numbers))
    (conflict,) = [f for f in found.findings if f.code == "label_conflict"]
    assert conflict.count == 1
    assert conflict.listed[0]["labels"] == "20, 31"
    assert "different numbers" in conflict.detail
    assert found.measures["shortcuts"]["chance"] == 0.25


def test_a_picture_under_two_numbers_is_dropped_with_the_duplicates(dataset, tmp_path):
    source, _, flags = dataset
    assert build(source, tmp_path / "out", *flags, "--duplicates=drop") == 0
    manifest = tfrecord_io.Manifest.load(tmp_path / "out")
    assert manifest.counts["dropped"] == {"conflicting_label": 2}
    assert verify.verify(tmp_path / "out") == []


def test_the_card_shows_how_the_numbers_are_distributed(dataset):
    text = (dataset[1] / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert "with the number ef (" in text
    described = {svg["aria-label"] for svg in page.all("svg")}
    assert "Histogram of ef, by split" in described
    assert {"20 to 22.5", "23 to 25.5"} <= {
        image["alt"].partition(",")[0] for image in page.all("img")
    }


def test_the_contact_sheet_has_a_row_for_each_range(dataset):
    sheet = np.asarray(show.contact_sheet(dataset[1], "train", num_per_class=2, tile_size=64))
    assert sheet.shape[0] == 6 + 4 * (64 + 18 + 6)


def test_tfds_reads_the_number(dataset):
    features = json.loads(
        tfds_metadata.describe(tfrecord_io.Manifest.load(dataset[1]))["features.json"]
    )["featuresDict"]["features"]
    assert features["label"]["tensor"]["shape"] == {"dimensions": ["1"]}


# ---- grades


def labels_of(output):
    table = pq.read_table(output / "examples.parquet").to_pylist()
    return {row["path"]: row["label"] for row in table}


def test_grades_of_a_column_are_classes_in_the_given_order(scans, tmp_path):
    source, table = scans
    flags = [f"--labels={table}", "--target=grade", "--grades=low,mid,high"]
    assert build(source, tmp_path / "out", *flags) == 0
    manifest = tfrecord_io.Manifest.load(tmp_path / "out")
    assert (manifest.label_kind, manifest.format_version) == (GRADES, 2)
    assert manifest.label_names == ("low", "mid", "high")
    # An image whose grade is unclear belongs to none of the grades.
    assert manifest.counts["ignored"] == {"class_not_chosen": 3}
    assert labels_of(tmp_path / "out") == {path: grade for path, _, _, grade in ROWS[:24]}
    assert verify.verify(tmp_path / "out", source_input=source) == []
    assert "grades" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_folders_can_be_grades_and_differ_from_classes_in_the_fingerprint(tmp_path):
    files = {f"{seed % 3}/{seed}.png": png(seed) for seed in range(6)}
    source = write_tree(tmp_path / "knees", under("train", files))
    prints = set()
    for flag in ("--grades", "--classes"):
        assert build(source, tmp_path / flag, f"{flag}=0,1,2") == 0
        manifest = tfrecord_io.Manifest.load(tmp_path / flag)
        assert manifest.label_names == ("0", "1", "2")
        prints.add(manifest.fingerprint)
    assert len(prints) == 2


def test_the_trainer_takes_grades_as_classes(scans, tmp_path):
    from train.config import TrainConfig
    from train.data.parts import choose_parts

    source, table = scans
    flags = [f"--labels={table}", "--target=grade", "--grades=low,mid,high"]
    assert build(source, tmp_path / "out", *flags) == 0
    config = TrainConfig.of(data=str(tmp_path / "out"))
    parts = choose_parts(config.input, config.folds, tfrecord_io.Manifest.load(config.input.data))
    assert parts.train.label_counts == (8, 8, 8)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--target=ef"], "needs --labels"),
        (["--target=ef", "--labels=x.csv", "--classes=a"], "no --classes"),
        (["--target=ef", "--labels=x.csv", "--label_columns=a"], "no --classes or --label_columns"),
        (["--target=patient", "--labels=x.csv"], "a column with numbers or grades"),
        (["--grades=a"], "two or more names"),
        (["--grades=a,b,a"], "--grades takes each name once"),
        (["--grades=a,b", "--classes=a,b"], "takes the place of --classes"),
    ],
)
def test_targets_that_cannot_be_are_refused(tmp_path, capsys, flags, message):
    arguments = ["--source=directory", f"--input={tmp_path}", f"--output={tmp_path / 'out'}"]
    assert build_tfrecords.main([*arguments, *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_grade_that_no_image_has_is_an_error_that_names_it(scans, tmp_path, capsys):
    source, table = scans
    flags = [f"--labels={table}", "--target=grade", "--grades=low,mid,worst"]
    assert build(source, tmp_path / "out", *flags) == 2
    assert "--grades names 'worst', but the classes are" in capsys.readouterr().err


def test_a_column_that_is_not_there_is_an_error_that_names_it(scans, tmp_path, capsys):
    source, table = scans
    assert build(source, tmp_path / "out", f"--labels={table}", "--target=volume") == 2
    assert "needs volume" in capsys.readouterr().err

"""The kinds of label: their text and records; and datasets of them, from the table to the card."""

import json
import pickle
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from builds import rows_of, run_build_here, write_csv
from hypothesis import given
from hypothesis import strategies as st
from image_files import png, under, write_tree
from pages import Page

import tfrecord_io
from tfrecord_io.auditing import audit
from tfrecord_io.extras import shortcuts
from tfrecord_io.format.kinds import (
    CLASSES,
    GRADES,
    KINDS,
    MULTI_LABEL,
    NUMBER,
    LabelKind,
    kind_in,
    number_text,
    ranges_of,
)

NAMES = ("mass", "fluid", "scar")


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_the_same_in_a_worker_and_by_its_name(kind):
    assert pickle.loads(pickle.dumps(kind)) == kind
    assert [other for other in KINDS if other == kind] == [kind]
    assert kind_in(kind.entry) is kind


def test_the_text_of_several_labels_names_them_or_says_none():
    texts = ["mass|scar", "none", "fluid", "mass|scar"]
    assert MULTI_LABEL.has(texts, NAMES).tolist() == [
        [True, False, True],
        [False, False, False],
        [False, True, False],
        [True, False, True],
    ]
    assert MULTI_LABEL.counts(texts, NAMES) == (2, 1, 2)
    assert CLASSES.counts(["fluid", "fluid"], NAMES) == (0, 2, 0)


def test_splits_are_balanced_by_the_images_with_and_without_each_label():
    counts = np.array([[2, 1, 0], [0, 0, 4]])
    balanced = MULTI_LABEL.balance(counts, ["mass|scar", "none", "scar"])
    # With mass, with scar, without mass, without scar.
    assert balanced.tolist() == [[2, 2, 1, 1], [0, 4, 4, 0]]
    assert (balanced.sum(1) == 2 * counts.sum(1)).all()


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
    names, codes = NUMBER.classes_of(["5", "0"], np.array([0, 1, 1, 1, 1, 0]))
    assert (names, codes.tolist()) == (("0", "5"), [1, 0, 0, 0, 0, 1])


@pytest.mark.parametrize(
    ("kind", "text", "values", "wrong", "expected"),
    [
        (CLASSES, "fluid", [0, 1, 0], [[1, 0, 1]], "3 values, one-hot"),
        (MULTI_LABEL, "mass|scar", [1, 0, 1], [[0.5, 0, 1]], "3 values, of 0 and 1"),
        (MULTI_LABEL, "none", [0, 0, 0], [[-1, 0, 0]], "3 values, of 0 and 1"),
        (NUMBER, "-1.5", [-1.5], [[np.nan], [1, 2]], "1 values, one finite number"),
    ],
)
def test_a_record_holds_the_values_of_a_label_and_no_others(kind, text, values, wrong, expected):
    layout = tfrecord_io.RecordLayout(
        image_shape=(2, 2, 1), num_classes=len(values), label_kind=kind
    )
    key = tfrecord_io.image_key("a")
    (label,) = kind.vectors([text], NAMES)
    record = np.frombuffer(layout.encode_record(bytes(4), label, key), np.uint8)
    slot = layout.features["label"]
    assert record[slot.offset :][: slot.length].view("<f4").tolist() == values
    for other in wrong:
        with pytest.raises(ValueError, match=f"a label of {expected}, received"):
            layout.encode_record(bytes(4), np.array(other, np.float32), key)


# ---- the command


def build(source, output, *flags):
    return run_build_here(source, output, "--name=heart", "--image_size=64", *flags)


#: Image k is of patient k // 2 and has the number 20 + k / 2. Images 0 and 22 are the same picture.
#: Of three more the number is empty, text, and too large.
NUMBERS = [
    {"path": f"{k}.png", "patient": k // 2, "ef": f"{20 + k / 2:.2f}",
     "grade": ("low", "mid", "high")[k % 3]}
    for k in range(24)
] + [
    {"path": f"{24 + k}.png", "patient": 99, "ef": cell, "grade": "unclear"}
    for k, cell in enumerate(("", "high", "1e40"))
]  # fmt: skip

#: Image k has mass if k is even, fluid if 3 divides it; none has a scar but the first. Of the last
#: one, whether it has fluid is unknown.
FINDINGS = [
    {"path": f"{k}.png", "patient": k // 2, "mass": ("yes", "no")[k % 2],
     "fluid": "" if k == 24 else int(k % 3 == 0), "scar": k == 0}
    for k in range(25)
]  # fmt: skip


class Built(NamedTuple):
    """A dataset of a kind of label, and what it should hold: the values of each image's label."""

    kind: LabelKind
    label_names: list[str]
    values: dict[str, list[float]]
    rejects: dict[str, int]
    source: Path
    output: Path
    flags: list[str]


def build_kind(folder, kind, rows, chosen, label_names, values, rejects):
    files = {row["path"]: png(k, 64, 64) for k, row in enumerate(rows)}
    files["22.png"] = files["0.png"] if kind == NUMBER else files["22.png"]
    source = write_tree(folder / "scans", files)
    flags = [f"--labels={write_csv(folder / 'table.csv', rows)}", chosen, "--splits=patient",
             "--max_reject_fraction=0.2", "--split_fractions=train=0.6,test=0.4",
             "--variants=1"]  # fmt: skip
    assert build(source, folder / "out", *flags) == 0
    expected = {row["path"]: values(row) for row in rows[:24]}
    return Built(kind, label_names, expected, rejects, source, folder / "out", flags)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    folder, rejects = tmp_path_factory.mktemp("number"), {"no_label": 1, "not_a_number": 2}
    chosen = "--target=ef", ["ef"], lambda row: [float(row["ef"])]
    return build_kind(folder, NUMBER, NUMBERS, *chosen, rejects)


@pytest.fixture(scope="module")
def findings(tmp_path_factory):
    def values(row):
        return [float(row["mass"] == "yes"), float(row["fluid"]), float(row["scar"])]

    folder, chosen = tmp_path_factory.mktemp("several"), f"--label_columns={','.join(NAMES)}"
    return build_kind(folder, MULTI_LABEL, FINDINGS, chosen, list(NAMES), values, {"no_label": 1})


@pytest.mark.parametrize("name", ["numbers", "findings"])
def test_manifest_table_and_records_have_the_labels_of_each_image(name, request, capsys):
    built = request.getfixturevalue(name)
    content = json.loads((built.output / "manifest.json").read_text())
    assert content["format_version"] == 2
    assert content["label_kind"] == content["options"]["label_kind"] == built.kind.name
    assert content["label_names"] == content["options"]["classes"] == built.label_names
    manifest, table, found = tfrecord_io.Manifest.load(built.output), rows_of(built.output), {}
    assert tfrecord_io.Manifest.from_json(manifest.to_json()).to_json() == manifest.to_json()
    assert manifest.rejects == built.rejects
    for split in manifest.splits:
        texts = [row["label"] for row in table if row["split"] == split]
        assert manifest.splits[split].label_counts == built.kind.counts(texts, built.label_names)
        for _, labels, keys in tfrecord_io.make_batches(
            built.output, split=split, batch_size=5, shuffle=False, with_keys=True
        ):
            assert labels.shape == (len(keys), len(built.label_names))
            found |= zip((bytes(key).decode() for key in keys), labels.tolist(), strict=True)
    assert {row["path"] for row in table} == built.values.keys()
    assert found == {row["key"]: built.values[row["path"]] for row in table}
    vectors = built.kind.vectors([row["label"] for row in table], built.label_names).tolist()
    assert vectors == [built.values[row["path"]] for row in table]
    assert build(built.source, built.output, *built.flags) == 0
    assert "is complete" in capsys.readouterr().out


# ---- numbers


def test_cells_without_a_finite_number_are_rejects_with_their_reason(numbers, tmp_path, capsys):
    rejects = (numbers.output / "rejects.csv").read_text()
    assert "25.png,not_a_number,row 26 of table.csv has 'high'" in rejects
    strict = (*numbers.flags, "--max_reject_fraction=0.1")
    assert build(numbers.source, tmp_path / "out", *strict) == 1
    assert "2 not_a_number, 1 no_label" in capsys.readouterr().err
    assert {row["grade"] for row in rows_of(numbers.output)} == {"low", "mid", "high"}
    with_commas = (*numbers.flags, "--decimal=,", "--max_reject_fraction=1")
    assert build(numbers.source, tmp_path / "comma", *with_commas) == 2
    said = capsys.readouterr().err
    assert "has '24.50'" in said
    assert "as in -1234,5 (see --decimal)" in said


def test_the_audit_describes_the_numbers_and_finds_one_picture_under_two_of_them(numbers):
    found = audit.audit(numbers.output, [shortcuts.CHECK])
    table = rows_of(numbers.output)
    target = found.measures["target"]
    assert target["name"] == "ef"
    for split, described in target["splits"].items():
        members = [
            float(row["label"]) for row in table if row["split"] == split and not row["variant"]
        ]
        assert described["images"] == len(members)
        assert described["mean"] == pytest.approx(np.mean(members))
        assert described["std"] == pytest.approx(np.std(members))
        assert (described["min"], described["max"]) == (min(members), max(members))
    (conflict,) = [f for f in found.findings if f.code == "label_conflict"]
    assert conflict.count == 1
    assert conflict.listed[0]["labels"] == "20, 31"
    assert "different numbers" in conflict.detail
    assert found.measures["shortcuts"]["chance"] == 0.25


def test_the_card_shows_how_the_numbers_are_distributed(numbers):
    text = (numbers.output / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert "with the number ef (" in text
    described = {svg["aria-label"] for svg in page.all("svg")}
    assert "Histogram of ef, by split" in described
    assert {"20 to 22.5", "23 to 25.5"} <= {
        image["alt"].partition(",")[0] for image in page.all("img")
    }


# ---- several labels


def test_an_unknown_label_is_a_reject_and_another_value_an_error_that_names_its_row(
    findings, tmp_path, capsys
):
    assert "24.png,no_label" in (findings.output / "rejects.csv").read_text()
    table = rows_of(findings.output)
    assert {row["label"] for row in table} >= {"none", "mass", "fluid", "mass|fluid|scar"}
    labels = write_csv(tmp_path / "labels.csv", [FINDINGS[0], FINDINGS[1] | {"fluid": "-1"}])
    flags = (f"--labels={labels}", *findings.flags[1:])
    assert build(findings.source, tmp_path / "out", *flags) == 2
    assert "row 2 has '-1' in the column fluid; expected 0 or 1" in capsys.readouterr().err


def test_the_audit_and_the_card_look_at_each_label_for_itself(findings):
    found = audit.audit(findings.output, [shortcuts.CHECK])
    assert found.measures["shortcuts"]["label"] in NAMES
    assert found.measures["shortcuts"]["chance"] == 0.5
    assert "class" not in " ".join(f.title for f in found.findings)
    text = (findings.output / "report.html").read_text(encoding="utf-8")
    assert Page(text).open == []
    assert "in 3 labels" in text
    assert [f"{name}, from" in text for name in NAMES] == [True] * 3


# ---- grades


@pytest.fixture(scope="module")
def grades(numbers, tmp_path_factory):
    output = tmp_path_factory.mktemp("grades") / "out"
    flags = [numbers.flags[0], "--target=grade", "--grades=low,mid,high"]
    assert build(numbers.source, output, *flags) == 0
    return output


def test_grades_of_a_column_are_classes_in_the_given_order(grades, numbers):
    manifest = tfrecord_io.Manifest.load(grades)
    assert (manifest.label_kind, manifest.format_version) == (GRADES, 2)
    assert manifest.label_names == ("low", "mid", "high")
    # An image whose grade is unclear belongs to none of the grades.
    assert manifest.counts["ignored"] == {"class_not_chosen": 3}
    table = rows_of(grades)
    stored = {row["path"]: row["label"] for row in table}
    assert stored == {row["path"]: row["grade"] for row in NUMBERS[:24]}
    assert "grades" in (grades / "report.html").read_text(encoding="utf-8")


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


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--target=grade", "--grades=low,mid,worst"], "--grades names 'worst', but the classes"),
        (["--target=volume"], "needs volume"),
    ],
)
def test_a_grade_or_column_that_is_not_there_is_an_error_that_names_it(
    numbers, tmp_path, capsys, flags, message
):
    assert build(numbers.source, tmp_path / "out", numbers.flags[0], *flags) == 2
    assert message in capsys.readouterr().err

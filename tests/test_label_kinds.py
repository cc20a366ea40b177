"""The kinds of label: their text, records and counts; and a dataset of several labels."""

import csv
import json
import pickle
import shutil
import struct

import numpy as np
import pyarrow.parquet as pq
import pytest
from builds import IN_MEMORY
from image_files import png, write_tree
from pages import Page

import tfrecord_io
from pipelines import build_tfrecords
from tfrecord_io import schema, show, verify
from tfrecord_io.auditing import audit
from tfrecord_io.kinds.classes import CLASSES
from tfrecord_io.kinds.multi_label import MULTI_LABEL
from tfrecord_io.kinds.registry import KINDS, kind_in
from tfrecord_io.reading import tfds_metadata

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


def test_a_record_holds_a_one_for_each_label_that_the_image_has():
    layout = tfrecord_io.RecordLayout(image_shape=(2, 2, 1), num_classes=3, label_kind=MULTI_LABEL)
    key = tfrecord_io.image_key("a")
    for texts, values in ((["mass|scar"], [1, 0, 1]), (["none"], [0, 0, 0])):
        (label,) = MULTI_LABEL.vectors(texts, NAMES)
        record = np.frombuffer(layout.encode_record(bytes(4), label, key), np.uint8)
        slot = layout.features["label"]
        assert record[slot.offset :][: slot.length].view("<f4").tolist() == values
    classes = tfrecord_io.RecordLayout(image_shape=(2, 2, 1), num_classes=3)
    assert classes.features == layout.features
    with pytest.raises(ValueError, match=r"3 values, one-hot, received \[1.0, 0.0, 1.0\]"):
        classes.encode_record(bytes(4), np.array([1.0, 0, 1]), key)
    with pytest.raises(ValueError, match=r"3 values, of 0 and 1, received \[0.5, 0.0, 1.0\]"):
        layout.encode_record(bytes(4), np.array([0.5, 0, 1]), key)


# ---- the command


def write_table(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def rows_of(num_images):
    """Image k has mass if k is even, fluid if 3 divides it; none has a scar but the first."""
    return [
        {
            "path": f"{number}.png",
            "patient": number // 2,
            "mass": ("yes", "no")[number % 2],
            "fluid": int(number % 3 == 0),
            "scar": number == 0,
        }
        for number in range(num_images)
    ]


def labels_of(row):
    truths = {"yes": True, "no": False}
    return [float(truths.get(row[name], row[name])) for name in NAMES]


def build(source, labels, output, *more):
    return build_tfrecords.main(
        ["--source=directory", f"--input={source}", f"--labels={labels}", f"--output={output}",
         "--label_columns=mass,fluid,scar", "--name=findings", "--image_size=64", IN_MEMORY, *more]
    )  # fmt: skip


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """24 images with labels, and one of which a label is not known."""
    folder = tmp_path_factory.mktemp("several")
    files = {f"{number}.png": png(number, 64, 64) for number in range(25)}
    rows = rows_of(25)
    rows[24]["fluid"] = ""
    source = write_tree(folder / "scans", files)
    labels = write_table(folder / "labels.csv", rows)
    output = folder / "out"
    shares = "--split_fractions=train=0.6,test=0.4"
    flags = ["--splits=patient", shares, "--max_reject_fraction=0.1", "--variants=1"]
    assert build(source, labels, output, *flags) == 0
    return source, labels, output, flags


def test_the_manifest_says_what_the_labels_are_in_the_format_that_needs_it(dataset):
    content = json.loads((dataset[2] / "manifest.json").read_text())
    assert content["format_version"] == 2
    assert content["label_kind"] == "multi_label"
    assert content["label_names"] == list(NAMES)
    manifest = tfrecord_io.Manifest.load(dataset[2])
    assert tfrecord_io.Manifest.from_json(manifest.to_json()).to_json() == manifest.to_json()


def test_the_reader_gives_the_ones_and_zeros_of_each_image(dataset):
    table = pq.read_table(dataset[2] / "examples.parquet").to_pylist()
    by_path = {row["path"]: labels_of(row) for row in rows_of(24)}
    expected = {row["key"]: by_path[row["path"]] for row in table}
    assert len(expected) > 24
    found = {}
    for split in ("train", "test"):
        batches = tfrecord_io.make_batches(
            dataset[2], split=split, batch_size=5, shuffle=False, with_keys=True
        )
        for _, labels, keys in batches:
            found |= {
                bytes(key).decode(): row.tolist() for key, row in zip(keys, labels, strict=True)
            }
    assert found == expected


def test_the_counts_are_those_of_each_label(dataset):
    manifest = tfrecord_io.Manifest.load(dataset[2])
    table = pq.read_table(dataset[2] / "examples.parquet").to_pylist()
    for name, split in manifest.splits.items():
        texts = [row["label"] for row in table if row["split"] == name]
        assert split.label_counts == MULTI_LABEL.counts(texts, NAMES)
        assert split.num_examples == len(texts)
    assert "0.png" in {row["path"] for row in table if row["label"] == "mass|fluid|scar"}
    assert {row["label"] for row in table} >= {"none", "mass", "fluid"}


def test_verify_finds_nothing_wrong_and_the_same_command_nothing_to_do(dataset, capsys):
    source, labels, output, flags = dataset
    assert verify.verify(output, source_input=source) == []
    assert build(source, labels, output, *flags) == 0
    assert "is complete" in capsys.readouterr().out


def test_an_unknown_label_is_a_reject_and_another_value_an_error_that_names_its_row(
    dataset, tmp_path, capsys
):
    source, _, output, _ = dataset
    assert "24.png,no_label" in (output / "rejects.csv").read_text()
    rows = rows_of(3)
    rows[1]["fluid"] = "-1"
    labels = write_table(tmp_path / "labels.csv", rows)
    assert build(source, labels, tmp_path / "out") == 2
    assert "row 2 has '-1' in the column fluid; expected 0 or 1" in capsys.readouterr().err


def test_a_label_that_is_no_zero_or_one_is_found(dataset, tmp_path):
    shutil.copytree(dataset[2], tmp_path / "out")
    manifest = tfrecord_io.Manifest.load(tmp_path / "out")
    layout = manifest.layout
    shard = tmp_path / "out" / manifest.split("train").shards[0].name
    content = bytearray(shard.read_bytes())
    place = layout.features["label"].offset
    content[place : place + 4] = struct.pack("<f", 0.5)
    crc = schema.masked_crc32c(content[schema.HEADER_LENGTH : layout.stride - schema.FOOTER_LENGTH])
    content[layout.stride - schema.FOOTER_LENGTH : layout.stride] = struct.pack("<I", crc)
    shard.write_bytes(content)
    messages = [finding.message for finding in verify.verify(tmp_path / "out")]
    assert any("is not of 0 and 1" in message for message in messages)


def test_the_contact_sheet_has_a_row_for_each_label(dataset):
    sheet = np.asarray(show.contact_sheet(dataset[2], "train", num_per_class=2, tile_size=64))
    assert sheet.shape[0] == 6 + 3 * (64 + 18 + 6)


def test_the_audit_looks_at_each_label_for_itself(dataset):
    found = audit.audit(dataset[2])
    assert found.measures["shortcuts"]["label"] in NAMES
    assert found.measures["shortcuts"]["chance"] == 0.5
    assert "class" not in " ".join(f.title for f in found.findings)


def test_the_card_shows_each_label(dataset):
    text = (dataset[2] / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert "in 3 labels" in text
    assert [f"{name}, from" in text for name in NAMES] == [True] * 3


def test_tfds_reads_the_labels_as_numbers(dataset):
    features = json.loads(
        tfds_metadata.describe(tfrecord_io.Manifest.load(dataset[2]))["features.json"]
    )["featuresDict"]["features"]
    assert features["label"]["tensor"]["shape"] == {"dimensions": ["3"]}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--label_columns=a,b"], "needs --labels"),
        (["--labels=x.csv", "--label_columns=a,a"], "each name once"),
        (["--labels=x.csv", "--label_columns=a|b,c"], "no name with |"),
        (["--labels=x.csv", "--label_columns=a,none"], "a label named none"),
        (["--labels=x.csv", "--label_columns=a", "--classes=b"], "no --classes"),
    ],
)
def test_label_columns_that_cannot_be_are_refused(tmp_path, capsys, flags, message):
    arguments = ["--source=directory", f"--input={tmp_path}", f"--output={tmp_path / 'out'}"]
    assert build_tfrecords.main([*arguments, *flags]) == 2
    assert message in capsys.readouterr().err

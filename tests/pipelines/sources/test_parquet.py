"""Images in a column of Parquet files."""

import errno
import os
import unicodedata

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builds import csv_rows, rows_of
from image_files import encoded, png, write_tree
from PIL import Image
from row_files import build_rows, write_parquet

from pipelines.sources.factory import SourceOptions
from pipelines.sources.parquet import ParquetSource
from tfrecord_io import Manifest
from tfrecord_io.auditing.verify import verify

NAMES = ["NORMAL", "DME", "CNV"]
SMALL = "--image_size=8"


def image(number, path=None):
    return {"bytes": png(number), "path": path}


def rows_from(start, count=12):
    """Returns rows as of Hugging Face; two scans of each patient, who is in the names of files."""
    return [
        {"image": image(k, f"oct/{NAMES[k % 3]}-{k // 2}-{k}.png"), "label": k % 3, "age": 30 + k}
        for k in range(start, start + count)
    ]


FILES = ("data/train-00000-of-00002", "data/train-00001-of-00002", "data/validation-00000-of-00001")


@pytest.fixture(scope="module")
def oct_set(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets") / "oct"
    for place, name in enumerate(FILES):
        write_parquet(folder / f"{name}.parquet", rows_from(12 * place), {"label": NAMES})
    write_tree(folder, {"README.md": b"# OCT", "assets/example.png": png(0)})
    (folder / "more").symlink_to(folder / "data")
    return folder


def test_a_folder_is_read_with_its_classes_splits_patients_and_columns(oct_set, tmp_path, capsys):
    assert build_rows(oct_set, tmp_path / "out", SMALL) == 0

    manifest = Manifest.load(tmp_path / "out")
    assert verify(tmp_path / "out") == []
    # The order of the metadata, not that of the alphabet.
    assert manifest.label_names == tuple(NAMES)
    assert manifest.source == {"kind": "parquet", "name": "oct"}
    rows = rows_of(tmp_path / "out")
    assert len(rows) == 36
    for row in rows:
        number = row["age"] - 30
        name = f"{NAMES[number % 3]}-{number // 2}-{number}.png"
        assert row["path"] == f"{FILES[number // 12]}.parquet#{number % 12}/{name}"
        assert row["split"] == ("val" if number >= 24 else "train")
        assert (row["label"], row["patient"]) == (NAMES[number % 3], str(number // 2))
    said = capsys.readouterr().err
    assert "not read: 1 picture beside the Parquet files, such as assets/example.png" in said
    assert "not read: 1 linked folder beside the Parquet files, such as more" in said


def test_a_class_of_two_unicode_forms_is_one(tmp_path):
    for form in ("NFC", "NFD"):
        names = [unicodedata.normalize(form, name) for name in ("Žádný", "Œdéme", "CNV")]
        rows = [row | {"image": image(k, f"ä{k}.png")} for k, row in enumerate(rows_from(0))]
        path = tmp_path / "in" / f"train-{form}.parquet"
        write_parquet(path, [{unicodedata.normalize(form, key): value for key, value in row.items()}
                             for row in rows], {"label": names})  # fmt: skip
    assert build_rows(tmp_path / "in", tmp_path / "out", SMALL) == 0
    assert Manifest.load(tmp_path / "out").label_names == ("Žádný", "Œdéme", "CNV")
    assert len(rows_of(tmp_path / "out")) == 24


def test_rows_can_be_excluded_and_are_counted_once(oct_set, tmp_path, capsys):
    flags = (SMALL, "--exclude_regex=#0/")
    assert build_rows(oct_set, tmp_path / "out", *flags) == 0
    counts = Manifest.load(tmp_path / "out").counts
    assert (counts["files"], counts["excluded"]) == (36, 3)


def test_a_table_of_the_user_goes_before_the_columns(oct_set, tmp_path):
    table = {"path": [f"{FILES[0]}.parquet#{k}/x" for k in range(2)], "label": ["a", "b"]}
    names = [name for name, _ in ParquetSource(oct_set).rows()]
    pq.write_table(pa.table(table | {"path": names[:2]}), tmp_path / "own.parquet")
    labels = f"--labels={tmp_path / 'own.parquet'}"
    assert build_rows(oct_set, tmp_path / "out", SMALL, labels, "--max_reject_fraction=1") == 0
    assert sorted(row["label"] for row in rows_of(tmp_path / "out")) == ["a", "b"]


def test_rows_without_an_image_or_a_label_are_rejects(tmp_path):
    rows = rows_from(0)
    rows[3]["image"], rows[5]["image"] = None, {"bytes": None, "path": None}
    rows[7]["label"], rows[8]["image"]["bytes"] = -1, b"no picture"
    path = write_parquet(tmp_path / "a.parquet", rows, {"label": NAMES})
    assert build_rows(path, tmp_path / "out", SMALL, "--max_reject_fraction=1") == 0
    rejects = {row[0].split("/")[0]: row[1] for row in csv_rows(tmp_path / "out" / "rejects.csv")}
    assert rejects == {
        "a.parquet#3": "empty", "a.parquet#5": "empty", "a.parquet#7": "no_label",
        "a.parquet#8": "not_an_image",
    }  # fmt: skip
    assert Manifest.load(tmp_path / "out").num_examples == 8


def test_binary_values_and_numbers_without_names_are_read(tmp_path):
    rows = [{"image": png(k), "label": k % 12, "path": "elsewhere"} for k in range(36)]
    path = write_parquet(tmp_path / "a.parquet", rows)
    assert build_rows(path, tmp_path / "out", SMALL) == 0
    assert Manifest.load(tmp_path / "out").label_names == tuple(map(str, range(12)))
    assert {row["path"] for row in rows_of(tmp_path / "out")} == {
        f"a.parquet#{k}" for k in range(36)
    }


def test_lists_of_classes_are_several_labels_once_their_separator_is_given(tmp_path, capsys):
    chosen = [[0, 2], [1], []]
    rows = [{"image": image(k), "findings": chosen[k % 3]} for k in range(12)]
    path = write_parquet(tmp_path / "a.parquet", rows)
    text = (
        '{"info": {"features": {"findings": {"feature": {"names": ["Mass", "Edema", "Nodule"]}}}}}'
    )
    table = pq.read_table(path).replace_schema_metadata({"huggingface": text})
    pq.write_table(table, path)
    assert build_rows(path, tmp_path / "out", SMALL) == 2
    assert "name yours with --columns label=COLUMN" in capsys.readouterr().err
    flags = (SMALL, "--columns=label=findings")
    assert build_rows(path, tmp_path / "out", *flags) == 2
    assert "--label_separator '|' divides it" in capsys.readouterr().err
    assert build_rows(path, tmp_path / "out", *flags, "--label_separator=|") == 0
    found = {int(row["path"].split("#")[1]): row["label"] for row in rows_of(tmp_path / "out")}
    texts = ["Mass|Nodule", "Edema", "none"]
    assert found == {k: texts[k % 3] for k in range(12)}


PATHS = [{"image": {"bytes": None, "path": f"{k}.png"}, "label": k % 2} for k in range(4)]
TWO = [{"scan": image(k), "mask": image(k), "label": k % 2} for k in range(4)]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a": PATHS}, "row 0 has the path of an image, '0.png', but not its bytes"),
        ({"a": TWO}, "has the columns scan, mask, label; expected one of images"),
        ({"train": rows_from(0), "more": rows_from(12)}, "more.parquet does not; rename it"),
        ({"a": rows_from(0), "b": [{"label": 1}]}, "b.parquet has the columns label; expected"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_read_whole_are_refused(tmp_path, capsys, files, message):
    for name, rows in files.items():
        write_parquet(tmp_path / "in" / f"{name}.parquet", rows)
    assert build_rows(tmp_path / "in", tmp_path / "out", SMALL) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


BITMAP = encoded(Image.new("L", (3000, 3000)), "BMP")


@pytest.mark.parametrize(
    "rows",
    [
        [{"image": BITMAP[:-number], "label": "a"} for number in range(1, 9)],
        [{"image": BITMAP, "label": "a"} for _ in range(8)],
        [{"image": b"a", "label": "x" * 10**6} for _ in range(70)],
        [{"image": None, "label": "a"} for _ in range(150_000)],
    ],
    ids=["compressed", "repeated", "long texts", "many rows"],
)
def test_what_unpacks_to_many_times_its_size_is_refused(tmp_path, capsys, rows):
    table = pa.Table.from_pylist(rows, pa.schema([("image", pa.binary()), ("label", pa.string())]))
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd")
    assert (tmp_path / "a.parquet").stat().st_size < 1_000_000
    assert build_rows(tmp_path / "a.parquet", tmp_path / "out") == 2
    assert "unpacks to more than 50 times its size" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_listed_ends_the_build(oct_set, tmp_path, monkeypatch, capsys):
    scandir = os.scandir

    def fail(path):
        if str(path).endswith("data"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", fail)
    assert build_rows(oct_set, tmp_path / "out", SMALL) == 1
    assert "may not read 1 files or folders of the input, such as data" in capsys.readouterr().err
    assert build_rows(oct_set, tmp_path / "out", SMALL, "--source=parquet") == 1
    assert f"Permission denied: '{oct_set / 'data'}'" in capsys.readouterr().err


def test_a_damaged_file_is_refused(oct_set, tmp_path, capsys):
    content = bytearray((oct_set / f"{FILES[0]}.parquet").read_bytes())
    (tmp_path / "cut.parquet").write_bytes(content[:900])
    content[4:2000] = bytes(1996)
    (tmp_path / "zeros.parquet").write_bytes(content)
    for name in ("cut", "zeros"):
        assert build_rows(tmp_path / f"{name}.parquet", tmp_path / "out", SMALL) == 2
        assert f"{name}.parquet could not be read as --source parquet" in capsys.readouterr().err


def test_a_parquet_table_beside_images_is_not_their_source(tmp_path):
    write_tree(tmp_path / "scans", {f"{name}/1.png": png(0) for name in NAMES})
    write_parquet(tmp_path / "scans" / "labels.parquet", [{"path": "a", "digest": b"12"}])
    assert SourceOptions(input=str(tmp_path / "scans")).source == "directory"


def test_images_are_read_a_few_rows_at_a_time(tmp_path):
    num_rows, num_bytes = 2_000, 50_000
    noise = np.random.default_rng(0).bytes(num_bytes)
    table = pa.table({"image": [{"bytes": noise, "path": None}] * num_rows})
    # One row group, with pages of ten rows.
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, write_batch_size=10)
    del table
    before, most = pa.total_allocated_bytes(), 0
    for _ in ParquetSource(tmp_path / "a.parquet").rows():
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < num_rows * num_bytes / 4

import dataclasses

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from marked_images import OCT_NAMES, write_marked_dataset

from train.data.dataset import open_dataset
from train.results.report import Box, flow_of

TEST = {
    "split": "test", "num_examples": 8, "num_patients": 4, "bootstrap_by": "patient",
    "label_counts": {"CNV": 5, "DME": 3}, "label_groups": {"CNV": 3, "DME": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """30 images of 15 patients in three splits, as 9 more files of which none became an image."""
    path = tmp_path_factory.mktemp("data")
    manifest = write_marked_dataset(path, num_examples={"train": 20, "val": 2, "test": 8})
    counts = dict(manifest.counts) | {"files": 39, "rejects": 4, "over_limit": 2}
    counts |= {"dropped": {"duplicate": 2}, "ignored": {"not_an_image": 1}}
    rejects = {"truncated": 3, "no_label": 1}
    return path, dataclasses.replace(manifest, counts=counts, rejects=rejects)


def flow(data, metrics, is_own=True, **options):
    path, manifest = data
    dataset = dataclasses.replace(open_dataset(str(path)), manifest=manifest)
    return flow_of(dataset, metrics, is_own=is_own, **options)


def test_every_file_and_every_image_is_counted_down_to_the_figures(data):
    source, dataset, splits, figures = flow(data, TEST | {"calibration": {"temperature": 1}})
    left_out = [
        ("rejected: truncated", 3), ("rejected: no label", 1), ("left out: duplicate", 2),
        ("left out by --limit", 2), ("ignored: not an image", 1),
    ]  # fmt: skip
    assert source == [Box("source", ["39 files"], left_out)]
    assert [box.lines for box in dataset] == [["30 images of 15 patients"]]
    assert [box.is_measured for box in splits] == [False, False, True]
    assert [(box.title, *box.lines) for box in splits] == [
        ("train", "20 images of 10 patients", "trained on"),
        ("val", "2 images of 1 patient", "chose temperature and thresholds"),
        ("test", "8 images of 4 patients", "measured"),
    ]
    assert figures[0].lines == [
        "8 images of 4 patients", "CNV: 5 images of 3 patients", "DME: 3 images of 1 patient",
    ]  # fmt: skip


def test_images_that_were_seen_are_left_out_of_the_measured_split_alone(data):
    *_, splits, _ = flow(data, TEST | {"seen_images": 3, "include_seen": False}, is_own=False)
    assert [len(box.left_out) for box in splits] == [0, 0, 1]
    assert splits[2].left_out[0][1] == 3
    assert [box.lines[-1] for box in splits] == ["not used", "not used", "measured"]
    *_, splits, _ = flow(data, TEST | {"seen_images": 3, "include_seen": True}, is_own=False)
    assert not any(box.left_out for box in splits)


def test_of_a_cross_validation_some_splits_are_in_folds(data):
    metrics = TEST | {"split": "5 folds of train, val"}
    *_, splits, figures = flow(data, metrics, in_folds=["train", "val"])
    assert [box.lines[-1] for box in splits] == ["divided into folds"] * 2 + ["not used"]
    assert [box.is_measured for box in splits] == [True, True, False]
    assert figures[0].title == "measured: 5 folds of train, val"


def test_copies_are_not_images_and_a_run_without_results_ends_with_the_splits(data, tmp_path):
    manifest = write_marked_dataset(tmp_path, num_examples={"train": 6}, label_names=OCT_NAMES)
    table = pq.read_table(tmp_path / "examples.parquet")
    variants = pa.array([0, 1, 2, 0, 1, 2])
    pq.write_table(table.append_column("variant", variants), tmp_path / "examples.parquet")
    *_, splits = flow((tmp_path, manifest), {})
    assert splits[0].lines == ["2 images of 3 patients", "and 4 augmented copies", "trained on"]

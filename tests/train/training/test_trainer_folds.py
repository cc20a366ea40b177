"""Tests of train/training/trainer.py: cross-validation by patient, resumed and pooled."""

import contextlib
import io
import re
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest
from marked_images import (
    KERAS_ARRAY_WARNING,
    groups_in,
    metrics_of,
    rows_of,
    stop_at,
    train,
    write_marked_dataset,
)

from train.data.dataset import patient_folds

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAY_WARNING)

NUM_IMAGES = 60  # of train and val together


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    write_marked_dataset(path, num_examples={"train": 44, "val": 16, "test": 8})
    table = pq.read_table(path / "examples.parquet")
    table = table.append_column("site", table["label"])
    pq.write_table(table, path / "examples.parquet")
    return path


def cross_validate(data, workdir, **fields):
    return train(data, workdir, **{"folds": 2} | fields)


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "folds"
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        assert cross_validate(data, workdir) == 0
    assert "was not written" not in errors.getvalue()
    return workdir


@pytest.mark.slow
def test_every_image_is_predicted_once_and_test_stays_out(finished):
    counts = Counter(row["path"] for row in rows_of(finished))
    assert set(counts.values()) == {1}
    assert len(counts) == NUM_IMAGES
    assert not [path for path in counts if path.startswith("test/")]


@pytest.mark.slow
def test_held_out_predictions_of_all_runs_are_measured_by_site(finished):
    sites = metrics_of(finished)["sites"]
    # In this dataset each class is a site.
    images = Counter(row["label"] for row in rows_of(finished))
    assert {name: site["num_examples"] for name, site in sites.items()} == images


@pytest.mark.slow
def test_each_fold_has_seen_the_others_and_the_page_says_so(finished):
    everyone = {row["key"] for row in rows_of(finished)}
    for fold in range(2):
        folder = finished / "seed-1" / f"fold-{fold}"
        seen = set(pq.read_table(folder / "seen.parquet")["key"].to_pylist())
        assert seen == everyone - {row["key"] for row in rows_of(folder)}
    page = (finished / "report.html").read_text()
    claim = r"those that it judged of these 60 images of \d+ patients: it had seen no image with"
    assert re.search(claim, page)


@pytest.mark.slow
def test_the_metrics_pool_all_runs_and_tell_their_spread(finished):
    metrics = metrics_of(finished)
    rows = rows_of(finished)
    right = np.mean([row["label"] == row["predicted"] for row in rows])
    assert metrics["num_images"] == NUM_IMAGES
    assert metrics["scores"]["accuracy"]["value"] == pytest.approx(right, abs=1e-6)
    assert metrics["scores"]["accuracy"]["low"] <= right <= metrics["scores"]["accuracy"]["high"]
    runs = {(one["fold"], one["seed"]) for one in metrics["folds"]}
    assert runs == {(0, 1), (1, 1)}
    assert metrics["spread"]["accuracy"]["std_over_folds"] is not None
    plots = {path.name for path in (finished / "plots").iterdir()}
    assert plots == {"confusion.svg", "roc.svg", "reliability.svg"}
    assert "cross-validation" in (finished / "report.html").read_text()


@pytest.mark.slow
def test_a_stopped_cross_validation_goes_on_at_its_fold_and_step(
    data, finished, tmp_path, monkeypatch
):
    steps = metrics_of(finished / "seed-1" / "fold-0")["steps"]
    workdir = tmp_path / "folds"
    with monkeypatch.context() as patch:
        stop_at(patch, workdir, steps + 2)
        assert cross_validate(data, workdir) == 143
    assert (workdir / "seed-1" / "fold-0" / "metrics.json").exists()
    assert not (workdir / "seed-1" / "fold-1" / "metrics.json").exists()
    before = (workdir / "seed-1" / "fold-0" / "checkpoint.npz").stat().st_mtime_ns
    assert cross_validate(data, workdir) == 0
    assert (workdir / "seed-1" / "fold-0" / "checkpoint.npz").stat().st_mtime_ns == before
    for found, expected in zip(rows_of(workdir), rows_of(finished), strict=True):
        assert found["key"] == expected["key"]
        assert float(found["CNV"]) == pytest.approx(float(expected["CNV"]), abs=1e-5)


def test_a_later_fold_without_patients_is_refused_before_the_first_is_trained(tmp_path, capsys):
    write_marked_dataset(tmp_path, num_examples={"train": 20})
    folds = patient_folds(groups_in(tmp_path, "train"), 6)
    (empty,) = set(range(6)) - set(folds.tolist())
    assert empty > 0
    assert cross_validate(tmp_path, tmp_path / "run", folds=6, replica_batch_size=4) == 2
    assert f"fold {empty} of 6 has 0 of the 20 images" in capsys.readouterr().err
    assert not (tmp_path / "run" / "seed-1").exists()


@pytest.mark.slow
def test_several_seeds_count_each_image_once_without_patients(tmp_path):
    write_marked_dataset(tmp_path / "data", num_examples={"train": 60}, with_patients=False)
    assert cross_validate(tmp_path / "data", tmp_path / "run", seeds=2) == 0
    metrics = metrics_of(tmp_path / "run")
    assert (metrics["num_examples"], metrics["num_groups"]) == (60, 60)
    assert metrics["bootstrap_by"] == "image"
    assert sum(metrics["label_counts"].values()) == 60
    assert np.sum(metrics["confusion_matrix"]) == pytest.approx(60)
    assert len(rows_of(tmp_path / "run")) == 120
    areas = [run["scores"]["auc/CNV"] for run in metrics["folds"]]
    assert metrics["scores"]["auc/CNV"]["value"] == pytest.approx(np.mean(areas), abs=2e-6)


def test_more_folds_than_patients_are_refused(data, tmp_path, capsys):
    assert cross_validate(data, tmp_path / "run", folds=60, fold=0) == 2
    assert "too few patients" in capsys.readouterr().err

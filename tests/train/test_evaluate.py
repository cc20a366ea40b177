"""Tests of train/evaluate.py: a finished run, measured on the scans of another hospital."""

import json
import os
import shutil
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataset_factory import change_json
from marked_images import (
    OCT_NAMES,
    edited_run,
    evaluated,
    metrics_of,
    rows_of,
    write_marked_dataset,
)

import scan_tfrecords
from tfrecord_io.format.kinds import MULTI_LABEL
from tfrecord_io.reading.mapped import MappedDataset
from train.kinds.measures import predictive_values
from train.results.classifier import load_classifier, predict_images

#: Another order of the classes than in training, and one fewer.
OTHER_NAMES = ("NORMAL", "CNV", "DME")

#: Sites of its images, in turn.
SITES = ("london", "zurich", "zurich")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    path = tmp_path_factory.mktemp("other")
    write_marked_dataset(path, num_examples={"train": 4, "test": 30}, label_names=OTHER_NAMES)
    table = pq.read_table(path / "examples.parquet")
    sites = [SITES[number % 3] for number in range(len(table))]
    pq.write_table(table.append_column("site", pa.array(sites)), path / "examples.parquet")
    return path


@pytest.fixture(scope="module")
def measured(class_run, other, s3_server, tmp_path_factory):
    """What an evaluation of a dataset in a bucket writes."""
    output = tmp_path_factory.mktemp("measured")
    variables = s3_server.environment | {"XDG_CACHE_HOME": str(output / "cache")}
    with mock.patch.dict(os.environ, variables), pytest.MonkeyPatch.context() as patch:
        url = s3_server.put_folder(other, "other")
        patch.setattr("sys.argv", ["evaluate.py", f"--data={url}"])
        assert evaluated(class_run, url, f"--output={output}") == 0
    return output


@pytest.mark.slow
def test_two_builds_of_one_folder_have_results_of_their_own(class_run, other, tmp_path):
    run = shutil.copytree(class_run, tmp_path / "run")
    for digit in "12":
        data = shutil.copytree(other, tmp_path / digit)
        change_json(data / "manifest.json", name="scans", fingerprint=digit * 64)
        if digit == "1":
            assert evaluated(run, data) == 0
        else:  # from Python, which knows the same folder
            options = {"split": ["test"], "bootstrap_samples": 20}
            result = scan_tfrecords.evaluate([run], data, **options)
            assert result.metrics["dataset"]["fingerprint"] == digit * 64
    found = {path.name: metrics_of(path) for path in (run / "evaluation").iterdir()}
    assert found.keys() == {"scans-11111111-test", "scans-22222222-test"}
    for name, metrics in found.items():
        assert metrics["dataset"]["fingerprint"].startswith(name[6:14])


def test_images_get_the_probabilities_of_the_export_and_classes_are_matched_by_name(
    class_run, other, measured
):
    rows, metrics = rows_of(measured), metrics_of(measured)
    images, _ = MappedDataset(other, "test")[np.arange(30)]
    expected = predict_images(load_classifier(class_run), images)
    found = np.array([[float(row[name]) for name in OCT_NAMES] for row in rows])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    # The path of each image names its class.
    assert [row["label"] for row in rows] == [row["path"].split("/")[1] for row in rows]
    right = np.mean([row["label"] == row["predicted"] for row in rows])
    assert metrics["scores"]["accuracy"]["value"] == pytest.approx(right, abs=1e-6)
    assert metrics["label_counts"]["DRUSEN"] == 0
    assert sum(metrics["label_counts"].values()) == 30


def test_several_runs_are_measured_by_their_mean_on_all_splits(class_run, other, tmp_path, capsys):
    folds = tmp_path / "folds"
    for fold in range(2):
        shutil.copytree(class_run, folds / f"fold-{fold}")
    assert evaluated(folds, other, "--split=all") == 0
    (output,) = (folds / "evaluation").iterdir()
    assert output.name.endswith("-all")
    words = ("--run", str(class_run), "--split=train,test")
    assert evaluated(folds, other, *words) == 2
    assert "name a folder for the results with --output" in capsys.readouterr().err
    assert evaluated(folds, other, *words, f"--output={tmp_path / 'out'}") == 0
    for folder in (output, tmp_path / "out"):
        assert metrics_of(folder)["num_examples"] == 30  # four are of patients that it has seen
        assert "thresholds" not in metrics_of(folder)


def test_each_site_is_measured_by_itself_too(class_run, other, measured):
    table = pq.read_table(other / "examples.parquet").to_pylist()
    site_of = {row["key"]: row["site"] for row in table}
    sites = metrics_of(measured)["sites"]
    assert list(sites) == ["london", "zurich"]
    for name, found in sites.items():
        rows = [row for row in rows_of(measured) if site_of[row["key"]] == name]
        right = np.mean([row["label"] == row["predicted"] for row in rows])
        assert found["num_examples"] == len(rows)
        assert found["num_patients"] == len({row["patient"] for row in rows})
        assert found["scores"]["accuracy"]["value"] == pytest.approx(right, abs=1e-6)
    assert "sites" not in metrics_of(class_run)
    pages = [(run / "report.html").read_text() for run in (measured, class_run)]
    assert ['id="by"' in page and ">zurich<" in page for page in pages] == [True, False]


def test_thresholds_are_applied_to_originals_and_shapes_that_training_lacked_are_warned_of(
    class_run, other, tmp_path, capsys
):
    run = edited_run(class_run, tmp_path / "run", shapes=[1.0323])
    data = shutil.copytree(other, tmp_path / "in")
    # Shapes of other splits do not matter.
    measures = {"shapes": {"train": [2.5], "test": [1.0323, 1.8107]}}
    change_json(data / "manifest.json", audit={"measures": measures})
    table = pq.read_table(data / "examples.parquet")
    variants = pa.array(np.arange(len(table)) % 10 == 9).cast(pa.int32())
    pq.write_table(table.append_column("variant", variants), data / "examples.parquet")
    entry = {
        "view": "DME", "labels": ["DME"], "wanted_sensitivity": 0.9, "threshold": 0.25,
        "val": {"num_positives": 31, "sensitivity": 0.9, "specificity": 0.5},
    }  # fmt: skip
    (run / "export" / "thresholds.json").write_text(json.dumps([entry]))
    output = tmp_path / "out"
    assert evaluated(run, data, f"--output={output}", "--prevalence=0.03") == 0
    said, rows = capsys.readouterr(), rows_of(output)
    assert len(rows) == 30 - 3  # without augmented copies
    assert ("1.8 times as wide" in said.err, "2.5 times" in said.err) == (True, False)
    (found,) = metrics_of(output)["thresholds"]
    assert found.items() >= entry.items()
    called = [float(row["DME"]) >= 0.25 for row in rows if row["label"] == "DME"]
    assert found["test"]["sensitivity"]["value"] == pytest.approx(np.mean(called), abs=1e-6)
    assert found["test"]["sensitivity"]["low"] is not None
    rates = {name: found["test"][name]["value"] for name in ("sensitivity", "specificity")}
    expected = predictive_values(**rates, prevalence=0.03)
    for name in ("ppv", "npv"):
        assert found["test"][name]["value"] == pytest.approx(float(expected[name]), abs=1e-4)
    assert "by patient, each counts once" in said.out
    assert "3.0 % are DME" in (output / "report.html").read_text()


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--prevalence=1.5", "received '1.5'"),
        ("--prevalence=CNV=0.1,0.02", "received 'CNV=0.1,0.02'"),
        ("--prevalence=AMD=0.1", "some of urgent, CNV, DME, DRUSEN, NORMAL"),
        ("--by=device", "split, shard, row, key, label, path, pixels_xxh3, patient, group, site"),
        ("--bootstrap_samples=many", "expected a whole number"),
        ("--output=README.md", "--output README.md cannot be a folder: File exists"),
        ("--split=val", "or measure all with --split all"),
        ("--output={other}", "holds a dataset or a run"),
        ("--output={class_run}", "holds a dataset or a run"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_predicted(
    class_run, other, capsys, flag, message
):
    flag = flag.format(other=other, class_run=class_run)
    assert evaluated(class_run, other, flag) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"image_shape": (16, 12, 3)}, "channels: 1 in training, 3 here\n  image_size: [12, 12]"),
        ({"label_names": ("cnv", "eye")}, "--rename_classes cnv=NAME,eye=NAME"),
        ({"label_names": [f"c{n:02}" for n in range(12)]}, "c09 and 2 more, which the model"),
        ({"label_kind": MULTI_LABEL}, "learned the kind class; give a dataset with such labels"),
        ({"fit": "stretch"}, "fit: 'pad' in training, 'stretch' here\n"),
        ({"window": [40, 400]}, "window: None in training, [40"),
    ],
)
def test_a_dataset_that_does_not_fit_is_refused(class_run, tmp_path, capsys, facts, message):
    is_fit = {"fit", "window"} & facts.keys()
    manifest = write_marked_dataset(tmp_path, {"test": 8}, **({} if is_fit else facts))
    preprocessing = {**manifest.preprocessing, **(facts if is_fit else {})}
    change_json(tmp_path / "manifest.json", preprocessing=preprocessing)
    assert evaluated(class_run, tmp_path) == 2
    assert message in capsys.readouterr().err

"""Tests of train/training/many_heads.py: heads side by side, each as if it were trained alone."""

import csv
import dataclasses
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import time

import numpy as np
import pytest
from builds import IN_MEMORY, build_here
from image_files import scan_tree, write_tree
from marked_images import (
    ALL_ON,
    KERAS_ARRAY_WARNING,
    TRUNK_SIDE,
    flags,
    history_of,
    run_on_jax,
    weigh,
    write_pooling_trunk,
)
from test_train_trainer import stop_at

import tfrecord_io
from pipelines import extract_features
from tfrecord_io.trunk import find_trunk
from train import run
from train.config import TrainConfig
from train.devices import configure_devices
from train.networks.features import adapt
from train.training import callbacks, many_heads
from train.training.steps import TensorFlowSteps

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAY_WARNING)

NUM_IMAGES = 44
FOLDS, SEEDS = (0, 1), (1, 2)
#: All that a head can have. The folds differ in size, and the last batch of a run is short.
SETTINGS = {
    name: value
    for name, value in ALL_ON.items()
    if name not in ("model", "augment", "augment_strength", "test_time_flip")
} | {
    "epochs": 3, "replica_batch_size": 8, "strategy": "single", "learning_rate": 0.01,
    "head_units": 6, "dropout": 0.3, "bootstrap_samples": 10, "folds": len(FOLDS),
    "on_retrace": "fail", "step_timeout": 600, "steps_per_execution": 2,
}  # fmt: skip

# What `run.main` does, with the flags of the command line.
PROGRAM = "import sys; from train import run; sys.exit(run.main(sys.argv[1:]))"


def pooled_features(folder):
    """Writes the features of folder/images; returns their folder."""
    write_pooling_trunk(folder / "trunk.keras")
    words = ["--data", folder / "images", "--trunk", folder / "trunk.keras"]
    words += ["--output", folder / "features", IN_MEMORY]
    assert extract_features.main([str(word) for word in words]) == 0
    return folder / "features"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("heads")
    tree = write_tree(folder / "scans", scan_tree({"train": 7, "val": 4}))
    build_here(tree, folder / "images", f"--image_size={TRUNK_SIDE}")
    features = pooled_features(folder)
    weigh(features, lambda label: {"CNV": 0.5, "DME": 0}.get(label, 2))
    return features


def words_of(data, workdir, **fields):
    return [f"--data={data}", f"--workdir={workdir}", *flags(**(SETTINGS | fields))]


def cross_validate(data, workdir):
    return run.main(words_of(data, workdir, seed=SEEDS[0], seeds=len(SEEDS)))


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "heads"
    assert cross_validate(data, workdir) == 0
    return workdir


def predictions_of(folder, names=("CNV", "DME", "DRUSEN", "NORMAL")):
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["key"] for row in rows], np.array(
        [[row[name] for name in names] for row in rows], float
    )


def check_same_training(ours, alone):
    """The same losses, rates and weights."""
    for mine, other in zip(history_of(ours), history_of(alone), strict=True):
        assert mine.keys() == other.keys()
        for name in ("epoch", "phase", "step"):
            assert mine[name] == other[name]
        for name in mine.keys() & {"loss", "accuracy", "mae"}:
            assert mine[name] == pytest.approx(other[name], rel=1e-5)
        assert mine["learning_rate"] == pytest.approx(other["learning_rate"], abs=1e-8)
    with np.load(ours / "checkpoint.npz") as mine, np.load(alone / "checkpoint.npz") as other:
        names = [name for name in other.files if name.startswith("best/")]
        assert len(names) > 4
        for name in names:
            if mine[name].dtype == np.float32:  # the others count random numbers
                np.testing.assert_allclose(mine[name], other[name], atol=1e-5)


def test_a_head_beside_others_learns_what_it_learns_alone(data, finished, tmp_path, monkeypatch):
    ours = finished / "seed-2" / "fold-1"
    last_step = history_of(ours)[-1]["step"]
    # Stopped in its last step, a run has everything but the export.
    stop_at(monkeypatch, tmp_path / "run", last_step)
    assert run.main(words_of(data, tmp_path / "run", fold=1, seed=2)) == 143
    check_same_training(ours, tmp_path / "run")


@pytest.mark.slow
def test_heads_of_numbers_learn_side_by_side_what_each_learns_alone(tmp_path, capsys):
    files = scan_tree({"train": 7, "val": 4})
    rows = [
        f"{path},{path.partition('/')[0]},{place - 9.5},{1 + place % 3}"
        for place, path in enumerate(files)
    ]
    (tmp_path / "table.csv").write_text("\n".join(["path,split,ef,weight", *rows, ""]))
    flags = (f"--labels={tmp_path / 'table.csv'}", "--target=ef", f"--image_size={TRUNK_SIDE}")
    build_here(write_tree(tmp_path / "scans", files), tmp_path / "images", *flags)
    features = pooled_features(tmp_path)
    fields = {"seed": 2, "step_timeout": 0}
    assert run.main(words_of(features, tmp_path / "heads", **fields)) == 0
    assert "side by side" in capsys.readouterr().out
    ours = [tmp_path / "heads" / "seed-2" / f"fold-{fold}" for fold in FOLDS]
    assert run.main(words_of(features, tmp_path / "alone", fold=1, **fields)) == 0
    check_same_training(ours[1], tmp_path / "alone")
    (keys, answers), (same_keys, expected) = (
        predictions_of(folder, ["ef"]) for folder in (ours[1], tmp_path / "alone")
    )
    assert keys == same_keys
    # In the unit of the column, whose standard deviation is 13.
    np.testing.assert_allclose(answers, expected, atol=1e-4)
    pooled = np.concatenate([predictions_of(folder, ["ef", "label"])[1] for folder in ours])
    metrics = json.loads((tmp_path / "heads" / "metrics.json").read_text())
    mae = np.abs(pooled[:, 0] - pooled[:, 1]).mean()
    assert metrics["scores"]["mae"]["value"] == pytest.approx(mae)


def test_the_runs_differ_by_fold_and_seed(finished):
    folders = [finished / f"seed-{seed}" / f"fold-{fold}" for seed in SEEDS for fold in FOLDS]
    keys, answers = zip(*map(predictions_of, folders), strict=True)
    assert keys[0] == keys[2] != keys[1] == keys[3]
    assert len({*keys[0], *keys[1]}) == NUM_IMAGES
    assert np.abs(answers[0] - answers[2]).max() > 1e-3


def test_the_report_tells_the_spread_over_folds_and_seeds(finished):
    metrics = json.loads((finished / "metrics.json").read_text())
    assert len(metrics["folds"]) == len(FOLDS) * len(SEEDS)
    for name in ("std_over_folds", "std_over_seeds"):
        assert metrics["spread"]["ece"][name] > 0
    page = (finished / "report.html").read_text()
    assert "Spread over folds and seeds" in page


def test_a_finished_cross_validation_trains_nothing_again(data, finished, capsys):
    path = finished / "seed-1" / "fold-0" / "predictions.csv"
    before = path.stat().st_mtime_ns
    assert cross_validate(data, finished) == 0
    assert path.stat().st_mtime_ns == before
    assert "side by side" not in capsys.readouterr().out


def test_a_folder_of_another_run_is_refused_before_the_training(data, finished, tmp_path, capsys):
    other = tmp_path / "run" / "seed-2" / "fold-1"
    other.mkdir(parents=True)
    shutil.copy(finished / "config.json", tmp_path / "run")
    shutil.copy(finished / "seed-2" / "fold-0" / "config.json", other)
    assert cross_validate(data, tmp_path / "run") == 2
    assert str(other) in capsys.readouterr().err
    assert not list(tmp_path.rglob("predictions.csv"))


def test_the_start_loads_the_manifest_once_and_hashes_the_trunk_once(
    data, finished, tmp_path, monkeypatch
):
    loaded, hashed = [], []
    real_load, real_digest = tfrecord_io.Manifest.load, hashlib.file_digest

    def load(directory):
        loaded.append(directory)
        return real_load(directory)

    def digest(file, name):
        hashed.append(file.name)
        return real_digest(file, name)

    monkeypatch.setattr(tfrecord_io.Manifest, "load", load)
    monkeypatch.setattr(hashlib, "file_digest", digest)
    # Refused when the folder of the cross-validation is claimed.
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.txt").touch()
    assert cross_validate(data, tmp_path / "notes") == 2
    assert loaded == [str(data)]
    # Refused when the folders of its runs are.
    shutil.copytree(finished, tmp_path / "run")
    folder = tmp_path / "run" / "seed-1" / "fold-0"
    (folder / "predictions.csv").unlink()
    (folder / "config.json").unlink()
    hashed.clear()
    assert cross_validate(data, tmp_path / "run") == 2
    assert hashed == [str(data / "trunk.keras")]


def test_a_graph_that_is_built_again_ends_the_training_if_that_is_asked_for(
    data, tmp_path, monkeypatch, capsys
):
    real_train = TensorFlowSteps.train

    class Batches:
        """Another object in each call, which means another graph."""

        def __init__(self, batches):
            self.get_next = batches.get_next

    def train(steps, batches, num_steps):
        return real_train(steps, Batches(batches), num_steps)

    monkeypatch.setattr(TensorFlowSteps, "train", train)
    assert cross_validate(data, tmp_path / "run") == 1
    assert "error: the training graph was traced again before step" in capsys.readouterr().err


@pytest.mark.slow
def test_a_step_that_hangs_leaves_the_stacks_of_all_threads(data, tmp_path, monkeypatch, capsys):
    real_train, stacks = TensorFlowSteps.train, tmp_path / "run" / "stacks-0.txt"

    def train(*arguments):
        while not stacks.stat().st_size:
            time.sleep(0.1)
        return real_train(*arguments)

    monkeypatch.setattr(TensorFlowSteps, "train", train)
    fields = {"seed": 1, "epochs": 1, "step_timeout": 3}
    assert run.main(words_of(data, tmp_path / "run", **fields)) == 0
    assert f"no step ended for 3 s; see {stacks}" in capsys.readouterr().err
    assert "many_heads.py" in stacks.read_text()


@pytest.mark.slow
def test_what_was_stopped_begins_anew_with_the_same_command(
    data, finished, tmp_path, monkeypatch, capsys
):
    workdir = tmp_path / "run"
    real_update = callbacks.tqdm.update

    def update(bar, *more):
        os.kill(os.getpid(), signal.SIGTERM)
        real_update(bar, *more)

    with monkeypatch.context() as patch:
        patch.setattr(callbacks.tqdm, "update", update)
        assert cross_validate(data, workdir) == 143
    output = capsys.readouterr()
    assert "all 4 heads are trained side by side" in output.out
    assert "begin anew" in output.err
    assert cross_validate(data, workdir) == 0
    for ours, first in zip(predictions_of(workdir), predictions_of(finished), strict=True):
        np.testing.assert_array_equal(ours, first)


@pytest.mark.parametrize(
    ("fields", "changed", "said"),
    [
        ({}, {"rest_layers": 3}, "layers above pool learn as well"),
        ({"precision": "float16"}, {}, "--precision float16"),
        ({"profile": "1,2"}, {}, "--profile"),
        ({"replica_batch_size": None, "global_batch_size": None}, {}, "examples; set"),
    ],
)
def test_runs_that_cannot_be_side_by_side_are_trained_one_by_one(
    fields, changed, said, data, tmp_path, capsys
):
    manifest = tfrecord_io.Manifest.load(data)
    trunk = find_trunk(data, manifest)
    config = adapt(TrainConfig(data=str(data), **(SETTINGS | fields)), trunk)
    devices = configure_devices(config)
    trunk = dataclasses.replace(trunk, **changed)
    runs = [(tmp_path, dataclasses.replace(config, fold=fold)) for fold in FOLDS]
    assert many_heads.plan_heads(runs, manifest, trunk, devices) is None
    line = capsys.readouterr().out
    assert line.startswith("the runs are trained one by one")
    assert said in line


def test_heads_that_take_too_much_memory_are_trained_one_by_one(
    data, tmp_path, monkeypatch, capsys
):
    manifest = tfrecord_io.Manifest.load(data)
    config = adapt(TrainConfig(data=str(data), **SETTINGS), find_trunk(data, manifest))
    runs = [(tmp_path, dataclasses.replace(config, fold=fold)) for fold in FOLDS]
    monkeypatch.setattr(many_heads, "MAX_BYTES", 1000)
    devices = configure_devices(config)
    assert many_heads.plan_heads(runs, manifest, find_trunk(data, manifest), devices) is None
    assert "the limit is 0.0 GB" in capsys.readouterr().out


@pytest.mark.slow
def test_all_files_of_a_run_are_those_of_one_alone(data, finished, tmp_path):
    pooled = {
        (entry["fold"], entry["seed"]): entry["scores"]
        for entry in json.loads((finished / "metrics.json").read_text())["folds"]
    }
    for seed in SEEDS:
        for fold in FOLDS:
            alone = tmp_path / f"{seed}-{fold}"
            assert run.main(words_of(data, alone, fold=fold, seed=seed)) == 0
            ours = finished / f"seed-{seed}" / f"fold-{fold}"
            check_same_training(ours, alone)
            for mine, other in zip(predictions_of(ours), predictions_of(alone), strict=True):
                if isinstance(mine, list):
                    assert mine == other
                else:
                    np.testing.assert_allclose(mine, other, atol=1e-5)
            # The command that it says exports it.
            words = ["--config", ours / "config.json", "--workdir", ours]
            assert run.main([str(word) for word in words]) == 0
            assert {path.name for path in ours.iterdir()} == {path.name for path in alone.iterdir()}
            accuracy = json.loads((ours / "metrics.json").read_text())["scores"]["accuracy"]
            assert accuracy["value"] == pooled[fold, seed]["accuracy"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_heads_are_trained_side_by_side_on_jax(data, tmp_path):
    words = words_of(data, tmp_path / "heads", seed=SEEDS[0], seeds=len(SEEDS))
    assert "side by side" in run_on_jax(PROGRAM, *words).stdout
    run_on_jax(PROGRAM, *words_of(data, tmp_path / "alone", fold=1, seed=2))
    check_same_training(tmp_path / "heads" / "seed-2" / "fold-1", tmp_path / "alone")

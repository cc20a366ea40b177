"""Training on features that a trunk made, through the commands that a user types."""

import csv
import json
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
from builds import IN_MEMORY, build_of
from image_files import scan_tree, scans_of
from marked_images import (
    KERAS_ARRAY_WARNING,
    QUICK,
    arrays_of,
    check_equal,
    flags,
    history_of,
    metrics_of,
)
from test_train_trainer import train_until

from pipelines import extract_features
from tfrecord_io.trunk import read_trunk
from train import evaluate, predict, run
from train.config import TrainConfig
from train.networks.models import network_of
from train.run_setup import make_run
from train.training.trainer import train_and_evaluate
from train.trunk import write_trunk

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(KERAS_ARRAY_WARNING)]

#: What is off in training on features is off, too, in the run on images that it is compared with.
COMMON = {name: value for name, value in QUICK.items() if name != "model"} | {
    "epochs": 3, "head_epochs": 1, "replica_batch_size": 8, "seed": 3, "strategy": "single",
    "dropout": 0.0, "learning_rate": 0.01, "fine_tune_learning_rate": 0.001,
    "bootstrap_samples": 5,
}  # fmt: skip
LAYER = "conv_pw_11_relu"


scans = scans_of(lambda: scan_tree({"train": 12, "val": 4, "test": 6}, classes=("CNV", "NORMAL")))
images = build_of("scans", "--image_size=32")


@pytest.fixture(scope="module")
def extracted(images, mobilenet_weights, tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")
    return extract(images, LAYER, mobilenet_weights, folder, "--dtype=float32")


def extract(images, layer, weights, folder, *more):
    """Cuts a network at a layer, and extracts its features; returns their folder."""
    trunk = folder / "trunk.keras"
    write_trunk(str(images), "mobilenet", layer, trunk, weights=str(weights))
    words = ["--data", images, "--trunk", trunk, "--output", folder / "out", IN_MEMORY, *more]
    assert extract_features.main([*map(str, words)]) == 0
    return folder / "out"


def config_of(data, **fields):
    return TrainConfig.of(data=str(data), **(COMMON | fields))


@pytest.fixture(scope="module")
def finished(extracted, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run") / "run"
    words = ["--data", extracted, "--workdir", workdir, *flags(**COMMON)]
    assert run.main([str(word) for word in words]) == 0
    return workdir


def test_its_losses_are_those_of_training_on_images(
    finished, images, extracted, mobilenet_weights, tmp_path
):
    layers = read_trunk(extracted / "trunk.keras").rest_layers - 1  # without the input
    config = config_of(
        images, model="mobilenet", weights=str(mobilenet_weights), trainable_layers=layers
    )
    train_and_evaluate(config, tmp_path / "run")
    for ours, theirs in zip(history_of(finished), history_of(tmp_path / "run"), strict=True):
        assert ours["phase"] == theirs["phase"]
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
        assert ours["val_loss"] == pytest.approx(theirs["val_loss"], rel=1e-3)
        assert ours["seconds"] > 0


def test_the_export_is_one_model_that_takes_the_files_of_images(finished, scans, capsys):
    words = ["--model", finished, "--input", scans / "test", "--format=csv"]
    assert predict.main([str(word) for word in words]) == 0
    answers = {
        row["path"].split("/scans/")[1]: [float(row[name]) for name in ("CNV", "NORMAL")]
        for row in csv.DictReader(capsys.readouterr().out.splitlines())
    }
    with (finished / "predictions.csv").open() as file:
        measured = list(csv.DictReader(file))
    assert len(measured) == len(answers) == 12
    for row in measured:
        expected = [float(row[name]) for name in row if name.startswith(("p_", "CNV", "NORMAL"))]
        np.testing.assert_allclose(answers[row["path"]], expected[-2:], atol=1e-4)
    loaded = keras.saving.load_model(finished / "export" / "model.keras", compile=False)
    assert loaded.input_shape == (None, 32, 32, 1)


def test_the_run_says_what_it_trained_and_can_be_repeated(finished, capsys):
    config = json.loads((finished / "config.json").read_text())["config"]
    assert (config["model"], config["weights"], config["normalize"]) == ("mobilenet", "trunk", None)
    assert not config["augment"]
    assert not config["test_time_flip"]
    words = ["--config", finished / "config.json", "--workdir", finished]
    assert run.main([str(word) for word in words]) == 0
    assert "is complete; nothing to do" in capsys.readouterr().out


def test_a_run_that_was_stopped_ends_as_an_undisturbed_one(
    finished, extracted, tmp_path, monkeypatch
):
    train_until(4, config_of(extracted), tmp_path / "run", monkeypatch)
    train_and_evaluate(config_of(extracted), tmp_path / "run")
    check_equal(arrays_of(finished / "best.npz"), arrays_of(tmp_path / "run" / "best.npz"))


def test_the_layers_above_the_trunk_have_the_precision_of_the_run(extracted):
    before = keras.config.dtype_policy()
    try:
        network = network_of(make_run(config_of(extracted), Path()), "bfloat16")
    finally:
        keras.config.set_dtype_policy(before)
    convolutions = [each for each in network.backbone.layers if each.name.startswith("conv_dw")]
    assert {each.compute_dtype for each in convolutions if each.weights} == {"bfloat16"}
    assert {weight.dtype for weight in network.backbone.weights} == {"float32"}


def test_of_pooled_features_only_the_head_is_trained(images, mobilenet_weights, tmp_path):
    pooled = extract(images, "pool", mobilenet_weights, tmp_path)
    train_and_evaluate(config_of(pooled), tmp_path / "run")
    assert {row["phase"] for row in history_of(tmp_path / "run")} == {"head"}
    saved = json.loads((pooled / "manifest.json").read_text())
    assert saved["image"]["shape"] == [1, 1, 1024]


def test_folds_hold_out_the_patients_of_the_images(extracted, tmp_path):
    config = config_of(extracted, folds=2, epochs=1, bootstrap_samples=0)
    results = train_and_evaluate(config, tmp_path / "run")
    assert results["num_images"] == 32
    assert len(results["folds"]) == 2


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--model=resnet50", "--weights=none"], "remove --model, --weights"),
        (["--normalize=unit"], "remove --normalize"),
    ],
)
def test_what_the_trunk_decides_is_no_flag(given, named, extracted, tmp_path, capsys):
    workdir = tmp_path / "run"
    assert run.main(["--data", str(extracted), "--workdir", str(workdir), *given]) == 2
    message = capsys.readouterr().err
    assert named in message
    assert f"mobilenet up to {LAYER}" in message
    assert not workdir.exists()


def test_a_trunk_that_is_not_the_recorded_one_is_refused(extracted, tmp_path, capsys):
    copy = shutil.copytree(extracted, tmp_path / "features")
    with (copy / "trunk.keras").open("r+b") as file:
        file.seek(1000)
        file.write(b"?")
    assert run.main(["--data", str(copy), "--workdir", str(tmp_path / "run")]) == 2
    assert "is not the trunk that made these features" in capsys.readouterr().err


def test_the_export_is_measured_on_images_and_not_on_features(finished, images, extracted, capsys):
    assert evaluate.main(["--model", str(finished), "--data", str(extracted)]) == 2
    assert "give the dataset of images" in capsys.readouterr().err
    assert evaluate.main(["--model", str(finished), "--data", str(images), "--include_seen"]) == 0
    assert "the dataset that the model was trained on" in capsys.readouterr().out
    (output,) = (finished / "evaluation").iterdir()
    ours = metrics_of(finished)["scores"]
    theirs = metrics_of(output)["scores"]
    assert ours["accuracy"]["value"] == theirs["accuracy"]["value"]

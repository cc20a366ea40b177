import dataclasses
import json

import keras
import numpy as np
import pytest
from marked_images import KERAS_ARRAY_WARNING, history_of, write_marked_dataset

from train import checkpoint
from train.callbacks import StoppedError, TrainingError
from train.config import ConfigError, TrainConfig
from train.trainer import Progress, plan_phases, train_and_evaluate

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAY_WARNING)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    write_marked_dataset(path, num_examples={"train": 90, "val": 20, "test": 30})
    return path


def config_of(data, **fields):
    common = {"epochs": 3, "replica_batch_size": 16, "seed": 1, "strategy": "single",
              "learning_rate": 0.01}  # fmt: skip
    return TrainConfig(data=str(data), bootstrap_samples=20, **(common | fields))


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run") / "run"
    return workdir, train_and_evaluate(config_of(data), workdir)


def test_a_run_leaves_everything_that_was_promised(finished):
    workdir, _ = finished
    names = {str(path.relative_to(workdir)) for path in workdir.rglob("*")}
    assert names >= {
        "config.json",
        "history.json",
        "metrics.json",
        "predictions.csv",
        "checkpoint.npz",
        "best.npz",
        "export/model.keras",
        "export/saved_model/saved_model.pb",
        "export/model.weights.h5",
        "export/architecture.json",
        "export/preprocessing.json",
        "plots/curves.png",
        "plots/confusion.png",
        "plots/roc.png",
        "plots/reliability.png",
    }


def test_it_learns_and_reports_each_epoch(finished):
    workdir, metrics = finished
    history = history_of(workdir)
    assert [row["step"] for row in history] == [6, 12, 17]  # 90 images in batches of 16
    assert history[-1]["loss"] < 0.8 * history[0]["loss"]
    assert metrics["scores"]["accuracy"]["value"] > 0.4  # chance is 0.25
    for row in history[1:]:
        assert row["images_per_second"] > 0
        assert 0 <= row["input_wait_share"] <= 1


def test_the_metrics_are_of_the_best_epoch_on_the_test_split_by_patient(finished):
    workdir, metrics = finished
    assert metrics == json.loads((workdir / "metrics.json").read_text())
    losses = [row["val_loss"] for row in history_of(workdir)]
    assert metrics["best_epoch"] == 1 + int(np.argmin(losses))
    assert (metrics["split"], metrics["num_examples"], metrics["num_patients"]) == ("test", 30, 15)
    assert metrics["bootstrap_by"] == "patient"
    assert sum(map(sum, metrics["confusion_matrix"])) == 30


def test_every_default_is_written_down(finished, data):
    workdir, _ = finished
    written = json.loads((workdir / "config.json").read_text())["config"]
    assert set(written) == {field.name for field in dataclasses.fields(TrainConfig)}
    assert written["global_batch_size"] == 16
    assert written["precision"] == "float32"
    assert written["weights"] == "none"


def test_a_complete_run_is_not_repeated(finished, data, capsys):
    workdir, metrics = finished
    before = {path: path.stat().st_mtime_ns for path in workdir.rglob("*.npz")}
    assert train_and_evaluate(config_of(data), workdir) == metrics
    assert "complete" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in workdir.rglob("*.npz")} == before


def test_a_folder_of_another_configuration_is_refused_with_what_differs(finished, data):
    workdir, _ = finished
    with pytest.raises(ConfigError) as raised:
        train_and_evaluate(config_of(data, seed=2, learning_rate=0.5), workdir)
    assert "seed: 1 there, 2 asked for" in str(raised.value)
    assert "learning_rate: 0.01 there, 0.5 asked for" in str(raised.value)


def test_a_folder_of_other_data_is_refused(finished, tmp_path):
    workdir, _ = finished
    manifest = write_marked_dataset(tmp_path, num_examples={"train": 90, "val": 20, "test": 30})
    other = dataclasses.replace(manifest, fingerprint="1" * 64)
    (tmp_path / "manifest.json").write_text(other.to_json())
    with pytest.raises(ConfigError, match="dataset: '0000"):
        train_and_evaluate(config_of(tmp_path), workdir)


def test_a_folder_that_is_none_of_a_run_is_not_written_to(data, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is no folder of a run"):
        train_and_evaluate(config_of(data), tmp_path)
    assert not (tmp_path / "config.json").exists()


def test_the_first_step_that_is_no_number_is_named(data, tmp_path):
    with pytest.raises(TrainingError, match=r"at step [2-9]: the weights went out of range"):
        train_and_evaluate(
            config_of(data, learning_rate=1e30, steps_per_execution=4, optimizer="sgd"), tmp_path
        )


def test_without_validation_the_last_epoch_is_kept_and_without_patients_images_are_drawn(
    tmp_path, capsys
):
    data = tmp_path / "data"
    write_marked_dataset(data, num_examples={"train": 40, "test": 12}, with_patients=False)
    metrics = train_and_evaluate(config_of(data, epochs=2), tmp_path / "run")
    assert (metrics["best_epoch"], metrics["bootstrap_by"]) == (2, "image")
    output = capsys.readouterr().out
    assert "no validation images" in output
    assert "does not say which patient" in output


def test_a_stop_at_a_step_saves_and_the_next_call_ends_with_the_same_weights(
    data, finished, tmp_path, monkeypatch
):
    """The exact example, optimizer and metrics; test_train_run does it with real signals."""
    from train import callbacks

    undisturbed, _ = finished
    workdir = tmp_path / "run"
    real_add = callbacks.EpochMeter.add
    stop_after = iter([2, 9, 12])  # in the middle of an epoch, twice, and at the end of one
    stops = 0
    for stop_step in stop_after:
        done = checkpoint.load_facts(workdir / "checkpoint.npz") or {"step": 0}
        steps_here = [stop_step - done["step"]]

        def add(meter, results, seconds, *, timed, steps_here=steps_here):
            steps_here[0] -= 1
            if steps_here[0] == 0:
                import os
                import signal

                os.kill(os.getpid(), signal.SIGTERM)
            real_add(meter, results, seconds, timed=timed)

        monkeypatch.setattr(callbacks.EpochMeter, "add", add)
        with pytest.raises(StoppedError, match=f"SIGTERM after step {stop_step}"):
            train_and_evaluate(config_of(data), workdir)
        stops += 1
    monkeypatch.undo()
    train_and_evaluate(config_of(data), workdir)
    assert stops == 3
    ours, theirs = np.load(workdir / "checkpoint.npz"), np.load(undisturbed / "checkpoint.npz")
    arrays = [name for name in ours.files if name != "facts"]
    assert len(arrays) > 20
    for name in arrays:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    for row, other in zip(history_of(workdir), history_of(undisturbed), strict=True):
        assert (row["loss"], row["val_loss"]) == (other["loss"], other["val_loss"])
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    ("fields", "has_backbone", "expected"),
    [
        ({"model": "convnet"}, False, [("all", 0, 4, 1e-3)]),
        ({"model": "vgg16", "weights": "none"}, True, [("all", 0, 4, 1e-3)]),
        ({"model": "vgg16"}, True, [("head", 0, 0, 1e-3), ("all", 1, 4, 1e-4)]),
        ({"model": "vgg16", "head_epochs": 0}, True, [("all", 0, 4, 1e-4)]),
        ({"model": "vgg16", "head_epochs": 5}, True, [("head", 0, 4, 1e-3)]),
        ({"model": "vgg16", "trainable_layers": 0}, True, [("head", 0, 4, 1e-3)]),
    ],
)
def test_phases_follow_from_the_configuration(fields, has_backbone, expected):
    config = TrainConfig(data="x", **fields).resolve(
        num_examples=1000, num_replicas=1, precision="float32", jit_compile=False
    )
    phases = plan_phases(config, has_backbone=has_backbone)
    assert [
        (phase.name, phase.first_epoch, phase.last_epoch, phase.learning_rate) for phase in phases
    ] == expected


def test_progress_survives_json():
    progress = Progress(step=3, totals={"loss_sum": 0.1}, best_value=None)
    assert Progress(**json.loads(json.dumps(dataclasses.asdict(progress)))) == progress


@pytest.mark.slow
def test_fine_tuning_trains_the_head_first_and_then_the_last_layers_alone(tmp_path):
    data = tmp_path / "data"
    write_marked_dataset(data, num_examples={"train": 16, "test": 8}, image_shape=(32, 32, 1))
    weights = tmp_path / "pretrained.weights.h5"
    source = keras.applications.VGG16(include_top=False, weights=None, input_shape=(32, 32, 3))
    source.save_weights(weights)
    before = {layer.name: [w.numpy() for w in layer.weights] for layer in source.layers}
    config = config_of(
        data, model="vgg16", weights=str(weights), epochs=2, replica_batch_size=8,
        fine_tune_learning_rate=0.02, optimizer="sgd",
    )  # fmt: skip
    train_and_evaluate(config, tmp_path / "run")
    rows = history_of(tmp_path / "run")
    assert [row["phase"] for row in rows] == ["head", "all"]
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.01, 0.02])
    trained = keras.saving.load_model(tmp_path / "run" / "export" / "model.keras")
    changed = {
        layer.name
        for layer in trained.get_layer("vgg16").layers
        if layer.weights
        and any(
            not np.array_equal(weight.numpy(), old)
            for weight, old in zip(layer.weights, before[layer.name], strict=True)
        )
    }
    assert changed == {"block5_conv1", "block5_conv2", "block5_conv3"}

import json
import math
import shutil

import keras
import numpy as np
import pytest
from dataset_factory import change_json
from marked_images import (
    KERAS_ARRAY_WARNING,
    OCT_NAMES,
    QUICK,
    SMALL_RUN,
    arrays_of,
    check_equal,
    flags,
    history_of,
    marked_data,
    metrics_of,
    predicted,
    rows_of,
    train_until,
    write_marked_dataset,
)

from tfrecord_io.decoding.preprocess import decoder_versions
from tfrecord_io.stores.files import atomic_write
from train import run
from train.kinds import measures
from train.machine.devices import Devices
from train.machine.errors import ConfigError, TrainingError
from train.results.classifier import load_classifier, other_decoder, predict_images
from train.training.checkpoint import load_checkpoint
from train.training.config import TrainConfig
from train.training.run_setup import claim, make_run
from train.training.trainer import train_and_evaluate

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAY_WARNING)


data = marked_data({"train": 90, "val": 20, "test": 30})


def config_of(data, **fields):
    return TrainConfig.of(data=str(data), **(SMALL_RUN | {"epochs": 3} | fields))


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run") / "run"
    return workdir, train_and_evaluate(config_of(data, best_by="val_loss"), workdir)


def test_a_run_leaves_everything_that_was_promised(finished):
    workdir, _ = finished
    names = {str(path.relative_to(workdir)) for path in workdir.rglob("*")}
    assert names >= {
        "config.json", "history.json", "metrics.json", "predictions.csv", "checkpoint.npz",
        "best.npz", "export/model.keras", "export/saved_model/saved_model.pb",
        "export/model.weights.h5", "export/architecture.json", "export/preprocessing.json",
        "plots/curves.svg", "plots/confusion.svg", "plots/roc.svg", "plots/reliability.svg",
        "report.html",
    }  # fmt: skip
    written = json.loads((workdir / "config.json").read_text())["config"]
    assert set(written) == set(TrainConfig.of().to_dict())
    assert (written["global_batch_size"], written["weights"]) == (16, "none")


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
    assert metrics == metrics_of(workdir)
    losses = [row["val_loss"] for row in history_of(workdir)]
    assert metrics["best_epoch"] == 1 + int(np.argmin(losses))
    assert (metrics["split"], metrics["num_examples"], metrics["num_patients"]) == ("test", 30, 15)
    assert metrics["bootstrap_by"] == "patient"
    assert sum(map(sum, metrics["confusion_matrix"])) == 30


def test_a_complete_run_is_not_repeated(finished, data, capsys):
    workdir, metrics = finished
    before = {path: path.stat().st_mtime_ns for path in workdir.rglob("*.npz")}
    assert train_and_evaluate(config_of(data, best_by="val_loss"), workdir) == metrics
    assert "complete" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in workdir.rglob("*.npz")} == before


def test_a_folder_of_another_configuration_is_refused_with_what_differs(finished, data):
    workdir, _ = finished
    with pytest.raises(ConfigError) as raised:
        train_and_evaluate(config_of(data, seed=2, learning_rate=0.5), workdir)
    assert "seed: 1 in the folder, 2 requested" in str(raised.value)
    assert "learning_rate: 0.01 in the folder, 0.5 requested" in str(raised.value)


def test_a_folder_of_other_data_is_refused(finished, data, tmp_path):
    workdir, _ = finished
    other = shutil.copytree(data, tmp_path / "data")
    change_json(other / "manifest.json", fingerprint="1" * 64)
    with pytest.raises(ConfigError, match="dataset: '0000"):
        train_and_evaluate(config_of(other), workdir)


def test_a_run_without_all_its_settings_is_refused_and_damaged_metrics_are_measured_again(
    finished, data, tmp_path
):
    workdir, metrics = shutil.copytree(finished[0], tmp_path / "run"), finished[1]
    (workdir / "metrics.json").write_text('{"split')
    assert train_and_evaluate(config_of(data, best_by="val_loss"), workdir) == metrics
    (workdir / "config.json").write_text('{"config": {}}')
    with pytest.raises(ConfigError, match="contains a run with another configuration"):
        train_and_evaluate(config_of(data, best_by="val_loss"), workdir)


def test_a_folder_that_is_none_of_a_run_is_not_written_to(data, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="it is not a run folder"):
        train_and_evaluate(config_of(data), tmp_path)
    assert not (tmp_path / "config.json").exists()


def test_a_dataset_of_one_class_is_refused(tmp_path):
    write_marked_dataset(tmp_path / "data", num_examples={"train": 2}, label_names=("NORMAL",))
    with pytest.raises(ConfigError, match="has one class, NORMAL, so there is nothing to tell"):
        train_and_evaluate(config_of(tmp_path / "data"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_weights_that_went_out_of_range_in_the_last_step_are_a_failed_run(data, tmp_path):
    """Nobody sees the loss of the step that would come next."""
    config = config_of(data, epochs=1, replica_batch_size=90, learning_rate=1e30, optimizer="sgd")
    with pytest.raises(TrainingError, match="probabilities that are not numbers on val"):
        train_and_evaluate(config, tmp_path / "run")
    assert not (tmp_path / "run" / "export").exists()


@pytest.mark.slow
def test_without_validation_the_last_epoch_is_kept_and_without_patients_images_are_drawn(
    tmp_path, capsys
):
    data = tmp_path / "data"
    write_marked_dataset(data, num_examples={"train": 40, "test": 12}, with_patients=False)
    metrics = train_and_evaluate(config_of(data, epochs=2), tmp_path / "run")
    assert (metrics["best_epoch"], metrics["bootstrap_by"]) == (2, "image")
    output = capsys.readouterr().out
    assert "images is unknown, so they" in output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_examples", "label_names", "fields"),
    [(1, OCT_NAMES, {}), (5, OCT_NAMES, QUICK)],
    ids=("one image, all defaults", "few images"),
)
def test_without_validation_and_test_images_a_run_says_so_and_ends_with_the_export(
    tmp_path, capsys, num_examples, label_names, fields
):
    """A class may have one image, or none."""
    data, workdir = tmp_path / "data", tmp_path / "run"
    write_marked_dataset(data, num_examples={"train": num_examples}, label_names=label_names)
    arguments = [
        f"--data={data}", f"--workdir={workdir}", "--epochs=2", "--strategy=single",
        *flags(**fields),
    ]  # fmt: skip
    assert run.main(arguments) == 0
    before, _, after = capsys.readouterr().out.partition("epoch 1/2")
    assert "note: there are no validation and no test images" in before
    assert "epoch 2/2" in after
    found = metrics_of(workdir)
    assert (found["split"], found["best_epoch"], found["steps"]) == (None, 2, 2)
    assert not (workdir / "predictions.csv").exists()
    classifier = load_classifier(workdir)
    probabilities = predict_images(classifier, np.zeros((1, 12, 12, 1), np.uint8))
    assert probabilities.shape == (1, len(label_names))
    # It is complete: nothing is trained again.
    assert run.main(arguments) == 0
    assert "complete; nothing to do" in capsys.readouterr().out


@pytest.mark.slow
def test_without_a_test_split_the_metrics_are_of_validation_without_a_temperature(tmp_path):
    """What is fitted to the validation split must not be reported of it."""
    data = tmp_path / "data"
    write_marked_dataset(data, num_examples={"train": 40, "val": 12})
    found = train_and_evaluate(config_of(data, epochs=1), tmp_path / "run")
    assert (found["split"], found["num_examples"]) == ("val", 12)
    assert "calibration" not in found
    assert "thresholds" not in found


def test_what_a_killed_process_left_half_written_does_not_block_its_folder(data, tmp_path):
    with atomic_write(tmp_path / "config.json"):
        (leftover,) = tmp_path.glob(".config.json.*")
    (tmp_path / "config.json").unlink()
    leftover.write_bytes(b'{"half": ')
    with claim(make_run(config_of(data), tmp_path)):
        assert not leftover.exists()
        assert (tmp_path / "config.json").exists()


@pytest.mark.slow
def test_a_stop_at_a_step_saves_and_the_next_call_ends_with_the_same_weights(
    data, finished, tmp_path, monkeypatch
):
    """The exact example, optimizer and metrics; test_train_run does it with real signals."""
    undisturbed, _ = finished
    workdir = tmp_path / "run"
    config = config_of(data, best_by="val_loss")
    for step in (9, 12):  # in the middle of the second epoch and at its end
        train_until(step, config, workdir, monkeypatch)
    train_and_evaluate(config, workdir)
    ours = arrays_of(workdir / "checkpoint.npz")
    assert len(ours) > 20
    check_equal(ours, arrays_of(undisturbed / "checkpoint.npz"))
    for row, other in zip(history_of(workdir), history_of(undisturbed), strict=True):
        assert (row["loss"], row["val_loss"]) == (other["loss"], other["val_loss"])


@pytest.mark.slow
def test_the_kept_weights_are_those_of_the_best_epoch_whenever_the_run_is_stopped(
    data, tmp_path, monkeypatch
):
    """They lie in the checkpoint with the name of their epoch. A loss that is NaN never wins."""
    workdir = tmp_path / "run"
    losses = iter([math.nan, 1.0, 2.0, math.nan])
    real = measures.cross_entropy
    monkeypatch.setattr(measures, "cross_entropy", lambda *given: next(losses, real(*given)))
    config = config_of(data, epochs=4, best_by="val_loss")
    train_until(12, config, workdir, monkeypatch)  # the end of the second epoch
    kept = arrays_of(workdir / "checkpoint.npz", "best")
    weights = list(arrays_of(workdir / "checkpoint.npz", "model").values())
    assert [value.tolist() for value in kept.values()] == [value.tolist() for value in weights]
    train_until(20, config, workdir, monkeypatch)  # in the fourth
    facts, _ = load_checkpoint(workdir / "checkpoint.npz")
    assert (facts["best_epoch"], len(facts["history"])) == (2, 3)
    check_equal(arrays_of(workdir / "checkpoint.npz", "best"), kept)
    assert train_and_evaluate(config, workdir)["best_epoch"] == 2
    exported = arrays_of(workdir / "best.npz", "model")
    assert [value.tolist() for value in exported.values()] == [
        value.tolist() for value in kept.values()
    ]


@pytest.mark.slow
def test_what_is_reported_is_what_predict_says_of_the_same_files(
    built_dataset, source_tree, tmp_path, capsys
):
    """To the last digit written, although the layers were trained in reduced precision."""
    workdir = tmp_path / "run"
    config = config_of(
        built_dataset, epochs=1, replica_batch_size=4, precision="bfloat16", test_time_flip=True
    )
    found = train_and_evaluate(config, workdir)
    assert found["calibration"]["fitted_on"] == "val"
    reported = rows_of(workdir)
    assert len(reported) == found["num_examples"] > 3
    files = [str(source_tree / row["path"]) for row in reported]
    answers = predicted(capsys, workdir, *files)
    assert [row["path"] for row in answers] == files
    for ours, theirs in zip(answers, reported, strict=True):
        assert ours["predicted"] == theirs["predicted"]
        for name in ("CNV", "NORMAL"):
            assert float(ours[name]) == float(theirs[name])
    # The export names the versions that decoded the training images.
    classifier = load_classifier(workdir)
    assert classifier.decoder == decoder_versions()
    assert other_decoder(classifier) is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model": "convnet"}, [("all", 0, 4, 1e-3)]),
        ({"model": "vgg16", "weights": "none"}, [("all", 0, 4, 1e-3)]),
        ({"model": "vgg16"}, [("head", 0, 0, 1e-3), ("all", 1, 4, 1e-4)]),
        ({"model": "vgg16", "head_epochs": 0}, [("all", 0, 4, 1e-4)]),
        ({"model": "vgg16", "head_epochs": 5}, [("head", 0, 4, 1e-3)]),
        ({"model": "vgg16", "trainable_layers": 0}, [("head", 0, 4, 1e-3)]),
    ],
)
def test_phases_follow_from_the_configuration(fields, expected):
    config = TrainConfig.of(data="x", epochs=5, learning_rate=1e-3, **fields)
    devices = Devices(backend="tensorflow", names=("CPU:0",))
    assert config.resolve(1000, devices).phases == expected


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
        for layer in trained.get_layer("vgg16").get_layer("vgg16").layers
        if layer.weights
        and any(
            not np.array_equal(weight.numpy(), old)
            for weight, old in zip(layer.weights, before[layer.name], strict=True)
        )
    }
    assert changed == {"block5_conv1", "block5_conv2", "block5_conv3"}

import json
import os
import re
import shutil
import signal
from collections import Counter

import keras
import marked_images
import numpy as np
import pyarrow.parquet as pq
import pytest
from builds import files_of
from dataset_factory import change_json
from image_files import write_tree
from marked_images import (
    CLASS_RUN,
    OCT_NAMES,
    arrays_of,
    check_equal,
    flags,
    history_of,
    metrics_of,
    predicted,
    rows_of,
    train,
    write_marked_dataset,
)

from tfrecord_io.decoding.preprocess import decoder_versions
from tfrecord_io.format.kinds import CLASSES, MULTI_LABEL
from tfrecord_io.terminal.errors import UserError
from train import run
from train.data.seen import read_seen
from train.extras.bucket import open_run
from train.machine.errors import TrainingError
from train.machine.places import RunFolder
from train.results.classifier import load_classifier
from train.training import training_loop
from train.training.config import TrainConfig
from train.training.session import open_sessions
from train.training.steps import StepResults, TensorFlowSteps
from train.training.trainer import train_and_evaluate


def config_of(data, **fields):
    return TrainConfig.of(data=str(data), **(CLASS_RUN | fields))


def test_a_run_learns_and_leaves_everything_that_was_promised(class_run):
    names = {str(path.relative_to(class_run)) for path in class_run.rglob("*")}
    assert names >= {
        "config.json", "history.json", "metrics.json", "predictions.csv", "checkpoint.npz",
        "best.npz", "export/model.keras", "export/saved_model/saved_model.pb",
        "export/model.weights.h5", "export/architecture.json", "export/preprocessing.json",
        "plots/loss.svg", "plots/roc.svg", "report.html",
    }  # fmt: skip
    written = json.loads((class_run / "config.json").read_text())["config"]
    assert set(written) == set(TrainConfig.of().to_dict())
    assert (written["global_batch_size"], written["weights"]) == (16, "none")
    history, metrics = history_of(class_run), metrics_of(class_run)
    assert [row["step"] for row in history] == [6, 12, 17]  # 90 images in batches of 16
    assert history[-1]["loss"] < 0.8 * history[0]["loss"]
    for row in history:
        assert row["step_ms"] * row["images_per_second"] == pytest.approx(15000, rel=0.1)
        assert 0 <= row["input_wait_share"] <= 1
    assert metrics["best_epoch"] == 3
    assert (metrics["split"], metrics["num_examples"], metrics["num_patients"]) == ("test", 30, 15)
    assert metrics["bootstrap_by"] == "patient"
    assert metrics["scores"]["accuracy"]["value"] > 0.4  # chance is 0.25


def test_a_complete_run_is_not_repeated(class_run, class_data, capsys):
    before = {path: path.stat().st_mtime_ns for path in class_run.rglob("*.npz")}
    assert train_and_evaluate(config_of(class_data), class_run) == metrics_of(class_run)
    assert "complete" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in class_run.rglob("*.npz")} == before


def claimed(config, folder, **how):
    with marked_images.claimed(config, folder, **how):
        return folder


def test_a_folder_of_another_run_is_refused_with_what_differs_from_its_first_checkpoint_on(
    class_data, tmp_path
):
    folder = claimed(config_of(class_data, seed=3), tmp_path / "run")
    claimed(config_of(class_data), folder)
    assert json.loads((folder / "config.json").read_text())["config"]["seed"] == 1
    (folder / "checkpoint.npz").touch()
    other = shutil.copytree(class_data, tmp_path / "data")
    change_json(other / "manifest.json", fingerprint="1" * 64)
    for data, fields, message in (
        (class_data, {"seed": 2}, "seed: 1 in the folder, 2 requested"),
        (other, {}, "dataset: '0000"),
    ):
        with pytest.raises(UserError, match=message):
            claimed(config_of(data, **fields), folder)


def test_overwrite_replaces_a_run_at_the_first_checkpoint_and_nothing_else(
    class_run, class_data, tmp_path
):
    mine = {"notes.txt": b"mine", "export/model.txt": b"mine", "plots/my notes.svg": b"mine"}
    folder = write_tree(shutil.copytree(class_run, tmp_path / "run"), mine)
    before, new = files_of(folder), RunFolder.at(folder)
    for ends in ("without a checkpoint", "with one"):
        with marked_images.claimed(config_of(class_data, seed=2), new, overwrite=True):
            found = files_of(folder)
            assert {name for name in found if name[0] != "."} == {*mine, "config.json"}
            with pytest.raises(UserError, match=f"the run in {folder} is being replaced"):
                open_run(str(folder / "export"))
            (folder / "checkpoint.npz").write_bytes(b"new")
            if ends == "with one":
                new.save()
        now = files_of(folder)
        assert now == before or ends == "with one"
    assert now.keys() == {*mine, "config.json", "checkpoint.npz"}


def test_overwrite_that_is_refused_leaves_the_run_as_it_was(
    class_run, class_data, tmp_path, capsys
):
    folder = shutil.copytree(class_run, tmp_path / "run")
    (broken := tmp_path / "broken.weights.h5").write_bytes(b"cut off")
    before = files_of(folder)
    for told, how in {
        f"--init {folder} is in --workdir {folder}": {"init": folder},
        "broken.weights.h5": {"weights": broken, "model": "efficientnet_lite0"},
        "do not fit: the network": {"init": class_run, "model": "small_resnet"},
        "gives the first weights; leave out": {"init": class_run, "weights": "none"},
        "config.json does not exist": {"init": tmp_path},
    }.items():
        words = [f"--data={class_data}", f"--workdir={folder}", "--overwrite"]
        assert run.main(words + flags(**CLASS_RUN | how)) == 2, told
        assert told in capsys.readouterr().err
        assert files_of(folder) == before, told


def test_what_is_no_run_is_not_replaced_but_for_what_a_killed_process_left_half_written(
    class_data, tmp_path
):
    (tmp_path / ".config.json.1234.tmp").write_bytes(b'{"half": ')
    claimed(config_of(class_data), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    (tmp_path / "config.json").rename(tmp_path / "thesis.txt")
    with pytest.raises(UserError, match="it is not a run folder"):
        claimed(config_of(class_data), tmp_path)
    (tmp_path / "config.json").write_text('{"model": "of another program"}')
    with pytest.raises(UserError, match="not the configuration of a run"):
        claimed(config_of(class_data), tmp_path, overwrite=True)
    assert (tmp_path / "thesis.txt").exists()


def test_a_run_that_starts_from_another_one_knows_its_names_and_has_seen_what_that_has_seen(
    class_run, tmp_path, capsys
):
    names = ("AMD", "NORMAL", "CNV")
    write_marked_dataset(tmp_path / "data", {"train": 8}, label_names=names)
    # Its learning rate is too small to change the weights.
    few = {"epochs": 1, "learning_rate": 1e-9, "replica_batch_size": 8}
    assert train(tmp_path / "data", tmp_path / "run", init=class_run, **few) == 0
    said, num_seen = capsys.readouterr().out, len(read_seen(class_run).images)
    names_of_outputs = "kept: NORMAL, CNV; new, untrained: AMD; lost: DME, DRUSEN"
    assert f"which have seen {num_seen} images; outputs {names_of_outputs}\n" in said
    parts = read_seen(tmp_path / "run").images["part"].to_pylist()
    assert Counter(parts) == {"train": 8, "init": num_seen}
    ours, theirs = (arrays_of(run / "best.npz", "model") for run in (tmp_path / "run", class_run))
    for name, values in ours.items():
        is_of_outputs = values.shape[-1] == len(names)
        expected = theirs[name][..., [3, 0]] if is_of_outputs else theirs[name]
        np.testing.assert_allclose(
            values[..., 1:] if is_of_outputs else values, expected, atol=1e-6
        )


def test_what_cannot_be_learned_is_refused_before_a_folder_is_made(class_run, tmp_path):
    for (names, kind), init, message in (
        ((("cnv", "normal"), CLASSES), class_run, "learned the classes .* has the classes cnv"),
        ((OCT_NAMES, MULTI_LABEL), class_run, "learned the classes .* the dataset has the labels"),
        ((("NORMAL",), CLASSES), None, "has one class, NORMAL, so there is nothing to tell"),
    ):
        write_marked_dataset(tmp_path / "data", {"train": 4}, label_names=names, label_kind=kind)
        config = config_of(tmp_path / "data", init=init and str(init))
        with pytest.raises(UserError, match=message):
            train_and_evaluate(config, tmp_path / "run")
        shutil.rmtree(tmp_path / "data")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_one_image_and_all_defaults_are_a_run_that_says_what_it_lacks_and_ends_with_the_export(
    tmp_path, capsys
):
    data, workdir = tmp_path / "data", tmp_path / "run"
    write_marked_dataset(data, num_examples={"train": 1})
    assert run.main([f"--data={data}", f"--workdir={workdir}", "--epochs=2"]) == 0
    assert "note: there are no validation and no test images" in capsys.readouterr().out
    found = metrics_of(workdir)
    assert (found["split"], found["best_epoch"], found["steps"]) == (None, 2, 2)
    assert not (workdir / "predictions.csv").exists()
    assert load_classifier(workdir).label_names == OCT_NAMES


@pytest.mark.slow
@pytest.mark.parametrize("measured", ["val", "test"])
def test_without_one_split_the_other_is_measured_without_a_temperature(tmp_path, measured):
    """What is fitted to the validation split must not be reported of it."""
    data = tmp_path / "data"
    write_marked_dataset(data, num_examples={"train": 40, measured: 12}, with_patients=False)
    found = train_and_evaluate(config_of(data, epochs=1), tmp_path / "run")
    assert (found["split"], found["num_examples"]) == (measured, 12)
    assert found["bootstrap_by"] == "image"
    assert not {"calibration", "thresholds"} & set(found)


def test_the_weights_that_a_run_ends_with_are_kept_before_the_checkpoint_that_says_it_is_done(
    class_data, class_run, tmp_path, monkeypatch
):
    real_save = training_loop.save_checkpoint

    def save_last(path, groups, facts):
        if path.name == "checkpoint.npz":
            raise TrainingError("killed here")
        real_save(path, groups, facts)

    (session,) = open_sessions(config_of(class_data, epochs=1, ema_decay=0.9))
    with monkeypatch.context() as patch:
        patch.setattr(training_loop, "save_checkpoint", save_last)
        with pytest.raises(TrainingError, match="killed here"):
            training_loop.train(session, RunFolder.at(tmp_path))
    kept = arrays_of(tmp_path / "best.npz", "model")
    training_loop.train(session, RunFolder.at(tmp_path))
    check_equal(arrays_of(tmp_path / "best.npz", "model"), kept)
    # They are the moving averages, and those of the last step where none are kept.
    for folder, is_same in ((tmp_path, False), (class_run, True)):
        groups = (arrays_of(folder / name, "model") for name in ("best.npz", "checkpoint.npz"))
        best, last = (each.values() for each in groups)
        assert all(map(np.array_equal, best, last)) == is_same


@pytest.mark.parametrize(
    ("loss", "num_traces", "message"),
    [(np.nan, 1, "the loss is nan at step 1: "), (1.0, 2, "traced again before step 1")],
)
def test_a_loss_that_is_no_number_and_a_graph_that_is_traced_again_end_the_run(
    class_data, tmp_path, monkeypatch, loss, num_traces, message
):
    def step(steps, batches):
        steps.num_traces += num_traces
        return StepResults(totals=np.array([loss, 0, 4], np.float32), wait_seconds=0.0)

    monkeypatch.setattr(TensorFlowSteps, "train", step)
    with pytest.raises(TrainingError, match=message):
        train_and_evaluate(config_of(class_data), tmp_path / "run")


@pytest.mark.slow
def test_what_is_reported_is_what_predict_says_of_the_same_files(
    built_dataset, source_tree, tmp_path, capsys
):
    """To the last digit written, although the layers were trained in reduced precision."""
    workdir = tmp_path / "run"
    config = config_of(
        built_dataset, epochs=1, replica_batch_size=4, precision="bfloat16", augment=True
    )
    found = train_and_evaluate(config, workdir)
    assert found["calibration"]["fitted_on"] == "val"
    reported = rows_of(workdir)
    assert len(reported) == found["num_examples"] > 3
    files = [str(source_tree / row["path"]) for row in reported]
    answers = predicted(capsys, workdir, *files)
    assert [row["path"] for row in answers] == files
    for ours, theirs in zip(answers, reported, strict=True):
        for name in ("predicted", "CNV", "NORMAL"):
            assert ours[name] == theirs[name] or float(ours[name]) == float(theirs[name])
    facts = json.loads((workdir / "export" / "preprocessing.json").read_text())
    assert facts["decoder"] == decoder_versions()


@pytest.mark.slow
def test_fine_tuning_trains_the_head_first_and_then_the_last_layers_alone(tmp_path):
    data = tmp_path / "data"
    write_marked_dataset(data, num_examples={"train": 16, "test": 8}, image_shape=(32, 32, 1))
    weights = tmp_path / "pretrained.weights.h5"
    source = keras.applications.VGG16(include_top=False, weights=None, input_shape=(32, 32, 3))
    source.save_weights(weights)
    config = config_of(
        data, model="vgg16", weights=str(weights), epochs=2, replica_batch_size=8,
        fine_tune_learning_rate=0.02, optimizer="sgd",
    )  # fmt: skip
    train_and_evaluate(config, tmp_path / "run")
    rows = history_of(tmp_path / "run")
    assert [row["phase"] for row in rows] == ["head", "all"]
    trained = keras.saving.load_model(tmp_path / "run" / "export" / "model.keras")
    trained = trained.get_layer("vgg16").get_layer("vgg16")
    changed = {
        layer.name
        for layer, before in zip(trained.layers, source.layers, strict=True)
        if not all(map(np.array_equal, layer.get_weights(), before.get_weights()))
    }
    assert changed == {"block5_conv1", "block5_conv2", "block5_conv3"}


# ---- cross-validation


NUM_IMAGES = 60  # of train and val together


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Images of which each class is a site."""
    path = tmp_path_factory.mktemp("data")
    write_marked_dataset(path, num_examples={"train": 44, "val": 16, "test": 8})
    table = pq.read_table(path / "examples.parquet")
    pq.write_table(table.append_column("site", table["label"]), path / "examples.parquet")
    return path


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "folds"
    assert train(data, workdir, folds=2) == 0
    return workdir


@pytest.mark.slow
def test_every_image_is_predicted_once_by_the_fold_that_has_not_seen_it_and_all_are_pooled(
    finished,
):
    metrics, rows = metrics_of(finished), rows_of(finished)
    counts = Counter(row["path"] for row in rows)
    assert set(counts.values()) == {1}
    assert len(counts) == NUM_IMAGES
    assert not [path for path in counts if path.startswith("test/")]
    for fold in range(2):
        folder = finished / f"fold-{fold}"
        seen = set(pq.read_table(folder / "seen.parquet")["key"].to_pylist())
        assert seen == {row["key"] for row in rows} - {row["key"] for row in rows_of(folder)}
    sites = {name: site["num_examples"] for name, site in metrics["sites"].items()}
    assert sites == Counter(row["label"] for row in rows)
    right = np.mean([row["label"] == row["predicted"] for row in rows])
    accuracy = metrics["scores"]["accuracy"]
    assert accuracy["value"] == pytest.approx(right, abs=1e-6)
    assert accuracy["low"] <= right <= accuracy["high"]
    assert [one["fold"] for one in metrics["folds"]] == [0, 1]
    assert metrics["spread"]["accuracy"]["std_over_folds"] is not None


@pytest.mark.slow
def test_a_stopped_cross_validation_goes_on_at_its_fold_and_step(
    data, finished, tmp_path, monkeypatch
):
    workdir, steps_left = tmp_path / "folds", [metrics_of(finished / "fold-0")["steps"] + 2]
    real_step = TensorFlowSteps.train

    def step(*given):
        steps_left[0] -= 1
        if steps_left[0] == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return real_step(*given)

    with monkeypatch.context() as patch:
        patch.setattr(TensorFlowSteps, "train", step)
        assert train(data, workdir, folds=2) == 143
    assert [(workdir / f"fold-{fold}/metrics.json").exists() for fold in (0, 1)] == [True, False]
    before = (workdir / "fold-0" / "checkpoint.npz").stat().st_mtime_ns
    assert train(data, workdir, folds=2) == 0
    assert (workdir / "fold-0" / "checkpoint.npz").stat().st_mtime_ns == before
    for found, expected in zip(rows_of(workdir), rows_of(finished), strict=True):
        assert found["key"] == expected["key"]
        assert float(found["CNV"]) == pytest.approx(float(expected["CNV"]), abs=1e-5)


def test_folds_without_patients_are_refused_before_the_first_is_trained(tmp_path, capsys):
    write_marked_dataset(tmp_path, num_examples={"train": 20})
    assert train(tmp_path, tmp_path / "run", folds=6, replica_batch_size=4) == 2
    told = capsys.readouterr().err
    assert re.search(r"fold [1-5] of 6 has 0 of the 20 images: there are too few patients", told)
    assert not (tmp_path / "run").exists()

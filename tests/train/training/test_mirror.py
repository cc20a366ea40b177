"""A run in a bucket: what is uploaded when, who may do so, and what others read of it."""

import re
import shutil
import tempfile

import pytest
from marked_images import (
    CLASS_RUN,
    KERAS_ARRAY_WARNING,
    arrays_of,
    check_equal,
    metrics_of,
    picture_files,
    predicted,
    train,
)
from s3_server import BUCKET

import scan_tfrecords
from tfrecord_io.stores import remote
from tfrecord_io.terminal.errors import DeniedError
from train import evaluate
from train.machine.errors import ConfigError
from train.training import training_loop
from train.training.config import TrainConfig
from train.training.mirror import local_copy, opened
from train.training.run_setup import claim, make_run

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAY_WARNING)


@pytest.fixture
def url(s3, tmp_path, monkeypatch):
    """The URL of an empty folder; local copies are below `tmp_path`."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return f"s3://{BUCKET}/{tmp_path.name}"


@pytest.fixture
def run_url(url, class_run):
    """The URL of a finished run."""
    with local_copy(url) as (folder, mirror):
        shutil.copytree(class_run, folder)
        mirror.upload(folder)
    return url


def test_an_upload_that_ends_anywhere_leaves_a_state_that_is_whole(s3, run_url, tmp_path):
    names = s3.read(f"{tmp_path.name}/").keys()
    assert not [name for name in names if "tensorboard" in name]
    assert {path.parent.name for path in tmp_path.rglob("*.*") if path.is_file()} == {"tensorboard"}
    for number in range(1, len(names)):  # each attempt uploads one more
        with local_copy(run_url) as (folder, mirror), s3.failing("403 Forbidden", after=1):
            for name in names:
                (folder / name).write_bytes(b"new")
            with pytest.raises(DeniedError):
                mirror.upload(folder)
        files = s3.read(f"{tmp_path.name}/").items()
        assert len(new := {name for name, content in files if content == b"new"}) == number
        assert "metrics.json" not in new
        assert ("checkpoint.npz" in new) == (number == len(names) - 1)


def test_a_run_in_a_bucket_goes_on_from_there_and_ends_as_a_local_one(
    s3, url, class_data, class_run, capsys
):
    with s3.failing("403 Forbidden", after=12):
        assert train(class_data, url, **CLASS_RUN, checkpoint_seconds=0) == 1
    capsys.readouterr()
    assert train(class_data, url, **CLASS_RUN) == 0
    said = capsys.readouterr().out
    assert re.search(r"going on after step \d+, in epoch [23]", said)
    assert f"The model, its metrics and report.html are in {url}" in said
    assert train(class_data, url, **CLASS_RUN) == 0
    assert capsys.readouterr().out == f"the run in {url} is complete; nothing to do\n"
    assert metrics_of(opened(url)) == metrics_of(class_run)
    check_equal(arrays_of(opened(url) / "best.npz"), arrays_of(class_run / "best.npz"))


def test_of_two_trainers_the_one_that_saves_second_is_refused(url, class_data):
    config = TrainConfig.of(data=str(class_data), **CLASS_RUN)
    with local_copy(url) as (folder, mirror), claim(make_run(config, folder, mirror)):
        assert train(class_data, url, **CLASS_RUN) == 0
        with pytest.raises(ConfigError, match=f"another process is training in {url}: it has cha"):
            training_loop.train(make_run(config, folder, mirror))


def test_another_run_in_a_bucket_is_refused_or_removed(s3, run_url, class_data, tmp_path):
    config = TrainConfig.of(data=str(class_data), **CLASS_RUN | {"seed": 2})
    with local_copy(run_url) as (folder, mirror):
        run = make_run(config, folder, mirror)
        with pytest.raises(ConfigError, match=f"{run_url} contains a run with another"), claim(run):
            pass
        with claim(run, overwrite=True):
            assert s3.read(f"{tmp_path.name}/").keys() == {"config.json"}


def test_what_is_not_a_run_is_refused(url, class_data, capsys):
    remote.replace(f"{url}/thesis.txt", b"mine", None)
    for workdir, message in ((url, "not empty and not a run"), ("https://h/x", "single files")):
        assert train(class_data, workdir) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(ConfigError, match=f"{url} is not a finished run"):
        opened(url)


def test_a_run_in_a_bucket_predicts_is_measured_and_starts_another(
    run_url, class_run, class_data, tmp_path, capsys
):
    assert scan_tfrecords.Run(run_url).metrics == metrics_of(class_run)
    files = picture_files(class_data, tmp_path)
    assert predicted(capsys, run_url, *files) == predicted(capsys, class_run, *files)
    words = [f"--data={class_data}", "--bootstrap_samples=20", "--include_seen"]
    assert evaluate.main([f"--run={run_url}", *words]) == 2
    assert "name a folder for the results with --output" in capsys.readouterr().err
    assert evaluate.main([f"--run={run_url}", *words, f"--output={tmp_path}"]) == 0
    measured, own = metrics_of(tmp_path), metrics_of(class_run)
    assert measured["model"] == run_url
    assert measured["confusion_matrix"] == own["confusion_matrix"]
    assert train(class_data, tmp_path / "next", init=run_url, epochs=1) == 0
    assert f"starts from the weights of {run_url}, which have seen" in capsys.readouterr().out

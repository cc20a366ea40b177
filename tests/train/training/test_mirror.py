"""A run in a bucket: what is uploaded when, who may do so, and what others read of it."""

import re
import tempfile

import numpy as np
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

from tfrecord_io.terminal.address import Address
from tfrecord_io.terminal.errors import DeniedError
from train import evaluate
from train.machine.errors import ConfigError
from train.training import training_loop
from train.training.config import TrainConfig
from train.training.mirror import Mirror, local_copy, opened
from train.training.run_setup import claim, make_run

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAY_WARNING)

FILES = ("config.json", "history.json", "export/model.keras", "export/preprocessing.json",
         "checkpoint.npz", "metrics.json")  # fmt: skip


@pytest.fixture
def url(s3, tmp_path, monkeypatch):
    """The URL of an empty folder; local copies are below `tmp_path`."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return f"s3://{BUCKET}/{tmp_path.name}"


@pytest.fixture
def run_url(url, class_run):
    """The URL of a finished run."""
    Mirror(Address(url), class_run).upload(class_run)
    return url


def write_files(folder, content):
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def uploaded(s3, url):
    """Returns the files at a URL by name."""
    return s3.read(f"{url.removeprefix(f's3://{BUCKET}/')}/")


def test_an_upload_that_ends_anywhere_leaves_the_old_state_or_the_new_one(s3, url):
    with local_copy(url) as (folder, mirror):
        write_files(folder, "old")
        mirror.upload(folder)
    for number in range(1, len(FILES)):  # each attempt uploads one file
        with local_copy(url) as (folder, mirror), s3.failing("403 Forbidden", after=1):
            write_files(folder, "new")
            with pytest.raises(DeniedError):
                mirror.upload(folder)
        new = {name for name, content in uploaded(s3, url).items() if content == b"new"}
        assert len(new) == number
        assert ("checkpoint.npz" in new) == (number == len(FILES) - 1)
        assert "metrics.json" not in new


def test_what_is_gone_is_deleted_and_the_logs_stay(s3, url, tmp_path):
    with local_copy(url) as (folder, mirror):
        write_files(folder, "old")
        for name in ("tensorboard", "profile"):
            (folder / name).mkdir()
            (folder / name / "log").touch()
        mirror.upload(folder)
    left = [path.parent.name for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(left) == ["profile", "tensorboard"]
    with local_copy(url) as (folder, mirror):
        (folder / "history.json").unlink()
        mirror.upload(folder)
    assert uploaded(s3, url).keys() == set(FILES) - {"history.json"}


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
    with local_copy(url) as (folder, mirror):
        config = TrainConfig.of(data=str(class_data), **CLASS_RUN | {"seed": 1})
        second = make_run(config, folder, mirror)
        with claim(second):
            assert train(class_data, url, **CLASS_RUN) == 0
            told = rf"another process is training in {url}: it has changed \w+\.(json|npz|parquet)"
            with pytest.raises(ConfigError, match=told):
                training_loop.train(second)


def test_overwriting_a_run_removes_it_from_the_bucket(s3, run_url, class_data):
    config = TrainConfig.of(data=str(class_data), **CLASS_RUN | {"seed": 2})
    with local_copy(run_url) as (folder, mirror):
        run = make_run(config, folder, mirror)
        with pytest.raises(ConfigError, match=f"{run_url} contains a run with another"), claim(run):
            pass
        with claim(run, overwrite=True):
            assert uploaded(s3, run_url).keys() == {"config.json"}


def test_a_folder_of_something_else_is_refused(s3, url, class_data, capsys):
    s3.client.put_object(Bucket=BUCKET, Key=f"{url.rpartition('/')[2]}/thesis.txt", Body=b"mine")
    for data, message in ((url, "it is not a run folder"), ("https://host/x", "single files")):
        assert train(class_data, data) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(ConfigError, match=f"{url} is not a finished run"):
        opened(url)


def test_a_run_in_a_bucket_predicts_is_measured_and_starts_another(
    run_url, class_run, class_data, tmp_path, capsys
):
    files = picture_files(class_data, tmp_path)
    assert predicted(capsys, run_url, *files) == predicted(capsys, class_run, *files)
    words = [f"--data={class_data}", "--bootstrap_samples=20", "--include_seen"]
    assert evaluate.main([f"--run={run_url}", *words]) == 2
    assert "name a folder for the results with --output" in capsys.readouterr().err
    for run, name in ((run_url, "ours"), (class_run, "theirs")):
        assert evaluate.main([f"--run={run}", *words, f"--output={tmp_path / name}"]) == 0
    ours, theirs = (metrics_of(tmp_path / name) for name in ("ours", "theirs"))
    assert ours == theirs | {"model": run_url}
    assert train(class_data, tmp_path / "next", init=run_url, epochs=1, learning_rate=1e-9) == 0
    first, then = (np.load(folder / "best.npz") for folder in (class_run, tmp_path / "next"))
    assert np.allclose(first["model/00000"], then["model/00000"], atol=1e-4)

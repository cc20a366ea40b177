"""A run in a bucket: what is uploaded when, who may do so, and what others read of it."""

import itertools
import shutil
import tempfile

import marked_images as marked
import pytest
from image_files import write_tree
from s3_server import BUCKET

import scan_tfrecords
from tfrecord_io.stores import remote
from tfrecord_io.terminal.errors import StoreError, UserError
from train import evaluate
from train.extras import compare
from train.extras.bucket import open_run, working_folder
from train.training.config import TrainConfig


@pytest.fixture
def url(s3, tmp_path, monkeypatch):
    """The URL of an empty folder; local copies are below `tmp_path`."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return f"s3://{BUCKET}/{tmp_path.name}"


@pytest.fixture
def run_url(url, class_run):
    """The URL of a finished run."""
    with working_folder(url) as folder:
        shutil.copytree(class_run, folder.path)
        folder.save()
    return url


def test_an_upload_that_ends_anywhere_leaves_a_state_that_is_whole(s3, url, tmp_path):
    names = {"config.json", "a.csv", "export/preprocessing.json", "checkpoint.npz", "metrics.json"}
    with working_folder(url) as folder:
        write_tree(folder.path, dict.fromkeys({*names, "tensorboard/events.out"}, b"old"))
        folder.save()
    assert s3.read(f"{tmp_path.name}/").keys() == names
    assert {path.parent.name for path in tmp_path.rglob("*.*") if path.is_file()} == {"tensorboard"}
    for number in range(1, len(names)):  # each attempt uploads one more
        with working_folder(url) as folder, s3.failing("403 Forbidden", after=1):
            for name in names:
                (folder.path / name).write_bytes(b"new")
            with pytest.raises(StoreError) as raised:
                folder.save()
            assert raised.value.cause == "denied"
        files = s3.read(f"{tmp_path.name}/").items()
        assert len(new := {name for name, content in files if content == b"new"}) == number
        assert "metrics.json" not in new
        assert ("checkpoint.npz" in new) == (number == len(names) - 1)


def test_of_two_trainers_the_one_that_saves_second_is_refused(url):
    with working_folder(url) as ours, working_folder(url) as theirs:
        for folder in (ours, theirs):
            folder.path.mkdir(parents=True)
            (folder.path / "config.json").write_text(str(folder.path))
        ours.save()
        with pytest.raises(UserError, match=f"another process is training in {url}: it has cha"):
            theirs.save()


def test_what_is_not_this_run_is_refused_or_removed(s3, run_url, class_data, tmp_path):
    config = TrainConfig.of(data=str(class_data), **marked.CLASS_RUN | {"seed": 2})
    with working_folder(run_url) as folder:
        with pytest.raises(UserError, match=f"{run_url} contains a run with another"):
            marked.claimed(config, folder).__enter__()
        before = s3.read(f"{tmp_path.name}/")
        with marked.claimed(config, folder, overwrite=True):
            assert s3.read(f"{tmp_path.name}/") == before
            (folder.path / "checkpoint.npz").write_bytes(b"first")
            folder.save()
        assert s3.read(f"{tmp_path.name}/").keys() == {"config.json", "checkpoint.npz"}
    with pytest.raises(UserError, match=f"{run_url} is not a finished run"):
        open_run(run_url)
    remote.replace(f"{run_url}/a/b", b"of something else", None)
    with pytest.raises(UserError, match=f"{run_url}/a is not empty and not a run"):
        working_folder(f"{run_url}/a").__enter__()


def test_a_replacement_that_ends_anywhere_leaves_the_old_run_or_the_new(s3, url, tmp_path):
    names = "config.json", "checkpoint.npz", "metrics.json"
    old, new = dict.fromkeys(names, b"old"), dict.fromkeys(names[:2], b"new")
    mine, outcomes = {"notes.txt": b"mine"}, []
    for number in itertools.count():
        for name, content in (old | mine).items():
            s3.put(f"{tmp_path.name}/{name}", content)
        with working_folder(url) as folder:
            for name in old:
                (folder.path / name).unlink()
            for name, content in new.items():
                (folder.path / name).write_bytes(content)
            try:
                with s3.failing("403 Forbidden", after=number):
                    folder.saved(folder.path, True)
            except StoreError:
                pass
            else:
                break
        with working_folder(url):
            outcomes.append(s3.read(f"{tmp_path.name}/"))
    assert {True, False} == {found == old | mine for found in outcomes}
    assert all(found in (old | mine, new | mine) for found in outcomes)
    assert s3.read(f"{tmp_path.name}/") == new | mine


@pytest.mark.slow
def test_a_run_in_a_bucket_predicts_is_measured_and_starts_another(
    run_url, class_run, class_data, tmp_path, capsys
):
    assert scan_tfrecords.Run(run_url).metrics == marked.metrics_of(class_run)
    files = marked.picture_files(class_data, tmp_path)
    assert marked.predicted(capsys, run_url, *files) == marked.predicted(capsys, class_run, *files)
    words = [f"--run={run_url}", f"--data={class_data}", "--include_seen"]
    assert evaluate.main(words) == 2
    assert "name a folder for the results with --output" in capsys.readouterr().err
    assert evaluate.main([*words, f"--output={tmp_path}"]) == 0
    assert marked.metrics_of(tmp_path)["model"] == run_url
    assert marked.train(class_data, tmp_path / "next", init=run_url, epochs=1) == 0
    assert f"starts from the weights of {run_url}, which have seen" in capsys.readouterr().out
    # The configuration of that training names the bucket, too.
    again = {"config": tmp_path / "next", "epochs": 1}
    assert marked.train(class_data, tmp_path / "again", **again) == 0
    assert f"starts from the weights of {run_url}, which have seen" in capsys.readouterr().out
    assert compare.main([run_url, str(tmp_path / "next")]) == 0
    assert "on 30 images of 15 patients that both have measured" in capsys.readouterr().out

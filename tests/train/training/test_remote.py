"""A training from a URL is the training from a local copy, on both backends."""

import json

import pytest
from marked_images import QUICK, flags, run_script

pytestmark = pytest.mark.slow


@pytest.fixture
def url(s3, built_dataset):
    return s3.put_folder(built_dataset, "data")


def _train(data, workdir, *more, backend="tensorflow"):
    words = [f"--data={data}", f"--workdir={workdir}", *flags(**QUICK), "--epochs=2", *more]
    return run_script("run", "--replica_batch_size=4", *words, KERAS_BACKEND=backend)


@pytest.mark.parametrize(("backend", "room"), [("tensorflow", "1"), ("jax", "0")])
def test_losses_and_metrics_are_those_of_a_local_copy(built_dataset, url, tmp_path, backend, room):
    cache = [f"--cache_dir={tmp_path / 'cache'}", f"--cache_gb={room}"]
    remote = _train(url, tmp_path / "remote", *cache, backend=backend)
    assert remote.returncode == 0, remote.stderr
    assert "0.00 of 0.00 GB of the dataset are in" in remote.stdout
    local = _train(str(built_dataset), tmp_path / "local", backend=backend)
    assert local.returncode == 0, local.stderr
    assert _losses(tmp_path / "remote") == _losses(tmp_path / "local")


def _losses(run):
    history, metrics = (
        json.loads((run / name).read_text()) for name in ("history.json", "metrics.json")
    )
    return [*(epoch[name] for epoch in history for name in ("loss", "val_loss")), metrics["loss"]]


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_damaged_shard_ends_the_run_with_its_name(s3, url, tmp_path, backend):
    for name, content in s3.read("data/").items():
        if name.endswith(".tfrecord"):
            s3.put(f"data/{name}", content[:1000] + b"damage" + content[1006:])
    done = _train(url, tmp_path / "run", f"--cache_dir={tmp_path / 'cache'}", backend=backend)
    assert done.returncode == 1
    assert ".tfrecord: record" in done.stderr
    assert "Traceback" not in done.stderr

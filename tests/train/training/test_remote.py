"""A training from a URL is the training from a local copy, on both backends."""

import json

import pytest
from marked_images import QUICK, flags, run_script
from web_server import running_web

pytestmark = pytest.mark.slow

LOGIN = "us%40er:pa%2Fss"


@pytest.fixture
def web(built_dataset):
    with running_web() as server:
        server.serve(built_dataset)
        for file in server.files.values():
            file.login = "Basic dXNAZXI6cGEvc3M="
        yield server


@pytest.fixture
def url(web):
    return web.url("data").replace("://", f"://{LOGIN}@")


def _train(data, workdir, *more, backend="tensorflow"):
    words = [f"--data={data}", f"--workdir={workdir}", *flags(**QUICK), "--epochs=2", *more]
    return run_script("run", "--replica_batch_size=4", *words, KERAS_BACKEND=backend)


@pytest.mark.parametrize(("backend", "room"), [("tensorflow", "1"), ("jax", "0")])
def test_losses_and_metrics_are_those_of_a_local_copy(built_dataset, url, tmp_path, backend, room):
    cache = [f"--cache_dir={tmp_path / 'cache'}", f"--cache_gb={room}"]
    remote = _train(url, tmp_path / "remote", *cache, backend=backend)
    assert remote.returncode == 0, remote.stderr
    assert "0.00 of 0.00 GB of the dataset are in" in remote.stdout
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    said = (remote.stdout + remote.stderr).encode()
    for secret in (*LOGIN.split(":"), "us@er", "pa/ss"):
        assert not [content for content in [*written, said] if secret.encode() in content]
    local = _train(str(built_dataset), tmp_path / "local", backend=backend)
    assert local.returncode == 0, local.stderr
    assert _losses(tmp_path / "remote") == _losses(tmp_path / "local")


def _losses(run):
    history, metrics = (
        json.loads((run / name).read_text()) for name in ("history.json", "metrics.json")
    )
    return [*(epoch[name] for epoch in history for name in ("loss", "val_loss")), metrics["loss"]]


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_damaged_shard_ends_the_run_with_its_name(web, url, tmp_path, backend):
    for name, file in web.files.items():
        if name.endswith(".tfrecord"):
            file.content = file.content[:1000] + b"damage" + file.content[1006:]
    done = _train(url, tmp_path / "run", f"--cache_dir={tmp_path / 'cache'}", backend=backend)
    assert done.returncode == 1
    assert ".tfrecord: record" in done.stderr
    assert "Traceback" not in done.stderr

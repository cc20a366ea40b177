"""A training from a URL is the training from a local copy, on both backends."""

import pytest
from marked_images import QUICK, flags, history_of, metrics_of, run_script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def url(s3, built_dataset):
    return s3.put_folder(built_dataset, "data")


def _train(data, workdir, *more, backend="tensorflow"):
    words = [f"--data={data}", f"--workdir={workdir}", *flags(**QUICK), "--epochs=2", *more]
    return run_script("run", "--replica_batch_size=4", *words, KERAS_BACKEND=backend)


@pytest.mark.parametrize(("backend", "room"), [("tensorflow", "1"), ("jax", "0")])
def test_losses_and_metrics_are_those_of_a_local_copy(built_dataset, url, tmp_path, backend, room):
    cache = [f"--cache_dir={tmp_path / 'cache'}", f"--cache_gb={room}"]
    found = []
    for name, data, more in (("remote", url, cache), ("local", built_dataset, ())):
        done = _train(data, tmp_path / name, *more, backend=backend)
        assert done.returncode == 0, done.stderr
        losses = [(row["loss"], row["val_loss"]) for row in history_of(tmp_path / name)]
        found.append((losses, metrics_of(tmp_path / name)["loss"]))
    assert found[0] == found[1]


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_damaged_shard_ends_the_run_with_its_name(s3, url, tmp_path, backend):
    for name, content in s3.read("data/").items():
        if name.endswith(".tfrecord"):
            s3.put(f"data/{name}", content[:1000] + b"damage" + content[1006:])
    done = _train(url, tmp_path / "run", f"--cache_dir={tmp_path / 'cache'}", backend=backend)
    assert done.returncode == 1
    assert ".tfrecord: record" in done.stderr
    assert "Traceback" not in done.stderr

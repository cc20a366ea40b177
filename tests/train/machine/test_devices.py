import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfrecord_io.terminal.errors import UserError
from train.machine import devices
from train.machine.devices import DeviceOptions

REPO = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("kind", "gpus", "expected"),
    [
        ("auto", None, ("A", "B", "C")),
        ("mirrored", None, ("A", "B", "C")),
        ("single", None, ("A",)),
        ("auto", 2, ("A", "B")),
        ("auto", 1, ("A",)),
        ("auto", 4, "--devices 4: there are 3 devices"),
        ("single", 2, "--devices says 2"),
    ],
)
def test_devices_are_chosen_as_asked(kind, gpus, expected):
    options = DeviceOptions(strategy=kind, gpus=gpus)
    if isinstance(expected, tuple):
        assert devices._chosen(["A", "B", "C"], options) == [*expected]
    else:
        with pytest.raises(UserError, match=expected):
            devices._chosen(["A", "B", "C"], options)


def test_devices_asked_for_without_a_gpu_are_those_of_the_cpu_and_told(capsys):
    for options in (DeviceOptions(), DeviceOptions(gpus=1)):
        found = devices.configure_devices(options)
        is_told = "warning: --devices 1: there is no GPU here" in capsys.readouterr().err
        assert is_told == (options.gpus == 1 and not found.on_gpu)
    assert (found.num_replicas, found.is_chief) == (1, True)


def test_tf_config_means_several_workers(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    assert DeviceOptions().kind == "multi_worker"
    assert DeviceOptions(strategy="single").kind == "single"
    monkeypatch.delenv("TF_CONFIG")
    assert DeviceOptions().kind == "auto"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"TF_CONFIG does not describe a cluster \(KeyError\('cluster'"),
        ('{"cluster": {"worker": ["a:1"]}}', "'task'.*such as TF_CONFIG="),
        ("no json", "does not describe a cluster"),
        (
            json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}),
            "not one of 1 workers",
        ),
    ],
)
def test_a_wrong_tf_config_is_explained(monkeypatch, text, message):
    if text is None:
        monkeypatch.delenv("TF_CONFIG", raising=False)
    else:
        monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(UserError, match=message):
        devices.configure_devices(DeviceOptions(strategy="multi_worker"))


def test_devices_cannot_be_set_up_too_late():
    import tensorflow as tf

    tf.config.list_logical_devices()  # opens them
    num_devices = len(tf.config.list_logical_devices("CPU"))
    with pytest.raises(UserError, match="too late"):
        devices.configure_devices(DeviceOptions(cpu_devices=num_devices + 1))


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False])
def test_what_jax_compiles_is_kept_for_the_next_run(tmp_path, named):
    pytest.importorskip("jax")
    script = """
import jax
from train.machine.devices import keep_compiled
keep_compiled()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.jit(lambda x: x * 2 + 1)(1.0)
"""
    own, users = tmp_path / "own", tmp_path / "scan_tfrecords/xla"
    environ = {name: value for name, value in os.environ.items() if "COMPILATION" not in name}
    environ |= {"KERAS_BACKEND": "jax", "XDG_CACHE_HOME": str(tmp_path)}
    environ |= {"JAX_COMPILATION_CACHE_DIR": str(own)} if named else {}
    subprocess.run([sys.executable, "-c", script], env=environ, check=True, cwd=REPO)
    assert list((own if named else users).glob("*-cache"))
    assert users.exists() != named
    users.mkdir(0o500, parents=True, exist_ok=True)
    users.chmod(0o500)
    if named or os.access(users, os.W_OK):  # as root may
        return
    script = script.replace("2 + 1", "3 + 1")  # which is not kept yet
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environ, check=True, cwd=REPO, stderr=subprocess.PIPE)
    assert b"Permission denied" not in done.stderr

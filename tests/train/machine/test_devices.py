import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfrecord_io.terminal.errors import UserError
from train.machine import devices
from train.machine.devices import DeviceOptions

REPO = Path(__file__).resolve().parents[3]


def test_devices_asked_for_without_a_gpu_are_those_of_the_cpu_and_told(capsys):
    for options in (DeviceOptions(), DeviceOptions(gpus=1)):
        found = devices.configure_devices(options)
        is_printed = "warning: --devices 1: there is no GPU here" in capsys.readouterr().err
        assert is_printed == (options.gpus == 1 and not found.on_gpu)
    assert found.num_replicas == 1
    with pytest.raises(UserError, match="--devices 99: there are"):
        devices.configure_devices(DeviceOptions(gpus=99))


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

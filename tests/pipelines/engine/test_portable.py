"""The build on Beam's own job service, whose interface is that of Flink and Spark."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import builds
import pytest

from scripts.flink_cluster import free_ports

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def served(words, log_path, **environment):
    """Runs a server until the block ends; its output goes to a file, for a full pipe stalls it."""
    with log_path.open("wb") as log:
        settings = {"stdout": log, "stderr": log, "cwd": log_path.parent}
        with builds.started(words, env={**os.environ, **environment}, **settings) as process:
            yield process


def pool_command(port):
    """Returns the command that starts this repository's worker pool."""
    return [sys.executable, str(builds.ROOT / "scripts" / "worker_pool.py"), f"--port={port}"]


@pytest.fixture
def pool(tmp_path):
    """The flags of an engine whose workers run in a folder of their own, where `log` is."""
    (tmp_path / "pool").mkdir()
    (port,), port_file = free_ports(1), tmp_path / "port"
    command = [sys.executable, "-m", "apache_beam.runners.portability.local_job_service_main"]
    words = [*command, "--port_file", str(port_file)]
    with (
        served(words, tmp_path / "service_log") as process,
        served(pool_command(port), tmp_path / "pool" / "log", PYTHONPATH=str(builds.ROOT)),
    ):
        assert builds.wait_until(port_file.exists, process)
        yield [
            "--runner=PortableRunner", f"--job_endpoint=localhost:{port_file.read_text()}",
            "--environment_type=EXTERNAL", f"--environment_config=localhost:{port}",
        ]  # fmt: skip


def test_an_anonymous_build_on_remote_workers_writes_the_same_bytes_and_no_name(
    source_tree, tmp_path, pool
):
    # Given relative to the command's folder, which is not that of the workers.
    shutil.copytree(source_tree, tmp_path / source_tree.name)
    (tmp_path / "secret.txt").write_text("0123456789abcdef" * 4)
    flags = ["--max_reject_fraction=0.5", "--num_shards=5"]
    anonymous = f"--anonymize={tmp_path / 'secret.txt'}"
    local = builds.build_here(source_tree, tmp_path / "local", *flags, anonymous)
    words = builds.command(source_tree, Path("remote"), *flags, "--anonymize=secret.txt", *pool)
    words[words.index(f"--input={source_tree}")] = f"--input={source_tree.name}"
    environment = {**os.environ, "PYTHONPATH": str(builds.ROOT)}
    settings = {"cwd": tmp_path, "env": environment, "timeout": 120, "check": True}
    done = subprocess.run(words, capture_output=True, text=True, **settings)
    assert builds.shards_of(tmp_path / "remote") == builds.shards_of(local)
    assert not (tmp_path / "remote" / ".build").exists()
    for text in (done.stdout, done.stderr, (tmp_path / "pool" / "log").read_text()):
        assert "0123456789abcdef" not in text
    assert not [path for path in (tmp_path / "remote").iterdir() if b".jpeg" in path.read_bytes()]

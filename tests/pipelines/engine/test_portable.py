"""The build on an engine of another process, reached through Beam's job interface.

Beam's own job service speaks what Flink's, Spark's and Dataflow's do, and needs nothing but the
package that is installed anyway.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import builds
import psutil
import pytest
from image_files import write_zip

from scripts.flink_cluster import free_ports

TWO_REJECTS = "--max_reject_fraction=0.5"


@pytest.fixture(scope="module")
def job_service(tmp_path_factory):
    """The address of a job service that runs for all tests of this file."""
    folder = tmp_path_factory.mktemp("job_service")
    port_file = folder / "port"
    command = [sys.executable, "-m", "apache_beam.runners.portability.local_job_service_main"]
    words = [*command, "--port_file", str(port_file)]
    with served(words, folder / "log") as process:
        assert builds.wait_until(port_file.exists, process)
        yield f"localhost:{port_file.read_text()}"


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


@pytest.mark.slow
def test_the_worker_pool_listens_where_only_this_machine_can_reach_it(tmp_path):
    (port,) = free_ports(1)
    with served(pool_command(port), tmp_path / "log") as process:

        def addresses():
            found = psutil.Process(process.pid).net_connections(kind="inet")
            return {each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN}

        assert builds.wait_until(lambda: bool(addresses()), process)
        # The second is how IPv6 writes the first.
        assert addresses() <= {"127.0.0.1", "::ffff:127.0.0.1"}


def portable_flags(job_service, environment):
    return ["--runner=PortableRunner", f"--job_endpoint={job_service}", *environment.split()]


@pytest.fixture
def pool(job_service, tmp_path):
    """The flags of an engine whose workers run in a folder of their own, where `log` is."""
    (tmp_path / "pool").mkdir()
    (port,) = free_ports(1)
    log = tmp_path / "pool" / "log"
    with served(pool_command(port), log, PYTHONPATH=str(builds.ROOT)):
        environment = f"--environment_type=EXTERNAL --environment_config=localhost:{port}"
        yield portable_flags(job_service, environment)


@pytest.mark.slow
def test_a_portable_engine_writes_the_bytes_that_the_local_one_writes(
    source_tree, tmp_path, job_service
):
    local = builds.build_here(source_tree, tmp_path / "local", TWO_REJECTS, "--num_shards=5")
    remote = tmp_path / "remote"
    flags = portable_flags(job_service, "--environment_type=LOOPBACK")

    done = builds.run_build(source_tree, remote, TWO_REJECTS, "--num_shards=5", *flags)

    assert done.returncode == 0, done.stderr
    assert builds.shards_of(remote) == builds.shards_of(local)
    assert not (remote / ".build").exists()


@pytest.mark.slow
def test_workers_with_a_working_directory_of_their_own_find_relative_paths(
    source_tree, tmp_path, pool
):
    paths = sorted(source_tree.rglob("*.jpeg"))
    files = {path.relative_to(source_tree).as_posix(): path.read_bytes() for path in paths}
    write_zip(tmp_path / "scans.zip", files)
    words = builds.command(Path("scans.zip"), Path("built"), TWO_REJECTS, *pool)
    environment = {**os.environ, "PYTHONPATH": str(builds.ROOT)}
    subprocess.run(words, cwd=tmp_path, env=environment, timeout=120, check=True)
    assert (tmp_path / "built" / "manifest.json").exists()


@pytest.mark.slow
def test_an_anonymous_build_on_remote_workers_logs_no_name(source_tree, tmp_path, pool):
    secret = tmp_path / "secret.txt"
    secret.write_text("0123456789abcdef" * 4)
    flags = [TWO_REJECTS, f"--anonymize={secret}"]
    local = builds.build_here(source_tree, tmp_path / "local", *flags)
    done = builds.run_build(source_tree, tmp_path / "remote", *flags, *pool)
    assert done.returncode == 0, done.stderr
    assert builds.shards_of(tmp_path / "remote") == builds.shards_of(local)
    for text in (done.stdout, done.stderr, (tmp_path / "pool" / "log").read_text()):
        assert ".jpeg" not in text
        assert "0123456789abcdef" not in text


@pytest.mark.slow
def test_a_failure_that_a_remote_worker_finds_reaches_the_user_as_one_line(
    source_tree, tmp_path, job_service
):
    flags = portable_flags(job_service, "--environment_type=LOOPBACK")

    done = builds.run_build(source_tree, tmp_path / "out", "--max_reject_fraction=0", *flags)

    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: 1 of 27 images were rejected")


@pytest.mark.slow
def test_a_job_server_that_cannot_be_had_is_an_error_without_a_traceback(source_tree, tmp_path):
    jar = f"--flink_job_server_jar={tmp_path / 'none.jar'}"

    done = builds.run_build(
        source_tree, tmp_path / "out", "--runner=FlinkRunner", "--flink_master=localhost:9", jar
    )

    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: FlinkRunner did not finish the job: Unable to parse jar URL")

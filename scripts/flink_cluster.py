"""Builds a dataset on an Apache Flink cluster of this machine, and compares it with a local build.

    python scripts/flink_cluster.py --source synthetic --num_examples 400

The arguments are those of the build, without `--output`. The cluster has a JobManager, two
TaskManagers, Beam's Flink job server and a Beam worker pool, all on the loopback address. It needs
Java 11 or 17 and what `make flink-parts` downloads.
"""

from __future__ import annotations

import contextlib
import filecmp
import importlib.util
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
DEFAULT_JOB_SERVER = REPOSITORY / "build" / "flink-job-server"
NUM_TASK_MANAGERS = 2

# Flink 1.19's default configuration opens these packages for Java 17.
_OPENED = (
    "java.lang java.lang.reflect java.io java.net java.nio java.text java.time java.util "
    "java.util.concurrent java.util.concurrent.atomic java.util.concurrent.locks sun.nio.ch"
)
_JAVA_FLAGS = [
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # Java does none of the work, so a fast start matters more
    "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
    "--add-exports=java.rmi/sun.rmi.registry=ALL-UNNAMED",
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED.split()),
]

# Each TaskManager has slots for the whole job, so one can replace the other. Beam keeps dead Python
# workers for two seconds (environment_cache_millis), so the pause before a restart must be longer.
# Flink's shell scripts would compute the sizes of memory.
_CONFIGURATION = """\
jobmanager.rpc.address: localhost
jobmanager.rpc.port: {rpc}
jobmanager.bind-host: localhost
rest.address: localhost
rest.bind-address: localhost
rest.port: {rest}
taskmanager.host: localhost
taskmanager.bind-host: localhost
taskmanager.numberOfTaskSlots: 2
taskmanager.load-balance.mode: SLOTS
io.tmp.dirs: {folder}
heartbeat.interval: 1000
heartbeat.timeout: 5000
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: 5
restart-strategy.fixed-delay.delay: 5 s
taskmanager.cpu.cores: 1
taskmanager.memory.framework.heap.size: 128m
taskmanager.memory.framework.off-heap.size: 64m
taskmanager.memory.task.heap.size: 256m
taskmanager.memory.task.off-heap.size: 0m
taskmanager.memory.managed.size: 64m
taskmanager.memory.network.min: 32m
taskmanager.memory.network.max: 32m
taskmanager.memory.jvm-metaspace.size: 256m
taskmanager.memory.jvm-overhead.min: 64m
taskmanager.memory.jvm-overhead.max: 64m
"""


class MissingPartError(Exception):
    """A part of the cluster is not installed; the message says how to install it."""


class Cluster(contextlib.AbstractContextManager["Cluster"]):
    """A running cluster; leaving the `with` block kills all of its processes.

    `folder` gets configuration, logs and temporary files; `job_server` has the jars of Beam's Flink
    job server. Raises MissingPartError if these, Java or Flink are missing.
    """

    def __init__(self, folder: Path, job_server: Path = DEFAULT_JOB_SERVER) -> None:
        if shutil.which("java") is None:
            raise MissingPartError("`java` is not on the path; install Java 11 or 17")
        if not job_server.is_dir():
            raise MissingPartError(f"{job_server} does not exist; run `make flink-parts`")
        spec = importlib.util.find_spec("pyflink")
        flink = Path(*(spec.submodule_search_locations or ()) if spec else "", "lib")
        if not list(flink.glob("flink-dist-1.19.*.jar")):
            raise MissingPartError("Flink is not installed; run `make flink-parts`")
        self._folder = folder
        self._rest, self._rpc, self._job, self._pool = free_ports(4)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # Beam's job server uploads all jars on its class path with every job, but for those in a
        # folder of this name, which the cluster has already.
        self._jars = folder / "gradle" / "wrapper"
        self._jars.mkdir(parents=True)
        jars = flink.glob("flink-dist-*.jar"), flink.glob("log4j-*.jar"), job_server.glob("*.jar")
        for jar in itertools.chain(*jars):
            (self._jars / jar.name).symlink_to(jar.resolve())
        (folder / "config.yaml").write_text(
            _CONFIGURATION.format(rpc=self._rpc, rest=self._rest, folder=folder)
        )

    def __enter__(self) -> Cluster:
        try:
            flink, conf = "org.apache.flink.runtime", f"--configDir={self._folder}"
            manager = f"{flink}.entrypoint.StandaloneSessionClusterEntrypoint"
            self._start_java("job_manager", manager, conf, "--executionMode=cluster")
            for number in range(NUM_TASK_MANAGERS):
                worker = f"{flink}.taskexecutor.TaskManagerRunner"
                self._start_java(f"task_manager_{number}", worker, conf)
            self._start_java(
                "job_server",
                "org.apache.beam.runners.flink.FlinkJobServerDriver",
                f"--flink-master=localhost:{self._rest}",
                "--job-host=localhost",
                f"--job-port={self._job}",
                "--artifact-port=0",
                "--expansion-port=0",
                f"--artifacts-dir={self._folder / 'artifacts'}",
            )
            self.start_worker_pool()
            self._await(lambda: listens(self._job), "job_server")
            self._await(self._is_registered, "job_manager")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._processes:
            self._kill(name)

    @property
    def beam_flags(self) -> list[str]:
        """The flags that make a build run on this cluster."""
        return [
            "--runner=PortableRunner",
            f"--job_endpoint=localhost:{self._job}",
            "--environment_type=EXTERNAL",
            f"--environment_config=localhost:{self._pool}",
            f"--parallelism={NUM_TASK_MANAGERS}",
            "--environment_cache_millis=2000",  # without it, every stage starts new Python workers
        ]

    @property
    def num_restarted_tasks(self) -> int:
        """Number of tasks of the newest job that Flink has restarted."""
        job = max(self._ask("jobs/overview")["jobs"], key=lambda job: job["start-time"])["jid"]
        vertices = [vertex["id"] for vertex in self._ask(f"jobs/{job}")["vertices"]]
        tasks = [self._ask(f"jobs/{job}/vertices/{vertex}")["subtasks"] for vertex in vertices]
        return sum(task["attempt"] > 0 for of_vertex in tasks for task in of_vertex)

    def start_worker_pool(self) -> None:
        """Starts the worker pool and waits until it listens."""
        script = REPOSITORY / "scripts" / "worker_pool.py"
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        words = [sys.executable, str(script), f"--port={self._pool}"]
        self._start("worker_pool", words, environment)
        self._await(lambda: listens(self._pool), "worker_pool")

    def kill(self, part: str) -> None:
        """Kills a `task_manager`, or a `worker_pool`, which a service manager would restart."""
        self._kill("worker_pool" if part == "worker_pool" else "task_manager_0")
        if part == "worker_pool":
            self.start_worker_pool()

    def _start_java(self, name: str, main: str, *args: str) -> None:
        words = ["java", "-Xmx512m", *_JAVA_FLAGS, f"-Djava.io.tmpdir={self._folder}"]
        words += ["-cp", str(self._jars / "*"), main, *args]
        self._start(name, words, {**os.environ, "FLINK_CONF_DIR": str(self._folder)})

    def _start(self, name: str, words: Sequence[str], environment: dict[str, str]) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            # In a session of its own, a worker pool can be killed together with its workers.
            self._processes[name] = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env=environment, cwd=self._folder, start_new_session=True,
            )  # fmt: skip

    def _kill(self, name: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._processes[name].pid, signal.SIGKILL)
        self._processes[name].wait()

    def _await(self, condition: Callable[[], bool], name: str) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            if self._processes[name].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} ended or is not ready; logs are in {self._folder}")
            time.sleep(0.05)

    def _is_registered(self) -> bool:
        with contextlib.suppress(OSError, KeyError, ValueError):
            return self._ask("overview")["taskmanagers"] == NUM_TASK_MANAGERS
        return False

    def _ask(self, what: str) -> dict[str, Any]:
        # Proxies of the environment cannot reach this machine's loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://localhost:{self._rest}/{what}", timeout=5) as answer:
            return json.load(answer)


def listens(port: int) -> bool:
    """Tells whether a process listens on a port of the loopback address."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_ports(count: int) -> list[int]:
    """Returns different ports that no process listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def main(build_args: Sequence[str]) -> int:
    """Builds twice; returns 0 for equal shards, 1 for different ones, 2 for a missing part."""
    build = [sys.executable, str(REPOSITORY / "pipelines" / "build_tfrecords.py"), *build_args]
    try:
        with tempfile.TemporaryDirectory(prefix="flink-") as name, Cluster(Path(name)) as cluster:
            local, flink = Path(name, "local"), Path(name, "flink")
            subprocess.run([*build, f"--output={local}"], check=True)
            subprocess.run([*build, f"--output={flink}", *cluster.beam_flags], check=True)
            names = sorted(path.name for path in local.glob("*.tfrecord"))
            differ = filecmp.cmpfiles(local, flink, names, shallow=False)[1:]
            print(f"{len(names)} shards; different or missing on Flink: {differ}")
            return 1 if any(differ) else 0
    except MissingPartError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

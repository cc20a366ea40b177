"""An Apache Flink cluster on this machine, and the build job on it.

    python scripts/flink_cluster.py compare --source archive --input kermany2018.zip
    python scripts/flink_cluster.py compare --kill task_manager --source synthetic
    python scripts/flink_cluster.py serve
    python scripts/flink_cluster.py fetch

`compare` builds a dataset with the local engine and again on the cluster, and compares every shard;
with `--kill` it kills a part of the cluster after the first finished shard. `serve` keeps a cluster
running and prints the flags for a build on it. `fetch` only downloads the job server.

The cluster has the parts of a real one: a JobManager and two TaskManagers as separate Java
processes, Beam's Flink job server, and a Beam worker pool that starts the Python workers. All of
them listen only on the loopback address. The cluster needs Java 11 or 17 and
`pip install apache-flink-libraries==1.19.3`; the first run also needs `mvn` to download the job
server. See docs/clusters.md.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
JOB_SERVER_POM = REPOSITORY / "scripts" / "flink_job_server.xml"
DEFAULT_JOB_SERVER = REPOSITORY / "build" / "flink-job-server"
FLINK_PACKAGE = "apache-flink-libraries==1.19.3"

_START_SECONDS = 60.0
_FIRST_SHARD_SECONDS = 300.0
# How long Beam keeps idle Python workers. It also keeps dead ones that long and gives them
# restarted tasks, so the pause before a restart must be longer.
_WORKER_CACHE_SECONDS = 2
_RESTARTS, _RESTART_SECONDS = 5, 5
_LOOPBACK = "127.0.0.1"

# Flink 1.19's default configuration opens these packages for Java 17.
_JAVA_FLAGS = (
    # Java does none of the work here, so a fast start matters more than fast code.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
    "--add-exports=java.rmi/sun.rmi.registry=ALL-UNNAMED",
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in (
            "java.lang",
            "java.lang.reflect",
            "java.io",
            "java.net",
            "java.nio",
            "java.text",
            "java.time",
            "java.util",
            "java.util.concurrent",
            "java.util.concurrent.atomic",
            "java.util.concurrent.locks",
            "sun.nio.ch",
        )
    ),
)

# Flink's shell scripts would compute these sizes; without them a TaskManager needs all of them. The
# job sends only small task tuples through Java.
_MEMORY = """\
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
    """A running cluster; leaving the `with` block stops all of it.

    Args:
        work_dir: folder for configuration, logs and Flink's temporary files.
        job_server: Beam's Flink job server: a jar, or a folder of jars.
        num_task_managers: number of TaskManagers; each has enough slots for the whole job.

    Raises:
        MissingPartError: if Java, Flink or the job server is missing.
    """

    def __init__(
        self, work_dir: Path, job_server: Path = DEFAULT_JOB_SERVER, num_task_managers: int = 2
    ) -> None:
        self._java = shutil.which("java")
        if self._java is None:
            raise MissingPartError("`java` is not on the path; install Java 11 or 17")
        self._flink_lib = find_flink()
        if not job_server.exists():
            raise MissingPartError(
                f"{job_server} does not exist; fetch it with\n  mvn -f {JOB_SERVER_POM} "
                f"dependency:copy-dependencies -DoutputDirectory={job_server}"
            )
        self._job_server = job_server
        self._work_dir = work_dir
        self._rest_port, self._rpc_port, self._job_port, self._pool_port = free_ports(4)
        self._num_task_managers = num_task_managers
        self._task_managers: list[subprocess.Popen[bytes]] = []
        self._pool: subprocess.Popen[bytes] | None = None
        self._others: list[subprocess.Popen[bytes]] = []
        self._num_logs = 0

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def beam_flags(self) -> list[str]:
        """The flags that make a build run on this cluster."""
        return [
            "--runner=PortableRunner",
            f"--job_endpoint=localhost:{self._job_port}",
            "--environment_type=EXTERNAL",
            f"--environment_config=localhost:{self._pool_port}",
            f"--parallelism={self._num_task_managers}",
            # Without it, every stage starts new Python workers.
            f"--environment_cache_millis={_WORKER_CACHE_SECONDS * 1000}",
        ]

    def start_task_manager(self) -> None:
        """Starts another TaskManager; its number is that of the TaskManagers before it."""
        number = len(self._task_managers)
        self._task_managers.append(
            self._start_java(
                f"task_manager_{number}",
                "org.apache.flink.runtime.taskexecutor.TaskManagerRunner",
                f"--configDir={self._conf_dir}",
                heap="384m",
            )
        )

    def kill_task_manager(self, number: int) -> None:
        """Kills a TaskManager with SIGKILL.

        Args:
            number: index of the TaskManager, in the order of their starts.
        """
        _kill(self._task_managers[number])

    def start_worker_pool(self) -> None:
        """Starts the worker pool and waits until it listens.

        Raises:
            RuntimeError: if it ends while starting.
            TimeoutError: if it does not listen in time.
        """
        script = str(REPOSITORY / "scripts" / "worker_pool.py")
        self._pool = self._start_process(
            "worker_pool",
            [sys.executable, script, f"--port={self._pool_port}"],
            {**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
        self._await_port(self._pool_port, self._pool)

    def kill_worker_pool(self) -> None:
        """Kills the worker pool and all its workers at once."""
        if self._pool is not None:
            _kill(self._pool)

    @property
    def num_registered(self) -> int:
        """Number of TaskManagers that are registered at the JobManager now."""
        try:
            return self._ask("overview")["taskmanagers"]
        except (OSError, urllib.error.URLError, KeyError, ValueError):
            return 0

    @property
    def num_restarted_tasks(self) -> int:
        """Number of tasks of the newest job that Flink has restarted."""
        job = max(self._ask("jobs/overview")["jobs"], key=lambda job: job["start-time"])["jid"]
        attempts = [
            subtask["attempt"]
            for vertex in self._ask(f"jobs/{job}")["vertices"]
            for subtask in self._ask(f"jobs/{job}/vertices/{vertex['id']}")["subtasks"]
        ]
        return len([attempt for attempt in attempts if attempt > 0])

    def close(self) -> None:
        """Kills all processes of the cluster."""
        pool = [] if self._pool is None else [self._pool]
        for process in [*self._others, *self._task_managers, *pool]:
            _kill(process)

    def _start(self) -> None:
        self._write_configuration()
        self._gather_jars()
        manager = self._start_java(
            "job_manager",
            "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint",
            f"--configDir={self._conf_dir}",
            "--executionMode=cluster",
            heap="512m",
        )
        self._others.append(manager)
        for _ in range(self._num_task_managers):
            self.start_task_manager()
        server = self._start_java(
            "job_server",
            "org.apache.beam.runners.flink.FlinkJobServerDriver",
            f"--flink-master=localhost:{self._rest_port}",
            "--job-host=localhost",
            f"--job-port={self._job_port}",
            "--artifact-port=0",
            "--expansion-port=0",
            f"--artifacts-dir={self._work_dir / 'artifacts'}",
            heap="512m",
        )
        self._others.append(server)
        self.start_worker_pool()
        self._await_port(self._job_port, server)
        await_condition(
            lambda: self.num_registered == self._num_task_managers,
            f"{self._num_task_managers} TaskManagers to register (logs: {self._work_dir})",
            _START_SECONDS,
        )

    @property
    def _conf_dir(self) -> Path:
        return self._work_dir / "conf"

    @property
    def _jar_dir(self) -> Path:
        # Beam's job server uploads all jars on its class path with every job: 200 MB that the
        # cluster already has. It skips jars in a folder of this name.
        return self._work_dir / "gradle" / "wrapper"

    def _gather_jars(self) -> None:
        """Links the jars of Flink and Beam into one folder, the class path of all processes."""
        jars = [*self._flink_lib.glob("flink-dist-*.jar"), *self._flink_lib.glob("log4j-*.jar")]
        jars += self._job_server.glob("*.jar") if self._job_server.is_dir() else [self._job_server]
        self._jar_dir.mkdir(parents=True)
        for jar in jars:
            try:
                os.link(jar, self._jar_dir / jar.name)
            except OSError:  # another disk
                shutil.copy(jar, self._jar_dir)

    def _write_configuration(self) -> None:
        self._conf_dir.mkdir(parents=True, exist_ok=True)
        (self._conf_dir / "config.yaml").write_text(
            f"""\
jobmanager.rpc.address: localhost
jobmanager.rpc.port: {self._rpc_port}
jobmanager.bind-host: localhost
rest.address: localhost
rest.bind-address: localhost
rest.port: {self._rest_port}
taskmanager.host: localhost
taskmanager.bind-host: localhost
# Each TaskManager has slots for the whole job, so one can replace the other; SLOTS spreads the
# work.
taskmanager.numberOfTaskSlots: {self._num_task_managers}
taskmanager.load-balance.mode: SLOTS
io.tmp.dirs: {self._work_dir}
# Flink notices a lost TaskManager within five seconds and restarts its tasks elsewhere.
heartbeat.interval: 1000
heartbeat.timeout: 5000
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: {_RESTARTS}
restart-strategy.fixed-delay.delay: {_RESTART_SECONDS} s
{_MEMORY}"""
        )
        (self._conf_dir / "log4j.properties").write_text(
            "rootLogger.level=INFO\n"
            "rootLogger.appenderRef.out.ref=out\n"
            "appender.out.name=out\n"
            "appender.out.type=CONSOLE\n"
            "appender.out.layout.type=PatternLayout\n"
            "appender.out.layout.pattern=%d %-5p %c{1} %m%n\n"
        )

    def _start_java(self, name: str, main: str, *args: str, heap: str) -> subprocess.Popen[bytes]:
        command = [
            str(self._java),
            f"-Xmx{heap}",
            *_JAVA_FLAGS,
            f"-Dlog4j2.configurationFile={self._conf_dir / 'log4j.properties'}",
            f"-Djava.io.tmpdir={self._work_dir}",
            "-cp",
            str(self._jar_dir / "*"),
            main,
            *args,
        ]
        return self._start_process(
            name, command, {**os.environ, "FLINK_CONF_DIR": str(self._conf_dir)}
        )

    def _start_process(
        self, name: str, command: Sequence[str], environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        self._num_logs += 1
        with (self._work_dir / f"{self._num_logs}_{name}.log").open("wb") as log:
            # In a separate session, a worker pool can be killed together with its workers.
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self._work_dir,
                start_new_session=True,
            )

    def _await_port(self, port: int, process: subprocess.Popen[bytes]) -> None:
        def listens() -> bool:
            if process.poll() is not None:
                raise RuntimeError(
                    f"a part of the cluster ended with code {process.returncode} while starting; "
                    f"its log is in {self._work_dir}"
                )
            with socket.socket() as probe:
                return probe.connect_ex((_LOOPBACK, port)) == 0

        await_condition(listens, f"port {port} (logs: {self._work_dir})", _START_SECONDS)

    def _ask(self, what: str) -> dict[str, Any]:
        # Ignore proxy settings of the environment: they cannot reach this machine's loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://localhost:{self._rest_port}/{what}", timeout=5) as answer:
            return json.load(answer)


def find_flink() -> Path:
    """Returns the folder of Flink's jars.

    Raises:
        MissingPartError: if Flink's package is not installed.
    """
    spec = importlib.util.find_spec("pyflink")
    for root in spec.submodule_search_locations or () if spec else ():
        if list(Path(root, "lib").glob("flink-dist-1.19.*.jar")):
            return Path(root, "lib")
    raise MissingPartError(f"Flink is not installed; pip install {FLINK_PACKAGE}")


def fetch_job_server(folder: Path) -> None:
    """Downloads Beam's Flink job server from Maven Central, unless the folder exists.

    Args:
        folder: folder for the jars.

    Raises:
        MissingPartError: if `mvn` is missing or fails.
    """
    if folder.exists():
        return
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingPartError(f"{folder} does not exist; install `mvn` to fetch it")
    print(f"fetching Beam's Flink job server into {folder}", file=sys.stderr, flush=True)
    part = folder.with_name(f"{folder.name}.part")
    command = [maven, "-B", "-q", "-f", str(JOB_SERVER_POM), "dependency:copy-dependencies"]
    done = subprocess.run([*command, "-DincludeScope=runtime", f"-DoutputDirectory={part}"])
    if done.returncode:
        raise MissingPartError("mvn could not download the job server; see its messages above")
    part.rename(folder)


def shard_digests(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of every shard of a dataset, by file name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob("*.tfrecord"))
    }


def await_condition(condition: Callable[[], bool], what: str, seconds: float) -> None:
    """Polls until a condition holds.

    Args:
        condition: called about 20 times per second.
        what: what the condition means, for the message.
        seconds: time limit.

    Raises:
        TimeoutError: if the condition does not hold in time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"gave up after waiting {seconds:.0f} s for {what}")
        time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Returns `count` different ports that no process listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((_LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]


def build_command(output: Path, build_args: Sequence[str]) -> list[str]:
    """Returns the command line of a build.

    Args:
        output: folder of the dataset.
        build_args: other arguments of the build.
    """
    script = REPOSITORY / "pipelines" / "build_tfrecords.py"
    return [sys.executable, str(script), *build_args, f"--output={output}"]


def kill_part(cluster: Cluster, victim: str) -> None:
    """Kills a part of a cluster with SIGKILL.

    A killed worker pool is started again, as a host's service manager would do. A killed
    TaskManager is not: another one must take over its tasks.

    Args:
        cluster: the running cluster.
        victim: `task_manager`, or `worker_pool` for the pool and its workers.
    """
    if victim == "task_manager":
        cluster.kill_task_manager(0)
    else:
        cluster.kill_worker_pool()
        cluster.start_worker_pool()


def finished_shards(output: Path) -> int:
    """Returns how many shards of a build are finished, which have a sidecar."""
    return len(list(output.glob("*-of-*.json")))


def _compare(
    cluster: Cluster, work_dir: Path, build_args: Sequence[str], victim: str | None
) -> int:
    """Builds on this machine and on the cluster; returns the exit code."""
    outputs = {name: work_dir / name for name in ("local", "flink")}
    print("\n--- local ---", flush=True)
    subprocess.run(build_command(outputs["local"], build_args), check=True)
    print("\n--- flink ---", flush=True)
    start = time.monotonic()
    with subprocess.Popen(
        build_command(outputs["flink"], [*build_args, *cluster.beam_flags])
    ) as build:
        if victim is not None:
            await_condition(
                lambda: finished_shards(outputs["flink"]) > 0 or build.poll() is not None,
                "the first shard",
                _FIRST_SHARD_SECONDS,
            )
            kill_part(cluster, victim)
            print(
                f"\nkilled: {victim}, {time.monotonic() - start:.1f} s after the start, with "
                f"{finished_shards(outputs['flink'])} shards finished",
                flush=True,
            )
    if build.returncode:
        return build.returncode
    if victim is not None:
        print(f"\ntasks that Flink restarted: {cluster.num_restarted_tasks}")
    local, flink = (shard_digests(output) for output in outputs.values())
    if local != flink:
        names = sorted(n for n in local.keys() | flink.keys() if local.get(n) != flink.get(n))
        print(f"{len(names)} shards differ: {', '.join(names[:5])}", file=sys.stderr)
        return 1
    print(f"\nall {len(local)} shards have the same SHA-256 from Flink as from the local engine")
    return 0


def _serve(cluster: Cluster) -> int:
    print("the cluster is running; run a build on it with\n  " + " ".join(cluster.beam_flags))
    print("Ctrl-C stops the cluster", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()
    return 0


@contextlib.contextmanager
def _work_folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="flink-") as folder:
        yield Path(folder)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> int:
    """Runs the command; returns 0 for success, 1 for differing shards, 2 for a missing part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("compare", "serve", "fetch"))
    parser.add_argument("--job_server", type=Path, default=DEFAULT_JOB_SERVER)
    parser.add_argument("--task_managers", type=int, default=2)
    parser.add_argument("--kill", choices=("task_manager", "worker_pool"))
    parser.add_argument("--work_dir", type=Path, help="folder for the logs [a temporary one]")
    args, build_args = parser.parse_known_args()
    try:
        fetch_job_server(args.job_server)
        if args.what == "fetch":
            return 0
        with (
            _work_folder(args.work_dir) as work_dir,
            Cluster(work_dir, args.job_server, args.task_managers) as cluster,
        ):
            if args.what == "serve":
                return _serve(cluster)
            return _compare(cluster, work_dir, build_args, args.kill)
    except MissingPartError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

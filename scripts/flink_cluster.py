"""A whole Apache Flink cluster on this machine, and the build job on it.

    python scripts/flink_cluster.py compare --source archive --input kermany2018.zip
    python scripts/flink_cluster.py compare --kill task_manager --source synthetic
    python scripts/flink_cluster.py serve
    python scripts/flink_cluster.py fetch

`compare` builds a dataset twice, with the local engine and on the cluster, and compares every
shard; with `--kill` it kills a part of the cluster once the first shard is there. `serve` keeps a
cluster up and prints the flags that run a build on it. `fetch` only gets the job server.

The cluster is the real thing in small: a JobManager and two TaskManagers as Java processes of
their own, Beam's Flink job server, and a Beam worker pool that starts Python workers beside the
TaskManagers. All of them listen on the loopback address alone. It needs Java 11 or 17,
`pip install apache-flink-libraries==1.19.3`, and once `mvn` to fetch the job server; docs/flink.md
says more.
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
# How long Beam keeps Python workers that have no task. A dead one is kept as long, and handed the
# restarted tasks, unless they come later: so the pause before a restart has to be longer.
_WORKER_CACHE_SECONDS = 2
_RESTARTS, _RESTART_SECONDS = 5, 5
_LOOPBACK = "127.0.0.1"

# Flink 1.19's own default configuration opens these to Java 17.
_JAVA_FLAGS = (
    # No Java does any of the work: quick to start matters more than quick in the long run.
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

# A TaskManager that Flink's shell scripts did not start must be told all of its memory. The job
# sends it nothing but task tuples.
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
    """Something the cluster is made of is not installed; the message says how to get it."""


class Cluster(contextlib.AbstractContextManager["Cluster"]):
    """A running cluster; the block's end stops all of it.

    Args:
        work_dir: for configuration, logs and Flink's temporary files.
        job_server: Beam's Flink job server: one jar, or a folder of jars.
        num_task_managers: how many TaskManagers to start; each could do the work of all.

    Raises:
        MissingPartError: if Java, Flink or the job server is not there.
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
                f"{job_server} is not there; fetch it with\n  mvn -f {JOB_SERVER_POM} "
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
        """Returns what to add to a build's command line to run it here."""
        return [
            "--runner=PortableRunner",
            f"--job_endpoint=localhost:{self._job_port}",
            "--environment_type=EXTERNAL",
            f"--environment_config=localhost:{self._pool_port}",
            f"--parallelism={self._num_task_managers}",
            # Without it every stage starts Python workers anew.
            f"--environment_cache_millis={_WORKER_CACHE_SECONDS * 1000}",
        ]

    def start_task_manager(self) -> None:
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
        """Kills a TaskManager, in the order of their starts, as the kernel would."""
        _kill(self._task_managers[number])

    def start_worker_pool(self) -> None:
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
        """Returns how many TaskManagers the JobManager counts at this moment."""
        try:
            return self._ask("overview")["taskmanagers"]
        except (OSError, urllib.error.URLError, KeyError, ValueError):
            return 0

    @property
    def num_restarted_tasks(self) -> int:
        """Returns how many tasks of the newest job Flink has started more than once."""
        job = max(self._ask("jobs/overview")["jobs"], key=lambda job: job["start-time"])["jid"]
        attempts = [
            subtask["attempt"]
            for vertex in self._ask(f"jobs/{job}")["vertices"]
            for subtask in self._ask(f"jobs/{job}/vertices/{vertex['id']}")["subtasks"]
        ]
        return len([attempt for attempt in attempts if attempt > 0])

    def close(self) -> None:
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
        # Beam's job server sends all jars on its class path along with every job: 200 MB, of
        # which the cluster has each one. It leaves out what lies in a folder of this name.
        return self._work_dir / "gradle" / "wrapper"

    def _gather_jars(self) -> None:
        """Puts Flink's and Beam's jars into one folder, the class path of all processes."""
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
# Two slots each, so that one TaskManager can take over from the other; until then work is spread.
taskmanager.numberOfTaskSlots: {self._num_task_managers}
taskmanager.load-balance.mode: SLOTS
io.tmp.dirs: {self._work_dir}
# A lost TaskManager is noticed within five seconds, and its tasks start again elsewhere.
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
            # A session of its own: a worker pool is killed together with its workers.
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
        # No proxy of the environment may come between this machine and itself.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://localhost:{self._rest_port}/{what}", timeout=5) as answer:
            return json.load(answer)


def find_flink() -> Path:
    """Returns the folder of Flink's jars.

    Raises:
        MissingPartError: if the package that holds them is not installed.
    """
    spec = importlib.util.find_spec("pyflink")
    for root in spec.submodule_search_locations or () if spec else ():
        if list(Path(root, "lib").glob("flink-dist-1.19.*.jar")):
            return Path(root, "lib")
    raise MissingPartError(f"Flink is not installed; pip install {FLINK_PACKAGE}")


def fetch_job_server(folder: Path) -> None:
    """Fetches Beam's Flink job server from Maven Central, unless it is there.

    Raises:
        MissingPartError: if `mvn` is missing or fails.
    """
    if folder.exists():
        return
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingPartError(f"{folder} is not there, and neither is `mvn` to fetch it")
    print(f"fetching Beam's Flink job server into {folder}", file=sys.stderr, flush=True)
    part = folder.with_name(f"{folder.name}.part")
    command = [maven, "-B", "-q", "-f", str(JOB_SERVER_POM), "dependency:copy-dependencies"]
    done = subprocess.run([*command, "-DincludeScope=runtime", f"-DoutputDirectory={part}"])
    if done.returncode:
        raise MissingPartError("mvn could not fetch the job server; see its messages above")
    part.rename(folder)


def shard_digests(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of every shard of a dataset, by file name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob("*.tfrecord"))
    }


def await_condition(condition: Callable[[], bool], what: str, seconds: float) -> None:
    """Polls until a condition holds.

    Raises:
        TimeoutError: if it does not in time, naming what was waited for.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Returns ports that nobody listens on now, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((_LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]


def build_command(output: Path, build_args: Sequence[str]) -> list[str]:
    """Returns the words that start a build."""
    script = REPOSITORY / "pipelines" / "build_tfrecords.py"
    return [sys.executable, str(script), *build_args, f"--output={output}"]


def kill_part(cluster: Cluster, victim: str) -> None:
    """Kills a part of a cluster as the kernel would, a worker pool with all its workers.

    The pool is started again, as the service manager of a real host would do; the other
    TaskManager has to take over from a dead one.
    """
    if victim == "task_manager":
        cluster.kill_task_manager(0)
    else:
        cluster.kill_worker_pool()
        cluster.start_worker_pool()


def finished_shards(output: Path) -> int:
    """Returns how many shards of a build have their sidecar."""
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
        print(f"\ntasks that Flink started again: {cluster.num_restarted_tasks}")
    local, flink = (shard_digests(output) for output in outputs.values())
    if local != flink:
        names = sorted(n for n in local.keys() | flink.keys() if local.get(n) != flink.get(n))
        print(f"{len(names)} shards differ: {', '.join(names[:5])}", file=sys.stderr)
        return 1
    print(f"\nall {len(local)} shards have the same SHA-256 from Flink as from this machine alone")
    return 0


def _serve(cluster: Cluster) -> int:
    print("the cluster is up; run a build on it with\n  " + " ".join(cluster.beam_flags))
    print("Ctrl-C ends it", flush=True)
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
    """Runs the command; returns its exit code: 0 done, 1 other bytes, 2 a part is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("compare", "serve", "fetch"))
    parser.add_argument("--job_server", type=Path, default=DEFAULT_JOB_SERVER)
    parser.add_argument("--task_managers", type=int, default=2)
    parser.add_argument("--kill", choices=("task_manager", "worker_pool"))
    parser.add_argument("--work_dir", type=Path, help="kept, with all logs (default: a temporary)")
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

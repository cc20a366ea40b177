"""Runs builds for tests, in this process or as a user does, and looks at what they leave."""

import contextlib
import csv
import hashlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[2]

#: One worker in the process itself: quickest for little data.
IN_MEMORY = "--direct_running_mode=in_memory"


def arguments(source: Path | str, output: Path | str, *more: str) -> list[str]:
    """Returns the build's flags for a folder or an archive; tiny pictures.

    Of a flag that is given twice, as `--name=value`, the last one stays.
    """
    kind = "directory" if Path(source).is_dir() else "archive"
    words = [f"--source={kind}", f"--input={source}", f"--output={output}", "--image_size=8", *more]
    return list({word.partition("=")[0]: word for word in words}.values())


def _run_without_engine(job: Any, pipeline: Any, _: int | None) -> None:
    """Writes and finishes a dataset as one of Beam's workers does: Beam alone takes 0.3 s more."""
    from pipelines.engine import engine
    from pipelines.shards.finish import finish_dataset
    from pipelines.shards.write import TaskWriter

    build, todo = pickle.loads(pickle.dumps((job.build, job.todo)))
    with engine.clear_errors(pipeline.runner):
        with TaskWriter(build) as writer:
            for task in todo:
                writer.write(task)
            writer.wait()
        finish_dataset(build)


#: Empty pipelines by their flags: to make one takes as long as half of a tiny build.
_pipelines: dict[tuple[str, ...], Any] = {}


@contextlib.contextmanager
def without_engine(command: Any) -> Iterator[None]:
    """Has a command of the pipelines run without Beam, unless a test has replaced its `run`."""
    from pipelines.engine import engine

    real = engine.make_pipeline

    def make_once(flags: Sequence[str]) -> Any:
        if tuple(flags) not in _pipelines:
            _pipelines[tuple(flags)] = real(flags)
        return _pipelines[tuple(flags)]

    if command.run.__module__ != "pipelines.build_tfrecords":
        yield
        return
    with (
        mock.patch.object(command, "run", _run_without_engine),
        mock.patch.object(engine, "make_pipeline", make_once),
    ):
        yield


def build_here(source: Path | str, output: Path | str, *more: str) -> Path:
    """Builds in this process, without an engine; returns the output folder."""
    from pipelines import build_tfrecords

    with without_engine(build_tfrecords):
        build_tfrecords.build(arguments(source, output, IN_MEMORY, *more))
    return Path(output)


def build_of(scans: str, *flags: str) -> Any:
    """Returns a fixture: what a build makes of the scans that another fixture writes."""

    @pytest.fixture(scope="module")
    def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
        output = tmp_path_factory.mktemp("built") / "out"
        return build_here(request.getfixturevalue(scans), output, *flags)

    return built


def prepare(source: Path | str, output: Path | str, *more: str):
    """Returns a block in which the build is listed and planned, and its output is locked."""
    from pipelines.build_tfrecords import planned
    from pipelines.stores.output_folder import open_output

    options = parsed(arguments(source, output, IN_MEMORY, *more))
    return planned(options, open_output(options.output.output))


def parsed(argv: Sequence[str] = ()):
    """Returns the options of a build."""
    from pipelines.options import parse_options

    return parse_options(argv)


def run_build_here(source: Path, output: Path | str, *more: str) -> int:
    """Runs the command in this process, without an engine; returns its exit code."""
    from pipelines import build_tfrecords

    with without_engine(build_tfrecords):
        return build_tfrecords.main(arguments(source, output, IN_MEMORY, *more))


def command(source: Path, output: Path, *more: str) -> list[str]:
    """Returns the command that a user would type."""
    program = str(ROOT / "pipelines" / "build_tfrecords.py")
    return [sys.executable, program, *arguments(source, output, *more)]


def environment(**variables: str) -> dict[str, str]:
    """Returns the environment in which scripts find the packages, installed or not."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | variables


def run_command(
    words: Sequence[str], env: dict[str, str] | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; what it writes must never hold a traceback."""
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        timeout=timeout,
        check=False,
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return done


@contextlib.contextmanager
def started(words: Sequence[str], **settings: object) -> Iterator[subprocess.Popen[str]]:
    """Starts a command as the leader of a process group, which is killed at the end."""
    outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "cwd": ROOT}
    # Under nohup it would inherit that a hangup is ignored.
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    process = subprocess.Popen(words, text=True, start_new_session=True, **outputs | settings)
    signal.signal(signal.SIGHUP, hangup)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        print(text or "")  # pytest shows it with a failure


def wait_until(
    condition: Callable[[], bool], process: subprocess.Popen[str] | None = None, limit_s: float = 60
) -> bool:
    """Waits until something is so; returns whether it came before the process ended.

    Raises:
        TimeoutError: if it does not come.
    """
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if condition():
            return True
        if process is not None and process.poll() is not None:
            return condition()
        time.sleep(0.002)
    raise TimeoutError("what the test waits for did not come")


def members_of_group(group: int) -> list[psutil.Process]:
    """Returns the living processes of a process group."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Returns the worker processes that a running build has started."""
    found = []
    with contextlib.suppress(psutil.Error):
        # Workers are forked from a server process, itself a child of the launcher.
        for child in psutil.Process(process.pid).children():
            found += child.children()
    return found


def shards_of(output: Path) -> dict[str, str]:
    """Returns the SHA-256 of every shard, by name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(output.glob("*.tfrecord"))
    }


def rows_of(output: Path) -> list[dict[str, Any]]:
    """Returns the rows of the table of examples."""
    return pq.read_table(output / "examples.parquet").to_pylist()


def read_csv(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV file by the names of its columns."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def csv_rows(path: Path) -> list[list[str]]:
    """Returns the rows of a CSV file below its first line."""
    return [list(row.values()) for row in read_csv(path)]


def write_csv(path: Path, rows: Sequence[Mapping[str, object]], delimiter: str = ",") -> Path:
    """Writes rows as a CSV file, with the names of the first one; returns its path."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def files_of(directory: Path) -> dict[str, bytes]:
    """Returns the content of every file below a folder, by name."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }

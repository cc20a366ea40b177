"""Commands that are killed, run out of disk, lose power or meet a failing server; then run again.

In the end there must be, byte for byte, what an undisturbed run leaves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import importlib
import io
import itertools
import multiprocessing
import os
import pathlib
import pickle
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

import azure_server
import builds
import gcs_server
import image_files
import power_cut
import s3_server

context = multiprocessing.get_context("forkserver")
# The fork server does not inherit sys.path, and ignores modules that it cannot import.
_TESTS = Path(__file__).resolve().parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join((str(_TESTS), str(_TESTS.parent)))

_MOST_SECONDS = 600
_BUILD = "pipelines.build_tfrecords"
_STATUSES = (
    "500 Internal Server Error",
    "503 Slow Down",
    "403 Forbidden",
    "412 Precondition Failed",
)
#: What a build does besides: nothing, taking duplicates out again, or drawing variants.
_JOBS = (
    ("folder", ()),
    ("zip", ()),
    ("tar.gz", ()),
    ("zip", ("--duplicates=drop",)),
    ("folder", ("--image_size=64", "--leaks=drop", "--duplicates=drop")),
    ("zip", ("--variants=1", "--splits=patient", "--split_fractions=train=0.6,test=0.4")),
)
NUM_JOBS = len(_JOBS)
#: Those that take records out of finished shards.
DROPS = (3, 4)

Fault = Callable[[], contextlib.AbstractContextManager[None]]


def preload(modules: Iterable[str]) -> None:
    """Says what the server has imported from which `Run` forks; to be called before the first."""
    # Each run begins with the program itself, so what that imports has to be there, too.
    context.set_forkserver_preload(["campaign.run", *modules])


class Run:
    """A command in a process of its own, forked from a server that has imported everything.

    Args:
        words: its arguments.
        fault: what goes wrong in it.
        variables: of its environment.
        command: the module whose `main` it is.
    """

    def __init__(
        self,
        words: list[str],
        fault: Fault | None = None,
        variables: Mapping[str, str] | None = None,
        command: str = _BUILD,
    ) -> None:
        descriptor, self._log = tempfile.mkstemp(prefix="campaign-log-")
        os.close(descriptor)
        self.process: BaseProcess = context.Process(
            target=_run, args=(command, words, self._log, fault, variables)
        )
        self.process.start()
        builds.wait_until(lambda: Path(self._log).stat().st_size > 0, limit_s=_MOST_SECONDS)

    def wait(self) -> tuple[int, str]:
        """Returns the exit code, negative for a signal, and all that was said."""
        self.process.join(_MOST_SECONDS)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            return 0, f"Traceback: not done after {_MOST_SECONDS} seconds"
        text = Path(self._log).read_text(errors="replace")
        Path(self._log).unlink()
        return self.process.exitcode, text


def _run(
    command: str,
    words: list[str],
    log: str,
    fault: Fault | None,
    variables: Mapping[str, str] | None,
) -> None:
    main = importlib.import_module(command).main
    file = os.open(log, os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
    # The server that forked this process ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(variables or {})
    print(flush=True)
    with fault() if fault else contextlib.nullcontext():
        code = main(words)
    sys.stdout.flush()
    os._exit(code)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A command that is disturbed and run again.

    Attributes:
        words: its arguments.
        folder: all that it writes on the disk is below.
        wanted: what an undisturbed run leaves, by name.
        found: returns what is there now.
        seconds: how long an undisturbed run takes.
        variables: of its environment.
        advice: what the last run may say if running it once more is the remedy.
        command: see `Run`.
        scale: how much more it writes than a tiny build, so that faults hit all of it.
    """

    words: list[str]
    folder: Path
    wanted: Mapping[str, bytes]
    found: Callable[[], Mapping[str, bytes]]
    seconds: float
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    advice: str | None = None
    command: str = _BUILD
    scale: int = 1

    def start(self, fault: Fault | None = None) -> Run:
        return Run(self.words, fault, self.variables, self.command)


Way = Callable[[random.Random, Job], tuple[int, str]]


def disturbed(
    rng: random.Random, job: Job, ways: list[Way], before_last: Callable[[], None] | None = None
) -> tuple[str, list[str], str]:
    """Disturbs a job some times and lets it end; see `archives.try_case`."""
    done, problems, way = [], [], rng.choice(ways)
    for _ in range(rng.choice((1, 1, 2, 3))):
        code, text = way(rng, job)
        done.append(code)
        problems += complaints(code, text)
    if before_last:
        before_last()
    code, text = job.start().wait()
    if code and job.advice and job.advice in text:
        code, text = job.start().wait()
    problems += complaints(code, text)
    if code:
        problems.append(f"the last run ends with {code}: {text}")
    problems += differences(job.found(), job.wanted)
    name = getattr(way, "__name__", "").strip("_")
    return f"{name}: {_effect(done)}", problems, f"{' '.join(job.words)}, {name} {done}"


def try_case(
    rng: random.Random,
    folder: Path,
    numbers: tuple[int, ...] = tuple(range(NUM_JOBS)),
    only: Way | None = None,
) -> tuple[str, list[str], str]:
    """Disturbs one of some builds onto a local disk, in any or in one way; see `disturbed`."""
    source, flags, wanted, seconds = undisturbed(rng.choice(numbers))
    with contextlib.ExitStack() as stack:
        ways = [only] if only else [kill, kill, kill, *FAULTS]
        output, before_last = folder / "output", None
        if not only and can_mount() and rng.random() < 0.3:
            disk = stack.enter_context(small_disk(folder / "disk", rng.randrange(20, 400) << 10))
            output, ways = disk / "output", [_full_disk]
            grow = ["mount", "-o", "remount,size=64m", str(disk)]
            before_last = functools.partial(subprocess.run, grow, check=True)
        words = builds.arguments(source, output, "--num_shards=5", *flags)
        # Mostly in one process, which is quick; now and then with workers as by default.
        has_workers = rng.random() < 0.15 and not only
        words.append("--direct_num_workers=2" if has_workers else builds.IN_MEMORY)
        if has_workers:
            # Only the syncs of one process are watched.
            ways = [way for way in ways if way is not cut]
        found = functools.partial(builds.files_of, output)
        job = Job(words=words, folder=folder, wanted=wanted, found=found, seconds=seconds)
        return disturbed(rng, job, ways, before_last)


def _effect(codes: list[int]) -> str:
    return f"ended {sum(code != 0 for code in codes)} times" if any(codes) else "never ended"


def complaints(code: int, text: str) -> list[str]:
    if "Traceback" in text or (code > 0 and "error: " not in text and code not in (130, 143)):
        start = max(text.find("Traceback") - 300, 0) if "Traceback" in text else -1500
        return [f"exit code {code} and no message: {text[start:][:1500]}"]
    return []


def differences(found: Mapping[str, bytes], wanted: Mapping[str, bytes]) -> list[str]:
    if found == wanted:
        return []
    names = sorted(n for n in found.keys() | wanted.keys() if found.get(n) != wanted.get(n))
    return [f"other than of an undisturbed run: {', '.join(names)}"]


@functools.cache
def home() -> Path:
    """Returns a folder for sources and undisturbed datasets, which is removed at the end."""
    folder = tempfile.TemporaryDirectory(prefix="campaign-home-")
    home.folder = folder  # type: ignore[attr-defined]
    return Path(folder.name)


@functools.cache
def undisturbed(number: int) -> tuple[Path, tuple[str, ...], dict[str, bytes], float]:
    """Returns a job's source, flags, all files that it leaves, and how long it takes."""
    kind, flags = _JOBS[number]
    names = [
        f"{split}/{label}/{label}-{patient}{len(label)}-{number}.jpeg"
        for split, patients in (("train", range(4)), ("val", range(4, 6)), ("test", range(6, 8)))
        for label in ("CNV", "NORMAL")
        for patient in patients
        for number in range(2)
    ]
    files = {name: image_files.jpeg(seed) for seed, name in enumerate(names)}
    files[names[3]] = files[names[7]]  # a duplicate in one split
    files[names[-1]] = files[names[8]]  # and one in two
    files["train/CNV/CNV-9-1.jpeg"] = b"no image"
    where = home() / str(number)
    where.mkdir()
    source = where / f"scans.{kind}"
    if kind == "folder":
        image_files.write_tree(source, files)
    elif kind == "zip":
        image_files.write_zip(source, files)
    else:
        image_files.write_tar(source, files)
    output = where / "output"
    flags = (*flags, "--max_reject_fraction=0.5")
    words = builds.arguments(source, output, "--num_shards=5", *flags, builds.IN_MEMORY)
    start = time.monotonic()
    code, text = Run(words).wait()
    if code:
        raise RuntimeError(text)
    return source, flags, builds.files_of(output), time.monotonic() - start


def kill(rng: random.Random, job: Job) -> tuple[int, str]:
    run = job.start()
    time.sleep(rng.random() * job.seconds)
    number = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
    with contextlib.suppress(ProcessLookupError):
        os.kill(run.process.pid, number)
    return run.wait()


def _failing_write(rng: random.Random, job: Job) -> tuple[int, str]:
    number, num_good = rng.choice((errno.EIO, errno.ENOSPC, errno.EDQUOT)), 60 * job.scale
    return job.start(functools.partial(failing_writes, rng.randrange(num_good), number)).wait()


def _failing_sync(rng: random.Random, job: Job) -> tuple[int, str]:
    return job.start(functools.partial(failing_calls, rng.randrange(40))).wait()


def _small_files(rng: random.Random, job: Job) -> tuple[int, str]:
    return job.start(functools.partial(small_files, rng.randrange(20_000 * job.scale))).wait()


def failing_read(rng: random.Random, job: Job) -> tuple[int, str]:
    numbers = errno.EIO, errno.ESTALE, errno.EACCES, errno.ETIMEDOUT, errno.EMFILE, errno.ENOMEM
    source = next(word for word in job.words if word.startswith("--input="))
    fault = functools.partial(
        failing_reads,
        source.partition("=")[2],
        rng.choice((rng.randrange(10), rng.randrange(250))),
        rng.choice((1, 1, 2, 10**6)),
        rng.choice(numbers),
    )
    return job.start(fault).wait()


def _full_disk(rng: random.Random, job: Job) -> tuple[int, str]:
    return job.start().wait()


def cut(rng: random.Random, job: Job) -> tuple[int, str]:
    left = job.folder.with_name(f"{job.folder.name}.left")
    fault = functools.partial(cut_power, job.folder, left, rng.randrange(150), rng.random())
    outcome = job.start(fault).wait()
    if left.exists():
        for path in job.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        image_files.write_tree(job.folder, pickle.loads(left.read_bytes()))
        left.unlink()
    return outcome


#: Disturbances of any job that writes to a local disk.
FAULTS: list[Way] = [_failing_write, _failing_sync, _small_files, cut]


@contextlib.contextmanager
def cut_power(folder: Path, left: Path, num_moments: int, seed: float) -> Iterator[None]:
    """Ends this process after some syncs, renames and deletions below a folder.

    What a power cut leaves of the folder then is written to the file `left`.
    """
    disk = power_cut.Disk(folder, random.Random(seed))
    moments = iter(range(num_moments))

    def moment() -> None:
        if next(moments, None) is None:
            left.write_bytes(pickle.dumps(disk.after_cut()))
            os.kill(os.getpid(), signal.SIGKILL)

    with disk.watched(moment):
        yield


class _FailingFile(io.BufferedWriter):
    """A file of which one write, counted over all such files, fails."""

    writes_left = 0
    number = errno.EIO

    def write(self, data: bytes) -> int:
        _FailingFile.writes_left -= 1
        if _FailingFile.writes_left == -1:
            raise OSError(self.number, os.strerror(self.number))
        return super().write(data)


@contextlib.contextmanager
def failing_writes(num_good: int, number: int) -> Iterator[None]:
    """Has the write after so many good ones fail, in this process, with an error number."""
    _FailingFile.writes_left, _FailingFile.number = num_good, number
    real = pathlib.Path.open

    def open_failing(path: Path, mode: str = "r", *more: object, **named: object) -> object:
        if mode == "wb":
            return _FailingFile(io.FileIO(path, "w"))
        return real(path, mode, *more, **named)

    with mock.patch.object(pathlib.Path, "open", open_failing):
        yield


class _FailingSource(io.FileIO):
    """A file of the input whose reads fail when `fail` says so."""

    fail: Callable[[], None]

    def readinto(self, buffer: Any, /) -> int | None:
        self.fail()
        return super().readinto(buffer)

    def readall(self) -> bytes | None:
        self.fail()
        return super().readall()


@contextlib.contextmanager
def failing_reads(source: str, num_good: int, num_bad: int, number: int) -> Iterator[None]:
    """Has some readings of the input fail, after so many good ones, with an error number."""
    count, lock = itertools.count(), threading.Lock()
    real_open, real_pread, real_scan = pathlib.Path.open, os.pread, os.scandir

    def fail(path: str | None = None) -> None:
        with lock:
            if num_good <= next(count) < num_good + num_bad:
                raise OSError(number, os.strerror(number), path)

    def open_failing(path: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
        if mode != "rb" or not str(path).startswith(source):
            return real_open(path, mode, *more, **named)
        fail(str(path))
        file = _FailingSource(path)
        file.fail = fail
        return io.BufferedReader(file)

    def pread_failing(descriptor: int, length: int, start: int) -> bytes:
        if os.path.realpath(f"/proc/self/fd/{descriptor}").startswith(source):
            fail()
        return real_pread(descriptor, length, start)

    def scan_failing(path: Any = ".") -> Any:
        if str(path).startswith(source):
            fail(str(path))
        return real_scan(path)

    with (
        mock.patch.object(pathlib.Path, "open", open_failing),
        mock.patch.object(os, "pread", pread_failing),
        mock.patch.object(os, "scandir", scan_failing),
    ):
        yield


@contextlib.contextmanager
def failing_calls(num_good: int) -> Iterator[None]:
    """Has one fsync or rename of this process fail, after so many good ones."""
    left = num_good

    def failing(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            nonlocal left
            left -= 1
            if left == -1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(*arguments)

        return call

    replace = pathlib.Path.replace
    with (
        mock.patch.object(os, "fsync", failing(os.fsync)),
        mock.patch.object(pathlib.Path, "replace", lambda a, b: failing_replace(a, b)),
    ):
        failing_replace = failing(replace)
        yield


@contextlib.contextmanager
def small_files(num_bytes: int) -> Iterator[None]:
    """Lets no file of this process grow beyond some bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))
    yield


@functools.cache
def can_mount() -> bool:
    """Tells whether this process may make a file system in memory."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder]
        if os.geteuid() or subprocess.run(words, capture_output=True, check=False).returncode:
            return False
        subprocess.run(["umount", folder], check=True)
        return True


@contextlib.contextmanager
def small_disk(folder: Path, num_bytes: int) -> Iterator[Path]:
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", folder]
    subprocess.run(words, check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@dataclasses.dataclass(frozen=True)
class Store:
    """A running object store.

    Attributes:
        root: URL of its bucket.
        flags: what a build needs to reach it.
        failing: has it fail within a block; see `s3_server.Faults`.
        read: returns its objects below a prefix, by name.
    """

    root: str
    flags: list[str]
    failing: Callable[..., contextlib.AbstractContextManager[None]]
    read: Callable[[str], dict[str, bytes]]


_servers = contextlib.ExitStack()


@functools.cache
def store(kind: str = "s3") -> Store:
    """Returns a store of a kind, which runs until `close_stores`."""
    if kind == "az":
        azure = _servers.enter_context(azure_server.running_azure())
        return Store(f"az://{azure_server.CONTAINER}", [], azure.failing, azure.read)
    running = gcs_server.running_gcs if kind == "gs" else s3_server.running_s3
    server = _servers.enter_context(running())
    flags = [] if kind == "gs" else server.flags
    return Store(f"{kind}://{s3_server.BUCKET}", flags, server.failing, server.read)


def close_stores() -> None:
    """Ends the servers, so that this program can end."""
    _servers.close()


def try_store_case(
    rng: random.Random, folder: Path, only_kills: bool = False
) -> tuple[str, list[str], str]:
    """Builds onto a store and is killed, or the store fails for a while; see `disturbed`."""
    source, flags, wanted, seconds = undisturbed(rng.randrange(NUM_JOBS))
    kind = rng.choice(("s3", "gs", "az"))
    target = store(kind)
    words = builds.arguments(source, f"{target.root}/{folder.name}", "--num_shards=5", *flags)
    job = Job(
        words=[*words, *target.flags, builds.IN_MEMORY, f"--download_dir={folder / 'scratch'}"],
        folder=folder,
        wanted=wanted,
        found=functools.partial(target.read, f"{folder.name}/"),
        seconds=2 * seconds,
        variables=dict(os.environ),
    )
    fault = "kill" if only_kills else rng.choice((*_STATUSES, "half", "half", "kill"))
    num_failing = rng.choice((1, 1, 2, 3, 10**6))

    def failing_store(rng: random.Random, job: Job) -> tuple[int, str]:
        with target.failing(
            status=fault, requests_before=rng.randrange(60), failing_requests=num_failing
        ):
            run = job.start()
            # Of a store that fails for good, half a minute is enough to see.
            run.process.join(30)
            if run.process.is_alive():
                run.process.kill()
            return run.wait()

    outcome, problems, what = disturbed(rng, job, [kill if fault == "kill" else failing_store])
    return f"{kind} {fault[:4]}: {outcome.partition(': ')[2]}", problems, what

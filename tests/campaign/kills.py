"""Builds that are killed, run out of disk or meet a store that fails, and are run again.

In the end there must be, byte for byte, what an undisturbed build leaves.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import multiprocessing
import os
import pathlib
import random
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest import mock

import builds
import image_files
import s3_server

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["campaign.preloaded"])
# The fork server does not inherit sys.path, and ignores modules that it cannot import.
os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])

_MOST_SECONDS = 120
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

Fault = Callable[[], contextlib.AbstractContextManager[None]]


class Run:
    """A build in a process of its own, forked from a server that has imported everything."""

    def __init__(self, words: list[str], fault: Fault | None = None) -> None:
        descriptor, self._log = tempfile.mkstemp(prefix="campaign-log-")
        os.close(descriptor)
        self.process: BaseProcess = context.Process(target=_run, args=(words, self._log, fault))
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


def _run(words: list[str], log: str, fault: Fault | None) -> None:
    from pipelines import build_tfrecords

    file = os.open(log, os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
    # The server that forked this process ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print(flush=True)
    with fault() if fault else contextlib.nullcontext():
        code = build_tfrecords.main(words)
    os._exit(code)


def try_case(rng: random.Random, folder: Path) -> tuple[str, list[str], str]:
    """Disturbs a build some times and lets it end; see `archives.try_case`."""
    number = rng.randrange(NUM_JOBS)
    source, flags, wanted, seconds = undisturbed(number)
    with contextlib.ExitStack() as stack:
        ways = [_kill, _kill, _kill, _failing_write, _failing_sync, _small_files]
        output = folder / "output"
        if _can_mount() and rng.random() < 0.3:
            disk = stack.enter_context(_small_disk(folder / "disk", rng.randrange(20, 400) << 10))
            output = disk / "output"
            ways = [_full_disk]
        words = builds.arguments(source, output, "--num_shards=5", *flags)
        # Mostly in one process, which is quick; now and then with workers as by default.
        workers = "--direct_num_workers=2" if rng.random() < 0.15 else builds.IN_MEMORY
        words.append(workers)
        done, problems, way = [], [], rng.choice(ways)
        for _ in range(rng.choice((1, 1, 2, 3))):
            code, text = way(rng, words, seconds)
            done.append(code)
            problems += complaints(code, text)
        if ways == [_full_disk]:
            subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        code, text = Run(words).wait()
        problems += complaints(code, text)
        if code:
            problems.append(f"the last run ends with {code}: {text}")
        problems += differences(builds.files_of(output), wanted)
    what = f"{source.name} {' '.join(flags)} {workers}, {way.__name__} {done}"
    return f"{way.__name__.strip('_')}: {_effect(done)}", problems, what


def _effect(codes: list[int]) -> str:
    return f"ended {sum(code != 0 for code in codes)} times" if any(codes) else "too late"


def complaints(code: int, text: str) -> list[str]:
    if "Traceback" in text or (code > 0 and "error: " not in text and code != 130):
        return [f"exit code {code} and no message: {text[-1500:]}"]
    return []


def differences(found: dict[str, bytes], wanted: dict[str, bytes]) -> list[str]:
    if found == wanted:
        return []
    names = sorted(n for n in found.keys() | wanted.keys() if found.get(n) != wanted.get(n))
    return [f"other than of an undisturbed build: {', '.join(names)}"]


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


def _kill(rng: random.Random, words: list[str], seconds: float) -> tuple[int, str]:
    run = Run(words)
    time.sleep(rng.random() * seconds)
    number = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
    with contextlib.suppress(ProcessLookupError):
        os.kill(run.process.pid, number)
    return run.wait()


def _failing_write(rng: random.Random, words: list[str], seconds: float) -> tuple[int, str]:
    number = rng.choice((errno.EIO, errno.ENOSPC, errno.EDQUOT))
    return Run(words, functools.partial(failing_writes, rng.randrange(60), number)).wait()


def _failing_sync(rng: random.Random, words: list[str], seconds: float) -> tuple[int, str]:
    return Run(words, functools.partial(failing_calls, rng.randrange(40))).wait()


def _small_files(rng: random.Random, words: list[str], seconds: float) -> tuple[int, str]:
    return Run(words, functools.partial(small_files, rng.randrange(20_000))).wait()


def _full_disk(rng: random.Random, words: list[str], seconds: float) -> tuple[int, str]:
    return Run(words).wait()


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
def _can_mount() -> bool:
    """Tells whether this process may make a file system in memory."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder]
        if os.geteuid() or subprocess.run(words, capture_output=True, check=False).returncode:
            return False
        subprocess.run(["umount", folder], check=True)
        return True


@contextlib.contextmanager
def _small_disk(folder: Path, num_bytes: int) -> Iterator[Path]:
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", folder]
    subprocess.run(words, check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@functools.cache
def store() -> s3_server.S3Server:
    stack = contextlib.ExitStack()
    store.stack = stack  # type: ignore[attr-defined]
    return stack.enter_context(s3_server.running_s3())


def close_store() -> None:
    """Ends the server of objects, if there was one, so that this program can end."""
    if store.cache_info().currsize:
        store.stack.close()  # type: ignore[attr-defined]


def try_store_case(rng: random.Random, folder: Path) -> tuple[str, list[str], str]:
    """Builds onto a store that fails for a while, then onto one that does not."""
    number = rng.randrange(NUM_JOBS)
    source, flags, wanted, seconds = undisturbed(number)
    server = store()
    prefix = folder.name
    output = f"s3://{s3_server.BUCKET}/{prefix}"
    words = builds.arguments(source, output, "--num_shards=5", *flags, *server.flags)
    words += [builds.IN_MEMORY, f"--download_dir={folder / 'scratch'}"]
    done, problems = [], []
    fault = rng.choice((*_STATUSES, "half", "half", "kill"))
    num_failing = rng.choice((1, 1, 2, 3, 10**6))
    for _ in range(rng.choice((1, 1, 2))):
        if fault == "kill":
            code, text = _kill(rng, words, 2 * seconds)
        else:
            with server.failing(
                status=fault, requests_before=rng.randrange(60), failing_requests=num_failing
            ):
                run = Run(words)
                # Of a store that fails for good, half a minute is enough to see.
                run.process.join(30)
                if run.process.is_alive():
                    run.process.kill()
                code, text = run.wait()
        done.append(code)
        problems += complaints(code, text)
    code, text = Run(words).wait()
    problems += complaints(code, text)
    if code:
        problems.append(f"the last run ends with {code}: {text}")
    problems += differences(objects(server, prefix), wanted)
    what = f"{source.name} {' '.join(flags)}, {num_failing} times {fault} {done}"
    return f"{fault[:4]}: {_effect(done)}", problems, what


def objects(server: s3_server.S3Server, prefix: str) -> dict[str, bytes]:
    found = {}
    pages = server.client.get_paginator("list_objects_v2")
    for page in pages.paginate(Bucket=s3_server.BUCKET, Prefix=f"{prefix}/"):
        for item in page.get("Contents", []):
            body = server.client.get_object(Bucket=s3_server.BUCKET, Key=item["Key"])["Body"]
            found[item["Key"].removeprefix(f"{prefix}/")] = body.read()
    return found

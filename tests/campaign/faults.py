"""What goes wrong in a process or on its disk."""

import contextlib
import errno
import io
import itertools
import os
import pathlib
import pickle
import random
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import image_files
import power_cut

from campaign.processes import Ending, Job, Way


def kill(rng: random.Random, job: Job) -> Ending:
    return job.start().end(rng, job.seconds)


def _failing_write(rng: random.Random, job: Job) -> Ending:
    number = rng.choice((errno.EIO, errno.ENOSPC, errno.EDQUOT))
    return job.run(failing, "write", rng.randrange(60), 1, number)


def _failing_sync(rng: random.Random, job: Job) -> Ending:
    return job.run(failing, "sync", rng.randrange(40), 1, errno.EIO)


def failing_read(rng: random.Random, job: Job) -> Ending:
    numbers = errno.EIO, errno.ESTALE, errno.EACCES, errno.ETIMEDOUT, errno.EMFILE, errno.ENOMEM
    source = next(word for word in job.words if word.startswith("--input=")).partition("=")[2]
    num_good = rng.choice((rng.randrange(10), rng.randrange(250)))
    num_bad = rng.choice((1, 1, 2, 10**6))
    return job.run(failing, "read", num_good, num_bad, rng.choice(numbers), source)


def _small_files(rng: random.Random, job: Job) -> Ending:
    return job.run(small_files, rng.randrange(20_000))


def cut(rng: random.Random, job: Job) -> Ending:
    left = job.folder.with_name(f"{job.folder.name}.left")
    outcome = job.run(_cut_power, job.folder, left, rng.randrange(150), rng.random())
    if left.exists():
        for path in job.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        image_files.write_tree(job.folder, pickle.loads(left.read_bytes()))
        left.unlink()
    return outcome


#: Disturbances of any job that writes to a local disk.
FAULTS: list[Way] = [_failing_write, _failing_sync, _small_files, cut]


@contextlib.contextmanager
def _cut_power(folder: Path, left: Path, num_moments: int, seed: float) -> Iterator[None]:
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


class _Failing(io.FileIO):
    """A file that cannot be read or written when `fail` says so."""

    fail: Callable[[], None]

    def readinto(self, buffer: Any, /) -> int | None:
        self.fail()
        return super().readinto(buffer)

    def readall(self) -> bytes | None:
        self.fail()
        return super().readall()

    def write(self, data: Any, /) -> int | None:
        self.fail()
        return super().write(data)


@contextlib.contextmanager
def failing(
    what: str, num_good: int, num_bad: int, number: int, below: str = "/"
) -> Iterator[None]:
    """Has some calls of this process fail.

    Args:
        what: `write` or `read` for files, `sync` for fsyncs and renames.
        num_good: calls before the first that fails.
        num_bad: calls that fail.
        number: of their error.
        below: folder or file whose reading or writing fails.
    """
    calls, real_open = itertools.count(), pathlib.Path.open

    def fail(path: object = None) -> None:
        if num_good <= next(calls) < num_good + num_bad:
            raise OSError(number, os.strerror(number), path)

    def after_check(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(place: Any = ".", *more: Any) -> Any:
            path = os.path.realpath(f"/proc/self/fd/{place}" if isinstance(place, int) else place)
            if path.startswith(below):
                fail(path)
            return real(place, *more)

        return call

    def open_failing(path: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
        if mode != f"{what[0]}b" or not str(path.absolute()).startswith(below):
            return real_open(path, mode, *more, **named)
        if what == "read":
            fail(str(path))
        file = _Failing(path, mode)
        file.fail = fail
        return (io.BufferedReader if what == "read" else io.BufferedWriter)(file)

    patched = {
        "sync": [(os, "fsync"), (pathlib.Path, "replace")],
        "write": [],
        "read": [(os, "pread"), (os, "scandir")],
    }
    with contextlib.ExitStack() as stack:
        for owner, name in patched[what]:
            call = after_check(getattr(owner, name))
            stack.enter_context(mock.patch.object(owner, name, call))
        if what != "sync":
            stack.enter_context(mock.patch.object(pathlib.Path, "open", open_failing))
        yield


@contextlib.contextmanager
def small_files(num_bytes: int) -> Iterator[None]:
    """Lets no file of this process grow beyond some bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))
    yield

"""Commands in processes of their own, disturbed and run again.

In the end there must be, byte for byte, what an undisturbed run leaves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import builds

from campaign.case import Case

_context = multiprocessing.get_context("forkserver")
# The fork server does not inherit sys.path, and ignores modules that it cannot import.
_TESTS = Path(__file__).resolve().parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (_TESTS, _TESTS / "helpers", _TESTS.parent)))

_MOST_SECONDS = 600
#: What a build imports late.
_OF_A_BUILD = ("pyarrow.dataset", "pipelines.engine.engine", "pipelines.report.card",
               "tfrecord_io.reading.batches", "tfrecord_io.stores.remote")  # fmt: skip

#: What goes wrong in a process; made there, so it must be picklable.
Fault = Callable[[], contextlib.AbstractContextManager[None]]
#: The exit code of a process, negative for a signal, and all that it said.
Ending = tuple[int, str]


def preload() -> None:
    """Says what the server has imported from which `Run` forks; to be called before the first."""
    # Each run begins with the program itself, so what that imports has to be there, too.
    _context.set_forkserver_preload(["campaign.run", *_OF_A_BUILD])


@functools.cache
def home() -> Path:
    """Returns a folder for sources and undisturbed results, which is removed at the end."""
    home.folder = tempfile.TemporaryDirectory(prefix="campaign-home-")  # type: ignore[attr-defined]
    return Path(home.folder.name)


class Run:
    """A build in a process of its own, forked from a server that has imported everything.

    Args:
        words: its arguments.
        fault: what goes wrong in it.
        variables: of its environment.
    """

    def __init__(
        self,
        words: Sequence[str],
        fault: Fault | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        descriptor, self._log = tempfile.mkstemp(prefix="campaign-log-")
        os.close(descriptor)
        self.process: BaseProcess = _context.Process(
            target=_run, args=(list(words), self._log, fault, variables)
        )
        self.process.start()
        builds.wait_until(lambda: Path(self._log).stat().st_size > 0, limit_s=_MOST_SECONDS)

    def wait(self) -> Ending:
        self.process.join(_MOST_SECONDS)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            return 0, f"Traceback: not done after {_MOST_SECONDS} seconds"
        text = Path(self._log).read_text(errors="replace")
        Path(self._log).unlink()
        return self.process.exitcode, text

    def end(self, rng: random.Random, seconds: float) -> Ending:
        """Sends a signal that ends it, at some time within these seconds."""
        time.sleep(rng.random() * seconds)
        number = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)
        return self.wait()


def _run(
    words: list[str],
    log: str,
    fault: Fault | None,
    variables: Mapping[str, str] | None,
) -> None:
    from pipelines import build_tfrecords

    file = os.open(log, os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
    # The server that forked this process ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(variables or {})
    print(flush=True)
    with fault() if fault else contextlib.nullcontext():
        code = build_tfrecords.main(words)
    sys.stdout.flush()
    os._exit(code)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A build that is disturbed and run again.

    Attributes:
        words: its arguments.
        folder: all that it writes on the disk is below.
        found: returns what is there now, by name.
        variables: of its environment.
        wanted: what an undisturbed run leaves.
        seconds: how long an undisturbed run takes.
    """

    words: list[str]
    folder: Path
    found: Callable[[], Mapping[str, bytes]]
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    wanted: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    seconds: float = 0

    def start(self, fault: Callable[..., Any] | None = None, *arguments: object) -> Run:
        """Starts it with a fault, which is called with the arguments there."""
        made = functools.partial(fault, *arguments) if fault else None
        return Run(self.words, made, self.variables)

    def run(self, fault: Callable[..., Any] | None = None, *arguments: object) -> Ending:
        """Runs it to its end; see `start`."""
        return self.start(fault, *arguments).wait()

    def like(self, other: Job) -> Job:
        """Returns it with what another one leaves, and the seconds of that."""
        return dataclasses.replace(self, wanted=other.wanted, seconds=other.seconds)


@functools.cache
def undisturbed(make: Callable[..., Job], *arguments: object) -> Job:
    """Runs the job that a function makes in a folder; returns it with what it leaves."""
    folder = Path(tempfile.mkdtemp(dir=home()))
    job, start = make(folder, *arguments), time.monotonic()
    code, text = job.run()
    if code or "Traceback" in text:
        raise RuntimeError(text)
    return dataclasses.replace(job, wanted=job.found(), seconds=time.monotonic() - start)


#: Disturbs a job once.
Way = Callable[[random.Random, Job], Ending]


def disturbed(case: Case, job: Job, ways: Sequence[Way]) -> str:
    """Disturbs a job some times in one way, and lets it end."""
    way, codes = case.pick(*ways), []
    for _ in range(case.pick(1, 1, 2, 3)):
        code, text = way(case.rng, job)
        codes.append(code)
        case.require_message(text, code)
    code, text = job.run()
    case.require_message(text, code)
    case.require(not code, f"the last run ends with {code}: {text}")
    case.compare("other than of an undisturbed run", job.found(), job.wanted)
    name = way.__name__.strip("_")
    case.what = f"{' '.join(job.words)}, {name} {codes}"
    num_ended = sum(code != 0 for code in codes)
    return f"{name}: ended {num_ended} times"

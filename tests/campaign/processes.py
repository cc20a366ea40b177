"""Commands in processes of their own: disturbed and run again, or two at once.

In the end there must be, byte for byte, what an undisturbed run leaves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import builds

_context = multiprocessing.get_context("forkserver")
# The fork server does not inherit sys.path, and ignores modules that it cannot import.
_TESTS = Path(__file__).resolve().parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join((str(_TESTS), str(_TESTS.parent)))

_MOST_SECONDS = 600

#: (what came of a case, complaints, what was done).
Outcome = tuple[str, list[str], str]
#: What goes wrong in a process; made there, so it must be picklable.
Fault = Callable[[], contextlib.AbstractContextManager[None]]


def preload(modules: Iterable[str]) -> None:
    """Says what the server has imported from which `Run` forks; to be called before the first."""
    # Each run begins with the program itself, so what that imports has to be there, too.
    _context.set_forkserver_preload(["campaign.run", *modules])


@functools.cache
def home() -> Path:
    """Returns a folder for sources and undisturbed results, which is removed at the end."""
    folder = tempfile.TemporaryDirectory(prefix="campaign-home-")
    home.folder = folder  # type: ignore[attr-defined]
    return Path(folder.name)


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
        words: Sequence[str],
        fault: Fault | None = None,
        variables: Mapping[str, str] | None = None,
        command: str = "pipelines.build_tfrecords",
    ) -> None:
        descriptor, self._log = tempfile.mkstemp(prefix="campaign-log-")
        os.close(descriptor)
        self.process: BaseProcess = _context.Process(
            target=_run, args=(command, list(words), self._log, fault, variables)
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

    def end(self, rng: random.Random, seconds: float) -> tuple[int, str]:
        """Sends a signal that ends it, at some time within these seconds; see `wait`."""
        time.sleep(rng.random() * seconds)
        number = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)
        return self.wait()


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
        found: returns what is there now, by name.
        wanted: what an undisturbed run leaves.
        seconds: how long an undisturbed run takes.
        variables: of its environment.
        advice: what the last run may say if running it once more is the remedy.
        command: see `Run`.
        scale: how much more it writes than a tiny build, so that faults hit all of it.
    """

    words: list[str]
    folder: Path
    found: Callable[[], Mapping[str, bytes]]
    wanted: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    seconds: float = 0
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    advice: str | None = None
    command: str = "pipelines.build_tfrecords"
    scale: int = 1

    def start(self, fault: Callable[..., Any] | None = None, *arguments: object) -> Run:
        """Starts it with a fault, which is called with the arguments there."""
        made = functools.partial(fault, *arguments) if fault else None
        return Run(self.words, made, self.variables, self.command)

    def run(self, fault: Callable[..., Any] | None = None, *arguments: object) -> tuple[int, str]:
        """Runs it to its end; see `start` and `Run.wait`."""
        return self.start(fault, *arguments).wait()

    def measured(self) -> tuple[Mapping[str, bytes], float]:
        """Runs it undisturbed; returns what that leaves, and the seconds that it takes."""
        start = time.monotonic()
        code, text = self.run()
        if code or complaints(code, text):
            raise RuntimeError(text)
        return self.found(), time.monotonic() - start


#: Disturbs a job once; returns the exit code and what was said.
Way = Callable[[random.Random, Job], tuple[int, str]]


def disturbed(
    rng: random.Random, job: Job, ways: Sequence[Way], before_last: Callable[[], object] = int
) -> Outcome:
    """Disturbs a job some times in one way, and lets it end."""
    done, problems, way = [], [], rng.choice(ways)
    for _ in range(rng.choice((1, 1, 2, 3))):
        code, text = way(rng, job)
        done.append(code)
        problems += complaints(code, text)
    before_last()
    code, text = job.run()
    if code and job.advice and job.advice in text:
        code, text = job.run()
    problems += [*complaints(code, text), *failures(code, text)]
    problems += differences(job.found(), job.wanted)
    name = getattr(way, "__name__", "").strip("_")
    effect = f"ended {sum(code != 0 for code in done)} times" if any(done) else "never ended"
    return f"{name}: {effect}", problems, f"{' '.join(job.words)}, {name} {done}"


def at_once(rng: random.Random, job: Job, other: Job | None = None, refusal: str = "") -> Outcome:
    """Starts two jobs, the second while the first is under way.

    Args:
        rng: decides how much later.
        job: the first.
        other: the second, which writes its results to another folder. If None, the first job is
            started twice; one of the two may be refused with exit code 2 if the other succeeds.
        refusal: the message with which one of two different jobs may be refused. It must then
            succeed when it is started alone.
    """
    delay, jobs = rng.random() * job.seconds, (job, other or job)
    first = job.start()
    time.sleep(delay)
    ended = [run.wait() for run in (first, jobs[1].start())]
    problems = [line for code, text in ended for line in complaints(code, text)]
    codes = sorted(code for code, _ in ended)
    if codes != [0, 0] and (codes != [0, 2] if other is None else max(codes) > 2):
        problems.append(f"they end with {codes}: {' '.join(text for _, text in ended)}")
    for each, (code, text) in zip(jobs, ended, strict=True):
        if code and other:
            if refusal not in text:
                problems.append(f"it ends with {code}: {text}")
            problems += failures(*each.run())
        problems += differences(each.found(), each.wanted)
    return f"two at once: {codes}", problems, f"{' '.join(job.words)}, {delay:.2f} s apart"


def complaints(code: int, text: str) -> list[str]:
    """Complains of a traceback, and of a failure without a message."""
    if "Traceback" in text or (code > 0 and "error: " not in text and code not in (130, 143)):
        start = max(text.find("Traceback") - 300, 0) if "Traceback" in text else -1500
        return [f"exit code {code} and no message: {text[start:][:1500]}"]
    return []


def failures(code: int, text: str) -> list[str]:
    """Complains of the last run, which nothing disturbed, if it failed."""
    return [f"the last run ends with {code}: {text}"] if code else []


def differences(found: Mapping[str, bytes], wanted: Mapping[str, bytes]) -> list[str]:
    """Complains of files that are not those of an undisturbed run."""
    if found == wanted:
        return []
    names = sorted(n for n in found.keys() | wanted.keys() if found.get(n) != wanted.get(n))
    return [f"other than of an undisturbed run: {', '.join(names)}"]

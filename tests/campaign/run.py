"""Looks for faults: python tests/campaign/run.py AREA [--seed N] [--cases N] [--case N].

Every case is decided by the seed and its number. A failure prints the command that runs it alone.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import functools
import io
import logging
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from campaign import (
    archives,
    claims,
    downloads,
    faults,
    hostile,
    joined,
    kills,
    pictures,
    processes,
    reader,
    remote_reads,
    tables,
    trainings,
)
from campaign.processes import Outcome

Try = Callable[[random.Random, Path], Outcome]

#: The modules that an area's commands import, for areas that run other commands than the build.
_PRELOADED = dict.fromkeys(("trainings", "folds", "models"), "campaign.preloaded_training")
_MOST_SECONDS = 30
_MOST_KIB = 1 << 20
#: TensorFlow runs in this process, not in one of its own.
_IN_PROCESS = ("claims",)


class _TooLong(BaseException):
    """Ends a case that hangs; no `except Exception` may take it."""


#: How each area tries a case, and the seconds that a case may take.
AREAS: dict[str, tuple[Try, int]] = {
    "archives": (functools.partial(archives.try_case, how="list"), _MOST_SECONDS),
    "builds": (functools.partial(archives.try_case, how="build"), _MOST_SECONDS),
    "commands": (functools.partial(archives.try_case, how="command"), 300),
    "images": (pictures.try_image, _MOST_SECONDS),
    "frames": (pictures.try_frames, _MOST_SECONDS),
    "joined": (joined.try_case, _MOST_SECONDS),
    "tables": (tables.try_case, _MOST_SECONDS),
    "datasets": (hostile.try_dataset_case, 60),
    "models": (hostile.try_model_case, 300),
    "kills": (kills.try_case, 600),
    "drops": (functools.partial(kills.try_case, numbers=kills.DROPS), 600),
    "cuts": (functools.partial(kills.try_case, only=faults.cut), 600),
    "reads": (functools.partial(kills.try_case, only=faults.failing_read), 600),
    "stores": (kills.try_store_case, 600),
    "uploads": (functools.partial(kills.try_store_case, only_kills=True), 600),
    "downloads": (downloads.try_case, 600),
    "two": (kills.try_two, 600),
    "reader": (reader.try_case, 120),
    "remote": (remote_reads.try_case, 300),
    "trainings": (trainings.try_case, 1200),
    "folds": (trainings.try_folds_case, 2400),
    "claims": (claims.try_case, 600),
}


def run_case(area: str, seed: int, number: int) -> Outcome:
    """Runs one case, in a folder of its own, within its limits of time and memory."""
    try_case, seconds = AREAS[area]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder, _at_most(seconds):
        try:
            outcome, problems, what = try_case(
                random.Random(f"{area} {seed} {number}"), Path(folder)
            )
        except _TooLong:
            outcome, problems, what = "hung", [f"not done after {seconds} seconds"], ""
        except Exception:
            outcome, problems, what = "traceback", [traceback.format_exc()], ""
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if after > max(before, _MOST_KIB) and area not in _IN_PROCESS:
        problems = [*problems, f"took {after >> 10} MiB of memory"]
    return outcome, problems, what


@contextlib.contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise _TooLong

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    # For what does not come back to Python.
    faulthandler.dump_traceback_later(2 * seconds, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def run_area(area: str, seed: int, numbers: range, is_verbose: bool = False) -> int:
    """Runs cases, until Ctrl-C, and prints what came of them; returns how many failed."""
    outcomes: collections.Counter[str] = collections.Counter()
    num_failed, start = 0, time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        for number in numbers:
            said = io.StringIO()
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                outcome, problems, what = run_case(area, seed, number)
            outcomes[outcome] += 1
            if problems or is_verbose:
                print(f"{area} {number}: {outcome} ({what})")
            if problems:
                num_failed += 1
                print("\n".join(f"  {line}" for p in problems for line in p.splitlines()[-40:]))
                command = f"python tests/campaign/run.py {area} --seed {seed} --case {number}"
                print(f"  {command}", flush=True)
    seconds = time.monotonic() - start
    summary = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.most_common())
    cases = f"{outcomes.total():,} cases, {num_failed} failed"
    print(f"{area}, seed {seed}: {cases} ({summary}); {seconds:.0f} s", flush=True)
    return num_failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("area", nargs="*", default=list(AREAS), help=", ".join(AREAS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=100, help="of each area")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--case", type=int, help="runs this one alone, and says what it did")
    # A shell that starts this in the background has it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = parser.parse_args()
    if unknown := set(chosen.area) - set(AREAS):
        parser.error(f"no area {', '.join(sorted(unknown))}; there are {', '.join(AREAS)}")
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    processes.preload({_PRELOADED.get(area, "campaign.preloaded") for area in chosen.area})
    numbers = range(chosen.first, chosen.first + chosen.cases)
    if chosen.case is not None:
        numbers = range(chosen.case, chosen.case + 1)
    failed = [run_area(a, chosen.seed, numbers, chosen.case is not None) for a in chosen.area]
    kills.close_stores()
    return 1 if sum(failed) else 0


if __name__ == "__main__":
    sys.exit(main())

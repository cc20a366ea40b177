"""Looks for faults: python tests/campaign/run.py AREA [--seed N] [--cases N] [--case N].

Every case is decided by the seed and its number. A failure prints the command that runs it alone.
"""

import argparse
import collections
import contextlib
import faulthandler
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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from campaign import archives, hostile
from campaign.case import Case

_MOST_KIB = 1 << 20

#: What tries a case of each area and says what came of it, and the seconds that it may take.
AREAS: dict[str, tuple[Callable[[Case], str], int]] = {
    "archives": (archives.try_archive, 30),
    "datasets": (hostile.try_dataset, 60),
}


class _TooLong(BaseException):
    """Ends a case that hangs; no `except Exception` may take it."""


def run_case(area: str, seed: int, number: int) -> tuple[str, Case]:
    """Runs one case, in a folder of its own, within its limits of time and memory."""
    try_case, seconds = AREAS[area]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        case = Case(random.Random(f"{area} {seed} {number}"), Path(folder))
        try:
            with _at_most(seconds):
                outcome = try_case(case)
        except (Exception, _TooLong) as error:
            outcome = "hung" if isinstance(error, _TooLong) else "traceback"
            case.problems.append(f"within {seconds} seconds: {traceback.format_exc()}")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    case.require(after <= max(before, _MOST_KIB), f"took {after >> 10} MiB of memory")
    return outcome, case


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


def run_area(area: str, seed: int, numbers: Sequence[int], is_verbose: bool) -> int:
    """Runs cases, until Ctrl-C, and prints what came of them; returns how many failed."""
    outcomes: collections.Counter[str] = collections.Counter()
    num_failed, start = 0, time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        for number in numbers:
            said = io.StringIO()
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                outcome, case = run_case(area, seed, number)
            outcomes[outcome] += 1
            if case.problems or is_verbose:
                print(f"{area} {number}: {outcome} ({case.what})")
            for problem in case.problems:
                print("\n".join(f"  {line}" for line in problem.splitlines()[-40:]))
            if case.problems:
                num_failed += 1
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
    parser.add_argument("--case", type=int, help="runs this one alone, and says what it did")
    # A shell that starts this in the background has it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = parser.parse_args()
    if unknown := set(chosen.area) - set(AREAS):
        parser.error(f"no area {', '.join(sorted(unknown))}; there are {', '.join(AREAS)}")
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    sys.dont_write_bytecode = True  # a module that is imported late would count as a file written
    numbers = range(chosen.cases) if chosen.case is None else [chosen.case]
    failed = [run_area(a, chosen.seed, numbers, chosen.case is not None) for a in chosen.area]
    return 1 if sum(failed) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Looks for faults: python tests/campaign/run.py [--seed N] [--cases N] [--case N].

A case is an archive or a folder, whole or damaged, of which nothing may be lost without a word. The
seed and its number decide it. A failure prints the command that runs it alone.
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
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from source_files import list_input

from campaign import damage, tools, trees
from pipelines import errors
from pipelines.listing.refs import iterate_refs
from tfrecord_io.decoding.rejects import Reject

_MOST_SECONDS = 30
_MOST_KIB = 1 << 20


def try_archive(rng: random.Random, folder: Path) -> tuple[str, list[str]]:
    """Makes one archive or folder, lists and reads it; returns what came of it, and what is wrong.

    The first starts with what was made and what was done to it.
    """
    kind = rng.choice(trees.KINDS)
    entries = trees.make_tree(rng, kind)
    path = trees.pack(rng, kind, entries, folder / "scans")
    is_damaged = rng.random() < 0.9
    done = damage.damage(rng, path) if is_damaged else ""
    what = f"{kind}, {done or 'whole'}"
    try:
        ledger = _list_all(path, folder)
    except (errors.UserError, errors.BuildError) as refusal:
        return f"{what}: refused", [] if done else [f"a valid {kind} is refused: {refusal}"]
    contents = [entry.content for entry in entries]
    problems = [*tools.complaints(tools.found_by_tools(path), ledger, contents)]
    fates = collections.Counter(entry.fate for entry in entries if entry.fate)
    if not done and +ledger.fates() != fates:
        problems.append(f"what became of the files: {ledger.fates()} instead of {fates}")
    return f"{what}: read{', with rejects' if done and ledger.rejects else ''}", problems


def _list_all(path: Path, folder: Path) -> tools.Ledger:
    """Lists an input and reads every image."""
    source, listing = list_input(path, folder / "scratch")
    ledger, examples = listing.ledger, {}
    rejects = [(tools.escaped(r.source_path), r.reason) for r in ledger.rejects]
    with source.open() as reader:
        for ref in iterate_refs(listing.table):
            reader.announce(ref.member)
            try:
                examples[ref.source_path] = tools.digest(reader.read(ref.member))
            except Reject as reject:
                rejects.append((tools.escaped(ref.source_path), reject.reason))
    return tools.Ledger(examples, rejects, ledger.copies, ledger.ignored, ledger.num_files)


class _TooLong(BaseException):
    """Ends a case that hangs; no `except Exception` may take it."""


def run_case(seed: int, number: int) -> tuple[str, list[str]]:
    """Runs one case, in a folder of its own, within its limits of time and memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with tempfile.TemporaryDirectory(prefix="campaign-") as folder, _at_most(_MOST_SECONDS):
            outcome, problems = try_archive(
                random.Random(f"archives {seed} {number}"), Path(folder)
            )
    except (Exception, _TooLong):
        outcome, problems = "no end", [f"within {_MOST_SECONDS} s: {traceback.format_exc()}"]
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if after > max(before, _MOST_KIB):
        problems.append(f"took {after >> 10} MiB of memory")
    return outcome, problems


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--case", type=int, help="runs this one alone, and says what it did")
    # A shell that starts this in the background has it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    outcomes: collections.Counter[str] = collections.Counter()
    num_failed, start = 0, time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        for number in range(chosen.cases) if chosen.case is None else [chosen.case]:
            said = io.StringIO()
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                outcome, problems = run_case(chosen.seed, number)
            outcomes[outcome.rpartition(": ")[2]] += 1
            num_failed += bool(problems)
            if problems or chosen.case is not None:
                print(f"{number}: {outcome}")
                lines = [line for text in problems for line in text.splitlines()[-40:]]
                command = f"python tests/campaign/run.py --seed {chosen.seed} --case {number}"
                print("\n".join(f"  {line}" for line in [*lines, command]), flush=True)
    summary = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.most_common())
    cases = f"seed {chosen.seed}: {outcomes.total():,} cases, {num_failed} failed"
    print(f"{cases} ({summary}); {time.monotonic() - start:.0f} s")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Trainings and cross-validations that are killed, or that two processes try at once.

In the end the weights and predictions must be, to the bit, those of an undisturbed run.
"""

from __future__ import annotations

import functools
import random
import signal
import subprocess
import time
from pathlib import Path

import marked_images
import numpy as np

from campaign.kills import home

_FLAGS = (
    *marked_images.flags(**marked_images.ALL_ON), "--epochs=2", "--replica_batch_size=8",
    "--seed=1", "--strategy=single", "--deterministic", "--checkpoint_seconds=0", "--dropout=0.2",
    "--bootstrap_samples=5",
)  # fmt: skip
_FOLDS = ("--folds=2", "--epochs=1")
#: What a run may end with besides 0: a usage error, or stopped with the state saved.
_CODES = (0, 2, 130, 143, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)


def try_case(
    rng: random.Random, folder: Path, more: tuple[str, ...] = ()
) -> tuple[str, list[str], str]:
    """Disturbs a training and lets it end; see `archives.try_case`."""
    data, wanted, seconds = _undisturbed(more)
    workdir = folder / "run"
    problems, codes, is_two = [], [], rng.random() < 0.25
    for _ in range(1 if is_two else rng.choice((1, 2))):
        processes = [_start(data, workdir, more)]
        time.sleep(rng.random() * seconds)
        if is_two:
            processes.append(_start(data, workdir, more))
        else:
            processes[0].send_signal(rng.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGINT)))
        for process in processes:
            text, _ = process.communicate(timeout=600)
            codes.append(process.returncode)
            # A signal during the imports ends Python itself, with its own words.
            is_early = "KeyboardInterrupt" in text
            if process.returncode not in _CODES or ("Traceback" in text and not is_early):
                problems.append(f"exit code {process.returncode}: {text[-1500:]}")
    last = _start(data, workdir, more)
    text, _ = last.communicate(timeout=600)
    if last.returncode:
        problems.append(f"the last run ends with {last.returncode}: {text[-1500:]}")
    elif different := _differences(workdir, wanted):
        problems.append(f"other than of an undisturbed run: {different}")
    what = f"{'two at once' if is_two else 'killed'} {codes}"
    return what.rpartition(" [")[0], problems, what


def try_folds_case(rng: random.Random, folder: Path) -> tuple[str, list[str], str]:
    """Disturbs a cross-validation and lets it end; see `archives.try_case`."""
    return try_case(rng, folder, _FOLDS)


def _start(data: Path, workdir: Path, more: tuple[str, ...]) -> subprocess.Popen[str]:
    words = marked_images.command("run", "--data", data, "--workdir", workdir, *_FLAGS, *more)
    return subprocess.Popen(
        words,
        cwd=marked_images.REPOSITORY,
        env=marked_images.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@functools.cache
def _undisturbed(more: tuple[str, ...]) -> tuple[Path, Path, float]:
    """Returns a dataset, the folder of an undisturbed run on it, and the seconds that it took."""
    data, workdir = home() / "data", home() / f"run{''.join(more)}"
    if not data.exists():
        counts = {"train": 100, "val": 10, "test": 12}
        marked_images.write_marked_dataset(data, num_examples=counts)
    start = time.monotonic()
    process = _start(data, workdir, more)
    text, _ = process.communicate(timeout=600)
    if process.returncode:
        raise RuntimeError(text)
    return data, workdir, time.monotonic() - start


def _differences(workdir: Path, wanted: Path) -> str:
    """Returns the files, and the variables in them, that differ in the run or in its folds."""
    files = [path.relative_to(wanted) for path in sorted(wanted.rglob("predictions.csv"))]
    names = [str(f) for f in files if (workdir / f).read_bytes() != (wanted / f).read_bytes()]
    for file in (path.relative_to(wanted) for path in sorted(wanted.rglob("checkpoint.npz"))):
        with np.load(workdir / file) as ours, np.load(wanted / file) as theirs:
            # The facts hold times.
            different = {*ours.files} ^ {*theirs.files}
            for name in {*ours.files} & {*theirs.files} - {"facts"}:
                if not np.array_equal(ours[name], theirs[name], equal_nan=True):
                    different.add(name)
        names += [f"{file} {name}" for name in sorted(different)]
    return ", ".join(names)

"""Trainings and cross-validations that are killed, lose power, cannot write, or run twice at once.

In the end the weights and predictions must be, to the bit, those of an undisturbed run.
"""

from __future__ import annotations

import functools
import random
import time
from pathlib import Path

import marked_images
import numpy as np

from campaign import kills

_FLAGS = (
    *marked_images.flags(**marked_images.ALL_ON), "--epochs=2", "--replica_batch_size=8",
    "--seed=1", "--strategy=single", "--deterministic", "--checkpoint_seconds=0", "--dropout=0.2",
    "--bootstrap_samples=5",
)  # fmt: skip
# Smaller graphs, because each of the two folds builds its own; a training has them whole.
_FOLDS = ("--folds=2", "--epochs=1", "--no-augment", "--mixup=0")
_WAYS = [*[kills.kill] * 4, *kills.FAULTS]


def try_case(
    rng: random.Random, folder: Path, more: tuple[str, ...] = ()
) -> tuple[str, list[str], str]:
    """Disturbs a training and lets it end, or starts it twice; see `archives.try_case`."""
    data, wanted, seconds = undisturbed(more)
    job = kills.Job(
        words=_words(data, folder / "run", more),
        folder=folder,
        wanted=wanted,
        found=functools.partial(_found, folder / "run"),
        seconds=seconds,
        command="train.run",
        scale=5,
    )
    return _twice(rng, job) if rng.random() < 0.2 else kills.disturbed(rng, job, _WAYS)


def try_folds_case(rng: random.Random, folder: Path) -> tuple[str, list[str], str]:
    """Disturbs a cross-validation and lets it end; see `archives.try_case`."""
    return try_case(rng, folder, _FOLDS)


def _twice(rng: random.Random, job: kills.Job) -> tuple[str, list[str], str]:
    """Starts a second run while the first is under way, which must refuse to disturb it."""
    delay = rng.random() * job.seconds
    runs = [job.start()]
    time.sleep(delay)
    runs.append(job.start())
    ended = [run.wait() for run in runs]
    problems = [line for code, text in ended for line in kills.complaints(code, text)]
    codes = sorted(code for code, _ in ended)
    if codes not in ([0, 0], [0, 2]):
        problems.append(f"they end with {codes}: {' '.join(text for _, text in ended)}")
    problems += kills.differences(job.found(), job.wanted)
    return f"two at once: {codes}", problems, f"{delay:.2f} s apart"


def _words(data: Path, workdir: Path, more: tuple[str, ...]) -> list[str]:
    return [f"--data={data}", f"--workdir={workdir}", *_FLAGS, *more]


@functools.cache
def undisturbed(more: tuple[str, ...]) -> tuple[Path, dict[str, bytes], float]:
    """Returns a dataset, what an undisturbed run on it leaves, and the seconds that it takes.

    Raises:
        RuntimeError: if a forked run does not leave the same as the command itself.
    """
    home = kills.home()
    data = home / "data"
    if not data.exists():
        counts = {"train": 36, "val": 8, "test": 8}
        marked_images.write_marked_dataset(data, num_examples=counts)
    command, forked = home / f"command{''.join(more)}", home / f"forked{''.join(more)}"
    done = marked_images.run_script("run", *_words(data, command, more))
    start = time.monotonic()
    code, text = kills.Run(_words(data, forked, more), command="train.run").wait()
    seconds = time.monotonic() - start
    if done.returncode or code or kills.complaints(code, text):
        raise RuntimeError(f"{done.stderr}{text}")
    wanted = _found(command)
    if different := kills.differences(_found(forked), wanted):
        raise RuntimeError(f"a forked run leaves something else than the command: {different}")
    return data, wanted, seconds


def _found(workdir: Path) -> dict[str, bytes]:
    """Returns weights, moments and predictions of a run and its folds; of other files, the names.

    Those hold times, or names that TensorFlow draws.
    """
    found: dict[str, bytes] = {}
    for path in workdir.rglob("*"):
        name = path.relative_to(workdir).as_posix()
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                names = [key for key in arrays.files if key != "facts"]
                found |= {f"{name} {key}": arrays[key].tobytes() for key in names}
        elif path.is_file() and "tensorboard" not in path.parts:
            found[name] = path.read_bytes() if path.name == "predictions.csv" else b""
    return found

"""Trainings and cross-validations that are killed, lose power, cannot write, or run twice at once.

In the end the weights and predictions must be, to the bit, those of an undisturbed run.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Mapping
from pathlib import Path

import marked_images
import numpy as np

from campaign.faults import FAULTS, kill
from campaign.processes import Job, Outcome, at_once, differences, disturbed, failures, home

_FLAGS = (
    *marked_images.flags(**marked_images.ALL_ON), "--epochs=2", "--replica_batch_size=8",
    "--seed=1", "--strategy=single", "--deterministic", "--checkpoint_seconds=0", "--dropout=0.2",
    "--bootstrap_samples=5",
)  # fmt: skip
# Smaller graphs, because each of the two folds builds its own; a training has them whole.
_FOLDS = ("--folds=2", "--epochs=1", "--no-augment", "--mixup=0")
_WAYS = [*[kill] * 4, *FAULTS]


def try_case(rng: random.Random, folder: Path, more: tuple[str, ...] = ()) -> Outcome:
    """Disturbs a training and lets it end, or starts it twice."""
    _, wanted, seconds = undisturbed(more)
    job = dataclasses.replace(_job(folder / "run", more), wanted=wanted, seconds=seconds)
    return at_once(rng, job) if rng.random() < 0.2 else disturbed(rng, job, _WAYS)


def try_folds_case(rng: random.Random, folder: Path) -> Outcome:
    """Disturbs a cross-validation and lets it end, or starts it twice."""
    return try_case(rng, folder, _FOLDS)


@functools.cache
def _data() -> Path:
    counts = {"train": 36, "val": 8, "test": 8}
    marked_images.write_marked_dataset(home() / "data", num_examples=counts)
    return home() / "data"


def _job(workdir: Path, more: tuple[str, ...]) -> Job:
    return Job(
        words=[f"--data={_data()}", f"--workdir={workdir}", *_FLAGS, *more],
        folder=workdir.parent,
        found=functools.partial(_found, workdir),
        command="train.run",
        scale=5,
    )


@functools.cache
def undisturbed(more: tuple[str, ...] = ()) -> tuple[Path, Mapping[str, bytes], float]:
    """Returns an undisturbed run, what it leaves, and the seconds that it takes.

    Raises:
        RuntimeError: if a forked run does not leave the same as the command itself.
    """
    forked, command = (home() / f"{name}{''.join(more)}" for name in ("forked", "command"))
    job = _job(forked, more)
    wanted, seconds = job.measured()
    done = marked_images.run_script("run", *_job(command, more).words)
    problems = [*differences(_found(command), wanted), *failures(done.returncode, done.stderr)]
    if problems:
        raise RuntimeError(f"the command leaves something else: {problems}")
    return forked, wanted, seconds


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

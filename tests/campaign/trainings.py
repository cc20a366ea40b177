"""Trainings and cross-validations that are killed, lose power or cannot write.

In the end the weights and predictions must be, to the bit, those of an undisturbed run.
"""

import dataclasses
import functools
import shutil
from pathlib import Path

import marked_images

from campaign.case import Case
from campaign.faults import FAULTS, kill
from campaign.processes import Job, disturbed, home, undisturbed

_FLAGS = (
    *marked_images.flags(**marked_images.ALL_ON), "--epochs=2", "--replica_batch_size=8",
    "--seed=1", "--strategy=single", "--deterministic", "--checkpoint_seconds=0", "--dropout=0.2",
    "--bootstrap_samples=5",
)  # fmt: skip
# Smaller graphs, because each of the two folds builds its own; a training has them whole.
_FOLDS = ("--folds=2", "--epochs=1", "--no-augment", "--mixup=0")


def try_training(case: Case) -> str:
    """Disturbs a training or a cross-validation and lets it end."""
    more = _FOLDS if case.happens(0.3) else ()
    job = training_job(case.folder, *more).like(undisturbed(training_job, *more))
    if case.happens(0.2):  # a run of other settings is replaced
        old = undisturbed(training_job, "--seed=2", *_FOLDS)
        shutil.copytree(old.folder / "run", case.folder / "run")
        job = dataclasses.replace(job, words=[*job.words, "--overwrite"])
    outcome = disturbed(case, job, [*[kill] * 4, *FAULTS])
    return f"folds, {outcome}" if more else outcome


@functools.cache
def data() -> Path:
    counts = {"train": 36, "val": 8, "test": 8}
    marked_images.write_marked_dataset(home() / "data", num_examples=counts)
    return home() / "data"


def training_job(folder: Path, *more: str) -> Job:
    """Returns a training, into `run` in a folder; the last of equal flags counts."""
    flags = {flag.partition("=")[0]: flag for flag in (*_FLAGS, *more)}
    return Job(
        words=[f"--data={data()}", f"--workdir={folder / 'run'}", *flags.values()],
        folder=folder,
        found=functools.partial(_found, folder / "run"),
        command="train.run",
        scale=5,
    )


def _found(workdir: Path) -> dict[str, bytes]:
    """Returns weights, moments and predictions of a run and its folds; of other files, the names.

    Those hold times, or names that TensorFlow draws.
    """
    found: dict[str, bytes] = {}
    for path in workdir.rglob("*"):
        name = path.relative_to(workdir).as_posix()
        if path.suffix == ".npz":
            arrays = marked_images.arrays_of(path).items()
            found |= {f"{name} {key}": array.tobytes() for key, array in arrays}
        elif path.is_file() and "tensorboard" not in path.parts:
            found[name] = path.read_bytes() if path.name == "predictions.csv" else b""
    return found

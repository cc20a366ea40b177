"""Writes the folder tree of synthetic scans, with their patients, classes and splits.

Patients have several scans, a few of them in two classes, none in two splits. The classes of train
are as unbalanced as those of the Kermany archive.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL

from pipelines import errors, workers
from pipelines.sources.downloads import read_json
from pipelines.sources.synthetic.scans import (
    GENERATOR_VERSION,
    LABEL_NAMES,
    draw_bscan,
    encode_jpeg,
)
from pipelines.stores import file_lock

SPLITS = ("train", "val", "test")
ARCHIVE_FOLDER = "OCT2017 "  # with a trailing space, as in the Kermany archive
COMPLETE_MARKER = ".complete.json"
# 2018-01-01T00:00:00Z. Constant, because sizes and times of files identify a source.
FILE_MTIME = 1_514_764_800

# Images of each class in the real train folder (Kermany et al. 2018, Kaggle's edition).
_TRAIN_SIZES = (37_205, 11_348, 8_616, 26_315)
_HELD_OUT_SHARE = 0.1  # of all images, for each of val and test
_SECOND_CLASS_PROBABILITY = 0.06
_CHUNK_SIZE = 32
# With fewer images than this, starting processes costs more time than they save.
_SMALLEST_PARALLEL_RUN = 256


def write_tree(
    directory: Path,
    num_examples: int,
    seed: int,
    progress: Callable[[int], object] = lambda written: None,
) -> None:
    """Writes a tree of synthetic scans with the structure of the Kermany archive.

    The files are `directory/OCT2017 /{train,val,test}/CLASS/CLASS-PATIENT-INDEX.jpeg`. The same
    arguments give the same bytes and modification times on any number of cores. The tree is drawn
    in another folder and renamed when it is complete. A complete tree is kept; one with other
    settings or missing files is drawn again. `progress` is called with the number of images that
    were written since its last call.

    Raises:
        errors.UserError: if another process is drawing into the directory, or it exists and this
            function did not write it.
        errors.BuildError: if a worker process died.
    """
    tasks = _plan_tree(num_examples, seed)
    settings = {
        "generator_version": GENERATOR_VERSION,
        "num_examples": num_examples,
        "numpy_version": np.__version__,
        "pillow_version": PIL.__version__,
        "seed": seed,
    }
    if _is_complete(directory, settings):
        return

    def busy(process: str) -> errors.UserError:
        return errors.UserError(
            f"another process (process id {process}) is drawing into {directory}; wait for it, "
            "or choose another folder"
        )

    with file_lock.held(directory.with_name(f".{directory.name}.lock"), busy):
        if directory.exists() and not (directory / COMPLETE_MARKER).exists():
            raise errors.UserError(
                f"{directory} exists and was not written by the synthetic source (no "
                f"{COMPLETE_MARKER} in it); choose another directory, or delete that folder if it "
                "is not needed"
            )
        drawing = directory.with_name(f".{directory.name}.drawing")
        shutil.rmtree(drawing, ignore_errors=True)
        _draw(tasks, drawing, progress)
        (drawing / COMPLETE_MARKER).write_text(json.dumps(settings, indent=2) + "\n")
        if directory.exists():
            shutil.rmtree(directory)
        drawing.rename(directory)


def _is_complete(directory: Path, settings: dict[str, object]) -> bool:
    """Returns whether the tree has these settings, and all files as they were written."""
    if read_json(directory / COMPLETE_MARKER) != settings:
        return False
    times = [path.stat().st_mtime for path in directory.glob(f"{ARCHIVE_FOLDER}/*/*/*")]
    return times == [FILE_MTIME] * len(times) and len(times) == settings["num_examples"]


def _draw(tasks: Sequence[_Task], directory: Path, progress: Callable[[int], object]) -> None:
    for folder in {task.path(directory).parent for task in tasks}:
        folder.mkdir(parents=True)
    calls = [(tasks[i : i + _CHUNK_SIZE], directory) for i in range(0, len(tasks), _CHUNK_SIZE)]
    num_workers = len(os.sched_getaffinity(0)) if len(tasks) >= _SMALLEST_PARALLEL_RUN else 1
    counts = (
        workers.results(_write_images, calls, num_workers)
        if num_workers > 1
        else itertools.starmap(_write_images, calls)
    )
    for written in counts:
        progress(written)


class _Task(NamedTuple):
    """One file to draw."""

    split: str
    label: str
    patient: int
    index: int
    seed: int

    def path(self, directory: Path) -> Path:
        name = f"{self.label}-{self.patient}-{self.index}.jpeg"
        return directory / ARCHIVE_FOLDER / self.split / self.label / name


def _write_images(tasks: Sequence[_Task], directory: Path) -> int:
    """Draws some files; returns their number."""
    for task in tasks:
        path = task.path(directory)
        path.write_bytes(encode_jpeg(draw_bscan(task.label, task.patient, task.index, task.seed)))
        os.utime(path, (FILE_MTIME, FILE_MTIME))
    return len(tasks)


def split_sizes(num_examples: int) -> dict[tuple[str, str], int]:
    """Distributes a number of images over (split, label) as in the Kermany archive.

    val and test get about a tenth each, with equal classes; train has the real proportions of
    classes. Each class of each split gets at least one image, if there are at least 12.
    """
    num_classes = len(LABEL_NAMES)
    held_out = max(1, round(num_examples * _HELD_OUT_SHARE / num_classes))
    spare = num_examples - (2 * held_out + 1) * num_classes
    ends = np.round(spare * np.cumsum((0, *_TRAIN_SIZES)) / sum(_TRAIN_SIZES)).astype(int)
    sizes = {
        ("train", name): 1 + int(n) for name, n in zip(LABEL_NAMES, np.diff(ends), strict=True)
    }
    return sizes | {(split, label): held_out for split in SPLITS[1:] for label in LABEL_NAMES}


def _plan_tree(num_examples: int, seed: int) -> list[_Task]:
    """Returns all files to draw, in a fixed order, with their patients, classes and splits."""
    sizes = split_sizes(num_examples)
    rng = np.random.default_rng((3, seed, num_examples))
    patients = iter(rng.choice(9_999_999, num_examples, replace=False).tolist())
    tasks: list[_Task] = []
    for split, label in list(sizes):
        while sizes[split, label]:
            patient, shown = next(patients), [label]
            later = LABEL_NAMES[LABEL_NAMES.index(label) + 1 :]
            if later and rng.random() < _SECOND_CLASS_PROBABILITY:
                shown.append(later[rng.integers(len(later))])
            # With gaps, because the real archive holds only some scans of each volume.
            indices = iter(rng.integers(1, 26, 24).cumsum().tolist())
            for each in shown:
                # From 1 to 12 images, mostly few; more with disease than without.
                wanted = 1 + int(11 * rng.random() ** (3.0 if each == "NORMAL" else 1.6))
                for _ in range(min(sizes[split, each], wanted)):
                    tasks.append(_Task(split, each, patient, next(indices), seed))
                    sizes[split, each] -= 1
    return tasks

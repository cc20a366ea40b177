"""Writes the folder tree of synthetic scans, with their patients, classes and splits.

The tree is drawn in a temporary folder and renamed when it is complete.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import PIL
from numpy.random import Generator

from pipelines import errors, workers
from pipelines.sources.synthetic.scans import (
    GENERATOR_VERSION,
    LABEL_NAMES,
    TREE_STREAM,
    chance,
    draw_bscan,
    encode_jpeg,
    generator,
    whole,
)
from pipelines.stores import file_lock

SPLITS = ("train", "val", "test")
ARCHIVE_FOLDER = "OCT2017 "  # with a trailing space, as in the Kermany archive
COMPLETE_MARKER = ".complete.json"
# 2018-01-01T00:00:00Z. Constant, because sizes and times of files identify a source.
FILE_MTIME = 1_514_764_800

_DRAWING_FOLDER = ".drawing"

# Images of each class in the real train folder (Kermany et al. 2018, Kaggle's edition).
_TRAIN_WEIGHTS = {"CNV": 37_205, "DME": 11_348, "DRUSEN": 8_616, "NORMAL": 26_315}
_HELD_OUT_FRACTION = 0.1
_MAX_IMAGES_A_PATIENT = 12
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
    num_examples, seed and Pillow version give the same bytes and modification times on any number
    of cores. A complete tree is kept; a tree with other settings or missing files is drawn again. A
    second process that wants to draw into the same directory gets an error.

    Args:
        directory: parent of the archive's folder; made if it is missing.
        num_examples: number of images in all, at least 12.
        seed: seed of the whole dataset, not negative.
        progress: is called with the number of images written since the last call.

    Raises:
        errors.UserError: if num_examples is too small, or another process is drawing into the
            directory.
        errors.BuildError: if a worker process died.
        FileExistsError: if the archive's folder exists and this function did not write it.
    """
    tasks = _plan_tree(num_examples, seed)
    settings: dict[str, object] = {
        "generator_version": GENERATOR_VERSION,
        "num_examples": num_examples,
        "pillow_version": PIL.__version__,
        "seed": seed,
    }
    if not _is_complete(directory, settings, tasks):
        directory.mkdir(parents=True, exist_ok=True)
        # Beside the directory, so that it is not listed as data.
        lock = directory.with_name(f".{directory.name}.lock")
        with file_lock.held(
            lock,
            lambda process: errors.UserError(
                f"another process (process id {process}) is drawing into {directory}; wait for it, "
                "or choose another folder"
            ),
        ):
            # Another process may have drawn the tree before this one got the lock.
            if not _is_complete(directory, settings, tasks):
                _draw_tree(directory, settings, tasks, progress)


def _draw_tree(
    directory: Path,
    settings: dict[str, object],
    tasks: list[_ImageTask],
    progress: Callable[[int], object],
) -> None:
    """Draws all files in a temporary folder, then renames it."""
    tree, marker = directory / ARCHIVE_FOLDER, directory / COMPLETE_MARKER
    if tree.exists() and not marker.exists():
        raise FileExistsError(
            f"{tree!s} exists and was not written by the synthetic source (no {COMPLETE_MARKER} "
            "beside it); choose another directory, or delete that folder if it is not needed"
        )
    drawing = directory / _DRAWING_FOLDER
    shutil.rmtree(drawing, ignore_errors=True)
    for folder in {task.path(drawing).parent for task in tasks}:
        folder.mkdir(parents=True)
    calls = [(tasks[i : i + _CHUNK_SIZE], drawing) for i in range(0, len(tasks), _CHUNK_SIZE)]
    num_workers = len(os.sched_getaffinity(0)) if len(tasks) >= _SMALLEST_PARALLEL_RUN else 1
    counts = (
        workers.results(_write_images, calls, num_workers)
        if num_workers > 1
        else itertools.starmap(_write_images, calls)
    )
    for written in counts:
        progress(written)
    if tree.exists():
        shutil.rmtree(tree)
    # The marker is written first: after a kill in between, a tree without a marker would look like
    # a foreign one, while a marker without a tree counts as incomplete.
    marker.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    (drawing / ARCHIVE_FOLDER).rename(tree)
    drawing.rmdir()


def _is_complete(directory: Path, settings: dict[str, object], tasks: list[_ImageTask]) -> bool:
    """Returns whether the tree has these settings and every file has its size and time."""
    try:
        if json.loads((directory / COMPLETE_MARKER).read_text()) != settings:
            return False
        stats = [task.path(directory).stat() for task in tasks]
    except (FileNotFoundError, ValueError):
        return False
    return all(stat.st_size > 0 and stat.st_mtime == FILE_MTIME for stat in stats)


@dataclass(frozen=True, kw_only=True)
class _ImageTask:
    """One file to draw, with everything a worker process needs to know."""

    split: str
    label: str
    patient: int
    index: int
    seed: int

    def path(self, directory: Path) -> Path:
        name = f"{self.label}-{self.patient}-{self.index}.jpeg"
        return directory / ARCHIVE_FOLDER / self.split / self.label / name


def split_sizes(num_examples: int) -> dict[tuple[str, str], int]:
    """Distributes a number of images over splits and classes as in the Kermany archive.

    val and test get about a tenth each, with equal classes; train has the real proportions of
    classes. Each class of each split gets at least one image.

    Args:
        num_examples: number of images in all.

    Returns:
        number of images by (split, label); they add up to num_examples.

    Raises:
        errors.UserError: if there are too few images for one in every class of every split.
    """
    smallest = len(SPLITS) * len(LABEL_NAMES)
    if num_examples < smallest:
        raise errors.UserError(
            f"num_examples must be at least {smallest}, one for each of {len(LABEL_NAMES)} classes "
            f"in each of {len(SPLITS)} splits, got {num_examples}; choose a larger number"
        )
    held_out = max(1, round(num_examples * _HELD_OUT_FRACTION / len(LABEL_NAMES)))
    # Each class gets one image; the rest is distributed by weight, largest remainders first.
    num_train = num_examples - 2 * len(LABEL_NAMES) * held_out
    spare = num_train - len(LABEL_NAMES)
    total_weight = sum(_TRAIN_WEIGHTS.values())
    train = {label: 1 + spare * _TRAIN_WEIGHTS[label] // total_weight for label in LABEL_NAMES}
    by_remainder = sorted(
        LABEL_NAMES, key=lambda label: -(spare * _TRAIN_WEIGHTS[label] % total_weight)
    )
    for label in by_remainder[: num_train - sum(train.values())]:
        train[label] += 1
    sizes = {("train", label): train[label] for label in LABEL_NAMES}
    sizes |= {(split, label): held_out for split in ("val", "test") for label in LABEL_NAMES}
    return sizes


def _plan_tree(num_examples: int, seed: int) -> list[_ImageTask]:
    """Returns all files to draw, in a fixed order, with their patients, classes and splits."""
    sizes_by_share = split_sizes(num_examples)
    rng = generator(TREE_STREAM, seed, num_examples)
    patients = _patient_numbers(rng)
    tasks: list[_ImageTask] = []
    for split in SPLITS:
        sizes = {label: sizes_by_share[split, label] for label in LABEL_NAMES}
        for position, label in enumerate(LABEL_NAMES):
            while sizes[label]:
                patient = next(patients)
                indices = _scan_indices(rng)
                shown = [label]
                if position + 1 < len(LABEL_NAMES) and chance(rng, _SECOND_CLASS_PROBABILITY):
                    shown.append(LABEL_NAMES[whole(rng, position + 1, len(LABEL_NAMES) - 1)])
                for each in shown:
                    for _ in range(min(sizes[each], _images_of_a_patient(rng, each))):
                        tasks.append(
                            _ImageTask(
                                split=split,
                                label=each,
                                patient=patient,
                                index=next(indices),
                                seed=seed,
                            )
                        )
                        sizes[each] -= 1
    return tasks


def _patient_numbers(rng: Generator) -> Iterator[int]:
    """Yields distinct numbers of up to seven digits that look random."""
    # The step and the modulus have no common factor, so every number comes before one repeats.
    modulus, step = 9_999_991, 3_814_279
    number = whole(rng, 0, modulus - 1)
    while True:
        number = (number + step) % modulus
        yield number + 1


def _scan_indices(rng: Generator) -> Iterator[int]:
    """Yields increasing scan numbers with gaps: the real archive holds only some of each volume."""
    index = 0
    while True:
        index += whole(rng, 1, 25)
        yield index


def _images_of_a_patient(rng: Generator, label: str) -> int:
    """Returns a random number from 1 to 12, mostly small; larger with disease than without."""
    spread = 3.0 if label == "NORMAL" else 1.6
    return 1 + int((_MAX_IMAGES_A_PATIENT - 1) * float(rng.random()) ** spread)


def _write_images(tasks: Sequence[_ImageTask], directory: Path) -> int:
    """Draws some files and sets their constant time; returns their number."""
    for task in tasks:
        path = task.path(directory)
        path.write_bytes(encode_jpeg(draw_bscan(task.label, task.patient, task.index, task.seed)))
        os.utime(path, (FILE_MTIME, FILE_MTIME))
    return len(tasks)

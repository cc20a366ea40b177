"""Two trainings that answer the same scans: what each gets right, and the difference by patient."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from train.results.bootstrap import with_intervals


def scores(
    right: np.ndarray, labels: np.ndarray, counts: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Returns measures of answers that are right or not, where each example counts so often.

    Args:
        right: [num_examples], the share of the seeds that are right.
        labels: of any type, [num_examples].
        counts: [..., num_examples].
    """
    counts = np.ones(len(right)) if counts is None else counts
    of_classes = [
        np.sum(counts * right * (labels == label), -1) / np.sum(counts * (labels == label), -1)
        for label in np.unique(labels)
    ]
    accuracy = np.sum(counts * right, -1) / np.sum(counts, -1)
    return {"accuracy": accuracy, "balanced accuracy": np.mean(of_classes, axis=0)}


def print_row(
    title: str, right: Mapping[str, np.ndarray], labels: np.ndarray, patients: np.ndarray
) -> None:
    """Prints the measures of two trainings, and what the second gains, with intervals.

    Args:
        title: of the scans.
        right: of each training, see `scores`.
        labels: [num_examples].
        patients: whose scans they are, [num_examples].
    """

    def gains(counts: np.ndarray) -> dict[str, np.ndarray]:
        first, second = (scores(each, labels, counts) for each in right.values())
        # Under another name than the measure's, whose limits do not hold for a difference.
        return {f"gain in {name}": second[name] - first[name] for name in first}

    groups = np.unique(patients, return_inverse=True)[1]
    for gain, found in with_intervals(gains, groups, {}, num_samples=2000, seed=0).items():
        name = gain.removeprefix("gain in ")
        each = ", ".join(f"{what} {scores(of, labels)[name]:.1%}" for what, of in right.items())
        value, low, high = (found[end] for end in ("value", "low", "high"))
        print(f"{title}: {name}: {each}, difference {value:+.1%} [{low:+.1%}, {high:+.1%}]",
              flush=True)  # fmt: skip


def call(*words: object) -> None:
    """Runs a script of this checkout; prints what it says, and ends, if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, *map(str, words)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{result.stderr[-3000:]}")

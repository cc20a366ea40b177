"""What does each ingredient of the default training bring? Cross-validated runs with one seed.

    python benchmarks/ablation.py --sample kermany2018-sample.zip

Each row changes one setting of the default and cross-validates it with two folds of patients, so
that every scan is predicted by a model that never saw its patient. The scans are stored at 128
pixels, half of them train, and so the accuracies are lower than those of the README: only
differences are of interest here. The interval of a difference comes from a bootstrap
over patients, who are drawn together for both settings. It knows nothing of the spread between
seeds, which adds to it.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
SETTINGS: dict[str, tuple[str, ...]] = {
    "the default": (),
    "no augmentation": ("--no-augment",),
    "no MixUp": ("--mixup", "0"),
    "no class weights": ("--class_weights", "none"),
    "no moving average": ("--ema_decay", "0"),
    "no label smoothing": ("--label_smoothing", "0"),
    "half of the augmentation": ("--augment_strength", "0.5"),
    "the 2018 tutorial's network": ("--model", "convnet"),
    "no weight decay": ("--weight_decay", "0"),
}
_NUM_DRAWS = 2000


@dataclass(frozen=True)
class Predictions:
    """One row for each image.

    Attributes:
        patient: str [images].
        label: str [images].
        correct: bool [images].
    """

    patient: np.ndarray
    label: np.ndarray
    correct: np.ndarray

    @classmethod
    def read(cls, path: Path) -> Predictions:
        """Reads a predictions.csv, sorted by key so that two files have the same rows."""
        with path.open(encoding="utf-8", newline="") as file:
            rows = sorted(csv.DictReader(file), key=lambda row: row["key"])
        columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        return cls(
            patient=columns["patient"],
            label=columns["label"],
            correct=columns["label"] == columns["predicted"],
        )

    def balanced_accuracy(self) -> float:
        """Returns the mean over the classes of the share that is predicted correctly."""
        return float(np.mean([self.correct[self.label == n].mean() for n in set(self.label)]))


def difference(setting: Predictions, default: Predictions) -> tuple[float, float, float]:
    """Returns the difference in accuracy and the ends of its 95 % interval.

    Args:
        setting: of the changed setting.
        default: of the default, for the same images.
    """
    gain = setting.correct.astype(float) - default.correct
    _, patient = np.unique(default.patient, return_inverse=True)
    gains, images = np.bincount(patient, gain), np.bincount(patient)
    draws = np.random.default_rng(0).integers(len(gains), size=(_NUM_DRAWS, len(gains)))
    values = gains[draws].sum(axis=1) / images[draws].sum(axis=1)
    low, high = np.quantile(values, (0.025, 0.975))
    return float(gain.mean()), float(low), float(high)


def main() -> None:
    """Builds the dataset, trains every setting and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", required=True, help="zip with a sample of the Kermany data")
    parser.add_argument("--image_size", default="128", help="pixels a side")
    parser.add_argument("--epochs", help="of each run, if not as many as the trainer takes")
    parser.add_argument("--folds", default="2")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--workdir", help="folder for dataset and runs; a killed run goes on here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(arguments, Path(arguments.workdir or folder))


def compare(arguments: argparse.Namespace, folder: Path) -> None:
    """Prints a row for each setting as soon as its runs have ended."""
    data = folder / "data"
    _run("pipelines/build_tfrecords.py", "--source", "archive", "--input", arguments.sample,
         "--splits", "patient", "--image_size", arguments.image_size,
         "--output", str(data))  # fmt: skip
    epochs = ["--epochs", arguments.epochs] if arguments.epochs else []
    print("| setting | accuracy | balanced | difference in accuracy | minutes |")
    print("| --- | --- | --- | --- | --- |")
    default = None
    for name, flags in SETTINGS.items():
        workdir = folder / name.replace(" ", "-")
        start = time.monotonic()
        _run("train/run.py", "--data", str(data), "--workdir", str(workdir),
             "--folds", arguments.folds, "--fold_splits", "train,val,test",
             "--seed", arguments.seed, *epochs, *flags)  # fmt: skip
        minutes = (time.monotonic() - start) / 60
        found = Predictions.read(workdir / "predictions.csv")
        default = default or found
        if found is default:
            gain = ""
        else:
            value, low, high = (100 * share for share in difference(found, default))
            gain = f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"
        print(
            f"| {name} | {found.correct.mean():.1%} | {found.balanced_accuracy():.1%} | {gain} "
            f"| {minutes:.1f} |",
            flush=True,
        )


def _run(script: str, *arguments: str) -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / script), *arguments], capture_output=True, text=True
    )
    if result.returncode:
        sys.exit(f"{script} {' '.join(arguments)} failed:\n{result.stderr[-3000:]}")


if __name__ == "__main__":
    main()

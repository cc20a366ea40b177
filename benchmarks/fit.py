"""Should pictures be stretched or padded? `--fit stretch` against `--fit pad`.

    python benchmarks/fit.py --sample kermany2018-sample.zip --image_size 64 --epochs 24 --seeds 3

It compares the speed of both builds, and then networks that are trained on both: with the same
folds of patients, settings and seeds. Each network is asked about the scans that it was not trained
on, and about those that are about square, cropped to another shape without a change of scale, as
another device might record them. Intervals are bootstraps over patients. Runs that are finished in
the working folder are kept.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import statistics
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from paired import call, print_row, scores
from PIL import Image
from sample_archive import WORK_DIR, build_seconds, make_archive

from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.preprocess import decode_image
from tfrecord_io.format.shapes import distinct
from tfrecord_io.reading.mapped import MappedDataset

FITS = ("stretch", "pad")
NUM_FOLDS = 5

_CHILDREN = ("children_user", "children_system")

#: Width to height of the cropped scans; a device at another hospital records 507x280 pixels.
CROPPED = 507 / 280


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=Path, required=True, help="zip of real scans")
    parser.add_argument("--image_size", type=int, default=64, help="pixels a side")
    parser.add_argument("--epochs", type=int, default=24, help="of each run")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each fold and fit; 0: none")
    parser.add_argument("--num_images", type=int, default=4000, help="of the builds that are timed")
    parser.add_argument("--repeats", type=int, default=3, help="builds of each fit; 0: none")
    parser.add_argument("--workdir", type=Path, default=WORK_DIR / "fit")
    arguments = parser.parse_args()
    with zipfile.ZipFile(arguments.sample) as archive:
        names = [name for name in archive.namelist() if name.startswith("OCT2017 /")]
        files = {name: archive.read(name) for name in names if name.endswith(".jpeg")}
    if arguments.repeats:
        compare_speed(arguments, list(files.values()))
    if arguments.seeds:
        compare_networks(arguments, files)


def compare_speed(arguments: argparse.Namespace, files: list[bytes]) -> None:
    """Prints how fast both are, in alternating turns."""
    rounds = []
    for _ in range(arguments.repeats):
        seconds = dict.fromkeys(FITS, 0.0)
        for number, data in enumerate(files):
            for fit in FITS[:: 1 if number % 2 else -1]:
                start = time.process_time()
                decode_image(data, Preprocessing(fit=fit))
                seconds[fit] += time.process_time() - start
        rounds.append(seconds["stretch"] / seconds["pad"])
    print(f"decoding, CPU time, stretch / pad: {statistics.median(rounds):.3f} {rounds}")
    archive = make_archive(arguments.sample, arguments.num_images, stored=True)
    builds = [
        {fit: _build_seconds(archive, fit) for fit in FITS[:: 1 if turn % 2 else -1]}
        for turn in range(arguments.repeats)
    ]
    for number, name in enumerate(("wall time", "CPU time")):
        ratios = [seconds["stretch"][number] / seconds["pad"][number] for seconds in builds]
        print(f"whole build, {name}, stretch / pad: {statistics.median(ratios):.3f} {ratios}")


def _build_seconds(archive: Path, fit: str) -> tuple[float, float]:
    """Returns the wall time and the CPU time of a build, in seconds."""
    before = os.times()
    wall = build_seconds(archive, "--fit", fit)
    after = os.times()
    user, system = (getattr(after, n) - getattr(before, n) for n in _CHILDREN)
    return wall, user + system


def compare_networks(arguments: argparse.Namespace, files: dict[str, bytes]) -> None:
    """Trains on both builds and prints what the networks get right."""
    size, folder = arguments.image_size, arguments.workdir
    for fit in FITS:
        call("pipelines/build_tfrecords.py", "--source", "archive", "--input", arguments.sample,
             "--output", folder / fit, "--image_size", size, "--fit", fit, "--splits", "patient",
             "--split_fractions", "train=0.85,val=0.15")  # fmt: skip
    for seed in range(arguments.seeds):
        for fit in FITS:
            call("train/run.py", "--data", folder / fit, "--workdir", folder / f"{fit}-{seed}",
                 "--folds", NUM_FOLDS, "--seed", seed, "--epochs", arguments.epochs)  # fmt: skip
    answers = {
        fit: [_answers(folder / f"{fit}-{n}") for n in range(arguments.seeds)] for fit in FITS
    }
    for stretched, padded in zip(*answers.values(), strict=True):
        assert {k: v[:2] for k, v in stretched.items()} == {k: v[:2] for k, v in padded.items()}
    keys = sorted(answers["pad"][0])
    rows = {row["key"]: row for row in pq.read_table(folder / "pad/examples.parquet").to_pylist()}
    labels = np.unique([rows[key]["label"] for key in keys], return_inverse=True)[1]
    patients = np.unique([rows[key]["patient"] for key in keys], return_inverse=True)[1]
    shapes = np.array([rows[key]["shape"] for key in keys])
    right = {
        fit: np.mean([[seed[key][2] for key in keys] for seed in of_fit], axis=0)
        for fit, of_fit in answers.items()
    }
    print_row("all scans", right, labels, patients)
    for name, chosen in (("about square", shapes < 1.1), ("wider", shapes > 1.1)):
        some = {fit: values[chosen] for fit, values in right.items()}
        print_row(f"{name}, {chosen.sum()}", some, labels[chosen], patients[chosen])
    is_square = (shapes > 0.95) & (shapes < 1.1)
    chosen = [key for key, square in zip(keys, is_square, strict=True) if square]
    cropped = {}
    for fit in FITS:
        cropped[fit] = _right_when_cropped(
            [folder / f"{fit}-{seed}" for seed in range(arguments.seeds)],
            [answers[fit][0][key][1] for key in chosen],
            [files[rows[key]["path"]] for key in chosen],
            [rows[key]["label"] for key in chosen],
        )
    title = f"about square, cropped to {CROPPED:.2f}:1"
    print_row(title, cropped, labels[is_square], patients[is_square])
    kinds = np.argmin(np.abs(shapes[:, None] - distinct(shapes.tolist())), axis=1)
    folds = np.array([answers["pad"][0][key][1] for key in keys])
    for fit in FITS:
        audit = json.loads((folder / fit / "manifest.json").read_text())["audit"]["measures"]
        facts = audit["shortcuts"]
        each = ", ".join(f"{name} {value:.1%}" for name, value in facts["by_signal"].items())
        print(f"{fit}: class from side facts, balanced: {facts['accuracy']:.1%} "
              f"[{facts['low']:.1%}, {facts['high']:.1%}]; {each}")  # fmt: skip
        told = _shape_from_pixels(folder / fit, keys, kinds, folds)
        from_shape = _most_likely(told, kinds, labels, folds)
        balanced = scores(from_shape == labels, labels)["balanced accuracy"]
        print(f"{fit}: shape told from thumbnails {np.mean(told == kinds):.1%}, class from it "
              f"{balanced:.1%} (balanced)")  # fmt: skip
    balanced = scores(_most_likely(kinds, kinds, labels, folds) == labels, labels)
    print(f"class from the shape itself: {balanced['balanced accuracy']:.1%} (balanced)")


def _answers(run: Path) -> dict[str, tuple[str, int, bool]]:
    """Returns (patient, fold, whether the answer is right) of each scan by its key."""
    found = {}
    for path in sorted(run.glob("seed-*/fold-*/predictions.csv")):
        with path.open() as file:
            for row in csv.DictReader(file):
                is_right = row["label"] == row["predicted"]
                found[row["key"]] = row["patient"], int(path.parent.name[5:]), is_right
    return found


def _right_when_cropped(
    runs: list[Path], folds: list[int], files: list[bytes], labels: list[str]
) -> np.ndarray:
    """Returns which share of the seeds is right about each scan, cropped at the top and bottom."""
    from train.results.classifier import load_classifier, predict_images

    pictures = [_cropped(data) for data in files]
    right = np.zeros((len(runs), len(files)))
    for number, run in enumerate(runs):
        for fold in range(NUM_FOLDS):
            (path,) = run.glob(f"seed-*/fold-{fold}")
            model = load_classifier(path)
            places = [place for place, of_place in enumerate(folds) if of_place == fold]
            settings = model.preprocessing
            images = [
                np.frombuffer(decode_image(pictures[place], settings).pixels, np.uint8)
                for place in places
            ]
            rows = predict_images(model, np.reshape(images, (-1, *settings.image_shape)))
            for place, row in zip(places, rows, strict=True):
                right[number, place] = model.label_names[row.argmax()] == labels[place]
    return right.mean(axis=0)


def _cropped(data: bytes) -> bytes:
    """Returns the brightest rows of a scan, so many that it has the other shape."""
    image = Image.open(io.BytesIO(data))
    # White corners are padding, not retina.
    grey = np.asarray(image, np.float64)
    of_rows = np.where(grey > 250, 0, grey).mean(axis=1)
    height = round(image.width / CROPPED)
    top = int(np.convolve(of_rows, np.ones(height), "valid").argmax())
    file = io.BytesIO()
    image.crop((0, top, image.width, top + height)).save(file, "PNG")
    return file.getvalue()


def _shape_from_pixels(
    data: Path, keys: list[str], kinds: np.ndarray, folds: np.ndarray
) -> np.ndarray:
    """Returns the shape that ridge regression on 16x16 thumbnails tells of each scan."""
    thumbnails = dict(_thumbnails(data))
    pixels = np.stack([thumbnails[key] for key in keys])
    wanted, told = np.eye(kinds.max() + 1)[kinds], np.zeros(len(keys), np.int64)
    for fold in range(NUM_FOLDS):
        known, asked = pixels[folds != fold], pixels[folds == fold]
        ridge = known.T @ known + 0.1 * len(known) * np.eye(pixels.shape[1])
        told[folds == fold] = (
            asked @ np.linalg.solve(ridge, known.T @ wanted[folds != fold])
        ).argmax(1)
    return told


def _thumbnails(data: Path) -> Iterator[tuple[str, np.ndarray]]:
    for split in json.loads((data / "manifest.json").read_text())["splits"]:
        dataset = MappedDataset(data, split)
        places = range(len(dataset))
        for key, image in zip(
            dataset.keys(places), dataset[np.arange(len(dataset))][0], strict=True
        ):
            small = Image.fromarray(image[..., 0]).resize((16, 16), Image.Resampling.BOX)
            yield key, np.append(np.asarray(small, np.float64).ravel() / 255, 1)


def _most_likely(
    told: np.ndarray, kinds: np.ndarray, labels: np.ndarray, folds: np.ndarray
) -> np.ndarray:
    """Returns the class that each told shape has most often, where all classes are as frequent."""
    found = np.zeros(len(labels), np.int64)
    for fold in range(NUM_FOLDS):
        known = folds != fold
        counts = np.ones((kinds.max() + 1, labels.max() + 1))
        np.add.at(counts, (kinds[known], labels[known]), 1)
        found[~known] = (counts / counts.sum(0)).argmax(1)[told[~known]]
    return found


if __name__ == "__main__":
    main()

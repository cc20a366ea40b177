"""How much does a network lose on scans of another device, and what wins it back?

    python benchmarks/other_device.py --sample kermany2018-sample.zip --seeds 3

Nobody can publish the scans of another hospital, so three stand-ins are made from the sample:
- folds of patients, asked about their held-out scans as they are (what the settings cost at home),
- the same scans distorted in ways that the augmentation does not know,
- one shape left out: trained on scans of two widths, asked about those of the third, which are from
  another device or another setting of it.

Each is measured for `--fit stretch` and `pad`, with and without `--augment_device`, with the same
folds and seeds. The networks of the left-out shapes are also adapted to the scans of half of the
patients, without labels, and asked about those of the other half. Runs that are finished in the
working folder are kept.
"""

from __future__ import annotations

import argparse
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from paired import call, print_row, scores
from PIL import Image, ImageFilter
from sample_archive import WORK_DIR

from tfrecord_io.decoding.preprocess import decode_image
from train.results.classifier import load_classifier, predict_images

FITS = ("stretch", "pad")
AUGMENTATIONS = {"usual": (), "device": ("--augment_device",)}
NUM_FOLDS = 5
WIDTHS = (512, 768, 1536)


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=Path, required=True, help="zip of real scans")
    parser.add_argument("--image_size", type=int, default=64, help="pixels a side")
    parser.add_argument("--epochs", type=int, default=48, help="of each run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--fits", nargs="+", default=FITS, choices=FITS)
    parser.add_argument("--parts", nargs="+", default=("folds", "shapes"))
    parser.add_argument("--workdir", type=Path, default=WORK_DIR / "other_device")
    arguments = parser.parse_args()
    with zipfile.ZipFile(arguments.sample) as archive:
        names = [name for name in archive.namelist() if name.startswith("OCT2017 /")]
        files = {name: archive.read(name) for name in names if name.endswith(".jpeg")}
    for fit in arguments.fits:
        if "folds" in arguments.parts:
            compare_folds(arguments, fit, files)
        if "shapes" in arguments.parts:
            leave_one_out(arguments, fit, files)


def compare_folds(arguments: argparse.Namespace, fit: str, files: dict[str, bytes]) -> None:
    """Prints a row for the scans of held-out patients, and for each of their distortions."""
    data = arguments.workdir / fit
    _build(arguments, arguments.sample, data, fit)
    rows = {row["path"]: row for row in pq.read_table(data / "examples.parquet").to_pylist()}
    right: dict[str, dict[str, list[np.ndarray]]] = {}
    for seed in range(arguments.seeds):
        for name, flags in AUGMENTATIONS.items():
            run = arguments.workdir / f"{fit}-{name}-{seed}"
            _train(arguments, data, run, "--folds", NUM_FOLDS, "--seed", seed, *flags)
            for kind, answers in _held_out_answers(run, rows, files).items():
                right.setdefault(kind, {}).setdefault(name, []).append(answers)
    labels = np.array([row["label"] for row in rows.values()])
    patients = np.array([row["patient"] for row in rows.values()])
    for kind, answers in right.items():
        means = {name: np.mean(seeds, axis=0) for name, seeds in answers.items()}
        print_row(f"{fit}, {kind}", means, labels, patients)


def _held_out_answers(
    run: Path, rows: dict[str, dict], files: dict[str, bytes]
) -> dict[str, np.ndarray]:
    """Returns by distortion which scans, in the order of `rows`, are answered rightly."""
    paths = list(rows)
    found = {kind: np.zeros(len(paths)) for kind in DISTORTIONS}
    for fold in sorted(run.glob("seed-*/fold-*")):
        table = np.loadtxt(fold / "predictions.csv", str, delimiter=",", skiprows=1, usecols=0)
        keys = set(np.atleast_1d(table))
        places = [place for place, path in enumerate(paths) if rows[path]["key"] in keys]
        labels = [rows[paths[place]]["label"] for place in places]
        for kind, distort in DISTORTIONS.items():
            pictures = [distort(files[paths[place]]) for place in places]
            found[kind][places] = _answers(fold, pictures, labels)
    return found


def leave_one_out(arguments: argparse.Namespace, fit: str, files: dict[str, bytes]) -> None:
    """Trains on the scans of two widths, and prints a row for those of the third."""
    widths = {path: Image.open(io.BytesIO(data)).width for path, data in files.items()}
    kinds = {path: min(WIDTHS, key=lambda w: abs(w - width)) for path, width in widths.items()}
    of_widths: dict[str, list[float]] = {}
    for width in WIDTHS:
        left_out = [path for path, kind in kinds.items() if kind == width]
        archive = arguments.workdir / f"without-{width}.zip"
        if not archive.exists():
            archive.parent.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(archive, "w") as kept:
                for path in sorted(set(files) - set(left_out)):
                    kept.writestr(path, files[path])
        data = arguments.workdir / f"{fit}-without-{width}"
        _build(arguments, archive, data, fit)
        labels = np.array([path.split("/")[2] for path in left_out])
        patients = np.array([path.split("-")[1] for path in left_out])
        people = np.unique(patients)
        is_adapted = np.isin(patients, np.random.default_rng(0).permutation(people)[::2])
        folder = arguments.workdir / f"half-of-{width}"
        for path, chosen in zip(left_out, is_adapted, strict=True):
            if chosen:
                folder.mkdir(exist_ok=True)
                (folder / path.replace("/", "_")).write_bytes(files[path])
        right: dict[str, list[np.ndarray]] = {}
        adapted: dict[str, list[np.ndarray]] = {}
        for seed in range(arguments.seeds):
            for name, flags in AUGMENTATIONS.items():
                run = arguments.workdir / f"{fit}-without-{width}-{name}-{seed}"
                _train(arguments, data, run, "--seed", seed, *flags)
                answers = _answers(run, [files[path] for path in left_out], list(labels))
                right.setdefault(name, []).append(answers)
                output = run.with_name(f"{run.name}-adapted")
                if not output.exists():
                    call("train/adapt.py", "--run", run, "--input", folder, "--output", output)
                rest = [
                    path for path, chosen in zip(left_out, is_adapted, strict=True) if not chosen
                ]
                answers = _answers(
                    output, [files[path] for path in rest], list(labels[~is_adapted])
                )
                adapted.setdefault(name, []).append(answers)
        means = {name: np.mean(seeds, axis=0) for name, seeds in right.items()}
        print_row(f"{fit}, width {width} left out, {len(labels)} scans", means, labels, patients)
        rest_labels = labels[~is_adapted]
        for name, answers in adapted.items():
            before = scores(means[name][~is_adapted], rest_labels)["balanced accuracy"]
            after = scores(np.mean(answers, axis=0), rest_labels)["balanced accuracy"]
            print(f"{fit}, {width}, {name}, {len(rest_labels)} scans of other patients: balanced "
                  f"{before:.1%}, adapted {after:.1%}", flush=True)  # fmt: skip
        for name, values in means.items():
            of_widths.setdefault(name, []).append(scores(values, labels)["balanced accuracy"])
    each = ", ".join(f"{name} {np.mean(values):.1%}" for name, values in of_widths.items())
    print(f"{fit}, mean of the widths left out: balanced accuracy: {each}", flush=True)


def _answers(run: Path, pictures: list[bytes], labels: list[str]) -> np.ndarray:
    """Returns which pictures, files of images, a network answers rightly, bool [num_pictures]."""
    model = load_classifier(run)
    settings = model.preprocessing
    images = [np.frombuffer(decode_image(each, settings).pixels, np.uint8) for each in pictures]
    rows = predict_images(model, np.reshape(images, (-1, *settings.image_shape)))
    answered = [model.label_names[row.argmax()] for row in rows]
    return np.array(answered) == np.array(labels)


def _picture(change: Callable[[Image.Image], Image.Image]) -> Callable[[bytes], bytes]:
    """Returns a function from a file to the file of its changed picture, without loss."""

    def changed(data: bytes) -> bytes:
        file = io.BytesIO()
        change(Image.open(io.BytesIO(data)).convert("L")).save(file, "PNG", compress_level=1)
        return file.getvalue()

    return changed


def _other_curve(image: Image.Image) -> Image.Image:
    """Lifts black and steepens the middle, as another vendor's display curve does."""
    grey = np.arange(256) / 255
    curve = 0.15 + 0.85 * (3 * grey**2 - 2 * grey**3)
    return image.point(np.rint(255 * curve).astype(int).tolist())


def _moved(image: Image.Image) -> Image.Image:
    """Blurs along the rows, by a fortieth of the width, as an eye that moves does."""
    length = max(image.width // 40, 2)
    pixels = np.pad(np.asarray(image, np.float64), ((0, 0), (length // 2, length)), "edge")
    sums = np.cumsum(pixels, axis=1)
    mean = (sums[:, length : length + image.width] - sums[:, : image.width]) / length
    return Image.fromarray(np.rint(mean).astype(np.uint8))


def _recompressed(image: Image.Image) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=10)
    return Image.open(file)


#: None of these is among the operations of the augmentation.
DISTORTIONS: dict[str, Callable[[bytes], bytes]] = {
    "held-out patients": lambda data: data,
    "another contrast curve": _picture(_other_curve),
    "median of 7x7": _picture(lambda image: image.filter(ImageFilter.MedianFilter(7))),
    "JPEG at quality 10": _picture(_recompressed),
    "motion": _picture(_moved),
}


def _build(arguments: argparse.Namespace, source: Path, data: Path, fit: str) -> None:
    call("pipelines/build_tfrecords.py", "--input", source, "--output", data, "--image_size",
         arguments.image_size, "--fit", fit, "--splits", "patient",
         "--split_fractions", "train=0.85,val=0.15")  # fmt: skip


def _train(arguments: argparse.Namespace, data: Path, run: Path, *flags: object) -> None:
    call("train/run.py", "--data", data, "--workdir", run, "--epochs", arguments.epochs, *flags)


if __name__ == "__main__":
    main()

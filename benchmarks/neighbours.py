"""How many planted copies and wrong labels does the audit of features find?

    python benchmarks/neighbours.py --input kermany2018-sample.zip
    python benchmarks/neighbours.py --search 84484

The first command plants among real scans: copies under the name of another patient, which are
mirrored, turned or cropped, and scans in the folder of another class. It builds the dataset and
audits the features of two trunks: one with random weights, and one that was trained on this
dataset, wrong labels and copies included. The second command times the search.
"""

from __future__ import annotations

import argparse
import io
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from near_duplicates import cropped, read_scans
from PIL import Image

from tfrecord_io.auditing import neighbours
from tfrecord_io.auditing.columns import read_examples
from tfrecord_io.manifest import EXAMPLES_FILE_NAME, Manifest

ROOT = Path(__file__).resolve().parent.parent
_CLASSES = ("CNV", "DME", "DRUSEN", "NORMAL")

#: Name and change of the planted copies.
COPIES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "turned by 5 degrees": lambda image: image.rotate(5, Image.Resampling.BICUBIC),
    "10 % cropped": lambda image: cropped(image, 0.10),
}

_WRITE_RANDOM_WEIGHTS = """
import sys, keras
keras.utils.set_random_seed(0)
network = keras.applications.ResNet50(include_top=False, weights=None, input_shape=(32, 32, 3))
network.save_weights(sys.argv[1])
"""


# The layer below the two pools of small_resnet, whose name Keras has numbered.
_NAME_LAST_MAP = """
import sys, pathlib
from train import predict
names = [layer.name for layer in predict.load_classifier(pathlib.Path(sys.argv[1])).model
         .get_layer("small_resnet").layers]
print(names[names.index("pool_mean") - 1])
"""


def plant(sample: Path, folder: Path, num_copies: int, num_swapped: int) -> None:
    """Writes the scans and what is planted among them, in a folder for each class.

    Args:
        sample: zip of the sample.
        folder: to write to.
        num_copies: number of copies of each kind.
        num_swapped: number of scans with another label.
    """
    names, files = read_scans(sample, 1_000_000)
    random = np.random.default_rng(0)
    chosen = random.permutation(len(names))
    swapped = set(chosen[:num_swapped].tolist())
    copied = iter(chosen[num_swapped:].tolist())
    for row, (name, data) in enumerate(zip(names, files, strict=True)):
        label, number = name.rsplit("/", 1)[-1].split("-", 1)
        if row in swapped:
            label = str(random.choice([other for other in _CLASSES if other != label]))
            number = f"{number.removesuffix('.jpeg')}-swapped.jpeg"
        _write(folder / label / f"{label}-{number}", data)
    for kind, (title, change) in enumerate(COPIES.items()):
        for place in range(num_copies):
            row = next(copied)
            label, number = names[row].rsplit("/", 1)[-1].split("-", 1)
            with Image.open(io.BytesIO(files[row])) as image, io.BytesIO() as file:
                change(image.convert("L")).save(file, "JPEG", quality=90)
                patient = 90_000_000 + 1000 * kind + place
                name = f"{label}-{patient}-{number.removesuffix('.jpeg')}-{title}.jpeg"
                _write(folder / label / name, file.getvalue())


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def report(name: str, features: Path) -> None:
    """Prints a row of the table: what the audit finds among the features of a trunk."""
    found = Manifest.load(features)
    examples, nearest = neighbours.compare(
        features, found, read_examples(features / EXAMPLES_FILE_NAME)
    )
    paths = [Path(path).stem for path in examples["path"].to_pylist()]
    labels = np.array([found.label_names.index(name) for name in examples["label"].to_pylist()])
    copies = [{paths[hint.first], paths[hint.second]} for hint in neighbours.near_copies(nearest)]
    cells = []
    for title in COPIES:
        planted = [path for path in paths if path.endswith(title)]
        hits = sum({path, _original(path)} in copies for path in planted)
        cells.append(f"{hits} of {len(planted)}")
    others = sum(not any(_original(path) in pair for path in pair) for pair in copies)
    doubtful = [
        paths[hint.first].endswith("swapped")
        for hint in neighbours.doubtful_labels(nearest, labels, found.label_names)
    ]
    swapped = sum(path.endswith("swapped") for path in paths)
    cells += [f"{others}", f"{sum(doubtful)} of {swapped}", f"{len(doubtful) - sum(doubtful)}"]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def _original(path: str) -> str | None:
    """Returns the name of the scan that was copied, or None if this scan is not a copy."""
    label, _, *original = path.split("-", 4)
    return (
        "-".join([label, *original[:2]]) if len(original) > 1 and original[-1] in COPIES else None
    )


def report_search(num_scans: int, num_channels: int) -> None:
    """Prints time and memory of a search among random vectors."""
    vectors = np.random.default_rng(0).standard_normal((num_scans, num_channels), np.float32)
    vectors = neighbours.directions(vectors)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, cpu_started = time.perf_counter(), time.process_time()
    neighbours.find_neighbours(vectors, np.arange(num_scans) // 15)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu_started
    added = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(
        f"{num_scans:,} x {num_channels}: {seconds:.0f} s, of all cores {cpu:.0f} s, "
        f"{added:.0f} MB more"
    )


def _run(*words: object) -> str:
    """Runs a Python command in the repository; returns what it prints."""
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{words[0]} failed:\n{done.stderr}")
    return done.stdout.strip()


def _extract(images: Path, network: Path | str, layer: str, folder: Path, *flags: object) -> Path:
    """Returns the folder with the features of a network up to a layer."""
    trunk, features = folder / "trunk.keras", folder / "features"
    folder.mkdir(exist_ok=True)
    _run("train/trunk.py", "--data", images, "--model", network, "--layer", layer,
         "--output", trunk, *flags)  # fmt: skip
    _run("pipelines/extract_features.py", "--data", images, "--trunk", trunk, "--output", features)
    return features


def main() -> None:
    """Prints the table, or the time of a search."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=Path, help="kermany2018-sample.zip")
    parser.add_argument("--image_size", default="96")
    parser.add_argument("--epochs", default="40", help="of the trained network")
    parser.add_argument("--num_copies", type=int, default=20, help="of each kind")
    parser.add_argument("--num_swapped", type=int, default=10)
    parser.add_argument("--workdir", type=Path, help="folder for datasets and runs")
    parser.add_argument("--search", type=int, metavar="N", help="time a search among N scans")
    parser.add_argument("--num_channels", type=int, default=512, help="for --search")
    args = parser.parse_args()
    if args.search:
        report_search(args.search, args.num_channels)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.workdir or Path(temporary)
        scans, images, run = folder / "scans", folder / "images", folder / "run"
        plant(args.input, scans, args.num_copies, args.num_swapped)
        _run("pipelines/build_tfrecords.py", "--source", "directory", "--input", scans,
             "--output", images, "--image_size", args.image_size,
             "--splits", "patient")  # fmt: skip
        print(f"| trunk | {' | '.join(COPIES)} | other pairs | wrong labels | other labels |")
        print("| --- " * (len(COPIES) + 4) + "|")
        weights = folder / "random.weights.h5"
        _run("-c", _WRITE_RANDOM_WEIGHTS, weights)
        features = _extract(images, "resnet50", "pool", folder / "random", "--weights", weights)
        report("resnet50, random weights", features)
        _run("train/run.py", "--data", images, "--workdir", run, "--epochs", args.epochs,
             "--bootstrap_samples", "0")  # fmt: skip
        layer = _run("-c", _NAME_LAST_MAP, run).splitlines()[-1]
        features = _extract(images, run, layer, folder / "trained")
        report(f"small_resnet, {args.epochs} epochs on these scans", features)


if __name__ == "__main__":
    main()

"""What does it bring to compute frozen layers once? VGG16 with block 5 and the head trained.

    python benchmarks/frozen_layers.py
    python benchmarks/frozen_layers.py --sizes 224 --num_examples 20000 --cache device
    python benchmarks/frozen_layers.py --heads sample.zip

For each image size it draws a dataset, writes random weights (the arithmetic is the same as with
ImageNet's), and trains twice with the same settings: on the images, and on the features of the
first four blocks. Neither is augmented, so the losses can be compared. With `--precision bfloat16`
the frozen layers compute in bfloat16 on images, while the trunk always computes in float32. The
extraction is compared with a bare loop of `model.predict` on the same trunk and the same images;
both times are of the whole process, start included.

`--heads` measures a cross-validation of 5 folds x 10 seeds on the images of an archive instead:
MobileNetV2 pools them at 64 pixels, and all heads are trained side by side. One of the 50 runs is
trained alone as well, and its time is multiplied by 50: the time of the whole command, which
exports the model of that run, and the time of its training steps.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_COLUMNS = (
    "pixels", "images", "epoch on images, s", "on features, s", "faster by",
    "largest difference of a loss", "extraction, s", "bare loop, s", "ratio",
    "bytes an image", "bytes a feature map", "pays after epochs",
)  # fmt: skip

_HEADS_COLUMNS = (
    "images", "extraction, s", "50 heads, s", "one alone, s", "x 50 / all",
    "steps of 50 heads, s", "of one alone, s", "x 50 / all",
)  # fmt: skip

_WRITE_WEIGHTS = """
import sys, keras
keras.utils.set_random_seed(0)
build = getattr(keras.applications, sys.argv[2])
build(include_top=False, weights=None, input_shape=(64, 64, 3)).save_weights(sys.argv[1])
"""

_BARE_LOOP = """
import sys, keras, numpy as np
from tfrecord_io.reading.mapped import MappedDataset
trunk = keras.saving.load_model(sys.argv[2], compile=False)
for split in ("train", "val", "test"):
    images = MappedDataset(sys.argv[1], split)
    for start in range(0, len(images), 32):
        batch, _ = images[np.arange(start, min(start + 32, len(images)))]
        trunk.predict(batch, batch_size=32, verbose=0)
"""


def main() -> None:
    """Prints a row of the table for each image size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 224], help="pixels a side")
    parser.add_argument("--num_examples", default="600", help="images to draw")
    parser.add_argument("--epochs", default="4", help="of each run; the first is not counted")
    parser.add_argument("--cache", default="none", choices=("none", "device"))
    parser.add_argument("--precision", default="float32", help="of the layers; see train/run.py")
    parser.add_argument("--workdir", type=Path, help="folder for datasets and runs")
    parser.add_argument(
        "--heads", metavar="FILE", help="cross-validate heads on an archive, and nothing else"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        workdir = arguments.workdir or Path(folder)
        workdir.mkdir(parents=True, exist_ok=True)
        if arguments.heads:
            row = measure_heads(Path(arguments.heads), workdir)
            print(f"| {' | '.join(_HEADS_COLUMNS)} |\n|{' --- |' * len(_HEADS_COLUMNS)}")
            print(f"| {' | '.join(row)} |")
            return
        weights = workdir / "vgg16.weights.h5"
        _run("-c", _WRITE_WEIGHTS, weights, "VGG16")
        print(f"| {' | '.join(_COLUMNS)} |\n|{' --- |' * len(_COLUMNS)}")
        for size in arguments.sizes:
            row = measure(size, weights, workdir / str(size), arguments)
            print(f"| {' | '.join(row)} |", flush=True)


def measure(
    size: int, weights: Path, folder: Path, arguments: argparse.Namespace
) -> tuple[str, ...]:
    """Returns the cells of a row.

    Args:
        size: pixels a side.
        weights: weights file of VGG16.
        folder: for the dataset, the features and the runs.
        arguments: of the command line.
    """
    images, features, trunk = folder / "images", folder / "features", folder / "trunk.keras"
    _run("pipelines/build_tfrecords.py", "--source", "synthetic", "--output", images,
         "--num_examples", arguments.num_examples, "--image_size", size,
         "--download_dir", folder / "drawn")  # fmt: skip
    _run("train/trunk.py", "--data", images, "--model", "vgg16", "--weights", weights,
         "--layer", "block4_pool", "--output", trunk)  # fmt: skip
    bare = _run("-c", _BARE_LOOP, images, trunk)
    extraction = _run("pipelines/extract_features.py", "--data", images, "--trunk", trunk,
                      "--output", features)  # fmt: skip
    network = ("--model", "vgg16", "--weights", weights, "--trainable_layers", "4",
               "--no-augment", "--no-test_time_flip")  # fmt: skip
    slow, slow_losses = _train(images, folder / "on_images", arguments, *network)
    fast, fast_losses = _train(features, folder / "on_features", arguments)
    difference = max(abs(a - b) / a for a, b in zip(slow_losses, fast_losses, strict=True))
    sizes = [_manifest(data)["record"]["stride"] for data in (images, features)]
    num_images = _manifest(images)["counts"]["examples"]
    pays = f"{math.ceil(extraction / (slow - fast))}" if slow > fast else "never"
    return (
        f"{size}", f"{num_images:,}", f"{slow:.2f}", f"{fast:.2f}", f"{slow / fast:.1f}",
        f"{difference:.1e}", f"{extraction:.1f}", f"{bare:.1f}", f"{bare / extraction:.2f}",
        f"{sizes[0]:,}", f"{sizes[1]:,}", pays,
    )  # fmt: skip


def measure_heads(archive: Path, folder: Path) -> tuple[str, ...]:
    """Returns the cells of the row about heads side by side.

    Args:
        archive: of scans, as `--source archive` takes it.
        folder: for the dataset, the features and the runs.
    """
    images, features, trunk = folder / "images", folder / "features", folder / "trunk.keras"
    weights = folder / "mobilenetv2.weights.h5"
    _run("-c", _WRITE_WEIGHTS, weights, "MobileNetV2")
    _run("pipelines/build_tfrecords.py", "--source", "archive", "--input", archive.resolve(),
         "--output", images, "--image_size", "64")  # fmt: skip
    _run("train/trunk.py", "--data", images, "--model", "mobilenetv2", "--weights", weights,
         "--layer", "pool", "--output", trunk)  # fmt: skip
    extraction = _run("pipelines/extract_features.py", "--data", images, "--trunk", trunk,
                      "--output", features)  # fmt: skip
    splits = _manifest(images)["splits"]
    folds = ("--data", features, "--folds", "5", "--fold_splits", ",".join(splits))
    together, alone = folder / "together", folder / "alone"
    seconds = _run("train/run.py", *folds, "--seeds", "10", "--workdir", together)
    seconds_alone = _run("train/run.py", *folds, "--fold", "0", "--workdir", alone)
    # The time of a step counts for every run, so the longest run has the time of all.
    steps = max(_seconds_of(path) for path in together.glob("seed-0/fold-*"))
    steps_alone = _seconds_of(alone)
    return (
        f"{_manifest(images)['counts']['examples']:,}", f"{extraction:.1f}",
        f"{seconds:.1f}", f"{seconds_alone:.1f}", f"{50 * seconds_alone / seconds:.0f}",
        f"{steps:.1f}", f"{steps_alone:.1f}", f"{50 * steps_alone / steps:.0f}",
    )  # fmt: skip


def _seconds_of(run: Path) -> float:
    return sum(row["seconds"] for row in json.loads((run / "history.json").read_text()))


def _train(
    data: Path, workdir: Path, arguments: argparse.Namespace, *flags: object
) -> tuple[float, list[float]]:
    """Returns the median seconds of an epoch, without validation, and the losses."""
    _run("train/run.py", "--data", data, "--workdir", workdir, "--epochs", arguments.epochs,
         "--head_epochs", "0", "--mixup", "0", "--precision", arguments.precision,
         "--bootstrap_samples", "0", "--cache", arguments.cache, *flags)  # fmt: skip
    rows = json.loads((workdir / "history.json").read_text())
    return statistics.median(row["seconds"] for row in rows[1:]), [row["loss"] for row in rows]


def _manifest(data: Path) -> dict:
    return json.loads((data / "manifest.json").read_text())


def _run(*words: object) -> float:
    """Runs a Python command in the repository and returns its seconds."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{words[0]} failed:\n{done.stderr}")
    return time.monotonic() - started


if __name__ == "__main__":
    main()

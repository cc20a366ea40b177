"""What does it bring to compute frozen layers once? VGG16 with block 5 and the head trained.

    python benchmarks/frozen_layers.py
    python benchmarks/frozen_layers.py --sizes 224 --num_examples 20000

For each image size it draws a dataset, writes random weights (the arithmetic is the same as with
ImageNet's), and trains twice with the same settings: on the images, and on the features of the
first four blocks. Neither is augmented, so the losses can be compared. With `--precision bfloat16`
the frozen layers compute in bfloat16 on images, while the trunk always computes in float32. The
extraction is compared with a bare loop of `model.predict` on the same trunk and the same images;
both times are of the whole process, start included.
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

_WRITE_WEIGHTS = """
import sys, keras
keras.utils.set_random_seed(0)
network = keras.applications.VGG16(include_top=False, weights=None, input_shape=(64, 64, 3))
network.save_weights(sys.argv[1])
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
    parser.add_argument("--precision", default="float32", help="of the layers; see train/run.py")
    parser.add_argument("--workdir", type=Path, help="folder for datasets and runs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        workdir = arguments.workdir or Path(folder)
        workdir.mkdir(parents=True, exist_ok=True)
        weights = workdir / "vgg16.weights.h5"
        _run("-c", _WRITE_WEIGHTS, weights)
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


def _train(
    data: Path, workdir: Path, arguments: argparse.Namespace, *flags: object
) -> tuple[float, list[float]]:
    """Returns the median seconds of an epoch, without validation, and the losses."""
    _run("train/run.py", "--data", data, "--workdir", workdir, "--epochs", arguments.epochs,
         "--head_epochs", "0", "--mixup", "0", "--precision", arguments.precision,
         "--bootstrap_samples", "0", *flags)  # fmt: skip
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

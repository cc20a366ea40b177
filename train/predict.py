"""Class probabilities of image files: python train/predict.py --model RUN --input FILE|DIR.

Files become pixels by the very code of the build (`tfrecord_io.preprocess`), with the settings
that were exported beside the model: what the network saw in training is what it sees here. Exit
codes: 0 every file was predicted, 1 one could not be read as an image, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfrecord_io.preprocess import Preprocessing, Reject, decode_image
from train import console
from train.config import ConfigError

if TYPE_CHECKING:
    import keras

_EXPORT = "export"
_KERAS = "model.keras"
_FACTS = "preprocessing.json"


@dataclasses.dataclass(frozen=True)
class Classifier:
    """An exported model with what it needs to know about files.

    Attributes:
        model: uint8 [batch, height, width, channels] → float32 [batch, num_classes].
        preprocessing: how a file becomes its input.
        label_names: of its outputs.
    """

    model: keras.Model
    preprocessing: Preprocessing
    label_names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What came out for one file.

    Attributes:
        path: of the file.
        probabilities: float32 [num_classes], or None if the file was rejected.
        reject: why, or None.
    """

    path: Path
    probabilities: np.ndarray | None
    reject: str | None = None


def load_classifier(path: Path) -> Classifier:
    """Loads what a run exported.

    Args:
        path: folder of a run, or its export folder.

    Raises:
        ConfigError: if no exported model is there.
    """
    folder = path / _EXPORT if (path / _EXPORT).is_dir() else path
    if not (folder / _KERAS).is_file() or not (folder / _FACTS).is_file():
        raise ConfigError(
            f"--model {path}: expected the folder of a finished run, with {_EXPORT}/{_KERAS} and "
            f"{_EXPORT}/{_FACTS}; run python train/run.py --workdir {path} to its end"
        )
    facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
    try:
        preprocessing = Preprocessing.from_dict(facts["preprocessing"])
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"{folder / _FACTS} does not say how files became the training images ({error!r}): "
            "the dataset's manifest had no complete preprocessing, so no file can be predicted"
        ) from error
    with console.hide_native_noise():
        import keras

        model = keras.saving.load_model(folder / _KERAS, compile=False)
    return Classifier(model, preprocessing, tuple(facts["label_names"]))


def read_pixels(path: Path, preprocessing: Preprocessing) -> np.ndarray:
    """Returns the uint8 [height, width, channels] pixels of a file, as the build stores them.

    Raises:
        Reject: if the file is no image, is damaged, or cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Reject("unreadable", str(error)) from None
    pixels = decode_image(data, preprocessing).pixels
    return np.frombuffer(pixels, np.uint8).reshape(preprocessing.image_shape)


def predict_files(
    classifier: Classifier, paths: Sequence[Path], *, batch_size: int = 32
) -> Iterator[Prediction]:
    """Yields a prediction for each file, in order; a file that is no image gets its reason."""
    for start in range(0, len(paths), batch_size):
        images, rejects = {}, {}
        for path in paths[start : start + batch_size]:
            try:
                images[path] = read_pixels(path, classifier.preprocessing)
            except Reject as reject:
                rejects[path] = str(reject)
        rows = iter(predict_images(classifier, np.stack(list(images.values()))) if images else ())
        for path in paths[start : start + batch_size]:
            if path in rejects:
                yield Prediction(path, None, rejects[path])
            else:
                yield Prediction(path, next(rows))


def predict_images(classifier: Classifier, images: np.ndarray) -> np.ndarray:
    """Returns float32 [batch, num_classes] probabilities of uint8 images."""
    import keras

    return keras.ops.convert_to_numpy(classifier.model(images, training=False))


def occlusion_map(
    classifier: Classifier, image: np.ndarray, *, patch: int, stride: int, batch_size: int = 64
) -> np.ndarray:
    """Returns how much the likeliest class loses when a patch of the image is covered.

    The patch has the image's mean grey. A pixel's value is the mean over the patches that cover
    it. Source: Zeiler and Fergus 2014, "Visualizing and understanding convolutional networks".

    Args:
        classifier: what to explain.
        image: uint8 [height, width, channels].
        patch: side of the patch in pixels.
        stride: pixels from one place of the patch to the next.
        batch_size: covered images that are predicted at a time.

    Returns:
        float64 [height, width] drop in probability.
    """
    height, width, _ = image.shape
    base = predict_images(classifier, image[None])[0]
    likeliest = int(base.argmax())
    fill = image.mean(axis=(0, 1)).astype(np.uint8)
    places = [
        (slice(top, top + patch), slice(left, left + patch))
        for top in _starts(height, patch, stride)
        for left in _starts(width, patch, stride)
    ]
    drops = np.zeros((height, width))
    covers = np.zeros((height, width))
    for start in range(0, len(places), batch_size):
        chosen = places[start : start + batch_size]
        images = np.repeat(image[None], len(chosen), axis=0)
        for covered, place in zip(images, chosen, strict=True):
            covered[place] = fill
        probabilities = predict_images(classifier, images)[:, likeliest]
        for place, probability in zip(chosen, probabilities, strict=True):
            drops[place] += base[likeliest] - probability
            covers[place] += 1
    return drops / covers


def draw_occlusion(image: np.ndarray, drops: np.ndarray, title: str, path: Path) -> None:
    """Writes the image, and the image under its occlusion map, as one PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    plain, covered = figure.subplots(1, 2)
    grey = image.squeeze(-1) if image.shape[-1] == 1 else image
    for axes in (plain, covered):
        axes.imshow(grey, cmap="gray", vmin=0, vmax=255)
        axes.set_axis_off()
    plain.set_title("what the network sees")
    limit = max(float(np.abs(drops).max()), 1e-6)
    picture = covered.imshow(drops, cmap="RdBu_r", alpha=0.5, vmin=-limit, vmax=limit)
    covered.set_title(title)
    figure.colorbar(picture, ax=covered, label="drop in probability when covered", shrink=0.8)
    figure.savefig(path, dpi=120)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python train/predict.py", description="Class probabilities of image files."
    )
    parser.add_argument("--model", required=True, metavar="RUN", help="folder of a finished run")
    parser.add_argument(
        "--input", required=True, nargs="+", metavar="PATH", help="image files, or folders of them"
    )
    parser.add_argument(
        "--format", choices=("table", "csv", "json"), default="table", help="of the output [table]"
    )
    parser.add_argument(
        "--occlusion",
        metavar="DIR",
        help="write a map of what mattered for each image into this folder",
    )
    parser.add_argument(
        "--patch", type=int, metavar="N", help="side of the covering patch [an eighth of the image]"
    )
    arguments = parser.parse_args(argv)
    console.set_defaults()
    try:
        paths = _list_files([Path(path) for path in arguments.input])
        if arguments.patch is not None and arguments.patch < 1:
            raise ConfigError(f"--patch must be at least 1 pixel, received {arguments.patch}")
        classifier = load_classifier(Path(arguments.model))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    predictions = list(predict_files(classifier, paths))
    print(_FORMATS[arguments.format](predictions, classifier.label_names))
    if arguments.occlusion:
        _write_maps(classifier, predictions, Path(arguments.occlusion), arguments.patch)
    rejected = [prediction for prediction in predictions if prediction.reject]
    for prediction in rejected:
        print(f"error: {prediction.path} was not predicted: {prediction.reject}", file=sys.stderr)
    return 1 if rejected else 0


def _list_files(inputs: Sequence[Path]) -> list[Path]:
    """Returns the files named, and those in the folders named, sorted; no hidden ones."""
    paths = []
    for path in inputs:
        if path.is_dir():
            found = sorted(
                file
                for file in path.rglob("*")
                if file.is_file() and not any(part.startswith(".") for part in file.parts)
            )
            if not found:
                raise ConfigError(f"--input {path}: there is no file in this folder")
            paths += found
        elif path.exists():
            paths.append(path)
        else:
            raise ConfigError(f"--input {path}: there is no such file or folder")
    return paths


def _write_maps(
    classifier: Classifier, predictions: Sequence[Prediction], folder: Path, patch: int | None
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for index, prediction in enumerate(predictions):
        if prediction.probabilities is None:
            continue
        image = read_pixels(prediction.path, classifier.preprocessing)
        side = min(patch or max(1, min(image.shape[:2]) // 8), *image.shape[:2])
        drops = occlusion_map(classifier, image, patch=side, stride=max(1, side // 2))
        answer = int(prediction.probabilities.argmax())
        title = f"{classifier.label_names[answer]} {prediction.probabilities[answer]:.1%}"
        # Files of several folders may share a name.
        name = f"{index:04d}-{prediction.path.stem}.png"
        draw_occlusion(image, drops, title, folder / name)
        print(f"{folder / name}", file=sys.stderr)


def _starts(length: int, patch: int, stride: int) -> list[int]:
    """Places of a patch along a side; the last one ends at the edge."""
    return [*range(0, length - patch, stride), length - patch]


def _rows(predictions: Sequence[Prediction], label_names: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for prediction in predictions:
        row: dict[str, Any] = {"path": str(prediction.path)}
        if prediction.probabilities is not None:
            row["predicted"] = label_names[int(prediction.probabilities.argmax())]
            row["probabilities"] = {
                name: round(float(value), 6)
                for name, value in zip(label_names, prediction.probabilities, strict=True)
            }
        else:
            row["reject"] = prediction.reject
        rows.append(row)
    return rows


def _as_json(predictions: Sequence[Prediction], label_names: Sequence[str]) -> str:
    return json.dumps(_rows(predictions, label_names), indent=1)


def _as_csv(predictions: Sequence[Prediction], label_names: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("path", "predicted", *label_names, "reject"))
    for row in _rows(predictions, label_names):
        numbers = row.get("probabilities", {})
        writer.writerow(
            (
                row["path"],
                row.get("predicted", ""),
                *(numbers.get(name, "") for name in label_names),
                row.get("reject", ""),
            )
        )
    return text.getvalue().rstrip("\n")


def _as_table(predictions: Sequence[Prediction], label_names: Sequence[str]) -> str:
    rows = _rows(predictions, label_names)
    width = max(len(row["path"]) for row in rows)
    columns = [max(len(name), 7) for name in label_names]
    header = "  ".join(name.rjust(size) for name, size in zip(label_names, columns, strict=True))
    lines = [f"{'file'.ljust(width)}  {header}  predicted"]
    for row in rows:
        if "reject" in row:
            lines.append(f"{row['path'].ljust(width)}  {row['reject']}")
            continue
        numbers = "  ".join(
            f"{row['probabilities'][name]:.1%}".rjust(size)
            for name, size in zip(label_names, columns, strict=True)
        )
        lines.append(f"{row['path'].ljust(width)}  {numbers}  {row['predicted']}")
    return "\n".join(lines)


_FORMATS = {"table": _as_table, "csv": _as_csv, "json": _as_json}


if __name__ == "__main__":
    sys.exit(main())

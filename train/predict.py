"""Predicts image files: python train/predict.py --model RUN --input FILE|DIR.

Files become pixels by the code of the build (`tfrecord_io.decoding.preprocess`), with the settings
that were exported beside the model, so the network sees what it saw in training. Exit codes: 0
every file was predicted, 1 a file could not be read as an image, 2 wrong usage.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import itertools
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfrecord_io import flags, redaction, shapes
from tfrecord_io.decoding.options import FRAME_RANGE, Preprocessing
from tfrecord_io.decoding.preprocess import (
    DecodedImage,
    decode_image,
    decoder_versions,
    find_pictures,
    frame_path,
)
from tfrecord_io.kinds.registry import kind_in
from tfrecord_io.manifest import FILE_NAME as MANIFEST_NAME
from tfrecord_io.manifest import check_types
from tfrecord_io.printing import no_formula, printable, refuse, until_closed
from tfrecord_io.rejects import Reject
from train import console
from train.errors import ConfigError
from train.results.saliency import occlusion_map

if TYPE_CHECKING:
    import keras

    from train.kinds.task import Task

_EXPORT = "export"
_KERAS = "model.keras"
_FACTS = "preprocessing.json"

#: Column with the views whose threshold an image reaches, if thresholds were exported.
ABOVE = "above_threshold"


@dataclasses.dataclass(frozen=True)
class Classifier:
    """An exported model, and how files become its input.

    Attributes:
        model: stored images [batch, height, width, channels] → float32 [batch, num_classes].
        task: what it answers.
        preprocessing: how a file becomes its input.
        label_names: of its outputs.
        decoder: versions of the libraries that decoded the training images, as far as known.
        fingerprint: of the dataset it was trained on.
        thresholds: see `thresholds.choose_thresholds`; empty if none were exported.
        shapes: of the training images, see `shapes.distinct`; empty if they are not known.
    """

    model: keras.Model
    task: Task
    preprocessing: Preprocessing
    label_names: tuple[str, ...]
    decoder: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fingerprint: str = ""
    thresholds: Sequence[Mapping[str, Any]] = ()
    shapes: Sequence[float] = ()


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The prediction for one picture.

    Attributes:
        path: of the file.
        probabilities: float32 [num_classes]; None if the picture was rejected.
        predicted: name of the likeliest class, names of the labels, or the number; None if the
            picture was rejected.
        reject: why, or None.
        frame: number of the picture in the file, see `pictures.Pictures`.
        above: the questions whose threshold it reaches, such as classes; None if the picture was
            rejected or no thresholds were exported.
        shape: width of the picture divided by its height; None if it was rejected.
    """

    path: Path
    probabilities: np.ndarray | None
    predicted: str | None = None
    reject: str | None = None
    frame: int | None = None
    above: Sequence[str] | None = None
    shape: float | None = None

    @property
    def name(self) -> str:
        """The file's path, with the frame if it holds several, as the build names it."""
        return frame_path(str(self.path), self.frame)


def load_classifier(path: Path) -> Classifier:
    """Loads what a run exported.

    Args:
        path: folder of a run, or its export folder.

    Raises:
        ConfigError: if no exported model is there.
    """
    folder = path / _EXPORT if (path / _EXPORT).is_dir() else path
    if (path / MANIFEST_NAME).is_file():
        raise ConfigError(
            f"--model {path} is a dataset; give the folder of a run that was trained on it, the "
            f"--workdir of {flags.command('train')}"
        )
    if not (folder / _KERAS).is_file() or not (folder / _FACTS).is_file():
        raise ConfigError(
            f"--model {path}: expected the folder of a finished run, with {_EXPORT}/{_KERAS} and "
            f"{_EXPORT}/{_FACTS}; run {flags.command('train')} --workdir {path} to its end"
        )
    try:
        facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        check_types(facts, {"preprocessing": {}, "label_names": [str]}, "")
        decoder = facts.get("decoder", {})
        fingerprint = facts.get("dataset", {"fingerprint": ""})
        check_types([decoder, fingerprint], [{"*": str}, {"fingerprint": str}], "decoder, dataset")
        preprocessing = Preprocessing.from_dict(facts["preprocessing"])
        kind = kind_in(facts)
        label_names = tuple(facts["label_names"])
        trained = tuple(map(float, facts.get("shapes", ())))
        if "pydicom" not in decoder:  # no training image says what a DICOM file should look like
            preprocessing = dataclasses.replace(preprocessing, no_window=FRAME_RANGE)
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{folder / _FACTS} does not say how files became the training images ({error!r}): "
            "the dataset's manifest had no complete preprocessing, or another release wrote it, so "
            "no file can be predicted"
        ) from error
    with console.hide_native_noise():
        import keras

        from train.kinds.registry import task_of
        from train.results.thresholds import read_thresholds

        try:
            model = keras.saving.load_model(folder / _KERAS, compile=False)
            taken = (*model.input_shape[1:], model.inputs[0].dtype)
            wanted = (*preprocessing.image_shape, preprocessing.dtype)
            blank = np.zeros((1, *preprocessing.image_shape), preprocessing.dtype)
            # A model that cannot answer is found here, not in the midst of the files.
            num_outputs = model(blank).shape[-1] if taken == wanted else len(label_names)
        # A stranger's or damaged file raises almost anything in Keras.
        except Exception as error:
            raise ConfigError(
                f"{folder / _KERAS} cannot be loaded ({type(error).__name__}: {error!s:.300}); "
                f"copy the run again, or finish it with {flags.command('train')} --workdir {path}"
            ) from error
    if taken != wanted or num_outputs != len(label_names):
        raise ConfigError(
            f"{folder / _KERAS} takes images of {taken} and has {num_outputs} outputs, but "
            f"{_FACTS} says {wanted} and names {len(label_names)}: they are of different runs; "
            "copy the run again"
        )
    return Classifier(
        model,
        task_of(kind),
        preprocessing,
        label_names,
        decoder,
        fingerprint["fingerprint"],
        read_thresholds(folder, label_names),
        trained,
    )


def other_decoder(classifier: Classifier) -> str | None:
    """Returns a warning if files are decoded here by other versions than in the build, or None."""
    try:
        here = decoder_versions(with_dicom="pydicom" in classifier.decoder)
    except ModuleNotFoundError:  # pictures can be predicted all the same
        here = decoder_versions()
    changed = {
        name: version
        for name, version in classifier.decoder.items()
        if name in here and version != here[name]
    }
    if not changed:
        return None
    theirs = ", ".join(f"{name} {version}" for name, version in changed.items())
    ours = ", ".join(f"{name} {here[name]}" for name in changed)
    return (
        f"the training images were decoded by {theirs}, here it is {ours}: pixels, and so "
        "probabilities, may differ a little. Install those versions for the same pixels"
    )


def read_pixels(path: Path, preprocessing: Preprocessing, frame: int | None = None) -> np.ndarray:
    """Returns the [height, width, channels] pixels of a picture, as the build stores them.

    Args:
        path: the file.
        preprocessing: how it becomes pixels.
        frame: number of the picture in it, see `pictures.Pictures`.

    Raises:
        Reject: if the file is not an image, or is damaged.
    """
    return _pixels(decode_image(path.read_bytes(), preprocessing, frame), preprocessing)


def _pixels(image: DecodedImage, preprocessing: Preprocessing) -> np.ndarray:
    return np.frombuffer(image.pixels, preprocessing.dtype).reshape(preprocessing.image_shape)


def _read_pictures(
    path: Path, preprocessing: Preprocessing
) -> Iterator[tuple[int | None, DecodedImage | Reject]]:
    """Yields the number of each picture of a file and the picture, or why it is left out."""
    try:
        data = path.read_bytes()
    except OSError as error:
        yield None, Reject("unreadable", str(error))
        return
    for frame in find_pictures(path.name, len(data), data, lambda: io.BytesIO(data)).frames:
        try:
            yield frame, decode_image(data, preprocessing, frame)
        except Reject as reject:
            yield frame, reject


def predict_files(
    classifier: Classifier, paths: Sequence[Path], *, batch_size: int = 32
) -> Iterator[Prediction]:
    """Yields a prediction for each picture of the files, in order, or the reason of a reject.

    Raises:
        ModuleNotFoundError: if one is a DICOM file, and pydicom or a codec is not installed.
    """
    # Imports Keras, which a loaded classifier did already.
    from train.results.thresholds import views_above

    pictures = (
        (path, frame, image)
        for path in paths
        for frame, image in _read_pictures(path, classifier.preprocessing)
    )
    while batch := list(itertools.islice(pictures, batch_size)):
        images = [
            _pixels(image, classifier.preprocessing)
            for _, _, image in batch
            if isinstance(image, DecodedImage)
        ]
        answers = predict_images(classifier, np.stack(images)) if images else np.empty((0, 0))
        names = classifier.label_names
        rows = zip(answers, views_above(classifier.thresholds, answers, names), strict=True)
        for path, frame, image in batch:
            if isinstance(image, Reject):
                yield Prediction(path, None, reject=str(image), frame=frame)
                continue
            row, above = next(rows)
            (predicted,) = classifier.task.texts(classifier.task.chosen(row[None]), names)
            yield Prediction(path, row, predicted, frame=frame, above=above, shape=image.shape)


def predict_images(classifier: Classifier, images: np.ndarray) -> np.ndarray:
    """Returns float32 [batch, num_classes] probabilities of stored images."""
    import keras

    return keras.ops.convert_to_numpy(classifier.model(images, training=False))


@redaction.redacted_output()
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = flags.Parser(prog=flags.command("predict"), description="Predicts image files.")
    parser.add_argument("--model", required=True, metavar="RUN", help="folder of a finished run")
    parser.add_argument(
        "--input", required=True, nargs="+", metavar="PATH", help="image files, or folders of them"
    )
    parser.add_argument(
        "--format",
        choices=("table", "csv", "json"),
        default="table",
        help="output format (default: table)",
    )
    parser.add_argument(
        "--occlusion",
        metavar="DIR",
        help="write a map of what mattered for each image into this folder",
    )
    parser.add_argument(
        "--patch",
        type=int,
        metavar="N",
        help="side in pixels of the patch that --occlusion hides (default: an eighth of the image)",
    )
    arguments = parser.parse_args(argv)
    console.set_defaults()
    try:
        paths = _list_files([Path(path) for path in arguments.input])
        if arguments.patch is not None and arguments.patch < 1:
            raise ConfigError(f"--patch must be at least 1 pixel, received {arguments.patch}")
        if arguments.occlusion:
            make_folder("--occlusion", Path(arguments.occlusion))
        classifier = load_classifier(Path(arguments.model))
        warning = other_decoder(classifier)
        if warning:
            print(f"warning: {warning}", file=sys.stderr)
        predictions = list(predict_files(classifier, paths))
    # ModuleNotFoundError: a DICOM file, and its codecs are not installed.
    except (ConfigError, ModuleNotFoundError) as error:
        return refuse(str(error))
    seen = [prediction.shape for prediction in predictions if prediction.shape]
    if warning := shapes.warn_of_unseen(seen, classifier.shapes, classifier.preprocessing):
        print(f"warning: {warning}", file=sys.stderr)
    # A number has no probability.
    names = classifier.label_names if classifier.task.gives_probabilities else ()
    with until_closed():
        _show(_FORMATS[arguments.format](_rows(predictions, names), names), arguments.format)
    if arguments.occlusion:
        _write_maps(classifier, predictions, Path(arguments.occlusion), arguments.patch)
    rejected = [prediction for prediction in predictions if prediction.reject]
    for prediction in rejected:
        refuse(f"{prediction.name} was not predicted: {prediction.reject}")
    return 1 if rejected else 0


def make_folder(flag: str, folder: Path) -> None:
    """Makes the folder that a flag names.

    Raises:
        ConfigError: if it cannot be made, because a file has its name, for example.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{flag} {folder} cannot be a folder: {error.strerror}") from None


def _list_files(inputs: Sequence[Path]) -> list[Path]:
    """Returns the files named, and those in the folders named, sorted, each once.

    Files and folders that are hidden are left out, unless they are named.
    """
    paths: list[Path] = []
    for path in inputs:
        if path.is_dir():
            found = _files_in(path)
            if not found:
                raise ConfigError(f"--input {path}: there is no file in this folder")
            paths += found
        elif path.exists():
            paths.append(path)
        else:
            raise ConfigError(f"--input {path}: there is no such file or folder")
    # A file may be named beside the folder that it is in. Two links to one file are two files.
    once: dict[Path, Path] = {}
    for path in paths:
        once.setdefault(path.parent.resolve() / path.name, path)
    return list(once.values())


def _files_in(folder: Path) -> list[Path]:
    """Returns the files below a folder, sorted, without hidden ones, pipes and devices.

    Links that lead nowhere or to a folder are among them, because a scan may be missing there.
    """

    def fail(error: OSError) -> None:
        # By default os.walk skips a folder that it cannot list.
        raise ConfigError(f"--input {error.filename} cannot be listed: {error.strerror}")

    found: list[Path] = []
    for root, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        here = [Path(root, name) for name in (*folders, *names) if not name.startswith(".")]
        found += [path for path in here if path.is_file() or path.is_symlink()]
    return sorted(found)


def _show(text: str, form: str) -> None:
    """Prints the output; a terminal or a table gets control characters escaped."""
    if form == "csv" and not sys.stdout.isatty():
        # A program gets names as they are, even bytes that are not UTF-8.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="surrogateescape")
        print(text)
    else:
        print("\n".join(map(printable, text.split("\n"))))


def _write_maps(
    classifier: Classifier, predictions: Sequence[Prediction], folder: Path, patch: int | None
) -> None:
    from train.results.charts import draw_occlusion

    for index, prediction in enumerate(predictions):
        if prediction.probabilities is None:
            continue
        image = read_pixels(prediction.path, classifier.preprocessing, prediction.frame)
        side = min(patch or max(1, min(image.shape[:2]) // 8), *image.shape[:2])
        drops = occlusion_map(
            functools.partial(predict_images, classifier),
            image,
            patch=side,
            stride=max(1, side // 2),
        )
        answer = int(prediction.probabilities.argmax())
        title = f"{classifier.label_names[answer]} {prediction.probabilities[answer]:.1%}"
        if not classifier.task.gives_probabilities:
            title = f"{classifier.label_names[answer]} {prediction.predicted}"
        # Files of several folders may share a name. A name of a file has at most 255 bytes.
        stem = os.fsencode(prediction.path.stem)[:200].decode(errors="ignore")
        path = folder / f"{index:04d}-{stem}.png"
        draw_occlusion(image, drops, title).savefig(path, dpi=120)
        print(printable(str(path)), file=sys.stderr)


def _rows(predictions: Sequence[Prediction], label_names: Sequence[str]) -> list[dict[str, Any]]:
    """Returns what is said of each picture; without `label_names` the answers are numbers."""
    rows = []
    for prediction in predictions:
        row: dict[str, Any] = {"path": prediction.name}
        rows.append(row)
        if prediction.probabilities is None:
            row["reject"] = prediction.reject
            continue
        row["predicted"] = prediction.predicted if label_names else float(prediction.predicted)
        if label_names:
            values = (round(float(value), 6) for value in prediction.probabilities)
            row["probabilities"] = dict(zip(label_names, values, strict=True))
        if prediction.above is not None:
            row[ABOVE] = list(prediction.above)
    return rows


def _above(row: Mapping[str, Any]) -> str:
    return "" if ABOVE not in row else "|".join(row[ABOVE]) or "none"


def _as_json(rows: Sequence[Mapping[str, Any]], label_names: Sequence[str]) -> str:
    return json.dumps(rows, indent=1)


def _as_csv(rows: Sequence[Mapping[str, Any]], label_names: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    above = [ABOVE] if any(ABOVE in row for row in rows) else []
    writer.writerow(("path", "predicted", *map(no_formula, label_names), "reject", *above))
    for row in rows:
        numbers, predicted = row.get("probabilities", {}), row.get("predicted", "")
        writer.writerow(
            (
                no_formula(row["path"]),
                # A negative number is not a formula.
                no_formula(predicted) if isinstance(predicted, str) else predicted,
                *(numbers.get(name, "") for name in label_names),
                no_formula(row.get("reject", "")),
                *(no_formula(_above(row)) for _ in above),
            )
        )
    return text.getvalue().rstrip("\n")


def _as_table(rows: Sequence[Mapping[str, Any]], label_names: Sequence[str]) -> str:
    label_names = [printable(name) for name in label_names]
    # A line break in a name would make two rows of one.
    names = [printable(row["path"]) for row in rows]
    width = max(map(len, names))
    columns = [max(len(name), 7) for name in label_names]
    header = "  ".join(name.rjust(size) for name, size in zip(label_names, columns, strict=True))
    above = any(ABOVE in row for row in rows)
    lines = [f"{'file'.ljust(width)}  {header}  predicted{'  above the threshold' * above}"]
    for name, row in zip(names, rows, strict=True):
        if "reject" in row:
            lines.append(f"{name.ljust(width)}  {printable(row['reject'])}")
            continue
        cells = zip(row.get("probabilities", {}).values(), columns, strict=True)
        numbers = "  ".join(f"{probability:.1%}".rjust(size) for probability, size in cells)
        predicted = printable(str(row["predicted"]))
        end = f"  {printable(_above(row))}" if above else ""
        # As wide as the heading, so that what follows stands below its own.
        lines.append(f"{name.ljust(width)}  {numbers}  {predicted.ljust(9) + end}".rstrip())
    return "\n".join(lines)


_FORMATS = {"table": _as_table, "csv": _as_csv, "json": _as_json}


if __name__ == "__main__":
    sys.exit(main())

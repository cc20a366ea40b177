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

from tfrecord_io import flags, shapes
from tfrecord_io.decoding.options import FRAME_RANGE, Preprocessing
from tfrecord_io.decoding.preprocess import (
    DecodedImage,
    decode_image,
    decoder_versions,
    find_pictures,
    frame_path,
)
from tfrecord_io.kinds import kind_in
from tfrecord_io.manifest import check_types
from tfrecord_io.printing import csv_cell, no_formula, printable, refuse, until_closed
from tfrecord_io.rejects import Reject
from train import console
from train.errors import ConfigError

if TYPE_CHECKING:
    import keras

    from train.kinds.task import Task

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """The prediction for one picture; a rejected one has no values, but `reject`, the reason.

    Attributes:
        path: of the file.
        frame: number of the picture in the file, see `pictures.Pictures`.
        probabilities: float32 [num_classes].
        predicted: name of the likeliest class, names of the labels, or the number.
        above: the questions whose threshold it reaches, such as classes; None if no thresholds
            were exported.
        shape: width of the picture divided by its height.
    """

    path: Path
    frame: int | None = None
    reject: str | None = None
    probabilities: np.ndarray | None = None
    predicted: str | None = None
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
    folder = path / "export" if (path / "export").is_dir() else path
    saved, described = folder / "model.keras", folder / "preprocessing.json"
    if not saved.is_file() or not described.is_file():
        raise ConfigError(
            f"--model {path}: expected the folder of a finished run, with export/{saved.name} and "
            f"export/{described.name}; run {flags.command('train')} --workdir {path} to its end"
        )
    try:
        facts = json.loads(described.read_text(encoding="utf-8"))
        check_types(facts, {"preprocessing": {}, "label_names": [str]}, "")
        decoder = facts.get("decoder", {})
        dataset = facts.get("dataset", {"fingerprint": ""})
        check_types([decoder, dataset], [{"*": str}, {"fingerprint": str}], "decoder, dataset")
        preprocessing = Preprocessing.from_dict(facts["preprocessing"])
        kind = kind_in(facts)
        label_names = tuple(facts["label_names"])
        trained = tuple(map(float, facts.get("shapes", ())))
        if "pydicom" not in decoder:  # no training image says what a DICOM file should look like
            preprocessing = dataclasses.replace(preprocessing, no_window=FRAME_RANGE)
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{described} does not say how files became the training images ({error!r}): "
            "the dataset's manifest had no complete preprocessing, or another release wrote it, so "
            "no file can be predicted"
        ) from error
    with console.hide_native_noise():
        import keras

        from train.kinds.registry import task_of
        from train.results.thresholds import read_thresholds

        try:
            model = keras.saving.load_model(saved, compile=False)
            taken = (*model.input_shape[1:], model.inputs[0].dtype)
            wanted = (*preprocessing.image_shape, preprocessing.dtype)
            blank = np.zeros((1, *preprocessing.image_shape), preprocessing.dtype)
            # A model that cannot answer is found here, not in the midst of the files.
            if taken != wanted or model(blank).shape[-1] != len(label_names):
                raise ValueError(
                    f"it takes images of {taken}, but {described.name} says {wanted} and names "
                    f"{len(label_names)} labels: they are of different runs"
                )
        # A stranger's or damaged file raises almost anything in Keras.
        except Exception as error:
            raise ConfigError(
                f"{saved} cannot be loaded ({type(error).__name__}: {error!s:.300}); "
                f"copy the run again, or finish it with {flags.command('train')} --workdir {path}"
            ) from error
    return Classifier(
        model,
        task_of(kind),
        preprocessing,
        label_names,
        decoder,
        dataset["fingerprint"],
        read_thresholds(folder, label_names),
        trained,
    )


def other_decoder(classifier: Classifier) -> str | None:
    """Returns a warning if files are decoded here by other versions than in the build, or None."""
    try:
        here = decoder_versions(with_dicom="pydicom" in classifier.decoder)
    except ModuleNotFoundError:  # pictures can be predicted all the same
        here = decoder_versions()
    changed = [
        name for name, version in classifier.decoder.items() if here.get(name, version) != version
    ]
    if not changed:
        return None
    theirs, ours = (
        ", ".join(f"{name} {versions[name]}" for name in changed)
        for versions in (classifier.decoder, here)
    )
    return (
        f"the training images were decoded by {theirs}, here it is {ours}: pixels, and so "
        "probabilities, may differ a little. Install those versions for the same pixels"
    )


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
    task, names = classifier.task, classifier.label_names
    while batch := list(itertools.islice(pictures, batch_size)):
        read = [image for _, _, image in batch if isinstance(image, DecodedImage)]
        images = [_pixels(image, classifier.preprocessing) for image in read]
        answers = predict_images(classifier, np.stack(images)) if images else np.empty((0, 0))
        rows = zip(answers, views_above(classifier.thresholds, answers, names), strict=True)
        for path, frame, image in batch:
            if isinstance(image, Reject):
                yield Prediction(path=path, frame=frame, reject=str(image))
                continue
            row, above = next(rows)
            (predicted,) = task.texts(task.chosen(row[None]), names)
            yield Prediction(
                path=path,
                frame=frame,
                probabilities=row,
                predicted=predicted,
                above=above,
                shape=image.shape,
            )


def predict_images(classifier: Classifier, images: np.ndarray) -> np.ndarray:
    """Returns float32 [batch, num_classes] probabilities of stored images."""
    import keras

    return keras.ops.convert_to_numpy(classifier.model(images, training=False))


@console.command
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = flags.Parser(prog=flags.command("predict"), description="Predicts image files.")
    add = parser.add_argument
    add("--model", required=True, metavar="RUN", help="folder of a finished run")
    files = "image files, or folders of them"
    add("--input", required=True, nargs="+", type=Path, metavar="PATH", help=files)
    forms = ("table", "csv", "json")
    add("--format", choices=forms, default="table", help="output format (default: table)")
    maps = "write a map of what mattered for each image into this folder"
    add("--occlusion", type=Path, metavar="DIR", help=maps)
    side = "side in pixels of the patch that --occlusion hides (default: an eighth of the image)"
    add("--patch", type=int, metavar="N", help=side)
    arguments = parser.parse_args(argv)
    paths = _list_files(arguments.input)
    if arguments.patch is not None and arguments.patch < 1:
        raise ConfigError(f"--patch must be at least 1 pixel, received {arguments.patch}")
    if arguments.occlusion:
        make_folder("--occlusion", arguments.occlusion)
    classifier = load_classifier(Path(arguments.model))
    _warn(other_decoder(classifier))
    try:
        predictions = list(predict_files(classifier, paths))
    except ModuleNotFoundError as error:  # the codecs of DICOM files
        raise ConfigError(str(error)) from error
    seen = [prediction.shape for prediction in predictions if prediction.shape]
    _warn(shapes.warn_of_unseen(seen, classifier.shapes, classifier.preprocessing))
    with until_closed():
        _show(predictions, classifier, arguments.format)
    if arguments.occlusion:
        _write_maps(classifier, predictions, arguments.occlusion, arguments.patch)
    rejected = [prediction for prediction in predictions if prediction.reject]
    for prediction in rejected:
        refuse(f"{prediction.name} was not predicted: {prediction.reject}")
    return 1 if rejected else 0


def _warn(warning: str | None) -> None:
    if warning:
        print(f"warning: {warning}", file=sys.stderr)


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
    # A file may be named beside the folder that it is in. Two links to one file are two files.
    once: dict[Path, Path] = {}
    for path in inputs:
        if not path.exists():
            raise ConfigError(f"--input {path}: there is no such file or folder")
        found = _files_in(path) if path.is_dir() else [path]
        if not found:
            raise ConfigError(f"--input {path}: there is no file in this folder")
        for file in found:
            once.setdefault(file.parent.resolve() / file.name, file)
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


def _write_maps(
    classifier: Classifier, predictions: Sequence[Prediction], folder: Path, patch: int | None
) -> None:
    from train.results.charts import draw_occlusion
    from train.results.saliency import occlusion_map

    settings, names = classifier.preprocessing, classifier.label_names
    for index, prediction in enumerate(predictions):
        if prediction.probabilities is None:
            continue
        read = decode_image(prediction.path.read_bytes(), settings, prediction.frame)
        image = _pixels(read, settings)
        side = min(patch or max(1, min(image.shape[:2]) // 8), *image.shape[:2])
        predict = functools.partial(predict_images, classifier)
        answer = int(prediction.probabilities.argmax())
        drops = occlusion_map(predict, image, side, answer)
        title = f"{names[answer]} {prediction.probabilities[answer]:.1%}"
        if not classifier.task.gives_probabilities:
            title = f"{names[answer]} {prediction.predicted}"
        # Files of several folders may share a name. A name of a file has at most 255 bytes.
        stem = os.fsencode(prediction.path.stem)[:200].decode(errors="ignore")
        path = folder / f"{index:04d}-{stem}.png"
        draw_occlusion(image, drops, title).savefig(path, dpi=120)
        print(printable(str(path)), file=sys.stderr)


def _show(predictions: Sequence[Prediction], classifier: Classifier, form: str) -> None:
    """Prints the predictions; a terminal or a table gets control characters escaped."""
    # A number has no probability.
    is_likely = classifier.task.gives_probabilities
    names = classifier.label_names if is_likely else ()
    above = [ABOVE] if any(each.above is not None for each in predictions) else []
    table: list[list[Any]] = [["path", "predicted", *names, "reject", *above]]
    rows: list[dict[str, Any]] = []
    for each in predictions:
        row: dict[str, Any] = {"path": each.name}
        values: list[Any] = [""] * len(names)
        if each.probabilities is None:
            row["reject"] = each.reject
        else:
            row["predicted"] = each.predicted if is_likely else float(each.predicted or 0)
        if each.probabilities is not None and is_likely:
            values = [round(float(value), 6) for value in each.probabilities]
            row["probabilities"] = dict(zip(names, values, strict=True))
        reached = ""
        if each.above is not None:
            row[ABOVE] = list(each.above)
            reached = "|".join(each.above) or "none"
        rows.append(row)
        ends = [row.get("reject", ""), reached][: 1 + len(above)]
        table.append([each.name, row.get("predicted", ""), *values, *ends])
    if form == "json":
        print(json.dumps(rows, indent=1))
    elif form == "csv":
        _print_csv(table)
    else:
        shown = [
            [
                f"{cell:6.1%}" if isinstance(cell, float) and is_likely else printable(str(cell))
                for cell in line
            ]
            for line in table
        ]
        widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
        for line in shown:
            print("  ".join(map(str.ljust, line, widths)).rstrip())


def _print_csv(table: Sequence[Sequence[Any]]) -> None:
    # A program gets names as they are, even bytes that are not UTF-8.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")
    cleaned = csv_cell if sys.stdout.isatty() else no_formula
    # A negative number is not a formula.
    csv.writer(sys.stdout, lineterminator="\n").writerows(
        [cleaned(cell) if isinstance(cell, str) else cell for cell in line] for line in table
    )


if __name__ == "__main__":
    sys.exit(main())

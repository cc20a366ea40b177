"""The classifier that a run exported: answers for stored images, and for image files.

Files become pixels by the code of the build (`tfrecord_io.decoding.preprocess`), with the settings
that were exported beside the model, so the network sees what it saw in training.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.preprocess import (
    DecodedImage,
    decode_image,
    find_pictures,
    frame_path,
)
from tfrecord_io.decoding.rejects import Reject
from tfrecord_io.format.kinds import kind_in
from tfrecord_io.format.manifest import check_types
from tfrecord_io.terminal import flags
from tfrecord_io.terminal.errors import UserError
from train.machine import console

if TYPE_CHECKING:
    import keras

    from train.kinds.task import Task


@dataclasses.dataclass(frozen=True)
class Classifier:
    """Exported models, whose answers are averaged, and how files become their input.

    Attributes:
        models: stored images [batch, height, width, channels] → float32 [batch, num_classes].
        fingerprint: of the dataset of the training.
        thresholds: see `thresholds.choose_thresholds`; empty if none were exported.
        shapes: of the training images, see `shapes.distinct`; empty if they are not known.
        folder: the export of the first model.
    """

    models: Sequence[keras.Model]
    task: Task
    preprocessing: Preprocessing
    label_names: tuple[str, ...]
    fingerprint: str = ""
    thresholds: Sequence[Mapping[str, Any]] = ()
    shapes: Sequence[float] = ()
    folder: Path = Path()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """The prediction for one picture; a rejected one has no values, but `reject`, the reason.

    Attributes:
        frame: number of the picture in the file, see `preprocess.Pictures`.
        probabilities: float32 [num_classes].
        predicted: name of the likeliest class, or names of the labels.
        above: the questions whose threshold it reaches, such as classes; None if no thresholds
            were exported.
        shape: width of the picture divided by its height.
        patient: that of a DICOM file, as datasets have it; or whom a mean is about.
        num_images: of which this is the mean, if it is one; the picture is that which decided most.
    """

    path: Path
    frame: int | None = None
    reject: str | None = None
    probabilities: np.ndarray | None = None
    predicted: str | None = None
    above: Sequence[str] | None = None
    shape: float | None = None
    patient: str | None = None
    num_images: int | None = None

    @property
    def name(self) -> str:
        """The file's path, with the frame if it holds several, as the build names it."""
        return frame_path(str(self.path), self.frame)


def load_classifier(path: Path) -> Classifier:
    """Loads what a run exported; the path is that of the run, or of its export folder.

    Raises:
        UserError: if no exported model is there, or one that is damaged.
    """
    folder = path / "export" if (path / "export").is_dir() else path
    saved, described = folder / "model.keras", folder / "preprocessing.json"
    if not saved.is_file() or not described.is_file():
        raise UserError(
            f"--run {path}: expected the folder of a finished run, with export/{saved.name} and "
            f"export/{described.name}; {flags.command('train')} --data OUT --workdir RUN writes one"
        )
    try:
        facts = json.loads(described.read_text(encoding="utf-8"))
        named = {"label_names": [str], "dataset": {"fingerprint": str}}
        check_types(facts, {"preprocessing": {}, **named}, "")
        preprocessing = Preprocessing.from_dict(facts["preprocessing"])
        seen_shapes, kind = tuple(map(float, facts["shapes"])), kind_in(facts)
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise UserError(
            f"{described} does not say how files became the training images ({error!r}): "
            "the dataset's manifest had no complete preprocessing, or another release wrote it, so "
            "no file can be predicted"
        ) from error
    label_names = tuple(facts["label_names"])
    with console.hide_native_noise():
        import keras

        from train.kinds import task_of
        from train.results.thresholds import read_thresholds

        try:
            model = keras.saving.load_model(saved, compile=False)
            taken = (*model.input_shape[1:], model.inputs[0].dtype)
            wanted = (*preprocessing.image_shape, "uint8")
            blank = np.zeros((1, *preprocessing.image_shape), np.uint8)
            # A model that cannot answer is found here, not in the midst of the files.
            if taken != wanted or model(blank).shape[-1] != len(label_names):
                raise ValueError(
                    f"it takes images of {taken}, but preprocessing.json says {wanted} and names "
                    f"{len(label_names)} labels: they are of different runs"
                )
        # A stranger's or damaged file raises almost anything in Keras.
        except Exception as error:
            raise UserError(
                f"{saved} cannot be loaded ({type(error).__name__}: {error!s:.300}); "
                f"copy the run again, or finish it with {flags.command('train')} --workdir {path}"
            ) from error
    return Classifier(
        models=[model],
        task=task_of(kind),
        preprocessing=preprocessing,
        label_names=label_names,
        fingerprint=facts["dataset"]["fingerprint"],
        thresholds=read_thresholds(folder, label_names),
        shapes=seen_shapes,
        folder=folder,
    )


def single_runs(runs: Sequence[Path]) -> list[Path]:
    """Returns the folders of runs, those of its folds for a cross-validation."""
    return [folder for run in runs for folder in sorted(run.glob("fold-*")) or [run]]


def load_classifiers(runs: Sequence[Path]) -> Classifier:
    """Loads what several runs exported as one classifier, whose answers are the mean of theirs.

    A cross-validation gives all of its runs. Thresholds are of one network, so several have none.

    Raises:
        UserError: if a run is there twice, has no exported model, or does not fit the first one.
    """
    folders = single_runs(runs)
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UserError(f"--run: expected each run once; received {', '.join(map(str, runs))}")
    first, *others = classifiers = [load_classifier(folder) for folder in folders]
    if not others:
        return first
    for other in others:
        pair = first, other
        ours, theirs = ((one.task.kind, one.label_names, one.preprocessing) for one in pair)
        if ours != theirs:
            raise UserError(
                f"the runs of {first.folder} and {other.folder} cannot be averaged: their labels, "
                "the order of these or their preprocessing differ"
            )
    models = [model for classifier in classifiers for model in classifier.models]
    return dataclasses.replace(first, thresholds=(), models=models)


def answered(
    classifier: Classifier, answers: np.ndarray, given: Sequence[Prediction]
) -> list[Prediction]:
    """Returns predictions with their answers, [num_given, num_labels]."""
    # Imports Keras, which a loaded classifier did already.
    from train.results.thresholds import view_of

    task, names = classifier.task, classifier.label_names
    texts = task.texts(task.chosen(answers), names)
    reached = {
        entry["view"]: view_of(entry, names).ranking(answers) >= entry["threshold"]
        for entry in classifier.thresholds
    }
    predictions = []
    for row, (one, text) in enumerate(zip(given, texts, strict=True)):
        above = [name for name, is_above in reached.items() if is_above[row]] if reached else None
        new = {"probabilities": answers[row], "predicted": text, "above": above}
        predictions.append(dataclasses.replace(one, **new))
    return predictions


def pixels_of(image: DecodedImage, preprocessing: Preprocessing) -> np.ndarray:
    """Returns a decoded image as it is stored, [height, width, channels]."""
    return np.frombuffer(image.pixels, np.uint8).reshape(preprocessing.image_shape)


def read_pictures(
    path: Path, preprocessing: Preprocessing
) -> Iterator[tuple[Prediction, DecodedImage | None]]:
    """Yields each picture of a file without its answer; None for one that is left out.

    Only DICOM files name a patient.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        yield Prediction(path=path, reject=str(Reject("unreadable", str(error)))), None
        return
    found = find_pictures(path.name, len(data), data, lambda: io.BytesIO(data))
    # A report has no frames; decoding it gives the reason.
    for frame in found.frames or (0,):
        one = Prediction(path=path, frame=frame, patient=found.header.patient)
        try:
            image = decode_image(data, preprocessing, frame)
            yield dataclasses.replace(one, shape=image.shape), image
        except Reject as reject:
            yield dataclasses.replace(one, reject=str(reject)), None


def predict_files(
    classifier: Classifier, paths: Sequence[Path], *, batch_size: int = 8
) -> Iterator[Prediction]:
    """Yields a prediction for each picture of the files, in order, or the reason of a reject.

    Raises:
        ModuleNotFoundError: if one is a DICOM file, and pydicom or a codec is not installed.
    """
    settings = classifier.preprocessing
    pictures = (each for path in paths for each in read_pictures(path, settings))
    while batch := list(itertools.islice(pictures, batch_size)):
        read = [(one, pixels_of(image, settings)) for one, image in batch if image]
        answers: Iterator[Prediction] = iter(())
        if read:
            given, images = zip(*read, strict=True)
            answers = iter(
                answered(classifier, predict_images(classifier, np.stack(images)), given)
            )
        yield from (next(answers) if image else one for one, image in batch)


def predict_images(classifier: Classifier, images: np.ndarray) -> np.ndarray:
    """Returns float32 [batch, num_classes] probabilities of stored images; of several, the mean."""
    import keras

    answers = [
        keras.ops.convert_to_numpy(model(images, training=False)) for model in classifier.models
    ]
    return answers[0] if len(answers) == 1 else np.mean(answers, axis=0, dtype=np.float32)

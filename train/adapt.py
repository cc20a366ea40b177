"""Adapts a network to another device, without labels: python train/adapt.py --run RUN --input DIR.

The statistics of batch normalization are estimated anew from scans of that device. The result is an
export that `predict` and `evaluate` use as any other. Exit codes: 0 adapted, 1 an exported form
answers otherwise than the network, 2 wrong usage, or a network or scans that do not suit.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from tfrecord_io.decoding.preprocess import DecodedImage
from tfrecord_io.stores.files import write_json
from tfrecord_io.terminal import flags
from tfrecord_io.terminal.address import local_path
from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.printing import counted, printable
from train.data import seen
from train.machine import console
from train.results.classifier import (
    Classifier,
    load_classifier,
    pixels_of,
    predict_images,
    read_pictures,
)

if TYPE_CHECKING:
    import keras

#: The statistics of fewer images would be too rough. More are drawn: all are in memory at once.
MIN_IMAGES, MAX_IMAGES = 32, 2_000

#: So many images the old statistics count as. Source: Schneider et al. 2020, "Improving robustness
#: against common corruptions by covariate shift adaptation", which recommends 16 to 32.
PRIOR_IMAGES = 16

# At least so many images normalize each other while statistics are gathered.
_BATCH_SIZE = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command."""
    add = parser.add_argument
    run = "folder of a finished run"
    add("--run", "--model", required=True, type=local_path, metavar="RUN", help=run)
    files = f"image files, or folders of them: at least {MIN_IMAGES} images, with the usual mix"
    add("--input", required=True, nargs="+", type=local_path, metavar="PATH", help=files)
    folder = "new folder for the adapted network"
    add("--output", required=True, type=local_path, metavar="RUN2", help=folder)


def adapt(arguments: argparse.Namespace) -> None:
    """Writes the adapted network into a new folder."""
    paths, output = console.list_files(arguments.input), arguments.output
    console.make_folder("--output", output)
    if any(output.iterdir()):
        raise UserError(f"--output {output} is not empty; name a new folder")
    classifier = load_classifier(arguments.run)
    if not any(_normalizations(classifier.model)):
        raise UserError(
            f"the network of {arguments.run} has no batch normalization, so it cannot be adapted; "
            "train --model small_resnet, or with labelled scans of the other device"
        )
    try:
        images = _read(classifier, paths)
    except ModuleNotFoundError as error:  # the codecs of DICOM files
        raise UserError(str(error)) from error
    from train.kinds import words  # with Keras, which takes seconds

    before = _shares(classifier, images)
    adapt_statistics(classifier.model, images)
    shares = zip(classifier.label_names, before, _shares(classifier, images), strict=True)
    print("predicted share of these images, before and after:")
    told = words.percent if classifier.task.gives_probabilities else words.decimal
    for name, old, new in shares:
        print(f"  {printable(name)}  {told(old)}  {told(new)}")
    print(
        "warning: these scans should have the usual mix of findings; the statistics of one class "
        "alone make a network worse",
        file=sys.stderr,
    )
    (first, *others), known = arguments.input, seen.read_seen(arguments.run)
    is_named = first.is_dir() and not others and not known.is_anonymous
    source = f" of {first.resolve().name}" if is_named else ""
    note = (
        f"the network was adapted to {len(images):,} images{source}, without their labels; its "
        "temperature and thresholds were chosen before"
    )
    _export(classifier, output, {"images": len(images), "note": note})
    hashes = [xxhash.xxh3_128_hexdigest(image.tobytes()) for image in images]
    known.adapted(hashes).write(output / seen.FILE_NAME, is_private=known.is_anonymous)
    print(
        f"{printable(note)}. It is in {output}. Measure it on labelled scans of other patients:\n"
        f"  {flags.command('evaluate')} --run {output} --data DATASET"
    )


def _read(classifier: Classifier, paths: Sequence[Path]) -> np.ndarray:
    """Returns the pictures of the files in a random order, and tells how many cannot be read.

    Raises:
        UserError: if there are too few.
    """
    settings, images, num_rejects = classifier.preprocessing, [], 0
    shuffled = (paths[place] for place in np.random.default_rng(0).permutation(len(paths)))
    pictures = (picture for path in shuffled for _, picture in read_pictures(path, settings))
    for picture in itertools.islice(pictures, MAX_IMAGES):
        if isinstance(picture, DecodedImage):
            images.append(pixels_of(picture, settings))
        else:
            num_rejects += 1
    told = f"{counted(len(images), 'image')} can be used, {num_rejects:,} cannot be read"
    if len(images) < MIN_IMAGES:
        raise UserError(f"--input: {told}; give at least {MIN_IMAGES} images")
    print(told)
    return np.stack(images)


def _shares(classifier: Classifier, images: np.ndarray) -> np.ndarray:
    """Returns the share of the images with each predicted label; the mean of a number."""
    blocks = np.array_split(images, len(images) // MIN_IMAGES)
    answers = np.concatenate([predict_images(classifier, block) for block in blocks])
    task = classifier.task
    if task.gives_probabilities:
        answers = task.has(task.chosen(answers), len(classifier.label_names))
    return answers.mean(axis=0)


def _export(classifier: Classifier, output: Path, facts: dict[str, Any]) -> None:
    """Writes an export without features: those of the training images have changed, too."""
    from train.results import thresholds
    from train.training.export import FOLDER_NAME, write_forms

    old, new = classifier.folder, output / FOLDER_NAME
    write_forms(classifier.model, new)
    if (old / thresholds.FILE_NAME).exists():
        shutil.copy(old / thresholds.FILE_NAME, new)
    described = json.loads((old / "preprocessing.json").read_text(encoding="utf-8"))
    write_json(new / "preprocessing.json", described | {"adapted": facts})


# ---- statistics of batch normalization


def adapt_statistics(model: keras.Model, images: np.ndarray) -> None:
    """Changes the means and variances of batch normalization to those of other images.

    Each batch is normalized by its own statistics meanwhile, mixed with the old ones as the result
    is. So one pass is enough: a layer sees what it will see when those before it are adapted.

    Args:
        model: stored images → answers.
        images: stored images in a random order, [num_images, height, width, channels].
    """
    share = len(images) / (PRIOR_IMAGES + len(images))
    gathered = [(layer, _adapt_to_batches(layer, share)) for layer in _normalizations(model)]
    for batch in np.array_split(images, max(1, len(images) // _BATCH_SIZE)):
        model(batch, training=False)
    for layer, (prior, moments) in gathered:
        del layer.call
        mean, square = np.mean(moments, axis=0)  # batches are of one size, give or take an image
        _set(layer, share * np.stack([mean, square - mean**2]) + (1 - share) * prior)


def _normalizations(model: keras.Model) -> Iterator[keras.layers.BatchNormalization]:
    """Yields the layers of batch normalization, also those of networks inside the model."""
    import keras

    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _normalizations(layer)
        elif isinstance(layer, keras.layers.BatchNormalization):
            yield layer


def _adapt_to_batches(layer: keras.layers.BatchNormalization, share: float) -> Any:
    """Lets a layer normalize by the statistics of each batch, until its `call` is deleted.

    Not by `training=True`, which would also turn on dropout. `share` is the weight of the batch.

    Returns:
        the old mean and variance, [2, channels], and a list that gets the mean and the mean square
        of each batch, float64 [2, channels].
    """
    import keras

    call, gathered = layer.call, []
    prior = np.stack([layer.moving_mean, layer.moving_variance])

    def call_on_batch(inputs: Any, *arguments: Any, **options: Any) -> Any:
        axes = np.delete(np.arange(inputs.ndim), layer.axis).tolist()
        moments = [keras.ops.convert_to_numpy(each) for each in keras.ops.moments(inputs, axes)]
        mean, variance = np.stack(moments).astype(np.float64)
        gathered.append(np.stack([mean, variance + mean**2]))
        _set(layer, share * np.stack([mean, variance]) + (1 - share) * prior)
        return call(inputs, *arguments, **options)

    layer.call = call_on_batch
    return prior, gathered


def _set(layer: keras.layers.BatchNormalization, values: np.ndarray) -> None:
    layer.moving_mean.assign(values[0])
    layer.moving_variance.assign(values[1])


main = console.TrainerCommand(
    name="adapt",
    purpose="Adapts a network to scans of another device, without labels.",
    add_arguments=add_arguments,
    run=adapt,
)

if __name__ == "__main__":
    sys.exit(main())

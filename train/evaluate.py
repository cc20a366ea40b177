"""Measures a trained model on a dataset: python train/evaluate.py --run RUN --data OTHER.

For external validation: the same measures as those of the training run, on scans of another
hospital, built by the same command with the same preprocessing. Exit codes: 0 measured, 1 an
answer is not a number, 2 wrong usage, or a dataset that the model does not fit.
"""

from __future__ import annotations

import argparse
import functools
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tfrecord_io
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.format import shapes
from tfrecord_io.format.manifest import FILE_NAME as MANIFEST_NAME
from tfrecord_io.stores.files import read_json
from tfrecord_io.terminal import flags
from tfrecord_io.terminal.address import Address, is_remote, local_path
from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.flags import command
from tfrecord_io.terminal.printing import counted, differences, listed
from train.data.dataset import Dataset, Part, open_dataset
from train.data.seen import Exposure, Seen, expose, read_seen
from train.extras import occlusion
from train.extras.bucket import open_run
from train.machine import console
from train.machine.places import METRICS_NAME, PAGE_NAME
from train.results.classifier import Classifier, load_classifiers, predict_images, single_runs
from train.results.options import MeasureOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command."""
    add = parser.add_argument
    model = "finished run, a folder or URL; of several, or of a cross-validation, the mean answers"
    several: Any = {"required": True, "nargs": "+", "action": "extend"}
    add("--run", "--model", type=Address, metavar="RUN", help=model, **several)
    add("--data", required=True, type=Address, metavar="OUT", help="folder of a finished dataset")
    split = "split to measure on, or several such as train,test, or all (default: test)"
    add("--split", default="test", metavar="NAME", help=split)
    output = "folder for the results (default: RUN/evaluation/NAME-FINGERPRINT-SPLIT, in one RUN)"
    add("--output", type=local_path, metavar="DIR", help=output)
    seen = "measure images, too, that the model has seen, or others of their patients"
    add("--include_seen", action="store_true", help=seen)
    prevalence = (
        "share of positives where the model is to be used, for the predictive values (PPV, NPV): "
        "one number, or one for each class, such as CNV=0.02,DME=0.01"
    )
    add("--prevalence", default="", metavar="X", help=prevalence)
    flags.add_flags(parser, "measures", MeasureOptions)


def folder_of(run: str | os.PathLike[str], manifest: tfrecord_io.Manifest, split: str) -> Path:
    """Returns the folder of a local run for what is measured on a split of a dataset."""
    # Two builds of one folder have one name.
    return Path(run) / "evaluation" / f"{manifest.name}-{manifest.fingerprint[:8]}-{split}"


def evaluate(arguments: argparse.Namespace) -> None:
    """Measures an exported model on a split and writes metrics.json, predictions.csv, report.html.

    Images that the model has seen, and others of their patients and groups, are left out.

    Raises:
        UserError: if the run is not finished, or does not suit the dataset or the options.
        TrainingError: if an answer is not a number.
        tfrecord_io.ManifestError: if the dataset cannot be used or has no such split.
    """
    options = flags.from_flags(MeasureOptions, arguments)
    address, data, split = ", ".join(arguments.run), arguments.data, arguments.split
    dataset = open_dataset(data, options.columns)
    manifest = dataset.manifest
    splits = tuple(manifest.splits) if split == "all" else tuple(split.split(","))
    if missing := [name for name in splits if name not in manifest.splits]:
        raise UserError(
            f"{data} has no split {missing[0]!r}, but {listed(list(manifest.splits))}; name one "
            "with --split, or measure all with --split all"
        )
    if not manifest.split(splits).num_examples:
        raise UserError(f"split {split!r} of {data} is empty; name another --split")
    if (len(arguments.run) > 1 or is_remote(address)) and not arguments.output:
        raise UserError(
            f"--run {address} is not one local folder; name a folder for the results with --output"
        )
    output = arguments.output or folder_of(address, manifest, split)
    if any((output / name).exists() for name in (MANIFEST_NAME, "config.json")):
        raise UserError(
            f"--output {output} holds a dataset or a run, whose page and measures would be "
            "replaced; name another folder"
        )
    runs = single_runs([open_run(address) for address in arguments.run])
    classifier = load_classifiers(runs)
    # With Keras, which takes seconds.
    from train.kinds.task import require_numbers
    from train.results import metrics, thresholds
    from train.results.predictions import Predictions
    from train.results.result import EvaluationResult

    _require_fit(classifier, manifest, address, data)
    if classifier.fingerprint == manifest.fingerprint:
        print("note: this is the dataset that the model was trained on, not an external one")
    seen = shapes.of_dataset(manifest, splits)
    if warning := shapes.warn_of_unseen(seen, classifier.shapes):
        console.warn(warning)
    # A class that the dataset does not name has no images there. A label that it does not name may
    # still be present in its images, so that label is not measured.
    task = classifier.task
    names = classifier.label_names if task.kind.one_hot else manifest.label_names
    # The prevalences are used at the end; a wrong one is refused now.
    views = [view.name for view in task.views(names)]
    prevalences = thresholds.parse_prevalences(arguments.prevalence, views)
    part, exposure = _unseen(runs, dataset, splits, arguments.include_seen)
    console.make_folder("--output", output)
    outputs = [classifier.label_names.index(name) for name in names]

    def predict(images: np.ndarray) -> np.ndarray:
        return predict_images(classifier, images)[:, outputs]

    batches = tfrecord_io.make_batches(
        dataset.path, split=dataset.splits, examples=part.rows, batch_size=64, shuffle=False
    )
    answers = [(predict(images), labels) for images, labels in batches]
    probabilities, labels = map(np.concatenate, zip(*answers, strict=True))
    require_numbers(probabilities, f"split {part.name} of {data}")
    matched = np.zeros(probabilities.shape, labels.dtype)
    matched[:, [names.index(name) for name in manifest.label_names]] = labels
    predictions = Predictions(
        task=task,
        probabilities=probabilities,
        truths=matched > 0,
        label_names=names,
        dataset=dataset,
        rows=part.rows,
    )
    own = read_json(runs[0] / METRICS_NAME) if len(runs) == 1 else {}
    results: dict[str, Any] = {
        "split": split,
        "dataset": {"name": manifest.name, "fingerprint": manifest.fingerprint},
        "model": address,
        "best_epoch": own.get("best_epoch"),
        **metrics.measure(predictions, options, 0, classifier.thresholds, prevalences),
    }
    result = EvaluationResult(
        directory=output,
        dataset=dataset,
        metrics=results,
        predictions=predictions,
        exposure=exposure,
    )
    result.write(occlusion.explain(predict))
    print(f"The metrics and {PAGE_NAME} are in {output}")


def _require_fit(
    classifier: Classifier, manifest: tfrecord_io.Manifest, run: str, data: Address
) -> None:
    """Refuses a dataset with other labels, or whose files became pixels in another way."""
    kind, known = manifest.label_kind, classifier.label_names
    if kind != classifier.task.kind:
        raise UserError(
            f"the labels of {data} are of the kind {kind.name}, and the model of {run} learned "
            f"the kind {classifier.task.kind.name}; give a dataset with such labels"
        )
    if unknown := [name for name in manifest.label_names if name not in known]:
        pairs = shlex.quote(",".join(f"{name}=NAME" for name in unknown[:10]))
        raise UserError(
            f"{data} has the {kind.plural} {listed(unknown, 10)}, which the model of {run} does "
            f"not know; it knows {listed(known, 10)}. Build the dataset with these names: "
            f"{command('build')} ... --rename_classes {pairs}; --classes "
            "with the classes to keep leaves out the images of the others"
        )
    if not manifest.preprocessing:
        raise UserError(
            f"the manifest of {data} does not say how files became its images, so it cannot be "
            "compared with the training images; build it again with this program"
        )
    ours = classifier.preprocessing.identity()
    theirs = Preprocessing.from_dict(manifest.preprocessing).identity()
    if changed := differences(ours, theirs, "in training", "here"):
        raise UserError(
            f"{data} was preprocessed in another way than the training images of {run}:\n  "
            + "\n  ".join(changed)
            + "\nBuild it with the flags of these names as in training"
        )


def _unseen(
    runs: Sequence[Path], dataset: Dataset, splits: Sequence[str], include_seen: bool
) -> tuple[Part, Exposure]:
    """Returns the images to measure, and how many of the splits' a run has seen.

    Raises:
        UserError: if it has seen all.
    """
    part = dataset.part(*splits)
    assert part is not None  # checked before the model was loaded
    part = part.narrow(~dataset.is_copy(part))
    seen = functools.reduce(Seen.after, map(read_seen, runs))
    exposure = expose(dataset, [(seen, part.rows)], is_measured=include_seen)
    num_seen = exposure.num_images
    if num_seen == part.num_examples and not include_seen:
        raise UserError(
            f"nothing is left of split {part.name!r} of {dataset.path}: the network has seen all "
            f"its {num_seen:,} images, or others of their patients. Name another --split or "
            "--data, or add --include_seen; if patients of two hospitals have the same names, "
            "build both datasets with a column site in the table of --labels"
        )
    if num_seen:
        print(
            f"the model has seen {num_seen:,} of the {part.num_examples:,} images of {part.name}, "
            f"or others of their patients ({counted(exposure.num_patients, 'patient')}); they are "
            + ("measured, too" if include_seen else "left out")
        )
    if num_seen and not include_seen:
        part = part.narrow(~exposure.is_seen)
    return part, exposure


main = console.TrainerCommand(
    name="evaluate",
    purpose="Measures a trained model on another dataset (external validation).",
    add_arguments=add_arguments,
    run=evaluate,
)

if __name__ == "__main__":
    sys.exit(main())

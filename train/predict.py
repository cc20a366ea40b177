"""Predicts image files: python train/predict.py --run RUN --input FILE|DIR.

Files become pixels by the code of the build (`tfrecord_io.decoding.preprocess`), with the settings
that were exported beside the model, so the network sees what it saw in training. Exit codes: 0
every file was predicted, 1 a file could not be read as an image, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import csv
import functools
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfrecord_io.decoding.preprocess import decode_image
from tfrecord_io.format import shapes
from tfrecord_io.terminal.address import Address, local_path
from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.printing import csv_cell, no_formula, printable, refuse, until_closed
from train.machine import console
from train.results.classifier import (
    Classifier,
    Prediction,
    load_classifiers,
    other_decoder,
    pixels_of,
    predict_files,
    predict_images,
)
from train.training.mirror import opened

#: Column with the views whose threshold an image reaches, if thresholds were exported.
ABOVE = "above_threshold"

#: Columns about an image's distance from the training images, if the export can tell it.
FAR = ("unlike", "distance")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command."""
    add = parser.add_argument
    run = "finished run, a folder or URL; of several, or of a cross-validation, the mean answers"
    add("--run", "--model", required=True, nargs="+", type=Address, metavar="RUN", help=run)
    files = "image files, or folders of them"
    add("--input", required=True, nargs="+", type=local_path, metavar="PATH", help=files)
    forms = ("table", "csv", "json")
    add("--format", choices=forms, default="table", help="output format (default: table)")
    maps = "write a map of what mattered for each image into this folder"
    add("--occlusion", type=local_path, metavar="DIR", help=maps)
    side = (
        "side in pixels of the patch that --occlusion hides (default: about a sixth of the image)"
    )
    add("--patch", type=int, metavar="N", help=side)


def predict(arguments: argparse.Namespace) -> int:
    """Prints a prediction for each image; returns the exit code."""
    paths = console.list_files(arguments.input)
    if arguments.patch is not None and arguments.patch < 1:
        raise UserError(f"--patch must be at least 1 pixel, received {arguments.patch}")
    if arguments.occlusion:
        console.make_folder("--occlusion", arguments.occlusion)
    classifier = load_classifiers([opened(run) for run in arguments.run])
    _warn(other_decoder(classifier))
    try:
        predictions = list(predict_files(classifier, paths))
    except ModuleNotFoundError as error:  # the codecs of DICOM files
        raise UserError(str(error)) from error
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


def _write_maps(
    classifier: Classifier, predictions: Sequence[Prediction], folder: Path, patch: int | None
) -> None:
    from train.results.saliency import draw_map, occlusion_map

    settings, names = classifier.preprocessing, classifier.label_names
    predict = functools.partial(predict_images, classifier)
    for index, prediction in enumerate(predictions):
        if prediction.probabilities is None:
            continue
        read = decode_image(prediction.path.read_bytes(), settings, prediction.frame)
        image = pixels_of(read, settings)
        answer = int(prediction.probabilities.argmax())
        drops = occlusion_map(predict, image, patch, answer)
        is_likely = classifier.task.gives_probabilities
        told = f"{prediction.probabilities[answer]:.1%}" if is_likely else prediction.predicted
        # Files of several folders may share a name. A name of a file has at most 255 bytes.
        stem = os.fsencode(prediction.path.stem)[:200].decode(errors="ignore")
        path = folder / f"{index:04d}-{stem}.png"
        draw_map(image, drops, f"{names[answer]} {told}").save(path)
        print(printable(str(path)), file=sys.stderr)


def _show(predictions: Sequence[Prediction], classifier: Classifier, form: str) -> None:
    """Prints the predictions; a terminal or a table gets control characters escaped."""
    # A number has no probability.
    is_likely = classifier.task.gives_probabilities
    names = classifier.label_names if is_likely else ()
    rows = [_row(each, names) for each in predictions]
    far = FAR if classifier.known else ()
    limit = max((known.limit for known in classifier.known), default=0.0)
    for row, each in zip(rows, predictions, strict=True):
        if far and each.distance is not None:
            row |= zip(far, (each.distance > limit, round(each.distance, 6)), strict=True)
    above = [ABOVE] if any(ABOVE in row for row in rows) else []
    table: list[list[Any]] = [["path", "predicted", *names, "reject", *above, *far]]
    for row in rows:
        values = [row.get("probabilities", {}).get(name, "") for name in names]
        reached = ["|".join(row[ABOVE]) or "none" if ABOVE in row else ""][: len(above)]
        reached += [str(row.get(name, "")).lower() for name in far]
        table.append(
            [row["path"], row.get("predicted", ""), *values, row.get("reject", ""), *reached]
        )
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


def _row(prediction: Prediction, names: Sequence[str]) -> dict[str, Any]:
    """Returns a prediction as JSON has it; a number has no names, because it has no probability."""
    row: dict[str, Any] = {"path": prediction.name}
    if prediction.probabilities is None:
        return row | {"reject": prediction.reject}
    row["predicted"] = prediction.predicted if names else float(prediction.predicted or 0)
    if names:
        values = (round(float(value), 6) for value in prediction.probabilities)
        row["probabilities"] = dict(zip(names, values, strict=True))
    return row if prediction.above is None else row | {ABOVE: list(prediction.above)}


def _print_csv(table: Sequence[Sequence[Any]]) -> None:
    # A program gets names as they are, even bytes that are not UTF-8.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")
    cleaned = csv_cell if sys.stdout.isatty() else no_formula
    # A negative number is not a formula.
    csv.writer(sys.stdout, lineterminator="\n").writerows(
        [cleaned(cell) if isinstance(cell, str) else cell for cell in line] for line in table
    )


main = console.TrainerCommand(
    name="predict", purpose="Predicts image files.", add_arguments=add_arguments, run=predict
)

if __name__ == "__main__":
    sys.exit(main())

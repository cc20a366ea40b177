"""Predicts image files: python train/predict.py --run RUN --input FILE|DIR.

Files become pixels by the code of the build (`tfrecord_io.decoding.preprocess`), with the settings
that were exported beside the model, so the network sees what it saw in training. Exit codes: 0
every file was predicted, 1 a file could not be read as an image, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import sys
from collections.abc import Sequence
from typing import Any

from tfrecord_io.format import shapes
from tfrecord_io.format.manifest import FILE_NAME as MANIFEST_NAME
from tfrecord_io.terminal.address import Address, local_path
from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.flags import command
from tfrecord_io.terminal.printing import csv_cell, listed, no_formula, printable, until_closed
from train.extras import by_patient, occlusion
from train.extras.bucket import open_run
from train.machine import console
from train.results.classifier import (
    Classifier,
    Prediction,
    load_classifiers,
    predict_files,
)

#: Column with the views whose threshold an image reaches, if thresholds were exported.
ABOVE = "above_threshold"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command."""
    add = parser.add_argument
    run = "finished run, a folder or URL; of several, or of a cross-validation, the mean answers"
    add("--run", "--model", required=True, nargs="+", type=Address, metavar="RUN", help=run)
    files = "image files, or folders of them"
    add("--input", required=True, nargs="+", type=local_path, metavar="PATH", help=files)
    forms = ("table", "csv", "json")
    add("--format", choices=forms, default="table", help="output format (default: table)")
    by = "answer for each patient: the mean over the images, and the image that decided most"
    add("--by", choices=["patient"], help=by)
    regex = (
        "with --by: pattern whose first group is the patient, in a file's name or else its "
        "path (default: that of the build; DICOM files name their patient)"
    )
    add("--patient_regex", metavar="REGEX", help=regex)
    maps = "write an occlusion map of each image into this folder"
    add("--occlusion", type=local_path, metavar="DIR", help=maps)


def predict(arguments: argparse.Namespace) -> int:
    """Prints a prediction for each image, or patient; returns the exit code."""
    for folder in arguments.input:
        if (folder / MANIFEST_NAME).is_file():
            raise UserError(
                f"--input {folder} is a dataset; give image files, or measure the network on it "
                f"with {command('evaluate')} --run {arguments.run[0]} --data {folder}"
            )
    if arguments.patient_regex and not arguments.by:
        raise UserError("--patient_regex says whom --by patient is about; add --by patient")
    if arguments.occlusion:
        console.make_folder("--occlusion", arguments.occlusion)
    paths = console.list_files(arguments.input)
    classifier = load_classifiers([open_run(run) for run in arguments.run])
    pattern = by_patient.pattern_of(arguments, classifier) if arguments.by else None
    try:
        predictions = list(predict_files(classifier, paths))
    except ModuleNotFoundError as error:  # the codecs of DICOM files
        raise UserError(str(error)) from error
    seen = [prediction.shape for prediction in predictions if prediction.shape]
    if warning := shapes.warn_of_unseen(seen, classifier.shapes):
        print(f"warning: {warning}", file=sys.stderr)
    shown: Sequence[Prediction] = predictions
    if pattern:
        shown = by_patient.predict_by_patient(arguments, pattern, classifier, predictions)
    with until_closed():
        _show(shown, classifier, arguments.format)
    if arguments.occlusion:
        occlusion.write_maps(arguments.occlusion, classifier, predictions)
    rejected: dict[str, list[str]] = {}
    for prediction in predictions:
        if prediction.reject:
            rejected.setdefault(prediction.reject, []).append(prediction.name)
    for reject, names in rejected.items():
        print(f"error: not predicted: {printable(f'{listed(names)}: {reject}')}", file=sys.stderr)
    return 1 if rejected else 0


def _show(predictions: Sequence[Prediction], classifier: Classifier, form: str) -> None:
    """Prints the predictions; a terminal or a table gets control characters escaped."""
    names = classifier.label_names
    rows = []
    for one in predictions:
        row: dict[str, Any] = {"patient": one.patient, "images": one.num_images}
        row = ({} if one.num_images is None else row) | {"path": one.name}
        if one.probabilities is None:
            row["reject"] = one.reject
        else:
            values = (round(float(value), 6) for value in one.probabilities)
            row["predicted"] = one.predicted
            row["probabilities"] = dict(zip(names, values, strict=True))
            row |= {} if one.above is None else {ABOVE: list(one.above)}
        rows.append(row)
    if form == "json":
        print(json.dumps(rows, indent=1))
        return
    above = [ABOVE] if any(ABOVE in row for row in rows) else []
    front = [name for name in ("patient", "images") if any(name in row for row in rows)]
    table: list[list[Any]] = [[*front, "path", "predicted", *names, "reject", *above]]
    for row in rows:
        values = [row.get("probabilities", {}).get(name, "") for name in names]
        reached = ["|".join(row[ABOVE]) or "none" if ABOVE in row else ""][: len(above)]
        cells = [*(row[name] for name in front), row["path"], row.get("predicted", "")]
        table.append([*cells, *values, row.get("reject", ""), *reached])
    if form == "csv":
        # A program gets names as they are, even bytes that are not UTF-8.
        with contextlib.suppress(AttributeError):  # a notebook's stream
            sys.stdout.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
        cleaned = csv_cell if sys.stdout.isatty() else no_formula
        csv.writer(sys.stdout, lineterminator="\n").writerows(
            [cleaned(cell) if isinstance(cell, str) else cell for cell in line] for line in table
        )
        return
    shown = [
        [f"{cell:6.1%}" if isinstance(cell, float) else printable(str(cell)) for cell in line]
        for line in table
    ]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for line in shown:
        print("  ".join(map(str.ljust, line, widths)).rstrip())


main = console.TrainerCommand(
    name="predict", purpose="Predicts image files.", add_arguments=add_arguments, run=predict
)

if __name__ == "__main__":
    sys.exit(main())

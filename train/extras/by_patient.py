"""`predict --by patient`: one answer for all images of a patient, the mean of those to them.

`evaluate` measures by patient with the same rule.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Sequence

import numpy as np

from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.printing import listed, printable
from tfrecord_io.terminal.spelling import compiled, found_in, one_form
from train.data.seen import FILE_NAME, read_seen
from train.results.classifier import Classifier, Prediction, answered

_FOLDERS = "a folder for each patient is --patient_regex '([^/]+)/[^/]*$'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    by = "answer for each patient: the mean over the images, and the image that decided most"
    parser.add_argument("--by", choices=["patient"], help=by)
    regex = (
        "with --by: pattern whose first group is the patient, in a file's name or else its "
        "path (default: that of the build; DICOM files name their patient)"
    )
    parser.add_argument("--patient_regex", metavar="REGEX", help=regex)


def pattern_of(arguments: argparse.Namespace, classifier: Classifier) -> re.Pattern[str]:
    """Returns the pattern that finds patients: that of the flag, or else that of the build."""
    origin = read_seen(classifier.folder).origin
    regex = arguments.patient_regex or json.loads(origin.get("patients", "[null]"))[0]
    if not regex:
        raise UserError(
            f"--by patient: the run has no {FILE_NAME} that says how the build found patients; "
            f"say it with --patient_regex ({_FOLDERS})"
        )
    try:
        return compiled("patient_regex", one_form(regex), "patient")
    except ValueError as error:
        raise UserError(str(error)) from None


def predict_by_patient(
    arguments: argparse.Namespace,
    pattern: re.Pattern[str],
    classifier: Classifier,
    predictions: Sequence[Prediction],
) -> Sequence[Prediction]:
    """Returns the answers for patients, in the order of their first images.

    An image of an unknown patient is answered by itself.

    Raises:
        UserError: if no patient is known.
    """
    folders = [path for path in arguments.input if path.is_dir()]

    def patient_of(prediction: Prediction) -> str | None:
        path = prediction.path
        below = (path.relative_to(folder) for folder in folders if path.is_relative_to(folder))
        paths = (one_form(str(name)) for name in (*below, path))
        return next(filter(None, (found_in(name, pattern) for name in paths)), None)

    patients = [prediction.patient or patient_of(prediction) for prediction in predictions]
    unknown = [each.name for each, name in zip(predictions, patients, strict=True) if not name]
    if len(unknown) == len(predictions):
        raise UserError(
            f"--by patient: the pattern {pattern.pattern!r} finds no patient in "
            f"{listed(unknown)}; name another one with --patient_regex ({_FOLDERS})"
        )
    if unknown:
        warning = f"no patient is found in {listed(unknown)}; each is answered by itself"
        print(f"warning: {printable(warning)}", file=sys.stderr)
    images: dict[str, list[Prediction]] = {}
    for each, name in zip(predictions, patients, strict=True):
        images.setdefault(name or each.name, []).append(each)
    return [_mean(classifier, name, of_patient) for name, of_patient in images.items()]


def _mean(classifier: Classifier, patient: str, images: Sequence[Prediction]) -> Prediction:
    """Returns the answer for a patient, with the path of the image that decided most.

    That is the one with the highest probability of the answer.
    """
    from train.kinds.measures import means_by_place

    read = [image for image in images if image.probabilities is not None]
    if not read:
        return dataclasses.replace(images[0], patient=patient, num_images=0)
    answers = np.stack([image.probabilities for image in read])
    mean = means_by_place(np.zeros(len(read), int), answers)
    decisive = read[answers[:, mean.argmax()].argmax()]
    given = dataclasses.replace(decisive, patient=patient, num_images=len(read))
    return answered(classifier, mean, [given])[0]

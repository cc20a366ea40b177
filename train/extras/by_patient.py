"""`predict --by patient`: one answer for all images of a patient, the mean of those to them.

`evaluate` measures by patient with the same rule.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Sequence

import numpy as np

from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.flags import compiled, found_in
from tfrecord_io.terminal.printing import listed, one_form, printable
from train.data.seen import FILE_NAME, read_seen
from train.machine import console
from train.results.classifier import Classifier, Prediction, answered

_FOLDERS = "a folder for each patient is --patient_regex '([^/]+)/[^/]*$'"


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

    The path is that of the image that decided most: it has the highest probability of the answer.
    An image of an unknown patient is answered by itself.

    Raises:
        UserError: if no patient is known.
    """
    folders = [path for path in arguments.input if path.is_dir()]
    images: dict[str, list[Prediction]] = {}
    unknown = []
    for each in predictions:
        below = (each.path.relative_to(at) for at in folders if each.path.is_relative_to(at))
        paths = (one_form(str(path)) for path in (*below, each.path))
        of_paths = filter(None, (found_in(path, pattern) for path in paths))
        if not (patient := each.patient or next(of_paths, None)):
            unknown.append(patient := each.name)
        images.setdefault(patient, []).append(each)
    if len(unknown) == len(predictions):
        raise UserError(
            f"--by patient: the pattern {pattern.pattern!r} finds no patient in "
            f"{listed(unknown)}; name another one with --patient_regex ({_FOLDERS})"
        )
    if unknown:
        console.warn(
            printable(f"no patient is found in {listed(unknown)}; each is answered by itself")
        )
    answered_all = []
    for patient, of_patient in images.items():
        read = [image for image in of_patient if image.probabilities is not None]
        first = dataclasses.replace(of_patient[0], patient=patient, num_images=len(read))
        if read:
            answers = np.stack([image.probabilities for image in read])
            mean = answers.mean(0, np.float64, keepdims=True).astype(answers.dtype)
            decisive = read[answers[:, mean.argmax()].argmax()]
            given = dataclasses.replace(decisive, patient=patient, num_images=len(read))
            (first,) = answered(classifier, mean, [given])
        answered_all.append(first)
    return answered_all

"""For those who ask about patients: one answer for all images of each, the mean of those to them.

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
from train.results.classifier import Classifier, Prediction

_FOLDERS = "a folder for each patient is --patient_regex '([^/]+)/[^/]*$'"


class ByPatient:
    """The answers that `predict --by patient` gives."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Adds the flags."""
        by = "answer for each patient: the mean over the images, and the image that decided most"
        parser.add_argument("--by", metavar="patient", help=by)
        regex = (
            "with --by: pattern whose first group is the patient, in a file's name or else its "
            "path (default: that of the build; DICOM files name their patient)"
        )
        parser.add_argument("--patient_regex", metavar="REGEX", help=regex)

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._is_asked, self._regex = arguments.by is not None, arguments.patient_regex
        self._folders = [path for path in arguments.input if path.is_dir()]
        if arguments.by not in (None, "patient"):
            raise UserError(
                f"--by {arguments.by}: files name patients only; with --by patient, a pattern that "
                "finds patient and eye answers for each eye, such as --patient_regex "
                "'([0-9]+_(left|right))'"
            )
        if self._regex and not self._is_asked:
            raise UserError("--patient_regex says whom --by patient is about; add --by patient")
        if self._regex:
            _compiled(self._regex)  # before all images are predicted

    def together(
        self, classifier: Classifier, predictions: Sequence[Prediction]
    ) -> Sequence[Prediction]:
        """Returns the answers for patients, in the order of their first images, if asked for.

        An image of an unknown patient is answered by itself.

        Raises:
            UserError: if no patient is known.
        """
        if not self._is_asked:
            return predictions
        pattern = self._pattern(classifier)
        patients = [each.patient or self._found(each, pattern) for each in predictions]
        unknown = [each.name for each, name in zip(predictions, patients, strict=True) if not name]
        if len(unknown) == len(predictions):
            raise UserError(
                f"--by patient: the pattern {pattern.pattern!r} finds no patient in "
                f"{listed(unknown)}; name another one with --patient_regex ({_FOLDERS})"
            )
        if unknown:
            told = f"no patient is found in {listed(unknown)}; each is answered by itself"
            print(f"warning: {printable(told)}", file=sys.stderr)
        images: dict[str, list[Prediction]] = {}
        for each, name in zip(predictions, patients, strict=True):
            images.setdefault(name or each.name, []).append(each)
        return [_mean(classifier, name, those) for name, those in images.items()]

    def _pattern(self, classifier: Classifier) -> re.Pattern[str]:
        regex = (
            self._regex
            or json.loads(read_seen(classifier.folder).origin.get("patients", "[null]"))[0]
        )
        if not regex:
            raise UserError(
                f"--by patient: the run has no {FILE_NAME} that says how the build found patients; "
                f"say it with --patient_regex ({_FOLDERS})"
            )
        return _compiled(regex)

    def _found(self, prediction: Prediction, pattern: re.Pattern[str]) -> str | None:
        """Returns the patient in the path of an image, below its folder of --input or else all."""
        path = prediction.path
        below = (path.relative_to(each) for each in self._folders if path.is_relative_to(each))
        paths = (one_form(str(each)) for each in (*below, path))
        return next(filter(None, (found_in(each, pattern) for each in paths)), None)


def _compiled(regex: str) -> re.Pattern[str]:
    try:
        return compiled("patient_regex", one_form(regex), "patient")
    except ValueError as error:
        raise UserError(str(error)) from None


def _mean(classifier: Classifier, patient: str, images: Sequence[Prediction]) -> Prediction:
    """Returns the answer for a patient, with the path of the image that decided most.

    That is the one with the highest probability of the answer.
    """
    from train.kinds.measures import means_by_place
    from train.results.thresholds import views_above

    read = [each for each in images if each.probabilities is not None]
    if not read:
        return dataclasses.replace(images[0], patient=patient, num_images=0)
    answers = np.stack([each.probabilities for each in read])
    mean = means_by_place(np.zeros(len(read), int), answers)
    task, names = classifier.task, classifier.label_names
    weights = answers[:, mean.argmax()]
    (predicted,) = task.texts(task.chosen(mean), names)
    (above,) = views_above(classifier.thresholds, mean, names)
    return dataclasses.replace(
        read[weights.argmax()],
        patient=patient,
        num_images=len(read),
        probabilities=mean[0],
        predicted=predicted,
        above=above,
    )

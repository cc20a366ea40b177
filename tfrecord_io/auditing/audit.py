"""Audits a dataset: finds leaks between splits, duplicates, contradicting labels and shortcuts.

The audit reads the examples table, the manifest, and the pixels of pairs that look alike. An audit
without findings does not prove that the data is clean; `LIMITS` lists what it cannot see.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pyarrow as pa

from tfrecord_io import manifest
from tfrecord_io.auditing import content_checks, leak_checks
from tfrecord_io.auditing.columns import read_examples
from tfrecord_io.auditing.examined import Examined
from tfrecord_io.auditing.findings import MAX_LISTED, Audit
from tfrecord_io.auditing.twins import ImageReader, Twins, find_twins

# Each yields its findings and adds its numbers to the measures.
_CHECKS = (
    content_checks.check_numbers,
    leak_checks.check_known_patients,
    leak_checks.check_patient_leaks,
    leak_checks.check_patient_labels,
    leak_checks.check_exact,
    leak_checks.check_near,
    content_checks.check_shortcuts,
    content_checks.check_classes,
    content_checks.check_sizes,
    content_checks.check_blank,
    content_checks.check_source,
)

#: What the audit cannot see; every report lists it.
LIMITS = (
    "Patients are known by file names, a table or DICOM tags. One person with two names is not "
    "noticed.",
    "Near duplicates are found if they were saved again, brightened, dimmed or resized. Cropped, "
    "turned and mirrored copies can only be guessed from features, by python -m tfrecord_io audit "
    "FEATURES; heavily edited ones are not looked for.",
    "Near duplicates of one patient in one split under one label are not looked for, because scans "
    "of one eye look alike.",
    "How well facts about the files predict the class is measured with a simple model. A stronger "
    "model may predict more.",
    "The audit does not check whether the labels are medically right.",
)


def audit(directory: str | os.PathLike[str], *, most_listed: int | None = MAX_LISTED) -> Audit:
    """Audits a finished dataset on a local disk, see `Examined`.

    Raises:
        manifest.ManifestError: if the dataset is unfinished or unusable.
        OSError: if a file of the dataset is missing.
    """
    dataset = manifest.Manifest.load(directory)
    directory = Path(directory)
    examples = read_examples(directory / manifest.EXAMPLES_FILE_NAME)
    images = ImageReader.of_folder(directory, dataset)
    same = find_twins(examples, images, dataset.label_kind)
    return audit_examples(examples, same, dataset, most_listed)


def audit_examples(
    examples: pa.Table,
    twins: Twins,
    dataset: manifest.Manifest,
    most_listed: int | None = MAX_LISTED,
) -> Audit:
    """Audits the examples of a dataset, see `Examined` for the arguments."""
    examined = Examined(examples, twins, dataset, most_listed)
    findings = itertools.chain.from_iterable(check(examined) for check in _CHECKS)
    return Audit.of(findings, examined.measures)

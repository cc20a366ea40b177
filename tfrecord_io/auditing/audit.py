"""Audits a dataset: finds leaks between splits, duplicates, contradicting labels and shortcuts.

The audit reads the examples table, the manifest, and the pixels of pairs that look alike. An audit
without findings does not prove that the data is clean; `LIMITS` lists what it cannot see.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from tfrecord_io import manifest
from tfrecord_io.auditing.class_checks import check_classes, check_numbers, check_shortcuts
from tfrecord_io.auditing.columns import CodedColumns, read_examples
from tfrecord_io.auditing.copy_checks import check_exact, check_near
from tfrecord_io.auditing.file_checks import check_blank, check_sizes, check_source
from tfrecord_io.auditing.findings import MAX_LISTED, SEVERITIES, Audit
from tfrecord_io.auditing.patient_checks import (
    check_known_patients,
    check_patient_labels,
    check_patient_leaks,
)
from tfrecord_io.auditing.twins import ImageReader, Twins, find_twins

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
    """Audits a finished dataset on a local disk; `most_listed` is as in `audit_examples`.

    Raises:
        manifest.ManifestError: if the dataset is unfinished or unusable.
        OSError: if a file of the dataset is missing.
    """
    dataset = manifest.Manifest.load(directory)
    directory = Path(directory)
    examples = read_examples(directory / manifest.EXAMPLES_FILE_NAME)
    with ImageReader.of_folder(directory, dataset) as images:
        same = find_twins(examples, images, dataset.label_kind)
        return audit_examples(examples, same, dataset, most_listed)


def audit_examples(
    examples: pa.Table,
    twins: Twins,
    dataset: manifest.Manifest,
    most_listed: int | None = MAX_LISTED,
) -> Audit:
    """Audits the examples of a dataset.

    Args:
        examples: the table that `columns.read_examples` returns.
        twins: the duplicates among these examples, see `find_twins`.
        dataset: the manifest; its audit is not used.
        most_listed: largest number of patients, copies and pairs that a finding lists; None for
            all.
    """
    measures: dict[str, Any] = {"examples": examples.num_rows}
    codes = CodedColumns(examples, dataset, twins.pairs, most_listed)
    # Each check yields its findings and adds its numbers to the measures.
    findings = [
        *check_numbers(dataset, examples, measures),
        *check_known_patients(codes, measures),
        *check_patient_leaks(codes, measures),
        *check_patient_labels(codes, measures),
        *check_exact(examples, codes, twins, measures),
        *check_near(examples, codes, twins, measures),
        *check_shortcuts(examples, codes, measures),
        *check_classes(codes.classes, measures),
        *check_sizes(examples, dataset, measures),
        *check_blank(twins, measures),
        *check_source(dataset),
    ]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return Audit(findings=tuple(findings), measures=measures)

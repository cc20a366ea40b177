"""Looks for patients in several splits or under several labels, and for unknown ones.

Each check yields its findings and adds its numbers to `measures`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc

from tfrecord_io.auditing.columns import CodedColumns
from tfrecord_io.auditing.findings import Finding, many
from tfrecord_io.printing import counted


def check_known_patients(codes: CodedColumns, measures: dict[str, Any]) -> Iterator[Finding]:
    """Yields the number of images whose patient is unknown."""
    sources = dict(codes.groups.sources)
    num_known = sources.pop("patient", 0)
    num_unknown = sum(sources.values())
    names = codes.groups.names
    measures["patients"] = len(names.filter(pc.starts_with(names, "patient:")).unique())
    measures["examples_without_patient"] = num_unknown
    if num_unknown:
        share = f"{num_unknown:,} images do not name" if num_known else "No image names"
        yield Finding(
            code="no_patient",
            severity="warning",
            title=f"{share} a patient",
            detail=f"They are grouped by {' or '.join(sources)}. The audit cannot check whether "
            "their patients are in several splits. If the file names contain the patient, give the "
            "build a pattern with --group_regex.",
            count=num_unknown,
        )


def check_patient_leaks(codes: CodedColumns, measures: dict[str, Any]) -> Iterator[Finding]:
    """Yields the patients, and what stands for unknown ones, with images in several splits."""
    known = codes.group >= 0
    # images[g, s]: number of images of group g in split s.
    images = _table(codes.group[known], codes.split[known], len(codes.names), len(codes.splits))
    leaked = (images > 0).sum(1) > 1
    pairs = _shared_patients(images, codes.splits)
    num_leaked = int(leaked.sum())
    measures["patients_in_several_splits"] = num_leaked
    measures["images_of_leaked_patients"] = int(images[leaked].sum())
    measures["shared_patients"] = pairs
    if num_leaked:
        parts = "; ".join(
            f"{p['splits'][0]} and {p['splits'][1]} share {p['patients']:,}, with "
            f"{p['images'][0]:,} images in {p['splits'][0]} and {p['images'][1]:,} in "
            f"{p['splits'][1]}"
            for p in pairs
        )
        yield Finding(
            code="patient_leak",
            severity="problem",
            title=f"{many(num_leaked, *codes.units)} in more than one split",
            detail=f"{parts[0].upper()}{parts[1:]}. A model can recognise an eye it was "
            "trained on, so results on the other split are too good. Build with --splits "
            "patient to make new splits, or with --leaks drop to keep the given splits and "
            "leave these patients' images out of all but one (test before val before train).",
            count=num_leaked,
            listed=_list_patients(codes, np.flatnonzero(leaked), images[leaked], codes.splits),
        )
    elif known.any() and len(codes.splits) > 1:
        yield Finding(
            code="patient_leak",
            severity="good",
            title=f"No {codes.units[0]} is in more than one split",
            detail=f"{many(len(codes.names), *codes.units)} known.",
        )


def _shared_patients(images: np.ndarray, splits: Sequence[str]) -> list[dict[str, Any]]:
    """Returns a row for each pair of splits that share patients, of `images` [patients, splits]."""
    rows = []
    for a, b in itertools.combinations(range(len(splits)), 2):
        both = (images[:, a] > 0) & (images[:, b] > 0)
        if both.any():
            rows.append(
                {
                    "splits": [splits[a], splits[b]],
                    "patients": int(both.sum()),
                    "images": [int(images[both, a].sum()), int(images[both, b].sum())],
                    "patients_of_each": [int((images[:, s] > 0).sum()) for s in (a, b)],
                }
            )
    return rows


def check_patient_labels(codes: CodedColumns, measures: dict[str, Any]) -> Iterator[Finding]:
    """Yields the patients, or what stands for unknown ones, with images under several labels."""
    known = codes.group >= 0
    # Only patients with several labels get a row in the table, because a table of all patients and
    # a thousand classes would be large.
    pairs_of_labels = np.unique(codes.group[known] * len(codes.labels) + codes.label[known])
    labels_each = np.bincount(pairs_of_labels // len(codes.labels), minlength=len(codes.names))
    several = np.flatnonzero(labels_each > 1)
    measures["patients_under_several_labels"] = len(several)
    if len(several):
        rows = np.searchsorted(several, codes.group)
        theirs = known & np.isin(codes.group, several)
        verb = "has" if len(several) == 1 else "have"
        how = (
            f"in more than one {codes.kind.noun}" if codes.kind.one_hot else "with different labels"
        )
        by_label = _table(rows[theirs], codes.label[theirs], len(several), len(codes.labels))
        yield Finding(
            code="patient_labels",
            severity="note",
            title=f"{counted(len(several), *codes.units)} {verb} images {how}",
            detail=f"Together they have {int(by_label.sum()):,} images. Two eyes may differ "
            "and a disease changes, so this need not be wrong. But all images of a patient "
            "must be in one split, whatever they show, as with --splits patient.",
            count=len(several),
            listed=_list_patients(codes, several, by_label, codes.labels),
        )


def _table(rows: np.ndarray, columns: np.ndarray, num_rows: int, num_columns: int) -> np.ndarray:
    """Returns int64 [num_rows, num_columns], how often each pair occurs."""
    counts = np.bincount(rows * num_columns + columns, minlength=num_rows * num_columns)
    return counts.reshape(num_rows, num_columns)


def _list_patients(
    codes: CodedColumns, patients: np.ndarray, counts: np.ndarray, names: Sequence[str]
) -> tuple[dict[str, Any], ...]:
    """Lists the patients with the most images, and their number of images by `names`."""
    order = np.argsort(-counts.sum(1), kind="stable")[: codes.most_listed]
    used = [i for i in range(len(names)) if counts[order][:, i].any()][:12]
    return tuple(
        {"patient": codes.names[patients[index]], **{names[i]: int(counts[index, i]) for i in used}}
        for index in order.tolist()
    )

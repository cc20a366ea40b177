"""Audits a dataset: finds leaks between splits, duplicates, contradicting labels and shortcuts.

The audit reads the examples table, the manifest, and the pixels of pairs that look alike. An audit
without findings does not prove that the data is clean; `LIMITS` lists what it cannot see.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io import manifest
from tfrecord_io.auditing import near_duplicates, ranges, shortcuts
from tfrecord_io.auditing.columns import encode, read_examples
from tfrecord_io.auditing.twins import ImageReader, Twins, find_twins
from tfrecord_io.label_kinds import NUMBER, RANGES
from tfrecord_io.printing import counted, listed

Severity = Literal["problem", "warning", "note", "good"]
SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "note", "good")

#: What the audit cannot see; every report lists it.
LIMITS = (
    "Patients are known by file names, a table or DICOM tags. One person with two names is not "
    "noticed.",
    "Near duplicates are found if they were saved again, brightened, dimmed or resized. Cropped, "
    "turned and mirrored copies can only be guessed from features, by python -m tfrecord_io audit "
    "FEATURES; heavily edited ones are not looked for.",
    "Near duplicates are looked for only across splits and across labels, because scans of one "
    "eye look alike.",
    "How well side facts predict the class is measured with a simple model. A stronger model may "
    "predict more.",
    "The audit does not check whether the labels are medically right.",
)

#: Largest number of cases that a finding lists.
MAX_LISTED = 20

# Largest number of names in a sentence.
_MOST_NAMES = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing found, or one check passed.

    Attributes:
        code: fixed name of the finding, such as `patient_leak`.
        severity: `problem` (results on this data would be misleading), `warning` (they may be),
            `note` (good to know) or `good` (looked for and not found).
        title: one short sentence with the number.
        detail: what the finding means and what to do.
        count: the number in the title.
        listed: up to `MAX_LISTED` cases, each a mapping of column to value.
    """

    code: str
    severity: Severity
    title: str
    detail: str
    count: int = 0
    listed: tuple[Mapping[str, Any], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
    """The result of an audit.

    Attributes:
        findings: the findings, the worst first.
        measures: the numbers behind the findings, by name.
    """

    findings: tuple[Finding, ...]
    measures: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values, as the manifest keeps them."""
        return {
            "measures": dict(self.measures),
            "findings": [
                {**dataclasses.asdict(finding), "listed": [dict(row) for row in finding.listed]}
                for finding in self.findings
            ],
        }


def audit(directory: str | os.PathLike[str]) -> Audit:
    """Audits a finished dataset on a local disk.

    Args:
        directory: folder of the dataset.

    Raises:
        manifest.ManifestError: if the dataset is unfinished or unusable.
        OSError: if a file of the dataset is missing.
    """
    found = manifest.Manifest.load(directory)
    directory = Path(directory)
    examples = read_examples(directory / manifest.EXAMPLES_FILE_NAME)
    with ImageReader(found.layout, lambda name: (directory / name).open("rb")) as images:
        same = find_twins(ranges.with_ranges(examples, found.label_kind), images)
        return audit_examples(examples, same, found)


def audit_examples(examples: pa.Table, twins: Twins, found: manifest.Manifest) -> Audit:
    """Audits the examples of a dataset.

    Args:
        examples: the table that `columns.read_examples` returns.
        twins: the duplicates among these examples, see `find_twins`; of numbers, among their
            ranges, see `ranges.with_ranges`.
        found: the manifest; its audit is not used.
    """
    measures: dict[str, Any] = {"examples": examples.num_rows}
    codes = _Codes(examples, found)
    # Each check yields its findings and adds its numbers to the measures.
    findings = [
        *_check_numbers(found, examples, measures),
        *_check_known_patients(codes, measures),
        *_check_patient_leaks(codes, measures),
        *_check_patient_labels(codes, measures),
        *_check_exact(examples, codes, twins, measures),
        *_check_near(examples, codes, twins, measures),
        *_check_shortcuts(examples, codes, measures),
        *_check_classes(codes.classes, measures),
        *_check_sizes(examples, found, measures),
        *_check_blank(twins, measures),
        *_check_source(found),
    ]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return Audit(findings=tuple(findings), measures=measures)


class _Codes:
    """Columns of the examples table as integers.

    Numbers count as their ranges, see `ranges.as_classes`.

    Attributes:
        splits: names of the splits.
        kind: what an example's label can be.
        plural: what several of the dataset's labels are called.
        classes: the manifest, with ranges instead of numbers.
        labels: texts of labels; of classes, their names.
        split: int64 [num_examples], index in `splits`.
        label: int64 [num_examples], index in `labels`.
        text: int64 [num_examples], the same for examples of the same label, of numbers too.
        patients: names of the patients.
        patient: int64 [num_examples], index in `patients`, or -1 if unknown.
    """

    def __init__(self, examples: pa.Table, found: manifest.Manifest) -> None:
        self.plural = found.label_kind.plural
        self.text, _ = encode(examples["label"])
        self.classes, examples = ranges.as_classes(found, examples)
        self.splits = list(found.splits)
        self.kind = self.classes.label_kind
        self.labels = self.classes.label_names
        if not self.kind.one_hot:
            self.labels = sorted(pc.unique(examples["label"].cast(pa.string())).to_pylist())
        self.split = _index(examples["split"], self.splits)
        self.label = _index(examples["label"], self.labels)
        self.patient, patients = encode(examples["patient"])
        self.patients = patients.to_pylist()


def _index(column: pa.ChunkedArray, names: Sequence[str]) -> np.ndarray:
    found = pc.index_in(column.cast(pa.string()), pa.array(list(names), pa.string()))
    return found.to_numpy().astype(np.int64)


def _check_numbers(
    found: manifest.Manifest, examples: pa.Table, measures: dict[str, Any]
) -> Iterator[Finding]:
    if found.label_kind is not NUMBER:
        return
    (name,) = found.label_names
    described = ranges.describe(found, examples)
    measures["target"] = {"name": name, "splits": described}
    told = "; ".join(
        f"{split}: mean {d['mean']:.6g}, standard deviation {d['std']:.6g}, from {d['min']:.6g} to "
        f"{d['max']:.6g}"
        for split, d in described.items()
    )
    if described.get("train", {}).get("std") == 0:
        severity: Severity = "problem"
        title = f"All images of train have the same {name}"
        told += ". There is nothing to learn from them."
    else:
        severity, title = "note", f"How {name} is distributed"
        told += "."
    yield Finding(code="target", severity=severity, title=title, detail=told)


def _check_known_patients(codes: _Codes, measures: dict[str, Any]) -> Iterator[Finding]:
    known = codes.patient >= 0
    num_unknown = int((~known).sum())
    measures["patients"] = len(codes.patients)
    measures["examples_without_patient"] = num_unknown
    if num_unknown:
        share = f"{num_unknown:,} images do not name" if known.any() else "No image names"
        yield Finding(
            code="no_patient",
            severity="warning",
            title=f"{share} a patient",
            detail="The audit cannot check whether their patients are in several splits. If "
            "the file names contain the patient, give the build a pattern with --group_regex.",
            count=num_unknown,
        )


def _check_patient_leaks(codes: _Codes, measures: dict[str, Any]) -> Iterator[Finding]:
    known = codes.patient >= 0
    # images[p, s]: number of images of patient p in split s.
    images = _table(
        codes.patient[known], codes.split[known], len(codes.patients), len(codes.splits)
    )
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
            title=f"{_many(num_leaked, 'patient')} in more than one split",
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
            title="No patient is in more than one split",
            detail=f"{len(codes.patients):,} patients are known.",
        )


def _shared_patients(images: np.ndarray, splits: Sequence[str]) -> list[dict[str, Any]]:
    """Returns a row for each pair of splits that share patients.

    Args:
        images: int64 [patients, splits], number of images.
        splits: their names.
    """
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


def _check_patient_labels(codes: _Codes, measures: dict[str, Any]) -> Iterator[Finding]:
    known = codes.patient >= 0
    # Only patients with several labels get a row in the table, because a table of all patients and
    # a thousand classes would be large.
    pairs_of_labels = np.unique(codes.patient[known] * len(codes.labels) + codes.label[known])
    labels_each = np.bincount(pairs_of_labels // len(codes.labels), minlength=len(codes.patients))
    several = np.flatnonzero(labels_each > 1)
    measures["patients_under_several_labels"] = len(several)
    if len(several):
        rows = np.searchsorted(several, codes.patient)
        theirs = known & np.isin(codes.patient, several)
        verb = "has" if len(several) == 1 else "have"
        how = (
            f"in more than one {codes.kind.noun}" if codes.kind.one_hot else "with different labels"
        )
        by_label = _table(rows[theirs], codes.label[theirs], len(several), len(codes.labels))
        yield Finding(
            code="patient_labels",
            severity="note",
            title=f"{counted(len(several), 'patient')} {verb} images {how}",
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
    codes: _Codes, patients: np.ndarray, counts: np.ndarray, names: Sequence[str]
) -> tuple[dict[str, Any], ...]:
    """Lists the patients with the most images, and their number of images by `names`."""
    order = np.argsort(-counts.sum(1), kind="stable")[:MAX_LISTED]
    used = [i for i in range(len(names)) if counts[order][:, i].any()][:12]
    return tuple(
        {
            "patient": codes.patients[patients[index]],
            **{names[i]: int(counts[index, i]) for i in used},
        }
        for index in order.tolist()
    )


def _check_exact(
    examples: pa.Table, codes: _Codes, twins: Twins, measures: dict[str, Any]
) -> Iterator[Finding]:
    groups = list(twins.exact_groups())
    across = [g for g in groups if len(set(codes.split[g].tolist())) > 1]
    within = [g for g in groups if len(set(codes.split[g].tolist())) < len(g)]
    conflicts = [g for g in groups if len(set(codes.text[g].tolist())) > 1]
    measures["duplicate_pictures"] = len(groups)
    measures["duplicate_images"] = sum(len(g) - 1 for g in groups)
    measures["duplicate_pictures_across_splits"] = len(across)
    measures["duplicate_label_conflicts"] = len(conflicts)
    if across:
        yield Finding(
            code="picture_leak",
            severity="problem",
            title=f"{_many(len(across), 'picture')} in more than one split, pixel by pixel",
            detail=f"{sum(map(len, across)):,} images under different names. Build with "
            "--leaks drop to leave them out of the larger split.",
            count=len(across),
            listed=_list_groups(examples, across),
        )
    if conflicts:
        yield Finding(
            code="label_conflict",
            severity="problem",
            title=f"{_many(len(conflicts), 'picture')} under contradicting labels",
            detail=f"The same pixels have different {codes.plural}, so at least one is "
            "wrong. --duplicates drop leaves all of them out.",
            count=len(conflicts),
            listed=_list_groups(examples, conflicts),
        )
    if within:
        extra = sum(len(g) - len(set(codes.split[g].tolist())) for g in within)
        yield Finding(
            code="duplicates",
            severity="warning",
            title=f"{_many(extra, 'image')} in the same split a second time",
            detail=f"{_many(len(within), 'picture')} repeated under other names, and each "
            "repetition counts in every result. --duplicates drop keeps one of each.",
            count=extra,
            listed=_list_groups(examples, within),
        )
    if not groups:
        yield Finding(
            code="duplicates",
            severity="good",
            title="No two images have the same pixels",
            detail=f"All {examples.num_rows:,} stored images differ.",
        )


def _list_groups(examples: pa.Table, groups: Sequence[np.ndarray]) -> tuple[dict[str, Any], ...]:
    rows = []
    for group in groups[:MAX_LISTED]:
        taken = examples.select(["split", "label", "path"]).take(group[:4]).to_pylist()
        files = (
            set(examples["file_xxh3"].take(group).to_pylist())
            if "file_xxh3" in examples.column_names
            else {None}
        )
        same_file = len(files) == 1 and None not in files
        rows.append(
            {
                "images": len(group),
                "splits": ", ".join(sorted({row["split"] for row in taken})),
                "labels": ", ".join(sorted({row["label"] for row in taken})),
                "same file": "yes" if same_file else "no, same pixels",
                "first": taken[0]["path"],
                "again": taken[1]["path"],
            }
        )
    return tuple(rows)


def _check_near(
    examples: pa.Table, codes: _Codes, twins: Twins, measures: dict[str, Any]
) -> Iterator[Finding]:
    if not twins.near_checked:
        # With a single split, none can be across splits.
        measures["near_duplicate_pairs"] = 0 if len(np.unique(codes.split)) < 2 else None
        measures["near_duplicate_label_conflicts"] = None
        reason = (
            f"The stored images are too small. Below {near_duplicates.MIN_SIDE} pixels per side, "
            "different scans look so alike that copies cannot be distinguished from them. Build "
            "with a larger --image_size to have them compared."
            if "perceptual_hash" in examples.column_names
            else "An older release built the dataset without perceptual hashes. Build it again to "
            "have the images compared."
        )
        yield Finding(
            code="near_duplicates",
            severity="note",
            title="Near duplicates were not looked for",
            detail=f"{reason} Copies with exactly the same pixels were looked for.",
        )
        return
    across = [p for p in twins.near if codes.split[p.first] != codes.split[p.second]]
    conflicts = [p for p in twins.near if codes.label[p.first] != codes.label[p.second]]
    measures["near_duplicate_pairs"] = len(across)
    measures["near_duplicate_label_conflicts"] = len(conflicts)
    measures["near_duplicates_unchecked"] = twins.num_unchecked
    measures["near_duplicates_complete"] = twins.complete and not twins.num_unchecked
    if across:
        yield Finding(
            code="near_duplicates",
            severity="problem",
            title=f"{counted(len(across), 'pair')} of near duplicates across splits",
            detail="Each pair is one picture that was saved again, brightened or resized, or "
            "the same place of an eye scanned twice. --leaks drop keeps the one in the more "
            "protected split (test before val before train).",
            count=len(across),
            listed=tuple(list_pairs(examples, across)),
        )
    else:
        yield Finding(
            code="near_duplicates",
            severity="good",
            title="No near duplicates across splits",
            detail="No picture of one split is a re-saved, brightened or resized copy of one "
            f"in another (hashes within {near_duplicates.MAX_DISTANCE} of 255 bits, fine "
            f"detail correlated by {twins.min_similarity:.2f} or more).",
        )
    if conflicts:
        yield Finding(
            code="near_label_conflict",
            severity="warning",
            title=f"{counted(len(conflicts), 'pair')} of near duplicates under different labels",
            detail=f"Nearly the same picture has different {codes.plural}. Look at both.",
            count=len(conflicts),
            listed=tuple(list_pairs(examples, conflicts)),
        )
    if not measures["near_duplicates_complete"]:
        yield Finding(
            code="near_duplicates_unchecked",
            severity="warning",
            title="So many images look alike that not all pairs were compared",
            detail=f"{twins.num_unchecked:,} proposed pairs, the least alike ones, were left "
            "out" + ("." if twins.complete else ", and the search itself stopped early."),
            count=twins.num_unchecked,
        )


def list_pairs(examples: pa.Table, pairs: Sequence[Any]) -> list[dict[str, Any]]:
    """Lists the first pairs with the facts needed to show them side by side.

    Args:
        examples: the examples table.
        pairs: each with `first` and `second`, rows of the table, and `similarity`.
    """
    columns = examples.select(["split", "label", "path", "shard", "row"])
    listed = []
    for pair in pairs[:MAX_LISTED]:
        first, second = columns.take([pair.first, pair.second]).to_pylist()
        similarity = round(pair.similarity, 4)
        listed.append({"first": first, "second": second, "similarity": similarity})
    return listed


def _check_shortcuts(
    examples: pa.Table, codes: _Codes, measures: dict[str, Any]
) -> Iterator[Finding]:
    result, label, names = _measure_shortcuts(examples, codes)
    if result is None:
        return
    measures["shortcuts"] = dataclasses.asdict(result) | ({"label": label} if label else {})
    what = f"label {label}" if label else codes.kind.noun
    ranked = sorted(result.by_signal.items(), key=lambda item: (-item[1], item[0]))
    signals = ", ".join(f"{name} {value:.0%}" for name, value in ranked)
    giveaways = [
        {"fact": name, "value": value, "images": count, "all of them": names[place]}
        for name, value, place, count in result.giveaways
    ]
    text = (
        "A simple model that sees no pixels, only facts about each file such as its size and JPEG "
        f"quality, predicts the right {what} in {result.accuracy:.0%} of the cases (95 % interval "
        f"{result.low:.0%} to {result.high:.0%}; mean over the classes, for patients not used in "
        f"training). Guessing gives {result.chance:.0%}. With a single fact: {signals}."
    )
    if not result.reliable:
        severity: Severity = "note"
        title = f"Too few patients to say whether side facts reveal the {what}"
        text += f" One class has {result.min_groups} patients; {shortcuts.MIN_GROUPS} are needed."
    elif result.low - result.chance > 0.25:
        severity, title = "problem", f"Side facts of the files reveal the {what}"
    elif result.low - result.chance > 0.05:
        severity, title = "warning", f"Side facts of the files partly reveal the {what}"
    else:
        severity, title = "good", f"Side facts of the files hardly reveal the {what}"
    if giveaways and severity == "good":
        severity, title = (
            "warning",
            f"Some side facts of the files occur in one {codes.kind.noun} only",
        )
    if giveaways:
        text += (
            f" All {giveaways[0]['images']:,} images with {giveaways[0]['fact']} "
            f"{giveaways[0]['value']} are {giveaways[0]['all of them']}."
        )
    if severity in ("problem", "warning"):
        text += (
            " A network may learn these facts instead of the disease. Compare its results within "
            "one image size and one JPEG quality."
        )
    yield Finding(
        code="shortcuts",
        severity=severity,
        title=title,
        detail=text,
        count=len(giveaways),
        listed=tuple(giveaways[:MAX_LISTED]),
    )


def _measure_shortcuts(
    examples: pa.Table, codes: _Codes
) -> tuple[shortcuts.Shortcuts | None, str | None, Sequence[str]]:
    """Returns how well side facts predict the class, or the label that they predict best.

    Returns:
        the result; the name of that label, None for classes; and what the result's classes are.
    """
    if codes.kind.one_hot:
        return shortcuts.measure(examples, codes.label), None, codes.labels
    names = codes.classes.label_names
    has = codes.kind.has(codes.labels, names)[codes.label].astype(np.int64)
    found = [
        (result, name, (f"without {name}", f"with {name}"))
        for name, column in zip(names, has.T, strict=True)
        if (result := shortcuts.measure(examples, column)) is not None
    ]
    # A label on few patients can be predicted by chance.
    by_gain = sorted(found, key=lambda entry: (entry[0].reliable, entry[0].low), reverse=True)
    return by_gain[0] if by_gain else (None, None, ())


def _check_classes(found: manifest.Manifest, measures: dict[str, Any]) -> Iterator[Finding]:
    kind = found.label_kind
    counts = {name: np.array(split.label_counts) for name, split in found.splits.items()}
    totals = sum(counts.values(), np.zeros(found.num_classes, np.int64))
    measures["class_ratio"] = _ratio(totals)
    for name, values in counts.items():
        missing = [found.label_names[i] for i in np.flatnonzero(values == 0)]
        if missing:
            yield Finding(
                code="class_missing",
                severity="warning",
                title=f"{_many(len(missing), kind.noun, kind.plural)} missing from {name}",
                detail=f"{listed(missing, _MOST_NAMES)}: this split cannot be used to learn or "
                "evaluate them.",
                count=len(missing),
            )
    # Ranges are made to be of equal size, and differ only if many numbers are the same.
    if _ratio(totals) > 3 and kind is not RANGES:
        most, least = found.label_names[totals.argmax()], found.label_names[totals.argmin()]
        yield Finding(
            code="class_balance",
            severity="note",
            title=f"The {kind.plural} differ in size by a factor of {_ratio(totals):.1f}",
            detail=f"{most} has {totals.max():,} images, {least} {totals.min():,}. Weight the "
            f"{kind.plural} in training, and judge results by {kind.noun}.",
        )
    # Ranges are counted without augmented copies.
    shares = {
        name: values / max(values.sum() if kind.one_hot else found.splits[name].num_examples, 1)
        for name, values in counts.items()
    }
    told = "the mean error" if kind is RANGES else "plain accuracy"
    if "train" in shares:
        for name, share in shares.items():
            gap = np.abs(share - shares["train"])
            if name != "train" and gap.max() > 0.10:
                label = int(gap.argmax())
                yield Finding(
                    code="class_shift",
                    severity="note",
                    title=f"{name} has a different mix of {kind.plural} than train",
                    detail=f"{found.label_names[label]} is {share[label]:.0%} of {name} and "
                    f"{shares['train'][label]:.0%} of train, so {told} on {name} says "
                    "little about data mixed like train.",
                )


def _ratio(counts: np.ndarray) -> float:
    return float(counts.max() / max(counts.min(), 1)) if len(counts) else 1.0


def _check_sizes(
    examples: pa.Table, found: manifest.Manifest, measures: dict[str, Any]
) -> Iterator[Finding]:
    if not {"width", "height"} <= set(examples.column_names) or not examples.num_rows:
        return
    width, height = (examples[name].to_numpy().astype(np.int64) for name in ("width", "height"))
    sizes = Counter(zip(width.tolist(), height.tolist(), strict=True))
    measures["sizes"] = [
        {"width": w, "height": h, "images": count} for (w, h), count in sizes.most_common(12)
    ]
    (usual, _), *_ = sizes.most_common(1)
    ratios = np.maximum(_factor(width, usual[0]), _factor(height, usual[1]))
    outliers = np.flatnonzero(ratios >= 2)
    measures["size_outliers"] = len(outliers)
    if len(outliers):
        yield Finding(
            code="size_outliers",
            severity="note",
            title=f"{_many(len(outliers), 'image')} far larger or smaller than usual",
            detail=f"The usual size is {usual[0]}×{usual[1]} pixels. These images have at "
            "least twice or at most half as many pixels in one direction. All are resized to "
            f"{found.image_shape[1]}×{found.image_shape[0]}, so their proportions change.",
            count=len(outliers),
            listed=tuple(
                {"width": w, "height": h, "images": n}
                for (w, h), n in sizes.most_common()
                if max(_factor(w, usual[0]), _factor(h, usual[1])) >= 2
            )[:MAX_LISTED],
        )
    stored_height, stored_width, _ = found.image_shape
    small = int(((width < stored_width) | (height < stored_height)).sum())
    measures["enlarged_images"] = small
    if small:
        yield Finding(
            code="enlarged",
            severity="note",
            title=f"{_many(small, 'image')} smaller than the stored size",
            detail=f"They were enlarged to {stored_width}×{stored_height} and are blurred.",
            count=small,
        )


def _factor(values: np.ndarray | int, usual: int) -> Any:
    return np.maximum(np.divide(values, usual), np.divide(usual, np.maximum(values, 1)))


def _check_blank(twins: Twins, measures: dict[str, Any]) -> Iterator[Finding]:
    measures["blank_images"] = twins.num_blank
    if twins.num_blank:
        yield Finding(
            code="blank",
            severity="warning",
            title=f"{_many(twins.num_blank, 'image')} of a single colour",
            detail="They show nothing.",
            count=twins.num_blank,
        )


def _check_source(found: manifest.Manifest) -> Iterator[Finding]:
    copies = found.counts.get("copies", 0)
    if copies:
        yield Finding(
            code="source_copies",
            severity="note",
            title=f"{_many(copies, 'file')} in the source a second time",
            detail="A second folder tree in the source repeats these files. The build "
            "recognised them and used each once.",
            count=copies,
        )
    rejects = sum(found.rejects.values())
    if rejects:
        yield Finding(
            code="rejects",
            severity="note",
            title=f"{_many(rejects, 'image')} rejected",
            detail=f"They could not be used ({_reasons(found.rejects)}); "
            f"{manifest.REJECTS_FILE_NAME} lists them.",
            count=rejects,
        )
    dropped = found.counts.get("dropped", {})
    if dropped:
        yield Finding(
            code="dropped",
            severity="note",
            title=f"{_many(sum(dropped.values()), 'image')} left out by a policy",
            detail=f"{_reasons(dropped)}; {manifest.DROPPED_FILE_NAME} lists them.",
            count=sum(dropped.values()),
        )


def _reasons(counts: Mapping[str, int]) -> str:
    return listed([f"{count:,} {name}" for name, count in counts.items()], _MOST_NAMES)


def _many(count: int, noun: str, plural: str | None = None) -> str:
    """Returns a phrase such as `1 patient is` or `3 patients are`."""
    return f"{counted(count, noun, plural)} {'is' if count == 1 else 'are'}"


def near_search_gap(num_pairs: int | None, measures: Mapping[str, Any]) -> str | None:
    """Returns why a number of near duplicates is incomplete, or None if it is complete.

    Args:
        num_pairs: one of the measures that count near duplicates.
        measures: all measures of the same audit.
    """
    if num_pairs is None:
        return "near duplicates were not looked for; the audit's findings say why"
    if not measures.get("near_duplicates_complete", True):
        return "so many images look alike that not all pairs were compared"
    return None

"""Checks how the labels are distributed, and what gives them away besides the pixels.

Each check yields its findings and adds its numbers to `measures`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tfrecord_io import manifest, shapes
from tfrecord_io.auditing import ranges, shortcuts
from tfrecord_io.auditing.columns import CodedColumns
from tfrecord_io.auditing.findings import MAX_LISTED, MOST_NAMES, Finding, Severity, many
from tfrecord_io.printing import listed


def check_numbers(
    dataset: manifest.Manifest, examples: pa.Table, measures: dict[str, Any]
) -> Iterator[Finding]:
    """Yields how the numbers of a dataset of numbers are distributed in its splits."""
    if not dataset.label_kind.is_number:
        return
    (name,) = dataset.label_names
    described = ranges.describe(dataset, examples)
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


def check_shortcuts(
    examples: pa.Table, codes: CodedColumns, measures: dict[str, Any]
) -> Iterator[Finding]:
    """Yields how well facts about the files, without their pixels, predict the class."""
    examples = shapes.with_padding(codes.classes, examples)
    result, label, names = _measure_shortcuts(examples, codes)
    if result is None:
        return
    measures["shortcuts"] = dataclasses.asdict(result) | ({"label": label} if label else {})
    what, units = f"label {label}" if label else codes.kind.noun, codes.joined.units
    ranked = sorted(result.by_signal.items(), key=lambda item: (-item[1], item[0]))
    signals = ", ".join(f"{name} {value:.0%}" for name, value in ranked)
    giveaways = [
        {"fact": name, "value": value, "images": count, "all of them": names[place]}
        for name, value, place, count in result.giveaways
    ]
    text = (
        "A simple model that sees no pixels, only facts about each file such as its size and JPEG "
        f"quality, predicts the right {what} in {result.accuracy:.0%} of the cases (95 % interval "
        f"{result.low:.0%} to {result.high:.0%}; mean over the classes, for {units} not used in "
        f"training). Guessing gives {result.chance:.0%}. With a single fact: {signals}."
    )
    if not result.reliable:
        severity: Severity = "note"
        title = f"Too few {units} to say whether facts about the files predict the {what}"
        text += f" One class has {result.min_groups} {units}; {shortcuts.MIN_GROUPS} are needed."
    elif result.low - result.chance > 0.25:
        severity, title = "problem", f"Facts about the files predict the {what}"
    elif result.low - result.chance > 0.05:
        severity, title = "warning", f"Facts about the files partly predict the {what}"
    else:
        severity, title = "good", f"Facts about the files hardly predict the {what}"
    if giveaways and severity == "good":
        severity, title = (
            "warning",
            f"Some facts about the files occur in one {codes.kind.noun} only",
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
    examples: pa.Table, codes: CodedColumns
) -> tuple[shortcuts.Shortcuts | None, str | None, Sequence[str]]:
    """Returns how well side facts predict the class, or the label that they predict best.

    Returns:
        the result; the name of that label, None for classes; and what the result's classes are.
    """
    if codes.kind.one_hot:
        return shortcuts.measure(examples, codes.label, codes.joined), None, codes.labels
    names = codes.classes.label_names
    has = codes.kind.has(codes.labels, names)[codes.label].astype(np.int64)
    measured = [
        (result, name, (f"without {name}", f"with {name}"))
        for name, column in zip(names, has.T, strict=True)
        if (result := shortcuts.measure(examples, column, codes.joined)) is not None
    ]
    # A label on few patients can be predicted by chance.
    by_gain = sorted(measured, key=lambda entry: (entry[0].reliable, entry[0].low), reverse=True)
    return by_gain[0] if by_gain else (None, None, ())


def check_classes(dataset: manifest.Manifest, measures: dict[str, Any]) -> Iterator[Finding]:
    """Yields missing classes (or ranges), and those that differ in size or between splits."""
    kind = dataset.label_kind
    counts = {name: np.array(split.label_counts) for name, split in dataset.splits.items()}
    totals = sum(counts.values(), np.zeros(dataset.num_classes, np.int64))
    measures["class_ratio"] = _ratio(totals)
    for name, values in counts.items():
        missing = [dataset.label_names[i] for i in np.flatnonzero(values == 0)]
        if missing:
            yield Finding(
                code="class_missing",
                severity="warning",
                title=f"{many(len(missing), kind.noun, kind.plural)} missing from {name}",
                detail=f"{listed(missing, MOST_NAMES)}: this split cannot be used to learn or "
                "evaluate them.",
                count=len(missing),
            )
    # Ranges are made to be of equal size, and differ only if many numbers are the same.
    if _ratio(totals) > 3 and kind != ranges.RANGES:
        most, least = dataset.label_names[totals.argmax()], dataset.label_names[totals.argmin()]
        yield Finding(
            code="class_balance",
            severity="note",
            title=f"The {kind.plural} differ in size by a factor of {_ratio(totals):.1f}",
            detail=f"{most} has {totals.max():,} images, {least} {totals.min():,}. Weight the "
            f"{kind.plural} in training, and judge results by {kind.noun}.",
        )
    # Ranges are counted without augmented copies.
    shares = {
        name: values / max(values.sum() if kind.one_hot else dataset.splits[name].num_examples, 1)
        for name, values in counts.items()
    }
    told = "the mean error" if kind == ranges.RANGES else "plain accuracy"
    if "train" in shares:
        for name, share in shares.items():
            gap = np.abs(share - shares["train"])
            if name != "train" and gap.max() > 0.10:
                label = int(gap.argmax())
                yield Finding(
                    code="class_shift",
                    severity="note",
                    title=f"{name} has a different mix of {kind.plural} than train",
                    detail=f"{dataset.label_names[label]} is {share[label]:.0%} of {name} and "
                    f"{shares['train'][label]:.0%} of train, so {told} on {name} says "
                    "little about data mixed like train.",
                )


def _ratio(counts: np.ndarray) -> float:
    return float(counts.max() / max(counts.min(), 1)) if len(counts) else 1.0

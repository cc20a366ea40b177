"""Checks labels, sizes and blank images, and what gives the labels away besides the pixels.

Each check yields its findings and adds its numbers to `Examined.measures`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfrecord_io import manifest, shapes
from tfrecord_io.auditing import shortcuts
from tfrecord_io.auditing.columns import RANGES, numbers_of
from tfrecord_io.auditing.examined import Examined
from tfrecord_io.auditing.findings import MAX_LISTED, Finding, good, many, note, problem, warning
from tfrecord_io.printing import listed

_MOST_NAMES = 12  # in a sentence


def check_numbers(examined: Examined) -> Iterator[Finding]:
    """Yields how the numbers of a dataset of numbers are distributed in its splits."""
    if not examined.dataset.label_kind.is_number:
        return
    (name,) = examined.dataset.label_names
    values = numbers_of(examined.examples)
    described: dict[str, dict[str, Any]] = {}
    told: list[str] = []
    for place, split in enumerate(examined.splits):
        members = values[examined.split == place]
        if len(members):
            mean, std = float(members.mean()), float(members.std())
            low, *quartiles, high = np.quantile(members, (0, 0.25, 0.5, 0.75, 1)).tolist()
            described[split] = {
                "images": len(members), "mean": mean, "std": std, "min": low,
                "quartiles": quartiles, "max": high,
            }  # fmt: skip
            told.append(
                f"{split}: mean {mean:.6g}, standard deviation {std:.6g}, from {low:.6g} to "
                f"{high:.6g}"
            )
    examined.measures["target"] = {"name": name, "splits": described}
    detail = "; ".join(told) + "."
    if described.get("train", {}).get("std") == 0:
        detail += " There is nothing to learn from them."
        yield problem("target", f"All images of train have the same {name}", detail)
    else:
        yield note("target", f"How {name} is distributed", detail)


def check_shortcuts(examined: Examined) -> Iterator[Finding]:
    """Yields how well facts about the files, without their pixels, predict the class."""
    result, label, names = _measure_shortcuts(examined)
    if result is None:
        return
    measured = dataclasses.asdict(result)
    examined.measures["shortcuts"] = measured | ({"label": label} if label else {})
    noun, units = examined.kind.noun, examined.joined.units
    what = f"label {label}" if label else noun
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
    gain = result.low - result.chance
    if not result.reliable:
        found = note
        title = f"Too few {units} to say whether facts about the files predict the {what}"
        text += f" One class has {result.min_groups} {units}; {shortcuts.MIN_GROUPS} are needed."
    elif gain > 0.25:
        found, title = problem, f"Facts about the files predict the {what}"
    elif gain > 0.05:
        found, title = warning, f"Facts about the files partly predict the {what}"
    elif giveaways:
        found, title = warning, f"Some facts about the files occur in one {noun} only"
    else:
        found, title = good, f"Facts about the files hardly predict the {what}"
    if giveaways:
        text += " All {images:,} images with {fact} {value} are {0}.".format(
            giveaways[0]["all of them"], **giveaways[0]
        )
    if found in (problem, warning):
        text += (
            " A network may learn these facts instead of the disease. Compare its results within "
            "one image size and one JPEG quality."
        )
    yield found("shortcuts", title, text, len(giveaways), tuple(giveaways[:MAX_LISTED]))


def _measure_shortcuts(
    examined: Examined,
) -> tuple[shortcuts.Shortcuts | None, str | None, Sequence[str]]:
    """Returns how well side facts predict the class, or the label that they predict best.

    Returns:
        the result; the name of that label, None for classes; and what the result's classes are.
    """
    examples = shapes.with_padding(examined.dataset, examined.examples)
    if examined.kind.one_hot:
        result = shortcuts.measure(examples, examined.label, examined.joined)
        return result, None, examined.labels
    names = examined.dataset.label_names
    has = examined.kind.has(examined.labels, names)[examined.label].astype(np.int64)
    measured = [
        (result, name, (f"without {name}", f"with {name}"))
        for name, column in zip(names, has.T, strict=True)
        if (result := shortcuts.measure(examples, column, examined.joined)) is not None
    ]
    # A label on few patients can be predicted by chance.
    by_gain = sorted(measured, key=lambda entry: (entry[0].reliable, entry[0].low), reverse=True)
    return by_gain[0] if by_gain else (None, None, ())


def check_classes(examined: Examined) -> Iterator[Finding]:
    """Yields missing classes (or ranges), and those that differ in size or between splits."""
    dataset, kind = examined.classes, examined.kind
    names, is_range = dataset.label_names, kind == RANGES
    counts = {name: np.array(split.label_counts) for name, split in dataset.splits.items()}
    totals = sum(counts.values(), np.zeros(len(names), np.int64))
    ratio = float(totals.max() / max(totals.min(), 1)) if len(totals) else 1.0
    examined.measures["class_ratio"] = ratio
    for name, values in counts.items():
        missing = [names[place] for place in np.flatnonzero(values == 0)]
        if missing:
            yield warning(
                "class_missing",
                f"{many(len(missing), kind.noun, kind.plural)} missing from {name}",
                f"{listed(missing, _MOST_NAMES)}: this split cannot be used to learn or "
                "evaluate them.",
                len(missing),
            )
    # Ranges are made to be of equal size, and differ only if many numbers are the same.
    if ratio > 3 and not is_range:
        most, least = names[totals.argmax()], names[totals.argmin()]
        yield note(
            "class_balance",
            f"The {kind.plural} differ in size by a factor of {ratio:.1f}",
            f"{most} has {totals.max():,} images, {least} {totals.min():,}. Weight the "
            f"{kind.plural} in training, and judge results by {kind.noun}.",
        )
    # Ranges are counted without augmented copies.
    shares = {
        name: values / max(values.sum() if kind.one_hot else dataset.splits[name].num_examples, 1)
        for name, values in counts.items()
    }
    told = "the mean error" if is_range else "plain accuracy"
    for name, share in shares.items():
        train = shares.get("train", share)
        place = int(np.abs(share - train).argmax())
        if abs(share[place] - train[place]) > 0.10:
            yield note(
                "class_shift",
                f"{name} has a different mix of {kind.plural} than train",
                f"{names[place]} is {share[place]:.0%} of {name} and {train[place]:.0%} of train, "
                f"so {told} on {name} says little about data mixed like train.",
            )


def check_sizes(examined: Examined) -> Iterator[Finding]:
    """Yields images of unusual size, and those smaller than they are stored."""
    examples, dataset = examined.examples, examined.dataset
    if not {"width", "height"} <= set(examples.column_names) or not examples.num_rows:
        return
    sizes = Counter(zip(examples["width"].to_pylist(), examples["height"].to_pylist(), strict=True))
    listed_sizes = [{"width": w, "height": h, "images": n} for (w, h), n in sizes.most_common()]
    examined.measures["sizes"] = listed_sizes[:12]
    if "shape" in examples.column_names:
        of_images = examples["shape"].to_numpy()
        examined.measures["shapes"] = {
            name: shapes.distinct(of_images[examined.split == place].tolist())
            for place, name in enumerate(examined.splits)
        }
    (usual, _), *_ = sizes.most_common(1)
    stored_height, stored_width, _ = dataset.image_shape
    far = [
        row
        for row in listed_sizes
        if max(_factor(row["width"], usual[0]), _factor(row["height"], usual[1])) >= 2
    ]
    num_far = sum(row["images"] for row in far)
    examined.measures["size_outliers"] = num_far
    if far:
        yield note(
            "size_outliers",
            f"{many(num_far, 'image')} far larger or smaller than usual",
            f"The usual size is {usual[0]}×{usual[1]} pixels. These images have at "
            "least twice or at most half as many pixels in one direction. All are resized to "
            f"{stored_width}×{stored_height}"
            f"{'' if dataset.is_padded else ', so their proportions change'}.",
            num_far,
            tuple(far[:MAX_LISTED]),
        )
    small = sum(n for (w, h), n in sizes.items() if w < stored_width or h < stored_height)
    examined.measures["enlarged_images"] = small
    if small:
        yield note(
            "enlarged",
            f"{many(small, 'image')} smaller than the stored size",
            f"They were enlarged to {stored_width}×{stored_height} and are blurred.",
            small,
        )


def _factor(side: int, usual: int) -> float:
    return max(side / usual, usual / max(side, 1))


def check_blank(examined: Examined) -> Iterator[Finding]:
    """Yields the number of images of a single colour."""
    is_blank = examined.twins.is_blank
    num_blank = 0 if is_blank is None else int(is_blank.sum())
    examined.measures["blank_images"] = num_blank
    if num_blank:
        title = f"{many(num_blank, 'image')} of a single colour"
        yield warning("blank", title, "They show nothing.", num_blank)


def check_source(examined: Examined) -> Iterator[Finding]:
    """Yields how many files are second copies, were rejected, or were left out by a policy."""
    counts, rejects = examined.dataset.counts, examined.dataset.rejects
    if copies := counts.get("copies", 0):
        yield note(
            "source_copies",
            f"{many(copies, 'file')} in the source a second time",
            "A second folder tree in the source repeats these files. The build "
            "recognised them and used each once.",
            copies,
        )
    if count := sum(rejects.values()):
        yield note(
            "rejects",
            f"{many(count, 'image')} rejected",
            f"They could not be used ({_reasons(rejects)}); "
            f"{manifest.REJECTS_FILE_NAME} lists them.",
            count,
        )
    dropped = counts.get("dropped", {})
    if count := sum(dropped.values()):
        title = f"{many(count, 'image')} left out by a policy"
        detail = f"{_reasons(dropped)}; {manifest.DROPPED_FILE_NAME} lists them."
        yield note("dropped", title, detail, count)


def _reasons(counts: Mapping[str, int]) -> str:
    return listed([f"{count:,} {name}" for name, count in counts.items()], _MOST_NAMES)

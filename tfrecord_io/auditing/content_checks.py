"""Checks labels, sizes, blank images and what became of the files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from tfrecord_io.auditing.examined import Examined
from tfrecord_io.auditing.findings import MAX_LISTED, Finding, note, problem, warning
from tfrecord_io.format import shapes
from tfrecord_io.format.manifest import DROPPED_FILE_NAME, REJECTS_FILE_NAME
from tfrecord_io.terminal.printing import listed, many

_MOST_NAMES = 12  # in a sentence

# Grey levels from black or white, of 255.
_NEARLY = 4

# More classes than this may be patients, dates or devices.
_MANY_CLASSES = 100


def check_classes(examined: Examined) -> Iterator[Finding]:
    """Yields missing classes, and those that differ in size or between splits."""
    dataset, kind = examined.classes, examined.kind
    names = dataset.label_names
    counts = {name: np.array(split.label_counts) for name, split in dataset.splits.items()}
    totals = sum(counts.values(), np.zeros(len(names), np.int64))
    ratio = float(totals.max() / max(totals.min(), 1)) if len(totals) else 1.0
    examined.measures["class_ratio"] = ratio
    if examined.dataset.label_kind.one_hot and len(names) == 1:
        detail = "Every result would be perfect. --layout, --label_regex or --labels name classes."
        yield problem("one_class", f"All images are of one {kind.noun}, {names[0]}", detail, 1)
    if examined.dataset.label_kind.one_hot and len(names) > _MANY_CLASSES:
        title = f"There are {len(names):,} {kind.plural}"
        detail = f"Such as {listed(names, 3)}. If these are patients, dates or devices, name the "
        detail += "level of the class with --layout, or give a table of --labels."
        yield warning("many_classes", title, detail, len(names))
    for name, values in counts.items():
        missing = [names[place] for place in np.flatnonzero(values == 0)]
        if missing:
            title = f"{many(len(missing), kind.noun, kind.plural)} missing from {name}"
            detail = f"{listed(missing, _MOST_NAMES)}: this split can neither teach nor test them."
            yield warning("class_missing", title, detail, len(missing))
    if ratio > 3:
        most, least = names[totals.argmax()], names[totals.argmin()]
        title = f"The {kind.plural} differ in size by a factor of {ratio:.1f}"
        detail = f"{most} has {totals.max():,} images, {least} {totals.min():,}. The trainer "
        detail += f"weights them by default; judge results by {kind.noun}."
        yield note("class_balance", title, detail)
    sizes = np.maximum(np.bincount(examined.split, minlength=len(counts)), 1)
    shares = dict(zip(counts, map(np.divide, counts.values(), sizes), strict=True))
    for name, share in shares.items():
        train = shares.get("train", share)
        place = int(np.abs(share - train).argmax())
        if abs(share[place] - train[place]) > 0.10:
            title = f"{name} has a different mix of {kind.plural} than train"
            detail = f"{names[place]} is {share[place]:.0%} of {name} and {train[place]:.0%} of "
            detail += f"train, so plain accuracy on {name} says little about data mixed like train."
            yield note("class_shift", title, detail)


def check_sizes(examined: Examined) -> Iterator[Finding]:
    """Yields images of unusual size, and those smaller than they are stored."""
    examples, dataset = examined.examples, examined.dataset
    sizes = Counter(zip(examples["width"].to_pylist(), examples["height"].to_pylist(), strict=True))
    listed_sizes = [{"width": w, "height": h, "images": n} for (w, h), n in sizes.most_common()]
    examined.measures["sizes"] = listed_sizes[:12]
    of_images = examples["shape"].to_numpy()
    examined.measures["shapes"] = {
        name: shapes.distinct(of_images[examined.split == place].tolist())
        for place, name in enumerate(examined.splits)
    }
    usual, (stored_height, stored_width, _) = listed_sizes[0], dataset.image_shape
    far = [
        row
        for row in listed_sizes
        if any(not usual[s] / 2 < row[s] < 2 * usual[s] for s in ("width", "height"))
    ]
    num_far = sum(row["images"] for row in far)
    examined.measures["size_outliers"] = num_far
    if far:
        title = f"{many(num_far, 'image')} far larger or smaller than usual"
        change = "" if dataset.is_padded else ", which changes their proportions"
        detail = (
            f"The usual size is {usual['width']}×{usual['height']} pixels; one side of these has "
            f"at least twice or at most half as many. All become {stored_width}×{stored_height}"
            f"{change}."
        )
        yield note("size_outliers", title, detail, num_far, tuple(far[:MAX_LISTED]))
    small = sum(n for (w, h), n in sizes.items() if w < stored_width or h < stored_height)
    examined.measures["enlarged_images"] = small
    if small:
        title = f"{many(small, 'image')} smaller than the stored size"
        detail = f"They were enlarged to {stored_width}×{stored_height} and are blurred."
        yield note("enlarged", title, detail, small)


def check_blank(examined: Examined) -> Iterator[Finding]:
    """Yields the images of a single colour, and the classes in which nearly all pixels have one."""
    num_blank = int(examined.twins.is_blank.sum())
    examined.measures["blank_images"] = num_blank
    if num_blank:
        title = f"{many(num_blank, 'image')} of a single colour"
        yield warning("blank", title, "They show nothing.", num_blank)
    has_level = "brightness" in examined.examples.column_names
    brightness = examined.examples["brightness"].to_numpy() if has_level else np.empty(0)
    for place, name in enumerate(examined.labels if has_level else ()):
        members = brightness[examined.label == place]
        level = float(np.median(members)) if len(members) else 128.0
        if min(level, 255 - level) < _NEARLY:
            colour = "black" if level < 128 else "white"
            title = f"Half of the images of {name} are nearly {colour}"
            detail = f"Their mean is {level:.1f} of 255 or {'less' if level < 128 else 'more'}: of "
            detail += "DICOM, --window may show more of them; look at the pictures on the page."
            yield warning("extreme_levels", title, detail, len(members))


def check_source(examined: Examined) -> Iterator[Finding]:
    """Yields how many files are second copies, were rejected, or were left out by a policy."""
    counts, rejects = examined.dataset.counts, examined.dataset.rejects
    if copies := counts.get("copies", 0):
        title = f"{many(copies, 'file')} in the source a second time"
        detail = "A second folder tree repeats these files. The build used each once."
        yield note("source_copies", title, detail, copies)
    if count := sum(rejects.values()):
        detail = f"They could not be used ({_reasons(rejects)}); {REJECTS_FILE_NAME} lists them."
        yield note("rejects", f"{many(count, 'image')} rejected", detail, count)
    dropped = counts.get("dropped", {})
    if count := sum(dropped.values()):
        title = f"{many(count, 'image')} left out by a policy"
        detail = f"{_reasons(dropped)}; {DROPPED_FILE_NAME} lists them."
        yield note("dropped", title, detail, count)


def _reasons(counts: Mapping[str, int]) -> str:
    return listed([f"{count:,} {name}" for name, count in counts.items()], _MOST_NAMES)

"""The dataset's card: one HTML file that needs no network and no script."""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from pipelines.listing.refs import RejectedFile
from tfrecord_io.auditing import shortcuts, twins
from tfrecord_io.auditing.audit import LIMITS
from tfrecord_io.auditing.findings import MAX_LISTED, SEVERITIES, Audit
from tfrecord_io.auditing.twins import ImageReader
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.format import shapes
from tfrecord_io.format.examples import as_classes, numbers_of
from tfrecord_io.format.manifest import Manifest
from tfrecord_io.pages.charts import NUM_COLOURS, Axis, Bar, Bars, Chart, Series, steps
from tfrecord_io.pages.page import environment
from tfrecord_io.pages.pictures import data_url
from tfrecord_io.terminal.printing import counted

# Limits that keep the page within a few megabytes for any dataset.
_MAX_CLASSES = 24
_MAX_PICTURES = 48
_PICTURE_SIDE = 512
_CORNERS_SIDE = 224
_MAX_PAIRS = 12
_MAX_CORNERS = 24
_MAX_FILES = 50
_MAX_VALUES = 8

# With more classes than this, the charts of class sizes would be unreadable and are left out.
_MAX_BARS = 40

_NUM_BINS = 32

# The bars of `images_of_patients`, and the smallest number of images of each.
_PATIENT_BARS = ["1", "2", "3", "4", "5–9", "10–19", "20–49", "50–99", "100+"]
_PATIENT_EDGES = [1, 2, 3, 4, 5, 10, 20, 50, 100, np.inf]


def render(
    dataset: Manifest,
    audit: Audit,
    examples: pa.Table,
    images: ImageReader,
    rejects: Sequence[RejectedFile],
    dropped: pa.Table,
) -> str:
    """Returns the card as HTML, from the manifest as it will be written and its audit.

    `examples` is what `examples.audited` returns, and `dropped` are the images that a policy
    left out, a table of `splits.DROPPED_SCHEMA`.
    """
    severities = collections.Counter(finding.severity for finding in audit.findings)
    labels = dataset.label_kind.describe(dataset.label_names)
    of_labels = numbers(dataset, examples)
    # From here on the groups that are compared are ranges, if the labels are numbers.
    dataset, examples = as_classes(dataset, examples)
    of_splits = collections.Counter(examples["split"].to_pylist())
    sizes = {name: of_splits[name] for name in dataset.splits}
    template = environment(Path(__file__).parent).get_template("card.html.jinja")
    return template.render(
        dataset=dataset,
        sizes=sizes,
        num_variants=dataset.num_examples - examples.num_rows,
        audit=audit,
        severities={name: severities[name] for name in SEVERITIES},
        limits=LIMITS,
        max_listed=MAX_LISTED,
        labels=labels,
        shapes=shapes.describe(dataset),
        counted=counted,
        charts_of_classes=[
            *(of_labels or classes_of_splits(dataset, sizes)),
            *images_of_patients(examples),
        ],
        charts_of_side_facts=[
            *side_facts_of_classes(audit.measures.get("shortcuts")),
            *brightness(dataset, examples),
        ],
        facts=_side_facts(dataset, examples),
        classes=_contact_sheets(dataset, examples, images),
        num_more_classes=max(dataset.num_classes - _MAX_CLASSES, 0),
        corners=_corners_of_devices(dataset, examples, images) if dataset.has_codes else [],
        pairs=functools.partial(twins.pairs, images=images, most=_MAX_PAIRS),
        rejects=[(r.source_path, r.reason, r.detail) for r in rejects[:_MAX_FILES]],
        num_rejects=len(rejects),
        dropped=[tuple(row.values()) for row in dropped.slice(0, _MAX_FILES).to_pylist()],
        num_dropped=dropped.num_rows,
    )


def _side_facts(dataset: Manifest, examples: pa.Table) -> list[dict[str, Any]]:
    """Returns of each fact about the files the number and share of the images of each class.

    The rarest values of a fact are shown as one.
    """
    if dataset.num_classes > _MAX_CLASSES:
        return []
    has = dataset.label_kind.has(examples["label"].to_pylist(), dataset.label_names)
    totals, facts = np.maximum(has.sum(0), 1), []
    files = shortcuts.facts_of_files(shapes.with_padding(dataset, examples))
    del files["mean brightness"]  # it has a chart of its own
    for name, (codes, texts) in files.items():
        numbers, rows = np.minimum(codes, _MAX_VALUES), []
        for number, text in enumerate([*texts[:_MAX_VALUES], "others"]):
            if (chosen := numbers == number).any():
                counts = has[chosen].sum(0)
                cells = zip(counts.tolist(), (counts / totals).tolist(), strict=True)
                rows.append({"value": text, "cells": list(cells)})
        facts.append({"title": name[:1].upper() + name[1:], "rows": rows})
    return facts


def _contact_sheets(
    dataset: Manifest, examples: pa.Table, images: ImageReader
) -> list[dict[str, Any]]:
    """Returns some pictures of each class, evenly spread over the dataset."""
    shown = min(dataset.num_classes, _MAX_CLASSES)
    has = dataset.label_kind.has(examples["label"].to_pylist(), dataset.label_names)
    each = min(max(_MAX_PICTURES // max(shown, 1), 2), 12)
    sheets = []
    for index, label in enumerate(dataset.label_names[:shown]):
        rows = np.flatnonzero(has[:, index])
        chosen = rows[np.unique(np.linspace(0, len(rows) - 1, min(each, len(rows))).astype(int))]
        pictures = [
            {
                "src": data_url(images.read(row["shard"], row["row"]), _PICTURE_SIDE),
                "alt": f"{label}, from {row['split']}: {row['path']}",
            }
            for row in examples.select(["split", "shard", "row", "path"]).take(chosen).to_pylist()
        ]
        counts = ", ".join(
            f"{split.label_counts[index]:,} in {name}" for name, split in dataset.splits.items()
        )
        sheets.append({"label": label, "counts": counts, "pictures": pictures})
    return sheets


def _corners_of_devices(dataset: Manifest, examples: pa.Table, images: ImageReader) -> list[str]:
    """Returns the corners of some pictures, in which devices write names, as URLs.

    There is a picture of each size, format and site that the files have, because most devices have
    a size of their own, and others are spread evenly over the dataset.
    """
    columns = {"site", "width", "height", "mode", "file_format"} & set(examples.column_names)
    places = pa.array(range(len(examples)))
    table = examples.select(sorted(columns)).append_column("place", places)
    kinds = table.group_by(sorted(columns)).aggregate([("place", "min"), ("place", "count")])
    kinds = kinds.sort_by([("place_count", "descending"), ("place_min", "ascending")])
    first = kinds["place_min"].to_pylist()[:_MAX_CORNERS]
    spread = np.linspace(0, len(table) - 1, min(_MAX_CORNERS - len(first), len(table))).astype(int)
    chosen = examples.select(["shard", "row", "shape"]).take(list(dict.fromkeys([*first, *spread])))
    # The corners of a picture are not those of its padding.
    box = Preprocessing.from_dict(dataset.preprocessing).box
    return [
        data_url(
            _corners(images.read(row["shard"], row["row"]).crop(box(row["shape"], 1))),
            _CORNERS_SIDE,
        )
        for row in chosen.to_pylist()
    ]


def _corners(picture: Image.Image) -> Image.Image:
    """Returns the four corners of a picture, each a quarter as wide and high, beside each other."""
    width, height = (max(side // 4, 1) for side in picture.size)
    joined = Image.new(picture.mode, (2 * width + 1, 2 * height + 1), "white")
    for right, lower in itertools.product((0, 1), repeat=2):
        left, upper = right * (picture.width - width), lower * (picture.height - height)
        corner = picture.crop((left, upper, left + width, upper + height))
        joined.paste(corner, (right * (width + 1), lower * (height + 1)))
    return joined


def classes_of_splits(dataset: Manifest, sizes: Mapping[str, int]) -> list[Bars]:
    """Returns a chart of the class sizes for each split, or none if there are too many classes.

    `sizes` are the numbers of images of the splits.
    """
    charts = []
    for name, split in dataset.splits.items() if dataset.num_classes <= _MAX_BARS else ():
        most, total = max(1, *split.label_counts), max(1, sizes[name])
        bars = [
            Bar(label, num / most, f"{num:,} ({100 * num / total:.0f} %)", place % NUM_COLOURS)
            for place, (label, num) in enumerate(
                zip(dataset.label_names, split.label_counts, strict=True)
            )
        ]
        title = f"{name}: {sizes[name]:,} images"
        told = f"Images by {dataset.label_kind.noun} in {name}: {_told(bars)}"
        charts.append(Bars(title=title, description=told, bars=bars))
    return charts


def images_of_patients(examples: pa.Table) -> list[Chart]:
    """Returns a chart of patients by their number of images, or none if no patient is known."""
    sizes = pc.value_counts(examples["patient"].drop_null()).field("counts").to_numpy()
    if not len(sizes):
        return []
    heights = np.trim_zeros(np.histogram(sizes, _PATIENT_EDGES)[0], "b")
    bars = dict(zip(_PATIENT_BARS, heights.tolist(), strict=False))
    title = "Patients by their number of images"
    told = ", ".join(f"{height:,} with {name}" for name, height in bars.items() if height)
    outline = steps(np.arange(len(bars) + 1) - 0.5, heights)
    return [
        Chart(
            title=title,
            description=f"{title}: {told}",
            x=Axis.named("images of a patient", bars),
            y=Axis.of("patients", 0, int(heights.max()), whole=True),
            series=[Series("", outline, "area")],
        )
    ]


def side_facts_of_classes(measured: Mapping[str, Any] | None) -> list[Bars]:
    """Returns a chart of how well side facts predict the class, compared with guessing.

    Without the audit's measure `shortcuts` there is none.
    """
    if measured is None:
        return []
    signals = sorted(measured["by_signal"].items(), key=lambda item: -item[1])
    values = [("all together", measured["accuracy"]), *signals]
    chance = measured["chance"]
    longest = max(chance, *(value for _, value in values))
    bars = [Bar(name, value / longest, f"{100 * value:.0f} %") for name, value in values]
    guessing = f"guessing {100 * chance:.0f} %"
    told = f"Classes predicted correctly from facts about the file: {_told(bars)}; {guessing}"
    title = "How often facts about the file alone predict the right class"
    return [Bars(title=title, description=told, bars=bars, mark=(guessing, chance / longest))]


def brightness(dataset: Manifest, examples: pa.Table) -> list[Chart]:
    """Returns a histogram of mean brightness, 0 to 255, for each class.

    With more classes than colours, all classes share one histogram.
    """
    kind, values = dataset.label_kind, examples["brightness"].to_numpy()
    groups = {f"all {kind.plural}": values}
    if dataset.num_classes <= NUM_COLOURS:
        has = kind.has(examples["label"].to_pylist(), dataset.label_names)
        groups = {name: values[has[:, i]] for i, name in enumerate(dataset.label_names)}
    texts = {
        "title": "Mean brightness",
        "description": "Histogram of the mean brightness of the images, by class",
        "axis": "mean brightness of the image, 0 black to 255 white",
        "unit": f"% of the {kind.noun}",
    }
    return [_histograms(groups, 0.0, max(values.max(initial=0) * 1.02, 1.0), **texts)]


def numbers(dataset: Manifest, examples: pa.Table) -> list[Chart]:
    """Returns a histogram of the labels of each split, or none if they are not numbers."""
    if not dataset.label_kind.is_number:
        return []
    values, (number,) = numbers_of(examples), dataset.label_names
    splits = examples["split"].to_numpy()
    names = [name for name, split in dataset.splits.items() if split.num_examples][:NUM_COLOURS]
    groups = {name: values[splits == name] for name in names}
    texts = {"title": number, "description": f"Histogram of {number}, by split", "axis": number}
    low, top = values.min(), values.max()
    top = top if top > low else low + 1
    return [_histograms(groups, low, top, unit="% of the split", **texts)]


def _told(bars: Sequence[Bar]) -> str:
    return ", ".join(f"{bar.name} {bar.value}" for bar in bars)


def _histograms(
    groups: Mapping[str, np.ndarray], low: float, top: float, axis: str, unit: str, **texts: str
) -> Chart:
    """Returns a chart with a histogram of each group's values, all between `low` and `top`."""
    edges, shares = np.linspace(low, top, _NUM_BINS + 1), []
    for values in groups.values():
        counts = np.histogram(values, edges)[0]
        shares.append(100 * counts / max(counts.sum(), 1))
    alone = len(groups) == 1
    return Chart(
        **texts,
        x=Axis.of(axis, float(low), float(top)),
        y=Axis.of(unit, 0.0, max(1.0, *(float(each.max()) for each in shares))),
        series=[
            Series("" if alone else name, steps(edges, each), "area" if alone else "line", place)
            for place, (name, each) in enumerate(zip(groups, shares, strict=True))
        ],
    )

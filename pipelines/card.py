"""The dataset's card: one HTML file, without network or script, for a person to read first."""

from __future__ import annotations

import base64
import collections
import functools
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import markupsafe
import matplotlib as mpl
import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure
from PIL import Image

from pipelines.sources.listing import RejectedFile
from tfrecord_io import shortcuts
from tfrecord_io.audit import LIMITS, SEVERITIES, Audit
from tfrecord_io.manifest import Manifest
from tfrecord_io.twins import ImageReader

# Sizes that keep the page under some megabytes, whatever the dataset.
_MAX_CLASSES = 24
_MAX_PICTURES = 48
_PICTURE_SIDE = 112
_MAX_PAIRS = 12
_PAIR_SIDE = 224
_MAX_LISTED = 50
_MAX_SERIES = 8

# Names of what `shortcuts.WHITE_BORDER_EDGES` divides.
_BORDERS = ("none", "up to 10 %", "10 to 30 %", "over 30 %")

# Colours that stand for the page's own, which know of light and dark; see `_to_html`.
_INK, _LINE = "#010101", "#020202"
_SERIES = tuple(f"#03000{index}" for index in range(_MAX_SERIES))
_STYLE = {
    "axes.edgecolor": _LINE,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.labelcolor": _INK,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.size": 11,
    "grid.color": _LINE,
    "grid.linewidth": 0.6,
    "svg.fonttype": "none",
    "text.color": _INK,
    # Class names are text, whatever dollars they hold.
    "text.parse_math": False,
    "xtick.color": _INK,
    "xtick.major.size": 0,
    "ytick.color": _INK,
    "ytick.major.size": 0,
}


@functools.cache
def page_template() -> jinja2.Template:
    """Returns the page, compiled; a process that calls it early has it at hand later."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = lambda value: f"{value:,}"
    environment.filters["with_flags"] = _with_flags
    return environment.get_template("card.html.jinja")


def render(
    found: Manifest,
    audit: Audit,
    examples: pa.Table,
    images: ImageReader,
    rejects: Sequence[RejectedFile],
    dropped: pa.Table,
) -> str:
    """Returns the page.

    Args:
        found: the manifest as it will be written.
        audit: of this dataset.
        examples: what `audit.read_examples` returns.
        images: reads the stored pictures that the page shows.
        rejects: images that could not be used.
        dropped: images that a policy left out; columns `path`, `reason`, `detail`.
    """
    severities = collections.Counter(finding.severity for finding in audit.findings)
    return page_template().render(
        found=found,
        audit=audit,
        severities={name: severities[name] for name in SEVERITIES},
        limits=LIMITS,
        summary=_summary(found, audit),
        measures=audit.measures,
        megabytes=found.num_bytes / 1e6,
        charts=_charts(found, audit, examples),
        facts=_side_facts(found, examples),
        classes=_contact_sheets(found, examples, images),
        num_more_classes=max(found.num_classes - _MAX_CLASSES, 0),
        pairs=functools.partial(_pairs, images=images),
        ledger=_ledger(found.counts),
        rejects=_listing((r.source_path, r.reason, r.detail) for r in rejects),
        num_rejects=len(rejects),
        dropped=_listing(tuple(row.values()) for row in dropped.slice(0, _MAX_LISTED).to_pylist()),
        num_dropped=dropped.num_rows,
    )


def _with_flags(text: str) -> markupsafe.Markup:
    """Returns text, escaped, whose command-line flags do not break over lines."""
    escaped = str(markupsafe.escape(text))
    flag = r"(--[a-z_]+(?: (?:patient|drop|keep|fail|auto|\d+))?)"
    return markupsafe.Markup(re.sub(flag, r'<code class="flag">\1</code>', escaped))


def _summary(found: Manifest, audit: Audit) -> list[str]:
    """Returns the first paragraph's sentences."""
    patients = audit.measures["patients"]
    splits = ", ".join(f"{split.num_examples:,} {name}" for name, split in found.splits.items())
    height, width, channels = found.image_shape
    people = f" of {_count(patients, 'patient')}" if patients else ""
    sentences = [
        f"{_count(found.num_examples, 'image')}{people} in "
        f"{_count(found.num_classes, 'class', 'classes')} ({splits}), each "
        f"stored as {width}×{height} pixels in {'grey' if channels == 1 else 'colour'}."
    ]
    problems = [finding for finding in audit.findings if finding.severity == "problem"]
    warnings = [finding for finding in audit.findings if finding.severity == "warning"]
    if problems:
        sentences.append(
            "Results on this data would mislead until the problems below are dealt with."
            if len(problems) > 1
            else "Results on this data would mislead until the problem below is dealt with."
        )
    elif warnings:
        sentences.append("No problem was found, but read the warnings before you trust a result.")
    else:
        sentences.append("The audit found nothing that speaks against training on it.")
    return sentences


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _charts(found: Manifest, audit: Audit, examples: pa.Table) -> dict[str, Any]:
    with mpl.rc_context(_STYLE):
        return {
            "splits": [
                _chart_split(found, name) for name in found.splits if found.num_classes <= 40
            ],
            "brightness": _chart_brightness(found, examples),
            "patients": _chart_patients(examples),
            "shortcuts": _chart_shortcuts(audit.measures.get("shortcuts")),
        }


def _chart_split(found: Manifest, name: str) -> dict[str, str]:
    split = found.splits[name]
    total = max(split.num_examples, 1)
    shares = [100 * count / total for count in split.label_counts]
    figure = Figure(figsize=(4.2, 0.7 + 0.34 * found.num_classes))
    axes = figure.add_subplot()
    places = range(found.num_classes)
    axes.barh(places, shares, color=[_series(i) for i in places], height=0.68)
    for place, (count, share) in enumerate(zip(split.label_counts, shares, strict=True)):
        axes.text(share + 1.2, place, f"{count:,} ({share:.0f} %)", va="center")
    axes.set_yticks(places, found.label_names)
    axes.invert_yaxis()
    axes.set_xlim(0, max(shares, default=1) * 1.55 + 1)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.grid(False)
    told = ", ".join(
        f"{label} {count:,}"
        for label, count in zip(found.label_names, split.label_counts, strict=True)
    )
    return {
        "title": f"{name}: {split.num_examples:,} images",
        "svg": _to_html(figure, f"Images by class in {name}: {told}", f"split-{name}"),
    }


def _chart_brightness(found: Manifest, examples: pa.Table) -> str | None:
    if "brightness" not in examples.column_names:
        return None
    values = examples["brightness"].to_numpy()
    edges = np.linspace(0, max(float(values.max(initial=0)) * 1.02, 1), 33)
    figure = Figure(figsize=(5.2, 2.8))
    axes = figure.add_subplot()
    if found.num_classes <= _MAX_SERIES:
        labels = np.array(examples["label"].to_pylist())
        for index, label in enumerate(found.label_names):
            counts, _ = np.histogram(values[labels == label], edges)
            share = 100 * counts / max(counts.sum(), 1)
            axes.stairs(share, edges, color=_series(index), linewidth=2, label=label)
        axes.legend(frameon=False, handlelength=1.2)
    else:
        counts, _ = np.histogram(values, edges)
        axes.stairs(100 * counts / max(counts.sum(), 1), edges, fill=True, color=_series(0))
    axes.set_xlabel("mean brightness of the image, 0 black to 255 white")
    axes.set_ylabel("% of the class")
    return _to_html(figure, "Histogram of the mean brightness of the images, by class", "bright")


def _chart_patients(examples: pa.Table) -> str | None:
    counts = collections.Counter(p for p in examples["patient"].to_pylist() if p is not None)
    if not counts:
        return None
    values = np.array(list(counts.values()))
    edges = [1, 2, 3, 4, 5, 10, 20, 50, 100, np.inf]
    names = ["1", "2", "3", "4", "5–9", "10–19", "20–49", "50–99", "100+"]
    heights, _ = np.histogram(values, edges)
    last = int(np.flatnonzero(heights).max()) + 1
    figure = Figure(figsize=(5.2, 2.8))
    axes = figure.add_subplot()
    bars = axes.bar(names[:last], heights[:last], color=_series(0), width=0.72)
    axes.bar_label(bars, [f"{height:,}" for height in heights[:last]], padding=2)
    axes.set_yticks([])
    axes.grid(False)
    axes.margins(y=0.14)
    axes.set_xlabel("images of a patient")
    axes.set_ylabel("patients")
    told = ", ".join(
        f"{height:,} with {name}"
        for name, height in zip(names, heights.tolist(), strict=True)
        if height
    )
    return _to_html(figure, f"Patients by their number of images: {told}", "patients")


def _chart_shortcuts(measured: Mapping[str, Any] | None) -> str | None:
    if measured is None:
        return None
    rows = sorted(measured["by_signal"].items(), key=lambda item: -item[1])
    rows = [("all together", measured["accuracy"]), *rows]
    chance = 100 * measured["chance"]
    figure = Figure(figsize=(5.2, 0.9 + 0.36 * len(rows)))
    axes = figure.add_subplot()
    colors = [_series(0), *[_series(1)] * (len(rows) - 1)]
    axes.barh(range(len(rows)), [100 * value for _, value in rows], color=colors, height=0.66)
    for place, (_, value) in enumerate(rows):
        # Beyond the line of chance where it would cross the number.
        beside = chance if -8 < 100 * value - chance < 0 else 100 * value
        axes.text(beside + 0.8, place, f"{100 * value:.0f} %", va="center")
    axes.axvline(chance, color=_INK, linewidth=1.4, linestyle=(0, (4, 3)))
    axes.text(chance, -0.62, f"guessing {chance:.0f} %", ha="center", va="bottom")
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.6)
    axes.set_xlim(0, 1.2 * max(chance, *(100 * value for _, value in rows)))
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.grid(False)
    told = ", ".join(f"{name} {value:.0%}" for name, value in rows)
    return _to_html(
        figure, f"Classes told right from side facts: {told}; guessing {chance:.0f} %", "shortcuts"
    )


def _series(index: int) -> str:
    return _SERIES[index % _MAX_SERIES]


def _to_html(figure: Figure, description: str, name: str) -> str:
    """Returns a figure as inline SVG whose colours and font are the page's."""
    with io.StringIO() as file, mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(
            file, format="svg", bbox_inches="tight", pad_inches=0.04, metadata={"Date": None}
        )
        svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    width = re.search(r'viewBox="0 0 ([\d.]+)', svg)
    head = (
        f'<svg role="img" aria-label="{markupsafe.escape(description)}" '
        f'style="max-width: {float(width[1]) * 1.25 if width else 500:.0f}px"'
    )
    svg = re.sub(r'(<svg[^>]*?) (?:width|height)="[\d.]+pt"', r"\1", svg)
    svg = re.sub(r'(<svg[^>]*?) (?:width|height)="[\d.]+pt"', r"\1", svg)
    svg = svg.replace("<svg", head, 1)
    # Ids are the page's: two figures may both have a `figure_1`.
    svg = re.sub(r'id="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font: \1 var(--font)", svg)
    svg = svg.replace(_INK, "var(--ink)").replace(_LINE, "var(--line)")
    for index, color in enumerate(_SERIES):
        svg = svg.replace(color, f"var(--series-{index})")
    return svg


def _side_facts(found: Manifest, examples: pa.Table) -> list[dict[str, Any]]:
    """Returns, for each fact of the files that may give the class away, counts by class."""
    if found.num_classes > _MAX_CLASSES:
        return []
    if "white_border" in examples.column_names:
        border = examples["white_border"].to_numpy()
        bins = np.searchsorted(shortcuts.WHITE_BORDER_EDGES, border, "right")
        examples = examples.append_column("border", pa.array(bins))
    facts: list[tuple[str, tuple[str, ...], Callable[..., str]]] = [
        ("Original size", ("width", "height"), lambda width, height: f"{width}×{height}"),
        ("Format and mode", ("file_format", "mode"), lambda kind, mode: f"{kind} {mode}"),
        (
            "JPEG quantization (sum of the table; larger is coarser)",
            ("quantization",),
            lambda value: str(value) if value else "no JPEG",
        ),
        ("White share of the border", ("border",), lambda index: _BORDERS[index]),
    ]
    return [
        _cross_table(title, _count_by_label(examples, columns, show), found.label_names)
        for title, columns, show in facts
        if set(columns) <= set(examples.column_names)
    ]


def _count_by_label(
    examples: pa.Table, columns: Sequence[str], show: Callable[..., str]
) -> collections.Counter[tuple[str, str]]:
    """Counts examples by what is shown of some columns' values, and label."""
    keys = [*columns, "label"]
    plain = pa.table({name: _without_dictionary(examples[name]) for name in keys})
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for row in plain.group_by(keys).aggregate([([], "count_all")]).to_pylist():
        counts[show(*(row[name] for name in columns)), row["label"]] += row["count_all"]
    return counts


def _without_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    return column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column


def _cross_table(
    title: str, counts: collections.Counter[tuple[str, str]], label_names: Sequence[str]
) -> dict[str, Any]:
    values: collections.Counter[str] = collections.Counter()
    totals: collections.Counter[str] = collections.Counter()
    for (value, label), count in counts.items():
        values[value] += count
        totals[label] += count
    frequent = sorted(values, key=lambda value: (-values[value], value))[:8]
    if set(frequent) <= set(_BORDERS):
        frequent.sort(key=_BORDERS.index)
    others = set(values) - set(frequent)
    rows = []
    for value in [*frequent, *(["others"] if others else [])]:
        members = sorted(others) if value == "others" and others else [value]
        cells = []
        for label in label_names:
            count = sum(counts[member, label] for member in members)
            cells.append({"count": count, "share": count / max(totals[label], 1)})
        rows.append({"value": value, "cells": cells})
    return {"title": title, "rows": rows, "columns": label_names}


def _contact_sheets(
    found: Manifest, examples: pa.Table, images: ImageReader
) -> list[dict[str, Any]]:
    """Returns some pictures of each class, evenly spread over the dataset."""
    labels = np.array(examples["label"].to_pylist())
    shown = min(found.num_classes, _MAX_CLASSES)
    each = min(max(_MAX_PICTURES // max(shown, 1), 2), 12)
    sheets = []
    for index, label in enumerate(found.label_names[:shown]):
        rows = np.flatnonzero(labels == label)
        chosen = rows[np.unique(np.linspace(0, len(rows) - 1, min(each, len(rows))).astype(int))]
        pictures = []
        for row in examples.select(["split", "shard", "row", "path"]).take(chosen).to_pylist():
            pictures.append(
                {
                    "src": _data_url(images.read(row["shard"], row["row"]), _PICTURE_SIDE),
                    "alt": f"{label}, from {row['split']}: {row['path']}",
                }
            )
        counts = [
            f"{split.label_counts[index]:,} in {name}" for name, split in found.splits.items()
        ]
        sheets.append({"label": label, "counts": ", ".join(counts), "pictures": pictures})
    return sheets


def _pairs(listed: Iterable[Mapping[str, Any]], images: ImageReader) -> list[dict[str, Any]]:
    """Returns the pictures of near duplicates, to be shown side by side."""
    pairs = []
    for pair in list(listed)[:_MAX_PAIRS]:
        sides = []
        for side in (pair["first"], pair["second"]):
            picture = _data_url(images.read(side["shard"], side["row"]), _PAIR_SIDE)
            sides.append({**side, "src": picture})
        pairs.append({"sides": sides, "similarity": pair["similarity"]})
    return pairs


def _data_url(image: Image.Image, side: int) -> str:
    """Returns a picture as a small JPEG in a URL."""
    smaller = image.copy()
    smaller.thumbnail((side, side), Image.Resampling.LANCZOS)
    with io.BytesIO() as file:
        smaller.save(file, "JPEG", quality=80)
        return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _ledger(counts: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Returns what became of every file, in lines that add up."""
    rows = [("examples in the dataset", counts.get("examples", 0))]
    rows += [("rejected", counts.get("rejects", 0))]
    rows += [
        (f"left out: {reason.replace('_', ' ')}", count)
        for reason, count in counts.get("dropped", {}).items()
    ]
    rows += [("copies in a second tree", counts.get("copies", 0))]
    rows += [("over the limit", counts.get("over_limit", 0))]
    rows += [
        (f"no data: {reason.replace('_', ' ')}", count)
        for reason, count in counts.get("ignored", {}).items()
    ]
    return [(name, count) for name, count in rows if count]


def _listing(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [row for row, _ in zip(rows, range(_MAX_LISTED), strict=False)]

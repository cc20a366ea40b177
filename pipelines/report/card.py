"""The dataset's card: one HTML file that needs no network and no script."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from jinja2.filters import do_filesizeformat

from pipelines.listing.refs import RejectedFile
from tfrecord_io.auditing.audit import LIMITS
from tfrecord_io.auditing.findings import MAX_LISTED, Audit
from tfrecord_io.auditing.twins import ImageReader
from tfrecord_io.format.examples import recounted
from tfrecord_io.format.manifest import Manifest
from tfrecord_io.pages import page
from tfrecord_io.pages.page import data_url
from tfrecord_io.terminal.printing import counted, sentence

# Limits that keep the page within a few megabytes for any dataset.
_MAX_CLASSES = 24
_MAX_PICTURES = 48
_PICTURE_SIDE = 512
_MAX_PAIRS = 12
_MAX_FILES = 50

# With more classes than this, the charts of class sizes would be unreadable and are left out.
_MAX_BARS = 40

_ON_TEXT = (
    "Names were taken out of paths, tables and tags, but not out of the pixels: text that a device "
    "has written into a picture stays, mostly in its corners. Look at pictures of each device."
)
_ON_PROVENANCE = page.markup(
    "Written by <code>scan-tfrecords build</code>. The same input, options and versions give the "
    "same bytes, this page included, so it names no date, folder or machine. "
    '<a href="manifest.json">manifest.json</a> was written last: its date is that of the build.'
)
_FOOTER = page.markup(
    "<code>scan-tfrecords audit OUT</code> repeats the audit of this folder, OUT; with its "
    "<code>--max_…</code> flags it fails if a limit is exceeded. <code>scan-tfrecords train --data "
    "OUT --workdir RUN</code> trains on it, and then <code>RUN/report.html</code> links to this "
    "page."
)


def render(
    dataset: Manifest,
    audit: Audit,
    examples: pa.Table,
    images: ImageReader,
    rejects: Sequence[RejectedFile],
) -> str:
    """Returns the card as HTML, from the manifest as it will be written and its audit.

    `examples` is what `examples.audited` returns.
    """
    labels, dataset = dataset.label_kind.describe(dataset.label_names), recounted(dataset, examples)
    of_splits = collections.Counter(examples["split"].to_pylist())
    sizes = {name: of_splits[name] for name in dataset.splits}
    roles = dict(dataset.audit.get("layout") or ())
    classes = [
        *map(sentence, dataset.audit.get("notes", ())),
        roles and page.Facts(f"How the folders were read: {' / '.join(roles)} / file", roles),
        page.Box(_classes_of_splits(dataset, sizes), "grid"),
    ]
    findings, limits = page.Box(_findings(audit, images), "stack"), page.Box([page.Items(LIMITS)])
    sections = [
        page.Section("findings", "Findings", [findings]),
        page.Section("classes", f"{dataset.label_kind.plural.capitalize()} and splits", classes),
        page.Section("pictures", "Pictures", _pictures(dataset, examples, images)),
        page.Section("files", "What became of every file", [_files(dataset, rejects)]),
        page.Section("provenance", "Provenance", _provenance(dataset)),
        page.Section("limits", "What this audit cannot see", [limits]),
    ]
    return page.render(
        page.Page(
            title=f"{dataset.name} – dataset card",
            over="Dataset card",
            heading=f"The dataset {dataset.name}",
            top=_top(dataset, audit, sizes, labels),
            sections=sections,
            footer=_FOOTER,
        )
    )


def _top(dataset: Manifest, audit: Audit, sizes: Mapping[str, int], labels: str) -> list[Any]:
    """Returns the top of the page: the size, how far to trust it, and figures."""
    found = collections.Counter(finding.severity for finding in audit.findings)
    measured, num_images = audit.measures, sum(sizes.values())
    patients, num_variants = measured.get("patients"), dataset.num_examples - num_images
    height, width, channels = dataset.image_shape
    people = f" of {counted(patients, 'patient')}" if patients else ""
    parts = ", ".join(f"{size:,} {name}" for name, size in sizes.items())
    colour = "grey" if channels == 1 else "colour"
    trust = "The audit found no reason not to train on this data."
    if found["problem"]:
        below = "problem below is" if found["problem"] == 1 else "problems below are"
        trust = f"Results on this data would be misleading until the {below} fixed."
    elif found["warning"]:
        trust = "No problem was found, but read the warnings before you trust a result."
    copies = counted(num_variants, "augmented copy", "augmented copies")
    leads = [
        f"{counted(num_images, 'image')}{people} {labels} ({parts}), each stored as "
        f"{width}×{height} pixels in {colour}.",
        f"{copies} of training images are stored beside them, and counted nowhere on this page but "
        "in the ledger." if num_variants else "",
        trust,
        "The audit could not look for near duplicates, so copies that were saved again or resized "
        "may be in several splits." if measured.get("near_duplicate_pairs") is None else "",
    ]  # fmt: skip
    unknown = "warning" if measured.get("examples_without_patient") else ""
    good = "" if found["problem"] or found["warning"] else "good"
    tiles = [
        page.Tile("images", f"{num_images:,}"),
        page.Tile("patients", f"{patients:,}" if patients else "unknown", look=unknown),
        page.Tile("on disk", do_filesizeformat(dataset.num_bytes)),
        *(
            page.Tile(name + "s" * (num != 1), str(num), look=name if num else good)
            for name in ("problem", "warning")
            for num in [found[name]]
        ),
    ]
    return [*(page.Note(lead, "lead") for lead in leads if lead), page.Tiles(tiles)]


def _findings(audit: Audit, images: ImageReader) -> list[page.Details]:
    """Returns each finding with its cases; those of pairs are pictures side by side."""
    details = []
    for finding in audit.findings:
        listed, cases, more = finding.listed, None, ""
        if listed and isinstance(listed[0].get("first"), Mapping):
            pairs = [_pair(pair, images) for pair in listed[:_MAX_PAIRS]]
            cases = page.Box(pairs, "figures")
            if finding.count > len(pairs):
                more = f"The first {len(pairs)} of {finding.count:,} pairs are shown."
        elif listed:
            rows = [list(row.values()) for row in listed]
            cases = page.Table(f"Cases of: {finding.title}", list(listed[0]), rows, look="tall")
            # The count may be of images while the rows are of groups, so that a larger count does
            # not mean that rows are missing.
            if len(listed) == MAX_LISTED and finding.count > MAX_LISTED:
                all_cases = "<code>scan-tfrecords audit OUT --json</code> lists all."
                more = page.markup(f"Only the first {MAX_LISTED} are shown; {all_cases}")
        blocks = [page.Note(finding.detail, ""), cases, more]
        is_open = finding.severity in ("problem", "warning")
        details.append(page.Details(finding.title, blocks, finding.severity, is_open))
    return details


def _pair(pair: Mapping[str, Any], images: ImageReader) -> page.Figure:
    """Returns two pictures that look alike."""
    sides = []
    for side in (pair["first"], pair["second"]):
        split, label, path = (side[name] for name in ("split", "label", "path"))
        text = page.markup("<strong>{}, {}</strong><br>{}", split, label, path)
        url = data_url(images.read(side["shard"], side["row"]), _PICTURE_SIDE)
        sides.append((url, f"{label} in {split}: {path}", text))
    return page.Figure(sides, f"Fine detail correlates by {pair['similarity']:.3f}")


def _pictures(dataset: Manifest, examples: pa.Table, images: ImageReader) -> list[Any]:
    """Returns pictures of each class, and with codes for names what to look for in them."""
    kind, num_more = dataset.label_kind, dataset.num_classes - _MAX_CLASSES
    text = f"Some stored images of each {kind.noun}, taken at even intervals; a click enlarges one."
    text += f" {num_more:,} more {kind.plural} are not shown." if num_more > 0 else ""
    blocks = [text, page.Box(_contact_sheets(dataset, examples, images), "grid")]
    if dataset.has_codes:
        blocks += [page.Heading("Text in the pictures"), _ON_TEXT]
    return blocks


def _files(dataset: Manifest, rejects: Sequence[RejectedFile]) -> page.Box:
    """Returns what became of the files of the source, with the first rejects."""
    files = f"{dataset.counts.get('files', 0):,} files in the source"
    boxes = [page.Box([page.Table(files, (), dataset.ledger, files)])]
    rows = [
        [file.source_path, file.reason.replace("_", " "), page.Cell(file.detail, look="path")]
        for file in rejects[:_MAX_FILES]
    ]
    first = 'The first {} are shown; <a href="rejects.csv">rejects.csv</a> lists all.'
    more = page.markup(first, str(len(rows))) if len(rejects) > len(rows) else ""
    if rows:
        caption, columns = f"Rejected images: {len(rejects):,}", ("path", "reason", "detail")
        boxes.append(page.Box([page.Table("Rejected images", columns, rows, caption), more]))
    return page.Box(boxes, "grid")


def _provenance(dataset: Manifest) -> list[Any]:
    """Returns what the dataset was made of, and how."""
    size = "×".join(map(str, dataset.options["image_size"]))
    facts = {
        "Source": {**dataset.source, "fingerprint": dataset.fingerprint},
        "Preprocessing": dataset.preprocessing,
        "Versions": dataset.versions,
        "Options of the command": {**dataset.options, "image_size": size},
    }
    return [_ON_PROVENANCE, page.Box([page.Facts(*fact) for fact in facts.items()], "masonry")]


def _contact_sheets(dataset: Manifest, examples: pa.Table, images: ImageReader) -> list[page.Box]:
    """Returns some pictures of each class, evenly spread over the dataset."""
    has = dataset.label_kind.has(examples["label"].to_pylist(), dataset.label_names)
    num_shown = min(max(_MAX_PICTURES // max(min(dataset.num_classes, _MAX_CLASSES), 1), 2), 12)
    table, sheets = examples.select(["split", "shard", "row", "path"]), []
    for index, label in enumerate(dataset.label_names[:_MAX_CLASSES]):
        rows = np.flatnonzero(has[:, index])
        chosen = rows[
            np.unique(np.linspace(0, len(rows) - 1, min(num_shown, len(rows))).astype(int))
        ]
        pictures = []
        for row in table.take(chosen).to_pylist():
            picture = data_url(images.read(row["shard"], row["row"]), _PICTURE_SIDE)
            pictures.append((picture, f"{label}, from {row['split']}: {row['path']}"))
        counts = (
            f"{part.label_counts[index]:,} in {name}" for name, part in dataset.splits.items()
        )
        sheets.append(page.Box([", ".join(counts), page.Pictures(pictures)], title=label))
    return sheets


def _classes_of_splits(dataset: Manifest, sizes: Mapping[str, int]) -> list[page.Bars]:
    """Returns a chart of the class sizes for each split, or none if there are too many classes.

    `sizes` are the numbers of images of the splits.
    """
    charts = []
    for name, split in dataset.splits.items() if dataset.num_classes <= _MAX_BARS else ():
        counts = zip(dataset.label_names, split.label_counts, strict=True)
        total = max(1, sizes[name])
        bars = [(label, num, f"{num:,} ({100 * num / total:.0f} %)") for label, num in counts]
        charts.append(page.Bars(f"{name}: {sizes[name]:,} images", bars))
    return charts

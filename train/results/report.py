"""The page of a result: HTML without scripts, to read first."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io.format.groups import plural_unit
from tfrecord_io.format.manifest import Manifest
from tfrecord_io.pages import page
from tfrecord_io.terminal.printing import counted, listed, sentence
from train.data.dataset import Dataset
from train.kinds import words
from train.results.sections import Result, figures_on_top, sections_of


def page_of_data(data: str, directory: Path, manifest: Manifest) -> str | None:
    """Returns the URL of the page of a dataset relative to a run's, or None if there is none.

    That of a dataset with codes could name folders that the command did not name.
    """
    path = Path(data) / "report.html"
    if not path.is_file() or manifest.has_codes:
        return None
    return urllib.parse.quote(os.fsencode(os.path.relpath(path, directory)))


def render(result: Result) -> str:
    """Returns the HTML of the page of a result."""
    # The export of a run may have been given.
    run = Path(result.metrics.get("model", "").removesuffix("/export")).resolve().name
    is_own = result.own_metrics is None
    heading = f"How well {'the network' if is_own else run} reads {result.manifest.name}"
    over = "Cross-validation" if result.folds else "Result of the run"
    files = [
        page.markup(', <a href="{0}">{0}</a> with {1}', *each) for each in result.files.items()
    ]
    beside = 'Beside this page: <a href="metrics.json">metrics.json</a> with every figure{}.'
    warning = "This is not a medical device. Nobody may be diagnosed or treated by it."
    warning = page.markup("<strong>{}</strong>", warning)
    return page.render(
        page.Page(
            title=f"{heading} – {result.title}",
            over=f"{over if is_own else 'Evaluation'} {result.title}",
            heading=heading,
            top=[warning, *(_top(result) if result.metrics else _without_result(result))],
            sections=sections_of(result),
            footer=page.markup(beside, page.markup("").join(files)),
        )
    )


def _without_result(result: Result) -> list[Any]:
    """Returns what stands on top if nothing was measured."""
    why = (
        "There is no result for this network: the dataset has no images besides the training "
        "images. Build it with a test split, or evaluate the run on another dataset."
    )
    num_images = result.manifest.split("train").num_examples
    labels = page.Tile(result.task.kind.plural, f"{result.manifest.num_classes:,}")
    tiles = [page.Tile("training images", f"{num_images:,}"), labels]
    return [page.Note(why, "lead first"), page.Tiles(tiles)]


def _top(result: Result) -> list[Any]:
    """Returns what stands on top: the verdict, what casts doubt on it, and the main figures."""
    metrics, task, seen = result.metrics, result.task, result.exposure
    images, is_own, is_val = words.measured_images(metrics), result.own_metrics is None, False
    split, (done, *leads) = metrics["split"], task.verdict(metrics)
    names, where = split.split(","), f"the {split} split"
    if split == "val":
        where, is_val = "the validation split", is_own
    elif split == "all" or names[1:]:
        where = "all splits" if split == "all" else f"the splits {listed(names)}"
    first, cautions = f"On the {images} of {where}, the network {done}", []
    who, judged = "the network", ""
    if result.folds:
        num_folds = len({run["fold"] for run in result.folds})
        who, judged = "each network", "those that it judged of "
        first = (
            f"In a cross-validation with {num_folds} folds, each of {images} was judged by "
            f"networks that were trained on the other folds. They {done}"
        )
    if seen and seen.num_images and seen.is_measured:
        patients = counted(seen.num_patients, "patient")
        if not is_own:
            first = (
                f"On all {images} of {where}, including {seen.num_images:,} that it had "
                f"seen before, or others of their patients, the network {done}"
            )
        cautions.append(
            f"{seen.num_images:,} of these images, of {patients}, show a picture or a patient that "
            "the network has learned from. It may recognise the eye instead of the disease, so the "
            "result is probably too good. --splits patient builds splits without such images."
        )
    elif seen and not is_val:
        if seen.num_images:
            further = counted(seen.num_images, "further image")
            leads.append(
                f"{further} of {counted(seen.num_patients, 'patient')} were left out, because the "
                "network has seen them, or others of their patients."
            )
        if seen.claims:
            leads.append(
                f"What {who} had seen was compared with {judged}these {images}: it had seen "
                f"{listed(seen.claims)}."
            )
    cautions += [sentence(seen.advice or ""), sentence(seen.note or "")] if seen else []
    cautions.append(task.doubt(metrics) or "")
    if is_val:
        cautions.append(
            "The dataset has no test split. The run also made its choices with these validation "
            "images, so the result is probably too good."
        )
    told = [page.Note(first, "lead first")]
    told += [page.Note(caution, "caution") for caution in cautions if caution]
    more = [page.Note(lead, "lead") for lead in leads]
    told.append(page.Details("More on this result", more, "fold") if more else None)
    figures = figures_on_top(result)
    return [
        page.Box([page.Box(told, ""), page.Box(figures, "") if figures else ""], "beside"),
        *_tiles(result),
    ]


def _tiles(result: Result) -> list[Any]:
    """Returns the main figures with their intervals, over images and over patients."""
    metrics, by_patient, tiles = result.metrics, result.metrics.get("by_patient", {}), []
    for name in result.task.run_measures:
        score, told = metrics["scores"][name], words.teller_of(name)
        small = [words.ends(score, told)] if score["low"] is not None else []
        if of_patients := by_patient.get(name):
            small.append(f"by patient {words.with_interval(of_patients, told, '')}")
        tiles.append(page.Tile(words.title_of(name), told(score["value"]), small))
    patients = f"{metrics['num_patients']:,}" if metrics["num_patients"] else "unknown"
    tiles.append(page.Tile("images judged", f"{metrics['num_examples']:,}"))
    tiles.append(page.Tile("patients judged", patients))
    about = f"Below each figure is its 95 % interval over {plural_unit(metrics['bootstrap_by'])}."
    if by_patient:
        about += " By patient, each counts once, and is answered by the mean of the images."
    return [page.Tiles(tiles), about if metrics["bootstrap_samples"] else ""]


# ---- the flow of images and patients, as the diagrams of STARD 2015 and CONSORT 2010


def flow_of(
    dataset: Dataset, metrics: Mapping[str, Any], *, in_folds: Sequence[str] = (), is_own: bool
) -> list[list[page.Step]]:
    """Returns the steps of the flow; the boxes of a step stand beside each other.

    For the arguments see `write.write_results`; the metrics are empty if nothing was measured, and
    `is_own` tells whether the network was trained on this dataset.
    """
    manifest, split = dataset.manifest, str(metrics.get("split"))
    measured = in_folds or (list(manifest.splits) if split == "all" else split.split(","))
    table = pa.table({name: dataset.column(name) for name in ("split", "variant", "patient")})
    uses = dict.fromkeys(measured, "measured")
    if is_own:
        watched = "chose temperature and thresholds" if metrics.get("calibration") else None
        uses = {"train": "trained on", "val": watched or "watched during training"} | uses
    if in_folds:
        uses = dict.fromkeys(in_folds, "divided into folds")

    def box(title: str, num_examples: int, rows: pa.Table, *lines: str) -> page.Step:
        copies = pc.sum(pc.greater(rows["variant"], 0)).as_py() or 0
        more = [f"and {counted(copies, 'augmented copy', 'augmented copies')}"] if copies else []
        num_patients = pc.count_distinct(rows["patient"]).as_py()
        people = words.images_of(num_examples - copies, num_patients)
        left_out = seen if [title] == measured else []
        return page.Step(title, [people, *more, *lines], left_out, title in measured)

    seen = []
    if not in_folds and metrics.get("seen_images") and not metrics.get("include_seen"):
        seen = [("seen by the network before, or of the same patients", metrics["seen_images"])]

    names = table["split"].cast(pa.string())
    parts = [
        box(
            name, part.num_examples, table.filter(pc.equal(names, name)), uses.get(name, "not used")
        )
        for name, part in manifest.splits.items()
    ]
    steps = [[box("dataset", manifest.num_examples, table)], parts]
    if files := manifest.counts.get("files"):
        # Copies, which are not files, are counted below zero.
        left_out = [(why, count) for why, count in manifest.ledger[1:] if count > 0]
        steps.insert(0, [page.Step("source", [counted(files, "file")], left_out)])
    if not metrics:
        return steps
    # How many of each of several splits is not told.
    figures = _figures(metrics)._replace(left_out=seen if measured[1:] else [])
    return [*steps, [figures]]


def _figures(metrics: Mapping[str, Any]) -> page.Step:
    """Returns the images behind the figures, and those of each label unless there are many."""
    lines = [words.images_of(metrics["num_examples"], metrics["num_patients"])]
    groups, unit = metrics["label_groups"], metrics["bootstrap_by"]
    if groups and len(groups) <= words.MAX_CLASSES:
        for name, count in metrics["label_counts"].items():
            behind = f" of {counted(groups[name], unit, plural_unit(unit))}"
            lines.append(f"{name}: {counted(count, 'image')}{behind if unit != 'image' else ''}")
    return page.Step(f"measured: {metrics['split']}", lines, is_measured=True)

"""The page of a result: HTML without scripts, to read first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfrecord_io.format.groups import plural_unit
from tfrecord_io.pages import page
from tfrecord_io.terminal.printing import counted, listed, sentence
from train.kinds import words
from train.results.sections import Result, figures_on_top, sections_of

# Files beside the page that it names, as far as they are there, and what they hold.
_FILES = {
    "predictions.csv": "every answer",
    "config.json": "every setting",
    "history.json": "every epoch",
    "export/thresholds.json": "the thresholds",
    "plots/": "plots for papers",
}


def render(result: Result) -> str:
    """Returns the HTML of the page of a result."""
    # The export of a run may have been given.
    run = Path(result.metrics.get("model", "").removesuffix("/export")).resolve().name
    is_own = result.own_metrics is None
    heading = f"How well {'the network' if is_own else run} reads {result.manifest.name}"
    over = "Cross-validation" if result.folds else "Result of the run"
    files = [
        page.markup(', <a href="{0}">{0}</a> with {1}', name, what)
        for name, what in _FILES.items()
        if (result.directory / name).exists()
    ]
    title = result.directory.resolve().name
    beside = 'Beside this page: <a href="metrics.json">metrics.json</a> with every figure{}.'
    warning = "This is not a medical device. Nobody may be diagnosed or treated by it."
    warning = page.markup("<strong>{}</strong>", warning)
    return page.render(
        page.Page(
            title=f"{heading} – {title}",
            over=f"{over if is_own else 'Evaluation'} {title}",
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
    num_images, *_ = result.images_of("train")
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
        num_folds = len(result.folds)
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

"""The page of a result: what stands on top, and its sections, each a function.

A function returns the title and the blocks of its section; its name is the anchor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tfrecord_io.format.groups import plural_unit
from tfrecord_io.pages import page
from tfrecord_io.pages.page import data_url
from tfrecord_io.terminal.printing import counted, listed, sentence
from train.kinds import words
from train.results.metrics import FEW_BEHIND
from train.results.mistakes import SEEN

if TYPE_CHECKING:
    from train.results.result import CrossValidationResult, Result

# Of fewer positives a sensitivity of 95 % depends on one image.
_FEW_POSITIVES = 20

# Most columns and rows of a table of answers on top of the page, mistakes there, and their side.
_MAX_ON_TOP, _MISTAKES_ON_TOP, _SIDE_ON_TOP = 7, 6, 160

_COLOURS = page.markup(
    'Right answers are <span class="key"></span> blue, wrong ones <span class="key wrong"></span> '
    "red; the larger the share, the stronger the shade."
)

#: The title and the blocks of a section; None if it has no content.
Section = tuple[str, list[Any]] | None
Make = Callable[[Any], Section]

# ---- the top


def top(result: Result) -> list[Any]:
    """Returns what stands on top: the verdict, what casts doubt on it, and the main figures."""
    metrics, task, seen = result.metrics, result.task, result.exposure
    if "scores" not in metrics:
        why = (
            "There is no result for this network: the dataset has no images besides the training "
            "images. Build it with a test split, or evaluate the run on another dataset."
        )
        return [page.Note(why, "lead first")]
    images = words.measured_images(metrics)
    # A run made its choices with the validation images; an evaluation of it did not.
    is_of_validation = metrics["split"] == "val" and "model" not in metrics
    verdict, *leads = task.verdict(metrics)
    cautions = []
    if seen and seen.num_images and seen.is_measured:
        cautions.append(
            f"{seen.num_images:,} of these images, of {counted(seen.num_patients, 'patient')}, "
            "show a picture or a patient that the network has learned from. It may recognise the "
            "eye instead of the disease, so the result is probably too good. --splits patient "
            "builds splits without such images."
        )
    elif seen and not is_of_validation:
        if seen.num_images:
            leads.append(
                f"{counted(seen.num_images, 'further image')} of "
                f"{counted(seen.num_patients, 'patient')} were left out, because the network has "
                "seen them, or others of their patients."
            )
        if seen.claims:
            leads.append(f"{result.compared.format(images)} {listed(seen.claims)}.")
    cautions += [sentence(seen.note)] if seen else []
    cautions.append(task.doubt(metrics) or "")
    if is_of_validation:
        cautions.append(
            "The dataset has no test split. The run also made its choices with these validation "
            "images, so the result is probably too good."
        )
    lead = result.lead.format(images=images, split=metrics["split"], verdict=verdict)
    blocks: list[Any] = [page.Note(lead, "lead first")]
    blocks += [page.Note(caution, "caution") for caution in cautions if caution]
    more = [page.Note(lead, "lead") for lead in leads]
    blocks.append(page.Details("More on this result", more, "fold") if more else None)
    # Beside the sentences stand right and wrong answers, and mistakes.
    figures: list[Any] = []
    if table := _small_matrix(result):
        figures.append(page.Box([table._replace(caption=table.label), _COLOURS]))
    if mistakes := result.mistakes[:_MISTAKES_ON_TOP]:
        small = ((data_url(one.pictures[SEEN], _SIDE_ON_TOP), one.text) for one in mistakes)
        link = page.markup('<a href="#answers">Mistakes</a>, the surest first')
        figures += [link, page.Pictures([*small])]
    beside = [page.Box(blocks, ""), page.Box(figures, "") if figures else ""]
    by_patient, tiles = metrics.get("by_patient", {}), []
    for name in task.run_measures:
        score, form = metrics["scores"][name], words.form_of(name)
        small = [words.ends(score, form)] if score["low"] is not None else []
        if of_patients := by_patient.get(name):
            small.append(f"by patient {words.with_interval(of_patients, form, '')}")
        tiles.append(page.Tile(words.title_of(name), form(score["value"]), small))
    patients = f"{metrics['num_patients']:,}" if metrics["num_patients"] else "unknown"
    tiles.append(page.Tile("images judged", f"{metrics['num_examples']:,}"))
    tiles.append(page.Tile("patients judged", patients))
    about = f"Below each figure is its 95 % interval over {plural_unit(metrics['bootstrap_by'])}."
    if by_patient:
        about += " By patient, each counts once, and is answered by the mean of the images."
    about = about if metrics["bootstrap_samples"] else ""
    return [page.Box(beside, "beside"), page.Tiles(tiles), about]


def _small_matrix(result: Result) -> page.Table | None:
    """Returns the table of right and wrong answers if it is small enough for the first screen."""
    table = result.task.table_of_answers(result.metrics)
    is_small = table and max(len(table.columns), len(table.rows)) <= _MAX_ON_TOP
    return table if is_small else None


# ---- parts of sections


def _cell(scores: Mapping[str, Any], name: str, total: int | None = None) -> Any:
    """Returns the cell of a measure; the total is what it is a share of, if it is one."""
    score, form = scores.get(name), words.form_of(name)
    if score is None or score["value"] is None:
        return page.Cell("–" if score is None else "not defined", look="soft")
    value, ends = score["value"], [score[name] for name in ("value", "low", "high")]
    interval = words.ends(score, form) if score["low"] is not None else ""
    ends = [] if form is words.decimal else ends if interval else ends[:1]
    return page.Measure(form(value), words.count_of(value, total), interval, ends)


def _folded(text: str) -> page.Details:
    """Returns a text that a phone shows after a click."""
    return page.Details("What the figures mean", [text], "fold")


def _columns(first: Iterable[str], measures: Iterable[str]) -> list[str]:
    return [*first, *map(words.title_of, measures)]


# ---- sections


def classes(result: Result) -> Section:
    """The measures of each class or label."""
    task, metrics, kind = result.task, result.metrics, result.task.kind
    counts, unit = metrics["label_counts"], metrics["bootstrap_by"]
    about = task.glossary
    if metrics["bootstrap_samples"]:
        about += (
            f" The figures in grey are 95 % intervals over {plural_unit(unit)}; a bar from 0 to 1 "
            "shows the figure as a mark and the interval as a darker stretch."
        )
    # Each label, and then groups of them.
    views = sorted(task.views(list(counts)), key=lambda view: view.is_group)
    rows = []
    for view in views:
        groups = metrics["label_groups"].get(view.name, FEW_BEHIND)
        small = f"few: {counted(groups, unit, plural_unit(unit))}" if groups < FEW_BEHIND else ""
        if view.is_group:
            small = " or ".join(list(counts)[place] for place in view.places)
        names = [view.of(measure) for measure in task.label_measures]
        totals = [words.total_of(metrics, name) for name in names]
        cells = [
            _cell(metrics["scores"], name, total) for name, total in zip(names, totals, strict=True)
        ]
        name = page.Cell(view.name, small, "view" if view.is_group else "")
        rows.append([name, counts.get(view.name, totals[0]), *cells])
    columns = _columns((kind.noun, "images"), task.label_measures)
    card = page.Box([page.Table(f"Measures of each {kind.noun}", columns, rows)])
    return kind.plural.capitalize(), [_folded(about), card]


def by(result: Result) -> Section:
    """The same measures for the images of each site, or each value of another column."""
    measures, metrics = result.task.run_measures, result.metrics
    values_of = {"site": metrics.get("sites"), **metrics.get("by", {})}
    names = [name for name, values in values_of.items() if values]
    tables = []
    for column in names:
        rows = [
            [name, found["num_examples"], found["num_patients"]]
            + [_cell(found["scores"], measure) for measure in measures]
            for name, found in values_of[column].items()
        ]
        columns = _columns((column, "images", "patients"), measures)
        tables.append(page.Box([page.Table(f"Measures of each {column}", columns, rows)]))
    about = (
        f"The same measures for the images of each {' or '.join(names)} alone. One that is much "
        "worse than the others may have other devices, people or labels."
    )
    return (f"By {', '.join(names)}", [about, *tables]) if tables else None


def answers(result: Result) -> Section:
    """Right and wrong answers, and the surest mistakes with their images."""
    task, metrics = result.task, result.metrics
    matrices = [metrics.get("confusion_matrix"), *metrics.get("confusion_matrices", {}).values()]
    num_wrong = sum(int(np.sum(matrix) - np.trace(matrix)) for matrix in matrices if matrix)
    none = "" if num_wrong else "The network made no mistakes."
    # A small table stands on top of the page.
    table = None if _small_matrix(result) else task.table_of_answers(metrics)
    card = [table and page.Heading(table.label), table, table and _COLOURS, none]
    blocks: list[Any] = [page.Box(card) if any(card) else None]
    if result.mistakes:
        about = (
            f"The {len(result.mistakes)} of {num_wrong:,} wrong answers with the highest "
            "probability.{} A click on a picture enlarges it."
        )
        figures = []
        for mistake in result.mistakes:
            answer, urls = mistake.answer, mistake.urls().items()
            caption = page.markup(
                "truth <strong>{}</strong>, answer <strong>{}</strong>, {} sure",
                *(answer.true, answer.predicted, words.percent(answer.probability)),
            )
            sides = [(url, f"{what}: {mistake.text}", "") for what, url in urls]
            figures.append(page.Figure(sides, caption, mistake.path))
        blocks += [page.Heading("Mistakes"), page.markup(about, result.legend)]
        blocks.append(page.Box(figures, "figures"))
    return "Answers", blocks


def folds(result: CrossValidationResult) -> Section:
    """The measures of each fold of a cross-validation, and their spread."""
    metrics, measures = result.metrics, result.task.run_measures
    about = (
        "How much a figure varies with the patients that are evaluated. A difference between two "
        "settings that is smaller than this may be chance."
    )
    rows = [
        [words.title_of(name), *map(words.thousandths, metrics["spread"][name].values())]
        for name in measures
    ]
    link = '<a href="fold-{0}/report.html">{0}</a>'
    of_folds = [
        [page.markup(link, str(fold["fold"]))]
        + [words.form_of(name)(fold["scores"].get(name)) for name in measures]
        for fold in metrics["folds"]
    ]
    spread = page.Table(
        "Mean and standard deviation", ["measure", "mean", "standard deviation"], rows
    )
    each = page.Table("Each fold", _columns(("fold",), measures), of_folds, look="tall")
    boxes = [page.Box([table], title=table.label) for table in (spread, each)]
    return "Cross-validation", [_folded(about), page.Box(boxes, "grid")]


def probabilities(result: Result) -> Section:
    """Curves, calibration and thresholds."""
    metrics, charts = result.metrics, result.charts
    cards = [charts[name] for name in ("roc", "reliability") if name in charts]
    blocks: list[Any] = []
    if calibration := metrics.get("calibration"):
        before, after = (words.percent(calibration[f"ece_{when}"]) for when in ("before", "after"))
        about = (
            "Before they become probabilities, the network's outputs are divided by a temperature "
            f"of {calibration['temperature']:.2f}, fitted on {calibration['num_examples']:,} "
            f"images of {calibration['fitted_on']}. Of 100 answers with a probability of 80 %, 80 "
            "should be right: the mean distance from that (expected calibration error) was "
            f"{before} before and is {after} now."
        )
        blocks.append(_folded(about))
    blocks += [page.Box(cards, "grid")] if cards else []
    prevalences = metrics.get("prevalence", {})
    names = ["sensitivity", "specificity", *(["ppv", "npv"] if prevalences else [])]
    rows: list[list[Any]] = []
    for entry in metrics.get("thresholds", ()):
        num_positives, reached = entry["val"]["num_positives"], entry["test"]
        few = " (few)" if num_positives < _FEW_POSITIVES else ""
        wanted = f"{words.percent(entry['wanted_sensitivity'])} wanted"
        name = page.Cell(entry["view"], f"{wanted}, on {num_positives:,} positives{few}")
        totals = {"sensitivity": reached["num_positives"], "specificity": reached["num_negatives"]}
        cells = [_cell(reached, each, totals.get(each)) for each in names]
        rows.append([name, page.Cell(words.decimal(entry["threshold"]), look="count"), *cells])
    if rows:
        about = result.task.decision
        if prevalences:
            shares = (f"{words.percent(share)} are {name}" for name, share in prevalences.items())
            about += (
                " PPV and NPV are the shares of right answers among yes and among no, where "
                f"{', '.join(shares)} (Altman and Bland 1994)."
            )
        columns = _columns((result.task.kind.noun, "probability from"), names)
        table = page.Table("Thresholds for a wanted sensitivity", columns, rows)
        title = "Thresholds for a wanted sensitivity, chosen on validation, and their results here"
        blocks.append(page.Box([table, _folded(about)], title=title))
    return ("Probabilities", blocks) if blocks else None


def training(result: Result) -> Section:
    """How the network was trained, and on what."""
    manifest = result.manifest
    height, width, channels = manifest.image_shape
    images = {}
    for name, split in manifest.splits.items():
        # Augmented copies are left out; each training image has as many.
        size = 1 + manifest.options.get("variants", 0) * (name == "train")
        images[name] = [count // size for count in (split.num_examples, *split.label_counts)]
    facts = {
        "name": manifest.name,
        "its page": f"{result.dataset.path}/report.html",
        "images": f"{sum(total for total, *_ in images.values()):,} of {width}×{height} pixels, "
        f"{'grey' if channels == 1 else 'colour'}, "
        f"{manifest.label_kind.describe(manifest.label_names)}",
        "fingerprint": manifest.fingerprint,
    }
    labels = manifest.label_names if manifest.num_classes <= words.MAX_CLASSES else ()
    rows = [[name, *counts[: 1 + len(labels)]] for name, counts in images.items()]
    table = page.Table("Images of each split", ["split", "all", *labels], rows)
    frames = [page.Facts(title, values) for title, values in result.facts.items() if values]
    curves = [result.charts[name] for name in ("loss", "accuracy") if name in result.charts]
    return "Training and data", [
        page.Box(curves, "grid") if curves else None,
        page.Box(
            [page.Facts("Dataset", facts), page.Box([table], title=table.label), *frames], "masonry"
        ),
        result.config and page.Details("All settings", [page.Facts("Settings", result.config)]),
    ]


def limits(result: Result) -> Section:
    """What a reader must not conclude from a result."""
    if "scores" not in result.metrics:
        return None
    # The note on what the network has seen stands on top of the page.
    on_top = result.exposure and result.exposure.note
    notes = [sentence(note) for note in result.metrics["notes"] if note != on_top]
    sentences = [*result.limits, *notes]
    return "Limits of this result", [page.Box([page.Items(sentences)])]

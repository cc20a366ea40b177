"""The sections of a result's page, each a function that returns its title and its blocks."""

from __future__ import annotations

import dataclasses
import functools
import os
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io.format.groups import plural_unit
from tfrecord_io.format.manifest import Manifest
from tfrecord_io.pages import page
from tfrecord_io.pages.charts import Chart
from tfrecord_io.pages.pictures import data_url
from tfrecord_io.terminal.printing import counted, listed, number, sentence
from train.data.dataset import Dataset
from train.data.seen import Exposure
from train.kinds import words
from train.kinds.measures import parts_of
from train.kinds.registry import task_of
from train.kinds.task import Task, View
from train.results.examples import ShownAnswer
from train.results.metrics import FEW_BEHIND, FEW_GROUPS
from train.results.predictions import Predictions

#: The page warns of classes with fewer training images than this.
_FEW_IMAGES = 50

#: Settings that the page always shows; a click shows the others.
_MAIN_SETTINGS = (
    "model", "weights", "init", "epochs", "global_batch_size", "optimizer", "learning_rate",
    "schedule", "class_weights", "augment", "precision", "seed",
)  # fmt: skip

# Of fewer positives a sensitivity of 95 % depends on one image, and a line of calibration is noise.
_FEW_POSITIVES = 20

# Most columns and rows of a table of answers on top of the page, mistakes there, and their side.
_MAX_ON_TOP, _MISTAKES_ON_TOP, _SIDE_ON_TOP = 7, 6, 160

COLOURS = page.markup(
    'Right answers are <span class="key"></span> blue, wrong ones <span class="key wrong"></span> '
    "red; the larger the share, the stronger the shade."
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """What came of a network on a dataset, and what is drawn of it for its page.

    Attributes:
        config: of the run, see config.json; `data` alone if this is another dataset.
        metrics: content of metrics.json; on the page empty if there was nothing to evaluate.
        exposure: which measured images the network had seen; None if none was measured.
        own_metrics: those of the training run, if this is another dataset.
        in_folds: splits that were divided into folds.
        is_own: whether the splits of this dataset were those of the training.
        is_copy: whether the folder is uploaded to a URL, from which no link leads to the dataset.
        facts: on the network and how the page was made, by the title of their frame.
        examples: answers with their images, as `Task.examples` names them.
        legend: how to read the pictures that explain mistakes.
    """

    dataset: Dataset
    config: Mapping[str, Any]
    metrics: Mapping[str, Any]
    predictions: Predictions | None = None
    exposure: Exposure | None = None
    history: Sequence[Mapping[str, Any]] = ()
    own_metrics: Mapping[str, Any] | None = None
    in_folds: Sequence[str] = ()
    is_own: bool = True
    is_copy: bool = False
    facts: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    charts: Mapping[str, Sequence[Chart]] = dataclasses.field(default_factory=dict)
    examples: Mapping[str, Sequence[ShownAnswer]] = dataclasses.field(default_factory=dict)
    legend: str = ""
    directory: Path = Path()

    @property
    def manifest(self) -> Manifest:
        return self.dataset.manifest

    @property
    def task(self) -> Task:
        return task_of(self.manifest.label_kind)

    @property
    def folds(self) -> Sequence[Mapping[str, Any]]:
        return self.metrics.get("folds", ())

    @functools.cached_property
    def shown(self) -> list[str]:
        """The labels that the tables have."""
        return words.shown_classes(self.metrics)

    @functools.cached_property
    def views(self) -> list[View]:
        """The rows of the table of labels: each label, and groups of them."""
        views = {view.name: view for view in self.task.views(list(self.metrics["label_counts"]))}
        labels = [views[name] for name in self.shown]
        return [*labels, *(view for view in views.values() if view.is_group)]

    def images_of(self, split: str) -> list[int]:
        """Returns the images of a split and of each label in it, without augmented copies."""
        part = self.manifest.splits[split]
        # Each training image has as many.
        size = 1 + self.manifest.options.get("variants", 0) * (split == "train")
        return [count // size for count in (part.num_examples, *part.label_counts)]

    @property
    def with_lines(self) -> list[View]:
        """The views with enough images for a line of calibration."""
        few, total = _FEW_POSITIVES, self.metrics["num_examples"]
        counts = self.metrics["label_counts"]
        enough = [name for name, count in counts.items() if few <= count <= total - few]
        return [v for v in self.views if v.name in enough or (v.is_group and enough)]


_Found = tuple[str, list[Any]] | None


def sections_of(result: Result) -> list[page.Section]:
    """Returns the sections of a page, of which those without content are left out."""
    chosen = _SECTIONS if result.metrics else ("flow", "training", "limits")
    made = {name: _SECTIONS[name](result) for name in chosen}
    return [page.Section(name, *found) for name, found in made.items() if found]


def _cell(scores: Mapping[str, Any], name: str, total: int | None = None) -> Any:
    """Returns the cell of a measure; the total is what it is a share of, if it is one."""
    score, told = scores.get(name), words.teller_of(name)
    if score is None or score["value"] is None:
        return page.Cell("–" if score is None else "not defined", look="soft")
    value, ends = score["value"], [score[name] for name in ("value", "low", "high")]
    interval = words.ends(score, told) if score["low"] is not None else ""
    ends = [] if told is words.decimal else ends if interval else ends[:1]
    return page.Measure(told(value), words.count_of(value, total), interval, ends)


def _name(view: View, small: str = "") -> page.Cell:
    """Returns the first cell of a row; a group stands below a line."""
    return page.Cell(view.name, small, "view" if view.is_group else "")


def folded(text: str) -> page.Details:
    """Returns a text that a phone shows after a click."""
    return page.Details("What the figures mean", [text], "fold")


def matrix_of(result: Result) -> page.Table | None:
    """Returns the table of right and wrong answers if it is small enough for the first screen."""
    table = result.task.answers(result.metrics)
    return table if table and max(len(table.columns), len(table.rows)) <= _MAX_ON_TOP else None


def figures_on_top(result: Result) -> list[Any]:
    """Returns what stands beside the first sentences: right and wrong answers, and mistakes."""
    table, mistakes = matrix_of(result), result.examples.get("wrong", ())[:_MISTAKES_ON_TOP]
    blocks = [page.Box([table._replace(caption=table.label), COLOURS])] if table else []
    pictures = [
        (data_url(each.pictures["what the network sees"], _SIDE_ON_TOP), _told(each))
        for each in mistakes
    ]
    link = page.markup('<a href="#answers">Mistakes</a>, the surest first')
    return [*blocks, link, page.Pictures(pictures)] if pictures else blocks


def _columns(first: Iterable[str], measures: Iterable[str]) -> list[str]:
    return [*first, *map(words.title_of, measures)]


def _classes(result: Result) -> _Found:
    task, metrics, kind = result.task, result.metrics, result.task.kind
    prevalence, counts = metrics.get("prevalence", {}), metrics["label_counts"]
    about, unit = f"{page.spelled_out(counts)} {task.glossary}", metrics["bootstrap_by"]
    if metrics["bootstrap_samples"]:
        bars = "; a bar from 0 to 1 shows the figure as a mark and the interval as a darker stretch"
        about += f" The figures in grey are 95 % intervals over {plural_unit(unit)}{bars}."
    if prevalence:
        shares = ", ".join(
            f"{words.percent(share)} are {name}" for name, share in prevalence.items()
        )
        about += (
            " PPV and NPV are the shares of right answers among yes and among no, where "
            f"{shares} (Altman and Bland 1994)."
        )
    columns, rows = [*task.label_measures, *(("ppv", "npv") if prevalence else ())], []
    for view in result.views:
        groups = metrics["label_groups"].get(view.name, FEW_BEHIND)
        small = f"few: {counted(groups, unit, plural_unit(unit))}" if groups < FEW_BEHIND else ""
        if view.is_group:
            small = " or ".join(list(counts)[place] for place in view.places)
        totals = [words.total_of(metrics, view.of(name)) for name in columns]
        cells = [
            _cell(metrics["scores"], view.of(name), total)
            for name, total in zip(columns, totals, strict=True)
        ]
        rows.append([_name(view, small), counts.get(view.name, totals[0]), *cells])
    columns = _columns((kind.noun, "images"), columns)
    title = "The {} {} with the lowest sensitivity; "
    title += '<a href="metrics.json">metrics.json</a> has the other {}'
    num_more = len(counts) - len(rows)
    title = page.markup(title, str(len(rows)), kind.plural, f"{num_more:,}") if num_more > 0 else ""
    card = page.Box([page.Table(f"Measures of each {kind.noun}", columns, rows)], title=title)
    cautions = (page.Note(text, "caution") for text in words.cautions_of_answers(metrics))
    return kind.plural.capitalize(), [folded(about), card, *cautions]


def _by(result: Result) -> _Found:
    task, metrics = result.task, result.metrics
    by = {"site": metrics.get("sites")} | metrics.get("by", {})
    tables = []
    for column, values in by.items():
        rows = [
            [name, found["num_examples"], found["num_patients"]]
            + [_cell(found["scores"], each) for each in task.run_measures]
            for name, found in (values or {}).items()
        ]
        columns = _columns((column, "images", "patients"), task.run_measures)
        tables += [page.Box([page.Table(f"Measures of each {column}", columns, rows)])] * bool(rows)
    names = [name for name in by if by[name]]
    told = (
        f"The same measures for the images of each {' or '.join(names)} alone. One that is much "
        "worse than the others may have other devices, people or labels."
    )
    return (f"By {', '.join(names)}", [told, *tables]) if tables else None


def _comparison(result: Result) -> _Found:
    metrics, own = result.metrics, result.own_metrics or {}
    has_line = {view.name for view in result.with_lines}
    hidden = set(metrics["label_counts"]).difference(result.shown)
    rows: dict[str, list[Any]] = {}
    for name in metrics["scores"]:
        _, label = parts_of(name)
        is_shown = label not in hidden and ("calibration_" not in name or label in has_line)
        if is_shown and name in own.get("scores", {}):
            first = [[page.Cell(label, look="view"), "", ""]] if label else []
            cells = (_cell(each["scores"], name) for each in (own, metrics))
            rows.setdefault(label, first).append([words.known(name).title, *cells])
    told = (
        f"The same network on the {own.get('split')} split of the dataset that it was trained on, "
        "and on this one. Intervals that overlap say little about a difference."
    )
    columns, label = ("measure", "training run", "this dataset"), "Measures of the training run"
    in_order = [row for of_label in rows.values() for row in of_label]
    table = page.Table(f"{label} and of this dataset", columns, in_order)
    return ("Beside the training run", [told, page.Box([table])]) if rows else None


def _answers(result: Result) -> _Found:
    task, metrics = result.task, result.metrics
    matrices = [metrics.get("confusion_matrix"), *metrics.get("confusion_matrices", {}).values()]
    num_wrong = sum(int(np.sum(matrix) - np.trace(matrix)) for matrix in matrices if matrix)
    none = "" if num_wrong else "The network made no mistakes."
    # A small table stands on top of the page.
    table = None if matrix_of(result) else task.answers(metrics)
    card = [table and page.Heading(table.label), table, table and COLOURS, none]
    first = f"The {len(result.examples.get('wrong', ()))} of {number(num_wrong)} "
    first += "wrong answers with the highest probability."
    blocks = [page.Box(card) if any(card) else None]
    for name, title, told, legend in (
        ("wrong", "Mistakes", first, result.legend),
        ("right", "Right answers", f"The surest right answer for each {task.kind.noun}.", ""),
        ("unsure", "Unsure answers", "The answers with the lowest probability.", ""),
    ):
        if shown := [_figure(each) for each in result.examples.get(name, ())]:
            told = page.markup("{}{} A click on a picture enlarges it.", told, legend)
            blocks += [page.Heading(title), told, page.Box(shown, "figures")]
    return "Answers", blocks


def _told(example: ShownAnswer) -> str:
    answer = example.answer
    return f"truth {answer.true}, answer {answer.predicted}, {example.path}"


def _figure(example: ShownAnswer) -> page.Figure:
    """Returns the pictures of an answer, and what it is."""
    answer = example.answer
    sides = [(source, f"{what}: {_told(example)}", "") for what, source in example.urls().items()]
    sure = words.percent(answer.probability)
    caption = "truth <strong>{}</strong>, answer <strong>{}</strong>, {} sure"
    caption = page.markup(caption, answer.true, answer.predicted, sure)
    return page.Figure(sides, caption, example.path)


def _spread(result: Result) -> _Found:
    task, folds, labels = result.task, result.folds, result.metrics["label_counts"]
    told = (
        "How much a figure varies with the patients that are evaluated. A difference between two "
        "settings that is smaller than this may be chance."
    )
    has_all = len(labels) == len(result.shown)
    rows = [
        [words.title_of(name), *map(words.thousandths, row.values())]
        for name, row in result.metrics.get("spread", {}).items()
        # Of the classes, the spread has the sensitivity; of many classes, nothing.
        if name.partition("/")[2] not in labels or (has_all and name.startswith("sensitivity/"))
    ]
    runs = []
    for run in folds:
        texts = [page.markup('<a href="fold-{0}/report.html">{0}</a>', str(run["fold"]))]
        texts += [words.teller_of(each)(run["scores"].get(each)) for each in task.run_measures]
        runs.append([page.Cell(text, look="count") for text in texts])
    columns = ["measure", "mean", "standard deviation"]
    spread = page.Table("Spread over folds", columns, rows)
    columns = _columns(("fold",), task.run_measures)
    each = page.Table("Each run of the cross-validation", columns, runs, look="tall")
    boxes = [page.Box([spread], title="Mean and standard deviation")]
    boxes.append(page.Box([each], title="Each run"))
    return ("Cross-validation", [folded(told), page.Box(boxes, "grid")]) if folds else None


def _probabilities(result: Result) -> _Found:
    metrics, noun, charts = result.metrics, result.task.kind.noun, result.charts
    cards = [*charts.get("roc", ()), *charts.get("reliability", ())]
    names = ("calibration_slope", "calibration_intercept")
    rows = [
        [_name(view), *(_cell(metrics["scores"], view.of(name)) for name in names)]
        for view in result.with_lines
    ]
    if rows:
        told = (
            "Logistic recalibration (Cox 1958): a slope below 1 means that the probabilities are "
            "too extreme, an intercept below 0 that they are too high; 1 and 0 are perfect. The "
            "Brier score, the mean squared distance of the probabilities from the truth, is "
            f"{words.with_interval(metrics['scores']['brier'])}; 0 is perfect."
        )
        title = f"Calibration of each {noun}"
        table = page.Table(title, [noun, "slope", "intercept"], rows)
        cards.append(page.Box([table, folded(told)], title=f"{title} against the rest"))
    calibration, thresholds = metrics.get("calibration"), metrics.get("thresholds")
    if not (cards or calibration or thresholds):
        return None
    title = "Thresholds for a wanted sensitivity, chosen on validation, and their results here"
    return "Probabilities", [
        folded(_about(calibration, bool(result.folds))) if calibration else "",
        *(page.Note(text, "caution") for text in words.cautions_of_probabilities(metrics)),
        page.Box(cards, "grid"),
        page.Box(_thresholds(result), title=title) if thresholds else "",
    ]


def _about(calibration: Mapping[str, Any], is_in_folds: bool) -> str:
    """Returns how far probabilities can be believed, before and after a temperature."""
    before, after = (words.percent(calibration[f"ece_{when}"]) for when in ("before", "after"))
    temperature = f"{calibration['temperature']:.2f}"
    told = "Of 100 answers with a probability of 80 %, 80 should be right. "
    distance = "mean distance from the diagonal (expected calibration error)"
    if is_in_folds:
        return told + (
            f"The outputs of these networks are not calibrated: the {distance} is {before}. "
            f"Divided by a temperature, {temperature} on average and for each fold fitted on the "
            f"others, it would be {after}."
        )
    return told + (
        "Before they become probabilities, the network's outputs are divided by a temperature of "
        f"{temperature}, fitted on {calibration['num_examples']:,} images of "
        f"{calibration['fitted_on']}. The {distance} was {before} before and is {after} now."
    )


def _thresholds(result: Result) -> list[Any]:
    """Returns the rates that thresholds reach, over images and over patients."""
    columns = ["sensitivity", "specificity"]
    columns += ["ppv", "npv"] if result.metrics.get("prevalence") else []
    rows: list[list[Any]] = []
    for entry in result.metrics["thresholds"]:
        if words.separates_nothing(*(entry["test"][rate]["value"] for rate in columns[:2])):
            continue
        num_positives = entry["val"]["num_positives"]
        few = " (few)" if num_positives < _FEW_POSITIVES else ""
        wanted = f"{words.percent(entry['wanted_sensitivity'])} wanted"
        name = page.Cell(entry["view"], f"{wanted}, on {num_positives:,} positives{few}")
        for unit, key in (("images", "test"), ("patients", "test_by_patient")):
            if reached := entry.get(key):
                positives, negatives = reached["num_positives"], reached["num_negatives"]
                count = f"{positives:,} of {positives + negatives:,}"
                first = page.Cell(words.decimal(entry["threshold"]), look="count")
                totals = {"sensitivity": positives, "specificity": negatives}
                cells = [_cell(reached, each, totals.get(each)) for each in columns]
                rows.append([name, first, unit, page.Cell(count, look="count"), *cells])
    told = (
        f"{result.task.decision} A patient is positive if any of its images is, and is called "
        "positive if the mean of their probabilities reaches the threshold."
    )
    columns = _columns((result.task.kind.noun, "probability from", "counted", "positive"), columns)
    table = page.Table("Thresholds for a wanted sensitivity", columns, rows)
    return [table if rows else "None of them separates anything here.", folded(told)]


def _flow(result: Result) -> _Found:
    return "From the files to the figures", [page.Flow(flow_of(result))]


def _training(result: Result) -> _Found:
    manifest, data = result.manifest, f"{result.config.get('data')}/report.html"
    height, width, channels = manifest.image_shape
    measures = manifest.audit.get("measures", {})
    images = {name: result.images_of(name) for name in manifest.splits}
    splits = "new, without patients: none is known, so a patient can be in several"
    if manifest.options.get("splits", "source") == "source":
        splits = "the splits of the source"
    elif measures.get("examples_without_patient") == 0:
        splits = "new, each patient in one split"
    elif measures.get("patients"):
        splits = "new, each patient in one split as far as patients are known"
    url = page_of_data(result)
    facts = {
        "name": manifest.name,
        "its page": page.markup('<a href="{}">{}</a>', url, data) if url else data,
        "images": f"{sum(total for total, *_ in images.values()):,} of {width}×{height} pixels, "
        f"{'grey' if channels == 1 else 'colour'}, "
        f"{manifest.label_kind.describe(manifest.label_names)}",
        "splits": splits,
        "fingerprint": manifest.fingerprint,
    }
    labels = manifest.label_names if manifest.num_classes <= words.MAX_CLASSES else ()
    rows = [[name, *counts[: 1 + len(labels)]] for name, counts in images.items()]
    table = page.Table("Images of each split", ["split", "all", *labels], rows)
    # An evaluation's configuration has the defaults of a training, which are not the run's.
    settings = result.config if result.own_metrics is None else {}
    recipe = {name: settings[name] for name in _MAIN_SETTINGS if name in settings}
    others = {name: value for name, value in settings.items() if name not in recipe}
    more = {"Recipe": recipe, **result.facts}
    frames = [page.Facts(title, values) for title, values in more.items() if values]
    card, curves = page.Box([table], title=table.label), result.charts.get("curves")
    return "Training and data", [
        curves and page.Box(curves, "grid"),
        page.Box([page.Facts("Dataset", facts), card, *frames], "masonry"),
        others and page.Details("All other settings", [page.Facts("Settings", others)]),
    ]


def _limits(result: Result) -> _Found:
    """Returns what a reader must not conclude from a result."""
    metrics, manifest = result.metrics, result.manifest
    told, notes = [], []
    is_own = result.own_metrics is None
    if metrics:
        more = "; evaluate it on such a dataset before you rely on it elsewhere" if is_own else ""
        told.append(
            "All images come from one collection. A network is often worse on images of another "
            f"clinic or device{more}."
        )
        # The note on what the network has seen stands on top of the page.
        on_top = result.exposure and result.exposure.note
        notes = [sentence(note) for note in metrics["notes"] if note != on_top]
        told += notes
        if 0 < (metrics["num_patients"] or 0) < FEW_GROUPS:
            patients = counted(metrics["num_patients"], "patient")
            told.append(f"{patients} cannot represent all patients.")
        if is_own and not result.folds:
            told.append(
                "This is one run. Another seed or another choice of patients gives another result; "
                "a cross-validation (--folds 5) shows how much it varies."
            )
    learnt = result.images_of("train")[1:] if is_own and "train" in manifest.splits else ()
    counts = zip(manifest.label_names, learnt, strict=False)
    if rare := [name for name, count in counts if count < _FEW_IMAGES]:
        told.append(
            f"There are fewer than {_FEW_IMAGES} training images of {listed(rare)}. More of them "
            "would probably help most."
        )
    for finding in manifest.audit.get("findings", []):
        said = f"The dataset's audit says: {sentence(finding['title'])}"
        is_told = any(note.startswith(said.removesuffix(".")) for note in notes)
        if finding["severity"] in ("problem", "warning") and not is_told:
            told.append(said)
    return ("Limits of this result", [page.Box([page.Items(told)])]) if told else None


def page_of_data(result: Result) -> str | None:
    """Returns the URL of the page of the dataset relative to this page, or None if there is none.

    That of a dataset with codes could name folders that the command did not name.
    """
    path = Path(str(result.dataset.path)) / "report.html"
    if result.is_copy or not path.is_file() or result.manifest.has_codes:
        return None
    return urllib.parse.quote(os.fsencode(os.path.relpath(path, result.directory)))


# ---- the flow of images and patients, as the diagrams of STARD 2015 and CONSORT 2010


def flow_of(result: Result) -> list[list[page.Step]]:
    """Returns the steps of the flow; the boxes of a step stand beside each other."""
    manifest, metrics, in_folds = result.manifest, result.metrics, result.in_folds
    split = str(metrics.get("split"))
    measured = in_folds or (list(manifest.splits) if split == "all" else split.split(","))
    columns = ("split", "variant", "patient")
    table = pa.table({name: result.dataset.column(name) for name in columns})
    uses = dict.fromkeys(measured, "measured")
    if result.is_own:
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


#: The sections in their order, by anchor.
_SECTIONS: Mapping[str, Callable[[Result], _Found]] = {
    make.__name__.removeprefix("_"): make
    for make in (
        *(_classes, _by, _comparison, _answers, _spread, _probabilities),
        *(_flow, _training, _limits),
    )
}

"""The page of a result: HTML without scripts, to read first."""

from __future__ import annotations

import collections
import os
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io.format.groups import plural_unit
from tfrecord_io.format.manifest import Manifest
from tfrecord_io.pages.charts import Chart
from tfrecord_io.pages.page import environment
from tfrecord_io.terminal.printing import counted, listed
from train.data.dataset import Dataset
from train.kinds import words
from train.kinds.measures import parts_of
from train.kinds.registry import task_of
from train.kinds.task import Task, View
from train.results.metrics import FEW_BEHIND, FEW_GROUPS

#: The page warns of classes with fewer training images than this.
_FEW_IMAGES = 50

#: Settings that the page always shows; a click shows the others.
_MAIN_SETTINGS = (
    "model", "weights", "init", "epochs", "global_batch_size", "optimizer", "learning_rate",
    "schedule", "class_weights", "augment", "precision", "seed",
)  # fmt: skip

# Entries that not every metrics.json has.
_NO_ENTRIES = {"thresholds": (), "prevalence": {}, "folds": (), "spread": {}, "calibration": None}

# A line of calibration through fewer images of a class, or fewer others, is not shown.
_FEW_ON_A_LINE = 20


def page_of_data(data: str, directory: Path, manifest: Manifest) -> str | None:
    """Returns the URL of the page of a dataset relative to a run's, or None if there is none.

    That of an anonymous dataset could name folders that the command did not name.
    """
    page = Path(data) / "report.html"
    if not page.is_file() or manifest.has_codes:
        return None
    return urllib.parse.quote(os.fsencode(os.path.relpath(page, directory)))


def render(
    *,
    manifest: Manifest,
    metrics: Mapping[str, Any],
    config: Mapping[str, Any],
    own_metrics: Mapping[str, Any] | None,
    charts: Mapping[str, Sequence[Chart]],
    **facts: Any,
) -> str:
    """Returns the HTML of the page of a run.

    The metrics are empty if there was nothing to evaluate, and `own_metrics` are those of the
    training run if the page is of another dataset. The facts are what `write_results` passes on
    to the template.
    """
    task = task_of(manifest.label_kind)
    templates = environment(Path(__file__).parent)
    in_words = words.percent, words.decimal, words.title_of
    for function in (*in_words, plural_unit, counted, listed, sentence):
        templates.filters[function.__name__] = function
    # An evaluation's configuration has the defaults of a training, which are not the run's.
    settings = config if own_metrics is None else {}
    # The export of a run may have been given.
    run = Path(metrics.get("model", "").removesuffix("/export")).resolve().name
    return templates.get_template("report.html.jinja").render(
        facts,
        manifest=manifest,
        metrics=metrics and _NO_ENTRIES | metrics,
        own_metrics=own_metrics,
        run=run,
        task=task,
        kind=task.kind,
        words=words,
        few_behind=FEW_BEHIND,
        limits=list(_limits(manifest, metrics, facts)),
        **(_results(task, metrics, own_metrics or {}) if metrics else {}),
        charts=collections.defaultdict(tuple, charts),
        data=config.get("data"),
        settings={name: settings[name] for name in _MAIN_SETTINGS if name in settings},
        other_settings={n: value for n, value in settings.items() if n not in _MAIN_SETTINGS},
    )


def _results(
    task: Task, metrics: Mapping[str, Any], own_metrics: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns what the sections on the results show beside metrics.json."""
    scores, labels = metrics["scores"], list(metrics["label_counts"])
    shown, own = words.shown_classes(metrics), own_metrics.get("scores", {})
    hidden = set(labels).difference(shown)
    views = {view.name: view for view in task.views(labels)}
    matrices = [metrics.get("confusion_matrix"), *metrics.get("confusion_matrices", {}).values()]
    wrong = sum(np.sum(matrix) - np.trace(matrix) for matrix in matrices if matrix)
    # A number is the only one, and has no view.
    rows = [
        *(views.get(name, View(name, [])) for name in shown),
        *(view for view in views.values() if view.is_group),
    ]
    few, total = _FEW_ON_A_LINE, metrics["num_examples"]
    enough = [name for name, n in metrics["label_counts"].items() if few <= n <= total - few]
    enough += [view.name for view in rows if view.is_group and enough]
    both = [n for n in scores if n in own and ("calibration_" not in n or parts_of(n)[1] in enough)]
    return {
        "verdict": task.verdict(metrics),
        "doubt": task.doubt(metrics),
        "rows": rows,
        "lines": [view for view in rows if view.name in enough],
        "num_more_classes": len(hidden),
        "by": ({"site": metrics["sites"]} if "sites" in metrics else {}) | metrics.get("by", {}),
        "own": own,
        "comparison": {
            label: [name for name in both if parts_of(name)[1] == label]
            for label in dict.fromkeys(parts_of(name)[1] for name in both)
            if label not in hidden
        },
        "answers": task.answers(metrics),
        "num_mistakes": int(wrong) if task.gives_probabilities else metrics["num_examples"],
        # Of the classes, the spread has the sensitivity; of many classes, nothing.
        "spread": {
            name: spread
            for name, spread in metrics.get("spread", {}).items()
            if name.partition("/")[2] not in labels
            or (not hidden and name.startswith("sensitivity/"))
        },
    }


def _limits(
    manifest: Manifest, metrics: Mapping[str, Any], facts: Mapping[str, Any]
) -> Iterator[str]:
    """Yields what a reader must not conclude from a result; the arguments are those of `render`."""
    notes: list[str] = []
    if metrics:
        yield (
            "All images come from one collection. A network is often worse on images of another "
            "clinic or device; evaluate it on such a dataset before you rely on it elsewhere."
        )
        # The note on what the network has seen stands on top of the page.
        on_top = facts["exposure"] and facts["exposure"].note
        notes = [sentence(note) for note in metrics["notes"] if note != on_top]
        yield from notes
        if metrics["num_patients"] and metrics["num_patients"] < FEW_GROUPS:
            yield f"{counted(metrics['num_patients'], 'patient')} cannot represent all patients."
        if not metrics.get("folds"):
            yield (
                "This is one run. Another seed or another choice of patients gives another result; "
                "a cross-validation (--folds 5 --seeds 3) shows how much it varies."
            )
    # Another dataset that is evaluated may have no training images.
    learnt = manifest.splits["train"].label_counts if "train" in manifest.splits else ()
    counts = zip(manifest.label_names, learnt, strict=False)
    if rare := [name for name, count in counts if count < _FEW_IMAGES]:
        yield (
            f"There are fewer than {_FEW_IMAGES} training images of {listed(rare)}. More of them "
            "would probably help most."
        )
    for finding in manifest.audit.get("findings", []):
        told = f"The dataset's audit says: {sentence(finding['title'])}"
        if finding["severity"] in ("problem", "warning") and told not in notes:
            yield told


def sentence(text: str) -> str:
    """Returns a note as a sentence, with a capital and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


# ---- the flow of images and patients, as the diagrams of STARD 2015 and CONSORT 2010


class Box(NamedTuple):
    """Some images at one step: what they are, how many, and more about them.

    `left_out` tells why some are not in the next step, and how many. `is_measured` tells whether
    the figures are about them.
    """

    title: str
    lines: Sequence[str]
    left_out: Sequence[tuple[str, int]] = ()
    is_measured: bool = False


def flow_of(
    dataset: Dataset, metrics: Mapping[str, Any], *, in_folds: Sequence[str] = (), is_own: bool
) -> list[list[Box]]:
    """Returns the steps of the flow; the boxes of a step stand beside each other.

    For the arguments see `write.write_results`; the metrics are empty if nothing was measured, and
    `is_own` tells whether the network was trained on this dataset.
    """
    manifest, split = dataset.manifest, str(metrics.get("split"))
    table = pa.table({name: dataset.column(name) for name in ("split", "variant", "patient")})
    uses = {split: "measured"}
    if is_own:
        watched = "chose temperature and thresholds" if metrics.get("calibration") else None
        uses = {"train": "trained on", "val": watched or "watched during training"} | uses
    if in_folds:
        uses = dict.fromkeys(in_folds, "divided into folds")

    def box(title: str, num_examples: int, rows: pa.Table, *lines: str) -> Box:
        copies = pc.sum(pc.greater(rows["variant"], 0)).as_py() or 0
        more = [f"and {counted(copies, 'augmented copy', 'augmented copies')}"] if copies else []
        num_patients = pc.count_distinct(rows["patient"]).as_py()
        people = words.images_of(num_examples - copies, num_patients)
        left_out = []
        if title == split and metrics.get("seen_images") and not metrics.get("include_seen"):
            why = "seen by the network before, or of the same patients"
            left_out = [(why, metrics["seen_images"])]
        is_measured = title in (in_folds or [split])
        return Box(title, [people, *more, *lines], left_out, is_measured)

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
        steps.insert(0, [Box("source", [counted(files, "file")], left_out)])
    return [*steps, [_figures(metrics)]] if metrics else steps


def _figures(metrics: Mapping[str, Any]) -> Box:
    """Returns the images behind the figures, and those of each label unless there are many."""
    lines = [words.images_of(metrics["num_examples"], metrics["num_patients"])]
    groups, unit = metrics["label_groups"], metrics["bootstrap_by"]
    if groups and len(groups) <= words.MAX_CLASSES:
        for name, count in metrics["label_counts"].items():
            behind = f" of {counted(groups[name], unit, plural_unit(unit))}"
            lines.append(f"{name}: {counted(count, 'image')}{behind if unit != 'image' else ''}")
    return Box(f"measured: {metrics['split']}", lines, is_measured=True)

"""The files of a result: a table, plots, and one HTML page without scripts, to read first."""

from __future__ import annotations

import collections
import datetime
import os
import platform
import shlex
import sys
import types
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io import redaction, visible
from tfrecord_io.auditing import pages
from tfrecord_io.auditing.findings import alarms
from tfrecord_io.files import atomic_write
from tfrecord_io.groups import plural_unit
from tfrecord_io.manifest import Manifest
from tfrecord_io.printing import counted, listed
from train.data.dataset import Dataset
from train.data.seen import Exposure
from train.kinds import words
from train.kinds.registry import task_of
from train.kinds.task import Mistake, Task, View
from train.results import saliency
from train.results.charts import Chart, write_charts
from train.results.metrics import FEW_BEHIND, FEW_GROUPS
from train.results.predictions import Predictions, write_predictions
from train.run_setup import versions

FILE_NAME = "report.html"
PLOTS_NAME = "plots"

#: Most mistakes on the page; their pictures, two each, take most of its bytes.
MAX_MISTAKES = 12

_PICTURE_SIDE = 224

#: The page warns of classes with fewer training images than this.
_FEW_IMAGES = 50

#: Settings that the page always shows; a click shows the others.
_MAIN_SETTINGS = (
    "model", "weights", "epochs", "global_batch_size", "optimizer", "learning_rate",
    "schedule", "class_weights", "augment", "precision", "seed",
)  # fmt: skip

# Facts that not every page has.
_NO_FACTS = {
    "made": {}, "versions": {}, "data_page": None, "exposure": None, "mistakes": (), "flow": (),
}  # fmt: skip

# Entries that not every metrics.json has.
_NO_ENTRIES = {"thresholds": (), "prevalence": {}, "folds": (), "spread": {}, "calibration": None}


class MistakenImage(NamedTuple):
    """A mistake with its image [height, width, channels] and map, see `saliency.occlusion_map`.

    The path is that of the source file, or the key if the dataset does not name files.
    """

    answer: Mistake
    image: np.ndarray
    drops: np.ndarray
    path: str

    def pictures(self) -> dict[str, str]:
        """Returns the data URLs of its pictures by what they show."""
        shown = {
            "what the network sees": visible.picture(self.image),
            "what mattered": visible.picture(saliency.overlay(self.image, self.drops)),
        }
        return {name: pages.data_url(shown[name], _PICTURE_SIDE, "PNG") for name in shown}


def write_results(
    directory: Path,
    *,
    dataset: Dataset,
    settings: Mapping[str, Any],
    results: Mapping[str, Any],
    exposure: Exposure | None,
    predictions: Predictions | None,
    predict: saliency.Predict | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    own_metrics: Mapping[str, Any] | None = None,
    in_folds: Sequence[str] = (),
) -> dict[str, Any]:
    """Writes predictions.csv, plots/ and report.html.

    Args:
        directory: created if it is missing.
        dataset: that was evaluated.
        settings: of the run, see config.json; `data` alone if this is another dataset.
        results: content of metrics.json so far.
        exposure: how many of the measured images the network has seen; None if none was measured.
        predictions: the measured predictions; None if there was no example to predict.
        predict: for the maps of the mistakes; None for no maps.
        history: one row per epoch.
        own_metrics: metrics of the training run, if this is another dataset.
        in_folds: splits that were divided into folds.

    Returns:
        the content of metrics.json, which the caller writes, with what was seen and the notes.
    """
    directory.mkdir(parents=True, exist_ok=True)
    notes = [*results.get("notes", ()), *alarms(dataset.manifest.audit)]
    if exposure:
        results = {**results, **exposure.to_dict()}
        notes += [exposure.note] if exposure.note else []
    results = {**results, "notes": notes}
    measured = results if predictions is not None else {}
    mistakes: list[MistakenImage] = []
    if predictions is not None:
        write_predictions(directory, predictions)
        mistakes = find_mistakes(predict, dataset, predictions) if predict else []
    page = render(
        title=directory.resolve().name,
        manifest=dataset.manifest,
        config=settings,
        metrics=measured,
        exposure=exposure,
        own_metrics=own_metrics,
        charts=write_charts(directory / PLOTS_NAME, history, measured, predictions),
        mistakes=mistakes,
        flow=flow_of(dataset, measured, in_folds=in_folds, is_own=own_metrics is None),
        made={
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "command": redaction.without_secrets(shlex.join(sys.argv)),
            "devices": ", ".join(keras.distribution.list_devices()),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        },
        versions=versions(),
        data_page=page_of_data(str(dataset.path), directory, dataset.manifest),
    )
    with atomic_write(directory / FILE_NAME) as file:
        file.write(page.encode("utf-8"))
    return results


def page_of_data(data: str, directory: Path, manifest: Manifest) -> str | None:
    """Returns the URL of the page of a dataset relative to a run's, or None if there is none.

    That of an anonymous dataset names no folder that the command did not name.
    """
    page = Path(data) / FILE_NAME
    if not page.is_file():
        return None
    path = os.path.relpath(page, directory)
    named = {os.pardir, *page.parts, *directory.parts}
    if "anonymize" in manifest.options and not named.issuperset(Path(path).parts):
        return None
    return urllib.parse.quote(os.fsencode(path))


def find_mistakes(
    predict: saliency.Predict, dataset: Dataset, predictions: Predictions
) -> list[MistakenImage]:
    """Returns the worst mistakes on one part of the dataset; each costs about 150 predictions.

    `predict` is the function of stored images that gave the probabilities.
    """
    part, examples = predictions.part, predictions.examples
    answers = predictions.task.mistakes(predictions, MAX_MISTAKES)
    if part is None or not answers:
        return []
    images = dataset.pictures(part, [answer.place for answer in answers])
    sizes = saliency.patch_and_stride(images.shape[1:])
    mistakes = []
    for answer, image in zip(answers, images, strict=True):
        drops = saliency.occlusion_map(predict, image, *sizes, answer.output)
        # The probability of a negative answer rises where that of its label drops.
        drops = -drops if answer.is_negative else drops
        path = (examples.paths or examples.keys)[answer.place]
        mistakes.append(MistakenImage(answer, image, drops, path))
    return mistakes


def render(
    *,
    manifest: Manifest,
    metrics: Mapping[str, Any],
    config: Mapping[str, Any],
    own_metrics: Mapping[str, Any] | None = None,
    charts: Mapping[str, Sequence[tuple[Chart, str]]] = types.MappingProxyType({}),
    **facts: Any,
) -> str:
    """Returns the HTML of the page of a run.

    The metrics are empty if there was nothing to evaluate, and `own_metrics` are those of the
    training run if the page is of another dataset. The facts are what `write_results` passes on:
    the `title`, and what stands in `_NO_FACTS`.
    """
    task = task_of(manifest.label_kind)
    environment = pages.environment(Path(__file__).parent)
    in_words = words.percent, words.decimal, words.title_of
    for function in (*in_words, plural_unit, counted, listed, sentence):
        environment.filters[function.__name__] = function
    # An evaluation's configuration has the defaults of a training, which are not the run's.
    settings = config if own_metrics is None else {}
    # Another dataset that is evaluated may have no training images.
    learnt = manifest.splits["train"].label_counts if "train" in manifest.splits else ()
    counts = zip(manifest.label_names, learnt, strict=False)
    return environment.get_template("report.html.jinja").render(
        _NO_FACTS | facts,
        manifest=manifest,
        metrics=metrics and _NO_ENTRIES | metrics,
        own_metrics=own_metrics,
        task=task,
        kind=task.kind,
        words=words,
        few_behind=FEW_BEHIND,
        few_groups=FEW_GROUPS,
        few_images=_FEW_IMAGES,
        rare=[name for name, count in counts if count < _FEW_IMAGES],
        images_name=manifest.source["dataset"]["name"] if manifest.holds_features else None,
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
    return {
        "verdict": task.verdict(metrics),
        "doubt": task.doubt(metrics),
        # A number is the only one, and has no view.
        "rows": [
            *(views.get(name, View(name, [])) for name in shown),
            *(view for view in views.values() if view.is_group),
        ],
        "num_more_classes": len(hidden),
        "by": ({"site": metrics["sites"]} if "sites" in metrics else {}) | metrics.get("by", {}),
        "own": own,
        "comparison": [n for n in scores if n in own and n.partition("/")[2] not in hidden],
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

    Args:
        dataset: that was measured.
        metrics: content of metrics.json; empty if nothing was measured.
        in_folds: splits that were divided into folds.
        is_own: whether the network was trained on this dataset.
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
        people = _people(num_examples - copies, pc.count_distinct(rows["patient"]).as_py())
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
    lines = [_people(metrics["num_examples"], metrics["num_patients"] or 0)]
    groups, unit = metrics["label_groups"], metrics["bootstrap_by"]
    if groups and len(groups) <= words.MAX_CLASSES:
        for name, count in metrics["label_counts"].items():
            behind = f" of {counted(groups[name], unit, plural_unit(unit))}"
            lines.append(f"{name}: {counted(count, 'image')}{behind if unit != 'image' else ''}")
    return Box(f"measured: {metrics['split']}", lines, is_measured=True)


def _people(num_images: int, num_patients: int) -> str:
    people = f" of {counted(num_patients, 'patient')}" if num_patients else ""
    return f"{counted(num_images, 'image')}{people}"

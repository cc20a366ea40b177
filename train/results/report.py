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
from train.kinds.measures import CALIBRATION_LINE, PREDICTIVE_VALUES, URGENT_CLASSES
from train.kinds.registry import task_of
from train.kinds.task import Mistake, Task, View
from train.results import saliency
from train.results.charts import Chart, charts_of, data_url, write_plots
from train.results.flow import Box, flow_of
from train.results.metrics import FEW_BEHIND, FEW_GROUPS
from train.results.predictions import Predictions, write_predictions
from train.run_folder import versions

FILE_NAME = "report.html"
PLOTS_NAME = "plots"

#: Most mistakes on the page; their pictures, two each, take most of its bytes.
MAX_MISTAKES = 12

_MAX_RUNS = 60
_PICTURE_SIDE = 224

#: With fewer positive validation images than this, a threshold is marked as rough: a sensitivity of
#: 95 % then depends on a single image.
_FEW_POSITIVES = 20

#: The page warns of classes with fewer training images than this.
_FEW_IMAGES = 50

#: Settings that the page always shows; a click shows the others.
_MAIN_SETTINGS = (
    "model", "weights", "epochs", "global_batch_size", "optimizer", "learning_rate",
    "schedule", "class_weights", "augment", "precision", "seed",
)  # fmt: skip

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

    def pictures(self) -> list[tuple[str, str]]:
        """Returns its pictures as (data URL, what it shows)."""
        return [
            (pages.data_url(visible.picture(pixels), _PICTURE_SIDE, "PNG"), what)
            for pixels, what in (
                (self.image, "what the network sees"),
                (saliency.overlay(self.image, self.drops), "what mattered"),
            )
        ]


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
        predict: stored images → probabilities, for the maps of the mistakes; None for no maps.
        history: one row per epoch.
        own_metrics: metrics of the training run, if this is another dataset.
        in_folds: splits that were divided into folds.

    Returns:
        the content of metrics.json, which the caller writes: the results, what was seen, and the
        notes with those on the data.
    """
    directory.mkdir(parents=True, exist_ok=True)
    notes = [*results.get("notes", ()), *alarms(dataset.manifest.audit)]
    seen = exposure.to_dict() if exposure else {}
    if exposure and exposure.note:
        notes.append(exposure.note)
    results = {**results, **seen, "notes": notes}
    measured = results if predictions is not None else {}
    drawn = charts_of(history, measured, predictions)
    mistakes: list[MistakenImage] = []
    if predictions is not None:
        write_predictions(directory, predictions)
        if predict is not None:
            mistakes = find_mistakes(predict, dataset, predictions)
    write_plots(directory / PLOTS_NAME, drawn)
    page = render(
        title=directory.resolve().name,
        manifest=dataset.manifest,
        config=settings,
        metrics=measured,
        exposure=exposure,
        own_metrics=own_metrics,
        charts=drawn,
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
    title: str,
    config: Mapping[str, Any],
    exposure: Exposure | None = None,
    own_metrics: Mapping[str, Any] | None = None,
    charts: Mapping[str, Sequence[Chart]] = types.MappingProxyType({}),
    mistakes: Sequence[MistakenImage] = (),
    flow: Sequence[Sequence[Box]] = (),
    **facts: Any,
) -> str:
    """Returns the HTML of the page of a run.

    The metrics are empty if there was nothing to evaluate, `own_metrics` are those of the training
    run if the page is of another dataset, and for the exposure see `write_results`. The facts are
    `made`, `versions` and `data_page`, the relative URL of the dataset's page if there is one.
    """
    task = task_of(manifest.label_kind)
    environment = pages.environment(Path(__file__).parent)
    in_words = words.percent, words.decimal, words.thousandths, words.title_of, words.count_of
    for function in (*in_words, words.unit_of, plural_unit, data_url):
        environment.filters[function.__name__] = function
    # An evaluation's configuration has the defaults of a training, which are not the run's.
    settings = config if own_metrics is None else {}
    over = "Cross-validation" if metrics.get("folds") else "Result of the run"
    return environment.get_template("report.html.jinja").render(
        {"made": {}, "versions": {}, "data_page": None, **facts},
        manifest=manifest,
        metrics=metrics and _NO_ENTRIES | metrics,
        own_metrics=own_metrics,
        task=task,
        kind=task.kind,
        words=words,
        max_runs=_MAX_RUNS,
        few_positives=_FEW_POSITIVES,
        images_name=manifest.source["dataset"]["name"] if manifest.holds_features else None,
        over=f"{over if own_metrics is None else 'Evaluation'} {title}",
        title=f"How well the network reads {manifest.name}",
        summary=_summary(task, metrics, exposure, own_metrics is None),
        warnings=_warnings(task, metrics, exposure),
        tiles=_tiles(task, metrics, manifest),
        **(_results(task, metrics, own_metrics or {}) if metrics else {}),
        charts=collections.defaultdict(tuple, charts),
        mistakes=mistakes,
        flow=flow,
        data=config.get("data"),
        settings={name: settings[name] for name in _MAIN_SETTINGS if name in settings},
        other_settings={n: value for n, value in settings.items() if n not in _MAIN_SETTINGS},
        limits=_limits(metrics, exposure, manifest, has_maps=bool(mistakes)),
    )


def _results(
    task: Task, metrics: Mapping[str, Any], own_metrics: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns what the sections on the results show beside metrics.json."""
    scores, labels = metrics["scores"], metrics["label_counts"]
    shown, own = words.shown_classes(metrics), own_metrics.get("scores", {})
    hidden = labels.keys() - shown
    matrices = metrics.get("confusion_matrices", {}).values()
    if "confusion_matrix" in metrics:
        matrices = [metrics["confusion_matrix"]]
    wrong = int(sum(np.sum(matrix) - np.trace(matrix) for matrix in matrices))
    of_label = {name: name.partition("/")[2] for name in scores}
    of_use = PREDICTIVE_VALUES if metrics.get("prevalence") else ()
    return {
        "class_measures": [*task.label_measures, *of_use],
        "line_measures": CALIBRATION_LINE if task.gives_probabilities else (),
        "classes": _class_rows(task, metrics, shown),
        "num_more_classes": len(hidden),
        "by": ({"site": metrics["sites"]} if "sites" in metrics else {}) | metrics.get("by", {}),
        "own": own,
        "comparison": [name for name in scores if name in own and of_label[name] not in hidden],
        "answers": task.answers(metrics),
        "num_mistakes": wrong if matrices else metrics["num_examples"],
        # Of many classes, the spread has the measures of none.
        "spread": {
            name: metrics["spread"][name]
            for name, label in of_label.items()
            if name in metrics.get("spread", ())
            and (label not in labels or (not hidden and name.startswith("sensitivity/")))
        },
    }


def _class_rows(
    task: Task, metrics: Mapping[str, Any], shown: Sequence[str]
) -> list[dict[str, Any]]:
    """Returns the rows of tables on the shown classes and on the urgent ones.

    `key` returns the name in metrics.json of a row's measure.
    """
    counts, groups = metrics["label_counts"], metrics["label_groups"]
    rows = []
    for name in [*shown, *(["urgent"] if "urgent/auc" in metrics["scores"] else [])]:
        is_view = name not in counts
        rows.append(
            {
                "name": name,
                "images": sum(counts[one] for one in URGENT_CLASSES) if is_view else counts[name],
                "few": groups.get(name) if groups.get(name, FEW_BEHIND) < FEW_BEHIND else None,
                "is_view": is_view,
                # A number is the only one, so its measures do not have its name.
                "key": str if task.kind.is_number else View(name, [], is_view).of,
            }
        )
    return rows


def _summary(
    task: Task, metrics: Mapping[str, Any], exposure: Exposure | None, is_own: bool
) -> list[str]:
    """Returns the sentences at the top of the page."""
    if not metrics:
        return [
            "There is no result for this network: the dataset has no images besides the training "
            "images. Build it with a test split, or evaluate the run on another dataset."
        ]
    images = f"{counted(metrics['num_examples'], 'image')}{words.of_patients(metrics)}"
    verdict, *others = task.verdict(metrics)
    split = "validation" if metrics["split"] == "val" else metrics["split"]
    if runs := metrics.get("folds"):
        num_folds = len({run["fold"] for run in runs})
        first = (
            f"In a cross-validation with {num_folds} folds, each of {images} was judged by "
            f"networks that were trained on the other folds. They {verdict}"
        )
    elif exposure and exposure.is_measured and not is_own:
        first = (
            f"On all {images} of the {split} split, including {exposure.num_images:,} that "
            f"it had seen before, or others of their patients, the network {verdict}"
        )
    else:
        first = f"On the {images} of the {split} split, the network {verdict}"
    sentences = [first, *others]
    if exposure is None or (is_own and metrics["split"] == "val"):
        return sentences
    if exposure.num_images and exposure.is_measured:
        return sentences
    if exposure.num_images:
        sentences.append(
            f"{counted(exposure.num_images, 'further image')} of "
            f"{counted(exposure.num_patients, 'patient')} were left out, because the network has "
            "seen them, or others of their patients."
        )
    if not exposure.doubts and runs:
        sentences.append(
            f"Each of these {images} was judged by networks that learned from other patients "
            "only, and from no image with the same pixels."
        )
    elif not exposure.doubts:
        sentences.append(
            f"Of these {images}, the network had never seen one, nor any other image of the same "
            "patient."
        )
    return sentences


def _warnings(task: Task, metrics: Mapping[str, Any], exposure: Exposure | None) -> list[str]:
    """Returns the warnings below the summary."""
    warnings: list[str] = []
    if not metrics:
        return warnings
    if exposure and exposure.num_images and exposure.is_measured:
        warnings.append(
            f"{exposure.num_images:,} of these images, of "
            f"{counted(exposure.num_patients, 'patient')}, show a picture or a patient that the "
            "network has learned from. It may recognise the eye instead of the disease, so the "
            "result is probably too good. --splits patient builds splits without such images."
        )
    if exposure and exposure.note:
        warnings.append(_sentence(exposure.note))
    if doubt := task.doubt(metrics):
        warnings.append(doubt)
    if metrics["split"] == "val":
        warnings.append(
            "The dataset has no test split. The run also made its choices with these validation "
            "images, so the result is probably too good."
        )
    return warnings


def _tiles(task: Task, metrics: Mapping[str, Any], found: Manifest) -> list[tuple[str, str]]:
    """Returns (name, value) of the figures at the top."""
    if not metrics:
        return [
            ("training images", f"{found.split('train').num_examples:,}"),
            (task.kind.plural, f"{found.num_classes:,}"),
        ]
    scores, patients = metrics["scores"], metrics["num_patients"]
    tiles = [(title, told(scores[name]["value"])) for title, name, told in task.tiles]
    tiles.append(("images judged", f"{metrics['num_examples']:,}"))
    tiles.append(("patients judged", f"{patients:,}" if patients else "unknown"))
    if "ece" in scores:
        tiles.append(("calibration error", words.percent(scores["ece"]["value"])))
    return tiles


def _limits(
    metrics: Mapping[str, Any], exposure: Exposure | None, found: Manifest, *, has_maps: bool
) -> list[str]:
    """Returns the limits of the result, the most important first."""
    limits = ["This is not a medical device. Nobody may be diagnosed or treated by it."]
    if metrics:
        limits.append(
            "All images come from one collection. A network is often worse on images of another "
            "clinic or device; evaluate it on such a dataset before you rely on it elsewhere."
        )
        shown = exposure and exposure.note
        limits += [_sentence(note) for note in metrics.get("notes") or () if note != shown]
        patients = metrics["num_patients"]
        if patients and patients < FEW_GROUPS:
            limits.append(f"{counted(patients, 'patient')} cannot represent all patients.")
        if not metrics.get("folds"):
            limits.append(
                "This is one run. Another seed or another choice of patients gives another "
                "result; a cross-validation (--folds 5 --seeds 3) shows how much it varies."
            )
    # Another dataset that is evaluated may have no training images.
    learnt = found.splits["train"].label_counts if "train" in found.splits else ()
    rare = [
        name for name, count in zip(found.label_names, learnt, strict=False) if count < _FEW_IMAGES
    ]
    if rare:
        limits.append(
            f"There are fewer than {_FEW_IMAGES} training images of {listed(rare)}. More of them "
            "would probably help most."
        )
    for finding in found.audit.get("findings", ()):
        if finding["severity"] in ("problem", "warning"):
            limits.append(f"The dataset's audit says: {_sentence(finding['title'])}")
    # Notes may have the worst of the audit, too.
    limits = list(dict.fromkeys(limits))
    if has_maps:
        limits.append(
            "A map shows where covering the image changes the answer of this network. It does "
            "not show why, or what a doctor would look at."
        )
    return limits


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")

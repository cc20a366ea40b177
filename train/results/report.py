"""The page of a run: one HTML file without scripts or external files, to read first."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from tfrecord_io import visible
from tfrecord_io.auditing import pages
from tfrecord_io.files import atomic_write
from tfrecord_io.groups import plural_unit
from tfrecord_io.manifest import Manifest
from tfrecord_io.printing import counted, listed
from train.data.dataset import Dataset
from train.data.exposure import Exposure
from train.kinds.measures import CALIBRATION_LINE, PREDICTIVE_VALUES, URGENT_CLASSES
from train.kinds.registry import task_of
from train.kinds.task import Task
from train.kinds.words import (
    MAX_CLASSES,
    MistakenAnswer,
    count_of,
    decimal,
    of_patients,
    percent,
    title_of,
    total_of,
    unit_of,
    worst_classes,
)
from train.results import charts, flow, saliency, verdicts
from train.results.metrics import FEW_BEHIND, FEW_GROUPS
from train.results.predictions import Predictions

FILE_NAME = "report.html"

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mistake:
    """An image that the network got wrong.

    Attributes:
        answer: the wrong answer.
        image: [height, width, channels], as the network sees it.
        drops: float [height, width], see `saliency.occlusion_map`.
        path: the source file, or the key if the dataset does not name files.
    """

    answer: MistakenAnswer
    image: np.ndarray
    drops: np.ndarray
    path: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunReport:
    """The content of the page of a run.

    Attributes:
        title: name of the run.
        manifest: manifest of the dataset.
        config: settings of the run, see config.json.
        metrics: see metrics.json; None if there was nothing to evaluate.
        charts: by the name of their file, see `charts.charts_of`.
        mistakes: the mistakes to show, the worst first.
        own_metrics: metrics of the training run, to show beside those of another dataset.
        flow: the steps from the files to the figures, see `flow.flow_of`.
        exposure: how much of the measured images the network has seen; None if nobody looked.
        made: when, with which command and on what hardware the results were made, by name.
        versions: versions of the software, by name.
        data_page: relative URL of the dataset's page; None if it cannot be reached by one.
    """

    title: str
    manifest: Manifest
    config: Mapping[str, Any]
    metrics: Mapping[str, Any] | None = None
    charts: Mapping[str, Sequence[charts.Chart]] = dataclasses.field(default_factory=dict)
    mistakes: Sequence[Mistake] = ()
    own_metrics: Mapping[str, Any] | None = None
    flow: Sequence[Sequence[flow.Box]] = ()
    exposure: Exposure | None = None
    made: Mapping[str, str] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    data_page: str | None = None

    @property
    def task(self) -> Task:
        """What the network answers."""
        return task_of(self.manifest.label_kind)

    @property
    def is_cross_validation(self) -> bool:
        """Whether the metrics pool the runs of a cross-validation."""
        return bool(self.metrics and self.metrics.get("folds"))

    @property
    def is_of_another_dataset(self) -> bool:
        """Whether the metrics are those of `train/evaluate.py`, not of the run itself."""
        return self.own_metrics is not None


def find_mistakes(
    predict: saliency.Predict, dataset: Dataset, predictions: Predictions
) -> list[Mistake]:
    """Returns the worst mistakes on a part with their images and occlusion maps.

    It costs about 150 predictions per mistake.

    Args:
        predict: the function of stored images that gave the probabilities.
        dataset: of the predictions.
        predictions: on one part of the dataset.
    """
    part, examples = predictions.part, predictions.examples
    answers = predictions.task.mistakes(predictions, MAX_MISTAKES)
    wanted = [answer.place for answer in answers]
    if part is None or not wanted:
        return []
    images = dataset.pictures(part, wanted)
    patch, stride = saliency.patch_and_stride(images.shape[1:])
    mistakes = []
    for answer, image in zip(answers, images, strict=True):
        drops = saliency.occlusion_map(
            predict, image, output=answer.output, patch=patch, stride=stride
        )
        mistakes.append(
            Mistake(
                answer=answer,
                image=image,
                # The probability of a negative answer rises where that of its label drops.
                drops=-drops if answer.is_negative else drops,
                path=(examples.paths or examples.keys)[answer.place],
            )
        )
    return mistakes


def write_report(path: Path, report: RunReport) -> None:
    """Writes the page atomically."""
    with atomic_write(path) as file:
        file.write(render(report).encode("utf-8"))


def render(report: RunReport) -> str:
    """Returns the HTML of the page."""
    metrics, source = report.metrics, report.manifest.source
    # An evaluation's configuration has the defaults of a training, which are not the run's.
    settings = {} if report.is_of_another_dataset else report.config
    return _template().render(
        report=report,
        images_name=source["dataset"]["name"] if report.manifest.holds_features else None,
        metrics=metrics,
        task=report.task,
        kind=report.task.kind,
        max_classes=MAX_CLASSES,
        unit="share" if report.task.gives_probabilities else "number",
        over=_over(report),
        title=f"How well the network reads {report.manifest.name}",
        summary=_summary(report),
        warnings=_warnings(report),
        tiles=_tiles(report),
        **(_results(report, metrics) if metrics else {}),
        charts=collections.defaultdict(tuple, report.charts),
        settings={name: settings[name] for name in _MAIN_SETTINGS if name in settings},
        other_settings={n: value for n, value in settings.items() if n not in _MAIN_SETTINGS},
        limits=_limits(report),
    )


def _results(report: RunReport, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the sections on the results show."""
    task, spread = report.task, metrics.get("spread") or {}
    class_measures = [
        *task.label_measures,
        *(PREDICTIVE_VALUES if metrics.get("prevalence") else ()),
    ]
    return {
        "class_measures": class_measures,
        "classes": _class_rows(metrics, task, class_measures),
        "lines": _class_rows(metrics, task, CALIBRATION_LINE) if task.gives_probabilities else (),
        "verdicts": verdicts,
        "num_more_classes": max(report.manifest.num_classes - MAX_CLASSES, 0),
        "by": ({"site": metrics["sites"]} if "sites" in metrics else {}) | metrics.get("by", {}),
        "comparison": _comparison_rows(report.own_metrics or {}, metrics, task),
        "answers": task.answers(metrics),
        "mistakes": [(mistake, _pictures(mistake)) for mistake in report.mistakes],
        "num_mistakes": task.num_mistakes(metrics),
        "thresholds": metrics.get("thresholds") or (),
        "few_positives": _FEW_POSITIVES,
        "prevalence": metrics.get("prevalence"),
        "spread": {name: spread[name] for name in _overall(metrics) if name in spread},
        "runs": (metrics.get("folds") or ())[:_MAX_RUNS],
    }


def _template() -> jinja2.Template:
    environment = pages.environment(Path(__file__).parent)
    environment.filters["percent"] = percent
    environment.filters["decimal"] = lambda value: "–" if value is None else f"{value:.3f}"
    environment.filters["significant"] = decimal
    environment.filters["plural_unit"] = plural_unit
    environment.filters["title"] = title_of
    environment.filters["count_of"] = count_of
    environment.filters["data_url"] = charts.data_url
    return environment.get_template("report.html.jinja")


def _comparison_rows(
    own_metrics: Mapping[str, Any], metrics: Mapping[str, Any], task: Task
) -> list[dict[str, Any]]:
    """Returns each measure of the training run beside that of this dataset."""
    own, here = own_metrics.get("scores", {}), metrics["scores"]
    shown = _shown_classes(metrics)
    rows = []
    for name in here:
        label = name.partition("/")[2]
        if name in own and (label not in metrics["label_counts"] or label in shown):
            unit = unit_of(name, is_number=not task.gives_probabilities)
            row = {"name": title_of(name), "unit": unit, "own": own[name], "here": here[name]}
            rows.append(row)
    return rows


def _over(report: RunReport) -> str:
    """Returns what the page is of."""
    if report.is_of_another_dataset:
        what = "Evaluation"
    else:
        what = "Cross-validation" if report.is_cross_validation else "Result of the run"
    return f"{what} {report.title}"


def _summary(report: RunReport) -> list[str]:
    """Returns the sentences at the top of the page."""
    metrics = report.metrics
    if metrics is None:
        return [
            "There is no result for this network: the dataset has no images besides the training "
            "images. Build it with a test split, or evaluate the run on another dataset."
        ]
    images = counted(metrics["num_examples"], "image")
    people = of_patients(metrics)
    verdict, *others = report.task.verdict(metrics)
    if report.is_cross_validation:
        num_folds = len({run["fold"] for run in metrics["folds"]})
        first = (
            f"In a cross-validation with {num_folds} folds, each of {images}{people} was judged by "
            f"networks that were trained on the other folds. They {verdict}"
        )
    else:
        split = "validation" if metrics["split"] == "val" else metrics["split"]
        first = f"On the {images}{people} of the {split} split, the network {verdict}"
        if report.is_of_another_dataset and (seen := report.exposure) and seen.is_measured:
            first = (
                f"On all {images}{people} of the {split} split, including {seen.num_images:,} that "
                f"it had seen before, or others of their patients, the network {verdict}"
            )
    return [first, *others, *_unseen(report, f"{images}{people}")]


def _unseen(report: RunReport, measured: str) -> list[str]:
    """Returns what was left out, and what the table of seen images proves of the rest.

    Args:
        report: whose metrics are shown.
        measured: how many images of how many patients were measured.
    """
    exposure, sentences = report.exposure, []
    is_own_val = (report.metrics or {}).get("split") == "val" and not report.is_of_another_dataset
    if exposure is None or is_own_val:
        return []
    if exposure.num_images and exposure.is_measured:
        return []
    if exposure.num_images:
        sentences.append(
            f"{counted(exposure.num_images, 'further image')} of "
            f"{counted(exposure.num_patients, 'patient')} were left out, because the network has "
            "seen them, or others of their patients."
        )
    if not exposure.doubts and report.is_cross_validation:
        sentences.append(
            f"Each of these {measured} was judged by networks that learned from other patients "
            "only, and from no image with the same pixels."
        )
    elif not exposure.doubts:
        sentences.append(
            f"Of these {measured}, the network had never seen one, nor any other image of the same "
            "patient."
        )
    return sentences


def _warnings(report: RunReport) -> list[str]:
    """Returns the warnings below the summary."""
    metrics, warnings = report.metrics, []
    if metrics is None:
        return warnings
    exposure = report.exposure
    if exposure and exposure.num_images and exposure.is_measured:
        warnings.append(
            f"{exposure.num_images:,} of these images, of "
            f"{counted(exposure.num_patients, 'patient')}, show a picture or a patient that the "
            "network has learned from. It may recognise the eye instead of the disease, so the "
            "result is probably too good. --splits patient builds splits without such images."
        )
    if exposure and exposure.note:
        warnings.append(_sentence(exposure.note))
    if doubt := report.task.doubt(metrics):
        warnings.append(doubt)
    if metrics["split"] == "val" and not report.is_cross_validation:
        warnings.append(
            "The dataset has no test split. The run also made its choices with these validation "
            "images, so the result is probably too good."
        )
    return warnings


def _tiles(report: RunReport) -> list[tuple[str, str]]:
    """Returns (name, value) of the figures at the top."""
    found, metrics = report.manifest, report.metrics
    if metrics is None:
        return [
            ("training images", f"{found.split('train').num_examples:,}"),
            (report.task.kind.plural, f"{found.num_classes:,}"),
        ]
    scores = metrics["scores"]
    patients = metrics["num_patients"]
    return [
        *report.task.tiles(metrics),
        ("images judged", f"{metrics['num_examples']:,}"),
        ("patients judged", f"{patients:,}" if patients else "unknown"),
        *([("calibration error", percent(scores["ece"]["value"]))] if "ece" in scores else []),
    ]


def _shown_classes(metrics: Mapping[str, Any]) -> list[str]:
    """Returns the classes of the tables: all, or the worst if there are many."""
    names = list(metrics["label_counts"])
    return names if len(names) <= MAX_CLASSES else worst_classes(metrics, MAX_CLASSES)


def _class_rows(
    metrics: Mapping[str, Any], task: Task, measures: Sequence[str]
) -> list[dict[str, Any]]:
    """Returns measures of each shown class, and of the urgent ones."""
    scores, counts, groups = metrics["scores"], metrics["label_counts"], metrics["label_groups"]
    rows = []
    for name in [*_shown_classes(metrics), *(["urgent"] if "urgent/auc" in scores else [])]:
        is_view = name not in counts
        cells = []
        for measure in measures:
            # A number is the only one, so its measures do not have its name.
            names = (measure, f"urgent/{measure}" if is_view else f"{measure}/{name}")
            key = next((key for key in names if key in scores), None)
            unit = unit_of(measure, is_number=not task.gives_probabilities)
            cells.append((scores[key], unit, total_of(metrics, key)) if key else (None, unit, None))
        images = sum(counts[urgent] for urgent in URGENT_CLASSES) if is_view else counts[name]
        rows.append(
            {
                "name": name,
                "images": images,
                "few": groups.get(name) if groups.get(name, FEW_BEHIND) < FEW_BEHIND else None,
                "scores": cells,
                "is_view": is_view,
            }
        )
    return rows


def _pictures(mistake: Mistake) -> list[tuple[str, str]]:
    """Returns the pictures of a mistake as (data URL, what it shows)."""
    told = {
        "what the network sees": mistake.image,
        "what mattered": saliency.overlay(mistake.image, mistake.drops),
    }
    return [
        (pages.data_url(visible.picture(pixels), _PICTURE_SIDE, "PNG"), what)
        for what, pixels in told.items()
    ]


def _overall(metrics: Mapping[str, Any]) -> list[str]:
    """Returns the overall measures, and the sensitivities unless there are many classes."""
    labels = metrics["label_counts"]
    shown = "sensitivity/" if len(labels) <= MAX_CLASSES else "/"
    return [
        name
        for name in metrics["scores"]
        if name.partition("/")[2] not in labels or name.startswith(shown)
    ]


def _limits(report: RunReport) -> list[str]:
    """Returns the limits of the result, the most important first."""
    found, metrics = report.manifest, report.metrics
    limits = [
        "This is not a medical device. Nobody may be diagnosed or treated by it.",
    ]
    if metrics is not None:
        limits.append(
            "All images come from one collection. A network is often worse on images of another "
            "clinic or device; evaluate it on such a dataset before you rely on it elsewhere."
        )
        shown = report.exposure and report.exposure.note
        limits += [_sentence(note) for note in metrics.get("notes") or () if note != shown]
        patients = metrics["num_patients"]
        if patients and patients < FEW_GROUPS:
            limits.append(f"{counted(patients, 'patient')} cannot represent all patients.")
        if not report.is_cross_validation:
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
    if report.mistakes:
        limits.append(
            "A map shows where covering the image changes the answer of this network. It does "
            "not show why, or what a doctor would look at."
        )
    return limits


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")

"""The page of a run: one HTML file without scripts or external files, to read first."""

from __future__ import annotations

import base64
import collections
import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from PIL import Image

from tfrecord_io import visible
from tfrecord_io.auditing import pages
from tfrecord_io.files import atomic_write
from tfrecord_io.manifest import Manifest
from tfrecord_io.printing import counted, listed
from tfrecord_io.reading.mapped import MappedDataset
from train.kinds.measures import URGENT_CLASSES
from train.kinds.registry import task_of
from train.kinds.task import Task
from train.kinds.words import MAX_CLASSES, MistakenAnswer, decimal, percent, worst_classes
from train.results import charts, saliency
from train.results.metrics import FEW_GROUPS
from train.results.predictions import Predictions

FILE_NAME = "report.html"

#: Most mistakes on the page; their pictures, two each, take most of its bytes.
MAX_MISTAKES = 12

#: Titles of measures that differ from their names.
_TITLES = {
    "auc": "area under the ROC",
    "ece": "calibration error",
    "macro_auc": "mean area",
    "quadratic_kappa": "quadratic weighted kappa",
    "mae": "mean error",
    "rmse": "root mean square error",
    "r2": "R²",
    "limit_low": "lower limit",
    "limit_high": "upper limit",
}

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
        versions: versions of the software, by name.
    """

    title: str
    manifest: Manifest
    config: Mapping[str, Any]
    metrics: Mapping[str, Any] | None = None
    charts: Mapping[str, Sequence[charts.Chart]] = dataclasses.field(default_factory=dict)
    mistakes: Sequence[Mistake] = ()
    own_metrics: Mapping[str, Any] | None = None
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)

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

    @property
    def num_shared_patients(self) -> int:
        """Number of patients of the evaluated split who also have images in the training split."""
        if self.metrics is None or self.is_cross_validation:
            return 0
        pairs = self.manifest.audit.get("measures", {}).get("shared_patients", ())
        wanted = {"train", self.metrics["split"]}
        return sum(pair["patients"] for pair in pairs if set(pair["splits"]) == wanted)


def find_mistakes(
    predict: saliency.Predict, directory: str, predictions: Predictions
) -> list[Mistake]:
    """Returns the worst mistakes on a part with their images and occlusion maps.

    It costs about 150 predictions per mistake.

    Args:
        predict: the function of stored images that gave the probabilities.
        directory: folder of the dataset.
        predictions: on one part of the dataset.
    """
    part, examples = predictions.part, predictions.examples
    answers = predictions.task.mistakes(predictions, MAX_MISTAKES)
    wanted = [answer.place for answer in answers]
    if part is None or not wanted:
        return []
    places = np.array(wanted) if part.examples is None else part.examples[wanted]
    images, _ = MappedDataset(directory, part.splits)[places]
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
    return _template().render(
        report=report,
        images_name=source["dataset"]["name"] if report.manifest.holds_features else None,
        metrics=metrics,
        task=report.task,
        kind=report.task.kind,
        max_classes=MAX_CLASSES,
        unit="share" if report.task.gives_probabilities else "number",
        summary=_summary(report),
        warnings=_warnings(report),
        tiles=_tiles(report),
        **(_results(report, metrics) if metrics else {}),
        charts=collections.defaultdict(tuple, report.charts),
        settings=_settings(report.config),
        limits=_limits(report),
    )


def _results(report: RunReport, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the sections on the results show."""
    task, spread = report.task, metrics.get("spread") or {}
    return {
        "classes": _class_rows(metrics, task),
        "num_more_classes": max(report.manifest.num_classes - MAX_CLASSES, 0),
        "sites": metrics.get("sites", {}),
        "comparison": _comparison_rows(report.own_metrics or {}, metrics),
        "answers": task.answers(metrics),
        "mistakes": [(mistake, _pictures(mistake)) for mistake in report.mistakes],
        "num_mistakes": task.num_mistakes(metrics),
        "thresholds": metrics.get("thresholds") or (),
        "few_positives": _FEW_POSITIVES,
        "spread": {name: spread[name] for name in _overall(metrics) if name in spread},
        "runs": (metrics.get("folds") or ())[:_MAX_RUNS],
    }


def _template() -> jinja2.Template:
    environment = pages.environment(Path(__file__).parent)
    environment.filters["percent"] = percent
    environment.filters["decimal"] = lambda value: "–" if value is None else f"{value:.3f}"
    environment.filters["significant"] = decimal
    environment.filters["title"] = lambda name: _TITLES.get(name, name.replace("_", " "))
    environment.filters["data_url"] = charts.data_url
    return environment.get_template("report.html.jinja")


def _comparison_rows(
    own_metrics: Mapping[str, Any], metrics: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Returns each measure of the training run beside that of this dataset."""
    own, here = own_metrics.get("scores", {}), metrics["scores"]
    shown = _shown_classes(metrics)
    rows = []
    for name in here:
        first, _, second = name.partition("/")
        measure, group = (second, "urgent referral") if first == "urgent" else (first, second)
        if name in own and (not group or group == "urgent referral" or group in shown):
            title = measure.replace("_", " ") + (f", {group}" if group else "")
            rows.append({"name": title, "own": own[name], "here": here[name]})
    return rows


def _summary(report: RunReport) -> list[str]:
    """Returns the sentences at the top of the page."""
    metrics = report.metrics
    if metrics is None:
        return [
            "There is no result for this network: the dataset has no images besides the training "
            "images. Build it with a test split, or evaluate the run on another dataset."
        ]
    images = counted(metrics["num_examples"], "image")
    people = f" of {counted(metrics['num_patients'], 'patient')}" if metrics["num_patients"] else ""
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
    return [first, *others]


def _warnings(report: RunReport) -> list[str]:
    """Returns the warnings below the summary."""
    metrics, warnings = report.metrics, []
    if metrics is None:
        return warnings
    if report.is_of_another_dataset:
        warnings.append(
            "It is not known whether the network was trained on some of these images, or on other "
            "images of these patients. If it was, the result is too good."
        )
    elif report.num_shared_patients:
        warnings.append(
            f"{counted(report.num_shared_patients, 'patient')} of the {metrics['split']} split "
            f"also {'has' if report.num_shared_patients == 1 else 'have'} images in the training "
            "split. The network may recognise the eye instead of the disease, so the result is "
            "probably too good. Build the data with --splits patient."
        )
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


def _class_rows(metrics: Mapping[str, Any], task: Task) -> list[dict[str, Any]]:
    """Returns the measures of each shown class, and of the urgent ones."""
    scores, counts = metrics["scores"], metrics["label_counts"]
    rows = []
    for name in [*_shown_classes(metrics), *(["urgent"] if "urgent/auc" in scores else [])]:
        is_view = name not in counts
        cells = []
        for measure in task.label_measures:
            # A number is the only one, so its measures do not have its name.
            names = (measure, f"urgent/{measure}" if is_view else f"{measure}/{name}")
            score = next(scores[key] for key in names if key in scores)
            is_share = measure in ("sensitivity", "specificity")
            unit = "decimal" if task.gives_probabilities else "number"
            cells.append((score, "share" if is_share else unit))
        images = sum(counts[urgent] for urgent in URGENT_CLASSES) if is_view else counts[name]
        rows.append({"name": name, "images": images, "scores": cells, "is_view": is_view})
    return rows


def _pictures(mistake: Mistake) -> list[tuple[str, str]]:
    """Returns the pictures of a mistake as (data URL, what it shows)."""
    map_of_drops = saliency.overlay(mistake.image, mistake.drops)
    return [
        (_data_url(mistake.image), "what the network sees"),
        (_data_url(map_of_drops), "what mattered"),
    ]


def _data_url(pixels: np.ndarray) -> str:
    """Returns an image [height, width, channels] as a PNG in a data URL."""
    image = visible.picture(pixels)
    image.thumbnail((_PICTURE_SIDE, _PICTURE_SIDE), Image.Resampling.LANCZOS)
    with io.BytesIO() as file:
        image.save(file, "PNG", optimize=True)
        return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _overall(metrics: Mapping[str, Any]) -> list[str]:
    """Returns the overall measures, and the sensitivities unless there are many classes."""
    labels = metrics["label_counts"]
    shown = "sensitivity" if len(labels) <= MAX_CLASSES else None
    parts = {name: name.partition("/") for name in metrics["scores"]}
    return [
        name
        for name, (measure, _, label) in parts.items()
        if label not in labels or measure == shown
    ]


def _settings(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the most important settings (`main`) and the `others`."""
    main = {name: config[name] for name in _MAIN_SETTINGS if name in config}
    others = {name: value for name, value in config.items() if name not in main}
    return {"main": main, "others": others}


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
        limits += [_sentence(note) for note in metrics.get("notes") or ()]
        patients = metrics["num_patients"]
        if patients and patients < FEW_GROUPS:
            limits.append(f"{counted(patients, 'patient')} cannot represent all patients.")
        rough = [
            entry["view"]
            for entry in metrics.get("thresholds") or ()
            if entry["val"]["num_positives"] < _FEW_POSITIVES
        ]
        if rough:
            limits.append(
                f"Thresholds for {listed(rough)} were chosen on fewer than {_FEW_POSITIVES} "
                "positive images; a single image can change them."
            )
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
    if report.mistakes:
        limits.append(
            "A map shows where covering the image changes the answer of this network. It does "
            "not show why, or what a doctor would look at."
        )
    return limits


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")

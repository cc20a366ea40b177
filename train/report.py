"""The page of a run: one HTML file without scripts or external files, to read first."""

from __future__ import annotations

import base64
import dataclasses
import functools
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import markupsafe
import numpy as np
from PIL import Image

from tfrecord_io import visible
from tfrecord_io.manifest import Manifest
from tfrecord_io.printing import printable
from tfrecord_io.reading.mapped import MappedDataset
from tfrecord_io.shards import atomic_write
from tfrecord_io.trunk import SOURCE_KIND
from train import charts, saliency
from train.metrics import FEW_GROUPS, Examples, worst_classes
from train.parts import Part
from train.scores import URGENT_CLASSES

FILE_NAME = "report.html"

#: Most mistakes on the page; their pictures, two each, take most of its bytes.
MAX_MISTAKES = 12

#: Most classes in a table; with more classes, it has the worst.
MAX_CLASSES = 20

_MAX_CONFUSIONS = 20
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
        image: [height, width, channels], as the network sees it.
        drops: float [height, width], see `saliency.occlusion_map`; None for no map.
        true: name of the true class.
        predicted: name of the predicted class.
        probability: probability of the predicted class.
        path: the source file, or the key if the dataset does not name files.
    """

    image: np.ndarray
    drops: np.ndarray | None
    true: str
    predicted: str
    probability: float
    path: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunReport:
    """The content of the page of a run.

    Attributes:
        title: name of the run.
        manifest: manifest of the dataset.
        config: settings of the run, see config.json.
        history: one row per epoch, see history.json; empty for a cross-validation.
        metrics: see metrics.json; None if there was nothing to evaluate.
        probabilities: float [num_examples, num_classes] of the evaluated split, with the
            temperature applied; None without metrics.
        uncalibrated: the same before the temperature; None if there is no temperature.
        labels: int [num_examples]; None without metrics.
        mistakes: the mistakes to show, the worst first.
        own_metrics: metrics of the training run, to show beside those of another dataset.
        notes: further sentences about what limits the result.
        versions: versions of the software, by name.
    """

    title: str
    manifest: Manifest
    config: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]] = ()
    metrics: Mapping[str, Any] | None = None
    probabilities: np.ndarray | None = None
    uncalibrated: np.ndarray | None = None
    labels: np.ndarray | None = None
    mistakes: Sequence[Mistake] = ()
    own_metrics: Mapping[str, Any] | None = None
    notes: Sequence[str] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def is_cross_validation(self) -> bool:
        """Whether the metrics pool the runs of a cross-validation."""
        return bool(self.metrics and self.metrics.get("folds"))

    @property
    def num_shared_patients(self) -> int:
        """Number of patients of the evaluated split who also have images in the training split."""
        if self.metrics is None or self.is_cross_validation:
            return 0
        pairs = self.manifest.audit.get("measures", {}).get("shared_patients", ())
        wanted = {"train", self.metrics["split"]}
        return sum(pair["patients"] for pair in pairs if set(pair["splits"]) == wanted)


def worst_mistakes(
    probabilities: np.ndarray, labels: np.ndarray, most: int = MAX_MISTAKES
) -> list[int]:
    """Returns the indices of the wrong answers, those with the highest probability first.

    Args:
        probabilities: [num_examples, num_classes].
        labels: int [num_examples].
        most: the largest number of indices to return.
    """
    wrong = np.flatnonzero(probabilities.argmax(-1) != labels)
    surest = np.argsort(-probabilities[wrong].max(-1), kind="stable")
    return wrong[surest][:most].tolist()


def find_mistakes(
    predict: saliency.Predict,
    directory: str,
    part: Part,
    probabilities: np.ndarray,
    labels: np.ndarray,
    label_names: Sequence[str],
    examples: Examples,
) -> list[Mistake]:
    """Returns the worst mistakes on a split, each with its occlusion map.

    It costs about 150 predictions per mistake, for at most `MAX_MISTAKES` mistakes.

    Args:
        predict: the function of stored images that gave the probabilities.
        directory: folder of the dataset.
        part: the evaluated part.
        probabilities: [num_examples, num_classes], in the order of the reader without shuffling.
        labels: int [num_examples].
        label_names: names of the classes.
        examples: result of `metrics.read_examples` for the part.
    """
    wanted = worst_mistakes(probabilities, labels)
    if not wanted:
        return []
    places = np.array(wanted) if part.examples is None else part.examples[wanted]
    images, _ = MappedDataset(directory, part.splits)[places]
    patch, stride = saliency.patch_and_stride(images.shape[1:])
    mistakes = []
    for place, image in zip(wanted, images, strict=True):
        answer = int(probabilities[place].argmax())
        mistakes.append(
            Mistake(
                image=image,
                drops=saliency.occlusion_map(predict, image, patch=patch, stride=stride),
                true=label_names[labels[place]],
                predicted=label_names[answer],
                probability=float(probabilities[place, answer]),
                path=(examples.paths or examples.keys)[place],
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
    return _page_template().render(
        report=report,
        images_name=source["dataset"]["name"] if source.get("kind") == SOURCE_KIND else None,
        metrics=metrics,
        summary=_summary(report),
        warnings=_warnings(report),
        tiles=_tiles(report),
        classes=_class_rows(metrics) if metrics else [],
        comparison=_comparison_rows(report),
        num_more_classes=max(report.manifest.num_classes - MAX_CLASSES, 0),
        confusion=_confusion(metrics) if metrics else None,
        mistakes=[_pictures(mistake) for mistake in report.mistakes[:MAX_MISTAKES]],
        num_mistakes=_num_mistakes(metrics) if metrics else 0,
        roc=_roc(report),
        reliability=_reliability(report),
        thresholds=_threshold_rows(metrics) if metrics else [],
        spread=_spread_rows(metrics) if metrics else [],
        runs=_run_rows(metrics) if metrics else [],
        curves=charts.training_curves(report.history, (metrics or {}).get("best_epoch") or 0),
        splits=_split_rows(report.manifest),
        settings=_settings(report.config),
        limits=_limits(report),
    )


@functools.cache
def _page_template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters["number"] = lambda value: f"{value:,}"
    environment.filters["percent"] = _percent
    environment.filters["decimal"] = lambda value: "–" if value is None else f"{value:.3f}"
    return environment.get_template("report.html.jinja")


def _visible(value: object) -> object:
    """Replaces control characters of text by escapes; returns other values unchanged."""
    if isinstance(value, str) and not isinstance(value, markupsafe.Markup):
        return printable(value)
    return value


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _of_hundred(score: Mapping[str, float | None], told: str = "") -> str:
    """Returns a share and its interval, such as `90 of 100 (84 to 95)`.

    Args:
        score: an entry of `scores` in metrics.json.
        told: text before the interval.
    """
    text = f"{_hundredths(score['value'])} of 100"
    if score["low"] is None:
        return text
    return f"{text} ({told}{_hundredths(score['low'])} to {_hundredths(score['high'])})"


def _hundredths(value: float | None) -> str:
    """Returns a share in hundredths; only an exact 0 or 1 becomes 0 or 100."""
    if value is None:
        return "–"
    rounded = round(100 * value)
    return f"{100 * value:.1f}" if rounded in (0, 100) and value not in (0, 1) else f"{rounded}"


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _comparison_rows(report: RunReport) -> list[dict[str, Any]]:
    """Returns each measure of the training run beside that of this dataset; none without both."""
    if report.own_metrics is None or report.metrics is None:
        return []
    own, here = report.own_metrics.get("scores", {}), report.metrics["scores"]
    shown = {row["name"] for row in _class_rows(report.metrics)}
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
    scores, counts = metrics["scores"], metrics["label_counts"]
    images = _count(metrics["num_examples"], "image")
    people = f" of {_count(metrics['num_patients'], 'patient')}" if metrics["num_patients"] else ""
    accuracy = _of_hundred(scores["accuracy"], "95 % interval: ")
    if report.is_cross_validation:
        num_folds = len({run["fold"] for run in metrics["folds"]})
        who = "patient" if people else "image"
        first = (
            f"In a cross-validation with {num_folds} folds, {images}{people} were classified by "
            f"networks that had not seen that {who}. They named the right class for {accuracy}."
        )
    elif metrics["split"] == "val":
        first = (
            f"On the {images}{people} of the validation split, the network named the right class "
            f"for {accuracy}."
        )
    else:
        never = (
            "has never seen" if people and not report.num_shared_patients else "did not train on"
        )
        first = (
            f"On {images}{people} that it {never}, the network named the right class for "
            f"{accuracy}."
        )
    sentences = [first]
    present = {name: count for name, count in counts.items() if count}
    if len(present) > 1:
        usual = max(present, key=lambda name: present[name])
        share = present[usual] / sum(present.values())
        sentences[0] += f" Always answering {usual} would be right for {_hundredths(share)}."
        worst = worst_classes(metrics, 1)[0]
        best = max(present, key=lambda name: scores[f"sensitivity/{name}"]["value"] or 0.0)
        if scores[f"sensitivity/{best}"]["value"] != scores[f"sensitivity/{worst}"]["value"]:
            sentences.append(
                f"It recognises {best} best, {_of_hundred(scores[f'sensitivity/{best}'])}, and "
                f"{worst} worst, {_of_hundred(scores[f'sensitivity/{worst}'])}."
            )
    if scores.get("urgent/sensitivity", {}).get("value") is not None:
        sentences.append(
            f"Of the urgent images ({' and '.join(URGENT_CLASSES)}), it called "
            f"{_of_hundred(scores['urgent/sensitivity'])} urgent; of the others, it left "
            f"{_of_hundred(scores['urgent/specificity'])} alone."
        )
    return sentences


def _warnings(report: RunReport) -> list[str]:
    """Returns the warnings below the summary."""
    metrics, found = report.metrics, []
    if metrics is None:
        return found
    if report.num_shared_patients:
        found.append(
            f"{_count(report.num_shared_patients, 'patient')} of the {metrics['split']} split also "
            f"{'has' if report.num_shared_patients == 1 else 'have'} images in the training "
            "split. The network may recognise the eye instead of the disease, so the result is "
            "probably too good. Build the data with --splits patient."
        )
    low = metrics["scores"]["accuracy"]["low"]
    present = [count for count in metrics["label_counts"].values() if count]
    if len(present) > 1 and low is not None and low <= max(present) / sum(present):
        found.append(
            "This result may be no better than always giving the most frequent answer: the "
            "interval reaches down to the accuracy of that answer."
        )
    if metrics["split"] == "val" and not report.is_cross_validation:
        found.append(
            "The dataset has no test split. The run also made its choices with these validation "
            "images, so the result is probably too good."
        )
    return found


def _tiles(report: RunReport) -> list[tuple[str, str]]:
    """Returns (name, value) of the figures at the top."""
    found, metrics = report.manifest, report.metrics
    if metrics is None:
        return [
            ("training images", f"{found.split('train').num_examples:,}"),
            ("classes", f"{found.num_classes:,}"),
        ]
    scores = metrics["scores"]
    patients = metrics["num_patients"]
    return [
        ("accuracy", _percent(scores["accuracy"]["value"])),
        ("balanced accuracy", _percent(scores["balanced_accuracy"]["value"])),
        ("images judged", f"{metrics['num_examples']:,}"),
        ("patients judged", f"{patients:,}" if patients else "unknown"),
        ("calibration error", _percent(scores["ece"]["value"])),
    ]


def _class_rows(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the measures of each class, or of the worst classes if there are many."""
    names = list(metrics["label_counts"])
    if len(names) > MAX_CLASSES:
        names = worst_classes(metrics, MAX_CLASSES)
    scores = metrics["scores"]
    rows = [_row_of_view(name, metrics["label_counts"][name], scores) for name in names]
    if "urgent/auc" in scores:
        urgent = sum(metrics["label_counts"][name] for name in URGENT_CLASSES)
        rows.append(_row_of_view("urgent", urgent, scores) | {"is_view": True})
    return rows


def _row_of_view(
    name: str, num_images: int, scores: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    sensitivity, specificity, area = (
        scores[f"urgent/{measure}" if name == "urgent" else f"{measure}/{name}"]
        for measure in ("sensitivity", "specificity", "auc")
    )
    return {
        "name": name,
        "images": num_images,
        "sensitivity": sensitivity,
        "specificity": specificity,
        "auc": area,
        "is_view": False,
    }


def _confusion(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the confusion matrix, or its most frequent mistakes if there are many classes."""
    names = list(metrics["label_counts"])
    matrix = np.asarray(metrics["confusion_matrix"])
    totals = matrix.sum(1)
    if len(names) <= MAX_CLASSES:
        rows = [
            {
                "name": name,
                "cells": [
                    {"count": int(count), "share": float(count / max(total, 1))} for count in row
                ],
            }
            for name, row, total in zip(names, matrix, totals, strict=True)
        ]
        return {"columns": names, "rows": rows, "pairs": []}
    wrong = matrix * (1 - np.eye(len(names), dtype=matrix.dtype))
    flat = np.argsort(-wrong, axis=None, kind="stable")[:_MAX_CONFUSIONS]
    places = [divmod(int(place), len(names)) for place in flat]
    pairs = [
        {
            "true": names[row],
            "predicted": names[column],
            "count": int(wrong[row, column]),
            "share": float(wrong[row, column] / max(totals[row], 1)),
        }
        for row, column in places
        if wrong[row, column]
    ]
    return {"columns": [], "rows": [], "pairs": pairs}


def _num_mistakes(metrics: Mapping[str, Any]) -> int:
    matrix = np.asarray(metrics["confusion_matrix"])
    return int(matrix.sum() - np.trace(matrix))


def _pictures(mistake: Mistake) -> dict[str, Any]:
    """Returns a mistake with its pictures as data URLs."""
    pictures = [(_data_url(mistake.image), "what the network sees")]
    if mistake.drops is not None:
        colours = saliency.overlay(mistake.image, mistake.drops)
        pictures.append((_data_url(colours), "what mattered"))
    return {
        "true": mistake.true,
        "predicted": mistake.predicted,
        "probability": mistake.probability,
        "path": mistake.path,
        "pictures": pictures,
    }


def _data_url(pixels: np.ndarray) -> str:
    """Returns an image [height, width, channels] as a PNG in a data URL."""
    image = visible.picture(pixels)
    image.thumbnail((_PICTURE_SIDE, _PICTURE_SIDE), Image.Resampling.LANCZOS)
    with io.BytesIO() as file:
        image.save(file, "PNG", optimize=True)
        return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _roc(report: RunReport) -> charts.Lines | None:
    if report.metrics is None or report.probabilities is None or report.labels is None:
        return None
    names = report.manifest.label_names
    return charts.roc_curves(report.probabilities, report.labels, names, report.metrics["scores"])


def _reliability(report: RunReport) -> charts.Lines | None:
    if report.probabilities is None or report.labels is None or report.manifest.num_classes < 2:
        return None
    named = [("as exported", report.probabilities)]
    if report.uncalibrated is not None:
        named.append(("before the temperature", report.uncalibrated))
    return charts.reliability(named, report.labels)


def _threshold_rows(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {**entry, "is_rough": entry["val"]["num_positives"] < _FEW_POSITIVES}
        for entry in metrics.get("thresholds") or ()
    ]


def _overall(metrics: Mapping[str, Any]) -> list[str]:
    """Returns the overall measures, and the sensitivities unless there are many classes."""
    names = list(metrics["label_counts"])
    of_classes = {f"{measure}/{name}" for name in names for measure in ("specificity", "auc")}
    if len(names) > MAX_CLASSES:
        of_classes |= {f"sensitivity/{name}" for name in names}
    return [name for name in metrics["scores"] if name not in of_classes]


def _spread_rows(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the mean and the spread of each measure of a cross-validation."""
    spread = metrics.get("spread") or {}
    return [{"name": name, **spread[name]} for name in _overall(metrics) if name in spread]


def _run_rows(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    runs = metrics.get("folds") or ()
    return [
        {
            "fold": run["fold"],
            "seed": run["seed"],
            **{name: run["scores"].get(name) for name in ("accuracy", "balanced_accuracy", "ece")},
        }
        for run in runs[:_MAX_RUNS]
    ]


def _split_rows(found: Manifest) -> list[dict[str, Any]]:
    """Returns the number of images of each split, by class unless there are many classes."""
    return [
        {
            "name": name,
            "total": split.num_examples,
            "counts": split.label_counts if found.num_classes <= MAX_CLASSES else (),
        }
        for name, split in found.splits.items()
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
            limits.append(f"{_count(patients, 'patient')} cannot represent all patients.")
        rough = [entry["view"] for entry in _threshold_rows(metrics) if entry["is_rough"]]
        if rough:
            limits.append(
                f"Thresholds for {_joined(rough)} were chosen on fewer than {_FEW_POSITIVES} "
                "positive images; a single image can change them."
            )
        if not report.is_cross_validation:
            limits.append(
                "This is one run. Another seed or another choice of patients gives another "
                "result; a cross-validation (--folds 5 --seeds 3) shows how much it varies."
            )
    rare = [
        name
        for name, count in zip(found.label_names, found.split("train").label_counts, strict=True)
        if count < _FEW_IMAGES
    ]
    if rare:
        limits.append(
            f"There are fewer than {_FEW_IMAGES} training images of {_joined(rare)}. More of them "
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
    return limits + [_sentence(note) for note in report.notes]


def _joined(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more classes"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")

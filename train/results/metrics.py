"""The content of metrics.json; the measures themselves are those of the tasks."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfrecord_io.kinds.registry import kind_in
from tfrecord_io.printing import listed, printable
from train.kinds.task import Answers, Task
from train.kinds.words import worst_classes
from train.results.bootstrap import (
    CONFIDENCE_LEVEL,
    bootstrap,
    group_indices,
    num_groups_behind,
    rounded,
    score_entry,
)

#: With fewer groups than this, intervals get a note: a bootstrap over few clusters tends to give
#: too narrow ones. Source: Cameron, Gelbach and Miller 2008, "Bootstrap-based improvements for
#: inference with clustered errors", who call 5 to 30 clusters few.
FEW_GROUPS = 20

# How the measures that are shares of examples begin.
_SHARES = ("accuracy", "sensitivity/", "specificity/", "urgent/s")

#: With more classes than this, only the measures of the worst are printed.
_MAX_CLASSES_TOLD = 20

#: Limit on examples x classes x resamples for the areas under the curve; it takes up to a minute on
#: one core.
MAX_AREA_COST = 6_000_000_000

#: Fewer resamples than this are too few for a 95 % interval.
_MIN_RESAMPLES = 100


class MetricsError(ValueError):
    """The predictions cannot be evaluated."""


def evaluate_predictions(
    task: Task,
    answers: Answers,
    *,
    groups: Sequence[str] | None,
    num_samples: int,
    seed: int,
) -> dict[str, Any]:
    """Returns the measures of predictions for metrics.json.

    Args:
        task: what the network answers.
        answers: to measure.
        groups: the patient of each example; None for intervals by image.
        num_samples: bootstrap resamples; 0 for no intervals.
        seed: seed of the bootstrap.

    Returns:
        a dict of JSON values: `num_examples`, `num_patients`, `bootstrap_by`, `bootstrap_samples`,
        `auc_bootstrap_samples` (fewer if that many would take hours), `confidence_level`, `loss`,
        the task's tables (`label_counts`, and for classes `confusion_matrix`), `scores` and
        `notes`. `scores` has `value`, `low` and `high` of the 95 % interval by the name of the
        measure; an entry is None if it is undefined or rests on a single patient (see
        `score_entry`). `notes` are sentences about what limits these figures.

    Raises:
        MetricsError: if there are no examples, a shape is wrong, or a probability is not finite.
    """
    probabilities, truths = answers.probabilities, answers.truths
    _check_predictions(probabilities, truths, len(answers.label_names))
    indices = group_indices(groups, len(truths))
    point = scores(task, answers)
    num_area_samples = _num_area_samples(num_samples, MAX_AREA_COST // probabilities.size)
    intervals = {}
    for measure, number in ((task.score, num_samples), (task.areas, num_area_samples)):
        draw = functools.partial(measure, answers)
        intervals |= bootstrap(draw, indices, num_samples=number, seed=seed)
    views = task.views(answers.label_names)
    has = task.has(truths, len(answers.label_names)) if views else np.empty((len(truths), 0), bool)
    behind = num_groups_behind(point, views, has, indices)
    result: dict[str, Any] = {
        "num_examples": len(truths),
        "num_patients": None if groups is None else int(indices.max()) + 1,
        "bootstrap_by": "image" if groups is None else "patient",
        "bootstrap_samples": num_samples,
        "auc_bootstrap_samples": num_area_samples,
        "confidence_level": CONFIDENCE_LEVEL,
        "loss": task.mean_loss(probabilities, truths),
        **task.tables(answers),
        "scores": {
            name: score_entry(
                value,
                *intervals.get(name, (np.nan, np.nan)),
                num_groups=behind[name],
                is_share=name.startswith(_SHARES),
                digits=task.digits,
            )
            for name, value in point.items()
        },
    }
    return result | {"notes": _notes(result, behind, task.without_absent)}


def scores(task: Task, answers: Answers, weights: np.ndarray | None = None) -> dict[str, float]:
    """Returns all measures by name, such as `accuracy` or `auc/CNV`.

    An undefined measure, such as the sensitivity of a class without examples, is NaN.
    `balanced_accuracy` is the mean sensitivity of the classes that have examples, as in
    scikit-learn.

    Args:
        task: what the network answers.
        answers: to measure.
        weights: [num_examples], how often each example counts; None for once each.
    """
    rows = (np.ones(len(answers.truths)) if weights is None else weights)[None]
    measured = task.score(answers, rows) | task.areas(answers, rows)
    return {name: float(value) for name, (value,) in measured.items()}


def _check_predictions(probabilities: np.ndarray, labels: np.ndarray, num_classes: int) -> None:
    """Raises a MetricsError if predictions cannot be measured."""
    if not len(labels) or probabilities.shape != (len(labels), num_classes):
        raise MetricsError(
            f"expected probabilities of at least one image in {num_classes} classes, received "
            f"shape {probabilities.shape} for {len(labels)} labels"
        )
    is_bad = ~np.isfinite(probabilities).all(-1)
    if is_bad.any():
        raise MetricsError(
            f"the model gives {is_bad.sum():,} of {len(labels):,} images probabilities that are "
            f"not numbers (the first is image {int(is_bad.argmax())} of the split): its weights "
            "or its arithmetic overflowed. Train again with a lower --learning_rate or with "
            "--precision float32"
        )


def describe_folds(
    results: Sequence[tuple[int, int, Mapping[str, float]]], digits: str = Task.digits
) -> dict[str, list[dict[str, Any]] | dict[str, dict[str, Any]]]:
    """Returns the results of each run of a cross-validation, and their spread.

    Args:
        results: (fold, seed, scores by name) of each run; an undefined score is NaN.
        digits: format to which all figures are rounded.

    Returns:
        `folds` has the scores of each run, in order. `spread` has by score: `mean` over all runs;
        `std_over_folds`, the standard deviation over folds of the mean over seeds; and
        `std_over_seeds`, the standard deviation over seeds of the mean over folds, which is how
        much the whole cross-validation changes when it is repeated. A standard deviation is None if
        fewer than two folds or seeds define the score.
    """
    ordered = sorted(results, key=lambda result: result[:2])
    names = list(dict.fromkeys(name for *_, by_name in ordered for name in by_name))
    spread = {}
    for name in names:
        defined = [
            (fold, seed, by_name[name])
            for fold, seed, by_name in ordered
            if not np.isnan(by_name.get(name, np.nan))
        ]
        values = [value for *_, value in defined]
        spread[name] = {
            "mean": rounded(float(np.mean(values)), digits) if values else None,
            "std_over_folds": _deviation([(fold, value) for fold, _, value in defined], digits),
            "std_over_seeds": _deviation([(seed, value) for _, seed, value in defined], digits),
        }
    folds = [
        {
            "fold": fold,
            "seed": seed,
            "scores": {name: rounded(value, digits) for name, value in by_name.items()},
        }
        for fold, seed, by_name in ordered
    ]
    return {"folds": folds, "spread": spread}


def _deviation(values: Sequence[tuple[int, float]], digits: str) -> float | None:
    """Returns the standard deviation of the groups' means, or None for fewer than two groups."""
    by_group: dict[int, list[float]] = {}
    for group, value in values:
        by_group.setdefault(group, []).append(value)
    means = [float(np.mean(members)) for members in by_group.values()]
    return rounded(float(np.std(means, ddof=1)), digits) if len(means) > 1 else None


def _num_area_samples(wanted: int, affordable: int) -> int:
    """Returns how many resamples of areas to draw; 0 if too few are affordable."""
    if affordable >= wanted:
        return wanted
    return affordable if affordable >= _MIN_RESAMPLES else 0


def _notes(result: Mapping[str, Any], behind: Mapping[str, int], without_absent: str) -> list[str]:
    """Returns sentences about what limits the figures."""
    notes = []
    by, num_samples = result["bootstrap_by"], result["bootstrap_samples"]
    num_groups = max(behind.values())
    if by == "image":
        notes.append(
            "the dataset does not name the patient of every image; these intervals treat images as "
            "independent and are too narrow if a patient has several"
        )
    if num_groups < 2:
        notes.append(f"all images are of one {by}, so there are no intervals")
    elif num_samples and num_groups < FEW_GROUPS:
        notes.append(
            f"the intervals rest on {num_groups} {by}s; with fewer than {FEW_GROUPS} they tend to "
            "be too narrow"
        )
    absent = [printable(name) for name, count in result["label_counts"].items() if not count]
    if absent:
        notes.append(f"there is no image of {listed(absent)}; {without_absent}")
    single = [
        printable(name)
        for name, count in result["label_counts"].items()
        if num_samples and count and behind.get(f"sensitivity/{name}") == 1 < num_groups
    ]
    if single:
        notes.append(f"{listed(single)}: no interval, because all images are of one {by}")
    num_area_samples = result["auc_bootstrap_samples"]
    if num_area_samples < num_samples:
        cost = f"{result['num_examples']:,} images in {len(result['label_counts']):,} labels"
        notes.append(
            f"the intervals of the areas under the curve use {num_area_samples} resamples instead "
            f"of {num_samples}, to limit the time for {cost}"
            if num_area_samples
            else f"the areas under the curve have no intervals: they would take too long for {cost}"
        )
    return notes


def describe(metrics: Mapping[str, Any]) -> str:
    """Returns the content of metrics.json as a few lines of text."""
    by = metrics["bootstrap_by"]
    people = f" of {metrics['num_patients']:,} patients" if metrics["num_patients"] else ""
    weights = f", weights of epoch {metrics['best_epoch']}" if metrics.get("best_epoch") else ""
    lines = [
        f"{metrics['split']}: {metrics['num_examples']:,} images{people}{weights}; 95 % intervals "
        f"by bootstrap over {by}s",
        f"  loss {metrics['loss']:.4f}",
    ]
    lines += [f"  note: {note}" for note in metrics["notes"]]
    shown, hidden = _most_telling(metrics)
    width = max(20, *(len(printable(name)) for name in shown))
    for name in shown:
        lines.append(f"  {printable(name):<{width}} {score_text(metrics, name)}")
    if hidden:
        plural = kind_in(metrics).plural
        lines.append(f"  metrics.json has {hidden:,} more {plural}, of higher sensitivity")
    return "\n".join(lines)


def _most_telling(metrics: Mapping[str, Any]) -> tuple[list[str], int]:
    """Returns the measures to print, and how many classes are left out."""
    label_names = list(metrics["label_counts"])
    if len(label_names) <= _MAX_CLASSES_TOLD:
        return list(metrics["scores"]), 0
    worst = worst_classes(metrics, _MAX_CLASSES_TOLD)
    hidden = set(label_names).difference(worst)
    shown = [name for name in metrics["scores"] if name.partition("/")[2] not in hidden]
    return shown, len(hidden)


def score_text(metrics: Mapping[str, Any], name: str) -> str:
    """Returns a measure of metrics.json and its interval, such as `90.1% [84.0%, 95.2%]`."""
    score = metrics["scores"][name]
    if score["value"] is None:
        return "undefined"
    # In percent, or in the number's own unit.
    digits = ".5g" if kind_in(metrics).is_number else ".1%"
    interval = ""
    if score["low"] is not None:
        interval = f" [{score['low']:{digits}}, {score['high']:{digits}}]"
    return f"{score['value']:{digits}}{interval}"

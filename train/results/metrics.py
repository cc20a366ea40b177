"""The content of metrics.json; the measures themselves are those of the tasks."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfrecord_io.groups import plural_unit
from tfrecord_io.kinds.registry import kind_in
from tfrecord_io.printing import listed, printable
from train.errors import MetricsError
from train.kinds.measures import defined_mean, predictive_values
from train.kinds.task import Answers, Task
from train.kinds.words import (
    decimal,
    is_share_of_one,
    of_patients,
    percent,
    share,
    title_of,
    unit_of,
    with_interval,
    worst_classes,
)
from train.results import verdicts
from train.results.bootstrap import CONFIDENCE_LEVEL, examples_behind, rounded, with_intervals
from train.results.predictions import Predictions

#: With fewer groups than this, intervals get a note: a bootstrap over few clusters tends to give
#: too narrow ones. Source: Cameron, Gelbach and Miller 2008, "Bootstrap-based improvements for
#: inference with clustered errors", who call 5 to 30 clusters few.
FEW_GROUPS = 20

#: With more classes than this, only the measures of the worst are printed.
_MAX_CLASSES_TOLD = 20

#: Limit on examples x classes x resamples for the areas under the curve; it takes up to a minute on
#: one core.
MAX_AREA_COST = 6_000_000_000

#: Fewer resamples than this are too few for a 95 % interval.
_MIN_RESAMPLES = 100


#: A class with fewer patients than this behind its figures is named. (Without patients: images.)
FEW_BEHIND = 10


def evaluate_predictions(
    predictions: Predictions,
    *,
    num_samples: int,
    seed: int,
    prevalences: Mapping[str, float] = types.MappingProxyType({}),
) -> dict[str, Any]:
    """Returns the measures of predictions for metrics.json.

    Args:
        predictions: to measure.
        num_samples: bootstrap resamples; 0 for no intervals.
        seed: seed of the bootstrap.
        prevalences: share of positives where the model is to be used, by view, for `ppv` and `npv`
            of the answers.

    Returns:
        a dict of JSON values: `num_examples`, `num_patients` (those that are known, None if none
        is), `images_without_patient`, `num_groups`, `bootstrap_by` (see `Groups.unit`),
        `bootstrap_samples`, `auc_bootstrap_samples` (fewer if that many would take hours),
        `confidence_level`, `loss`, the task's tables (`label_counts`, and for classes
        `confusion_matrix`), `label_groups` (how many groups have each label), `scores` and `notes`;
        of a cross-validation also `areas_left_out`, how many runs each area under a curve leaves
        out because a class is missing. `scores` has `value`, `low` and `high` of the 95 % interval
        by the name of the measure; an entry is None if it is undefined or rests on a single group
        (see `with_intervals`). `notes` are sentences about what limits these figures.

    Raises:
        MetricsError: if there are no examples, a shape is wrong, or a probability is not finite.
    """
    task, examples, label_names = predictions.task, predictions.examples, predictions.label_names
    probabilities, truths = predictions.probabilities, predictions.truths
    _check_predictions(probabilities, truths, len(label_names))
    indices = examples.groups.codes
    # Several networks of a cross-validation may have answered to an image.
    _, images = np.unique(examples.keys, return_index=True)
    num_area_samples = _num_area_samples(num_samples, MAX_AREA_COST // probabilities.size)
    views = task.views(label_names)
    has = task.has(truths, len(label_names)) if views else np.empty((len(truths), 0), bool)
    behind = examples_behind(views, has, indices)
    measured: dict[str, Any] = {}
    for measure, number in (
        (functools.partial(_score, task, prevalences), num_samples),
        (functools.partial(_areas, task), num_area_samples),
    ):
        measured |= with_intervals(
            functools.partial(measure, predictions), indices, behind,
            num_samples=number, seed=seed, digits=task.digits,
        )  # fmt: skip
    groups = examples.groups.take(images)
    unknown = {name: count for name, count in groups.sources.items() if name != "patient"}
    result: dict[str, Any] = {
        "num_examples": len(images),
        "num_patients": examples.num_patients,
        "images_without_patient": sum(unknown.values()),
        "num_groups": int(indices.max()) + 1,
        "bootstrap_by": examples.groups.unit,
        "bootstrap_samples": num_samples,
        "auc_bootstrap_samples": num_area_samples,
        "confidence_level": CONFIDENCE_LEVEL,
        "loss": task.mean_loss(probabilities, truths),
        **_an_image(task.tables(predictions), len(images) / len(truths)),
        **({} if predictions.runs is None else {"areas_left_out": _areas_left_out(predictions)}),
        "label_groups": {
            name: int(np.count_nonzero(behind[f"sensitivity/{name}"]))
            for name in label_names
            if views
        },
        "scores": measured,
    }
    return result | {"notes": _notes(result, list(unknown), task.without_absent)}


def _score(
    task: Task, prevalences: Mapping[str, float], answers: Answers, weights: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns the quick measures, with predictive values of the views that have a prevalence."""
    found = task.score(answers, weights)
    for view in task.views(answers.label_names):
        if view.name in prevalences:
            rates = (found[view.of(rate)] for rate in ("sensitivity", "specificity"))
            values = predictive_values(*rates, prevalences[view.name])
            found |= {view.of(name): value for name, value in values.items()}
    return found


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
    measured = task.score(answers, rows) | _areas(task, answers, rows)
    return {name: float(value) for name, (value,) in measured.items()}


def _areas(task: Task, answers: Answers, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the areas under curves, float64 [num_weightings] by name; see `Task.areas`.

    Of a cross-validation they are the means over its networks, because probabilities of different
    networks cannot be ranked together. A network to which an area is not defined is left out.
    """
    if answers.runs is None:
        return task.areas(answers, weights)
    by_run = [task.areas(answers.some(rows), weights[:, rows]) for rows in answers.by_run()]
    return {name: defined_mean(np.stack([areas[name] for areas in by_run])) for name in by_run[0]}


def _areas_left_out(predictions: Predictions) -> dict[str, int]:
    """Returns how many networks' areas are not defined, by name, because a class is missing."""
    parts = (predictions.some(rows) for rows in predictions.by_run())
    by_run = [predictions.task.areas(part, np.ones((1, len(part.truths)))) for part in parts]
    counts = {name: sum(int(np.isnan(areas[name][0])) for areas in by_run) for name in by_run[0]}
    return {name: count for name, count in counts.items() if count and is_share_of_one(name)}


def _an_image(table: Any, share: float) -> Any:
    """Returns counts of answers as counts of images: their mean over the seeds.

    Args:
        table: a JSON value whose numbers are counts.
        share: images for each answer; 1 / number of seeds.
    """
    if isinstance(table, dict):
        return {name: _an_image(value, share) for name, value in table.items()}
    if isinstance(table, list):
        return [_an_image(value, share) for value in table]
    count = round(table * share, 2)
    return int(count) if count == int(count) else count


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
    folds, seeds = np.array([result[:2] for result in ordered]).T
    spread = {}
    for name in dict.fromkeys(name for *_, by_name in ordered for name in by_name):
        values = np.array([by_name.get(name, np.nan) for *_, by_name in ordered])
        known = ~np.isnan(values)
        spread[name] = {
            "mean": rounded(values[known].mean() if known.any() else np.nan, digits),
            "std_over_folds": _deviation(values[known], folds[known], digits),
            "std_over_seeds": _deviation(values[known], seeds[known], digits),
        }
    runs = [
        {
            "fold": fold,
            "seed": seed,
            "scores": {name: rounded(value, digits) for name, value in by_name.items()},
        }
        for fold, seed, by_name in ordered
    ]
    return {"folds": runs, "spread": spread}


def _deviation(values: np.ndarray, groups: np.ndarray, digits: str) -> float | None:
    """Returns the standard deviation of the groups' means, or None for fewer than two groups."""
    means = [values[groups == group].mean() for group in np.unique(groups)]
    return rounded(float(np.std(means, ddof=1)), digits) if len(means) > 1 else None


def _num_area_samples(wanted: int, affordable: int) -> int:
    """Returns how many resamples of areas to draw; 0 if too few are affordable."""
    if affordable >= wanted:
        return wanted
    return affordable if affordable >= _MIN_RESAMPLES else 0


def _notes(result: Mapping[str, Any], units: Sequence[str], without_absent: str) -> list[str]:
    """Returns sentences about what limits the figures; `units` are those of unknown patients."""
    notes = []
    by, num_samples = result["bootstrap_by"], result["bootstrap_samples"]
    num_groups = result["num_groups"]
    if units:
        notes.append(
            f"the patient of {result['images_without_patient']:,} of {result['num_examples']:,} "
            f"images is unknown, so they count by {' or '.join(units)}; the intervals are too "
            "narrow if a patient has several"
        )
    if num_groups < 2:
        notes.append(f"all images are of one {by}, so there are no intervals")
    elif num_samples and num_groups < FEW_GROUPS:
        notes.append(
            f"the intervals rest on {num_groups} {plural_unit(by)}; with fewer than {FEW_GROUPS} "
            "they tend to be too narrow"
        )
    if left_out := result.get("areas_left_out"):
        told = [f"{name} of {count}" for name, count in left_out.items()]
        notes.append(f"the areas leave out runs in which a class is missing: {listed(told, 12)}")
    absent = [printable(name) for name, count in result["label_counts"].items() if not count]
    if absent:
        notes.append(f"there is no image of {listed(absent)}; {without_absent}")
    rare = {name: num for name, num in result["label_groups"].items() if 1 < num < FEW_BEHIND}
    if rare:
        told = listed([f"{printable(name)} ({num})" for name, num in rare.items()])
        units = plural_unit(by)
        notes.append(f"fewer than {FEW_BEHIND} {units} are behind the figures of {told}")
    single = [
        printable(name)
        for name, num in result["label_groups"].items()
        if num_samples and num == 1 < num_groups
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
    shown, hidden = _most_telling(metrics)
    told = {name: printable(title_of(name)) for name in shown}
    width = max(20, *map(len, told.values()))
    units = plural_unit(metrics["bootstrap_by"])
    lines = [
        *summary(metrics),
        f"all measures, with 95 % intervals over {units}:",
        f"  {'loss':<{width}} {decimal(metrics['loss'])}",
        *(f"  {told[name]:<{width}} {score_text(metrics, name)}" for name in shown),
    ]
    if hidden:
        plural = kind_in(metrics).plural
        lines.append(f"  metrics.json has {hidden:,} more {plural}, of higher sensitivity")
    return "\n".join([*lines, *remarks(metrics)])


def summary(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Yields what a clinician asks first, in up to five lines."""
    weights = f", weights of epoch {metrics['best_epoch']}" if metrics.get("best_epoch") else ""
    people = of_patients(metrics)
    yield f"{metrics['split']}: {metrics['num_examples']:,} images{people}{weights}"
    scores, interval = metrics["scores"], "95 % interval: "
    if "mae" in scores:
        yield f"  off by {with_interval(scores['mae'])} on average"
        return
    if "accuracy" in scores:
        yield f"  right answers: {share(metrics, 'accuracy', interval)}"
    if "urgent/sensitivity" in scores:
        yield (
            f"  urgent scans found: {share(metrics, 'urgent/sensitivity', interval)}; others "
            f"not called urgent: {share(metrics, 'urgent/specificity', interval)}"
        )
    worst = next(iter(worst_classes(metrics, 1)), None)
    if (name := f"sensitivity/{worst}") in scores:
        yield f"  found least often: {printable(worst or '')}, {share(metrics, name, interval)}"
    if "ece" in scores:
        yield f"  probabilities are off by {percent(scores['ece']['value'])} on average"


def remarks(metrics: Mapping[str, Any]) -> list[str]:
    """Returns lines on the exported thresholds, and on what limits the figures."""
    lines = []
    for entry in metrics.get("thresholds", ()):
        rates = (
            f"{rate} {with_interval(entry['test'][rate], percent, '')}"
            for rate in ("sensitivity", "specificity")
        )
        threshold = f"{printable(entry['view'])} at least {decimal(entry['threshold'])}"
        lines.append(f"  threshold: {threshold}: {', '.join(rates)}")
    notes = (*metrics["notes"], *verdicts.of_answers(metrics), *verdicts.of_probabilities(metrics))
    return lines + [f"  note: {note}" for note in notes]


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
    """Returns a measure of metrics.json and its interval, such as `90.1 % (84.0 to 95.2)`."""
    unit = unit_of(name, is_number=kind_in(metrics).is_number)
    told = decimal if unit == "number" else percent
    return with_interval(metrics["scores"][name], told, "")

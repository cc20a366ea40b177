"""The content of metrics.json; the measures themselves are those of the tasks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfrecord_io.format.groups import plural_unit
from tfrecord_io.terminal.printing import listed, printable
from train.data.dataset import SITE
from train.kinds.measures import defined_mean
from train.results.bootstrap import CONFIDENCE_LEVEL, examples_behind, rounded, with_intervals
from train.results.options import MeasureOptions
from train.results.predictions import Predictions
from train.results.thresholds import measure_thresholds

#: With fewer groups than this, intervals get a note. Source: Cameron, Gelbach and Miller 2008,
#: "Bootstrap-based improvements for inference with clustered errors", who call 5 to 30 few.
FEW_GROUPS = 20

#: A class with fewer patients than this behind its figures is named. (Without patients: images.)
FEW_BEHIND = 10

#: Limit on examples x classes x resamples for the areas under the curve; it takes up to a minute on
#: one core.
MAX_AREA_COST = 6_000_000_000

#: Most values of a column that are measured by themselves.
MAX_VALUES = 50


def measure(
    predictions: Predictions,
    options: MeasureOptions,
    seed: int,
    chosen: Sequence[Mapping[str, Any]] = (),
    prevalences: Mapping[str, float] = {},
) -> dict[str, Any]:
    """Returns the entries of metrics.json that follow from predictions.

    The chosen thresholds were chosen on other images; see `thresholds` for them and prevalences.

    Returns:
        see `evaluate_predictions`; `label_kind` if the labels are not classes; `thresholds` if some
        were chosen; `by_patient`, scores with each patient counting once, answered by the mean of
        the images, if every image names its patient. If the dataset names the site of every
        example, `sites` has `num_examples`, `num_patients` and `scores` by the name of the site;
        `by` has the same by column and value for the columns of the options.
    """
    num_samples = options.bootstrap_samples
    results = predictions.task.kind.entry | evaluate_predictions(predictions, num_samples, seed)
    if by_patient := _by_patient(predictions, num_samples, seed):
        results["by_patient"] = by_patient
    if chosen:
        results["thresholds"] = measure_thresholds(
            chosen, predictions, num_samples, seed, prevalences
        )
    if prevalences:
        results["prevalence"] = dict(prevalences)
    by: dict[str, Any] = {}
    for column in predictions.dataset.measured:
        values = predictions.values(column)
        # Of sites, only those of whole datasets unless they are asked for.
        if column not in options.columns and None in values:
            continue
        # Each value by its text, in the order of the values, and `unknown` last.
        known = map(str, sorted({value for value in values if value is not None}))
        texts = ["unknown" if value is None else str(value) for value in values]
        names = dict.fromkeys((*known, *texts))
        if len(names) > MAX_VALUES:
            results["notes"].append(
                f"{printable(column)} has {len(names):,} values, more than the {MAX_VALUES} that "
                "are measured by themselves; give a column of groups"
            )
            continue
        for name in names:
            rows = np.flatnonzero([text == name for text in texts])
            found = evaluate_predictions(predictions.take(rows), num_samples, seed)
            kept = {key: found[key] for key in ("num_examples", "num_patients", "scores")}
            by.setdefault(column, {})[name] = kept
    if SITE in by:
        results["sites"] = by.pop(SITE)
    return results | ({"by": by} if by else {})


def _by_patient(predictions: Predictions, num_samples: int, seed: int) -> dict[str, Any]:
    """Returns the quick measures, each patient counting once, by the mean of all its answers.

    There are none if a patient is unknown, or if no patient has several images. If the images have
    several labels, the answer is right by the share that has its label.
    """
    task, patients = predictions.task, predictions.values("patient")
    if None in patients or len(set(patients)) == len(patients):
        return {}
    _, first, of_patient, sizes = np.unique(patients, True, True, True)
    sums = np.zeros((len(sizes), predictions.probabilities.shape[1]))
    np.add.at(sums, of_patient, predictions.probabilities)
    means = (sums / sizes[:, None]).astype(np.float32)[of_patient]
    answers = dataclasses.replace(predictions, probabilities=means)

    def rates(weights: np.ndarray) -> dict[str, np.ndarray]:
        found = task.score(answers, weights / sizes[of_patient])
        return {name: found[name] for name in task.run_measures if name in found}

    groups = predictions.groups.codes
    patients_of = np.bincount(groups[first])
    return with_intervals(rates, groups, {}, sizes=patients_of, num_samples=num_samples, seed=seed)


def evaluate_predictions(predictions: Predictions, num_samples: int, seed: int) -> dict[str, Any]:
    """Returns the measures of all predictions together for metrics.json.

    There is at least one, of finite probabilities; the seed is that of the bootstrap.

    Returns:
        a dict of JSON values: `num_examples`, `num_patients` (those that are known, None if none
        is), `images_without_patient`, `num_groups`, `bootstrap_by` (see `Groups.unit`),
        `bootstrap_samples`, `auc_bootstrap_samples` (fewer if that many would take hours),
        `confidence_level`, `loss`, `label_counts`, the task's table (for classes
        `confusion_matrix`), `label_groups` (how many groups have each label), `scores` and `notes`.
        `scores` has `value`, `low` and `high` of the 95 % interval by the name of the measure; an
        entry is None if it is undefined or rests on a single group (see `with_intervals`). `notes`
        are sentences about what limits these figures.
    """
    task, groups, label_names = predictions.task, predictions.groups, predictions.label_names
    probabilities, truths = predictions.probabilities, predictions.truths
    indices, views = groups.codes, task.views(label_names)
    num_area_samples = min(num_samples, MAX_AREA_COST // probabilities.size)
    behind = examples_behind(views, truths, indices)
    interval = functools.partial(with_intervals, groups=indices, behind=behind, seed=seed)
    scores = interval(functools.partial(task.score, predictions), num_samples=num_samples)
    scores |= interval(functools.partial(_areas, predictions), num_samples=num_area_samples)
    unknown = {name: count for name, count in groups.sources.items() if name != "patient"}
    result: dict[str, Any] = {
        "num_examples": len(truths),
        "num_patients": len(set(predictions.values("patient")) - {None}) or None,
        "images_without_patient": sum(unknown.values()),
        "num_groups": int(indices.max()) + 1,
        "bootstrap_by": groups.unit,
        "bootstrap_samples": num_samples,
        "auc_bootstrap_samples": num_area_samples,
        "confidence_level": CONFIDENCE_LEVEL,
        "loss": task.loss_and_accuracy(probabilities, truths)[0],
        "label_counts": dict(zip(label_names, truths.sum(0).tolist(), strict=True)),
        **task.tables(predictions),
    }
    result["label_groups"] = {
        name: int(np.count_nonzero(behind[f"sensitivity/{name}"])) for name in label_names
    }
    return result | {"scores": scores, "notes": _notes(result, list(unknown))}


def scores(predictions: Predictions, weights: np.ndarray | None = None) -> dict[str, float]:
    """Returns all measures by name, such as `accuracy` or `auc/CNV`; NaN where undefined.

    The weights, [num_examples], are how often each example counts; None for once each.
    """
    rows = (np.ones(len(predictions.truths)) if weights is None else weights)[None]
    measured = predictions.task.score(predictions, rows) | _areas(predictions, rows)
    return {name: float(value) for name, (value,) in measured.items()}


def _areas(predictions: Predictions, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the areas under curves, float64 [num_weightings] by name; see `Task.areas`.

    Of a cross-validation they are the means over its networks, because probabilities of different
    networks cannot be ranked together. A network to which an area is not defined is left out.
    """
    if predictions.folds is None:
        return predictions.task.areas(predictions, weights)
    places = (np.flatnonzero(predictions.folds == fold) for fold in np.unique(predictions.folds))
    of = [predictions.task.areas(predictions.take(at), weights[:, at]) for at in places]
    return {name: defined_mean(np.stack([areas[name] for areas in of])) for name in of[0]}


def describe_folds(scores: Mapping[int, Mapping[str, float]]) -> dict[str, Any]:
    """Returns the results of each run of a cross-validation, and their spread.

    The scores are by fold and name; an undefined one is NaN.

    Returns:
        `folds` has the `fold` and the `scores` of each run, in order. `spread` has by score the
        `mean` over the folds that define it and `std_over_folds`, their standard deviation; None if
        fewer than two folds define it.
    """
    spread = {}
    for name in dict.fromkeys(name for of_fold in scores.values() for name in of_fold):
        values = np.array([of_fold.get(name, np.nan) for of_fold in scores.values()])
        known = values[~np.isnan(values)]
        deviation = known.std(ddof=1) if len(known) > 1 else np.nan
        mean = known.mean() if len(known) else np.nan
        spread[name] = {"mean": rounded(mean), "std_over_folds": rounded(deviation)}
    folds = [
        {"fold": fold, "scores": {name: rounded(value) for name, value in of_fold.items()}}
        for fold, of_fold in sorted(scores.items())
    ]
    return {"folds": folds, "spread": spread}


def _notes(result: Mapping[str, Any], units: Sequence[str]) -> list[str]:
    """Returns sentences about what limits the figures; `units` are those of unknown patients."""
    notes, by, num_groups = [], result["bootstrap_by"], result["num_groups"]
    if units:
        notes.append(
            f"the patient of {result['images_without_patient']:,} of {result['num_examples']:,} "
            f"images is unknown, so they count by {' or '.join(units)}; the intervals are too "
            "narrow if a patient has several"
        )
    if num_groups < 2:
        notes.append(f"all images are of one {by}, so there are no intervals")
    elif result["bootstrap_samples"] and num_groups < FEW_GROUPS:
        notes.append(
            f"the intervals rest on {num_groups} {plural_unit(by)}; with fewer than {FEW_GROUPS} "
            "they are rough, and in simulations rather too wide than too narrow"
        )
    if absent := [printable(name) for name, num in result["label_counts"].items() if not num]:
        notes.append(f"there is no image of {listed(absent)}; means leave it out")
    of_labels = result["label_groups"].items()
    rare = [f"{printable(name)} ({num})" for name, num in of_labels if 0 < num < FEW_BEHIND]
    if rare and num_groups > 1:
        notes.append(
            f"fewer than {FEW_BEHIND} {plural_unit(by)} are behind the figures of {listed(rare)}, "
            "so these say little"
        )
    return notes

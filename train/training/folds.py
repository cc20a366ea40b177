"""Cross-validation by patient: each fold is held out in turn, for each of several seeds.

Each run has its own folder, RUN/seed-S/fold-F, and can be resumed. RUN itself holds the results of
all runs together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from train.data import parts
from train.data.examples import read_examples
from train.data.exposure import Exposure, expose, find_seen
from train.data.seen import read_images, rows_of
from train.kinds.registry import task_of
from train.results import metrics, report, run_results, thresholds
from train.results.predictions import Predictions, read_predictions
from train.run_folder import claim, write_metrics
from train.run_setup import Run
from train.training.single_run import train_once


def cross_validate(run: Run) -> dict[str, Any]:
    """Trains every fold with every seed and measures all held-out predictions together.

    Args:
        run: of a configuration that has `folds`, but no `fold`.

    Returns:
        the content of RUN/metrics.json: the measures of all held-out predictions, see
        `metrics.evaluate_predictions`, and `folds` and `spread`, see `metrics.describe_folds`.
        Empty on a worker that is not the chief.

    Raises:
        ConfigError, TrainingError, StoppedError: see `trainer.train_and_evaluate`.
    """
    config, devices = run.config, run.devices
    splits = parts.fold_splits(config.input, config.folds, run.manifest)
    singles = [
        _single(run, fold, seed)
        for seed in range(config.input.seed, config.input.seed + config.folds.seeds)
        for fold in range(config.folds.folds or 0)
    ]
    # All folds, so that one that cannot be trained does not waste the time of those before it.
    for single in singles[: config.folds.folds]:
        single.config  # noqa: B018 - raises ConfigError
    with claim(run):
        groups = read_examples(config.input.data, splits).groups
        others = {name: count for name, count in groups.sources.items() if name != "patient"}
        if others:
            devices.say(
                f"warning: the patient of {sum(others.values()):,} images is unknown, so they are "
                f"divided by {' or '.join(others)}: scans of one patient may be in the training "
                "and the held-out part. Build the dataset with --group_regex"
            )
        devices.say(
            f"cross-validation of the splits {', '.join(splits)}: {config.folds.folds} folds of "
            f"{groups.units} x {config.folds.seeds} seeds = {len(singles)} runs",
        )
        for number, single in enumerate(singles, 1):
            fold, seed = single.config.folds.fold, single.config.input.seed
            devices.say(f"\nrun {number} of {len(singles)}: fold {fold}, seed {seed}")
            train_once(single)
            # Without this, the graphs of all runs stay in memory.
            keras.utils.clear_session()
        return _pool(run, splits, singles) if devices.is_chief else {}


def _single(run: Run, fold: int, seed: int) -> Run:
    """Returns the run of a cross-validation that holds out a fold, in a folder of its own."""
    return dataclasses.replace(
        run,
        given=run.given.replace(fold=fold, seed=seed, seeds=1),
        folder=run.folder / f"seed-{seed}" / f"fold-{fold}",
    )


def _pool(run: Run, splits: tuple[str, ...], singles: Sequence[Run]) -> dict[str, Any]:
    """Measures the held-out predictions of all runs together and writes the files of RUN."""
    config, manifest = run.config, run.manifest
    task = task_of(manifest.label_kind)
    runs = [(single.given.folds.fold or 0, single.given.input.seed) for single in singles]
    keys, probabilities, truths = zip(
        *(read_predictions(single.folder) for single in singles), strict=True
    )
    run_of = np.repeat(np.arange(len(runs)), [len(of_run) for of_run in keys])
    everyone = read_examples(config.input.data, splits)
    place_of = {key: place for place, key in enumerate(everyone.keys)}
    predictions = Predictions(
        task=task,
        probabilities=np.concatenate(probabilities),
        truths=np.concatenate(truths),
        label_names=manifest.label_names,
        runs=run_of,
        examples=everyone.take(np.array([place_of[key] for of_run in keys for key in of_run])),
    )
    measured = run_results.measure(predictions, config)
    calibrated = {}
    if task.gives_probabilities:
        fold_of = np.array([fold for fold, _ in runs])[run_of]
        calibrated["calibration"] = _describe_calibration(
            predictions, fold_of, splits, measured["num_examples"]
        )
    results: dict[str, Any] = {
        "split": f"{config.folds.folds} folds of {', '.join(splits)}",
        "best_epoch": None,
        "steps": None,
        "num_images": measured["num_examples"],
        **measured,
        **calibrated,
        **metrics.describe_folds(
            [
                (*run, metrics.scores(task, predictions.some(rows)))
                for run, rows in zip(runs, predictions.by_run(), strict=True)
            ],
            task.digits,
        ),
    }
    exposure = _exposure(singles[: config.folds.folds])
    results |= run_results.describe_data(results, manifest, exposure)
    run_results.write_results(
        run.folder,
        manifest=manifest,
        config=config,
        results=results,
        predictions=predictions,
        exposure=exposure,
    )
    write_metrics(run.folder, results)
    print(metrics.describe(results))
    print(f"the metrics and {report.FILE_NAME} of all folds are in {run.folder}")
    return results


def _exposure(singles: Sequence[Run]) -> Exposure:
    """Returns how much each of the runs of one seed has seen of the fold that it held out."""
    manifest, data = singles[0].manifest, singles[0].given.input.data
    images = read_images(data, manifest)
    folds = [rows_of(single.parts.test, manifest) for single in singles if single.parts.test]
    is_seen = [
        find_seen(single.seen, images)[rows] for single, rows in zip(singles, folds, strict=True)
    ]
    below = singles[0].seen.without("train")
    return expose(below, images, np.concatenate(folds), np.concatenate(is_seen), is_measured=True)


def _describe_calibration(
    predictions: Predictions, fold_of: np.ndarray, splits: tuple[str, ...], num_images: int
) -> dict[str, Any]:
    """Cools each fold by the temperature that is fitted to the predictions on the other folds."""
    task, raw, truths = predictions.task, predictions.probabilities, predictions.truths
    cooled, temperatures = raw.copy(), []
    for fold in np.unique(fold_of):
        is_in = fold_of == fold
        temperatures.append(task.fit_temperature(raw[~is_in], truths[~is_in]))
        cooled[is_in] = task.cool(raw[is_in], temperatures[-1])
    facts = {"fitted_on": f"the other folds of {', '.join(splits)}", "num_examples": num_images}
    mean = float(np.mean(temperatures))
    return facts | thresholds.describe_calibration(
        task, mean, before=raw, after=cooled, truths=truths
    )

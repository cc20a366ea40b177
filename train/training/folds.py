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
from train.data.examples import Examples, read_examples
from train.kinds.registry import task_of
from train.kinds.task import Answers, Task
from train.results import metrics, report, run_results, thresholds
from train.results.predictions import PREDICTIONS_NAME, Predictions, read_predictions
from train.run_folder import claim, write_metrics
from train.run_setup import Run
from train.training.single_run import train_once


def cross_validate(run: Run) -> dict[str, Any]:
    """Trains every fold with every seed and measures all held-out predictions together.

    Args:
        run: of a configuration that has `folds`, but no `fold`.

    Returns:
        the content of RUN/metrics.json: the measures of all held-out predictions, where every image
        counts once per seed, and `folds` and `spread`, see `metrics.describe_folds`. Empty on a
        worker that is not the chief.

    Raises:
        ConfigError, TrainingError, StoppedError: see `trainer.train_and_evaluate`.
    """
    config, devices = run.config, run.devices
    splits = parts.fold_splits(config.input, config.folds, run.manifest)
    with claim(run):
        if read_examples(config.input.data, splits).patients is None:
            devices.say(
                "warning: the dataset does not name the patient of every image, so the folds are "
                "divided by image: scans of one patient may be in the training and the held-out "
                "part. Build the dataset with --group_regex"
            )
        singles = [
            _single(run, fold, seed)
            for seed in range(config.input.seed, config.input.seed + config.folds.seeds)
            for fold in range(config.folds.folds or 0)
        ]
        devices.say(
            f"cross-validation of the splits {', '.join(splits)}: {config.folds.folds} folds of "
            f"patients x {config.folds.seeds} seeds = {len(singles)} runs",
        )
        # All folds, so that one that cannot be trained does not waste the time of those before it.
        for single in singles[: config.folds.folds]:
            single.config  # noqa: B018 - raises ConfigError
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
    tables = [
        read_predictions(single.folder / PREDICTIONS_NAME, manifest.num_classes, task.kind)
        for single in singles
    ]
    runs = [(single.given.folds.fold or 0, single.given.input.seed) for single in singles]
    raw = np.concatenate([probabilities for probabilities, _, _ in tables])
    truths = task.truths(np.concatenate([labels for _, labels, _ in tables]))
    fold_of = np.repeat([fold for fold, _ in runs], [len(labels) for _, labels, _ in tables])
    calibrated = {}
    if task.gives_probabilities:
        calibrated["calibration"] = _describe_calibration(task, raw, truths, fold_of, splits)
    examples = _join([examples for *_, examples in tables])
    # The tables of the runs do not name sites.
    everyone = read_examples(config.input.data, splits)
    if everyone.sites is not None:
        site_of = dict(zip(everyone.keys, everyone.sites, strict=True))
        sites = tuple(site_of[key] for key in examples.keys)
        examples = dataclasses.replace(examples, sites=sites)
    predictions = Predictions(
        task=task,
        probabilities=raw,
        truths=truths,
        label_names=manifest.label_names,
        examples=examples,
    )
    single_answers = [
        Answers(
            probabilities=probabilities,
            truths=task.truths(labels),
            label_names=manifest.label_names,
        )
        for probabilities, labels, _ in tables
    ]
    results: dict[str, Any] = {
        "split": f"{config.folds.folds} folds of {', '.join(splits)}",
        "best_epoch": None,
        "steps": None,
        "num_images": len(truths) // config.folds.seeds,
        **run_results.measure(predictions, config),
        **calibrated,
        **metrics.describe_folds(
            [
                (fold, seed, metrics.scores(task, answers))
                for (fold, seed), answers in zip(runs, single_answers, strict=True)
            ],
            task.digits,
        ),
    }
    run_results.write_results(
        run.folder,
        manifest=manifest,
        config=config,
        results=results,
        predictions=predictions,
    )
    write_metrics(run.folder, results)
    print(metrics.describe(results))
    print(f"the metrics and {report.FILE_NAME} of all folds are in {run.folder}")
    return results


def _describe_calibration(
    task: Task,
    raw: np.ndarray,
    truths: np.ndarray,
    fold_of: np.ndarray,
    splits: tuple[str, ...],
) -> dict[str, Any]:
    """Cools each fold by the temperature that is fitted to the predictions on the other folds."""
    cooled, temperatures = raw.copy(), []
    for fold in np.unique(fold_of):
        is_in = fold_of == fold
        temperatures.append(task.fit_temperature(raw[~is_in], truths[~is_in]))
        cooled[is_in] = task.cool(raw[is_in], temperatures[-1])
    return thresholds.describe_calibration(
        task,
        float(np.mean(temperatures)),
        fitted_on=f"the other folds of {', '.join(splits)}",
        num_examples=len(truths),
        before=raw,
        after=cooled,
        truths=truths,
    )


def _join(examples: list[Examples]) -> Examples:
    """Returns the examples of all runs; patients and paths only if every run has them."""

    def joined(name: str) -> tuple[str, ...] | None:
        values = [getattr(part, name) for part in examples]
        if any(value is None for value in values):
            return None
        return tuple(entry for value in values for entry in value)

    return Examples(keys=joined("keys") or (), patients=joined("patients"), paths=joined("paths"))

"""Writes all files of a result; metrics.json is the last, and says that all others are there."""

from __future__ import annotations

import dataclasses
import datetime
import os
import platform
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras

from tfrecord_io.auditing.findings import alarms
from tfrecord_io.stores.files import atomic_write, write_last
from tfrecord_io.terminal import redaction
from tfrecord_io.terminal.stages import stage
from train.data.dataset import Dataset
from train.data.seen import Exposure
from train.kinds.registry import task_of
from train.kinds.words import describe
from train.machine.devices import versions
from train.results.charts import write_charts
from train.results.examples import Explain, Explanation, find_examples
from train.results.predictions import Predictions, write_predictions
from train.results.report import flow_of, page_of_data, render
from train.results.sections import Result

#: Of a run it is the last file: a run without it, or with a damaged one, is not complete.
METRICS_NAME = "metrics.json"
PAGE_NAME = "report.html"

# Files beside the page that it names, as far as they are there, and what they hold.
_FILES = {
    "predictions.csv": "every answer",
    "config.json": "every setting",
    "history.json": "every epoch",
    "export/thresholds.json": "the thresholds",
    "plots/": "plots for papers",
}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What came of a network on a dataset.

    Attributes:
        dataset: that was evaluated.
        settings: of the run, see config.json; `data` alone if this is another dataset.
        results: content of metrics.json so far.
        predictions: the measured ones; None if there was no example to predict.
        exposure: how many of the measured images the network has seen; None if none was measured.
        history: one row per epoch.
        own_metrics: metrics of the training run, if this is another dataset.
        in_folds: splits that were divided into folds.
        is_own: whether the splits of this dataset were those of the training.
        is_copy: whether the folder is uploaded to a URL, from which no link leads to the dataset.
        facts: on the network, by their names, for the page.
    """

    dataset: Dataset
    settings: Mapping[str, Any]
    results: Mapping[str, Any]
    predictions: Predictions | None
    exposure: Exposure | None
    history: Sequence[Mapping[str, Any]] = ()
    own_metrics: Mapping[str, Any] | None = None
    in_folds: Sequence[str] = ()
    is_own: bool = True
    is_copy: bool = False
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Finished(NamedTuple):
    """A run with all its files but metrics.json: the folder of its export, and what came of it.

    `results` is the content of metrics.json.
    """

    export: Path
    outcome: Outcome
    results: Mapping[str, Any]


class Additions(NamedTuple):
    """What a command adds to the results of a run.

    Attributes:
        explain: explains mistakes; None for no explanation.
        forms: write another form of the model into the export folder.
        after: what is called with each finished run.
    """

    explain: Explain | None = None
    forms: Sequence[Callable[[Path], object]] = ()
    after: Sequence[Callable[[Finished], object]] = ()


def write_results(
    directory: Path,
    outcome: Outcome,
    *,
    explanation: Explanation | None = None,
    before_last: Callable[[dict[str, Any]], object] = lambda results: None,
) -> dict[str, Any]:
    """Writes predictions.csv, plots/, report.html and metrics.json, and prints the measures.

    The presence of metrics.json means that a run is complete, with its export; it is the last.

    Args:
        directory: created if it is missing.
        outcome: to write.
        explanation: of mistakes; None for none.
        before_last: is called with the content of metrics.json before that is written.

    Returns:
        the content of metrics.json: the results, what was seen, and the notes.
    """
    directory.mkdir(parents=True, exist_ok=True)
    dataset, predictions, exposure = outcome.dataset, outcome.predictions, outcome.exposure
    manifest = dataset.manifest
    notes = [*outcome.results.get("notes", ()), *alarms(manifest.audit)]
    seen: dict[str, Any] = {}
    if exposure:
        notes += [exposure.note] if exposure.note else []
        seen = {"seen_images": exposure.num_images, "seen_patients": exposure.num_patients}
        seen["include_seen"] = exposure.is_measured
    results = {**outcome.results, **seen, "notes": notes}
    measured = results if predictions is not None else {}
    if predictions is not None:
        write_predictions(directory, predictions)
    charts = write_charts(directory / "plots", outcome.history, measured, predictions)
    with stage(f"page{', with maps of what mattered' if explanation else ''}"):
        examples = find_examples(predictions, explanation) if predictions else {}
    flow = flow_of(dataset, measured, in_folds=outcome.in_folds, is_own=outcome.is_own)
    data_page = None
    if not outcome.is_copy:
        data_page = page_of_data(str(dataset.path), directory, manifest)
    page = Result(
        title=directory.resolve().name,
        manifest=manifest,
        config=outcome.settings,
        metrics=measured,
        exposure=exposure,
        own_metrics=outcome.own_metrics,
        charts=charts,
        examples=examples,
        legend=explanation.legend if explanation else "",
        files={name: _FILES[name] for name in _FILES if (directory / name).exists()},
        flow=flow,
        facts={
            "Network": outcome.facts,
            "When and how it was made": {
                "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
                "command": redaction.without_secrets(shlex.join(sys.argv)),
                "devices": ", ".join(keras.distribution.list_devices()),
                "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            },
            "Versions": versions(),
        },
        data_page=data_page,
    )
    if measured:
        print(describe(task_of(manifest.label_kind), results, outcome.own_metrics))
    with atomic_write(directory / PAGE_NAME) as file:
        file.write(render(page).encode("utf-8"))
    before_last(results)
    write_last(directory / METRICS_NAME, results)
    return results

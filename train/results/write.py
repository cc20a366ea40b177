"""Writes all files of a result; metrics.json is the last, and says that all others are there."""

from __future__ import annotations

import dataclasses
import datetime
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import keras

from tfrecord_io.auditing.findings import alarms
from tfrecord_io.stores.files import atomic_write, write_last
from tfrecord_io.terminal.stages import stage
from train.kinds.words import describe
from train.machine.devices import versions
from train.machine.places import METRICS_NAME, PAGE_NAME
from train.results.charts import write_charts
from train.results.examples import Explanation, find_examples
from train.results.predictions import write_predictions
from train.results.report import render
from train.results.sections import Result


def write_results(
    directory: Path,
    result: Result,
    *,
    explanation: Explanation | None = None,
) -> dict[str, Any]:
    """Writes predictions.csv, plots/, report.html and metrics.json, and prints the measures.

    The presence of metrics.json means that a run is complete, with its export; it is the last.

    Returns the content of metrics.json: the measures, what was seen, and the notes. The directory
    is made if it is missing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    predictions, exposure = result.predictions, result.exposure
    notes = [*result.metrics.get("notes", ()), *alarms(result.manifest.audit)]
    seen: dict[str, Any] = {}
    if exposure:
        notes += [exposure.note] if exposure.note else []
        seen = {"seen_images": exposure.num_images, "seen_patients": exposure.num_patients}
        seen["include_seen"] = exposure.is_measured
    metrics = {**result.metrics, **seen, "notes": notes}
    measured = metrics if predictions is not None else {}
    if predictions is not None:
        write_predictions(directory, predictions)
    charts = write_charts(directory / "plots", result.history, measured, predictions)
    with stage(f"page{', with maps of what mattered' if explanation else ''}"):
        examples = find_examples(predictions, explanation) if predictions else {}
    facts = {
        "When and how it was made": {
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "command": shlex.join(sys.argv),
            "devices": ", ".join(keras.distribution.list_devices()),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        },
        "Versions": versions(),
    }
    result = dataclasses.replace(result, metrics=metrics, directory=directory)
    page = dataclasses.replace(
        result,
        metrics=measured,
        charts=charts,
        examples=examples,
        legend=explanation.legend if explanation else "",
        facts={**result.facts, **facts},
    )
    if measured:
        print(describe(result.task, metrics, result.own_metrics))
    with atomic_write(directory / PAGE_NAME) as file:
        file.write(render(page).encode("utf-8"))
    write_last(directory / METRICS_NAME, metrics)
    return metrics

"""The results of a run, of an evaluation, and of a cross-validation: their files and their page."""

from __future__ import annotations

import dataclasses
import datetime
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import keras

from tfrecord_io.auditing.findings import alarms
from tfrecord_io.format.manifest import Manifest
from tfrecord_io.pages import page
from tfrecord_io.stores.files import atomic_write, write_last
from train.data.dataset import Dataset
from train.data.seen import Exposure
from train.kinds import task_of, words
from train.kinds.task import Task
from train.machine.console import stage
from train.machine.devices import versions
from train.machine.places import METRICS_NAME, PAGE_NAME
from train.results import sections
from train.results.charts import write_charts
from train.results.mistakes import MAX_EXPLAINED, Explanation, ShownAnswer, find_mistakes
from train.results.predictions import Predictions, write_predictions

# The sections of a run of which nothing was measured.
_ALWAYS = (sections.training, sections.limits)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """What networks answered on a dataset, and the page of it.

    Attributes:
        directory: where its files are.
        metrics: content of metrics.json.
        predictions: None if there was nothing to evaluate.
        exposure: which measured images the networks had seen; None if none was measured.
        config: of the networks, see config.json; empty if it is not that of this dataset.
        history: a row an epoch.
        facts: on the network and how the page was made, by the title of their frame.
        charts: by name, see `charts.write_charts`.
        mistakes: the surest ones, with their images.
        legend: how to read the pictures that explain mistakes.
    """

    directory: Path
    dataset: Dataset
    metrics: Mapping[str, Any]
    predictions: Predictions | None = None
    exposure: Exposure | None = None
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    history: Sequence[Mapping[str, Any]] = ()
    facts: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    charts: Mapping[str, page.Drawing] = dataclasses.field(default_factory=dict)
    mistakes: Sequence[ShownAnswer] = ()
    legend: str = ""

    # What a kind of result says of itself: its name, the first sentence, the beginning of what had
    # not been seen, and what a reader must not conclude.
    kind: ClassVar[str] = "Result of the run"
    lead: ClassVar[str] = "On the {images} of split {split}, the network {verdict}"
    compared: ClassVar[str] = "What the network had seen was compared with these {}: it had seen"
    limits: ClassVar[Sequence[str]] = (
        "All images come from one collection. A network is often worse on images of another "
        "clinic or device; evaluate it on such a dataset before you rely on it elsewhere.",
    )
    parts: ClassVar[Sequence[sections.Make]] = ()

    @property
    def manifest(self) -> Manifest:
        return self.dataset.manifest

    @property
    def task(self) -> Task:
        return task_of(self.manifest.label_kind)

    def write(
        self, explanation: Explanation | None = None, num_explained: int = MAX_EXPLAINED
    ) -> dict[str, Any]:
        """Writes predictions.csv, plots/, report.html and metrics.json, and prints the measures.

        The presence of metrics.json means that a run is complete, with its export; it is the last.
        The explanation is of so many mistakes.

        Returns the content of metrics.json: the measures, what was seen, and the notes.
        """
        directory, predictions, exposure = self.directory, self.predictions, self.exposure
        directory.mkdir(parents=True, exist_ok=True)
        metrics = dict(self.metrics)
        metrics["notes"] = [*metrics.get("notes", ()), *alarms(self.manifest.audit)]
        if exposure:
            metrics["notes"] += [exposure.note] if exposure.note else []
            metrics |= {
                "seen_images": exposure.num_images,
                "seen_patients": exposure.num_patients,
                "include_seen": exposure.is_measured,
            }
        if predictions:
            write_predictions(directory, predictions)
        with stage("page, with occlusion maps" if explanation else "page"):
            found = find_mistakes(predictions, explanation, num_explained) if predictions else []
            result = dataclasses.replace(
                self,
                metrics=metrics,
                charts=write_charts(directory / "plots", self.history, metrics, predictions),
                mistakes=found,
                legend=explanation.legend if explanation else "",
                facts={
                    **self.facts,
                    "When and how it was made": {
                        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
                        "command": shlex.join(sys.argv),
                        "devices": ", ".join(keras.distribution.list_devices()),
                        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
                    },
                    "Versions": versions(),
                },
            )
            with atomic_write(directory / PAGE_NAME) as file:
                file.write(result.render().encode("utf-8"))
        if predictions:
            print(words.describe(self.task, metrics))
        write_last(directory / METRICS_NAME, metrics)
        return metrics

    def render(self) -> str:
        """Returns the HTML of the page."""
        title = self.directory.resolve().name
        # Of an evaluation, `model` is the path given to --run: a run, or the folder `export` in it.
        model = self.metrics.get("model")
        reader = Path(model.removesuffix("/export")).resolve().name if model else "the network"
        heading = f"How well {reader} reads {self.manifest.name}"
        beside = 'Beside this page: <a href="metrics.json">metrics.json</a> with every figure.'
        warning = "This is not a medical device. Nobody may be diagnosed or treated by it."
        parts = self.parts if "scores" in self.metrics else _ALWAYS
        made = [(make, make(self)) for make in parts]
        return page.render(
            page.Page(
                title=f"{heading} – {title}",
                over=f"{self.kind} {title}",
                heading=heading,
                top=[page.markup("<strong>{}</strong>", warning), *sections.top(self)],
                sections=[page.Section(make.__name__, *found) for make, found in made if found],
                footer=page.markup(beside),
            )
        )


class RunResult(Result):
    """The result of a training."""

    limits = (
        *Result.limits,
        "This is one run. Another seed or another choice of patients gives another result; "
        "a cross-validation (--folds 5) shows how much it varies.",
    )
    parts = (sections.classes, sections.by, sections.answers, sections.probabilities, *_ALWAYS)


class CrossValidationResult(Result):
    """The result of all folds of a cross-validation."""

    kind = "Cross-validation"
    lead = (
        "In a cross-validation, each of {images} was judged by a network that was trained on the "
        "other folds. They {verdict}"
    )
    compared = (
        "What each network had seen was compared with those that it judged of these {}: it had seen"
    )
    parts = (*RunResult.parts[:3], sections.folds, *RunResult.parts[3:])


class EvaluationResult(Result):
    """The result of finished runs on a dataset."""

    kind = "Evaluation"
    limits = (
        "All images come from one collection. A network is often worse on images of another "
        "clinic or device.",
    )
    parts = RunResult.parts

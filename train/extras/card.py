"""For those who give a model away: its card, README.md in the export.

It leaves with the model, so it names no path, person or hospital.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from tfrecord_io.format.manifest import Manifest
from tfrecord_io.pages.page import environment, markdown
from tfrecord_io.stores.files import atomic_write
from tfrecord_io.terminal.printing import printable

if TYPE_CHECKING:
    from train.results.write import Finished


def after(run: Finished) -> None:
    """Writes the card of a finished run."""
    outcome = run.outcome
    write_card(run.export, outcome.dataset.manifest, outcome.settings, run.results)


def write_card(
    folder: Path, manifest: Manifest, settings: Mapping[str, Any], results: Mapping[str, Any]
) -> None:
    """Writes README.md into the folder of an export.

    The manifest is that of the training data, the settings are those of config.json, and the
    results those of metrics.json, without `scores` if nothing was measured. Source of the fields:
    "Model Cards" in the documentation of the Hugging Face Hub.
    """
    from train.kinds import words  # with Keras, which takes seconds
    from train.kinds.measures import parts_of
    from train.kinds.registry import task_of

    task, scores = task_of(manifest.label_kind), results.get("scores", {})
    told = {*task.run_measures, *task.label_measures}
    labels = {"", "urgent", *(words.shown_classes(results) if scores else ())}
    measured = [
        {"type": name, "name": words.title_of(name), "value": score["value"]}
        for name, score in scores.items()
        for measure, label in [parts_of(name)]
        if measure in told and label in labels and score["value"] is not None
    ]
    title = f"{settings['model']} on {manifest.name}"
    job = f"image-{'classification' if task.gives_probabilities else 'regression'}"
    data = {"type": manifest.name, "name": manifest.name, "split": results["split"]}
    result = {"task": {"type": job}, "dataset": data, "metrics": measured}
    fields = (
        ("library_name", "keras"),
        ("pipeline_tag", task.gives_probabilities and job),  # the Hub has none for numbers
        ("tags", ["medical", job]),
        ("metrics", measured and task.run_measures),
        ("model-index", measured and [{"name": title, "results": [result]}]),
    )
    # Markdown, not HTML. A JSON value is one of YAML too.
    templates = environment(Path(__file__).parent).overlay(autoescape=False, finalize=markdown)
    text = templates.get_template("card.md.jinja").render(
        fields={Markup(name): Markup(_yaml(each)) for name, each in fields if each},
        title=title,
        manifest=manifest,
        task=task,
        results=results,
        measured=measured,
        words=words,
        settings=settings,
    )
    with atomic_write(folder / "README.md") as file:
        file.write(f"{text}\n".encode())


def _yaml(value: Any) -> str:
    return printable(json.dumps(value, ensure_ascii=False))

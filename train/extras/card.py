"""For those who give a model away: its card, README.md in the export.

It leaves with the model, so it names no path, person or hospital.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from tfrecord_io.pages.page import environment, markdown
from tfrecord_io.stores.files import atomic_write
from tfrecord_io.terminal.printing import printable

if TYPE_CHECKING:
    from train.results.sections import Result


def write_card(folder: Path, result: Result) -> None:
    """Writes README.md into the folder of an export; `result` is that of the finished run.

    Its metrics have no `scores` if nothing was measured. Source of the fields: "Model Cards" in the
    documentation of the Hugging Face Hub.
    """
    from train.kinds import words  # with Keras, which takes seconds
    from train.kinds.measures import parts_of

    manifest, settings, results = result.manifest, result.config, result.metrics
    task, scores = result.task, results.get("scores", {})
    told = {*task.run_measures, *task.label_measures}
    labels = {"", "urgent", *(words.shown_classes(results) if scores else ())}
    measured = [
        {"type": name, "name": words.title_of(name), "value": score["value"]}
        for name, score in scores.items()
        for measure, label in [parts_of(name)]
        if measure in told and label in labels and score["value"] is not None
    ]
    title = f"{settings['model']} on {manifest.name}"
    job = "image-classification"
    data = {"type": manifest.name, "name": manifest.name, "split": results["split"]}
    entry = {"task": {"type": job}, "dataset": data, "metrics": measured}
    fields = (
        ("library_name", "keras"),
        ("pipeline_tag", job),
        ("tags", ["medical", job]),
        ("metrics", measured and task.run_measures),
        ("model-index", measured and [{"name": title, "results": [entry]}]),
    )
    # Markdown, not HTML. A JSON value is one of YAML too.
    templates = environment(Path(__file__).parent).overlay(autoescape=False, finalize=markdown)
    text = templates.get_template("card.md.jinja").render(
        fields={Markup(name): Markup(_yaml(each)) for name, each in fields if each},
        title=title,
        manifest=manifest,
        task=task,
        result=result,
        results=results,
        measured=measured,
        words=words,
        settings=settings,
    )
    with atomic_write(folder / "README.md") as file:
        file.write(f"{text}\n".encode())


def _yaml(value: Any) -> str:
    return printable(json.dumps(value, ensure_ascii=False))

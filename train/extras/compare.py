"""Compares runs: what differs between them, and whether one is better.

A table in the terminal and the same as a page. The paired difference of two runs draws patients,
each with the answers of both, so it is narrower than two intervals say.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfrecord_io.format.kinds import kind_in
from tfrecord_io.pages import page
from tfrecord_io.stores.files import atomic_write, read_json
from tfrecord_io.terminal.address import Address, local_path
from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.flags import command
from tfrecord_io.terminal.printing import printable
from train.extras.bucket import open_run
from train.machine import console
from train.machine.places import METRICS_NAME


class Measured(NamedTuple):
    """A run, or an evaluation of one: its settings, its metrics.json, and every answer.

    `settings` are those of the network, and empty where they are not known; `measured_on` has the
    dataset, the split, and how many of the images the network had seen before. A key is of an
    image's path and its file, so that another clinic's file of that name differs. `people` has the
    patient of each key, or the key where none is known; `answers` a row a key.
    """

    name: str
    settings: dict[str, Any]
    measured_on: dict[str, Any]
    metrics: dict[str, Any]
    keys: np.ndarray
    people: dict[str, str]
    answers: Any


def read(run: str) -> Measured:
    """Reads what a run, or an evaluation in one, has measured; raises UserError if it has not."""
    from train.kinds.task import Answers
    from train.results.predictions import EXACT_NAME

    folder = open_run(run)
    metrics, content = read_json(folder / METRICS_NAME), read_json(folder / "config.json")
    settings = content.get("config") or {}
    if (inside := folder.resolve().parent).name == "evaluation":
        settings = read_json(inside.parent / "config.json").get("config") or {}
    if metrics and not metrics.get("split"):
        raise UserError(
            f"{run} was not measured: its dataset has no images besides the training images; "
            f"{command('evaluate')} measures it on another one"
        )
    try:
        with np.load(folder / EXACT_NAME) as exact:
            arrays = dict(exact)
        keys = np.char.add(arrays.pop("keys"), arrays.pop("files"))
        patients = arrays.pop("patients").tolist()
        answers = Answers(**arrays, label_names=tuple(metrics["label_counts"]))
        dataset = metrics.get("dataset") or content["dataset"]
        data = f"{dataset['name']} ({dataset['fingerprint'][:8]})"
        seen = metrics["seen_images"] if metrics.get("include_seen") else 0
        measured_on = {"dataset": data, "split": metrics["split"], "seen before": seen}
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{run}: expected the folder of a finished run, or of an evaluation in one, with "
            f"{METRICS_NAME} and predictions; {command('train')} or {command('evaluate')} writes "
            f"them ({error})"
        ) from None
    people = {
        key: f"patient {name}" if name else key for key, name in zip(keys, patients, strict=True)
    }
    return Measured(run, settings, measured_on, metrics, keys, people, answers)


def sections(runs: Sequence[Measured], num_samples: int = 1000) -> Iterator[page.Section]:
    """Yields what differs between runs: settings, figures, and each from the first."""
    from train.kinds import words
    from train.kinds.registry import task_of

    names = [run.name for run in runs]
    unknown = [run.name for run in runs if not run.settings]
    facts = [run.measured_on if unknown else run.settings | run.measured_on for run in runs]
    table = [
        [name, *(str(page.plain(of_run.get(name))) for of_run in facts)]
        for name in dict.fromkeys(itertools.chain(*facts))
    ]
    changed = [row for row in table if len(set(row[1:])) > 1]
    notes = []
    if unknown:
        notes.append(f"the settings of the network are not beside {', '.join(unknown)}")
    if any(row[0] == "dataset" for row in changed):
        notes.append(f"{command('diff')} OLD NEW tells how datasets differ")
    if not (changed or notes):
        notes.append("the settings and the dataset are the same")
    yield _section("What differs", ["", *names], changed, "; ".join(notes))
    tasks = [task_of(kind_in(run.metrics)) for run in runs]
    labels = [f"sensitivity/{label}" for run in runs for label in run.metrics["label_counts"]]
    shown = [*dict.fromkeys(labels)][: words.MAX_CLASSES]
    wanted = dict.fromkeys([*(name for task in tasks for name in task.run_measures), *shown])
    figures = [["images", *(words.measured_images(run.metrics) for run in runs)]]
    for name in wanted:
        scores = [run.metrics["scores"].get(name) for run in runs]
        if any(scores):
            form = words.form_of(name)
            cells = (words.with_interval(score, form, "") if score else "–" for score in scores)
            figures.append([words.title_of(name), *cells])
    yield _section("What was measured, with 95 % intervals", ["", *names], figures)
    for other in runs[1:]:
        yield _difference(tasks[0], runs[0], other, num_samples)


def _section(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str = ""
) -> page.Section:
    """Returns a table with a sentence below it; a table without rows is left out."""
    blocks = [page.Table(title, columns, rows)] * bool(rows) + [page.Note(note)] * bool(note)
    return page.Section(title.partition(" ")[0].lower(), title, blocks)


def _difference(task: Any, first: Measured, other: Measured, num_samples: int) -> page.Section:
    from train.kinds import words
    from train.results.bootstrap import with_intervals

    title = f"Difference: {other.name} minus {first.name}"
    names, theirs = first.answers.label_names, other.answers.label_names
    if kind_in(first.metrics) != kind_in(other.metrics) or set(names) != set(theirs):
        return _section(title, [], [], "their labels are of different kinds or names")
    common, ours, at = np.intersect1d(first.keys, other.keys, return_indices=True)
    if not len(common):
        return _section(title, [], [], "they have measured no file in common")
    answers = [first.answers.take(ours), _in_order(other.answers.take(at), names)]
    if not np.array_equal(answers[0].truths, answers[1].truths):
        return _section(title, [], [], "the labels of an image differ")
    _, groups = np.unique([first.people[key] for key in common], return_inverse=True)

    def measure(weights: np.ndarray) -> dict[str, np.ndarray]:
        before, after = (task.score(answer, weights) for answer in answers)
        # Names of no measure, which have no limits: a difference is between -1 and 1.
        return {f"- {n}": after[n] - before[n] for n in task.run_measures if n in after}

    found = with_intervals(measure, groups, {}, num_samples=num_samples, seed=0)
    table = []
    for name, score in found.items():
        unit, scale = (" points", 100) if words.known(name[2:]).unit == "share" else ("", 1)
        value, low, high = (
            "–" if n is None else f"{scale * n:+.{1 if unit else 3}{'f' if unit else 'g'}}"
            for n in (score["value"], score["low"], score["high"])
        )
        is_known = score["low"] is not None
        verdict = "clear" if is_known and score["low"] * score["high"] > 0 else "may be chance"
        interval = f"{low} to {high}{unit}" if is_known else "–"
        table.append([words.title_of(name[2:]), f"{value}{unit}", interval, verdict])
    patients = {first.people[key] for key in common if first.people[key] != key}
    note = f"on {words.images_of(len(common), len(patients))} that both have measured"
    return _section(title, ["", "difference", "95 % interval", ""], table, note)


def _in_order(answers: Any, names: Sequence[str]) -> Any:
    """Returns answers with their labels in another order."""
    order = [answers.label_names.index(name) for name in names]
    truths = answers.truths
    truths = truths[:, order] if truths.ndim == 2 else np.argsort(order)[truths]
    probabilities = answers.probabilities[:, order]
    return type(answers)(probabilities=probabilities, truths=truths, label_names=tuple(names))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command."""
    runs = "finished runs, or evaluations in them (RUN/evaluation/NAME); the first is compared with"
    parser.add_argument("run", nargs="+", type=Address, metavar="RUN", help=runs)
    what = "the page to write (default: comparison.html)"
    default = Path("comparison.html")
    parser.add_argument("--output", type=local_path, default=default, metavar="FILE", help=what)


def compare(arguments: argparse.Namespace) -> None:
    """Prints what differs between runs, and writes it as a page."""
    folders = {open_run(run).resolve() for run in arguments.run}
    if len(folders) < max(2, len(arguments.run)):
        named = ", ".join(arguments.run)
        raise UserError(f"expected two different runs or more, each once; received {named}")
    if arguments.output.is_dir() or arguments.output.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--output {arguments.output} is not a page; name a file such as a.html")
    console.make_folder("--output", arguments.output.parent)
    with console.hide_native_noise():
        found = list(sections([read(run) for run in arguments.run]))
    for section in found:
        print(printable(section.title))
        for block in section.blocks:
            rows = [[block.text]] if isinstance(block, page.Note) else [block.columns, *block.rows]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            for row in rows:
                print(printable("  " + "  ".join(map(str.ljust, row, widths)).rstrip()))
    heading, footer = "Comparison of runs", "Research only, not a medical device."
    # An anchor is there once.
    parts = [each._replace(id=f"{each.id}-{place}") for place, each in enumerate(found)]
    with atomic_write(arguments.output) as file:
        file.write(page.render(page.Page(heading, "Runs", heading, [], parts, footer)).encode())
    print(f"The same as a page: {arguments.output}")


main = console.TrainerCommand(
    name="compare",
    purpose="Compares runs: settings, measures, and the difference over the same patients.",
    usage="RUN RUN ... [--output FILE]",
    add_arguments=add_arguments,
    run=compare,
)

if __name__ == "__main__":
    sys.exit(main())

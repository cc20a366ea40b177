"""Compares runs: what differs between them, and whether one is better.

The paired difference of two runs draws patients, each with the answers of both, so it is narrower
than two intervals say.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfrecord_io.format.kinds import kind_in
from tfrecord_io.pages.page import plain
from tfrecord_io.stores.files import read_json
from tfrecord_io.terminal.address import Address
from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.flags import command
from tfrecord_io.terminal.printing import printable
from train.extras.bucket import open_run
from train.machine import console
from train.machine.places import METRICS_NAME


class Measured(NamedTuple):
    """A run, or an evaluation of one.

    Attributes:
        facts: the dataset, the split, how many of the images the network had seen before, and the
            settings of the network as far as they are known.
        metrics: content of metrics.json.
        keys: of an image's path and its file, so that another clinic's file of that name differs.
        patients: of each key, empty where none is known.
        answers: a row a key.
    """

    name: str
    facts: dict[str, Any]
    metrics: dict[str, Any]
    keys: np.ndarray
    patients: np.ndarray
    answers: Any


def read(run: str) -> Measured:
    """Reads what a run, or an evaluation in one, has measured; raises UserError if it has not."""
    from train.kinds.task import Answers
    from train.results.predictions import read_predictions

    folder = open_run(run)
    inside = folder.resolve().parent
    home = inside.parent if inside.name == "evaluation" else folder
    metrics, content = read_json(folder / METRICS_NAME), read_json(home / "config.json")
    if metrics and not metrics.get("split"):
        raise UserError(
            f"{run} was not measured: its dataset has no images besides the training images; "
            f"{command('evaluate')} measures it on another one"
        )
    try:
        exact = read_predictions(folder)
        answers = Answers(
            probabilities=exact["probabilities"],
            truths=exact["truths"],
            label_names=tuple(metrics["label_counts"]),
        )
        keys, patients = np.char.add(exact["keys"], exact["files"]), exact["patients"]
        dataset = metrics.get("dataset") or content["dataset"]
        facts = (content.get("config") or {}) | {
            "dataset": f"{dataset['name']} ({dataset['fingerprint'][:8]})",
            "split": metrics["split"],
            "seen before": metrics["seen_images"] if metrics.get("include_seen") else 0,
        }
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{run}: expected the folder of a finished run, or of an evaluation in one, with "
            f"{METRICS_NAME} and predictions; {command('train')} or {command('evaluate')} writes "
            f"them ({error})"
        ) from None
    return Measured(run, facts, metrics, keys, patients, answers)


#: A title, rows of cells, and a sentence below them.
Table = tuple[str, list[list[str]], str]


def tables(runs: Sequence[Measured], num_samples: int = 1000) -> Iterator[Table]:
    """Yields what differs between runs: settings, figures, and each from the first."""
    from train.kinds import task_of, words

    first, *others = runs
    header = ["", *(run.name for run in runs)]
    known = [name for name in first.facts if all(name in run.facts for run in runs)]
    rows = [[name, *(str(plain(run.facts[name])) for run in runs)] for name in known]
    changed = [row for row in rows if len(set(row[1:])) > 1]
    same = "" if changed else "the settings and the dataset are the same"
    yield "What differs", [header, *changed] if changed else [], same
    figures = [["images", *(words.measured_images(run.metrics) for run in runs)]]
    labels = [f"sensitivity/{label}" for run in runs for label in run.metrics["label_counts"]]
    names = [name for run in runs for name in task_of(kind_in(run.metrics)).run_measures]
    for name in dict.fromkeys([*names, *[*dict.fromkeys(labels)][: words.MAX_CLASSES]]):
        scores = [run.metrics["scores"].get(name) for run in runs]
        form = words.form_of(name)
        cells = (words.with_interval(score, form, "") if score else "–" for score in scores)
        figures.append([words.title_of(name), *cells])
    yield "What was measured, with 95 % intervals", [header, *figures], ""
    for other in others:
        title = f"Difference: {other.name} minus {first.name}"
        yield title, *_difference(first, other, num_samples)


def _difference(first: Measured, other: Measured, num_samples: int) -> tuple[list[list[str]], str]:
    """Returns the rows and the sentence of a table of paired differences."""
    from train.kinds import task_of, words
    from train.results.bootstrap import with_intervals

    kind, theirs = (kind_in(run.metrics) for run in (first, other))
    if (kind, first.answers.label_names) != (theirs, other.answers.label_names):
        return [], "their labels differ in kind, names or order"
    common, *places = np.intersect1d(first.keys, other.keys, return_indices=True)
    if not len(common):
        return [], "they have measured no file in common"
    answers = [run.answers.take(at) for run, at in zip((first, other), places, strict=True)]
    if not np.array_equal(answers[0].truths, answers[1].truths):
        return [], "the labels of an image differ"
    task, patients = task_of(kind), first.patients[places[0]]
    # An image of an unknown patient is a group of its own; no key begins with a line break.
    names = np.where(patients == "", common, np.char.add("\n", patients))
    _, groups = np.unique(names, return_inverse=True)

    def measure(weights: np.ndarray) -> dict[str, np.ndarray]:
        before, after = (task.score(answer, weights) for answer in answers)
        # Names of no measure, which have no limits: a difference is between -1 and 1.
        return {f"- {n}": after[n] - before[n] for n in task.run_measures if n in after}

    rows = [["", "difference", "95 % interval", ""]]
    found = with_intervals(measure, groups, {}, num_samples=num_samples, seed=0)
    for name, score in found.items():
        is_share = words.known(name[2:]).unit == "share"
        unit, form = (" points", "{:+.1f}") if is_share else ("", "{:+.3g}")
        value, *ends = (
            "–" if end is None else form.format(100 * end if is_share else end)
            for end in (score["value"], score["low"], score["high"])
        )
        is_known = score["low"] is not None
        verdict = "clear" if is_known and score["low"] * score["high"] > 0 else "may be chance"
        interval = f"{' to '.join(ends)}{unit}" if is_known else "–"
        rows.append([words.title_of(name[2:]), f"{value}{unit}", interval, verdict])
    images = words.images_of(len(common), len({*patients} - {""}))
    return rows, f"on {images} that both have measured"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command."""
    runs = "finished runs, or evaluations in them (RUN/evaluation/NAME); the first is compared with"
    parser.add_argument("run", nargs="+", type=Address, metavar="RUN", help=runs)


def compare(arguments: argparse.Namespace) -> None:
    """Prints what differs between runs."""
    folders = {open_run(run).resolve() for run in arguments.run}
    if len(folders) < max(2, len(arguments.run)):
        named = ", ".join(arguments.run)
        raise UserError(f"expected two different runs or more, each once; received {named}")
    with console.hide_native_noise():
        found = list(tables([read(run) for run in arguments.run]))
    for title, rows, note in found:
        print(printable(title))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            print(printable("  " + "  ".join(map(str.ljust, row, widths)).rstrip()))
        if note:
            print(f"  {note}")


main = console.TrainerCommand(
    name="compare",
    purpose="Compares runs: settings, measures, and the difference over the same patients.",
    usage="RUN RUN ...",
    add_arguments=add_arguments,
    run=compare,
)

if __name__ == "__main__":
    sys.exit(main())

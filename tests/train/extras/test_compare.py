"""Runs beside each other: copies of a run that were changed, and answers of no network."""

import shutil

import numpy as np
import pytest
from answers import dataset_of, predictions_of
from dataset_factory import change_json
from marked_images import evaluated

from tfrecord_io.format.kinds import CLASSES, GRADES, MULTI_LABEL
from tfrecord_io.stores.files import write_json
from train.extras import compare
from train.kinds import task_of
from train.kinds.measures import known
from train.kinds.words import title_of
from train.results import metrics
from train.results.options import MeasureOptions
from train.results.predictions import EXACT_NAME, write_predictions

SOME = np.random.default_rng(0)
NAMES = ("=A1", "+B", "-C", "@D")
RIGHT = np.arange(12) % 4


def run_of_no_network(folder, probabilities, truths, names=NAMES, task=None, files=None):
    """Writes what a run on 12 images of six patients leaves; returns it as it is read."""
    columns = {"path": [f"{n}.png" for n in range(12)], "file_xxh3": files or ["f"] * 12}
    dataset = dataset_of(12, [f"p{n // 2}" for n in range(12)], **columns)
    task = task or task_of(CLASSES)
    predictions = predictions_of(probabilities, truths, names, task, dataset=dataset)
    folder.mkdir()
    write_predictions(folder, predictions)
    measured = metrics.measure(predictions, MeasureOptions(bootstrap_samples=20), 0)
    facts = {"split": "test", "dataset": {"name": "d", "fingerprint": "0" * 64}}
    write_json(folder / "metrics.json", measured | facts)
    return compare.read(str(folder)), metrics.scores(predictions)


@pytest.mark.parametrize("kind", [GRADES, MULTI_LABEL, CLASSES])
def test_each_kind_is_compared_by_its_own_measures(tmp_path, kind):
    task, truths = task_of(kind), np.eye(4)[RIGHT] > 0 if kind is MULTI_LABEL else RIGHT
    one, other = SOME.dirichlet(np.ones(4), (2, 12))
    first, before = run_of_no_network(tmp_path / "a", one, truths, task=task)
    second, after = run_of_no_network(tmp_path / "b", other, truths, task=task)
    same, (_, figures, _), (_, rows, note) = compare.tables([first, second])
    assert same[1:] == ([], "the settings and the dataset are the same")
    shown = {row[0] for row in figures}
    assert shown >= {title_of(measure) for measure in task.run_measures} | {"sensitivity, @D"}
    found = {row[0]: float(row[1].split()[0]) for row in rows[1:]}
    for measure in task.run_measures:
        if (title := title_of(measure)) in found:  # areas take too long
            scale = 100 if known(measure).unit == "share" else 1
            change = scale * (after[measure] - before[measure])
            assert found[title] == pytest.approx(change, rel=0.01, abs=0.051)
    assert note == "on 12 images of 6 patients that both have measured"


def test_only_answers_about_the_same_files_and_labels_are_subtracted(tmp_path):
    one = np.eye(4)[RIGHT]
    ours, _ = run_of_no_network(tmp_path / "a", one, RIGHT)
    half, _ = run_of_no_network(tmp_path / "b", one, RIGHT, files=["f", "g"] * 6)
    named, _ = run_of_no_network(tmp_path / "c", one, RIGHT, NAMES[::-1])
    grades, _ = run_of_no_network(tmp_path / "d", one, RIGHT, NAMES, task_of(GRADES))
    wrong = ours._replace(answers=ours.answers.take(np.arange(12)[::-1]))
    apart = ours._replace(keys=np.char.add(ours.keys, "x"))
    _, _, *parts = compare.tables([ours, half, named, grades, wrong, apart])
    assert [note for _, _, note in parts] == [
        "on 6 images of 6 patients that both have measured",
        *["their labels differ in kind, names or order"] * 2,
        "the labels of an image differ",
        "they have measured no file in common",
    ]


def test_the_command_says_what_differs_and_by_how_much(class_run, tmp_path, capsys):
    # A copy whose network is wrong of the first patient of CNV, and of the one of the last row.
    worse = shutil.copytree(class_run, tmp_path / "worse")
    change_json(worse / "config.json", config={"seed": 7})
    exact = dict(np.load(worse / EXACT_NAME))
    for place in (0, 1, 28, 29):
        exact["probabilities"][place] = np.roll(exact["truths"][place], 1)
    np.savez(worse / EXACT_NAME, **exact)
    assert compare.main([str(class_run), str(worse)]) == 0
    said = capsys.readouterr().out
    (seed,) = [line.split() for line in said.splitlines() if line.startswith("  seed ")]
    assert seed == ["seed", "1", "7"]
    assert "  dataset " not in said
    found = compare.read(class_run), compare.read(worse)
    right = [
        task_of(CLASSES).loss_and_accuracy(each.answers.probabilities, each.answers.truths)[1]
        for each in found
    ]
    *_, (_, rows, note) = compare.tables(found)
    accuracy, change, interval, _ = rows[1]
    assert (accuracy, change) == ("accuracy", f"{100 * (right[1] - right[0]):+.1f} points")
    assert all(text in said for text in (change, interval, note))
    # As of 15 patients of two images, of whom two lose both: t times the deviation of the mean.
    low, high = (float(end) for end in interval.removesuffix(" points").split(" to "))
    half = 100 * 2.14 * np.repeat([-1.0, 0.0], [2, 13]).std(ddof=1) / np.sqrt(15)
    assert (high - low) / 2 == pytest.approx(half, rel=0.35)
    *_, (_, rows, _) = compare.tables([found[0], found[0]._replace(name="b")])
    assert rows[1] == ["accuracy", "+0.0 points", "–", "may be chance"]


def test_what_cannot_be_compared_is_refused(class_run, class_data, tmp_path, capsys):
    (tmp_path / "link").symlink_to(class_run)
    begun, damaged, old, unmeasured = (
        shutil.copytree(class_run, tmp_path / name)
        for name in ("begun", "damaged", "old", "unmeasured")
    )
    exact = dict(np.load(old / EXACT_NAME))
    np.savez(old / EXACT_NAME, **exact | {"truths": exact["truths"].argmax(-1)})
    (begun / "metrics.json").unlink()
    (damaged / EXACT_NAME).write_bytes(b"PK")
    write_json(unmeasured / "metrics.json", {"split": None, "best_epoch": 1})
    for others in ([], [tmp_path / "link"], [class_data], [begun], [damaged], [old], [unmeasured]):
        assert compare.main([str(class_run), *map(str, others)]) == 2
        assert str(others[0] if others else class_run) in capsys.readouterr().err


def test_an_evaluation_is_compared_with_its_run(class_run, class_data, tmp_path):
    copy = shutil.copytree(class_run, tmp_path / "copy")
    assert evaluated(copy, class_data, "--split=val", "--include_seen") == 0
    (output,) = (copy / "evaluation").iterdir()
    (_, changed, _), *_ = compare.tables([compare.read(class_run), compare.read(str(output))])
    assert [row[0] for row in changed[1:]] == ["split", "seen before"]
    assert changed[2][1:] == ["0", "20"]

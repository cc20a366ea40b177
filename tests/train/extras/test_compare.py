"""Runs beside each other: copies of a run that were changed, and answers of no network."""

import shutil

import numpy as np
import pytest
from answers import dataset_of, predictions_of
from dataset_factory import change_json
from marked_images import KERAS_ARRAY_WARNING, evaluated, metrics_of

from tfrecord_io.format.kinds import CLASSES, GRADES, MULTI_LABEL
from tfrecord_io.stores.files import write_json
from train.extras import compare
from train.kinds.measures import known
from train.kinds.registry import task_of
from train.kinds.words import title_of
from train.results import metrics
from train.results.options import MeasureOptions
from train.results.predictions import EXACT_NAME, read_predictions, write_predictions

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAY_WARNING)


@pytest.fixture
def worse(class_run, tmp_path):
    """A copy whose network is wrong of the first patient of CNV, and of the one of the last row."""
    run = shutil.copytree(class_run, tmp_path / "worse")
    change_json(run / "config.json", config={"seed": 7})
    exact = dict(np.load(run / EXACT_NAME))
    for place in (0, 1, 28, 29):
        exact["probabilities"][place] = np.eye(4)[(exact["truths"][place] + 1) % 4]
    np.savez(run / EXACT_NAME, **exact)
    return run


def run_of_no_network(folder, probabilities, truths, names, task, files=None, **fields):
    """Writes what a run on 12 images of six patients leaves; returns it as it is read."""
    places = np.arange(12) // 2
    columns = {"path": [f"{n}.png" for n in range(12)], "file_xxh3": files or ["f"] * 12}
    dataset = dataset_of(12, [f"p{n}" for n in places], **columns)
    predictions = predictions_of(probabilities, truths, names, task, dataset=dataset, **fields)
    folder.mkdir()
    write_predictions(folder, predictions)
    measured = metrics.measure(predictions, MeasureOptions(bootstrap_samples=20), 0)
    facts = {"split": "test", "dataset": {"name": "d", "fingerprint": "0" * 64}}
    write_json(folder / "metrics.json", measured | facts)
    return compare.read(str(folder)), metrics.scores(predictions)


SOME = np.random.default_rng(0)
FORMULAS = ("=A1", "+B", "-C", "@D")
RIGHT = np.arange(12) % 4


@pytest.mark.parametrize("kind", [GRADES, MULTI_LABEL, CLASSES])
def test_each_kind_is_compared_by_its_own_measures(tmp_path, kind):
    task, names, truths = task_of(kind), FORMULAS, RIGHT
    probabilities = SOME.dirichlet(np.ones(4), (2, 12))
    if kind is MULTI_LABEL:
        truths = np.eye(4)[truths] > 0
    runs, scores = zip(
        *(
            run_of_no_network(tmp_path / name, answers, truths, names, task)
            for name, answers in zip("ab", probabilities, strict=True)
        ),
        strict=True,
    )
    assert runs[0].answers.label_names == names
    same, figures, difference = compare.sections(runs)
    assert "the settings of the network are not beside" in same.blocks[0].text
    told = {row[0]: row[1:] for row in figures.blocks[0].rows}
    rows, note = difference.blocks
    found = {row[0]: float(row[1].split()[0]) for row in rows.rows}
    for measure in task.run_measures:
        title, change = title_of(measure), scores[1][measure] - scores[0][measure]
        assert title in told
        if title in found:
            scale = 100 if known(measure).unit == "share" else 1
            assert found[title] == pytest.approx(scale * change, rel=0.01, abs=0.051)
        else:
            assert title in note.text.partition("without the ")[2]
    assert "on 12 images of 6 patients that both have measured" in note.text
    assert "sensitivity, @D" in told


def test_another_file_of_the_same_name_and_labels_of_another_kind_are_not_compared(tmp_path):
    task, one = task_of(CLASSES), np.eye(4)[RIGHT]
    ours, _ = run_of_no_network(tmp_path / "a", one, RIGHT, FORMULAS, task)
    files = ["f", "g"] * 6
    theirs, _ = run_of_no_network(tmp_path / "b", one, RIGHT, (*"wxyz",), task, files)
    grades, _ = run_of_no_network(tmp_path / "c", one, RIGHT, FORMULAS, task_of(GRADES))
    *_, other, unlike = compare.sections([ours, theirs._replace(answers=ours.answers), grades])
    assert "on 6 images of 6 patients that both have measured" in other.blocks[1].text
    assert unlike.blocks[0].text == "their labels are of different kinds"
    _, figures, _ = compare.sections([ours, theirs])
    assert {"sensitivity, =A1", "sensitivity, z"} < {row[0] for row in figures.blocks[0].rows}


def test_the_table_and_the_page_say_what_differs_and_by_how_much(
    class_run, worse, tmp_path, capsys
):
    page = tmp_path / "page.html"
    assert compare.main([str(class_run), str(worse), f"--output={page}"]) == 0
    said = capsys.readouterr().out
    (seed,) = [line.split() for line in said.splitlines() if line.startswith("  seed ")]
    assert seed == ["seed", "1", "7"]
    assert "  dataset " not in said
    accuracy = metrics_of(class_run)["scores"]["accuracy"]["value"]
    assert f"{100 * accuracy:.1f} %" in said
    _, truths = read_predictions(class_run)[1:]
    found = compare.read(class_run), compare.read(worse)
    right = [(each.answers.probabilities.argmax(1) == truths).mean() for each in found]
    (line,) = [line for line in said.splitlines() if "accuracy" in line and "points" in line][:1]
    assert f"{100 * (right[1] - right[0]):+.1f} points" in line
    assert "on 30 images of 15 patients that both have measured" in said
    written = page.read_text()
    for told in ("What differs", "Difference: ", "15 patients", f"{100 * accuracy:.1f} %"):
        assert told in written


def test_a_difference_varies_as_the_patients_do_in_whom_the_answers_differ(class_run, worse):
    same, other = compare.read(class_run), compare.read(worse)
    *_, nothing = compare.sections([same, same._replace(name="b")])
    assert nothing.blocks[0].rows[0][:4] == ["accuracy", "+0.0 points", "–", "may be chance"]
    *_, difference = compare.sections([same, other])
    low, high = (
        float(end) for end in difference.blocks[0].rows[0][2].removesuffix(" points").split(" to ")
    )
    # As of 15 patients of two images, of whom two lose both: t times the deviation of the mean.
    value, losses = (
        float(difference.blocks[0].rows[0][1].split()[0]),
        np.repeat([-1.0, 0.0], [2, 13]),
    )
    half = 100 * 2.14 * losses.std(ddof=1) / np.sqrt(15)
    assert value == pytest.approx(100 * losses.mean(), abs=0.1)
    assert (high - low) / 2 == pytest.approx(half, rel=0.35)
    assert low < value < high


def test_what_cannot_be_compared_is_said(class_run, class_data, tmp_path, capsys):
    run = compare.read(class_run)
    others = {
        "no file in common": run._replace(keys=np.char.add(run.keys, "x")),
        "the labels of an image, differ": run._replace(
            answers=run.answers.take(np.arange(30)[::-1])
        ),
    }
    for note, other in others.items():
        assert note in list(compare.sections([run, other]))[-1].blocks[0].text
    (tmp_path / "link").symlink_to(class_run)
    for words in ([class_run], [class_run, tmp_path / "link"]):
        assert compare.main([*map(str, words)]) == 2
        assert "expected two different runs or more, each once" in capsys.readouterr().err
    begun = tmp_path / "begun"
    shutil.copytree(class_run, begun, ignore=shutil.ignore_patterns("metrics.json"))
    damaged = shutil.copytree(class_run, tmp_path / "damaged")
    (damaged / EXACT_NAME).write_bytes(b"PK")
    for unfinished in (class_data, begun, damaged):
        assert compare.main([str(class_run), str(unfinished)]) == 2
        said = capsys.readouterr().err
        assert "expected the folder of a finished run, or of an evaluation" in said
    (table := tmp_path / "labels.csv").write_text("mine")
    for page in (table, tmp_path):
        assert compare.main([str(class_run), str(begun), f"--output={page}"]) == 2
        assert "is not a page" in capsys.readouterr().err
    assert table.read_text() == "mine"
    copy = shutil.copytree(class_run, tmp_path / "copy")
    assert evaluated(copy, class_data, "--split=val", "--include_seen") == 0
    (output,) = (copy / "evaluation").iterdir()
    what, _, difference = compare.sections([run, compare.read(str(output))])
    assert [row[0] for row in what.blocks[0].rows] == ["split", "seen before"]
    assert what.blocks[0].rows[1][1:] == ["0", "20"]
    assert difference.blocks[0].text == "they have measured no file in common"

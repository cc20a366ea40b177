"""Runs beside each other: copies of one run whose answers and settings were changed."""

import shutil

import numpy as np
import pytest
from dataset_factory import change_json
from marked_images import KERAS_ARRAY_WARNING, evaluated, metrics_of

from train.extras import compare
from train.results.predictions import EXACT_NAME, read_predictions

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAY_WARNING)


@pytest.fixture
def worse(class_run, tmp_path):
    """A copy whose network is wrong of the first patient of CNV, and of the one of the last row."""
    run = shutil.copytree(class_run, tmp_path / "worse")
    change_json(run / "config.json", config={"seed": 7})
    keys, probabilities, truths = read_predictions(run)
    for place in (0, 1, 28, 29):
        probabilities[place] = np.eye(4)[(truths[place] + 1) % 4]
    np.savez(run / EXACT_NAME, keys=keys, probabilities=probabilities, truths=truths)
    return run


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
        "no image in common": run._replace(keys=np.char.add(run.keys, "x")),
        "their classes, or the labels of an image, differ": run._replace(
            answers=run.answers.some(np.arange(30)[::-1])
        ),
    }
    for note, other in others.items():
        assert note in list(compare.sections([run, other]))[-1].blocks[0].text
    assert compare.main([str(class_run)]) == 2
    assert compare.main([str(class_run), str(class_data)]) == 2
    assert "expected the folder of a finished run, or of an evaluation" in capsys.readouterr().err
    output = tmp_path / "evaluated"
    assert (
        evaluated(class_run, class_data, "--split=val", "--include_seen", f"--output={output}") == 0
    )
    *_, difference = compare.sections([run, compare.read(output)])
    assert difference.blocks[0].text == "they have measured no image in common"

from xml.etree import ElementTree

import numpy as np
import pytest
from answers import measured, predictions_of
from marked_images import OCT_NAMES

from train.kinds.classes import CLASSES
from train.results import charts

HISTORY = (
    {"epoch": 1, "loss": 2.0, "accuracy": 0.5, "val_loss": 1.0, "val_accuracy": 0.25},
    {"epoch": 2, "loss": 1.0, "accuracy": 0.75, "val_loss": None, "val_accuracy": None},
    {"epoch": 3, "loss": float("nan"), "accuracy": 1.0},
)
ALL = {"curves", "confusion", "roc", "reliability"}


def charts_of(probabilities, labels, names=OCT_NAMES):
    """Returns the charts by name, and what metrics.json says."""
    found = measured(probabilities, labels, names) | {"split": "test"}
    predictions = predictions_of(probabilities, labels, names)
    return {name: charts.DRAWN[name](predictions, found) for name in CLASSES.charts}, found


def confusion_of(matrix, names):
    predictions = predictions_of(np.ones((1, len(names))), [0], names)
    (chart,) = charts.confusion(predictions, {"confusion_matrix": matrix, "split": "test"})
    return chart


def random_answers(names, num_examples):
    generator = np.random.default_rng(0)
    labels = np.arange(num_examples) % len(names)
    return generator.dirichlet(np.ones(len(names)), size=num_examples), labels, names


def random_charts(names, num_examples):
    return charts_of(*random_answers(names, num_examples))


def written(folder, names, num_examples):
    """Returns the texts of the files that are written, and the charts of the page."""
    answers = random_answers(names, num_examples)
    found = measured(*answers) | {"split": "test", "best_epoch": 2}
    drawn = charts.write_charts(folder / "plots", HISTORY, found, predictions_of(*answers))
    return {path.stem: path.read_text() for path in (folder / "plots").iterdir()}, drawn


def lines_of(chart):
    """Returns the points of each series by its name in the legend."""
    return {each.name: [tuple(point) for point in each.points] for each in chart.series}


def test_the_curves_show_what_is_known_and_which_epoch_was_kept():
    loss, accuracy = charts.training_curves(HISTORY, best_epoch=2)
    lines = lines_of(loss)
    assert lines["training"] == [(1, 2), (2, 1)]
    assert lines["validation"] == [(1, 1)]
    assert [x for x, _ in lines["kept epoch"]] == [2, 2]
    assert lines_of(accuracy)["training"] == [(1, 0.5), (2, 0.75), (3, 1)]
    assert loss.description.endswith("training from 2.000 to 1.000; validation from 1.000 to 1.000")
    assert charts.training_curves([], best_epoch=0) == []


def test_the_roc_passes_through_the_corners_and_the_points_between():
    probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8]])
    chart, precision = charts_of(probabilities, np.array([0, 0, 1, 1]), ("a", "b"))[0]["roc"]
    lines = {name[:8]: points for name, points in lines_of(chart).items()}
    assert lines["a: 0.750"] == [(0, 0), (0, 0.5), (0.5, 0.5), (0.5, 1), (1, 1)]
    assert "a: 0.750" in chart.description
    # Half of a is found without a false alarm, all of it with one; the step is where it is.
    (name,) = (name for name in lines_of(precision) if name.startswith("a: "))
    heights = dict(lines_of(precision)[name])
    assert [heights[sensitivity] for sensitivity in (0, 0.5, 0.505, 1)] == [1, 1, 2 / 3, 2 / 3]
    assert np.mean([*heights.values()]) == pytest.approx(5 / 6, abs=0.01)
    assert name.startswith("a: 0.833")
    assert lines_of(precision)[""] == [(0, 0.5), (1, 0.5)]  # the share of b, and of a


def test_the_roc_has_a_curve_for_each_class_with_its_interval_and_the_urgent_view():
    found, metrics = random_charts(OCT_NAMES, 60)
    chart, _ = found["roc"]
    area = metrics["scores"]["auc/DME"]
    assert len(lines_of(chart)) == 4 + 1 + 1  # and the diagonal
    assert f"DME: {area['value']:.3f} ({area['low']:.3f} to {area['high']:.3f})" in lines_of(chart)
    without_normal, _ = charts_of(np.full((4, 4), 0.25), np.array([0, 1, 2, 0]))
    assert "NORMAL" not in without_normal["roc"][0].description
    # Of many classes, those of smallest area.
    names = tuple(f"class {index}" for index in range(30))
    found, metrics = random_charts(names, 120)
    chart, _ = found["roc"]
    worst = min(names, key=lambda name: metrics["scores"][f"auc/{name}"]["value"])
    assert f"{worst}: " in chart.description
    assert len(lines_of(chart)) == 8 + 1
    assert "the 8 smallest of 30" in chart.title


def test_the_reliability_is_accuracy_by_confidence_above_the_share_of_the_answers():
    for num_examples, num_points in ((39, []), (40, [2]), (240, [12])):
        found = random_charts(("a", "b", "c"), num_examples)[0]["reliability"]
        assert [len(lines_of(chart)["as exported"]) for chart in found] == num_points
    # 20 sure answers, 15 of them right; 20 unsure ones, 10 right.
    probabilities = np.repeat([[0.9, 0.1], [0.6, 0.4]], 20, axis=0)
    labels = np.concatenate([np.arange(20) >= 15, np.arange(20) >= 10]).astype(int)
    (chart,) = charts_of(probabilities, labels, ("a", "b"))[0]["reliability"]
    np.testing.assert_allclose(lines_of(chart)["as exported"], [(0.6, 0.5), (0.9, 0.75)])
    heights = {round(height, 6) for _, height in lines_of(chart)["share of the answers"]}
    assert heights == {0, 0.5}
    assert "50% right at 60%, 75% right at 90%" in chart.description


def test_the_confusion_matrix_shows_counts_and_shares():
    chart = confusion_of([[3, 1], [0, 0]], ("cat", "dog"))
    shown = [" ".join(cell.lines) for cell in chart.cells]
    assert shown == ["3 75%", "1 25%", "0 0%", "0 0%"]
    assert chart.up(0) < chart.up(1)  # the first class is on top
    assert chart.title == "test: 4 images"


@pytest.mark.parametrize(
    ("names", "num_examples", "expected"),
    [
        (OCT_NAMES, 60, ALL),
        (("a$x^$b", "$\\frac{1}$", "\x1b[31mred", "黄斑", "long name " * 9), 40, ALL),
        (("only",), 5, {"curves", "confusion"}),
        ([f"class number {index}" for index in range(40)], 80, ALL),
        ([f"class number {index}" for index in range(41)], 82, ALL - {"confusion"}),
    ],
    ids=["oct", "odd_names", "one", "many", "very_many"],
)
def test_all_charts_are_written_as_well_formed_files_of_bounded_size(
    names, num_examples, expected, tmp_path, capsys
):
    files, drawn = written(tmp_path, names, num_examples)
    assert set(files) == {name for name, some in drawn.items() if some} == expected
    for name, text in files.items():
        root = ElementTree.fromstring(text)
        assert max(float(root.get("width")), float(root.get("height"))) < 4000
        assert len(text) < 500_000
        titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
        assert titles == [chart.title for chart in drawn[name]]
    assert capsys.readouterr().err == ""


def test_a_chart_that_cannot_be_drawn_costs_a_warning_and_no_other_chart(
    tmp_path, monkeypatch, capsys
):
    def fail(*arguments):
        raise ValueError("no")

    monkeypatch.setitem(charts.DRAWN, "reliability", fail)
    files, drawn = written(tmp_path, OCT_NAMES, 40)
    assert set(files) == set(drawn) == ALL - {"reliability"}
    assert "reliability.svg was not written: ValueError" in capsys.readouterr().err

import numpy as np
import pytest
from answers import measured, predictions_of
from marked_images import OCT_NAMES
from matplotlib.figure import Figure
from pages import Page

from train.results import charts

HISTORY = (
    {"epoch": 1, "loss": 2.0, "accuracy": 0.5, "val_loss": 1.0, "val_accuracy": 0.25},
    {"epoch": 2, "loss": 1.0, "accuracy": 0.75, "val_loss": None, "val_accuracy": None},
    {"epoch": 3, "loss": float("nan"), "accuracy": 1.0},
)
ALL = {"loss", "accuracy", "roc", "reliability"}


def random_answers(names, num_examples):
    labels = np.arange(num_examples) % len(names)
    return np.random.default_rng(0).dirichlet(np.ones(len(names)), num_examples), labels, names


def drawn(name, probabilities, labels, names=OCT_NAMES):
    """Returns the axes of a chart, and its title."""
    found, axes = measured(probabilities, labels, names), Figure().add_subplot()
    title = charts.DRAWN[name](predictions_of(probabilities, labels, names), found, axes)
    return axes, title


def written(folder, names, num_examples):
    """Returns the texts of the files that are written, and the charts of the page."""
    answers = random_answers(names, num_examples)
    found = measured(*answers)
    folder.mkdir(exist_ok=True)
    shown = charts.write_charts(folder / "plots", HISTORY, found, predictions_of(*answers))
    return {path.stem: path.read_text() for path in (folder / "plots").iterdir()}, shown


def points_of(axes):
    """Returns the points of each line by its name in the legend."""
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines}


def test_the_curves_show_what_is_known():
    axes = Figure().add_subplot()
    assert charts._epochs(HISTORY, "loss", axes) == "Loss"
    assert points_of(axes) == {"training": [[1, 2], [2, 1]], "validation": [[1, 1]]}


def test_each_class_has_a_curve_of_the_area_that_its_legend_names_and_of_many_the_smallest():
    probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8]])
    lines = points_of(drawn("roc", probabilities, np.array([0, 0, 1, 1]), ("a", "b"))[0])
    (of_a,) = (label for label in lines if label.endswith(" a"))
    assert float(of_a.split()[0]) == pytest.approx(0.75, abs=1e-3)
    assert np.mean([height for _, height in lines[of_a]]) == pytest.approx(0.75, abs=0.01)
    axes, _ = drawn("roc", *random_answers(OCT_NAMES, 60))
    assert len(axes.lines) == 4 + 1 + 1  # and the urgent ones and guessing
    axes, _ = drawn("roc", np.full((4, 4), 0.25), np.array([0, 1, 2, 0]))
    assert not any("NORMAL" in label for label in points_of(axes))
    axes, title = drawn("roc", *random_answers(tuple(f"class {n}" for n in range(30)), 120))
    assert len(axes.lines) == 8 + 1
    assert "the 8 smallest of 30" in title


def test_the_reliability_is_accuracy_by_confidence():
    # 20 sure answers, 15 of them right; 20 unsure ones, 10 right.
    probabilities = np.repeat([[0.9, 0.1], [0.6, 0.4]], 20, axis=0)
    labels = np.concatenate([np.arange(20) >= 15, np.arange(20) >= 10]).astype(int)
    axes, _ = drawn("reliability", probabilities, labels, ("a", "b"))
    *_, found = points_of(axes).values()
    np.testing.assert_allclose(found, [(0.6, 0.5), (0.9, 0.75)])
    assert drawn("reliability", probabilities[:39], labels[:39], ("a", "b"))[1] == ""


def test_each_chart_is_a_file_of_bounded_size_and_described_on_the_page(tmp_path, capsys):
    files, shown = written(tmp_path / "one", ("only",), 5)
    assert set(files) == set(shown) == {"loss", "accuracy"}
    names = ("a$x^$b", "$\\frac{1}$", "\x1b[31mred", "黄斑", "_long name " * 9)
    files, shown = written(tmp_path / "odd", names, 40)
    assert set(files) == set(shown) == ALL
    ids = []
    for name, text in files.items():
        assert text == shown[name].svg
        page = Page(text)
        (svg,) = page.all("svg")
        assert page.open == []
        assert svg["aria-label"] == shown[name].title
        assert len(text) < 200_000
        ids += page.ids
    assert len(set(ids)) == len(ids)
    assert capsys.readouterr().err == ""
    assert all(name in files["roc"] for name in ("a$x^$b", "黄斑", "_long"))


def test_a_chart_that_cannot_be_drawn_costs_a_warning_and_no_other_chart(
    tmp_path, monkeypatch, capsys
):
    def fail(*arguments):
        raise ValueError("no")

    monkeypatch.setitem(charts.DRAWN, "reliability", fail)
    files, shown = written(tmp_path, OCT_NAMES, 40)
    assert set(files) == set(shown) == ALL - {"reliability"}
    assert "reliability.svg was not written: ValueError" in capsys.readouterr().err

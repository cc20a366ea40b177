import numpy as np
import pytest
from marked_images import OCT_NAMES
from PIL import Image

from train.data.examples import Examples
from train.kinds.classes import CLASSES
from train.kinds.scores import ClassScorer
from train.results import metrics as measures
from train.results import plots
from train.results.predictions import Predictions


def metrics_of(probabilities, labels, names=OCT_NAMES):
    metrics = measures.evaluate_predictions(
        ClassScorer(probabilities, labels, tuple(names)), groups=None, num_samples=10, seed=0
    )
    return metrics | {"split": "test", "best_epoch": 2}


def write(folder, history, probabilities, labels, names=OCT_NAMES):
    metrics = metrics_of(probabilities, labels, names)
    examples = Examples(keys=("key",) * len(labels), patients=None, paths=None)
    predictions = Predictions(
        task=CLASSES, probabilities=probabilities, truths=labels, examples=examples
    )
    plots.write_plots(folder, history, metrics, predictions, names)


def texts(figure):
    return {text.get_text() for text in figure.findobj(lambda part: hasattr(part, "get_text"))}


def test_the_curves_show_training_and_validation(tmp_path):
    history = [
        {"epoch": 1, "loss": 1.0, "accuracy": 0.5, "val_loss": 1.1, "val_accuracy": 0.4},
        {"epoch": 2, "loss": 0.5, "accuracy": 0.8, "val_loss": 0.9, "val_accuracy": 0.6},
    ]
    axes = plots.draw_curves(history, best_epoch=2).axes
    assert [list(line.get_ydata()) for line in axes[0].lines[:2]] == [[1.0, 0.5], [1.1, 0.9]]
    assert [list(line.get_ydata()) for line in axes[1].lines[:2]] == [[0.5, 0.8], [0.4, 0.6]]


def test_without_validation_there_is_one_curve():
    history = [{"epoch": 1, "loss": 1.0, "accuracy": 0.5}]
    assert len(plots.draw_curves(history, best_epoch=1).axes[0].lines) == 2  # and the mark


def test_the_confusion_matrix_shows_counts_and_shares():
    matrix = np.array([[3, 1], [0, 0]])
    found = texts(plots.draw_confusion(matrix, ("cat", "dog"), "test"))
    assert {"3\n75%", "1\n25%", "0\n0%", "cat", "dog", "test: 4 images"} <= found


def test_the_roc_has_a_curve_for_each_class_and_the_urgent_view():
    generator = np.random.default_rng(0)
    labels = generator.integers(4, size=60)
    probabilities = generator.dirichlet(np.ones(4), size=60)
    metrics = metrics_of(probabilities, labels)
    figure = plots.draw_roc(probabilities, CLASSES.has(labels, 4), OCT_NAMES, metrics)
    assert len(figure.axes[0].lines) == 4 + 1 + 1  # and the diagonal
    area = metrics["scores"]["auc/DME"]["value"]
    assert any(text.startswith(f"DME: {area:.3f} [") for text in texts(figure))


def test_a_class_without_examples_has_no_curve():
    labels = np.array([0, 1, 2, 0])
    probabilities = np.full((4, 4), 0.25)
    metrics = metrics_of(probabilities, labels)
    figure = plots.draw_roc(probabilities, CLASSES.has(labels, 4), OCT_NAMES, metrics)
    assert not any(text.startswith("NORMAL") for text in texts(figure))


def test_the_reliability_diagram_shows_accuracy_by_confidence():
    labels = np.array([0, 0, 1, 1])
    probabilities = np.array([[0.95, 0.05, 0, 0]] * 4)
    figure = plots.draw_reliability(probabilities, labels, metrics_of(probabilities, labels))
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights == [0.5]


def test_all_plots_are_written_as_pictures(tmp_path):
    labels = np.array([0, 1, 2, 3])
    probabilities = np.eye(4) * 0.9 + 0.025
    history = [{"epoch": 1, "loss": 1.0, "accuracy": 0.5}]
    write(tmp_path / "plots", history, probabilities, labels)
    for name in ("curves", "confusion", "roc", "reliability"):
        with Image.open(tmp_path / "plots" / f"{name}.png") as picture:
            assert min(picture.size) > 300


def all_written(folder, names, num_examples):
    """Writes the plots of random predictions, and returns their sizes by name."""
    generator = np.random.default_rng(0)
    labels = generator.integers(len(names), size=num_examples)
    probabilities = generator.dirichlet(np.ones(len(names)), size=num_examples)
    write(folder, [{"epoch": 1, "loss": 1.0, "accuracy": 0.5}], probabilities, labels, names)
    sizes = {}
    for path in folder.iterdir():
        with Image.open(path) as picture:
            sizes[path.stem] = picture.size
    return sizes


@pytest.mark.slow
def test_pictures_of_very_many_classes_are_of_bounded_size(tmp_path, capsys):
    names = tuple(f"class number {index}" for index in range(300))
    sizes = all_written(tmp_path, names, 900)
    assert set(sizes) == {"curves", "confusion", "roc", "reliability"}
    assert max(max(size) for size in sizes.values()) < 3000
    assert capsys.readouterr().err == ""


def test_a_large_confusion_matrix_has_no_texts_in_its_cells():
    names = [f"class {index}" for index in range(41)]
    small = plots.draw_confusion(np.eye(40, dtype=int), names[:40], "test")
    large = plots.draw_confusion(np.eye(41, dtype=int), names, "test")
    assert len(small.axes[0].texts) == 1600
    assert len(large.axes[0].texts) == 0


def test_of_many_classes_the_roc_shows_those_of_smallest_area():
    generator = np.random.default_rng(0)
    names = tuple(f"class {index}" for index in range(30))
    labels = np.repeat(np.arange(30), 4)
    probabilities = generator.dirichlet(np.ones(30), size=120)
    metrics = metrics_of(probabilities, labels, names)
    found = texts(plots.draw_roc(probabilities, CLASSES.has(labels, 30), names, metrics))
    worst = min(names, key=lambda name: metrics["scores"][f"auc/{name}"]["value"])
    assert any(text.startswith(f"{worst}:") for text in found)
    assert sum(text.startswith("class ") for text in found) == 10
    assert any("the 10 smallest of 30" in text for text in found)


def test_a_name_that_looks_like_a_formula_or_has_letters_without_a_glyph_is_drawn(tmp_path, capsys):
    names = ("a$x^$b", "$\\frac{1}$", "\x1b[31mred", "黄斑", "long name " * 9)
    sizes = all_written(tmp_path, names, 40)
    assert set(sizes) == {"curves", "confusion", "roc", "reliability"}
    assert capsys.readouterr().err == ""


def test_one_class_has_its_pictures_too(tmp_path, capsys):
    assert set(all_written(tmp_path, ("only",), 5)) == {"curves", "confusion", "roc", "reliability"}
    assert capsys.readouterr().err == ""


def test_a_picture_that_cannot_be_written_costs_a_warning_and_no_other_picture(tmp_path, capsys):
    (tmp_path / "plots" / "roc.png").mkdir(parents=True)
    labels = np.array([0, 1, 2, 3])
    probabilities = np.eye(4) * 0.9 + 0.025
    write(tmp_path / "plots", [], probabilities, labels)
    assert (tmp_path / "plots" / "reliability.png").is_file()
    assert "roc.png was not written: IsADirectoryError" in capsys.readouterr().err

import numpy as np
from marked_images import OCT_NAMES
from PIL import Image

from train import metrics as measures
from train import plots


def metrics_of(probabilities, labels):
    metrics = measures.evaluate_predictions(
        probabilities, labels, OCT_NAMES, groups=None, num_samples=10, seed=0
    )
    return metrics | {"split": "test", "best_epoch": 2}


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
    figure = plots.draw_roc(probabilities, labels, OCT_NAMES, metrics)
    assert len(figure.axes[0].lines) == 4 + 1 + 1  # and the diagonal
    area = metrics["scores"]["auc/DME"]["value"]
    assert any(text.startswith(f"DME: {area:.3f} [") for text in texts(figure))


def test_a_class_without_examples_has_no_curve():
    labels = np.array([0, 1, 2, 0])
    probabilities = np.full((4, 4), 0.25)
    figure = plots.draw_roc(probabilities, labels, OCT_NAMES, metrics_of(probabilities, labels))
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
    plots.write_plots(
        tmp_path / "plots", history, metrics_of(probabilities, labels), probabilities, labels,
        OCT_NAMES,
    )  # fmt: skip
    for name in ("curves", "confusion", "roc", "reliability"):
        with Image.open(tmp_path / "plots" / f"{name}.png") as picture:
            assert min(picture.size) > 300

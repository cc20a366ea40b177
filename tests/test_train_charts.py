import numpy as np
import pytest

from train.results import charts


def test_the_curves_show_what_is_known_in_shares_of_the_axes():
    history = [
        {"epoch": 1, "loss": 2.0, "accuracy": 0.5, "val_loss": 1.0, "val_accuracy": 0.25},
        {"epoch": 2, "loss": 1.0, "accuracy": 0.75, "val_loss": None, "val_accuracy": None},
        {"epoch": 3, "loss": float("nan"), "accuracy": 1.0},
    ]
    loss, accuracy = charts.training_curves(history, best_epoch=2)
    assert [line.name for line in loss.series] == ["training", "validation"]
    assert [x for x, _ in loss.series[0].points] == [0, 0.5]
    assert loss.series[0].points[0][1] == pytest.approx(2 * loss.series[0].points[1][1])
    assert accuracy.series[0].points == ((0, 0.5), (0.5, 0.75), (1, 1))
    assert loss.mark == ("kept", 0.5)
    assert [tick.text for tick in loss.x_ticks] == ["1", "2", "3"]


@pytest.mark.parametrize("num_epochs", [0, 1, 2, 7, 100, 1000])
def test_any_number_of_epochs_has_curves_within_the_axes(num_epochs):
    history = [
        {"epoch": epoch + 1, "loss": 1 / (epoch + 1), "accuracy": 0.5}
        for epoch in range(num_epochs)
    ]
    found = charts.training_curves(history, best_epoch=num_epochs)
    assert len(found) == (2 if num_epochs else 0)
    for chart in found:
        assert len(chart.x_ticks) <= 7
        (line,) = chart.series
        assert len(line.points) == min(num_epochs, 200)
        assert all(0 <= x <= 1 and 0 <= y <= 1 for x, y in line.points)


def scores_of(areas):
    return {f"auc/{name}": {"value": area} for name, area in areas.items()}


def test_the_roc_passes_through_the_corners_and_the_points_between():
    probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8]])
    chart = charts.roc_curves(
        probabilities,
        np.eye(2, dtype=bool)[[0, 0, 1, 1]],
        ("a", "b"),
        scores_of({"a": 0.75, "b": 0.75}),
    )
    assert [line.name for line in chart.series] == ["a 0.750", "b 0.750"]
    assert chart.series[0].points == ((0, 0), (0, 0.5), (0.5, 0.5), (0.5, 1), (1, 1))


def test_of_many_classes_those_of_smallest_area_are_drawn():
    generator = np.random.default_rng(0)
    names = [f"class {index}" for index in range(30)]
    areas = {name: 0.5 + index / 100 for index, name in enumerate(names)}
    areas["class 0"] = None
    chart = charts.roc_curves(
        generator.dirichlet(np.ones(30), size=90),
        np.eye(30, dtype=bool)[np.arange(90) % 30],
        names,
        scores_of(areas),
    )
    assert [line.name for line in chart.series] == [
        f"class {index} {0.5 + index / 100:.3f}" for index in range(1, 9)
    ]
    assert "the 8 smallest of 29" in chart.title


def test_without_two_sides_there_is_no_roc():
    has = np.ones((3, 1), bool)
    assert charts.roc_curves(np.ones((3, 1)), has, ("a",), scores_of({"a": None})) is None


@pytest.mark.parametrize(
    ("num_examples", "num_points"), [(1, 1), (39, 1), (40, 2), (240, 12), (5000, 12)]
)
def test_a_point_of_the_reliability_stands_for_enough_answers(num_examples, num_points):
    generator = np.random.default_rng(0)
    probabilities = generator.dirichlet(np.ones(3), size=num_examples)
    labels = generator.integers(3, size=num_examples)
    chart = charts.reliability([("now", probabilities)], labels)
    assert len(chart.series[0].points) == num_points


def test_the_reliability_is_accuracy_by_confidence():
    # 20 sure answers, 15 of them right; 20 unsure ones, 10 right.
    probabilities = np.repeat([[0.9, 0.1], [0.6, 0.4]], 20, axis=0)
    labels = np.concatenate([np.arange(20) >= 15, np.arange(20) >= 10]).astype(int)
    chart = charts.reliability([("now", probabilities)], labels)
    np.testing.assert_allclose(chart.series[0].points, [(0.6, 0.5), (0.9, 0.75)])

"""Training on a grade or a number for each image."""

import dataclasses

import numpy as np
import pytest
from answers import certain, dataset_with, predictions_of, scores_of
from dataset_factory import bare_manifest, split_of
from hypothesis import given
from hypothesis import strategies as st
from marked_images import (
    KERAS_ARRAY_WARNING,
    evaluated,
    marked_data,
    metrics_of,
    rows_of,
    train,
    write_marked_dataset,
)
from sklearn import metrics as sk_metrics

from tfrecord_io.format import visible
from tfrecord_io.format.kinds import CLASSES, GRADES, NUMBER
from tfrecord_io.reading.mapped import MappedDataset
from tfrecord_io.terminal.errors import UserError
from train.data.dataset import open_dataset
from train.kinds import numbers
from train.kinds.classes import GRADES as GRADE_TASK
from train.kinds.classes import KAPPA
from train.results import charts, metrics, report
from train.results.examples import ShownAnswer
from train.results.options import MeasurePlan
from train.results.sections import Result

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAY_WARNING)

# ---- grades


def kappa_of(truths, answers):
    names = tuple(f"grade {place}" for place in range(4))
    return scores_of(certain(answers), truths, names, task=GRADE_TASK)[KAPPA]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=40))
def test_kappa_is_that_of_scikit_learn_and_undefined_if_there_is_only_one_grade(pairs):
    truths, answers = map(list, zip(*pairs, strict=True))
    found = kappa_of(truths, answers)
    if set(truths) == set(answers) and len(set(truths)) == 1:
        assert np.isnan(found)
    else:
        expected = sk_metrics.cohen_kappa_score(
            truths, answers, weights="quadratic", labels=range(4)
        )
        assert found == pytest.approx(expected)


@pytest.mark.slow
def test_grades_are_learned_as_classes_and_judged_by_kappa_too(tmp_path, capsys):
    names = ("none", "mild", "severe")
    num_examples = {"train": 60, "val": 15, "test": 24}
    for name, kind in (("data", GRADES), ("classes", CLASSES)):
        write_marked_dataset(tmp_path / name, num_examples, label_names=names, label_kind=kind)
    assert train(tmp_path / "data", tmp_path / "run", seed=0) == 0
    kappa = metrics_of(tmp_path / "run")["scores"][KAPPA]
    expected = kappa_of(
        *(
            [names.index(row[column]) for row in rows_of(tmp_path / "run")]
            for column in ("label", "predicted")
        )
    )
    assert kappa["value"] == pytest.approx(expected, abs=1e-6)
    assert kappa["low"] < kappa["value"] < kappa["high"]
    assert "Kappa: the agreement" in (tmp_path / "run" / "report.html").read_text()
    # Classes of the same names have no order, so the model's grades do not fit them.
    assert evaluated(tmp_path / "run", tmp_path / "classes") == 2
    assert "learned the kind grade" in capsys.readouterr().err


# ---- numbers


def number_scores(answers, truths, weights=None):
    answers = np.asarray(answers, np.float32)[:, None]
    return scores_of(answers, truths, ("ef",), weights, task=numbers.NUMBER)


def test_the_measures_of_numbers_are_those_of_scikit_learn_and_of_bland_and_altman():
    generator = np.random.default_rng(0)
    truths = generator.normal(55, 12, 50)
    answers = np.float32(truths + generator.normal(2, 5, 50))
    found, errors = number_scores(answers, truths), answers - truths
    assert found["mae"] == pytest.approx(sk_metrics.mean_absolute_error(truths, answers))
    assert found["rmse"] == pytest.approx(sk_metrics.root_mean_squared_error(truths, answers))
    assert found["r2"] == pytest.approx(sk_metrics.r2_score(truths, answers))
    assert found["bias"] == pytest.approx(errors.mean())
    reach = 1.96 * errors.std(ddof=1)
    assert found["limit_low"] == pytest.approx(errors.mean() - reach)
    assert found["limit_high"] == pytest.approx(errors.mean() + reach)
    found = number_scores([1.0, 2.0, 4.0], [0.1, 0.1, 0.1])  # equal numbers have no R²
    assert np.isnan(found["r2"])
    assert found["mae"] == pytest.approx(2.2333, abs=1e-3)
    found = number_scores([1.0], [0.0])  # and one has no limits
    assert np.isnan(found["limit_low"])
    assert found["bias"] == 1


@pytest.mark.parametrize(
    ("low", "high", "doubt"),
    [
        (-0.068, -0.006, "is worse than always giving the mean: the interval of the R² lies"),
        (-0.1, 0.2, "may be no better than always giving the mean: the interval of the R²"),
        (0.1, 0.2, None),
        (None, None, None),
    ],
)
def test_a_result_that_the_mean_may_reach_is_called_that(low, high, doubt):
    found = numbers.NUMBER.doubt({"scores": {"r2": {"value": 0.0, "low": low, "high": high}}})
    assert found is None if doubt is None else doubt in found


def test_a_small_unit_keeps_its_digits_in_the_metrics_and_on_the_page():
    generator = np.random.default_rng(0)
    truths = np.float32(generator.normal(7e-10, 1e-10, 40))
    answers = np.float32(truths + generator.normal(0, 3e-11, 40))
    predictions = predictions_of(answers[:, None], truths, ("adc",), numbers.NUMBER)
    measured = metrics.measure(predictions, MeasurePlan(20), seed=0)
    mae = measured["scores"]["mae"]
    assert mae["value"] == pytest.approx(np.abs(answers - truths).mean(), rel=1e-6)
    assert 0 < mae["low"] < mae["value"] < mae["high"]
    halves = [(fold, 0, number_scores(answers[fold::2], truths[fold::2])) for fold in range(2)]
    spread = metrics.describe_folds(halves, numbers.NUMBER.digits)
    assert spread["spread"]["mae"]["mean"] == pytest.approx(mae["value"])
    manifest = bare_manifest(
        image_shape=(2, 2, 1), label_names=("adc",), splits={"train": split_of([40])},
        label_kind=NUMBER,
    )  # fmt: skip
    found = measured | spread | {"split": "2 folds of train", "best_epoch": None}
    (worst, *_), sees = numbers.NUMBER.examples(predictions, 2)["wrong"], "what the network sees"
    shown = ShownAnswer(worst, {sees: visible.picture(np.zeros((2, 2, 1), np.uint8))}, "a.png")
    page = report.render(
        Result(
            dataset=dataset_with(manifest), config={}, metrics=found, examples={"wrong": [shown]}
        )
    )
    assert "Mistakes</a>, the largest first" in page
    for run_of_fold in spread["folds"]:
        assert f'<td class="count">{run_of_fold["scores"]["mae"]:.3g}</td>' in page
    assert f'<td class="count">{spread["spread"]["mae"]["std_over_folds"]:.3g}</td>' in page


def test_a_network_learns_standardised_numbers_and_answers_in_their_unit():
    task = numbers.Number(mean=50.0, std=10.0)
    labels, logits = np.array([[50.0], [30.0]], np.float32), np.array([[0.0], [1.0]], np.float32)
    learnt, squares, errors = map(np.asarray, task.losses(labels, logits, (), 0.1))
    answers = np.asarray(task.activation()(logits))
    assert answers.tolist() == [[50.0], [60.0]]
    np.testing.assert_allclose(task.logits_of(answers), logits)
    assert learnt.tolist() == [0.0, 9.0]
    assert squares.tolist() == [0.0, 900.0]
    assert errors.tolist() == [0.0, 30.0]
    truths = task.truths(labels)
    assert task.mean_loss(answers, truths) == squares.mean()
    assert task.progress(answers, truths) == errors.mean()


def test_the_largest_errors_are_the_mistakes_that_are_shown():
    answers, truths = np.array([[1.0], [9.0], [-3.0]]), np.array([1.5, 2.0, 0.0])
    found = numbers.NUMBER.examples(predictions_of(answers, truths, ("ef",)), 2)["wrong"]
    assert [(one.place, one.true, one.predicted) for one in found] == [
        (1, "2", "9"),
        (2, "0", "-3"),
    ]


def test_the_agreement_shows_each_answer_and_the_limits_of_their_difference():
    generator = np.random.default_rng(0)
    truths = generator.normal(-5, 2, 3000)
    answers = truths + generator.normal(0, 1, 3000)
    measured = {name: {"value": v} for name, v in number_scores(answers, truths).items()}
    predictions = predictions_of(answers[:, None], truths, ("ef",), numbers.NUMBER)
    metrics = {"scores": measured, "split": "test", "num_examples": 3000}
    direct, difference = charts.agreement(predictions, metrics)
    cloud, *lines = difference.series
    # Not more than 2,000 dots are drawn.
    assert cloud.name == "an image of each 2"
    np.testing.assert_allclose([y for _, y in cloud.points], (answers - truths)[::2])
    for line, name in zip(lines, ("bias", "limit_low", "limit_high"), strict=True):
        assert {y for _, y in line.points} == {measured[name]["value"]}
    assert direct.x.low < truths.min() < truths.max() < direct.x.top


data = marked_data({"train": 96, "val": 16}, label_names=("ef",), label_kind=NUMBER)


def part_of(data, num_examples):
    """Returns the first training images of a dataset."""
    rows = np.arange(num_examples)
    return dataclasses.replace(open_dataset(str(data)).part("train"), rows=rows)


def test_what_is_learnt_first_is_the_mean_of_the_training_images(data):
    values = MappedDataset(data, "train").labels(range(4))[:, 0].astype(np.float64)
    task = numbers.NUMBER.fitted(open_dataset(str(data)), part_of(data, 4))
    assert (task.mean, task.std) == pytest.approx((values.mean(), values.std()))


def test_what_cannot_be_learned_from_numbers_is_refused_before_a_folder_is_made(
    data, tmp_path, capsys
):
    with pytest.raises(UserError, match="a network can learn those that differ"):
        numbers.NUMBER.fitted(open_dataset(str(data)), part_of(data, 1))
    assert train(data, tmp_path / "run", best_by="val_accuracy") == 2
    assert "--best_by val_accuracy needs classes or labels" in capsys.readouterr().err
    infinite = tmp_path / "infinite"
    write_marked_dataset(infinite, {"train": 8}, label_names=("ef",), label_kind=NUMBER, unit=1e20)
    assert train(infinite, tmp_path / "run") == 2
    assert "by less than 1e19" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()

"""Training on a grade or a number for each image."""

import json

import numpy as np
import pytest
from answers import NO_FACTS, certain, predictions_of, scores_of
from dataset_factory import bare_manifest, split_of
from hypothesis import given
from hypothesis import strategies as st
from marked_images import (
    KERAS_ARRAY_WARNING,
    evaluated,
    history_of,
    marked_data,
    metrics_of,
    picture_files,
    predicted,
    rows_of,
    train,
    train_on_jax,
    trained_run,
    write_marked_dataset,
)
from pages import Page
from sklearn import metrics as sk_metrics

from tfrecord_io.format.kinds import CLASSES, GRADES, NUMBER
from tfrecord_io.reading.mapped import MappedDataset
from train import predict
from train.data.dataset import Part, open_dataset
from train.kinds import numbers
from train.kinds.classes import GRADES as GRADE_TASK
from train.kinds.classes import KAPPA
from train.machine.errors import ConfigError
from train.results import charts, metrics, report
from train.results.options import MeasureOptions

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
    for name, kind in (("data", GRADES), ("classes", CLASSES)):
        num_examples = {"train": 60, "val": 15, "test": 24}
        write_marked_dataset(tmp_path / name, num_examples, label_names=names, label_kind=kind)
    assert train(tmp_path / "data", tmp_path / "run", seed=0) == 0
    metrics = metrics_of(tmp_path / "run")
    assert metrics["label_kind"] == "grade"
    kappa = metrics["scores"]["quadratic_kappa"]
    rows = rows_of(tmp_path / "run")
    expected = sk_metrics.cohen_kappa_score(
        *([names.index(row[column]) for row in rows] for column in ("label", "predicted")),
        weights="quadratic",
    )
    assert kappa["value"] == pytest.approx(expected, abs=1e-6)
    assert kappa["low"] < kappa["value"] < kappa["high"]
    assert list(metrics["label_counts"]) == list(names)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "quadratic weighted kappa" in page
    assert "Kappa: the agreement" in page
    exported = json.loads((tmp_path / "run" / "export" / "preprocessing.json").read_text())
    assert exported["label_kind"] == "grade"
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


def test_equal_numbers_have_no_r2_and_a_single_one_no_limits():
    found = number_scores([1.0, 2.0, 4.0], [0.1, 0.1, 0.1])
    assert np.isnan(found["r2"])
    assert found["mae"] == pytest.approx(2.2333, abs=1e-3)
    found = number_scores([1.0], [0.0])
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
    measured = metrics.measure(predictions, MeasureOptions(bootstrap_samples=20), seed=0)
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
    page = report.render(title="run", manifest=manifest, config={}, metrics=found, **NO_FACTS)
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


def test_what_is_learnt_first_is_the_mean_of_the_training_images(data):
    values = MappedDataset(data, "train").labels(range(4))[:, 0].astype(np.float64)
    part = Part(
        name="train", splits=("train",), examples=np.arange(4), rows=np.arange(4),
        label_counts=(4,),
    )  # fmt: skip
    task = numbers.NUMBER.fitted(open_dataset(str(data)), part)
    assert (task.mean, task.std) == pytest.approx((values.mean(), values.std()))


def test_the_largest_errors_are_the_mistakes_that_are_shown():
    answers, truths = np.array([[1.0], [9.0], [-3.0]]), np.array([1.5, 2.0, 0.0])
    found = numbers.NUMBER.mistakes(predictions_of(answers, truths, ("ef",)), most=2)
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


data = marked_data({"train": 96, "val": 16, "test": 32}, label_names=("ef",), label_kind=NUMBER)


finished = trained_run(epochs=10, seed=0, mixup=0.2, test_time_flip=True, best_by="val_loss")


def test_a_network_learns_numbers_and_is_measured_in_their_unit(finished):
    metrics = metrics_of(finished)
    assert metrics["label_kind"] == "number"
    assert set(metrics["scores"]) == set(numbers.NUMBER.label_measures)
    assert metrics["bootstrap_by"] == "patient"
    r2 = metrics["scores"]["r2"]
    assert 0.5 < r2["low"] < r2["value"] < r2["high"] <= 1
    assert "calibration" not in metrics
    assert "thresholds" not in metrics
    history = history_of(finished)
    assert history[-1]["val_mae"] < 0.7 * history[0]["val_mae"]
    assert "accuracy" not in history[0]
    truths, answers = (
        np.array([float(row[column]) for row in rows_of(finished)])
        for column in ("label", "predicted")
    )
    assert truths.min() < 0
    assert metrics["scores"]["mae"]["value"] == pytest.approx(np.abs(answers - truths).mean())
    assert metrics["loss"] == pytest.approx(np.square(answers - truths).mean())


def test_the_page_and_the_plots_show_the_agreement(finished):
    text = (finished / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert "was off by" in text
    assert "with the number ef" in text
    assert any(svg["aria-label"].startswith("Answer minus truth") for svg in page.all("svg"))
    assert "answers that are furthest off" in text
    assert " sure<" not in text
    assert {path.name for path in (finished / "plots").iterdir()} == {"agreement.svg", "curves.svg"}


def test_predict_writes_the_number_that_was_reported(finished, data, tmp_path, capsys):
    files = picture_files(data, tmp_path)
    rows, outputs = predicted(capsys, finished, *files), {}
    for form in ("json", "table"):
        assert predict.main([f"--model={finished}", f"--format={form}", "--input", *files]) == 0
        outputs[form] = capsys.readouterr().out
    assert list(rows[0]) == ["path", "predicted", "reject"]
    reported = [float(row["predicted"]) for row in rows_of(finished)[:6]]
    assert [float(row["predicted"]) for row in rows] == pytest.approx(reported, rel=1e-5)
    numbers = [row["predicted"] for row in json.loads(outputs["json"])]
    assert numbers == pytest.approx(reported, rel=1e-5)
    assert rows[0]["predicted"] in outputs["table"]


def test_a_model_of_numbers_is_measured_on_another_dataset_of_the_same_name(
    finished, tmp_path, capsys
):
    for name in ("ef", "age"):
        folder = tmp_path / name
        write_marked_dataset(folder, {"test": 20}, label_names=(name,), label_kind=NUMBER)
    assert evaluated(finished, tmp_path / "ef", f"--output={tmp_path / 'out'}") == 0
    here = metrics_of(tmp_path / "out")
    assert here["num_examples"] == 20
    lines = capsys.readouterr().out.splitlines()
    (told,) = (line for line in lines if line.startswith("  mean error "))
    assert f" {here['scores']['mae']['value']:.3g} (" in told
    assert "%" not in told
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    section = page.partition('id="comparison"')[2].partition("</section>")[0]
    assert "mean error" in section
    assert " %" not in section
    assert evaluated(finished, tmp_path / "age") == 2
    assert "--target of these names" in capsys.readouterr().err


@pytest.mark.slow
def test_a_cross_validation_pools_the_errors_of_all_folds(data, tmp_path):
    workdir = tmp_path / "folds"
    assert train(data, workdir, epochs=2, folds=2, seed=0) == 0
    metrics = metrics_of(workdir)
    assert metrics["num_examples"] == 112
    assert metrics["spread"]["mae"]["mean"] > 0
    assert "calibration" not in metrics
    truths, answers = (
        np.array([float(row[column]) for row in rows_of(workdir)]) for column in ("label", "ef")
    )
    assert metrics["scores"]["mae"]["value"] == pytest.approx(np.abs(answers - truths).mean())
    assert "Each run" in (workdir / "report.html").read_text(encoding="utf-8")


def test_what_cannot_be_learned_from_numbers_is_refused_before_a_folder_is_made(
    data, tmp_path, capsys
):
    assert train(data, tmp_path / "run", best_by="val_accuracy") == 2
    assert "--best_by val_accuracy needs classes or labels" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    part = Part(
        name="train", splits=("train",), examples=np.zeros(1, int), rows=np.zeros(1, int),
        label_counts=(1,),
    )  # fmt: skip
    with pytest.raises(ConfigError, match="a network can learn those that differ"):
        numbers.NUMBER.fitted(open_dataset(str(data)), part)


def test_numbers_whose_squares_are_infinite_are_refused_before_a_folder_is_made(tmp_path, capsys):
    write_marked_dataset(
        tmp_path, num_examples={"train": 8}, label_names=("ef",), label_kind=NUMBER, unit=1e20
    )
    assert train(tmp_path, tmp_path / "run") == 2
    assert "by less than 1e19" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_jax_learns_numbers(data, tmp_path):
    metrics = train_on_jax(data, tmp_path / "run", epochs=10, seed=0)
    assert metrics["scores"]["r2"]["value"] > 0.5

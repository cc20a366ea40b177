"""Training on several labels an image: the losses, and each command on a dataset that has them."""

import csv

import keras
import numpy as np
import pytest
from answers import dataset_of, predictions_of, scores_of
from marked_images import (
    evaluated,
    history_of,
    metrics_of,
    picture_files,
    predicted,
    rows_of,
    train,
    write_marked_dataset,
)
from pages import Page

from tfrecord_io.format.kinds import MULTI_LABEL as SEVERAL_LABELS
from tfrecord_io.reading.mapped import MappedDataset
from train.extras.occlusion import explain
from train.kinds import task_of
from train.kinds.classes import CLASSES
from train.kinds.multi_label import MULTI_LABEL
from train.kinds.task import OneAnswer
from train.results.bootstrap import examples_behind
from train.results.predictions import read_predictions, write_predictions

NAMES = ("fluid", "mass", "scar")


def some_predictions(num_examples=60, seed=0):
    generator = np.random.default_rng(seed)
    truths = generator.random((num_examples, 3)) < (0.5, 0.3, 0.1)
    logits = 2.0 * truths - 1 + generator.normal(size=truths.shape)
    return (1 / (1 + np.exp(-logits))).astype(np.float32), truths


# ---- the task


@pytest.mark.parametrize("task", [CLASSES, MULTI_LABEL])
def test_a_task_is_that_of_its_kind_and_its_activation_undoes_the_logits_of_probabilities(task):
    assert task_of(task.kind) is task
    logits = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    activation = keras.activations.get(task.activation)
    probabilities = activation(keras.ops.convert_to_tensor(logits))
    again = activation(task.logits_of(probabilities))
    np.testing.assert_allclose(np.asarray(again), np.asarray(probabilities), atol=1e-6)
    cooled = activation(task.logits_of(probabilities) / 1.7)
    expected = task.cool(np.asarray(probabilities), 1.7)
    np.testing.assert_allclose(np.asarray(cooled), expected, atol=1e-6)


def test_the_loss_of_several_labels_is_the_mean_binary_cross_entropy():
    _, truths = some_predictions()
    labels = truths.astype(np.float32)
    logits = np.random.default_rng(1).normal(size=labels.shape).astype(np.float32) * 3
    weights = ((1.0, 1.0),) * 3
    learnt, reported, right = map(np.asarray, MULTI_LABEL.losses(labels, logits, weights, 0.2))

    def expected(labels):
        entropies = keras.ops.binary_crossentropy(labels, logits, from_logits=True)
        return np.asarray(entropies).mean(-1)

    np.testing.assert_allclose(reported, expected(labels), rtol=1e-4)
    np.testing.assert_allclose(learnt, expected(labels * 0.8 + 0.1), rtol=1e-4)
    np.testing.assert_allclose(right, ((logits >= 0) == truths).mean(-1))
    # A sure answer has a finite loss, and positives and negatives have their weights.
    labels, logits = np.array([[1, 0, 0]], np.float32), np.array([[-200, 200, 0]], np.float32)
    learnt, reported, _ = MULTI_LABEL.losses(labels, logits, ((1, 5), (3, 1), (2, 1)), 0.0)
    assert float(reported[0]) == pytest.approx((200 + 200 + np.log(2)) / 3)
    assert float(learnt[0]) == pytest.approx((5 * 200 + 3 * 200 + 2 * np.log(2)) / 3)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_the_weights_of_classes_and_of_both_sides_of_a_label_are_powers_with_mean_1(power):
    counts = np.array([90, 9, 1])
    weights = np.array(CLASSES.class_weights(counts.tolist(), 100, power))
    assert weights @ counts / 100 == pytest.approx(1)
    np.testing.assert_allclose(weights[0] / weights, (counts / 90) ** power)
    sides = [CLASSES.class_weights((100 - count, count), 100, power) for count in (50, 10, 0)]
    assert MULTI_LABEL.class_weights((50, 10, 0), 100, power) == tuple(sides)
    assert sides[2] == (1, 0)


def test_the_temperature_of_several_labels_is_that_of_their_logits():
    generator = np.random.default_rng(0)
    logits = np.clip(generator.normal(size=(3000, 2)) * 2, -6, 6)
    truths = generator.random(logits.shape) < 1 / (1 + np.exp(-logits))
    too_sure = 1 / (1 + np.exp(-2.5 * logits))
    assert MULTI_LABEL.fit_temperature(too_sure, truths) == pytest.approx(2.5, rel=0.1)
    np.testing.assert_allclose(MULTI_LABEL.cool(too_sure, 2.5), 1 / (1 + np.exp(-logits)))
    # A probability that is rounded to one is cooled as the export does it.
    probabilities = np.array([[1.0, 1e-30, 0.5]], np.float32)
    exported = keras.activations.sigmoid(MULTI_LABEL.logits_of(probabilities) / 4.0)
    np.testing.assert_allclose(MULTI_LABEL.cool(probabilities, 4.0), exported, atol=1e-5)
    # A sure answer that is wrong weighs as one with the least probability, not more.
    truths = np.arange(400)[:, None] % 20 > 0
    sure = np.full((400, 1), 0.95, np.float32)
    sure[0], nearly = 1.0, sure.copy()
    nearly[0] = 1 - 1e-7
    fitted = [MULTI_LABEL.fit_temperature(rows, truths) for rows in (sure, nearly)]
    assert fitted[0] == pytest.approx(fitted[1], rel=0.01)


# ---- the measures


def test_predictions_are_written_a_row_an_example_without_formulas_and_read_in_full_precision(
    tmp_path,
):
    probabilities = np.array([[1e-9, 1 - 1e-7], [2 / 3, 1 / 3]], np.float32)
    dataset = dataset_of(2, ["p", None], path=["=x.png", "y.png"])
    write_predictions(tmp_path, predictions_of(probabilities, [1, 1], ("=A", "B"), dataset=dataset))
    assert (tmp_path / "predictions.csv").read_text().splitlines() == [
        "key,path,patient,label,predicted,'=A,B",
        "k0,'=x.png,p,B,B,0.000000,1.000000",
        "k1,y.png,,B,'=A,0.666667,0.333333",
    ]
    exact = {"keys": ["k0", "k1"], "probabilities": probabilities, "truths": [[0, 1], [0, 1]]}
    for name, expected in exact.items():
        np.testing.assert_array_equal(read_predictions(tmp_path)[name], expected)
    # Names that are joined are those of the header.
    probabilities, truths = some_predictions()
    names = ("mass", "+fluid", "=scar")
    write_predictions(tmp_path, predictions_of(probabilities, truths, names, MULTI_LABEL))
    with (tmp_path / "predictions.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    labels = SEVERAL_LABELS.vectors([row[3] for row in rows], header[-3:])
    np.testing.assert_array_equal(labels > 0, truths)


def test_a_label_that_no_image_has_is_left_out_of_the_means_and_rests_on_no_patient():
    probabilities, truths = some_predictions()
    truths[:, 2] = False
    found = scores_of(probabilities, truths, NAMES, task=MULTI_LABEL)
    assert np.isnan(found["auc/scar"])
    assert found["macro_auc"] == pytest.approx((found["auc/fluid"] + found["auc/mass"]) / 2)
    groups = np.arange(len(truths)) // 2
    behind = examples_behind(MULTI_LABEL.views(NAMES), truths, groups)
    assert not behind["sensitivity/scar"].any()
    assert not behind["auc/scar"].any()
    assert behind["specificity/scar"].tolist() == [2] * 30


def test_the_worst_mistakes_about_labels_come_first():
    probabilities = np.array([[0.9, 0.1], [0.4, 0.02], [0.2, 0.8]])
    truths = np.array([[False, False], [True, True], [False, True]])
    found = MULTI_LABEL.mistakes(predictions_of(probabilities, truths, ("mass", "scar")), 2)
    assert [(one.place, one.output, one.true, one.predicted) for one in found] == [
        (1, 1, "scar", "no scar"),
        (0, 0, "no mass", "mass"),
    ]
    assert [one.probability for one in found] == pytest.approx([0.98, 0.9])


def test_the_map_of_a_label_that_was_missed_shows_what_speaks_against_it():
    image = np.zeros((8, 8, 1), np.uint8)
    image[2, 3] = 255
    picture = explain(lambda images: images[:, 2, 3] / 255).picture
    for is_negative in (False, True):
        answer = OneAnswer(0, 0, "mass", "no mass", 0.9, is_negative)
        red, _, blue = picture(image, answer).getpixel((3, 2))
        assert (red > blue) != is_negative


# ---- the commands


def write(folder, num_examples, names=NAMES):
    write_marked_dataset(folder, num_examples, label_names=names, label_kind=SEVERAL_LABELS)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data"), {"train": 96, "val": 24, "test": 40})


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "run"
    assert train(data, workdir, epochs=8, replica_batch_size=8, mixup=0.1) == 0
    return workdir


def test_a_network_learns_several_labels_and_is_measured_on_each(finished):
    measured, history = metrics_of(finished), history_of(finished)
    assert measured["label_kind"] == "multi_label"
    assert measured["bootstrap_by"] == "patient"
    of_labels = {f"{of}/{name}" for name in NAMES for of in MULTI_LABEL.label_measures}
    assert set(measured["scores"]) == {*MULTI_LABEL.run_measures, "brier"} | of_labels
    assert 0.9 < measured["scores"]["macro_auc"]["value"] <= 1
    assert history[-1]["val_loss"] < 0.5 * history[0]["val_loss"]
    assert {"calibration", "thresholds", "confusion_matrices"} <= set(measured)
    text = (finished / "report.html").read_text()
    assert Page(text).open == []
    assert all(phrase in text for phrase in ("Answers for each label", "average precision"))
    plots = {path.stem for path in (finished / "plots").iterdir()}
    assert plots == {"reliability", "roc", "loss", "accuracy"}


def test_predict_says_what_was_reported_and_measured(finished, data, tmp_path, capsys):
    reported, measured = rows_of(finished), metrics_of(finished)
    assert list(reported[0]) == ["key", "path", "patient", "label", "predicted", *NAMES]
    stored = MappedDataset(data, "test").labels(range(40))
    assert [row["label"] for row in reported] == MULTI_LABEL.texts(stored, NAMES)
    assert [view["view"] for view in measured["thresholds"]] == list(NAMES)
    assert all(sum(map(sum, m)) == 40 for m in measured["confusion_matrices"].values())
    called = [[name for name in NAMES if float(row[name]) >= 0.5] for row in reported]
    assert [row["predicted"] for row in reported] == ["|".join(c) or "none" for c in called]
    rows = predicted(capsys, finished, *picture_files(data, tmp_path))
    assert list(rows[0]) == ["path", "predicted", *NAMES, "reject", "above_threshold"]
    for name in NAMES:
        ours, theirs = ([float(row[name]) for row in table[:6]] for table in (rows, reported))
        assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.slow
def test_another_dataset_may_have_some_of_the_labels_in_another_order(finished, tmp_path, capsys):
    names = ("scar", "fluid")
    other = write(tmp_path / "other", {"train": 4, "test": 30}, names)
    assert evaluated(finished, other, f"--output={tmp_path / 'out'}") == 0
    measured, rows = metrics_of(tmp_path / "out"), rows_of(tmp_path / "out")
    assert list(rows[0])[5:] == list(names)
    truths = [row["label"].split("|") for row in rows]
    counts = {name: sum(name in labels for labels in truths) for name in names}
    assert measured["label_counts"] == counts
    answers = predicted(capsys, finished, *picture_files(other, tmp_path))
    for name in names:
        ours, theirs = ([float(row[name]) for row in table] for table in (answers, rows[:6]))
        assert ours == pytest.approx(theirs, rel=1e-5)

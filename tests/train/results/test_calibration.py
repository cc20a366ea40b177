import dataclasses
import json

import numpy as np
import pytest
from answers import predictions_of, scores_of, truths_of
from hypothesis import given
from hypothesis import strategies as st
from marked_images import OCT_NAMES
from scipy.special import softmax

from tfrecord_io.terminal.errors import UserError
from train.kinds.classes import CLASSES
from train.kinds.measures import rates_of
from train.results import thresholds


def fit_temperature(logits, labels):
    probabilities = softmax(logits, -1)
    return CLASSES.fit_temperature(probabilities, truths_of(labels, probabilities.shape[1]))


def drawn_from(logits, seed):
    """Labels that follow the probabilities of logits, so that their temperature is 1."""
    generator = np.random.default_rng(seed)
    return np.array([generator.choice(len(row), p=row) for row in softmax(logits, -1)])


@pytest.mark.parametrize("num_examples", [3, 9000])  # and more than are in memory at once
def test_no_temperature_of_a_fine_grid_is_better(num_examples):
    logits = np.random.default_rng(2).normal(size=(num_examples, 3)) * 4
    labels = drawn_from(logits / 2, 3)
    found = fit_temperature(logits, labels)

    def loss(temperature):
        of_truth = softmax(logits / temperature, -1)[np.arange(num_examples), labels]
        return -np.log(of_truth).sum() + 2 * (1 / temperature - 1 + np.log(temperature))

    grid = np.geomspace(0.25, 4, 101)
    assert loss(found) <= min(map(loss, grid)) + 1e-9


def test_few_right_answers_are_no_proof_and_a_temperature_stays_in_range():
    logits, labels = np.eye(4) * 3, np.arange(4)
    assert 0.5 < fit_temperature(logits, labels) < 1
    assert 0.25 <= fit_temperature(np.tile(logits, (1000, 1)), np.tile(labels, 1000)) < 0.5
    # Always sure and wrong.
    found = fit_temperature(np.tile([[9.0, 0.0]], (500, 1)), np.ones(500, int))
    assert 4 * (1 - 1e-4) < found <= 4
    # Without anything to fit, the probabilities stay as they are.
    assert fit_temperature(np.zeros((0, 4)), np.zeros(0, int)) == pytest.approx(1)
    assert fit_temperature(np.zeros((9, 1)), np.zeros(9, int)) == pytest.approx(1)


def test_calibration_says_what_the_temperature_changed_on_the_evaluated_split():
    logits = np.random.default_rng(0).normal(size=(800, 4)) * 2
    labels, sure = drawn_from(logits, 1), softmax(logits * 3, -1)
    part = thresholds.describe_calibration(predictions_of(CLASSES.cool(sure, 3.0), labels), 3.0)
    before = scores_of(sure, labels)["ece"]
    assert part["temperature"] == 3.0
    assert part["ece_before"] == pytest.approx(before, abs=1e-6)
    assert part["ece_after"] < 0.05 < part["ece_before"]


@given(
    seed=st.integers(0, 999), wanted=st.sampled_from([0.05, 0.29, 0.8, 0.95, 1.0]),
    num_values=st.integers(1, 30),
)  # fmt: skip
def test_no_larger_threshold_would_do(seed, wanted, num_values):
    generator = np.random.default_rng(seed)
    ranking = generator.integers(1, num_values + 1, size=40) / num_values
    is_positive = generator.random(40) < 0.5
    is_positive[0] = True
    threshold = thresholds.threshold_for_sensitivity(ranking, is_positive, wanted)
    ones = np.ones(40)

    def sensitivity(at):
        return float(rates_of(ranking >= at, is_positive, ones)["sensitivity"])

    assert sensitivity(threshold) >= wanted - 1e-9
    # Halfway: rounding moves nobody across it.
    assert sensitivity(threshold + 0.01) == sensitivity(threshold - 0.01)
    above = np.unique(ranking[ranking > threshold])[1:]
    assert not len(above) or sensitivity(above.min()) < wanted
    assert thresholds.threshold_for_sensitivity(ranking, ~is_positive & is_positive, 0.9) is None


def test_rounding_does_not_cost_a_positive():
    ranking = np.arange(100) / 100
    # 0.29 * 100 is 28.999999999999996, and 0.07 * 100 is 7.000000000000001.
    for wanted, num_called in ((0.29, 29), (0.07, 7)):
        threshold = thresholds.threshold_for_sensitivity(ranking, ranking >= 0, wanted)
        assert (ranking >= threshold).sum() == num_called


def three_classes(num_examples, seed=0):
    """Answers that are mostly right, on images of which none is NORMAL."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(3, size=num_examples)
    logits = np.eye(4)[labels] * 2 + generator.normal(size=(num_examples, 4))
    return predictions_of(softmax(logits, -1).astype(np.float32), labels)


def test_thresholds_are_chosen_on_validation_and_measured_on_test():
    val, test = three_classes(80), three_classes(120, seed=1)
    found = thresholds.measure_thresholds(thresholds.choose_thresholds(val, 0.9), test, 50, 0)
    assert json.loads(json.dumps(found)) == found
    assert [entry["view"] for entry in found] == ["urgent", "CNV", "DME", "DRUSEN"]
    for entry in found:
        assert entry["val"]["sensitivity"] >= 0.9
        reached = entry["test"]["sensitivity"]
        assert reached["low"] <= reached["value"] <= reached["high"]
    # A doctor who applies the written threshold to the written probabilities gets these figures.
    urgent, is_urgent = found[0], test.truths[:, :2].any(-1)
    called = test.probabilities[:, :2].astype(np.float64).sum(-1) >= urgent["threshold"]
    assert urgent["test"]["sensitivity"]["value"] == pytest.approx(
        (called & is_urgent).sum() / is_urgent.sum(), abs=1e-6
    )
    assert urgent["test"]["num_positives"] == is_urgent.sum()
    assert urgent["test"]["num_negatives"] == (~is_urgent).sum()


def test_exported_thresholds_are_read_as_they_were_chosen(tmp_path):
    val = three_classes(80)
    chosen = thresholds.choose_thresholds(val, 0.9)
    (tmp_path / thresholds.FILE_NAME).write_text(json.dumps(chosen))
    assert thresholds.read_thresholds(tmp_path, OCT_NAMES) == chosen
    assert thresholds.read_thresholds(tmp_path / "none", OCT_NAMES) == []
    # One that every image reaches is not chosen.
    flat = dataclasses.replace(val, probabilities=np.full_like(val.probabilities, 0.25))
    assert thresholds.choose_thresholds(flat, 0.9) == []


@pytest.mark.parametrize("content", [
    "{", "[1]", "[{}]", '{"a": 1}', '[{"view": "CNV", "labels": ["X"], "threshold": 0.5}]',
    '[{"view": "CNV", "labels": ["CNV"], "threshold": NaN}]',
])  # fmt: skip
def test_a_damaged_file_of_thresholds_is_refused_by_name(tmp_path, content):
    (tmp_path / "thresholds.json").write_text(content)
    with pytest.raises(UserError, match=r"thresholds\.json"):
        thresholds.read_thresholds(tmp_path, OCT_NAMES)

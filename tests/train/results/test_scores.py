import numpy as np
import pytest
from answers import certain, predictions_of, scores_of, truths_of
from hypothesis import given, settings
from hypothesis import strategies as st
from marked_images import OCT_NAMES
from sklearn import metrics as sk_metrics

from train.kinds import TASKS, measures
from train.kinds.classes import CLASSES
from train.kinds.measures import predictive_values
from train.results.bootstrap import examples_behind, with_intervals


def random_answers(task, generator, num_examples, num_labels=3):
    """Returns (probabilities, truths)."""
    size = (num_examples, num_labels)
    if task.kind.one_hot:
        labels = generator.integers(num_labels, size=num_examples)
        return generator.dirichlet(np.ones(num_labels), num_examples), truths_of(labels, num_labels)
    return generator.random(size), generator.random(size) < 0.5


@pytest.mark.parametrize("num_labels", [2, 5])
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.kind.name)
def test_the_measures_are_those_of_scikit_learn(task, num_labels):
    generator, names = np.random.default_rng(0), "abcde"[:num_labels]
    probabilities, truths = random_answers(task, generator, 60, num_labels)
    weights = generator.integers(1, 4, size=60).astype(float)
    found = scores_of(probabilities, truths, names, weights, task)
    called = task.chosen(probabilities)
    for measure, expected, answers in (
        ("auc", sk_metrics.roc_auc_score, probabilities),
        ("average_precision", sk_metrics.average_precision_score, probabilities),
        ("sensitivity", sk_metrics.recall_score, called),
        ("precision", sk_metrics.precision_score, called),
        ("f1", sk_metrics.f1_score, called),
    ):
        values = expected(truths, answers, average=None, sample_weight=weights)
        assert [found[f"{measure}/{name}"] for name in names] == pytest.approx(values), measure
        assert found.get(f"macro_{measure}", values.mean()) == pytest.approx(values.mean())
    sure, is_right = np.maximum(probabilities, 1 - probabilities), called == truths
    brier = np.average(np.square(probabilities - truths).mean(-1), weights=weights)
    if task.kind.one_hot:
        labels, answers = truths.argmax(-1), probabilities.argmax(-1)
        sure, is_right = probabilities.max(-1, keepdims=True), (labels == answers)[:, None]
        likely = probabilities if num_labels > 2 else probabilities[:, 1]
        brier = sk_metrics.brier_score_loss(labels, likely, sample_weight=weights)
        balanced = sk_metrics.balanced_accuracy_score(labels, answers, sample_weight=weights)
        assert found["balanced_accuracy"] == pytest.approx(balanced)
        how = {"weights": "quadratic", "sample_weight": weights}
        kappa = sk_metrics.cohen_kappa_score(labels, answers, **how)
        assert found.get("quadratic_kappa", kappa) == pytest.approx(kappa)
    assert found["accuracy"] == pytest.approx(np.average(is_right.mean(-1), weights=weights))
    assert found["ece"] == measures.expected_calibration_error(sure, is_right, weights)
    assert found["brier"] == pytest.approx(brier)


def test_urgent_classes_are_measured_as_one_and_a_class_without_images_is_left_out():
    # Truth: CNV CNV DME NORMAL NORMAL DRUSEN; one CNV is called NORMAL, one NORMAL DRUSEN.
    scores = scores_of(certain([0, 3, 1, 3, 2, 2]), [0, 0, 1, 3, 3, 2])
    assert (scores["specificity/CNV"], scores["specificity/NORMAL"]) == (1, pytest.approx(3 / 4))
    # Two of three urgent ones are called so, and no other.
    urgent = {"sensitivity": 2 / 3, "specificity": 1, "precision": 1, "f1": 2 / 2.5}
    assert {name: scores[f"urgent/{name}"] for name in urgent} == pytest.approx(urgent)
    without_normal = scores_of(certain([0, 0, 1, 0]), [0, 0, 1, 1])
    assert without_normal["balanced_accuracy"] == pytest.approx((1 + 0.5) / 2)
    # The urgent view is for OCT classes alone.
    scores = scores_of(certain([0, 1], 2), [0, 1], ("cat", "urgent"))
    assert not any(name.startswith("urgent/") for name in scores)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.kind.name)
@settings(max_examples=8)
@given(num_examples=st.integers(4, 40), seed=st.integers(0, 99))
def test_weights_count_an_example_as_often_as_copies_of_it_would(task, num_examples, seed):
    generator = np.random.default_rng(seed)
    probabilities, truths = random_answers(task, generator, num_examples)
    counts = generator.integers(0, 4, size=num_examples)
    counts[:3] += 1
    # Of several weightings at once, each is measured as alone.
    answers, both = (
        predictions_of(probabilities, truths, "abc", task),
        np.stack([counts, counts + 1]),
    )
    measured = task.score(answers, both * 1.0) | task.areas(answers, both * 1.0)
    weighted = {name: values[0] for name, values in measured.items()}
    copies = (np.repeat(values, counts, axis=0) for values in (probabilities, truths))
    assert weighted == pytest.approx(scores_of(*copies, "abc", task=task), rel=1e-6, nan_ok=True)
    # Every measure has a title.
    assert {measures.parts_of(name)[0] for name in weighted} <= measures.MEASURES.keys()


@given(seed=st.integers(0, 999), num_values=st.integers(2, 50))
def test_areas_agree_with_scikit_learn_with_ties_and_weights(seed, num_values):
    generator = np.random.default_rng(seed)
    is_positive = np.concatenate([[True, False], generator.random(30) < 0.4])
    ranking = generator.integers(num_values, size=32) / num_values
    weights = np.concatenate([[1.0, 2.0], generator.integers(0, 4, size=30)])
    expected = [
        measure(is_positive, ranking, sample_weight=weights)
        for measure in (sk_metrics.roc_auc_score, sk_metrics.average_precision_score)
    ]
    assert measures.areas_under_curves(is_positive, ranking, weights) == pytest.approx(expected)


def test_the_calibration_error_is_the_mean_gap_by_bin():
    def error(sure, is_right):
        ones = np.ones(len(sure))
        return measures.expected_calibration_error(sure[:, None], is_right[:, None], ones)

    places = np.arange(10)
    assert error(np.repeat([0.6, 0.9], 10), np.r_[places < 6, places < 9]) == pytest.approx(0)
    # Half of the images are sure and wrong (gap 1), half 0.5 and right half the time (gap 0).
    assert error(np.array([1.0, 1, 0.5, 0.5]), np.array([0, 0, 1, 0])) == pytest.approx(0.5)


def test_as_many_groups_are_drawn_as_there_are_and_fewer_draws_are_the_first_of_more():
    def drawn(num_samples):
        weightings = []

        def measure(weights):
            weightings.append(weights)
            return {"accuracy": weights[:, 0]}

        with_intervals(measure, np.arange(9), {}, num_samples=num_samples, seed=4)
        return weightings[0]

    few, many = drawn(3), drawn(50)
    assert (many.sum(1) == 9).all()
    assert len(np.unique(many, axis=0)) > 40
    np.testing.assert_array_equal(few, many[:3])


@pytest.mark.parametrize("name", ["accuracy", "auc/CNV"])
def test_intervals_hold_the_truth_where_a_few_uneven_groups_make_all_mistakes(name):
    generator, held = np.random.default_rng(0), []
    for _ in range(100):
        # 95 % of the images are right, and those of a few groups are not.
        sizes = np.clip(np.exp(generator.normal(np.log(4), 1.5, 40)).astype(int), 1, 60)
        groups = np.repeat(np.arange(40), sizes)
        is_right = generator.random(len(groups)) < generator.beta(0.95, 0.05, 40)[groups]

        def measure(weights, values=is_right):
            return {name: weights @ values / weights.sum(-1)}

        entry = with_intervals(measure, groups, {}, num_samples=200, seed=0)[name]
        held.append(entry["low"] is None or entry["low"] <= 0.95 <= entry["high"])
    assert np.mean(held) > 0.92


@pytest.mark.parametrize(
    ("names", "labels", "groups", "expected"),
    [
        # Groups 0 and 1 have CNV alone, 2 has CNV and NORMAL: the smaller side counts.
        (("CNV", "NORMAL"), [0, 0, 1, 0], [0, 1, 2, 2],
         {"sensitivity/CNV": 3, "specificity/CNV": 1, "auc/CNV": 1, "sensitivity/NORMAL": 1,
          "specificity/NORMAL": 3, "ppv/NORMAL": 1}),
        (OCT_NAMES, [0, 1, 3, 3], [0, 1, 2, 3],
         {"sensitivity/CNV": 1, "urgent/sensitivity": 2, "urgent/auc": 2}),
    ],
)  # fmt: skip
def test_a_measure_rests_on_the_groups_of_its_smaller_side(names, labels, groups, expected):
    truths = truths_of(labels, len(names))
    found = examples_behind(CLASSES.views(names), truths, np.array(groups))
    assert {name: np.count_nonzero(found[name]) for name in expected} == expected


def test_predictive_values_are_those_of_a_population_with_that_share_of_positives():
    # Of 1,000 people 100 have it: 80 are found, 20 missed, 90 alarms, 810 left alone.
    found = predictive_values(np.array([0.8, 0.0, np.nan]), np.array([0.9, 1.0, 0.5]), 0.1)
    np.testing.assert_allclose(found["ppv"], [80 / 170, np.nan, np.nan])
    np.testing.assert_allclose(found["npv"], [810 / 830, 0.9, np.nan])

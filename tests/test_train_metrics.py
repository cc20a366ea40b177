import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from marked_images import OCT_NAMES, write_marked_dataset
from sklearn import metrics as sk_metrics

from train import metrics as measures


def certain(predicted, num_classes=4):
    return np.eye(num_classes)[predicted] * 0.97 + 0.01


def test_the_measures_of_a_small_case_are_those_worked_out_by_hand():
    # Truth: CNV CNV DME NORMAL NORMAL DRUSEN; one CNV is called NORMAL, one NORMAL DRUSEN.
    labels = np.array([0, 0, 1, 3, 3, 2])
    predicted = np.array([0, 3, 1, 3, 2, 2])
    scores = measures.scores(certain(predicted), labels, OCT_NAMES)
    assert scores["accuracy"] == pytest.approx(4 / 6)
    assert scores["sensitivity/CNV"] == pytest.approx(1 / 2)
    assert scores["specificity/CNV"] == 1.0
    assert scores["specificity/NORMAL"] == pytest.approx(3 / 4)
    assert scores["urgent/sensitivity"] == pytest.approx(2 / 3)
    assert scores["urgent/specificity"] == 1.0
    # CNV called NORMAL costs 4, NORMAL called DRUSEN 1.
    assert scores["weighted_error"] == pytest.approx(5 / 6)
    assert scores["balanced_accuracy"] == pytest.approx((0.5 + 1 + 1 + 0.5) / 4)


def test_the_penalties_are_the_papers():
    # Rows are the truth, columns the answer: CNV, DME, DRUSEN, NORMAL.
    assert measures.penalty_matrix(OCT_NAMES).tolist() == [
        [0, 1, 2, 4],
        [1, 0, 2, 4],
        [1, 1, 0, 1],
        [1, 1, 1, 0],
    ]


@given(
    labels=st.lists(st.integers(0, 2), min_size=4, max_size=40),
    seed=st.integers(0, 99),
)
def test_weights_count_an_example_as_often_as_copies_of_it_would(labels, seed):
    generator = np.random.default_rng(seed)
    labels = np.array(labels)
    probabilities = generator.dirichlet(np.ones(3), size=len(labels))
    counts = generator.integers(0, 4, size=len(labels))
    if not counts.sum():
        counts[0] = 1
    names = ("a", "b", "c")
    weighted = measures.scores(probabilities, labels, names, counts.astype(float))
    repeated = measures.scores(
        np.repeat(probabilities, counts, axis=0), np.repeat(labels, counts), names
    )
    assert weighted == pytest.approx(repeated, nan_ok=True)


def test_sensitivity_agrees_with_scikit_learn():
    generator = np.random.default_rng(0)
    labels = generator.integers(4, size=300)
    probabilities = generator.dirichlet(np.ones(4), size=300)
    recalls = sk_metrics.recall_score(labels, probabilities.argmax(-1), average=None)
    scores = measures.scores(probabilities, labels, OCT_NAMES)
    assert [scores[f"sensitivity/{name}"] for name in OCT_NAMES] == pytest.approx(recalls)
    assert scores["balanced_accuracy"] == pytest.approx(recalls.mean())


@given(seed=st.integers(0, 999), num_values=st.integers(2, 50))
def test_the_area_under_the_curve_agrees_with_scikit_learn_with_ties_and_weights(seed, num_values):
    generator = np.random.default_rng(seed)
    is_positive = np.concatenate([[True, False], generator.random(30) < 0.4])
    ranking = generator.integers(num_values, size=32) / num_values
    weights = np.concatenate([[1.0, 2.0], generator.integers(0, 4, size=30)])
    assert measures.area_under_curve(is_positive, ranking, weights) == pytest.approx(
        sk_metrics.roc_auc_score(is_positive, ranking, sample_weight=weights)
    )


def test_the_urgent_view_is_for_oct_classes_alone():
    scores = measures.scores(certain([0, 1], 2), np.array([0, 1]), ("cat", "dog"))
    assert not any(name.startswith("urgent") for name in scores)
    assert "weighted_error" not in scores


def test_a_calibrated_classifier_has_no_calibration_error():
    confidences = np.repeat([0.6, 0.9], [10, 10])
    is_correct = np.concatenate([np.arange(10) < 6, np.arange(10) < 9])
    error = measures.expected_calibration_error(confidences, is_correct, np.ones(20))
    assert error == pytest.approx(0)


def test_the_calibration_error_is_the_mean_gap_by_bin():
    # Half of the images are sure and wrong (gap 1), half 0.5 and right half the time (gap 0).
    confidences = np.array([1.0, 1.0, 0.5, 0.5])
    is_correct = np.array([False, False, True, False])
    error = measures.expected_calibration_error(confidences, is_correct, np.ones(4))
    assert error == pytest.approx(0.5)


def test_what_is_not_defined_is_none_not_a_number():
    labels = np.array([0, 0, 1, 1])
    result = measures.evaluate_predictions(
        certain(labels), labels, OCT_NAMES, groups=None, num_samples=20, seed=0
    )
    assert result["scores"]["sensitivity/DRUSEN"] == {"value": None, "low": None, "high": None}
    assert result["scores"]["auc/NORMAL"]["value"] is None
    assert result["bootstrap_by"] == "image"
    assert "undefined" in measures.describe(result | {"split": "test", "best_epoch": 1})


def test_intervals_by_patient_are_wider_when_images_of_a_patient_are_alike():
    generator = np.random.default_rng(0)
    of_patient = generator.random(40) < 0.7
    is_right = np.repeat(of_patient, 10)  # all ten images of a patient share their fate
    labels = generator.integers(4, size=400)
    predicted = np.where(is_right, labels, (labels + 1) % 4)
    patients = [str(patient) for patient in np.repeat(np.arange(40), 10)]
    widths = []
    for groups in (None, patients):
        result = measures.evaluate_predictions(
            certain(predicted), labels, OCT_NAMES, groups=groups, num_samples=200, seed=1
        )
        accuracy = result["scores"]["accuracy"]
        assert accuracy["low"] < accuracy["value"] < accuracy["high"]
        widths.append(accuracy["high"] - accuracy["low"])
    # Theory: sqrt(10) wider.
    assert 2 < widths[1] / widths[0] < 5


def test_the_bootstrap_draws_whole_groups():
    groups = np.array([0, 0, 0, 1, 2, 2])
    seen = []

    def measure(weights):
        seen.append(weights)
        return {"total": weights.sum()}

    measures.bootstrap(measure, groups, num_samples=50, seed=0)
    assert len(seen) == 50
    for weights in seen:
        assert weights[0] == weights[1] == weights[2]
        assert weights[4] == weights[5]
        assert weights[0] + weights[3] + weights[4] == 3
    assert len({tuple(weights) for weights in seen}) > 5


def test_the_same_seed_gives_the_same_intervals():
    labels = np.random.default_rng(0).integers(4, size=50)
    arguments = {"groups": None, "num_samples": 30, "seed": 5}
    probabilities = np.random.default_rng(1).dirichlet(np.ones(4), size=50)
    first = measures.evaluate_predictions(probabilities, labels, OCT_NAMES, **arguments)
    assert first == measures.evaluate_predictions(probabilities, labels, OCT_NAMES, **arguments)


def test_patients_and_paths_are_joined_by_key(tmp_path):
    write_marked_dataset(tmp_path, num_examples={"train": 4, "test": 5})
    examples = measures.read_examples(str(tmp_path), "test")
    assert examples.patients == ("test-0", "test-0", "test-1", "test-1", "test-2")
    assert [path.rpartition("/")[2] for path in examples.paths] == [f"{i}.jpeg" for i in range(5)]


def test_a_dataset_without_the_table_has_keys_alone(tmp_path):
    write_marked_dataset(tmp_path, num_examples={"test": 5}, with_patients=False)
    examples = measures.read_examples(str(tmp_path), "test")
    assert len(set(examples.keys)) == 5
    assert examples.patients is None


def test_predictions_are_written_a_row_an_example(tmp_path):
    examples = measures.Examples(keys=("k1", "k2"), patients=("p", "q"), paths=None)
    measures.write_predictions(
        tmp_path / "predictions.csv", certain([1, 0], 2), np.array([1, 1]), ("a", "b"), examples
    )
    assert (tmp_path / "predictions.csv").read_text().splitlines() == [
        "key,path,patient,label,predicted,a,b",
        "k1,,p,b,b,0.010000,0.980000",
        "k2,,q,b,a,0.980000,0.010000",
    ]

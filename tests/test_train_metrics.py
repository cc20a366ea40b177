import numpy as np
import pytest
import scipy.stats
from answers import certain, examples_of, measured, predictions_of
from hypothesis import given
from hypothesis import strategies as st
from marked_images import OCT_NAMES
from sklearn import metrics as sk_metrics

from train.kinds.measures import known
from train.kinds.words import describe
from train.results import metrics as measures


def measured_labels(labels, predicted=None, names=OCT_NAMES, **arguments):
    """Returns the measures of sure answers; without `predicted`, of right ones."""
    labels = np.asarray(labels)
    given = labels if predicted is None else predicted
    return measured(certain(given, len(names)), labels, names, **arguments)


def test_what_is_not_defined_is_none_not_a_number():
    result = measured_labels([0, 0, 1, 1])
    assert result["scores"]["sensitivity/DRUSEN"] == {"value": None, "low": None, "high": None}
    assert result["scores"]["auc/NORMAL"]["value"] is None
    assert result["bootstrap_by"] == "image"
    assert "undefined" in describe(result | {"split": "test", "best_epoch": 1})


def test_intervals_by_patient_are_wider_when_images_of_a_patient_are_alike():
    generator = np.random.default_rng(0)
    of_patient = generator.random(40) < 0.7
    is_right = np.repeat(of_patient, 10)  # all ten images of a patient share their fate
    labels = generator.integers(4, size=400)
    predicted = np.where(is_right, labels, (labels + 1) % 4)
    patients = [str(patient) for patient in np.repeat(np.arange(40), 10)]
    widths = []
    for groups in (None, patients):
        result = measured_labels(labels, predicted, patients=groups, num_samples=200, seed=1)
        accuracy = result["scores"]["accuracy"]
        assert accuracy["low"] < accuracy["value"] < accuracy["high"]
        widths.append(accuracy["high"] - accuracy["low"])
    # Theory: sqrt(10) wider.
    assert 2 < widths[1] / widths[0] < 5


def test_the_same_seed_gives_the_same_intervals():
    labels = np.random.default_rng(0).integers(4, size=50)
    probabilities = np.random.default_rng(1).dirichlet(np.ones(4), size=50)
    first, second = (measured(probabilities, labels, num_samples=30, seed=5) for _ in range(2))
    assert first == second


def test_one_patient_gives_values_without_intervals_and_says_so():
    result = measured_labels([0, 1, 2, 3], [0, 1, 2, 0], patients=["p"] * 4)
    assert result["scores"]["accuracy"] == {"value": 0.75, "low": None, "high": None}
    assert "all images are of one patient, so there are no intervals" in result["notes"]


def test_a_class_with_fewer_than_ten_patients_is_named_with_their_number():
    labels = np.repeat([0, 1, 2], [24, 4, 30])
    patients = [str(index // 2) for index in range(58)]
    result = measured_labels(labels, patients=patients)
    assert result["label_groups"] == {"CNV": 12, "DME": 2, "DRUSEN": 15, "NORMAL": 0}
    assert "fewer than 10 patients are behind the figures of DME (2)" in result["notes"]
    by_image = measured_labels(labels)
    assert "fewer than 10 images are behind the figures of DME (4)" in by_image["notes"]


def test_few_patients_give_intervals_with_a_note():
    labels = np.arange(80) % 4
    result = measured_labels(labels, patients=[str(index // 16) for index in range(80)])
    assert result["scores"]["accuracy"]["low"] is not None
    assert any("rest on 5 patients" in note for note in result["notes"])
    many = measured_labels(labels, patients=[str(index // 2) for index in range(80)])
    assert many["notes"] == []


def test_a_class_of_one_patient_has_no_interval():
    labels = np.array([3] * 8 + [0] * 30)
    groups = ["single"] * 8 + [str(index) for index in range(30)]
    predicted = np.where(np.arange(38) % 5 == 0, 1, labels)
    result = measured_labels(labels, predicted, patients=groups)
    assert result["scores"]["sensitivity/NORMAL"]["value"] == pytest.approx(6 / 8)
    assert result["scores"]["sensitivity/NORMAL"]["low"] is None
    assert result["scores"]["sensitivity/CNV"]["low"] is not None
    assert "NORMAL: no interval, because all images are of one patient" in result["notes"]


def test_all_right_is_no_certainty():
    # Eight patients, all found: the true share may well be two in three.
    labels = np.array([0] * 8 + [3] * 8)
    groups = [f"{label}-{index}" for index, label in enumerate(labels)]
    result = measured_labels(labels, patients=groups, num_samples=200)
    found = result["scores"]["sensitivity/CNV"]
    exact = scipy.stats.binomtest(8, 8).proportion_ci(0.95, method="exact")
    assert (found["low"], found["high"]) == (pytest.approx(exact.low, abs=1e-6), 1.0)
    assert result["scores"]["auc/CNV"] == {"value": 1.0, "low": None, "high": None}
    wrong = measured_labels(labels, np.full(16, 1), patients=groups, num_samples=200)
    assert wrong["scores"]["sensitivity/CNV"]["high"] == pytest.approx(1 - exact.low, abs=1e-6)


def test_one_mistake_gives_about_the_exact_binomial_interval():
    # Percentiles would end at 100 %, because a third of the draws has no mistake.
    labels = np.repeat([0, 3], 30)
    predicted = np.where(np.arange(60) == 7, 3, labels)
    found = measured_labels(labels, predicted, num_samples=400)["scores"]["sensitivity/CNV"]
    exact = scipy.stats.binomtest(29, 30).proportion_ci(0.95, method="exact")
    assert found["low"] == pytest.approx(exact.low, abs=0.05)
    assert found["high"] == pytest.approx(exact.high, abs=0.01)
    assert found["high"] < 1


def test_three_patients_tell_little_of_a_class():
    labels = np.repeat([0, 1, 3], [9, 30, 60])
    groups = [f"patient {index // 3}" for index in range(99)]
    predicted = np.where(np.isin(np.arange(99), [0, 3, 4, 20, 50, 80, 90]), 2, labels)
    scores = measured_labels(labels, predicted, patients=groups, num_samples=400)["scores"]
    rare, common = (scores[f"sensitivity/{name}"] for name in ("CNV", "NORMAL"))
    assert rare["low"] < 0.15 < 0.95 < rare["high"]
    assert 0.85 < common["low"] < common["high"] < 1


@given(
    seed=st.integers(0, 9999),
    num_groups=st.integers(2, 12),
    num_images=st.integers(2, 60),
    error=st.sampled_from([0.02, 0.3, 0.9]),
)
def test_an_interval_holds_its_value_and_ends_within_the_range_of_its_measure(
    seed, num_groups, num_images, error
):
    generator = np.random.default_rng(seed)
    labels = generator.integers(2, size=num_images)
    predicted = np.where(generator.random(num_images) < error, 1 - labels, labels)
    groups = [str(group) for group in generator.integers(num_groups, size=num_images)]
    names = ("no", "yes")
    scores = measured_labels(labels, predicted, names, patients=groups, num_samples=20)["scores"]
    for name, score in scores.items():
        if score["low"] is not None:
            ends = known(name).least, score["low"], score["value"], score["high"], known(name).most
            assert sorted(ends) == list(ends)


def test_an_absent_class_is_named():
    (note,) = [note for note in measured_labels([0, 1, 2] * 10)["notes"] if "no image" in note]
    assert note.startswith("there is no image of NORMAL;")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_probabilities_that_are_not_numbers_are_refused_by_name(bad):
    probabilities = certain(np.arange(4))
    probabilities[2, 1] = bad
    with pytest.raises(measures.MetricsError, match=r"1 of 4 images .* \(the first is image 2"):
        measured(probabilities, np.arange(4))


def test_nothing_to_evaluate_is_refused():
    with pytest.raises(measures.MetricsError, match="at least one image"):
        measured_labels(np.zeros(0, int))


def test_without_resamples_there_are_no_intervals_and_no_notes_on_them():
    result = measured_labels([0, 1, 2, 3], patients=list("abcd"), num_samples=0)
    assert result["scores"]["accuracy"] == {"value": 1.0, "low": None, "high": None}
    assert result["notes"] == []


def test_many_classes_are_measured_with_fewer_resamples_of_areas(monkeypatch):
    generator = np.random.default_rng(0)
    names = tuple(f"class {index}" for index in range(300))
    labels = np.repeat(np.arange(300), 4)
    predicted = np.where(generator.random(1200) < 0.8, labels, 0)
    cost = 300 * 1200
    monkeypatch.setattr(measures, "MAX_AREA_COST", 120 * cost)
    result = measured_labels(labels, predicted, names, num_samples=200)
    assert result["auc_bootstrap_samples"] == 120
    assert any("use 120 resamples instead of 200" in note for note in result["notes"])
    assert result["scores"]["auc/class 0"]["low"] is not None
    monkeypatch.setattr(measures, "MAX_AREA_COST", 99 * cost)
    result = measured_labels(labels, predicted, names, num_samples=200)
    assert result["auc_bootstrap_samples"] == 0
    assert result["scores"]["auc/class 0"]["value"] is not None
    assert result["scores"]["auc/class 0"]["low"] is None
    assert result["scores"]["accuracy"]["low"] is not None
    text = describe(result | {"split": "test", "best_epoch": 1})
    assert len(text.splitlines()) < 80
    assert "metrics.json has 280 more classes, of higher sensitivity" in text


def test_the_spread_of_a_cross_validation_is_told_over_folds_and_over_seeds():
    # Folds differ by 0.2, seeds by 0.02; one run does not define the area.
    results = [
        (fold, seed, {"accuracy": 0.7 + 0.2 * fold + 0.02 * seed, "auc/CNV": auc})
        for (fold, seed), auc in zip(
            [(1, 0), (0, 0), (0, 1), (1, 1)], [0.9, 0.8, np.nan, 0.9], strict=True
        )
    ]
    part = measures.describe_folds(results)
    assert [(row["fold"], row["seed"]) for row in part["folds"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert part["folds"][1]["scores"] == {"accuracy": 0.72, "auc/CNV": None}
    assert part["spread"]["accuracy"] == {
        "mean": pytest.approx(0.81),
        "std_over_folds": pytest.approx(0.2 / 2**0.5, abs=1e-6),
        "std_over_seeds": pytest.approx(0.02 / 2**0.5, abs=1e-6),
    }
    assert part["spread"]["auc/CNV"]["mean"] == pytest.approx(2.6 / 3, abs=1e-6)


def test_one_run_has_no_spread():
    spread = measures.describe_folds([(0, 7, {"accuracy": 0.5, "ece": np.nan})])["spread"]
    assert spread["accuracy"] == {"mean": 0.5, "std_over_folds": None, "std_over_seeds": None}
    assert spread["ece"]["mean"] is None


def test_pooled_metrics_are_of_no_single_epoch():
    result = measured_labels([0, 1, 2, 3]) | {"split": "train+val"}
    assert describe(result).startswith(
        "train+val: 4 images\n  right answers: 100 % (4 of 4; 95 % interval: "
    )
    assert "4 images, weights of epoch 7\n" in describe(result | {"best_epoch": 7})


def test_names_that_would_steer_a_terminal_are_printed_escaped():
    result = measured_labels([0, 1], names=("a\x1b]0;title\x07", "b"))
    text = describe(result | {"split": "test", "best_epoch": 1})
    assert "a\\x1b]0;title\\x07" in text
    assert all(line.isprintable() for line in text.splitlines())


def answers_of_runs(num_images=60, num_folds=3, seeds=1, shift=0.0):
    """Returns answers of a cross-validation whose networks differ by a shift of their logits."""
    generator = np.random.default_rng(0)
    truths = generator.integers(2, size=num_images)
    fold_of = np.arange(num_images) % num_folds
    logits = truths + generator.normal(size=num_images) + shift * fold_of
    logits = np.concatenate([logits] * seeds)
    likely = 1 / (1 + np.exp(-logits))
    return predictions_of(
        np.stack([1 - likely, likely], 1), np.concatenate([truths] * seeds), ("no", "yes"),
        examples=examples_of(num_images).take(np.tile(np.arange(num_images), seeds)),
        runs=np.concatenate([fold_of + num_folds * seed for seed in range(seeds)]),
    )  # fmt: skip


def measured_runs(**arguments):
    return measures.evaluate_predictions(answers_of_runs(**arguments), num_samples=300, seed=0)


def test_the_area_of_a_cross_validation_does_not_rank_networks_against_each_other():
    plain, shifted = (measured_runs(shift=shift)["scores"]["auc/yes"] for shift in (0, 3))
    assert shifted == plain
    answers = answers_of_runs()
    by_fold = [
        sk_metrics.roc_auc_score(answers.truths[rows], answers.probabilities[rows, 1])
        for rows in answers.by_run()
    ]
    assert plain["value"] == pytest.approx(np.mean(by_fold), abs=1e-6)
    assert plain["low"] < plain["value"] < plain["high"]


def test_repeated_answers_to_an_image_do_not_narrow_its_interval():
    one, four = (measured_runs(seeds=seeds) for seeds in (1, 4))
    assert four["num_examples"] == one["num_examples"] == 60
    for name in ("accuracy", "auc/yes", "sensitivity/no"):
        assert four["scores"][name] == pytest.approx(one["scores"][name], abs=1e-9)
    assert four["confusion_matrix"] == one["confusion_matrix"]


def test_a_fold_without_a_class_is_left_out_of_the_area_and_counted():
    answers = answers_of_runs()
    answers.truths[answers.runs == 2] = 0
    result = measures.evaluate_predictions(answers, num_samples=0, seed=0)
    assert result["areas_left_out"] == {"auc/no": 1, "auc/yes": 1}
    assert any("auc/yes of 1" in note for note in result["notes"])
    assert result["scores"]["auc/yes"]["value"] is not None


def test_one_unknown_patient_leaves_the_others_groups():
    patients = [f"{index // 4}" for index in range(40)]
    patients[7] = None
    result = measured_labels(np.arange(40) % 4, patients=patients)
    assert (result["num_groups"], result["num_patients"]) == (11, 10)
    assert result["bootstrap_by"] == "group"
    (note,) = [note for note in result["notes"] if "unknown" in note]
    assert note.startswith("the patient of 1 of 40 images is unknown, so they count by image")

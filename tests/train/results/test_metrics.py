import dataclasses

import numpy as np
import pytest
import scipy.stats
from answers import certain, dataset_of, measured, measured_as, predictions_of
from hypothesis import given, settings
from hypothesis import strategies as st
from marked_images import OCT_NAMES
from sklearn import metrics as sk_metrics

from train.kinds import words
from train.kinds.classes import CLASSES
from train.kinds.words import known
from train.results import metrics as measures
from train.results.options import MeasureOptions


def measured_labels(labels, predicted=None, names=OCT_NAMES, **arguments):
    """Returns the measures of sure answers; without `predicted`, of right ones."""
    labels = np.asarray(labels)
    given = labels if predicted is None else predicted
    return measured(certain(given, len(names)), labels, names, **arguments)


def describe(result, **entries):
    """Returns what the terminal says of measures."""
    found = {"split": "test"} | result | entries
    return words.describe(CLASSES, found)


def test_what_is_not_defined_is_none_not_a_number():
    result = measured_labels([0, 1, 2, 3], patients=list("abcd"), num_samples=0)
    assert result["scores"]["accuracy"] == {"value": 1.0, "low": None, "high": None}
    assert not any("interval" in note for note in result["notes"])
    result = measured_labels([0, 0, 1, 1])
    assert result["scores"]["sensitivity/DRUSEN"] == {"value": None, "low": None, "high": None}
    assert result["scores"]["auc/NORMAL"]["value"] is None


FOUR, SOME = np.arange(80) % 4, np.repeat([0, 1, 2], [24, 4, 30])
PAIRS = [str(index // 2) for index in range(80)]


@pytest.mark.parametrize(
    ("labels", "patients", "by", "beginning"),
    [
        (FOUR, PAIRS, "patient", None),
        ([0, 1, 2, 3], ["p"] * 4, "patient", "all images are of one patient, so there are no"),
        (FOUR, [str(index // 16) for index in range(80)], "patient", "the intervals rest on 5 p"),
        (SOME, PAIRS[:58], "patient", "fewer than 10 patients are behind the figures of DME (2)"),
        (SOME, None, "image", "fewer than 10 images are behind the figures of DME (4)"),
        ([0, 1, 2] * 10, None, "image", "there is no image of NORMAL;"),
        (FOUR, [None, *PAIRS[1:]], "group", "the patient of 1 of 80 images is unknown, so they"),
    ],
)
def test_what_limits_the_figures_is_noted(labels, patients, by, beginning):
    result = measured_labels(labels, patients=patients)
    assert result["bootstrap_by"] == by
    # An unknown patient is that of one image, and leaves the others their groups.
    of_images = [None] * len(labels) if patients is None else patients
    num_patients, num_unknown = len({*of_images} - {None}), of_images.count(None)
    assert (result["num_patients"] or 0) == num_patients
    assert result["num_groups"] == num_patients + num_unknown
    assert (result["scores"]["accuracy"]["low"] is None) == (result["num_groups"] == 1)
    if beginning is None:
        assert result["notes"] == []
    else:
        assert any(note.startswith(beginning) for note in result["notes"])


@pytest.mark.parametrize(("num_wrong", "reach"), [(0, 1e-6), (1, 0.05), (30, 1e-6)])
def test_a_share_of_few_images_has_about_the_exact_binomial_interval(num_wrong, reach):
    # Percentiles would end at 100 %, because a third of the draws has no mistake.
    labels = np.repeat([0, 3], 30)
    predicted = np.where(np.arange(60) < num_wrong, 3, labels)
    scores = measured_labels(labels, predicted, num_samples=400)["scores"]
    exact = scipy.stats.binomtest(30 - num_wrong, 30).proportion_ci(0.95, method="exact")
    found = scores["sensitivity/CNV"]
    assert (found["low"], found["high"]) == pytest.approx((exact.low, exact.high), abs=reach)
    if not num_wrong:
        assert scores["auc/CNV"] == {"value": 1.0, "low": None, "high": None}
    if num_wrong in (0, 30):  # Fifteen patients, all right or all wrong, tell less than 30 images.
        patients = PAIRS[:60]
        scores = measured_labels(labels, predicted, patients=patients, num_samples=400)["scores"]
        exact = scipy.stats.binomtest((30 - num_wrong) // 2, 15).proportion_ci(0.95, "exact")
        found = scores["sensitivity/CNV"]
        assert (found["low"], found["high"]) == pytest.approx((exact.low, exact.high), abs=1e-6)


def test_a_measure_that_rests_on_one_patient_has_no_interval():
    labels, patients = np.repeat([0, 2], [30, 8]), [*map(str, range(30)), *["one"] * 8]
    predicted = np.where(np.isin(np.arange(38), [3, 31, 32]), 1, labels)
    scores = measured_labels(labels, predicted, patients=patients)["scores"]
    assert scores["sensitivity/CNV"]["low"] is not None
    assert scores["sensitivity/DRUSEN"] == {"value": 0.75, "low": None, "high": None}


@settings(max_examples=10)
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


def test_many_classes_are_measured_with_fewer_resamples_of_areas(monkeypatch):
    monkeypatch.setattr(measures, "MAX_AREA_COST", 120 * 4 * 40)
    labels = np.repeat(np.arange(4), 10)
    result = measured_labels(labels, np.where(np.arange(40) % 5, labels, 0), num_samples=130)
    assert result["auc_bootstrap_samples"] == 120
    assert result["scores"]["auc/DME"]["low"] is not None


def test_the_spread_of_a_cross_validation_is_over_the_folds_that_define_a_score():
    scores = {
        1: {"accuracy": 0.9, "auc/CNV": np.nan},
        0: {"accuracy": 0.7, "auc/CNV": 0.8},
        2: {"accuracy": 0.8, "auc/CNV": np.nan},
    }
    part = measures.describe_folds(scores)
    assert [row["fold"] for row in part["folds"]] == [0, 1, 2]
    assert part["folds"][1]["scores"] == {"accuracy": 0.9, "auc/CNV": None}
    assert part["spread"]["accuracy"] == pytest.approx({"mean": 0.8, "std_over_folds": 0.1})
    assert part["spread"]["auc/CNV"] == {"mean": 0.8, "std_over_folds": None}


def test_the_terminal_names_the_split_and_escapes_what_would_steer_it():
    result = measured_labels([0, 1], names=("a\x1b]0;title\x07", "b"))
    text = describe(result, split="train+val")
    assert text.startswith("train+val: 2 images\n  It named the right class for 100.0 % (2 of 2; ")
    assert "a\\x1b]0;title\\x07" in text
    assert all(line.isprintable() for line in text.splitlines())


def answers_of_runs(num_images=60, num_folds=3, shift=0.0):
    """Returns answers of a cross-validation whose networks differ by a shift of their logits."""
    generator = np.random.default_rng(0)
    truths = generator.integers(2, size=num_images)
    fold_of = np.arange(num_images) % num_folds
    logits = truths + generator.normal(size=num_images) + shift * fold_of
    likely = 1 / (1 + np.exp(-logits))
    return predictions_of(
        np.stack([1 - likely, likely], 1), truths, ("no", "yes"),
        folds=fold_of,
    )  # fmt: skip


def measured_runs(**arguments):
    return measured_as(answers_of_runs(**arguments), num_samples=60)


def test_the_area_of_a_cross_validation_does_not_rank_networks_against_each_other():
    plain, shifted = (measured_runs(shift=shift)["scores"]["auc/yes"] for shift in (0, 3))
    assert shifted == plain
    answers = answers_of_runs()
    by_fold = [
        sk_metrics.roc_auc_score(fold.truths, fold.probabilities[:, 1])
        for fold in answers.by_fold()
    ]
    assert plain["value"] == pytest.approx(np.mean(by_fold), abs=1e-6)
    assert plain["low"] < plain["value"] < plain["high"]


def test_a_fold_without_a_class_is_left_out_of_the_area():
    answers = answers_of_runs()
    answers.truths[answers.folds == 2] = 0
    assert measured_as(answers, num_samples=0)["scores"]["auc/yes"]["value"] is not None


# ---- by patient


def by_patient(labels, predicted, patients, **fields):
    dataset = dataset_of(len(labels), patients)
    answers = predictions_of(predicted, labels, **{"dataset": dataset} | fields)
    return measures.measure(answers, MeasureOptions(bootstrap_samples=50), 0).get("by_patient")


def test_by_patient_each_patient_counts_once_whatever_its_number_of_images():
    # All 27 images of one patient are wrong, and the one image of each of 9 others is right.
    labels, patients = np.zeros(36, int), ["p"] * 27 + [*"abcdefghi"]
    found = by_patient(labels, certain(np.repeat([1, 0], [27, 9])), patients)
    alone = measured_labels([0] * 10, np.eye(10, dtype=int)[0], num_samples=50)["scores"]
    assert alone["accuracy"]["value"] == 0.9
    assert found["accuracy"] == pytest.approx(alone["accuracy"])
    assert by_patient(labels, certain(labels), [None, *patients[1:]]) is None
    # Of one image each, they are the figures by image.
    assert by_patient(labels, certain(labels), [*map(str, range(36))]) is None


# ---- subgroups


def test_each_value_is_a_subgroup_and_so_is_what_is_not_known():
    for values, expected in (
        (["b", None, "a", "b"], {"a": [2], "b": [0, 3], "unknown": [1]}),
        (["unknown", None], {"unknown": [0, 1]}),
        ([10, 9, 10, 2], {"2": [3], "9": [1], "10": [0, 2]}),
        ([True, False, True], {"False": [1], "True": [0, 2]}),
    ):
        found = measures.subgroups(values)
        assert {name: places.tolist() for name, places in found.items()} == expected
        assert list(found) == list(expected)


def test_a_column_of_very_many_values_is_not_measured_by_value_and_this_is_noted():
    values = [f"site {number:02}" for number in range(measures.MAX_VALUES + 5)]
    dataset = dataclasses.replace(dataset_of(len(values), site=values), measured=("site",))
    labels = np.zeros(len(values), int)
    answers = predictions_of(certain(labels), labels, dataset=dataset)
    found = measures.measure(answers, MeasureOptions(bootstrap_samples=0), 0)
    assert "sites" not in found
    assert any(note.startswith("site has 55 values") for note in found["notes"])

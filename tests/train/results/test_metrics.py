import dataclasses

import numpy as np
import pytest
import scipy.stats
from answers import certain, dataset_of, measured, measured_as, predictions_of
from hypothesis import given, settings
from hypothesis import strategies as st
from marked_images import OCT_NAMES
from sklearn import metrics as sk_metrics

from train.kinds.words import known
from train.results import metrics as measures
from train.results.options import MeasureOptions


def measured_labels(labels, predicted=None, names=OCT_NAMES, **arguments):
    """Returns the measures of sure answers; without `predicted`, of right ones."""
    labels = np.asarray(labels)
    given = labels if predicted is None else predicted
    return measured(certain(given, len(names)), labels, names, **arguments)


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
    assert (result["scores"]["auc/NORMAL"]["value"] is None) == (3 not in labels)
    if beginning is None:
        assert result["notes"] == []
    else:
        assert any(note.startswith(beginning) for note in result["notes"])


@pytest.mark.parametrize(("num_wrong", "reach"), [(0, 1e-6), (1, 0.05), (30, 1e-6)])
def test_a_share_of_few_images_has_about_the_exact_binomial_interval(num_wrong, reach):
    # Percentiles would end at 100 %, because a third of the draws has no mistake.
    labels = np.repeat([0, 3], 30)
    predicted = np.where(np.arange(60) < num_wrong, 3, labels)
    # Fifteen patients, all right or all wrong, tell less than 30 images.
    for patients, size in ((None, 1), (PAIRS[:60], 2)):
        scores = measured_labels(labels, predicted, patients=patients, num_samples=400)["scores"]
        test = scipy.stats.binomtest((30 - num_wrong) // size, 30 // size)
        exact, found = test.proportion_ci(0.95, method="exact"), scores["sensitivity/CNV"]
        if size == 1 or num_wrong in (0, 30):
            assert (found["low"], found["high"]) == pytest.approx(
                (exact.low, exact.high), abs=reach
            )
        if not num_wrong:
            assert scores["auc/CNV"] == {"value": 1.0, "low": None, "high": None}


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


def answers_of_runs(shift=0.0):
    """Returns answers of a cross-validation whose networks differ by a shift of their logits."""
    generator, fold_of = np.random.default_rng(0), np.arange(60) % 3
    truths = generator.integers(2, size=60)
    likely = 1 / (1 + np.exp(-(truths + generator.normal(size=60) + shift * fold_of)))
    return predictions_of(np.stack([1 - likely, likely], 1), truths, ("no", "yes"), folds=fold_of)


def test_the_area_of_a_cross_validation_does_not_rank_networks_against_each_other():
    plain, shifted = (
        measured_as(answers_of_runs(shift), num_samples=60)["scores"]["auc/yes"] for shift in (0, 3)
    )
    assert shifted == plain
    answers = answers_of_runs()
    by_fold = [
        sk_metrics.roc_auc_score(fold.truths[:, 1], fold.probabilities[:, 1])
        for fold in answers.by_fold()
    ]
    assert plain["value"] == pytest.approx(np.mean(by_fold), abs=1e-6)
    assert plain["low"] < plain["value"] < plain["high"]
    # A fold without a class is left out.
    answers.truths[answers.folds == 2] = (True, False)
    found = measured_as(answers, num_samples=0)["scores"]["auc/yes"]["value"]
    assert found == pytest.approx(np.mean(by_fold[:2]), abs=1e-6)


def test_by_patient_each_patient_counts_once_whatever_its_number_of_images():
    def by_patient(predicted, patients):
        answers = predictions_of(predicted, np.zeros(36, int), dataset=dataset_of(36, patients))
        return measures.measure(answers, MeasureOptions(bootstrap_samples=50), 0).get("by_patient")

    # All 27 images of one patient are wrong, and the one image of each of 9 others is right.
    answers, patients = certain(np.repeat([1, 0], [27, 9])), ["p"] * 27 + [*"abcdefghi"]
    alone = measured_labels([0] * 10, np.eye(10, dtype=int)[0], num_samples=50)["scores"]
    assert alone["accuracy"]["value"] == 0.9
    assert by_patient(answers, patients)["accuracy"] == pytest.approx(alone["accuracy"])
    assert by_patient(answers, [None, *patients[1:]]) is None
    # Of one image each, they are the figures by image.
    assert by_patient(answers, [*map(str, range(36))]) is None


def test_each_value_is_a_subgroup_and_so_is_what_is_not_known_but_not_of_very_many():
    def measured_by(values):
        dataset = dataclasses.replace(dataset_of(len(values), device=values), measured=("device",))
        labels = np.zeros(len(values), int)
        answers = predictions_of(certain(labels), labels, dataset=dataset)
        return measures.measure(answers, MeasureOptions(by="device", bootstrap_samples=0), 0)

    for values, expected in (
        (["b", None, "a", "b"], [("a", 1), ("b", 2), ("unknown", 1)]),
        (["unknown", None], [("unknown", 2)]),
        ([10, 9, 10, 2], [("2", 1), ("9", 1), ("10", 2)]),
        ([True, False, True], [("False", 1), ("True", 2)]),
    ):
        by = measured_by(values)["by"]["device"]
        assert [(name, found["num_examples"]) for name, found in by.items()] == expected
    found = measured_by([f"device {number:02}" for number in range(55)])
    assert "by" not in found
    assert any(note.startswith("device has 55 values") for note in found["notes"])

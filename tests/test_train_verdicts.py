from answers import certain, measured

from train.kinds import words


def probabilities_say(**changes):
    found = {"scores": {}, "label_counts": {}} | changes
    return words.cautions_of_probabilities(found)


def reached(sensitivity, specificity):
    rates = {"sensitivity": sensitivity, "specificity": specificity}
    return {"view": "CNV", "test": {name: {"value": value} for name, value in rates.items()}}


def test_a_label_that_is_always_or_never_the_answer_is_named():
    said = words.cautions_of_answers(measured(certain([1, 1, 1, 1]), [0, 1, 2, 1]))
    assert said[0].startswith("Every image is called DME:")
    assert said[1].startswith("No image is called CNV, DRUSEN:")
    assert words.cautions_of_answers(measured(certain([0, 1, 2, 3]), [0, 1, 2, 3])) == []


def test_a_threshold_that_separates_nothing_is_named():
    (said,) = probabilities_say(thresholds=[reached(1.0, 0.0)])
    assert "reached by 100.0 % of the positive images, and by 100.0 % of the others" in said
    assert probabilities_say(thresholds=[reached(0.9, 0.2), reached(None, 0.0)]) == []


def test_a_temperature_that_made_it_worse_is_named():
    (said,) = probabilities_say(calibration={"ece_before": 0.02, "ece_after": 0.05})
    assert "is 2.0 % without it and 5.0 % with it" in said
    assert probabilities_say(calibration={"ece_before": 0.05, "ece_after": 0.02}) == []


def test_probabilities_are_called_extreme_or_cautious_only_where_the_interval_says_so():
    slopes = {
        "calibration_slope/CNV": {"value": 0.5, "low": 0.3, "high": 0.8},
        "urgent/calibration_slope": {"value": 1.4, "low": 1.1, "high": 1.9},
        "calibration_slope/DME": {"value": 0.5, "low": 0.3, "high": 1.2},
        "calibration_slope/NORMAL": {"value": 0.5, "low": None, "high": None},
        "calibration_slope/DRUSEN": {"value": None, "low": 1.1, "high": 1.9},
    }
    extreme, cautious = probabilities_say(scores=slopes)
    assert extreme.startswith("The probabilities of CNV are too extreme")
    assert cautious.startswith("The probabilities of urgent are too cautious")


def test_the_terminal_says_all_of_it_and_what_the_thresholds_give():
    found = measured(certain([1, 1, 1, 1]), [0, 1, 2, 1])
    thresholds = [reached(1.0, 0.0) | {"threshold": 0.25}]
    for rate in thresholds[0]["test"].values():
        rate |= {"low": None, "high": None}
    told = words.remarks(found | {"thresholds": thresholds})
    assert "threshold: CNV at least 0.25: sensitivity 100.0 %, specificity 0.0 %" in told[0]
    assert any("Every image is called DME" in line for line in told)

import numpy as np
import pytest
from answers import examples_of

from train.errors import ConfigError
from train.kinds.classes import CLASSES
from train.results.predictions import Predictions, read_predictions, write_predictions


def test_predictions_are_written_a_row_an_example(tmp_path):
    predictions = Predictions(
        task=CLASSES,
        probabilities=np.array([[0.01, 0.98], [0.98, 0.01]], np.float32),
        truths=np.array([1, 1]),
        label_names=("a", "b"),
        examples=examples_of(2, ["p", None]),
    )
    write_predictions(tmp_path, predictions)
    assert (tmp_path / "predictions.csv").read_text().splitlines() == [
        "key,path,patient,label,predicted,a,b",
        "k0,,p,b,b,0.010000,0.980000",
        "k1,,,b,a,0.980000,0.010000",
    ]


def test_predictions_are_read_in_full_precision_and_the_table_holds_no_formula(tmp_path):
    predictions = Predictions(
        task=CLASSES,
        probabilities=np.array([[1e-9, 1 - 1e-7], [1 / 3, 2 / 3]], np.float32),
        truths=np.array([1, 0]),
        label_names=("=A", "B"),
        examples=examples_of(2, ["p", "q"], paths=("=x.png", "y.png")),
    )
    write_predictions(tmp_path, predictions)
    assert "'=x.png" in (tmp_path / "predictions.csv").read_text()
    keys, probabilities, truths = read_predictions(tmp_path)
    assert keys.tolist() == ["k0", "k1"]
    assert (probabilities == predictions.probabilities).all()
    assert truths.tolist() == [1, 0]


def test_a_run_of_an_older_release_says_how_to_go_on(tmp_path):
    with pytest.raises(ConfigError, match=r"Remove .*, and the same command trains this run again"):
        read_predictions(tmp_path)

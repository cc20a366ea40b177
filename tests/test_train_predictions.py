import numpy as np
import pytest
from answers import examples_of, predictions_of

from train.errors import ConfigError
from train.results.predictions import read_predictions, write_predictions


def test_predictions_are_written_a_row_an_example_without_formulas_and_read_in_full_precision(
    tmp_path,
):
    probabilities = np.array([[1e-9, 1 - 1e-7], [2 / 3, 1 / 3]], np.float32)
    examples = examples_of(2, ["p", None], paths=("=x.png", "y.png"))
    written = predictions_of(probabilities, [1, 1], ("=A", "B"), examples=examples)
    write_predictions(tmp_path, written)
    assert (tmp_path / "predictions.csv").read_text().splitlines() == [
        "key,path,patient,label,predicted,'=A,B",
        "k0,'=x.png,p,B,B,0.000000,1.000000",
        "k1,y.png,,B,'=A,0.666667,0.333333",
    ]
    keys, read, truths = read_predictions(tmp_path)
    assert keys.tolist() == ["k0", "k1"]
    assert (read == probabilities).all()
    assert truths.tolist() == [1, 1]


def test_a_run_of_an_older_release_says_how_to_go_on(tmp_path):
    with pytest.raises(ConfigError, match=r"Remove .*, and the same command trains this run again"):
        read_predictions(tmp_path)

import numpy as np

from tfrecord_io.kinds import classes
from train.data.examples import Examples
from train.kinds.classes import CLASSES
from train.results.predictions import Predictions, read_predictions, write_predictions


def test_predictions_are_written_a_row_an_example(tmp_path):
    predictions = Predictions(
        task=CLASSES,
        probabilities=np.array([[0.01, 0.98], [0.98, 0.01]], np.float32),
        truths=np.array([1, 1]),
        label_names=("a", "b"),
        examples=Examples(keys=("k1", "k2"), patients=("p", "q"), paths=None),
    )
    write_predictions(tmp_path / "predictions.csv", predictions)
    assert (tmp_path / "predictions.csv").read_text().splitlines() == [
        "key,path,patient,label,predicted,a,b",
        "k1,,p,b,b,0.010000,0.980000",
        "k2,,q,b,a,0.980000,0.010000",
    ]


def test_predictions_are_read_as_they_were_written_and_hold_no_formula(tmp_path):
    predictions = Predictions(
        task=CLASSES,
        probabilities=np.array([[0.25, 0.75], [0.5, 0.5]], np.float32),
        truths=np.array([1, 0]),
        label_names=("=A", "B"),
        examples=Examples(keys=("k1", "k2"), patients=("p", "q"), paths=("=x.png", "y.png")),
    )
    path = tmp_path / "predictions.csv"
    write_predictions(path, predictions)
    assert "'=x.png" in path.read_text()
    found, has, who = read_predictions(path, 2, classes.CLASSES)
    np.testing.assert_allclose(found, predictions.probabilities)
    assert has.argmax(-1).tolist() == [1, 0]
    assert (who.keys, who.patients) == (("k1", "k2"), ("p", "q"))

"""How far an image is from the training images: in the export, in `predict` and in `evaluate`."""

import json
import shutil

import keras
import numpy as np
import pages
import pytest
from answers import predictions_of
from marked_images import (
    KERAS_ARRAY_WARNING,
    evaluated,
    metrics_of,
    picture_files,
    predicted,
    train,
)

from tfrecord_io.format import kinds
from tfrecord_io.reading.mapped import MappedDataset
from train import predict
from train.kinds.registry import task_of
from train.results import charts, unlike
from train.results.classifier import answer_images, load_classifier, load_classifiers

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAY_WARNING)


@pytest.fixture(scope="module")
def without(class_run, tmp_path_factory):
    """The same run, whose export has no feature vectors."""
    copy = tmp_path_factory.mktemp("without") / "run"
    shutil.copytree(class_run, copy)
    (copy / "export" / unlike.FILE_NAME).unlink()
    return copy


@pytest.fixture(scope="module")
def images(class_data):
    return MappedDataset(class_data, "test")[np.arange(30)][0]


def test_a_distance_is_the_cosine_distance_to_the_10th_nearest_vector(class_run, images):
    (known,) = load_classifier(class_run).known
    _, features = known.model(images, training=False)
    features = keras.ops.convert_to_numpy(features)
    stored = np.load(class_run / "export" / unlike.FILE_NAME)["vectors"].astype(np.float64)
    assert stored.shape == (90, features.shape[1])
    likeness = features @ stored.T
    lengths = np.linalg.norm(features, axis=1)[:, None] * np.linalg.norm(stored, axis=1)
    expected = np.sort(1 - likeness / lengths, axis=1)[:, 9]
    np.testing.assert_allclose(known.answer(images)[1], expected, atol=1e-5)


def test_one_in_twenty_validation_images_is_above_the_limit(class_data, class_run):
    (known,) = load_classifier(class_run).known
    distances = known.answer(MappedDataset(class_data, "val")[np.arange(20)][0])[1]
    assert (distances > known.limit).sum() == 1
    assert known.val_share == 0.05


def test_the_probabilities_are_the_same_to_the_bit_with_and_without_vectors(
    class_run, without, images
):
    (one, distances), (other, unknown) = (
        answer_images(load_classifier(run), images) for run in (class_run, without)
    )
    np.testing.assert_array_equal(one, other)
    assert np.isnan(unknown).all()
    assert np.isfinite(distances).all()


def test_of_several_runs_the_largest_distance_counts_and_none_if_one_is_unknown(
    class_run, without, class_data, images, tmp_path
):
    assert train(class_data, tmp_path / "second", seed=7, epochs=1) == 0
    runs = [class_run, tmp_path / "second"]
    each = [answer_images(load_classifier(run), images)[1] for run in runs]
    both = answer_images(load_classifiers(runs), images)[1]
    np.testing.assert_array_equal(both, np.maximum(*each))
    assert load_classifiers([class_run, without]).known == []


def test_predict_has_two_last_columns_if_the_export_has_vectors(
    class_run, without, class_data, tmp_path, capsys
):
    files = picture_files(class_data, tmp_path)
    (tmp_path / "noise.txt").write_text("no image")
    *rows, rejected = predicted(capsys, class_run, *files, tmp_path / "noise.txt", code=1)
    assert list(rows[0])[-2:] == ["unlike", "distance"]
    assert (rejected["unlike"], rejected["distance"]) == ("", "")
    limit = load_classifier(class_run).known[0].limit
    for row in rows:
        assert row["unlike"] == str(float(row["distance"]) > limit).lower()
    assert "distance" not in predicted(capsys, without, *files)[0]
    for run, last in ((class_run, "distance"), (without, "above_threshold")):
        assert predict.main([f"--run={run}", "--format=json", "--input", *files]) == 0
        assert [*json.loads(capsys.readouterr().out)[0]][-1] == last


def test_an_evaluation_counts_the_images_that_are_unlike_and_draws_what_they_cost(
    class_run, without, class_data, tmp_path, capsys
):
    strict = shutil.copytree(class_run, tmp_path / "strict")
    with np.load(strict / "export" / unlike.FILE_NAME) as arrays:
        np.savez(strict / "export" / unlike.FILE_NAME, **dict(arrays) | {"limit": -1.0})
    words = {}
    for run in (class_run, strict, without):
        output = tmp_path / "measured" / run.name / run.parent.name
        assert evaluated(run, class_data, f"--output={output}", "--include_seen") == 0
        words[run] = pages.words((output / "report.html").read_text())
        found = metrics_of(output).get("unlike", {})
        assert (output / "plots" / "coverage.svg").exists() == (run != without)
        assert found.get("val_share", 0.05) == 0.05
    told = "of these images are unlike the training images"
    assert f"100.0 % {told} (5.0 % of the validation images are)" in capsys.readouterr().out
    sentence = f"100.0 % {told} (5.0 % of the validation images are)."
    assert [sentence in words[run] for run in (class_run, strict, without)] == [False, True, False]
    heading = "look to the network less like the training images"
    assert [heading in words[run] for run in (class_run, strict, without)] == [True, True, False]


def test_the_chart_keeps_the_images_that_are_most_alike():
    distances, share = np.array([0.1, 0.4, 0.2, 0.3]), {"unlike": {"share": 0.25}}
    classes = predictions_of(np.eye(4), [0, 0, 2, 0], distances=distances)
    answers = np.array([[3.0], [1], [0], [3]])
    numbers = predictions_of(
        answers, np.ones(4), ["age"], task_of(kinds.NUMBER), distances=distances
    )
    for predictions, heights in ((classes, [1, 1, 2 / 3, 1 / 2]), (numbers, [2, 1.5, 5 / 3, 1.25])):
        (chart,) = charts.coverage(predictions, share)
        curve, limit = chart.series
        np.testing.assert_allclose(
            curve.points, list(zip([0.25, 0.5, 0.75, 1], heights, strict=True))
        )
        assert limit.points[0] == (0.75, 0)


def test_no_unlike_leaves_the_vectors_out_of_the_export(class_data, tmp_path):
    assert train(class_data, tmp_path / "run", epochs=1, unlike=False) == 0
    assert not (tmp_path / "run" / "export" / unlike.FILE_NAME).exists()

"""Tests of train/adapt.py: the statistics of other scans, without their labels."""

import json

import keras
import numpy as np
import pyarrow.parquet as pq
import pytest
from marked_images import (
    KERAS_ARRAY_WARNING,
    edited_run,
    evaluated,
    export_untrained,
    metrics_of,
    without_saved_model,
    write_marked_dataset,
)
from PIL import Image

from tfrecord_io.reading.mapped import MappedDataset
from train import adapt
from train.data.seen import Seen, read_seen
from train.results.classifier import load_classifier

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAY_WARNING)

NUM_SCANS = 40
LAYERS = keras.layers


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with without_saved_model():
        export_untrained(folder, (12, 12, 1), model="small_resnet", normalize="unit")
    (folder / "export" / "thresholds.json").write_text("[]")
    return folder


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    """A labelled dataset of another clinic; a folder has the first 40 of its 60 scans as files."""
    folder = tmp_path_factory.mktemp("clinic")
    write_marked_dataset(folder / "data", {"test": 60})
    images, _ = MappedDataset(folder / "data", "test")[np.arange(NUM_SCANS)]
    (folder / "scans").mkdir()
    for index, image in enumerate(images):
        Image.fromarray(image[..., 0]).save(folder / "scans" / f"{index:02}.png")
    (folder / "scans" / "notes.txt").write_text("no image")
    return folder


def adapted(run, output, *inputs, code=0):
    words = [f"--run={run}", f"--output={output}", "--input", *map(str, inputs)]
    with without_saved_model():
        assert adapt.main(words) == code
    return output


@pytest.fixture(scope="module")
def result(run, clinic, tmp_path_factory):
    return adapted(run, tmp_path_factory.mktemp("adapted") / "run", clinic / "scans")


def statistics(model):
    return [
        [keras.ops.convert_to_numpy(each) for each in (layer.moving_mean, layer.moving_variance)]
        for layer in adapt._normalizations(model)
    ]


@pytest.mark.parametrize("num_images", [32, 150])
def test_statistics_are_those_of_the_images_and_of_16_old_ones(num_images):
    inside = keras.Sequential([keras.Input((4, 5, 2)), LAYERS.BatchNormalization()])
    inside.layers[0].trainable = False  # as in a pretrained backbone
    last = LAYERS.BatchNormalization()
    outputs = last(LAYERS.Dropout(0.5)(inside(first := keras.Input((4, 5, 2)))))
    model = keras.Model(first, outputs)
    generator = np.random.default_rng(0)
    images = generator.normal((3, -2), (2, 5), (num_images, 4, 5, 2)).astype(np.float32)
    adapt.adapt_statistics(model, images)
    share = num_images / (num_images + adapt.PRIOR_IMAGES)
    (mean, variance), (next_mean, next_variance) = statistics(model)
    np.testing.assert_allclose(mean, share * images.mean((0, 1, 2)), rtol=1e-3)
    expected = share * images.var((0, 1, 2)) + 1 - share
    np.testing.assert_allclose(variance, expected, rtol=1e-3)
    # The next layer must be measured on the output of adapted layers, not of the old ones.
    given = keras.ops.convert_to_numpy(inside(images, training=False))
    np.testing.assert_allclose(next_mean, share * given.mean((0, 1, 2)), atol=0.02)
    expected = share * given.var((0, 1, 2)) + 1 - share
    np.testing.assert_allclose(next_variance, expected, atol=0.02)
    # After it, the layers normalize as they did before.
    expected = keras.ops.convert_to_numpy(last(inside(images), training=False))
    found = keras.ops.convert_to_numpy(model(images, training=False))
    np.testing.assert_array_equal(found, expected)
    assert not any("call" in vars(layer) for layer in adapt._normalizations(model))


def test_the_result_is_an_export_with_other_statistics_and_the_same_weights(run, result):
    old, new = load_classifier(run).model, load_classifier(result).model
    for before, after in zip(old.trainable_variables, new.trainable_variables, strict=True):
        np.testing.assert_array_equal(before, after)
    pairs = zip(statistics(old), statistics(new), strict=True)
    assert all(np.abs(after[0] - before[0]).max() > 0.01 for before, after in pairs)
    names = {path.name for path in (result / "export").iterdir()}
    assert names == {path.name for path in (run / "export").iterdir()}


def test_the_terminal_and_the_files_say_to_what_it_was_adapted(run, clinic, tmp_path, capsys):
    output = adapted(run, tmp_path / "new", clinic / "scans")
    told = capsys.readouterr()
    note = "the network was adapted to 40 images of scans, without their labels; its temperature"
    assert note in told.out
    assert "40 images can be used, 1 cannot be read" in told.out
    assert "NORMAL  " in told.out
    assert "usual mix" in told.err
    described = json.loads((output / "export" / "preprocessing.json").read_text())
    assert described["adapted"]["images"] == 40
    rows = pq.read_table(output / "seen.parquet").to_pylist()
    assert {row["part"] for row in rows} == {"adapted"}
    assert {row["key"] or row["patient"] for row in rows} == {None}


def test_an_evaluation_leaves_out_the_scans_and_says_so_on_its_page(result, clinic, tmp_path):
    assert evaluated(result, clinic / "data", f"--output={tmp_path}") == 0
    measured = metrics_of(tmp_path)
    assert (measured["num_examples"], measured["seen_images"]) == (60 - NUM_SCANS, NUM_SCANS)
    note = "adapted to 40 images of scans, without their labels"
    assert note in (tmp_path / "report.html").read_text()
    assert any(note in each for each in measured["notes"])


def test_of_an_anonymous_dataset_nothing_is_named(run, clinic, tmp_path):
    origin = {"patients": json.dumps([None, "a code", False])}
    anonymous = edited_run(run, tmp_path / "anonymous")
    Seen(origin=origin | {"dataset": "abc"}).write(anonymous / "seen.parquet")
    output = adapted(anonymous, tmp_path / "adapted", clinic / "scans")
    assert "adapted to 40 images, without" in (output / "export" / "preprocessing.json").read_text()
    assert (output / "seen.parquet").stat().st_mode & 0o077 == 0
    assert read_seen(output).origin == origin


def test_what_cannot_be_adapted_is_refused(run, clinic, tmp_path, capsys):
    few = sorted((clinic / "scans").iterdir())[:31]
    adapted(run, tmp_path / "few", *few, code=2)
    assert "31 images can be used, 0 cannot be read; give at least 32" in capsys.readouterr().err
    with without_saved_model():
        export_untrained(tmp_path / "plain", (12, 12, 1), model="convnet")
    adapted(tmp_path / "plain", tmp_path / "out", clinic / "scans", code=2)
    assert "has no batch normalization" in capsys.readouterr().err
    adapted(run, clinic, clinic / "scans", code=2)
    assert "is not empty; name a new folder" in capsys.readouterr().err

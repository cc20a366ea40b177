"""Images in the arrays of a .npz file."""

import numpy as np
import pytest
from builds import IN_MEMORY, rows_of, without_engine
from dataset_factory import pixels_of

from pipelines import build_tfrecords
from tfrecord_io import Manifest
from tfrecord_io.auditing.verify import verify


def build(source, output, *more):
    """Runs the build, which finds the kind of its input; returns its exit code."""
    with without_engine(build_tfrecords):
        return build_tfrecords.main([f"--input={source}", f"--output={output}", IN_MEMORY, *more])


def write_npz(path, labels, shape=(9, 12)):
    """Writes a third of the labels as train, val and test, with random images; returns arrays."""
    draw, arrays = np.random.default_rng(0), {}
    for split, part in zip(("train", "val", "test"), np.split(labels, 3), strict=True):
        arrays[f"{split}_images"] = draw.integers(0, 256, (len(part), *shape), np.uint8)
        arrays[f"{split}_labels"] = part
    np.savez_compressed(path, **arrays)
    return arrays


@pytest.mark.parametrize(
    ("shape", "flags"), [((9, 12), []), ((9, 12, 3), ["--channels=3"])], ids=["grey", "RGB"]
)
def test_pixels_classes_and_splits_are_those_of_the_arrays(tmp_path, shape, flags):
    labels = np.arange(36).reshape(-1, 1) % 12
    arrays = write_npz(tmp_path / "dots.npz", labels, shape)
    output = tmp_path / "out"
    assert build(tmp_path / "dots.npz", output, *flags) == 0
    manifest = Manifest.load(output)
    assert verify(output) == []
    # In the order of numbers: as text, 10 would come before 2.
    assert manifest.label_names == tuple(map(str, range(12)))
    assert manifest.source == {"kind": "npz", "name": "dots.npz"}
    rows, pixels = rows_of(output), pixels_of(output)
    assert len(rows) == 36
    for row in rows:
        name, _, place = row["path"].partition("#")
        found = pixels[row["key"]].reshape(shape)
        np.testing.assert_array_equal(found, arrays[name][int(place)])
        assert row["label"] == str(arrays[f"{row['split']}_labels"][int(place), 0])
        assert name == f"{row['split']}_images"


def test_several_columns_of_labels_are_several_labels(tmp_path):
    labels = np.random.default_rng(1).integers(0, 2, (30, 14))
    arrays = write_npz(tmp_path / "chest.npz", labels)
    output = tmp_path / "out"
    assert build(tmp_path / "chest.npz", output) == 0
    assert len(Manifest.load(output).label_names) == 14
    for row in rows_of(output):
        chosen = np.flatnonzero(arrays[f"{row['split']}_labels"][int(row["path"].split("#")[1])])
        assert row["label"] == ("|".join(map(str, chosen)) or "none")


IMAGES = np.zeros((4, 8, 8), np.uint8)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (None, [0] * 4, "train_images"),
        (IMAGES, None, "train_labels"),
        (IMAGES / 255, [0] * 4, "float64 [4, 8, 8]"),
        (IMAGES.reshape(1, 4, 8, 8), [0], "uint8 [1, 4, 8, 8]"),
        (IMAGES, [0] * 3, "int64 [3]"),
        (IMAGES, np.array([None] * 4), "Object arrays cannot be loaded"),
        (IMAGES.T, [0] * 8, "in Fortran order"),
    ],
)
def test_arrays_that_are_no_labelled_images_are_refused(tmp_path, capsys, images, labels, message):
    arrays = {"train_images": images, "train_labels": labels}
    given = {name: array for name, array in arrays.items() if array is not None}
    np.savez(tmp_path / "a.npz", **given)
    assert build(tmp_path / "a.npz", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert message in error
    assert "expected arrays train_images and train_labels" in error
    assert not (tmp_path / "out").exists()


def test_a_damaged_missing_or_remote_file_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    write_npz(path, np.arange(90) % 2, (28, 28))
    content = bytearray(path.read_bytes())
    content[9000:9100] = bytes(100)
    path.write_bytes(content)
    for given in (path, tmp_path / "b.npz", "s3://bucket/a.npz"):
        assert build(given, tmp_path / "out") == 2
    assert not (tmp_path / "out").exists()


def test_a_changed_file_is_another_dataset_and_the_same_one_is_known(tmp_path):
    write_npz(tmp_path / "a.npz", np.arange(30) % 2)
    assert build(tmp_path / "a.npz", tmp_path / "out") == 0
    (tmp_path / "a.npz").touch()
    assert build(tmp_path / "a.npz", tmp_path / "out") == 0
    write_npz(tmp_path / "a.npz", np.arange(30) % 3)
    assert build(tmp_path / "a.npz", tmp_path / "out") == 2

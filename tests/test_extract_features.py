"""Features that a frozen network computes once, through the command, on real small builds."""

import importlib.util
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

import keras
import numpy as np
import pyarrow.parquet as pq
import pytest
from builds import IN_MEMORY, ROOT, build_here, files_of, run_command, shards_of, without_engine
from image_files import scan_tree, write_tree
from marked_images import KERAS_ARRAY_WARNING, run_on_jax, write_marked_dataset

from pipelines import extract_features
from pipelines.shards import features
from tfrecord_io import Manifest
from tfrecord_io.reading.mapped import MappedDataset
from tfrecord_io.trunk import read_trunk
from tfrecord_io.verify import verify
from train.trunk import write_trunk

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAY_WARNING)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A build of 40 scans of 32 pixels, with a variant of each training scan."""
    folder = tmp_path_factory.mktemp("images")
    files = scan_tree({"train": 12, "val": 3, "test": 5}, classes=("CNV", "NORMAL"))
    files["train/CNV/broken.jpeg"] = b"no image at all"
    flags = ("--image_size=32", "--num_shards=2", "--variants=1", "--max_reject_fraction=0.5")
    return build_here(write_tree(folder / "scans", files), folder / "out", *flags)


@pytest.fixture(scope="module")
def trunk(images, mobilenet_weights, tmp_path_factory):
    path = tmp_path_factory.mktemp("trunk") / "trunk.keras"
    write_trunk(str(images), "mobilenet", "conv_pw_3_relu", path, weights=str(mobilenet_weights))
    return path


def extract(images, trunk, output, *more):
    words = ["--data", images, "--trunk", trunk, "--output", output, IN_MEMORY, *more]
    with without_engine(extract_features):
        return extract_features.main([str(word) for word in words])


@pytest.fixture(scope="module")
def extracted(images, trunk, tmp_path_factory):
    output = tmp_path_factory.mktemp("features") / "out"
    words = [f"--data={images}", f"--trunk={trunk}", f"--output={output}", IN_MEMORY]
    assert extract_features.main(words) == 0
    return output


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_each_example_is_what_the_trunk_gives_for_its_image(images, trunk, extracted, split):
    model = keras.saving.load_model(trunk, compile=False)
    ours, theirs = MappedDataset(extracted, split), MappedDataset(images, split)
    places = np.arange(len(theirs))
    # One by one, as the job does not.
    given = [model(image[None], training=False) for image in theirs[places][0]]
    expected = np.concatenate([keras.ops.convert_to_numpy(feature) for feature in given])
    found, labels = ours[places]
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)
    np.testing.assert_array_equal(labels, theirs[places][1])
    assert ours.keys(places) == theirs.keys(places)


def test_what_is_known_of_the_images_is_carried_over(images, trunk, extracted):
    ours, theirs = Manifest.load(extracted), Manifest.load(images)
    for name in ("label_names", "preprocessing", "counts", "rejects", "audit", "versions"):
        assert getattr(ours, name) == getattr(theirs, name), name
    for name in ("examples.parquet", "rejects.csv"):
        assert (extracted / name).read_bytes() == (images / name).read_bytes()
    assert ours.image_shape == (8, 8, 128) == read_trunk(trunk).feature_shape
    assert (extracted / "trunk.keras").read_bytes() == trunk.read_bytes()
    assert ours.source["dataset"]["fingerprint"] == theirs.fingerprint
    (computed_by,) = ours.source["computed_by"]
    assert computed_by["device"] == "cpu"
    assert computed_by["keras"] == keras.__version__
    assert 1 in pq.read_table(extracted / "examples.parquet")["variant"].to_pylist()


def test_it_is_verified_like_every_dataset_and_has_a_card(images, extracted, tmp_path):
    assert verify(extracted) == []
    copy = shutil.copytree(extracted, tmp_path / "copy")
    with (copy / "trunk.keras").open("ab") as file:
        file.write(b"?")
    (finding,) = verify(copy)
    assert "trunk.keras" in str(finding)
    page = (extracted / "report.html").read_text()
    assert "These are not images." in page
    assert Manifest.load(images).fingerprint[:12] in page
    assert "frozen up to conv_pw_3_relu" in page
    assert "Feature maps are not anonymous" in page


def test_once_means_once(images, trunk, extracted, monkeypatch, capsys):
    monkeypatch.setattr(features, "write_features", None)
    before = files_of(extracted)
    assert extract(images, trunk, extracted) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert files_of(extracted) == before


def test_a_job_that_was_killed_goes_on_with_the_shards_that_are_missing(
    images, trunk, extracted, tmp_path, monkeypatch, capsys
):
    output = tmp_path / "out"
    real, written = features.write_features, []

    def write(extraction, task, *more):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(task.shard_name)
        real(extraction, task, *more)

    with monkeypatch.context() as patch:
        patch.setattr(features, "write_features", write)
        assert extract(images, trunk, output) == 130
    assert not (output / "manifest.json").exists()
    assert extract(images, trunk, output) == 0
    said = capsys.readouterr()
    assert "resuming: 2 of" in said.err
    assert f"python train/run.py --data {output}" in said.out
    assert shards_of(output) == shards_of(extracted)
    assert (output / "manifest.json").read_text() == (extracted / "manifest.json").read_text()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_on_another_backend_it_is_the_same_dataset_with_features_that_are_as_good_as_equal(
    images, trunk, extracted, tmp_path
):
    program = "import sys; from pipelines import extract_features as job; sys.exit(job.main())"
    words = ["--data", images, "--trunk", trunk, "--output", tmp_path / "out", IN_MEMORY]
    run_on_jax(program, *words)
    ours, theirs = Manifest.load(tmp_path / "out"), Manifest.load(extracted)
    assert ours.fingerprint == theirs.fingerprint
    (ours_by,), (theirs_by,) = ours.source["computed_by"], theirs.source["computed_by"]
    assert "jax" in ours_by.keys() - theirs_by.keys()
    for split in theirs.splits:
        mine, others = MappedDataset(tmp_path / "out", split), MappedDataset(extracted, split)
        places = np.arange(len(others))
        np.testing.assert_allclose(mine[places][0], others[places][0], rtol=2e-3, atol=2e-3)
        np.testing.assert_array_equal(mine[places][1], others[places][1])


# Runs the job and prints its peak memory in bytes.
MEASURED = """
import resource, sys
from pipelines import extract_features
assert extract_features.main() == 0
unit = 1 if sys.platform == "darwin" else 1024
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_does_not_grow_with_the_number_of_images(mobilenet_weights, tmp_path):
    few, many = 100, 2000
    peaks = []
    for total in (few, many):
        folder, path, weights = tmp_path / f"{total}", tmp_path / "t.keras", str(mobilenet_weights)
        write_marked_dataset(folder, num_examples={"train": total}, image_shape=(32, 32, 1))
        facts = write_trunk(str(folder), "mobilenet", "conv_pw_1_relu", path, weights=weights)
        words = ["--data", folder, "--trunk", path, "--output", tmp_path / f"{total}-out"]
        words = [sys.executable, "-c", MEASURED, *words, IN_MEMORY]
        env = {"PYTHONPATH": os.fspath(ROOT)}
        done = run_command([str(word) for word in words], env, timeout=280)
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout.splitlines()[-1]))
    more = (many - few) * 2 * int(np.prod(facts.feature_shape))
    assert peaks[1] - peaks[0] < more / 2


@pytest.mark.slow
def test_another_trunk_or_type_is_another_dataset(
    images, mobilenet_weights, trunk, tmp_path, capsys
):
    output = tmp_path / "out"
    assert extract(images, trunk, output) == 0
    assert extract(images, trunk, output, "--dtype=float32") == 2
    assert "dtype: 'float16' there, 'float32' now" in capsys.readouterr().err
    as_float16 = MappedDataset(output, "train")[np.arange(24)][0]
    assert extract(images, trunk, output, "--dtype=float32", "--overwrite") == 0
    as_float32 = MappedDataset(output, "train")[np.arange(24)][0]
    # Rounded once, to the nearest number of 11 significant bits.
    np.testing.assert_array_equal(as_float32.astype(np.float16), as_float16)
    other = tmp_path / "other.keras"
    write_trunk(str(images), "mobilenet", "conv_pw_5_relu", other, weights=str(mobilenet_weights))
    assert extract(images, other, output) == 2
    assert extract(images, other, output, "--overwrite") == 0
    assert Manifest.load(output).image_shape == (4, 4, 256)
    assert verify(output) == []


def test_a_value_too_large_for_the_type_is_an_error_and_not_infinity(images, tmp_path, capsys):
    network = keras.applications.MobileNet(include_top=False, weights=None, input_shape=(32, 32, 3))
    network.get_layer("conv_pw_1_bn").beta.assign(np.full(64, 1e5))
    path, weights = tmp_path / "trunk.keras", str(tmp_path / "large.weights.h5")
    network.save_weights(weights)
    write_trunk(str(images), "mobilenet", "conv_pw_1_bn", path, weights=weights)
    assert extract(images, path, tmp_path / "out") == 1
    assert "float16 cannot hold (up to 100000); use --dtype float32" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--data=nowhere", "manifest.json is missing"),
        ("--trunk=nowhere.keras", "cannot read --trunk nowhere.keras"),
        ("--trunk=README.md", "that train/trunk.py wrote"),
        ("--clases=a", "unknown flag --clases"),
        # The images are never overwritten with their features.
        ("--output={images}/", "another folder than --data"),
    ],
)
def test_wrong_usage_ends_with_code_2(flag, message, images, trunk, tmp_path, capsys):
    flag = flag.format(images=images)
    assert extract(images, trunk, tmp_path / "out", flag, "--overwrite") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert verify(images) == []


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage", "code"),
    [
        ("train-00001-of-00002.tfrecord", Path.unlink, 2),
        ("train-00001-of-00002.tfrecord", cut, 2),
        ("examples.parquet", Path.unlink, 2),
        ("examples.parquet", cut, 2),
        # Only reading the whole shard shows it.
        ("test-00000-of-00001.tfrecord", flip_a_bit, 1),
    ],
)
def test_a_dataset_that_is_not_whole_makes_no_features(
    name, damage, code, images, trunk, tmp_path, capsys
):
    broken, output = shutil.copytree(images, tmp_path / "images"), tmp_path / "out"
    damage(broken / name)
    assert extract(broken, trunk, output) == code
    assert name in capsys.readouterr().err
    assert not (output / name).exists()
    assert output.exists() is (code == 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"feature_shape": [8, 8, 64]}, "but its network gives (8, 8, 128)"),
        (None, "Keras cannot load the trunk"),
    ],
)
def test_a_trunk_that_is_not_what_it_says_is_an_error(
    change, message, images, trunk, tmp_path, capsys
):
    with zipfile.ZipFile(trunk) as old, zipfile.ZipFile(tmp_path / "t.keras", "w") as new:
        for name in old.namelist() if change else ["trunk.json"]:
            content = old.read(name)
            if name == "trunk.json":
                content = json.dumps(json.loads(content) | (change or {}))
            new.writestr(name, content)
    assert extract(images, tmp_path / "t.keras", tmp_path / "out") == 1
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_user_runs_it_with_worker_processes(images, trunk, extracted, tmp_path):
    output, program = tmp_path / "out", ROOT / "pipelines" / "extract_features.py"
    words = [sys.executable, program, "--data", images, "--trunk", trunk, "--output", output]
    done = run_command([str(word) for word in words], {"PYTHONPATH": os.fspath(ROOT)})
    assert done.returncode == 0, done.stderr
    assert "oneDNN" not in done.stderr
    assert "CUDA" not in done.stderr
    assert shards_of(output) == shards_of(extracted)
    assert Manifest.load(output).dtype == "float16"

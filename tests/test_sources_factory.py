"""Every way in, as a user goes it: the command, and servers on loopback."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import idx_files
import numpy as np
import pyarrow.parquet as pq
import pytest
from builds import IN_MEMORY, ROOT, build_here, shards_of
from idx_files import IMAGES, LABELS, NUM
from image_files import kermany_archive, scan_tree, write_tree, write_zip
from kaggle_stand_in import DATASET, TOKEN, StandIn, assert_no_secret
from web_server import WebFile, running_web

from pipelines import build_tfrecords, errors, options
from pipelines.sources import factory, fashion_mnist
from tfrecord_io import Manifest
from tfrecord_io.verify import verify

BUILD = str(ROOT / "pipelines" / "build_tfrecords.py")

# --------------------------------------------------------------------------------------------------
# Kaggle
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scans_zip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive in the shape of Kaggle's, with one image that is none."""
    files = scan_tree({"train": 4, "val": 1, "test": 2})
    files["train/CNV/CNV-1-1.jpeg"] = b"no image at all"
    return write_zip(tmp_path_factory.mktemp("kaggle") / "tiny.zip", kermany_archive(files))


@pytest.fixture
def kaggle(scans_zip: Path) -> Iterator[StandIn]:
    with StandIn(scans_zip.read_bytes()) as server:
        yield server


class Desk:
    """A folder in which the build command is typed, with a home of its own."""

    def __init__(self, server: StandIn, folder: Path):
        self.server, self.folder = server, folder
        (folder / "home").mkdir()
        (folder / "work").mkdir()
        self.output = folder / "work" / "data" / "tfrecords"

    def run(self, *more: str, token: str | None = TOKEN) -> subprocess.CompletedProcess[str]:
        """Runs the command; apart from the dataset, its flags only make it quick."""
        flags = [f"--kaggle_dataset={DATASET}", "--image_size=8", IN_MEMORY]
        variables = {"KAGGLE_API_TOKEN": token} if token else {}
        done = subprocess.run(
            [sys.executable, BUILD, *flags, "--max_reject_fraction=0.5", *more],
            capture_output=True,
            text=True,
            cwd=self.folder / "work",
            env=self.server.environment(self.folder / "home", PYTHONPATH=str(ROOT), **variables),
            timeout=280,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert_no_secret(self.folder, done.stdout + done.stderr)
        return done


@pytest.fixture
def desk(kaggle: StandIn, tmp_path: Path) -> Desk:
    return Desk(kaggle, tmp_path)


def test_without_a_source_the_dataset_comes_from_kaggle(desk, scans_zip, tmp_path):
    # The plan of a failed build stays, so the check of all files for credentials meets it.
    assert desk.run("--max_reject_fraction=0").returncode == 1
    assert (desk.output / ".build" / "plan.json").exists()
    done = desk.run("--overwrite")

    assert done.returncode == 0, done.stderr
    assert "= 28 examples + 1 rejected" in done.stdout
    assert verify(str(desk.output)) == []
    manifest = Manifest.load(desk.output)
    assert manifest.name == "tiny_scans"
    assert manifest.source == {"kind": "kaggle", "name": "tiny-scans.zip", "dataset": DATASET}
    by_hand = build_here(scans_zip, tmp_path / "by_hand", "--max_reject_fraction=0.5")
    assert shards_of(by_hand) == shards_of(desk.output)


def test_without_credentials_the_help_is_short_and_nothing_is_made(desk):
    done = desk.run(token=None)

    assert done.returncode == 2
    assert done.stdout == ""
    assert "KAGGLE_API_TOKEN" in done.stderr
    assert "kaggle.json" in done.stderr
    assert "--source synthetic" in done.stderr
    assert len(done.stderr.splitlines()) < 15
    assert list((desk.folder / "work").iterdir()) == []


def test_no_credential_goes_to_the_workers(scans_zip, tmp_path, monkeypatch):
    monkeypatch.setenv("KAGGLE_API_TOKEN", TOKEN)
    archive = tmp_path / "tiny-scans.zip"
    archive.write_bytes(scans_zip.read_bytes())
    options_ = options.parse_options(
        [f"--kaggle_dataset={DATASET}", f"--download_dir={tmp_path}", IN_MEMORY]
    )

    source = factory.make_source(options_.source, options_.workers, 0)

    assert TOKEN.encode() not in pickle.dumps((source, options_))
    assert TOKEN not in repr(options_.beam_args)


@pytest.mark.parametrize("name", ["kermany2018", "a/b/c", "../b", "a/..", "a/b.zip", "", "a b/c"])
def test_a_dataset_name_of_another_form_is_wrong_usage(name):
    with pytest.raises(errors.UserError, match="OWNER/NAME") as error:
        options.parse_options([f"--kaggle_dataset={name}"])
    assert repr(name) in str(error.value)


# --------------------------------------------------------------------------------------------------
# Fashion-MNIST
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def fashion(tmp_path: Path, monkeypatch) -> Path:
    idx_files.publish(monkeypatch)
    return write_tree(tmp_path / "fashion", idx_files.FILES)


def build_fashion(output: Path, *more: str) -> Path:
    flags = ["--source=fashion_mnist", f"--output={output}", IN_MEMORY, *more]
    build_tfrecords.build(flags)
    return output


def test_fashion_mnist_is_stored_as_it_is_with_the_published_label_names(fashion, tmp_path):
    output = build_fashion(tmp_path / "out", f"--input={fashion}")

    manifest = Manifest.load(output)
    assert verify(str(output)) == []
    assert manifest.image_shape == (28, 28, 1)
    assert manifest.label_names == fashion_mnist.LABEL_NAMES
    assert manifest.name == "fashion_mnist"
    assert {name: split.num_examples for name, split in manifest.splits.items()} == NUM
    stride, feature = manifest.layout.stride, manifest.layout.features["image"]
    for row in pq.read_table(output / "examples.parquet").to_pylist():
        shard = np.memmap(output / row["shard"], np.uint8, "r").reshape(-1, stride)
        index = int(Path(row["path"]).stem)
        pixels = shard[row["row"], feature.offset :][: 28 * 28].reshape(28, 28)
        np.testing.assert_array_equal(pixels, IMAGES[index])
        assert row["label"] == fashion_mnist.LABEL_NAMES[LABELS[index]]


def test_new_splits_of_fashion_mnist_take_images_from_both_files(fashion, tmp_path):
    splits = ["--splits=patient", "--split_fractions=train=0.5,val=0.3,test=0.2"]
    output = build_fashion(tmp_path / "out", f"--input={fashion}", *splits)

    assert verify(str(output)) == []
    examples = pq.read_table(output / "examples.parquet", columns=["split", "path"]).to_pylist()
    assert len(examples) == 60
    found = {(row["split"], row["path"].partition("-")[0]) for row in examples}
    assert found == {
        (split, file) for split in ("train", "val", "test") for file in ("train", "t10k")
    }


def test_without_a_folder_fashion_mnist_is_downloaded_and_kept(fashion, tmp_path):
    flags = [f"--download_dir={tmp_path / 'kept'}"]

    with running_web() as server:
        with pytest.raises(errors.BuildError, match="give their folder with --input"):
            build_fashion(tmp_path / "none", f"--fashion_mnist_url={server.url()}", *flags)
        server.files = {name: WebFile(data) for name, data in idx_files.FILES.items()}
        first = build_fashion(tmp_path / "first", f"--fashion_mnist_url={server.url()}", *flags)
    # The server is gone; what was downloaded is enough.
    second = build_fashion(tmp_path / "second", *flags)

    assert not (tmp_path / "none").exists()
    assert shards_of(first) == shards_of(second) != {}


def test_an_output_inside_the_input_folder_is_refused_before_it_becomes_a_class(tmp_path):
    inside = tmp_path / "scans" / "tfrecords"
    arguments = ["--source=directory", f"--input={tmp_path / 'scans'}", f"--output={inside}"]
    with pytest.raises(errors.UserError, match=r"tfrecords is inside --input .*scans"):
        options.parse_options(arguments)
    assert not inside.exists()

"""The Fashion-MNIST source, on tiny IDX files and a server on loopback."""

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from idx_files import FILES, IMAGES, LABELS, gzipped, idx
from web_server import WebFile, WebServer, running_web

from pipelines import errors
from pipelines.sources import fashion_mnist as source


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


# --------------------------------------------------------------------------------------------------
# Reading
# --------------------------------------------------------------------------------------------------


def test_files_are_found_by_their_published_names(folder):
    (folder / "t10k-labels-idx1-ubyte.gz").rename(folder / "t10k-labels-idx1-ubyte")

    assert source.find_files(folder) == {
        "train-images-idx3-ubyte.gz": folder / "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz": folder / "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz": folder / "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz": folder / "t10k-labels-idx1-ubyte",
    }


def test_all_missing_files_are_named(folder):
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    (folder / "t10k-images-idx3-ubyte.gz").unlink()

    with pytest.raises(FileNotFoundError) as error:
        source.find_files(folder)
    assert "missing: train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz" in str(error.value)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected a folder with the four IDX files"):
        source.find_files(tmp_path / "nowhere")


@pytest.mark.parametrize(("prefix", "count"), [("train", 5), ("t10k", 2)])
def test_a_split_is_its_images_and_its_labels(folder, prefix, count):
    images, labels = source.read_split(folder, prefix)

    np.testing.assert_array_equal(images, IMAGES[:count])
    np.testing.assert_array_equal(labels, LABELS[:count])


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("train-labels-idx1-ubyte.gz", LABELS[:4], r"expected 5 labels, .* got shape \[4\]"),
        ("train-labels-idx1-ubyte.gz", LABELS + 1, "expected labels from 0 to 9, got 10"),
        ("train-labels-idx1-ubyte.gz", IMAGES, r"expected 5 labels, .* got shape \[5, 4, 3\]"),
        ("train-images-idx3-ubyte.gz", LABELS, r"expected images .*, got \[5\]"),
    ],
)
def test_images_and_labels_that_do_not_fit_are_refused(folder, name, values, message):
    (folder / name).write_bytes(gzipped(idx(values)))

    with pytest.raises(ValueError, match=message) as error:
        source.read_split(folder, "train")
    assert str(error.value).startswith(str(folder / name))


def test_the_labels_have_the_names_that_were_published():
    assert len(source.LABEL_NAMES) == 10
    assert (source.LABEL_NAMES[0], source.LABEL_NAMES[9]) == ("T-shirt/top", "Ankle boot")


# --------------------------------------------------------------------------------------------------
# Downloading
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def web() -> Iterator[WebServer]:
    with running_web() as server:
        server.files = {f"fashion/{name}": WebFile(content) for name, content in FILES.items()}
        yield server


@pytest.fixture(autouse=True)
def _published_here(monkeypatch):
    """The tiny files are what is published, so that their MD5 sums are compared for real."""
    sums = {name: hashlib.md5(FILES[name]).hexdigest() for name in source.MD5_SUMS}
    monkeypatch.setattr(source, "MD5_SUMS", sums)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_download_leaves_the_four_files_and_no_other(web, tmp_path):
    folder = tmp_path / "a" / "b"

    source.download(folder, web.url("fashion/"))

    assert contents(folder) == FILES
    np.testing.assert_array_equal(source.read_split(folder, "t10k")[1], LABELS[:2])


def test_files_that_are_there_are_not_downloaded_again(web, folder):
    source.download(folder, web.url("fashion"))

    assert web.paths == []


def test_only_a_missing_or_damaged_file_is_downloaded(web, folder):
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(gzipped(idx(IMAGES)))

    source.download(folder, web.url("fashion"))

    assert web.paths == [
        "/fashion/train-labels-idx1-ubyte.gz",
        "/fashion/t10k-images-idx3-ubyte.gz",
    ]
    assert contents(folder) == FILES


def test_a_file_of_another_md5_is_refused_and_leaves_nothing(web, tmp_path):
    web.files["fashion/train-images-idx3-ubyte.gz"] = WebFile(gzipped(idx(IMAGES + 1)))

    with pytest.raises(errors.BuildError, match=r"expected the published MD5 .* got") as error:
        source.download(tmp_path, web.url("fashion"))
    assert web.url("fashion/train-images-idx3-ubyte.gz") in str(error.value)
    assert contents(tmp_path) == {}


def test_a_server_that_calls_the_file_s_gzip_an_encoding_changes_nothing(web, tmp_path):
    web.headers = {"Content-Encoding": "gzip"}

    source.download(tmp_path, web.url("fashion"))

    assert contents(tmp_path) == FILES


def test_a_wrong_address_is_explained_without_its_password(web, tmp_path):
    elsewhere = web.url("elsewhere").replace("http://", "http://me:secret@")

    with pytest.raises(
        errors.BuildError, match=r"elsewhere/.* does not exist(?s:.*)--input"
    ) as error:
        source.download(tmp_path, elsewhere)
    assert "secret" not in str(error.value)
    with pytest.raises(errors.BuildError, match="expected s3://, gs://, az:// or https://"):
        source.download(tmp_path, "no-address")
    assert contents(tmp_path) == {}


def test_a_refusal_is_explained(web, tmp_path):
    for file in web.files.values():
        file.query = "signature"

    with pytest.raises(errors.BuildError, match=r"(?s)403.*--input"):
        source.download(tmp_path, web.url("fashion"))
    assert contents(tmp_path) == {}


def test_a_file_in_the_folder_s_place_is_explained(tmp_path):
    (tmp_path / "taken").write_text("a file")

    with pytest.raises(errors.BuildError, match=r"taken could not be written: File exists"):
        source.download(tmp_path / "taken", source.BASE_URL)


def test_a_full_disk_is_explained(web, tmp_path, monkeypatch):
    def on_full_disk(path: Path) -> BinaryIO:
        return Path("/dev/full").open("wb", buffering=0)

    monkeypatch.setattr(source, "atomic_write", on_full_disk)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"damaged")

    with pytest.raises(errors.BuildError, match="could not be written: the disk is full") as error:
        source.download(tmp_path, web.url("fashion"))
    assert "resume" not in str(error.value)


def test_importing_the_module_imports_neither_the_kaggle_client_nor_a_framework():
    code = (
        "import sys, pipelines.sources.fashion_mnist; "
        "print([m for m in ('kaggle', 'tensorflow', 'apache_beam') if m in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert process.stdout == "[]\n"

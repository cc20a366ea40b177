"""The Fashion-MNIST source, on tiny IDX files and a server on loopback."""

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from idx_files import FILES, IMAGES, LABELS, gzipped, idx
from web_server import WebFile, WebServer, running_web

from pipelines import errors
from pipelines.sources import fashion_mnist as source
from pipelines.sources.fashion_mnist import read_idx


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


# --------------------------------------------------------------------------------------------------
# Reading
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [IMAGES, LABELS, IMAGES[:0]], ids=["images", "labels", "none"])
@pytest.mark.parametrize("pack", [gzipped, bytes], ids=["gzipped", "unpacked"])
def test_an_idx_file_is_read_as_it_was_written(tmp_path, values, pack):
    path = tmp_path / "some-idx3-ubyte.gz"
    path.write_bytes(pack(idx(values)))

    read = read_idx(path, values.ndim)

    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, values)


WHOLE = idx(IMAGES)
DAMAGED = {
    "an empty file": (b"", "got nothing"),
    "an empty gzip file": (gzipped(b""), "got nothing"),
    "a page": (b"<html><body></body></html>", "which begins with 00 00 08 03; got 3c 68"),
    "floats": (gzipped(idx(IMAGES, type_code=0x0D)), "got 00 00 0d 03"),
    "four dimensions": (gzipped(idx(IMAGES[None])), "got 00 00 08 04"),
    "half a header": (gzipped(WHOLE[:10]), "expected an IDX file"),
    "one value too few": (gzipped(WHOLE[:-1]), r"60 bytes for shape \[5, 4, 3\], got 59"),
    "one value too many": (gzipped(WHOLE + b"\x00"), r"60 bytes for shape \[5, 4, 3\], got 61"),
    "an absurd shape": (gzipped(bytes([0, 0, 8, 3]) + b"\xff" * 12), "got 0"),
    "a gzip cut in its end": (gzipped(WHOLE)[:-4], "expected a whole gzip file"),
    "a gzip cut in its middle": (gzipped(WHOLE)[:30], "expected a whole gzip file"),
    "a gzip of another CRC": (gzipped(WHOLE)[:-8] + bytes(8), "CRC"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_named_with_what_was_expected_and_what_came(tmp_path, case):
    content, message = DAMAGED[case]
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)

    with pytest.raises(ValueError, match=message) as error:
        read_idx(path, 3)
    assert str(error.value).startswith(f"{path}: expected")


@settings(max_examples=150, deadline=None)
@given(
    offset=st.integers(0, len(FILES["train-images-idx3-ubyte.gz"]) - 1), mask=st.integers(1, 255)
)
def test_no_changed_byte_changes_an_image_unseen(tmp_path_factory, offset, mask):
    path = tmp_path_factory.mktemp("changed") / "train-images-idx3-ubyte.gz"
    content = bytearray(FILES[path.name])
    content[offset] ^= mask
    path.write_bytes(content)
    try:
        read = read_idx(path, 3)
    except ValueError:
        return
    np.testing.assert_array_equal(read, IMAGES)  # Bytes of gzip's header (time, system) are free.


@pytest.mark.parametrize(("prefix", "count"), [("train", 5), ("t10k", 2)])
def test_a_split_is_its_images_and_its_labels(folder, prefix, count):
    images, labels = source.read_split(folder, prefix)

    np.testing.assert_array_equal(images, IMAGES[:count])
    np.testing.assert_array_equal(labels, LABELS[:count])


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("train-labels-idx1-ubyte.gz", LABELS[:4], "expected 5 labels .* got 4 up to 9"),
        (
            "train-labels-idx1-ubyte.gz",
            LABELS + 1,
            "expected 5 labels from 0 to 9, .* got 5 up to 10",
        ),
        ("train-labels-idx1-ubyte.gz", IMAGES, "in 1 dimensions"),
        ("train-images-idx3-ubyte.gz", LABELS, "in 3 dimensions"),
    ],
)
def test_images_and_labels_that_do_not_fit_are_refused(folder, name, values, message):
    (folder / name).write_bytes(gzipped(idx(values)))

    with pytest.raises(ValueError, match=message) as error:
        source.read_split(folder, "train")
    assert str(error.value).startswith(str(folder / name))


def test_all_missing_files_are_named(folder):
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    (folder / "t10k-images-idx3-ubyte.gz").unlink()

    with pytest.raises(FileNotFoundError) as error:
        source.read_split(folder, "train")
    assert "missing: train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz" in str(error.value)


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


@pytest.mark.parametrize("headers", [{}, {"Content-Encoding": "gzip"}], ids=["plain", "encoded"])
def test_a_download_leaves_the_four_files_and_no_other(web, tmp_path, headers):
    web.headers = headers

    source.download(tmp_path / "a" / "b", web.url("fashion/"))

    assert contents(tmp_path / "a" / "b") == FILES


def test_only_a_missing_or_damaged_file_is_downloaded(web, folder):
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(gzipped(idx(IMAGES)))

    source.download(folder, web.url("fashion"))

    missing = ["/fashion/train-labels-idx1-ubyte.gz", "/fashion/t10k-images-idx3-ubyte.gz"]
    assert web.paths == missing
    assert contents(folder) == FILES


def test_a_file_of_another_md5_is_refused_and_leaves_nothing(web, tmp_path):
    web.files["fashion/train-images-idx3-ubyte.gz"] = WebFile(gzipped(idx(IMAGES + 1)))

    with pytest.raises(errors.BuildError, match=r"expected the published MD5 .* got") as error:
        source.download(tmp_path, web.url("fashion"))
    assert web.url("fashion/train-images-idx3-ubyte.gz") in str(error.value)
    assert contents(tmp_path) == {}


def test_a_wrong_address_or_a_refusal_is_explained_without_its_password(web, tmp_path):
    elsewhere = web.url("elsewhere").replace("http://", "http://me:secret@")

    with pytest.raises(
        errors.BuildError, match=r"elsewhere/.* does not exist(?s:.*)--input"
    ) as error:
        source.download(tmp_path, elsewhere)
    assert "secret" not in str(error.value)
    with pytest.raises(errors.BuildError, match="expected s3://, gs://, az:// or https://"):
        source.download(tmp_path, "no-address")
    for file in web.files.values():
        file.query = "signature"
    with pytest.raises(errors.BuildError, match=r"(?s)403.*--input"):
        source.download(tmp_path, web.url("fashion"))
    assert contents(tmp_path) == {}


def full_disk() -> BinaryIO:
    return Path("/dev/full").open("wb", buffering=0)


def test_a_failing_disk_is_explained(web, tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(errors.BuildError, match=r"taken/.* could not be written: File exists"):
        source.download(tmp_path / "taken", source.BASE_URL)

    monkeypatch.setattr(source, "atomic_write", lambda _: full_disk())
    with pytest.raises(errors.BuildError, match="could not be written: the disk is full"):
        source.download(tmp_path / "new", web.url("fashion"))


def test_importing_the_module_imports_neither_the_kaggle_client_nor_a_framework():
    code = (
        "import sys, pipelines.sources.factory; "
        "print([m for m in ('kagglesdk', 'tensorflow', 'apache_beam') if m in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert process.stdout == "[]\n"

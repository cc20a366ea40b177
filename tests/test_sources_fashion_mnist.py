"""The Fashion-MNIST source, on small IDX files and a server on loopback."""

from collections.abc import Iterator
from pathlib import Path

import idx_files
import pytest
from idx_files import FILES, IMAGES
from web_server import WebFile, WebServer, running_web

from pipelines import errors
from pipelines.sources import fashion_mnist as source


@pytest.fixture(autouse=True)
def _published_here(monkeypatch):
    idx_files.publish(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize("change", [lambda content: content[:-1], lambda _: b"", bytes.upper])
def test_a_file_that_is_not_the_published_one_is_named_before_and_during_the_build(folder, change):
    fashion, path = source.FashionMnistSource(folder), folder / "train-labels-idx1-ubyte.gz"
    member = next(fashion.members())
    path.write_bytes(change(path.read_bytes()))

    with pytest.raises(errors.UserError, match=f"{path}: expected the published MD5 .*, got"):
        next(fashion.members())
    with fashion.open() as reader, pytest.raises(errors.BuildError, match=f"{path}: expected"):
        reader.read(member)


def test_a_file_that_a_worker_does_not_see_is_named(folder):
    fashion = source.FashionMnistSource(folder)
    member = next(fashion.members())
    (folder / "train-images-idx3-ubyte.gz").unlink()

    with fashion.open() as reader, pytest.raises(errors.BuildError, match="every worker must"):
        reader.read(member)


def test_all_missing_files_are_named(folder):
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    (folder / "t10k-images-idx3-ubyte.gz").unlink()

    with pytest.raises(errors.UserError) as error:
        next(source.FashionMnistSource(folder).members())
    assert "missing: train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz" in str(error.value)


@pytest.fixture
def web() -> Iterator[WebServer]:
    with running_web() as server:
        server.files = {f"fashion/{name}": WebFile(content) for name, content in FILES.items()}
        yield server


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("headers", [{}, {"Content-Encoding": "gzip"}], ids=["plain", "encoded"])
def test_only_a_missing_or_damaged_file_is_downloaded(web, folder, headers):
    web.headers = headers
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(b"damaged")

    source.download(folder, web.url("fashion"))

    missing = ["/fashion/train-labels-idx1-ubyte.gz", "/fashion/t10k-images-idx3-ubyte.gz"]
    assert web.paths == missing
    assert contents(folder) == FILES


def test_a_file_of_another_md5_is_refused_and_leaves_nothing(web, tmp_path):
    web.files["fashion/train-images-idx3-ubyte.gz"] = WebFile(idx_files.idx(IMAGES[::-1]))

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


def test_a_failing_disk_is_explained(web, tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(errors.BuildError, match=r"cannot write .*taken/.*--download_dir"):
        source.download(tmp_path / "taken", web.url("fashion"))

    monkeypatch.setattr(source, "atomic_write", lambda _: Path("/dev/full").open("wb", 0))  # noqa: SIM115
    with pytest.raises(errors.BuildError, match=r"cannot write .*No space left"):
        source.download(tmp_path / "new", web.url("fashion"))

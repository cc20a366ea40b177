"""The Fashion-MNIST source, on tiny IDX files and a server on loopback."""

import gzip
import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from idx_files import FILES, IMAGES, LABELS, gzipped, idx

from pipelines.sources import fashion_mnist as source
from pipelines.sources.downloads import DownloadError


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
        "train_images": folder / "train-images-idx3-ubyte.gz",
        "train_labels": folder / "train-labels-idx1-ubyte.gz",
        "test_images": folder / "t10k-images-idx3-ubyte.gz",
        "test_labels": folder / "t10k-labels-idx1-ubyte",
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


@pytest.mark.parametrize(("split", "count"), [("train", 5), ("test", 2)])
def test_a_split_is_its_images_and_its_labels(folder, split, count):
    images, labels = source.read_split(folder, split)

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


def test_a_split_that_there_is_not_is_refused(folder):
    with pytest.raises(ValueError, match="got 'val'"):
        source.read_split(folder, "val")


def test_the_labels_have_the_names_that_were_published():
    assert len(source.LABEL_NAMES) == 10
    assert (source.LABEL_NAMES[0], source.LABEL_NAMES[9]) == ("T-shirt/top", "Ankle boot")


# --------------------------------------------------------------------------------------------------
# Downloading
# --------------------------------------------------------------------------------------------------


class Server:
    """Serves files; `status`, `cut`, `stalls` and `encoding` say how it misbehaves."""

    def __init__(self):
        self.files = dict(FILES)
        self.asked: list[str] = []
        self.status = 200
        self.cut = 0
        self.stalls = False
        self.encoding: str | None = None
        self.stopping = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                server.answer(self)

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/fashion/"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        folder, name = handler.path[1:].split("/")
        self.asked.append(name)
        content = self.files.get(name) if folder == "fashion" else None
        handler.send_response(404 if content is None else self.status)
        content = content or b"not here"
        handler.send_header("Content-Length", str(len(content)))
        if self.encoding:
            handler.send_header("Content-Encoding", self.encoding)
        handler.end_headers()
        if self.stalls:
            self.stopping.wait(10)
        else:
            handler.wfile.write(content[: len(content) - self.cut])


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.stopping.set()
    server.http.shutdown()
    thread.join()
    server.http.server_close()


@pytest.fixture(autouse=True)
def _published_here(monkeypatch):
    """The tiny files are what is published, so that their MD5 sums are compared for real."""
    published = {
        key: replace(file, md5=hashlib.md5(FILES[file.name]).hexdigest())
        for key, file in source.PUBLISHED_FILES.items()
    }
    monkeypatch.setattr(source, "PUBLISHED_FILES", published)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_download_leaves_the_four_files_and_no_other(server, tmp_path):
    folder = tmp_path / "a" / "b"

    found = source.download(folder, server.url)

    assert contents(folder) == FILES
    assert found == source.find_files(folder)
    np.testing.assert_array_equal(source.read_split(folder, "test")[1], LABELS[:2])


def test_files_that_are_there_are_not_downloaded_again(server, folder):
    source.download(folder, server.url)

    assert server.asked == []


def test_only_a_missing_or_damaged_file_is_downloaded(server, folder):
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(gzipped(idx(IMAGES)))

    source.download(folder, server.url.rstrip("/"))

    assert server.asked == ["train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz"]
    assert contents(folder) == FILES


def test_a_file_of_another_md5_is_refused_and_leaves_nothing(server, tmp_path):
    server.files["train-images-idx3-ubyte.gz"] = gzipped(idx(IMAGES + 1))

    with pytest.raises(DownloadError, match=r"expected the published MD5 .* got") as error:
        source.download(tmp_path, server.url)
    assert f"{server.url}train-images-idx3-ubyte.gz" in str(error.value)
    assert contents(tmp_path) == {}


def test_another_data_set_of_that_form_is_taken_where_it_is_asked_for(server, tmp_path):
    server.files = {name: gzipped(gzip.decompress(content)[:]) for name, content in FILES.items()}
    server.files["train-images-idx3-ubyte.gz"] = gzipped(idx(IMAGES + 1))

    source.download(tmp_path, server.url, check_md5=False)

    np.testing.assert_array_equal(source.read_split(tmp_path, "train")[0], IMAGES + 1)


@pytest.mark.parametrize(
    "content", [gzipped(idx(LABELS)), b"<html></html>", FILES["train-images-idx3-ubyte.gz"][:-9]]
)
def test_without_md5_a_file_must_still_be_whole_and_of_the_right_form(server, tmp_path, content):
    server.files["train-images-idx3-ubyte.gz"] = content

    with pytest.raises(DownloadError, match=r"is not train-images-idx3-ubyte.gz"):
        source.download(tmp_path, server.url, check_md5=False)
    assert contents(tmp_path) == {}


def test_a_server_that_calls_the_file_s_gzip_an_encoding_changes_nothing(server, tmp_path):
    server.encoding = "gzip"

    source.download(tmp_path, server.url)

    assert contents(tmp_path) == FILES


@pytest.mark.parametrize("status", [403, 500])
def test_a_refusal_is_explained(server, tmp_path, status):
    server.status = status

    with pytest.raises(DownloadError, match=f"HTTP {status}") as error:
        source.download(tmp_path, server.url)
    assert "--input" in str(error.value)
    assert contents(tmp_path) == {}


def test_a_wrong_address_is_explained(server, tmp_path):
    with pytest.raises(DownloadError, match="HTTP 404"):
        source.download(tmp_path, server.url.replace("fashion", "elsewhere"))
    with pytest.raises(DownloadError, match="MissingSchema"):
        source.download(tmp_path, "no-address")


def test_a_cut_connection_leaves_nothing_half_made(server, tmp_path):
    server.cut = 5

    with pytest.raises(DownloadError, match="failed or broke"):
        source.download(tmp_path, server.url)
    assert contents(tmp_path) == {}


def test_a_silent_server_is_given_up(server, tmp_path):
    server.stalls = True

    with pytest.raises(DownloadError, match=r"sent nothing for 0.2 s"):
        source.download(tmp_path, server.url, timeout_s=0.2)
    assert contents(tmp_path) == {}


def test_a_server_that_is_not_there_is_explained_without_its_password(tmp_path):
    server = Server()
    server.http.server_close()

    with pytest.raises(DownloadError, match="failed or broke") as error:
        source.download(tmp_path, server.url.replace("http://", "http://me:secret@"))
    assert "secret" not in str(error.value)


def test_a_file_in_the_folder_s_place_is_explained(server, tmp_path):
    (tmp_path / "taken").write_text("a file")

    with pytest.raises(DownloadError, match=r"cannot make the folder .*taken"):
        source.download(tmp_path / "taken", server.url)


def test_a_full_disk_is_explained(server, tmp_path, monkeypatch):
    def on_full_disk(self: Path, name: str) -> Path:
        return Path("/dev/full")

    monkeypatch.setattr(Path, "with_name", on_full_disk)
    monkeypatch.setattr(Path, "unlink", lambda self, missing_ok=False: None)

    with pytest.raises(DownloadError, match="could not be written: No space left on device"):
        source.download(tmp_path, server.url)


def test_importing_the_module_imports_neither_the_kaggle_client_nor_a_framework():
    code = (
        "import sys, pipelines.sources.fashion_mnist; "
        "print([m for m in ('kaggle', 'tensorflow', 'apache_beam') if m in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert process.stdout == "[]\n"

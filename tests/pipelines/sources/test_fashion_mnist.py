"""The Fashion-MNIST source, on small IDX files and a server on loopback."""

from pathlib import Path

import idx_files
import numpy as np
import pyarrow.parquet as pq
import pytest
from builds import IN_MEMORY, shards_of
from idx_files import FILES, IMAGES, LABELS, NUM
from image_files import write_tree
from web_server import WebFile, running_web

from pipelines import build_tfrecords, errors
from pipelines.sources import fashion_mnist as source
from tfrecord_io import Manifest
from tfrecord_io.auditing.verify import verify


@pytest.fixture(autouse=True)
def _published_here(monkeypatch):
    idx_files.publish(monkeypatch)


@pytest.fixture
def folder(tmp_path):
    return write_tree(tmp_path / "here", FILES)


@pytest.mark.parametrize("change", [lambda content: content[:-1], lambda _: b"", bytes.upper])
def test_a_file_that_is_not_the_published_one_is_named(folder, change, tmp_path):
    path = folder / "train-labels-idx1-ubyte.gz"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(errors.UserError, match=f"{path}: expected the published MD5 .*, got"):
        source.FashionMnistSource(folder).prepare(tmp_path / "packed")
    assert not list((tmp_path / "packed").iterdir())


def test_all_missing_files_are_named(folder, tmp_path):
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    (folder / "t10k-images-idx3-ubyte.gz").unlink()
    with pytest.raises(errors.UserError) as error:
        source.FashionMnistSource(folder).prepare(tmp_path / "packed")
    assert "missing: train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz" in str(error.value)


@pytest.fixture
def web():
    with running_web() as server:
        server.files = {f"fashion/{name}": WebFile(content) for name, content in FILES.items()}
        yield server


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("headers", [{}, {"Content-Encoding": "gzip"}], ids=["plain", "encoded"])
def test_only_a_missing_or_damaged_file_is_downloaded(web, folder, headers):
    web.headers = headers
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(b"damaged")

    source.download(folder, web.url("fashion/"))

    missing = ["/fashion/train-labels-idx1-ubyte.gz", "/fashion/t10k-images-idx3-ubyte.gz"]
    assert [request.path for request in web.requests] == missing
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


def build_fashion(output, *more):
    kept = f"--download_dir={output.parent / 'kept'}"
    flags = ["--source=fashion_mnist", f"--output={output}", IN_MEMORY, kept, *more]
    build_tfrecords.build(flags)
    return output


def test_fashion_mnist_is_stored_as_it_is_in_the_published_order_of_labels(folder, tmp_path):
    output = build_fashion(tmp_path / "out", f"--input={folder}")

    manifest = Manifest.load(output)
    assert verify(str(output)) == []
    assert manifest.image_shape == (28, 28, 1)
    assert manifest.label_names == source.LABEL_NAMES
    assert (manifest.name, manifest.source["kind"]) == ("fashion_mnist", "fashion_mnist")
    assert {name: split.num_examples for name, split in manifest.splits.items()} == NUM
    stride, feature = manifest.layout.stride, manifest.layout.features["image"]
    for row in pq.read_table(output / "examples.parquet").to_pylist():
        shard = np.memmap(output / row["shard"], np.uint8, "r").reshape(-1, stride)
        index = int(Path(row["path"]).stem)
        pixels = shard[row["row"], feature.offset :][: 28 * 28].reshape(28, 28)
        np.testing.assert_array_equal(pixels, IMAGES[index])
        assert row["label"] == source.LABEL_NAMES[LABELS[index]]


def test_without_a_folder_fashion_mnist_is_downloaded_and_kept(web, tmp_path, monkeypatch):
    def build_from(folder, url):
        monkeypatch.setattr(source, "BASE_URL", web.url(url))
        return build_fashion(tmp_path / folder)

    with pytest.raises(errors.BuildError, match="give their folder with --input"):
        build_from("none", "fashion/none")
    first = build_from("first", "fashion")
    second = build_from("second", "fashion/none")

    assert not (tmp_path / "none").exists()
    assert shards_of(first) == shards_of(second) != {}

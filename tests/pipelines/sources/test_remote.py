"""Zips and folders on an object store, through the whole build."""

import numpy as np
import pytest
from builds import build_here, build_of, parsed, shards_of
from dicom_files import dicom_file
from image_files import grey_pixels, kermany_archive, pack, scan_tree, scans_of, write_tree
from s3_server import BUCKET, SECRET_KEY
from source_files import upload
from tiff_files import tiff_file

from pipelines import build_tfrecords, errors
from pipelines.sources import factory
from tfrecord_io.stores import remote
from tfrecord_io.stores.folder import Folder


def files():
    tree = scan_tree({"train": 3, "val": 1, "test": 1}, classes=("CNV", "NORMAL"))
    return kermany_archive(tree | {"train/CNV/CNV-1-1.jpeg": b"no image at all"})


scans_zip = scans_of(files, "scans.zip")
#: The dataset that every build of these scans is to give.
local = build_of("scans_zip", "--max_reject_fraction=0.5")


def build(source, given, output, *more):
    flags = (f"--source={source}", "--max_reject_fraction=0.5")
    build_here(given, output, *flags, *more)


@pytest.mark.parametrize("scheme", ["s3", pytest.param("gs", marks=pytest.mark.slow)])
def test_a_dataset_on_a_store_is_the_one_on_a_disk(request, scheme, scans_zip, local, tmp_path):
    request.getfixturevalue(scheme)
    url, copy = f"{scheme}://{BUCKET}", {}
    upload(scans_zip, f"{url}/in/scans.zip")
    build_here(f"{url}/in/scans.zip", f"{url}/out", "--max_reject_fraction=0.5")
    for found in remote.list_files(f"{url}/out", recursive=True):
        copy[found.url.removeprefix(f"{url}/out/")] = remote.read_version(found.url)[0]
    assert copy.keys() == {path.name for path in local.iterdir()}
    assert all(SECRET_KEY.encode() not in content for content in copy.values())
    copy = write_tree(tmp_path / "remote", copy)
    assert shards_of(copy) == shards_of(local)


def test_a_build_that_another_one_overtakes_on_a_store_fails_and_has_nothing_to_do_when_repeated(
    s3, scans_zip, monkeypatch, capsys
):
    run = build_tfrecords.run

    def overtaken(*arguments):
        monkeypatch.setattr(build_tfrecords, "run", run)
        build("archive", scans_zip, f"s3://{BUCKET}/out")
        run(*arguments)

    monkeypatch.setattr(build_tfrecords, "run", overtaken)
    with pytest.raises(errors.BuildError, match="cannot write"):  # its plan went with the other's
        build("archive", scans_zip, f"s3://{BUCKET}/out")
    build("archive", scans_zip, f"s3://{BUCKET}/out")
    assert capsys.readouterr().out.endswith("nothing to do\n")


def test_a_build_on_a_store_goes_on_where_it_stopped_and_is_not_overwritten_unasked(
    s3, scans_zip, local, tmp_path, capsys
):
    url, allowed = f"s3://{BUCKET}/out", "--max_reject_fraction=0.5"
    with pytest.raises(errors.BuildError, match="rejected"):
        build_here(scans_zip, url, "--max_reject_fraction=0")
    s3.written.clear()
    capsys.readouterr()
    build_here(scans_zip, url, allowed)
    assert "resuming: 3 of 3 shards are finished" in capsys.readouterr().err
    assert not [key for key in s3.written if key.endswith("tfrecord")]
    assert shards_of(write_tree(tmp_path / "remote", s3.read("out/"))) == shards_of(local)
    with pytest.raises(errors.UserError, match="holds a dataset that differs:\n  seed: 0 there"):
        build_here(scans_zip, url, allowed, "--seed=1")
    build_here(scans_zip, url, allowed, "--seed=1", "--overwrite")
    assert shards_of(write_tree(tmp_path / "remote", s3.read("out/"))) != shards_of(local)


@pytest.mark.slow
def test_worker_processes_reach_the_store(s3, scans_zip, local, tmp_path):
    s3.put("in/scans.zip", scans_zip.read_bytes())
    words = [f"--input=s3://{BUCKET}/in/scans.zip", f"--output=s3://{BUCKET}/processes"]
    build_tfrecords.build(
        ["--source=archive", *words, "--image_size=8", "--max_reject_fraction=0.5",
         "--direct_num_workers=2"]
    )  # fmt: skip
    assert shards_of(write_tree(tmp_path / "remote", s3.read("processes/"))) == shards_of(local)


@pytest.mark.parametrize("kind", ["folder", "folder with a table", "zip"])
def test_an_input_on_a_store_is_read_in_parts_and_gives_the_bytes_of_the_local_one(
    kind, s3, tmp_path
):
    volume = np.stack([grey_pixels(seed, 200, 200) for seed in range(12)])
    files = scan_tree({"train": 1, "test": 1}, classes=("CNV", "NORMAL"))
    files["train/CNV/pages.tif"] = tiff_file([grey_pixels()])
    files["train/CNV/volume"] = dicom_file(volume)
    local = pack(tmp_path / ("a.zip" if kind == "zip" else "tree"), files)
    url = f"s3://{BUCKET}//{kind.replace(' ', '-')}/{local.name}"
    upload(local, url)
    s3.put("folder/tree/train/", b"")
    flags, before = [], s3.bytes_sent
    if kind.endswith("table"):
        rows = [f"{name},{'ab'[place % 2]}" for place, name in enumerate(files)]
        (tmp_path / "labels.csv").write_text("\n".join(["path,label", *rows]))
        flags = [f"--labels={tmp_path / 'labels.csv'}"]
    build("archive" if kind == "zip" else "directory", url, tmp_path / "remote", *flags)
    # The whole file for each frame would be twelve times its size.
    assert s3.bytes_sent - before < 6 * volume.nbytes
    build_here(local, tmp_path / "local", *flags)
    assert shards_of(tmp_path / "remote") == shards_of(tmp_path / "local") != {}


@pytest.mark.parametrize(("source", "name"), [("archive", "none.zip"), ("directory", "none")])
def test_an_input_that_is_not_on_the_store_is_refused(s3, tmp_path, source, name):
    with pytest.raises(errors.UserError, match="--input"):
        build(source, f"s3://{BUCKET}/{name}", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words", [["--source=archive", "--input=a.zip"], ["--source=kaggle"], ["--source=synthetic"]]
)
def test_what_dataflow_cannot_see_is_refused_before_anything_is_fetched(words, tmp_path):
    chosen = parsed([*words, "--runner=DataflowRunner"])
    with pytest.raises(errors.UserError, match=words[0].replace("=", " ")):
        factory.open_source(chosen.source, chosen.workers, 0, Folder(str(tmp_path)))

"""The Kaggle source against a stand-in for Kaggle: credentials, interrupted downloads, messages.

Every download checks that no credential and no signed address is in what it wrote or said.
"""

import io
import os
import pickle
import zipfile

import pytest
from builds import IN_MEMORY, build_here, parsed, shards_of
from image_files import kermany_archive, scan_tree, write_zip
from kaggle_stand_in import (
    ARCHIVE,
    DATASET,
    NAME,
    PASSWORD,
    SIGNATURE,
    TOKEN,
    StandIn,
    assert_no_secret,
)

from pipelines import build_tfrecords, errors
from pipelines.sources import factory, kaggle
from tfrecord_io import Manifest
from tfrecord_io.stores import file_lock
from tfrecord_io.stores.folder import Folder


class Desk:
    """A home folder and a download folder of this process, against one server."""

    def __init__(self, server, folder, monkeypatch, capsys):
        self.server, self.folder, self._capsys = server, folder, capsys
        (folder / "home").mkdir()
        self.downloads = folder / "data" / "downloads"
        self.archive = self.downloads / DATASET.split("/")[0] / NAME
        server.log_in(monkeypatch, folder / "home")

    def run(self, dataset=DATASET):
        assert kaggle.download_archive(dataset, self.downloads) == self.archive
        assert self.archive.read_bytes() == self.server.content
        assert [*self.archive.parent.iterdir()] == [self.archive]
        assert_no_secret(self.downloads, "".join(self._capsys.readouterr()))

    def fail(self, *texts, kind=errors.BuildError, **options):
        """Downloads in vain, and compares the message with what it should say."""
        with pytest.raises(kind) as error:
            self.run(**options)
        for text in texts:
            assert text in str(error.value)
        assert_no_secret(self.downloads, str(error.value) + "".join(self._capsys.readouterr()))


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the client's attempts
    with StandIn(ARCHIVE) as server:
        yield Desk(server, tmp_path, monkeypatch, capsys)


def test_a_second_run_needs_no_network_and_no_credentials(desk, monkeypatch):
    desk.run()
    desk.server.requests.clear()
    monkeypatch.delenv("KAGGLE_API_TOKEN")
    desk.run()
    assert desk.server.requests == []
    desk.fail("No Kaggle credentials", dataset="else/tiny-scans", kind=errors.UserError)


def test_a_refusal_is_explained(desk):
    desk.server.refusals += [403, 401]
    desk.fail("the stand-in refuses", "accept its terms", "ask its owner")
    desk.fail("Kaggle refused the credentials", "KAGGLE_API_TOKEN", kind=errors.UserError)


def test_a_server_that_does_not_answer_is_explained_without_a_password(desk, monkeypatch):
    with StandIn(b"") as gone:
        port = gone.server_address[1]  # nothing listens on a port that was just given back
    monkeypatch.setenv("http_proxy", f"http://me:{PASSWORD}@127.0.0.1:{port}")
    desk.fail("could not log in", "the proxy variables")


def test_a_download_that_was_cut_off_is_resumed(desk):
    desk.server.num_cut = 1
    desk.run()
    _, second = (wanted for path, wanted in desk.server.requests if SIGNATURE in path)
    assert int(second.removeprefix("bytes=").removesuffix("-")) > 0


def test_a_second_process_is_refused(desk):
    lock = desk.archive.with_name(f".{NAME}.lock")
    with file_lock.held(lock, "busy", folder_mode=0o700):
        desk.fail(f"process id {os.getpid()}", kind=errors.UserError)


@pytest.mark.parametrize("index", [2, 3, None], ids=["stored", "deflated", "index"])
def test_a_corrupt_download_of_the_right_size_never_gets_the_name_of_the_whole(desk, index):
    content = bytearray(ARCHIVE)
    with zipfile.ZipFile(io.BytesIO(ARCHIVE)) as file:
        place = file.infolist()[index].header_offset + 75_000 if index else file.start_dir
        content[place] ^= 0xFF
    desk.server.content = bytes(content)
    desk.fail("corrupt: ")
    assert not desk.archive.exists()
    desk.server.content = ARCHIVE
    assert kaggle.download_archive(DATASET, desk.downloads).read_bytes() == ARCHIVE


def test_the_command_builds_what_kaggle_gives_and_shows_no_credential(
    desk, tmp_path, monkeypatch, capsys
):
    files = scan_tree({"train": 4, "val": 1, "test": 2})
    scans, output = write_zip(tmp_path / "a.zip", kermany_archive(files)), tmp_path / "out"
    desk.server.content = scans.read_bytes()
    flags = [f"--kaggle_dataset={DATASET}", f"--download_dir={desk.downloads}", IN_MEMORY]
    flags += [f"--output={output}", "--image_size=8"]
    assert build_tfrecords.main(flags) == 0
    assert_no_secret(tmp_path, "".join(capsys.readouterr()))
    manifest = Manifest.load(output)
    assert manifest.source == {"kind": "kaggle", "name": NAME, "dataset": DATASET}
    assert shards_of(build_here(scans, tmp_path / "by_hand")) == shards_of(output)
    chosen = parsed(flags)
    source = factory.open_source(chosen.source, chosen.workers, 0, Folder(desk.folder))
    assert TOKEN.encode() not in pickle.dumps((source, chosen))

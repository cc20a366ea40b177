"""The Kaggle source against a stand-in for Kaggle: credentials, interrupted downloads, messages.

Every download checks that no credential and no signed address is in what it wrote or said.
"""

import io
import json
import logging
import os
import pickle
import stat
import subprocess
import sys
import zipfile
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
import requests
from builds import IN_MEMORY, ROOT, build_here, shards_of, wait_until
from image_files import kermany_archive, scan_tree, write_zip
from kaggle_stand_in import (
    ARCHIVE,
    DATASET,
    KEY,
    NAME,
    REFRESH_TOKEN,
    STORAGE_HOST,
    TOKEN,
    USERNAME,
    Refuse,
    StandIn,
    assert_no_secret,
    make_archive,
)
from kagglesdk import KaggleClient
from kagglesdk.datasets.types.dataset_api_service import ApiDownloadDatasetRequest

from pipelines import build_tfrecords, errors, options
from pipelines.sources import factory, kaggle
from tfrecord_io import Manifest
from tfrecord_io.auditing.verify import verify
from tfrecord_io.stores import remote
from tfrecord_io.stores.folder import Folder

PART = 1 << 18  # Bytes that the download asks for at a time.
LEGACY_KEY = {"username": USERNAME, "key": KEY}


class Desk:
    """A home folder and a download folder of this process, against one server."""

    def __init__(self, server, folder, monkeypatch, caplog):
        self.server, self.folder, self._patch, self._caplog = server, folder, monkeypatch, caplog
        self.home = folder / "home"
        self.home.mkdir()
        self.downloads = folder / "data" / "downloads"
        self.archive = self.downloads / NAME
        for name in list(os.environ):
            if name.startswith(("KAGGLE_", "XDG_")) or name.lower() == "no_proxy":
                monkeypatch.delenv(name)
        self.set(**server.environment(self.home, KAGGLE_API_TOKEN=TOKEN))

    def set(self, **variables):
        for name, value in variables.items():
            self._patch.setenv(name, value.format(home=self.home))

    def log_out(self):
        self._patch.delenv("KAGGLE_API_TOKEN")

    def write_home(self, files):
        for name, content in files.items():
            (self.home / name).parent.mkdir(parents=True, exist_ok=True)
            text = content if isinstance(content, str) else json.dumps(content)
            (self.home / name).write_text(text)

    def run(self, dataset=DATASET):
        """Downloads; returns what the log said."""
        self._caplog.clear()
        archive = kaggle.download_archive(dataset, self.downloads)
        assert archive == self.archive
        assert archive.read_bytes() == self.server.file.content
        assert sorted(path.name for path in archive.parent.iterdir()) == [
            NAME,
            f"{NAME}.verified.json",
        ]
        assert_no_secret(self.downloads, self._caplog.text)
        return self._caplog.text

    def fail(self, *texts, kind=errors.BuildError, **options):
        """Downloads in vain; returns the message after comparing it with what it should say."""
        with pytest.raises(kind) as error:
            self.run(**options)
        message = str(error.value)
        for text in texts:
            assert text in message
        assert_no_secret(self.downloads, message + self._caplog.text)
        return message

    @property
    def part(self):
        return next(self.downloads.glob("*.part"))

    def keep_partial(self, num_bytes):
        """Leaves a partial download of the first `num_bytes`."""
        self.downloads.mkdir(parents=True)
        version = remote.StoredFile("", 0, self.server.file.e_tag.strip('"')).version
        part = self.downloads / f"{NAME}.{len(ARCHIVE)}-{version:x}.part"
        part.write_bytes(self.server.file.content[:num_bytes])
        return part.read_bytes()

    def ranges(self):
        """The first byte of every part that the storage was asked for, sorted."""
        asked = [request.headers["range"] for request in self.server.calls("GET")]
        places = [one.removeprefix("bytes=").split("-") for one in asked]
        return sorted(int(start) for start, end in places if end != "0")


@pytest.fixture
def desk(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(kaggle, "_PART_BYTES", PART)
    monkeypatch.setattr(remote, "NUM_ATTEMPTS", 3)
    monkeypatch.setattr(remote, "SILENT_SECONDS", 1)
    monkeypatch.setattr(remote, "RETRY_SECONDS", 5)
    with StandIn(ARCHIVE) as server:
        yield Desk(server, tmp_path, monkeypatch, caplog)


# ---- A download that goes well


def test_a_download_asks_once_and_gives_the_storage_no_credentials(desk, capsys):
    desk.run()

    asked, *sent = desk.server.requests
    assert asked.headers["Authorization"] == f"Bearer {TOKEN}"
    assert {urlsplit(one.path).hostname for one in sent} == {STORAGE_HOST}
    assert not [one for one in sent if "authorization" in map(str.lower, one.headers)]
    assert desk.ranges() == [*range(0, len(ARCHIVE), PART)]
    bars = capsys.readouterr().err
    assert f"downloading {NAME}: 100%" in bars
    assert f"checking {NAME}: " in bars
    assert list(desk.home.iterdir()) == []
    assert stat.S_IMODE(desk.downloads.stat().st_mode) == 0o700


def test_the_request_is_that_of_the_official_client(desk, monkeypatch):
    asked = []

    def record(session, sent, **options):
        headers = {name: sent.headers[name] for name in ("Authorization", "Content-Type")}
        asked.append((sent.url, json.loads(sent.body), headers))
        raise requests.ConnectionError(request=sent)

    monkeypatch.delenv("KAGGLE_API_ENVIRONMENT")
    monkeypatch.setattr(requests.Session, "send", record)
    theirs = ApiDownloadDatasetRequest()
    theirs.owner_slug, theirs.dataset_slug = DATASET.split("/")

    desk.fail("Kaggle could not be asked")
    with pytest.raises(requests.ConnectionError), KaggleClient() as client:
        client.datasets.dataset_api_client.download_dataset(theirs)

    assert asked[0] == asked[1]
    assert asked[0][0] == "https://api.kaggle.com/v1/datasets.DatasetApiService/DownloadDataset"


def test_a_second_run_needs_no_network_and_no_credentials(desk):
    desk.run()
    record = (desk.downloads / f"{NAME}.verified.json").stat()
    desk.server.requests.clear()
    desk.log_out()

    desk.run()

    assert desk.server.requests == []
    assert (desk.downloads / f"{NAME}.verified.json").stat().st_mtime_ns == record.st_mtime_ns
    desk.fail(f"is the archive of {DATASET}, not of else/tiny-scans", dataset="else/tiny-scans")
    (desk.downloads / f"{NAME}.verified.json").unlink()  # as if the user had put it there
    assert kaggle.download_archive(DATASET, desk.downloads) == desk.archive
    assert desk.server.requests == []


# ---- Credentials

# Each way: files in the home folder, environment variables ({home} is filled in).
WAYS = {
    "a token": ({}, {"KAGGLE_API_TOKEN": TOKEN}),
    "the path of a token": ({"my-token": TOKEN + "\n"}, {"KAGGLE_API_TOKEN": "{home}/my-token"}),
    "a token file": ({".kaggle/access_token": TOKEN}, {}),
    "a legacy key": ({}, {"KAGGLE_USERNAME": USERNAME, "KAGGLE_KEY": KEY}),
    "kaggle.json": ({".kaggle/kaggle.json": LEGACY_KEY}, {}),
    "kaggle.json in XDG's folder": ({".config/kaggle/kaggle.json": LEGACY_KEY}, {}),
    "kaggle.json elsewhere, and a user name": (
        {"settings/kaggle.json": {"key": KEY}},
        {"KAGGLE_CONFIG_DIR": "{home}/settings", "KAGGLE_USERNAME": USERNAME},
    ),
    "a login with the browser": (
        {".kaggle/credentials.json": {"refresh_token": REFRESH_TOKEN, "username": USERNAME}},
        {},
    ),
}


@pytest.mark.parametrize(
    ("files", "variables"),
    [
        ({}, {}),
        ({}, {"KAGGLE_USERNAME": USERNAME}),
        ({".kaggle/access_token": " \n"}, {}),
        ({"my-token": ""}, {"KAGGLE_API_TOKEN": "{home}/my-token"}),
        ({}, {"KAGGLE_API_TOKEN": "KAGGLE_" + "long" * 1000}),
        ({".kaggle/kaggle.json": f'{{"username": "{USERNAME}", "key": "{KEY}'}, {}),
        ({".kaggle/credentials.json": {"access_token": TOKEN}}, {}),
        ({".kaggle/credentials.json": []}, {}),
    ],
    ids=lambda value: str(value)[:60],
)
def test_without_usable_credentials_the_ways_are_named_and_nothing_is_made(desk, files, variables):
    desk.log_out()
    desk.write_home(files)
    desk.set(**variables)

    ways = ("KAGGLE_API_TOKEN", "kaggle auth login", "KAGGLE_KEY", "--source synthetic")
    desk.fail("No Kaggle credentials were found", *ways, kind=errors.UserError)

    assert desk.server.requests == []
    assert not desk.downloads.parent.exists()


def test_a_missing_library_is_explained(desk, monkeypatch):
    monkeypatch.setitem(sys.modules, "kagglesdk", None)

    desk.fail("could not be imported", "pip install kaggle", "--source synthetic")


# ---- Refusals


@pytest.mark.parametrize("is_in_json", [False, True])
def test_a_refusal_of_the_api_is_explained_at_once(desk, is_in_json):
    desk.server.api_faults += [Refuse(403, is_in_json=is_in_json), Refuse(401)]

    desk.fail("HTTP 403: the stand-in refuses", "terms or rules", f"datasets/{DATASET}")
    desk.fail("Kaggle refused the credentials", "KAGGLE_API_TOKEN", kind=errors.UserError)

    assert len(desk.server.requests) == 2


def test_a_busy_server_is_asked_again(desk):
    desk.server.api_faults += [Refuse(429), Refuse(503)]
    desk.run()

    desk.server.api_faults += [Refuse(503)] * 10
    desk.archive.unlink()
    desk.fail("HTTP 503", "again later")
    assert len(desk.server.api_faults) == 7


def test_a_page_in_the_place_of_the_api_is_not_taken_for_the_archive(desk):
    desk.server.api_faults += ["page"]

    desk.fail("(HTTP 200: OK)", "a network that requires a login in the browser")


# ---- Interrupted downloads


CHILD = f"""
import pathlib, sys
from pipelines.sources import kaggle
from tfrecord_io.stores import remote
from tfrecord_io.stores.folder import Folder
remote.SILENT_SECONDS = 2
kaggle._PART_BYTES, kaggle._NUM_PARTS_AT_ONCE = {PART}, 1
kaggle.download_archive({DATASET!r}, pathlib.Path(sys.argv[1]))
"""


def test_a_second_process_is_refused_and_resumes_what_a_stopped_one_left(desk):
    desk.server.faults += [""] * 4 + ["silent"]
    command = [sys.executable, "-c", CHILD, str(desk.downloads)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: len(desk.server.calls("GET")) == 5, process)
        desk.fail(f"another process (process id {process.pid})", "wait until")
        process.kill()
        assert process.wait() != 0
    kept = desk.part.stat().st_size
    assert 0 < kept <= 3 * PART
    desk.server.requests.clear()

    desk.run()

    assert desk.ranges() == [*range(kept, len(ARCHIVE), PART)]


@pytest.mark.parametrize("e_tag", ['"second-version"', ""])
def test_an_archive_that_changed_on_kaggle_is_downloaded_anew(desk, e_tag):
    desk.keep_partial(PART)
    desk.server.file.content = make_archive(seed=2)
    desk.server.file.e_tag = e_tag  # without one, Last-Modified tells versions apart

    desk.run()


def test_a_proxy_that_is_not_there_is_explained_without_its_password(desk):
    # Nothing listens on a port that was just given back.
    with StandIn(b"") as gone:
        port = gone.server_address[1]
    desk.set(http_proxy=f"http://me:{KEY}@127.0.0.1:{port}")

    desk.fail("Connection refused", "the proxy variables")


# ---- The disk


def test_a_disk_too_small_is_an_error_before_the_first_byte(desk, monkeypatch):
    monkeypatch.setattr(kaggle.shutil, "disk_usage", Mock(return_value=Mock(free=1000)))

    desk.fail("has 1.00kB free, but", "needs 1.20MB more", "--download_dir")

    assert list(desk.downloads.iterdir()) == []


# ---- The check of the whole archive


@pytest.mark.parametrize("index", [2, 3, None], ids=["stored", "deflated", "index"])
def test_a_corrupt_download_of_the_right_size_never_gets_the_name_of_the_whole(desk, index):
    content = bytearray(ARCHIVE)
    with zipfile.ZipFile(io.BytesIO(ARCHIVE)) as file:
        place = file.infolist()[index].header_offset + 75_000 if index else file.start_dir
        content[place] ^= 0xFF
    desk.server.file.content = bytes(content)

    desk.fail("corrupt: ", f"moved to {desk.archive}.corrupt")

    assert [path.name for path in desk.downloads.iterdir()] == [f"{NAME}.corrupt"]


# ---- The command


def test_the_command_builds_what_kaggle_gives_and_shows_no_credential(desk, tmp_path, capsys):
    files = scan_tree({"train": 4, "val": 1, "test": 2})
    files["train/CNV/CNV-1-1.jpeg"] = b"no image at all"
    scans, output = write_zip(tmp_path / "a.zip", kermany_archive(files)), tmp_path / "out"
    desk.server.file.content = scans.read_bytes()
    flags = [f"--kaggle_dataset={DATASET}", f"--download_dir={desk.downloads}", IN_MEMORY]
    flags += [f"--output={output}", "--image_size=8"]
    # The plan of a failed build stays, so the check of all files for credentials meets it.
    assert build_tfrecords.main([*flags, "--max_reject_fraction=0"]) == 1
    assert (output / ".build" / "plan.json").exists()
    desk.log_out()  # the archive is there
    assert build_tfrecords.main([*flags, "--max_reject_fraction=0.5"]) == 0

    said = capsys.readouterr()
    assert_no_secret(tmp_path, said.out + said.err)
    assert "28 examples" in said.out
    assert verify(str(output)) == []
    manifest = Manifest.load(output)
    assert manifest.name == "tiny_scans"
    assert manifest.source == {"kind": "kaggle", "name": NAME, "dataset": DATASET}
    by_hand = build_here(scans, tmp_path / "by_hand", "--max_reject_fraction=0.5")
    assert shards_of(by_hand) == shards_of(output)


def test_without_credentials_the_help_is_short_and_nothing_is_made(desk, tmp_path, capsys):
    desk.log_out()
    flags = [f"--download_dir={desk.downloads}", f"--output={tmp_path / 'out'}", IN_MEMORY]
    assert build_tfrecords.main(flags) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) < 15
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_no_credential_goes_to_the_workers(desk):
    desk.run()
    chosen = options.parse_options(
        [f"--kaggle_dataset={DATASET}", f"--download_dir={desk.downloads}", IN_MEMORY]
    )

    source = factory.open_source(chosen.source, chosen.workers, 0, Folder(desk.folder))

    assert TOKEN.encode() not in pickle.dumps((source, chosen))
    assert TOKEN not in repr(chosen.beam_args)


@pytest.mark.parametrize("name", ["kermany2018", "a/b/c", "../b", "a/..", "a/b.zip", "a b/c"])
def test_a_dataset_name_of_another_form_is_wrong_usage(name):
    with pytest.raises(errors.UserError, match="OWNER/NAME") as error:
        options.parse_options([f"--kaggle_dataset={name}"])
    assert repr(name) in str(error.value)

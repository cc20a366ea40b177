"""The Kaggle source against a stand-in for Kaggle: credentials, interrupted downloads, messages.

Every download checks that no credential and no signed address is in what it wrote or said.
"""

import errno
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from unittest.mock import Mock

import pytest
import requests
from builds import ROOT, wait_until
from kaggle_stand_in import (
    ARCHIVE,
    DATASET,
    KEY,
    NAME,
    REFRESH_TOKEN,
    SECRETS,
    STORAGE_HOST,
    TOKEN,
    USERNAME,
    Cut,
    Page,
    Refuse,
    Stall,
    StandIn,
    WrongRange,
    make_archive,
)
from urllib3 import Retry

from pipelines import errors
from pipelines.sources.kaggle import download

CHUNK = 1 << 18  # Bytes that the download writes at a time; a cut loses the one that it cut.
LEGACY_KEY = {"username": USERNAME, "key": KEY}


class Desk:
    """A home folder and a download folder of this process, against one server."""

    def __init__(self, server, folder, monkeypatch, caplog):
        self.server, self.folder, self._patch, self._caplog = server, folder, monkeypatch, caplog
        self.home = folder / "home"
        self.home.mkdir()
        self.downloads = folder / "data" / "downloads"
        self.archive = self.downloads / NAME
        self.marker = self.downloads / f"{NAME}.kaggle-partial"
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

    def run(self, dataset=DATASET, retries=2, timeout_s=10.0):
        """Downloads; returns what the log said."""
        self._caplog.clear()
        retry = Retry(retries, backoff_factor=0.01)
        archive = download.download_archive(dataset, self.downloads, retry, timeout_s)
        assert archive == self.archive
        assert archive.read_bytes() == self.server.archive
        assert sorted(path.name for path in archive.parent.iterdir()) == [
            NAME,
            f"{NAME}.verified.json",
        ]
        self.assert_nothing_leaked(self._caplog.text)
        return self._caplog.text

    def fail(self, *texts, kind=errors.BuildError, **options):
        """Downloads in vain; returns the message after comparing it with what it should say."""
        with pytest.raises(kind) as error:
            self.run(**options)
        message = str(error.value)
        for text in texts:
            assert text in message
        self.assert_nothing_leaked(message + self._caplog.text)
        return message

    def assert_nothing_leaked(self, said):
        files = [path for path in self.downloads.rglob("*") if path.is_file()]
        written = {**{str(path): path.read_bytes() for path in files}, "a message": said.encode()}
        for where, content in written.items():
            for secret in (*SECRETS, "signature0"):
                assert secret.encode() not in content, f"{secret} is in {where}"

    def keep_partial(self, num_bytes):
        """Leaves a partial download as the official client would, cut after `num_bytes`."""
        self.downloads.mkdir(parents=True)
        self.archive.write_bytes(self.server.archive[:num_bytes])
        note = {"validator": self.server.etag, "size": self.server.size()}
        self.marker.write_text(json.dumps(note))
        return self.archive.read_bytes()

    def ranges(self):
        """The Range header of every request that the storage had."""
        return [request.headers.get("Range") for request in self.server.calls("GET")]


@pytest.fixture
def desk(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    with StandIn(ARCHIVE) as server:
        yield Desk(server, tmp_path, monkeypatch, caplog)


# --------------------------------------------------------------------------------------------------
# A download that goes well
# --------------------------------------------------------------------------------------------------


def test_a_download_is_one_request_that_gives_the_storage_no_credentials(desk, capsys):
    desk.run()

    asked, sent = desk.server.requests
    assert asked.headers["Authorization"] == f"Bearer {TOKEN}"
    assert sent.host == STORAGE_HOST
    assert "Authorization" not in sent.headers
    bars = capsys.readouterr().err
    assert f"downloading {NAME}: 100%" in bars
    assert f"checking {NAME}: 100%" in bars
    assert list(desk.home.iterdir()) == []


def ask_as_the_official_client() -> None:
    from kagglesdk import KaggleClient
    from kagglesdk.datasets.types.dataset_api_service import ApiDownloadDatasetRequest

    request = ApiDownloadDatasetRequest()
    request.owner_slug, request.dataset_slug = DATASET.split("/")
    with KaggleClient() as client:
        client.datasets.dataset_api_client.download_dataset(request).close()


def test_the_request_is_that_of_the_official_client(desk):
    desk.run()
    ask_as_the_official_client()

    ours, theirs = desk.server.calls("DownloadDataset")
    assert (ours.host, ours.path) == (theirs.host, theirs.path)
    assert json.loads(ours.body) == json.loads(theirs.body)
    for name in ("Authorization", "Content-Type"):
        assert ours.headers[name] == theirs.headers[name]


def test_the_real_address_is_that_of_the_official_client(desk, monkeypatch):
    asked = []

    def record(session, request, **options):
        asked.append(request.url)
        raise requests.ConnectionError(request=request)

    monkeypatch.delenv("KAGGLE_API_ENVIRONMENT")
    monkeypatch.setattr(requests.Session, "send", record)

    desk.fail("the connection to api.kaggle.com failed", retries=0)
    with pytest.raises(requests.ConnectionError):
        ask_as_the_official_client()

    assert asked == ["https://api.kaggle.com/v1/datasets.DatasetApiService/DownloadDataset"] * 2


def test_a_second_run_needs_no_network_and_no_credentials(desk):
    desk.run()
    record = (desk.downloads / f"{NAME}.verified.json").stat()
    desk.server.requests.clear()
    desk.log_out()

    desk.run()

    assert desk.server.requests == []
    assert (desk.downloads / f"{NAME}.verified.json").stat().st_mtime_ns == record.st_mtime_ns
    desk.fail(f"is the archive of {DATASET}, not of else/tiny-scans", dataset="else/tiny-scans")


def test_an_archive_put_there_by_hand_is_checked_and_used_without_credentials(desk):
    desk.log_out()
    desk.downloads.mkdir(parents=True)
    desk.archive.write_bytes(ARCHIVE)

    desk.run()

    assert desk.server.requests == []


@pytest.mark.parametrize("name", ["kermany2018", "a/b/c", "../b", "a/..", "a/b.zip", "", "a b/c"])
def test_a_dataset_name_of_another_form_is_refused(name):
    with pytest.raises(ValueError, match="OWNER/NAME") as error:
        download.check_dataset_name(name)
    assert repr(name) in str(error.value)


# --------------------------------------------------------------------------------------------------
# Credentials
# --------------------------------------------------------------------------------------------------

# Each way: files in the home folder, environment variables ({home} is filled in).
WAYS = {
    "a token": ({}, {"KAGGLE_API_TOKEN": TOKEN}),
    "the path of a token": ({"my-token": TOKEN + "\n"}, {"KAGGLE_API_TOKEN": "{home}/my-token"}),
    "a token file": ({".kaggle/access_token": TOKEN}, {}),
    "a legacy key": ({}, {"KAGGLE_USERNAME": USERNAME, "KAGGLE_KEY": KEY}),
    "kaggle.json": ({".kaggle/kaggle.json": LEGACY_KEY}, {}),
    "kaggle.json in XDG's folder": ({".config/kaggle/kaggle.json": LEGACY_KEY}, {}),
    "kaggle.json elsewhere": (
        {"settings/kaggle.json": LEGACY_KEY},
        {"KAGGLE_CONFIG_DIR": "{home}/settings"},
    ),
    "a user name beside kaggle.json": (
        {".kaggle/kaggle.json": {"key": KEY}},
        {"KAGGLE_USERNAME": USERNAME},
    ),
    "a login with the browser": (
        {".kaggle/credentials.json": {"refresh_token": REFRESH_TOKEN, "username": USERNAME}},
        {},
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_log_in_works_and_no_server_can_echo_it(desk, way):
    files, variables = WAYS[way]
    desk.log_out()
    desk.write_home(files)
    desk.set(**variables)
    secret = KEY if KEY in str(WAYS[way]) else TOKEN
    desk.server.api_faults += [Refuse(403, f"no rights for {secret}")]

    desk.fail("(HTTP 403: no rights for [hidden])")

    desk.run()


UNUSABLE = {
    "nothing": ({}, {}, "No Kaggle credentials were found.\nKaggle needs"),
    "a user name alone": ({}, {"KAGGLE_USERNAME": USERNAME}, "incomplete or damaged: KAGGLE_USER"),
    "an empty token file": ({".kaggle/access_token": " \n"}, {}, "{home}/.kaggle/access_token\n"),
    "a token that names an empty file": (
        {"my-token": ""},
        {"KAGGLE_API_TOKEN": "{home}/my-token"},
        "damaged: KAGGLE_API_TOKEN",
    ),
    "kaggle.json cut short": (
        {".kaggle/kaggle.json": f'{{"username": "{USERNAME}", "key": "{KEY}'},
        {},
        "damaged: {home}/.kaggle/kaggle.json",
    ),
    "an OAuth file without a login": (
        {".kaggle/credentials.json": {"access_token": TOKEN}},
        {},
        "damaged: {home}/.kaggle/credentials.json",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_without_usable_credentials_the_ways_are_named_and_nothing_is_made(desk, case):
    files, variables, reason = UNUSABLE[case]
    desk.log_out()
    desk.write_home(files)
    desk.set(**variables)

    ways = ("KAGGLE_API_TOKEN", "kaggle auth login", "KAGGLE_KEY", "--source synthetic")
    desk.fail(reason.format(home=desk.home), *ways, kind=errors.UserError)

    assert desk.server.requests == []
    assert not desk.downloads.parent.exists()


@pytest.mark.parametrize("token", ["KAGGLE_no_such_token", "KAGGLE_" + "long" * 1000])
def test_a_token_that_kaggle_does_not_know_is_named_by_its_place(desk, token):
    desk.set(KAGGLE_API_TOKEN=token)

    assert token not in desk.fail("KAGGLE_API_TOKEN", "settings/api", kind=errors.UserError)


def test_a_missing_library_is_explained(desk, monkeypatch):
    monkeypatch.setitem(sys.modules, "kagglesdk", None)

    desk.fail("could not be imported", "pip install kaggle", "--source synthetic")


# --------------------------------------------------------------------------------------------------
# Refusals
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_in_json", [False, True])
@pytest.mark.parametrize(
    ("status", "texts"),
    [
        (400, ("refused the download", "HTTP 400: the stand-in refuses")),
        (401, ("Kaggle refused the credentials", "KAGGLE_API_TOKEN")),
        (403, ("HTTP 403: the stand-in refuses", "terms or rules", f"datasets/{DATASET}")),
        (404, (f"no dataset {DATASET}", "HTTP 404: the stand-in refuses")),
    ],
)
def test_a_refusal_of_the_api_is_explained_at_once(desk, status, texts, is_in_json):
    desk.server.api_faults += [Refuse(status, is_in_json=is_in_json)] * 10

    desk.fail(*texts, kind=errors.UserError if status == 401 else errors.BuildError)

    assert len(desk.server.requests) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again_after_the_time_that_it_names(desk, status):
    desk.server.api_faults += [Refuse(status, headers={"Retry-After": "1"}), Refuse(status)]

    assert f"HTTP {status}, Retry-After: 1" in desk.run()

    desk.server.api_faults += [Refuse(status, headers={"Retry-After": "soon"})] * 10
    desk.archive.unlink()
    desk.fail(f"HTTP {status}", "Tried 3 times.", "again later")


@pytest.mark.parametrize(
    "fault",
    [*map(Refuse, (401, 403, 404, 416, 429, 500)), Page(), WrongRange()],
    ids=lambda fault: str(getattr(fault, "status", type(fault).__name__)),
)
def test_no_answer_of_the_storage_but_the_archive_touches_the_partial_file(desk, fault):
    partial = desk.keep_partial(CHUNK)
    desk.server.storage_faults += [fault]
    said = {Page: "login in the browser", WrongRange: f"asked for bytes from {CHUNK}"}

    desk.fail(said.get(type(fault), "HTTP"), "262.1 kB are kept", retries=0)

    assert desk.archive.read_bytes() == partial
    desk.run()
    assert desk.ranges() == [f"bytes={CHUNK}-"] * 2


def test_a_page_in_the_place_of_the_api_is_not_taken_for_the_archive(desk):
    partial = desk.keep_partial(CHUNK)
    desk.server.api_faults += [Page()]

    desk.fail("localhost did not send the archive: expected a zip archive, got text", retries=0)

    assert desk.archive.read_bytes() == partial


# --------------------------------------------------------------------------------------------------
# Interrupted downloads
# --------------------------------------------------------------------------------------------------


def test_a_cut_connection_resumes_as_long_as_each_attempt_brings_new_bytes(desk):
    desk.server.storage_faults += [Cut(CHUNK + 1)] * 4

    assert "the connection to the storage host failed (IncompleteRead)" in desk.run(retries=1)

    assert desk.ranges() == [None] + [f"bytes={part * CHUNK}-" for part in (1, 2, 3, 4)]
    resumed = desk.server.calls("GET")[-1]
    assert (resumed.status, resumed.sent) == (206, len(ARCHIVE) - 4 * CHUNK)
    assert resumed.headers["If-Range"] == desk.server.etag


def test_cuts_that_bring_no_new_bytes_end_in_an_error_that_keeps_the_partial_file(desk):
    partial = desk.keep_partial(CHUNK)
    desk.server.storage_faults += [Cut(0)] * 10

    desk.fail("(IncompleteRead)", "Tried 3 times.", "262.1 kB are kept", "to resume")

    assert len(desk.server.calls("DownloadDataset")) == 3
    assert desk.archive.read_bytes() == partial


CHILD = f"""
import pathlib, sys
from pipelines.sources.kaggle import download
download.download_archive({DATASET!r}, pathlib.Path(sys.argv[1]))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_second_process_is_refused_and_resumes_what_a_stopped_one_left(desk, number):
    desk.server.storage_faults += [Stall(after=3 * CHUNK)]
    command = [sys.executable, "-c", CHILD, str(desk.downloads)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        wait_until(
            lambda: desk.archive.exists() and desk.archive.stat().st_size == 3 * CHUNK, process
        )
        desk.fail("by another process", f"process id {process.pid}", "Wait until")
        process.send_signal(number)
        assert process.wait() != 0

    desk.run()

    assert desk.ranges() == [None, f"bytes={3 * CHUNK}-"]


def test_a_download_that_was_killed_before_its_last_note_is_not_fetched_again(desk):
    desk.keep_partial(len(ARCHIVE))

    desk.run()

    assert desk.server.requests == []


def test_parts_of_two_versions_are_not_joined_if_the_storage_ignores_if_range(desk):
    desk.keep_partial(CHUNK)
    desk.server.archive = make_archive(seed=2)
    desk.server.etag = '"second-version"'
    desk.server.heeds_if_range = False

    assert "the archive has changed" in desk.run(retries=1)

    assert desk.archive.read_bytes() == desk.server.archive
    assert desk.ranges() == [f"bytes={CHUNK}-", None]


def test_an_archive_that_changed_on_kaggle_is_downloaded_anew(desk):
    desk.keep_partial(CHUNK)
    desk.server.archive = make_archive(seed=2)
    desk.server.etag = '"second-version"'
    desk.server.storage_faults += [Cut(CHUNK + 1)]

    desk.run()

    assert desk.ranges() == [f"bytes={CHUNK}-"] * 2
    assert desk.server.calls("GET")[0].status == 200


@pytest.mark.parametrize("missing", ["ranges", "ETag"])
def test_a_storage_without_ranges_or_without_an_etag_still_gives_the_archive(desk, missing):
    if missing == "ranges":
        desk.server.accepts_ranges = False
    else:
        desk.server.etag = None  # Last-Modified then tells versions apart.
    desk.server.storage_faults += [Cut(CHUNK + 1)]

    desk.run()

    assert desk.ranges() == [None, f"bytes={CHUNK}-"]


@pytest.mark.parametrize("where", ["api", "storage", "range"])
def test_a_connection_that_falls_silent_is_given_up_and_tried_again(desk, where):
    if where == "range":
        desk.keep_partial(CHUNK)
    faults = desk.server.api_faults if where == "api" else desk.server.storage_faults
    faults += [Stall(after=None if where == "api" else CHUNK + 1)]

    assert "sent nothing for 0.5 s" in desk.run(timeout_s=0.5)


def test_no_name_resolution_is_explained(desk, monkeypatch):
    def fail(*args, **kwargs):
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr("socket.getaddrinfo", fail)
    desk.set(http_proxy="")

    desk.fail(
        "the connection to localhost failed (Temporary failure in name resolution)",
        "Tried 3 times.",
    )


def test_a_proxy_that_is_not_there_is_explained_without_its_password(desk):
    # Nothing listens on a port that was just given back.
    with StandIn(b"") as gone:
        port = gone.address.rsplit(":", 1)[1]
    desk.set(http_proxy=f"http://me:{KEY}@127.0.0.1:{port}")

    desk.fail("the proxy named in http_proxy")


# --------------------------------------------------------------------------------------------------
# The disk
# --------------------------------------------------------------------------------------------------


def test_a_disk_too_small_is_an_error_before_the_first_byte(desk):
    desk.server.claimed_size = 10**15

    desk.fail("free, but", "1000000.0 GB", "--download_dir")

    assert list(desk.downloads.iterdir()) == []


def test_a_disk_that_fills_up_is_an_error_that_says_so(desk):
    desk.downloads.mkdir(parents=True)
    desk.archive.symlink_to("/dev/full")

    desk.fail(f"{desk.archive} could not be written: the disk is full")


def test_a_whole_archive_in_a_folder_without_permission_to_write_is_no_download(desk, monkeypatch):
    desk.downloads.mkdir(parents=True)
    desk.archive.write_bytes(ARCHIVE)
    refused = Mock(side_effect=PermissionError(errno.EACCES, "Permission denied"))
    monkeypatch.setattr(download.file_lock, "held", refused)

    message = desk.fail("Permission denied", f"--source archive --input {desk.archive}")

    assert "resume" not in message


def test_a_file_in_the_place_of_the_folder_is_explained(desk):
    desk.downloads.parent.mkdir()
    desk.downloads.write_text("not a folder")

    desk.fail(f"{desk.archive} could not be written", "--download_dir")

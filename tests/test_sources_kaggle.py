"""The Kaggle source, with the real client in a process of its own, against a stand-in server.

Every run checks that no credential and no traceback is in what the process wrote, to the terminal
or to disk. Tests whose name begins with `test_the_bare_client` hold what the module guards against:
they show that the stand-in springs the trap, so that the guarded test beside them means something.
"""

import dataclasses
import errno
import hashlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st
from kaggle_stand_in import (
    DATASET,
    KEY,
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
)

from pipelines.sources import kaggle as source

ROOT = Path(__file__).resolve().parent.parent
NAME = "tiny-scans.zip"
CHUNK = 1 << 18  # Bytes that the download writes at a time; a cut loses the one that it cut.
LEGACY_KEY = {"username": USERNAME, "key": KEY}

CHILD = """
import json, logging, os, sys
from pathlib import Path

options = json.loads(sys.argv[1])
if "limit_bytes" in options:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (options["limit_bytes"],) * 2)
if "missing_module" in options:
    sys.modules[options["missing_module"]] = None
if options.get("debug_logging"):
    logging.basicConfig(level=logging.DEBUG)
if options.get("no_dns"):
    import socket
    def fail(*args, **kwargs):
        raise socket.gaierror(-3, "Temporary failure in name resolution")
    socket.getaddrinfo = fail
if options.get("import_client_first"):
    import contextlib, io
    with contextlib.redirect_stdout(io.StringIO()):
        import kaggle
folder = options["download_dir"]
if options.get("bare_client"):
    from kaggle.api.kaggle_api_extended import KaggleApi
    api = KaggleApi()
    api.authenticate()
    api.dataset_download_files(options["dataset"], path=folder)
    sys.exit(0)

from pipelines.sources import kaggle as source

environment = dict(os.environ)
level = logging.getLogger().level
try:
    archive = source.download_archive(
        options["dataset"],
        Path(folder),
        progress=options["progress"],
        retries=source.Retries(**options["retries"]),
    )
except source.DownloadError as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    sys.exit(2)
finally:
    assert dict(os.environ) == environment
    assert logging.getLogger().level == level
print("kaggle imported:", "kaggle" in sys.modules)
print("archive:", archive)
"""


# A process that has imported what the client imports, but not the client, and forks a child for
# each run: the client's side effects at import stay real, and a run takes 0.1 s instead of 0.7 s.
NURSERY = """
import json, os, sys, time, traceback
import bleach, dateutil.relativedelta, dotenv, google.protobuf.field_mask_pb2, kagglesdk, packaging
import requests, slugify, tqdm

def become(order):
    for name, number in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = ["-c", order["options"]]
    sys.path.insert(0, order["environment"].get("PYTHONPATH", ""))
    code = 0
    try:
        exec(compile(order["code"], "child", "exec"), {"__name__": "__main__"})
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

def wait_for(child):
    deadline = time.monotonic() + 60
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, 9)
        time.sleep(0.005)

for line in sys.stdin:
    order = json.loads(line)
    if "wait" in order:
        print(wait_for(order["wait"]), flush=True)
        continue
    child = os.fork()
    if child == 0:
        become(order)
    print(child, flush=True)
"""


class Nursery:
    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", NURSERY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, order: dict[str, object]) -> int:
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


@dataclasses.dataclass(frozen=True)
class Process:
    pid: int
    started: float
    stdout: Path
    stderr: Path

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


@dataclasses.dataclass(frozen=True)
class Outcome:
    code: int
    stdout: str
    stderr: str
    seconds: float


class Workplace:
    """A home folder, a download folder and processes that use them against one server."""

    def __init__(self, nursery: Nursery, server: StandIn, folder: Path):
        self.nursery = nursery
        self.server = server
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        self.downloads = folder / "data" / "downloads"
        self.archive = self.downloads / NAME
        self.marker = self.downloads / f"{NAME}.kaggle-partial"

    def start(self, *, token: str | None = TOKEN, **options: object) -> Process:
        environment = self.server.environment(self.home, PYTHONPATH=str(ROOT))
        if token is not None:
            environment["KAGGLE_API_TOKEN"] = token
        environment |= options.pop("environment", {})
        retries = {"timeout_s": 10.0, "max_retries": 2, "backoff_s": 0.01}
        settings = {
            "dataset": DATASET,
            "download_dir": str(self.downloads),
            "progress": False,
            **options,
            "retries": retries | options.get("retries", {}),
        }
        number = len(list(self.folder.glob("*.stdout")))
        stdout, stderr = (self.folder / f"{number}.{stream}" for stream in ("stdout", "stderr"))
        order = {
            "code": CHILD,
            "options": json.dumps(settings),
            "environment": environment,
            "stdout": str(stdout),
            "stderr": str(stderr),
        }
        stdout.touch()
        started = time.monotonic()
        return Process(self.nursery.ask(order), started, stdout, stderr)

    def run(self, **options: object) -> Outcome:
        return self.finish(self.start(**options), may_leak=bool(options.get("bare_client")))

    def finish(self, process: Process, *, may_leak: bool = False) -> Outcome:
        code = self.nursery.ask({"wait": process.pid})
        outcome = Outcome(
            code=code,
            stdout=process.stdout.read_text(),
            stderr=process.stderr.read_text(),
            seconds=time.monotonic() - process.started,
        )
        if not may_leak:
            self.assert_nothing_leaked(outcome.stdout + outcome.stderr)
        return outcome

    def assert_nothing_leaked(self, output: str) -> None:
        files = [path for path in self.downloads.rglob("*") if path.is_file()]
        written = {str(path): path.read_bytes() for path in files}
        written["the terminal"] = output.encode()
        for where, content in written.items():
            for secret in (*SECRETS, "signature0"):
                assert secret.encode() not in content, f"{secret} is in {where}"
        if "KeyboardInterrupt" not in output:
            assert "Traceback" not in output, output

    def keep_partial(self, num_bytes: int) -> bytes:
        """Leaves a partial download as the client would, cut after `num_bytes`."""
        partial = self.server.archive[:num_bytes]
        self.downloads.mkdir(parents=True, exist_ok=True)
        self.archive.write_bytes(partial)
        note = {"validator": self.server.etag, "size": self.server.size()}
        self.marker.write_text(json.dumps(note))
        return partial

    def assert_downloaded(self, outcome: Outcome) -> None:
        assert outcome.code == 0, outcome.stderr
        assert f"archive: {self.archive}" in outcome.stdout
        assert self.archive.read_bytes() == self.server.archive
        names = sorted(path.name for path in self.downloads.iterdir())
        assert names == [NAME, f"{NAME}.verified.json"]

    def assert_failed(self, outcome: Outcome, *texts: str, kind: str = "DownloadError") -> None:
        assert outcome.code == 2, outcome.stdout + outcome.stderr
        assert f"{kind}: " in outcome.stderr
        for text in texts:
            assert text in outcome.stderr, outcome.stderr

    def ranges(self) -> list[str | None]:
        """The Range header of every request that the storage had."""
        return [request.headers.get("Range") for request in self.server.calls("GET")]


def _archive(num_members: int = 8, member_bytes: int = 150_000, seed: int = 1) -> bytes:
    noise = random.Random(seed)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for index in range(num_members):
            info = zipfile.ZipInfo(f"OCT2017 /train/CNV/CNV-{index}-1.jpeg", (2018, 1, 1, 0, 0, 0))
            info.compress_type = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)[index % 2]
            archive.writestr(info, noise.randbytes(member_bytes))
    return file.getvalue()


ARCHIVE = _archive()


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn(ARCHIVE) as server:
        yield server


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def work(nursery: Nursery, server: StandIn, tmp_path: Path) -> Workplace:
    return Workplace(nursery, server, tmp_path)


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


# --------------------------------------------------------------------------------------------------
# A download that goes well
# --------------------------------------------------------------------------------------------------


def test_a_download_leaves_the_archive_and_what_is_known_of_it(work):
    outcome = work.run()

    work.assert_downloaded(outcome)
    known = json.loads((work.downloads / f"{NAME}.verified.json").read_text())
    assert known == {
        "dataset": DATASET,
        "size": len(ARCHIVE),
        "mtime_ns": work.archive.stat().st_mtime_ns,
        "sha256": hashlib.sha256(ARCHIVE).hexdigest(),
        "num_members": 8,
        "member_bytes": 8 * 150_000,
    }
    assert outcome.stderr == ""


def test_a_second_run_needs_no_network_no_credentials_and_no_client(work):
    work.assert_downloaded(work.run())
    requests_before = len(work.server.requests)
    sidecar_before = (work.downloads / f"{NAME}.verified.json").stat()

    again = work.run(token=None)

    work.assert_downloaded(again)
    assert "kaggle imported: False" in again.stdout
    assert len(work.server.requests) == requests_before
    sidecar = (work.downloads / f"{NAME}.verified.json").stat()
    assert (sidecar.st_ino, sidecar.st_mtime_ns) == (
        sidecar_before.st_ino,
        sidecar_before.st_mtime_ns,
    )


def test_an_archive_put_there_by_hand_is_checked_and_used_without_credentials(work):
    work.downloads.mkdir(parents=True)
    work.archive.write_bytes(ARCHIVE)

    outcome = work.run(token=None)

    work.assert_downloaded(outcome)
    assert work.server.requests == []


def test_the_storage_host_never_sees_the_credentials(work):
    work.keep_partial(CHUNK)

    work.assert_downloaded(work.run())

    assert len(work.server.calls("GET")) == 2
    for request in work.server.calls("GET"):
        assert request.host == STORAGE_HOST
        assert "Authorization" not in request.headers
    assert "Authorization" in work.server.calls("DownloadDataset")[0].headers


def test_the_progress_bars_say_what_is_done(work):
    outcome = work.run(progress=True)

    work.assert_downloaded(outcome)
    assert f"downloading {NAME}: 100%" in outcome.stderr
    assert f"checking {NAME}: 100%" in outcome.stderr


def test_importing_the_module_does_nothing(work):
    code = "import sys, pipelines.sources.kaggle; print('kaggle' in sys.modules)"
    environment = work.server.environment(work.home, PYTHONPATH=str(ROOT), KAGGLE_API_TOKEN=TOKEN)
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (process.stdout, process.stderr) == ("False\n", "")
    assert work.server.requests == []
    assert list(work.home.iterdir()) == []


def test_the_home_folder_stays_as_it_was(work):
    work.assert_downloaded(work.run())

    assert list(work.home.iterdir()) == []


def test_the_bare_client_makes_a_folder_and_asks_the_network_when_it_is_imported(work):
    environment = work.server.environment(work.home, KAGGLE_API_TOKEN=TOKEN)
    subprocess.run([sys.executable, "-c", "import kaggle"], env=environment, check=True, timeout=60)

    assert (work.home / ".config" / "kaggle").is_dir()
    assert len(work.server.calls("IntrospectToken")) == 1


# --------------------------------------------------------------------------------------------------
# Credentials
# --------------------------------------------------------------------------------------------------


def test_without_credentials_every_way_is_named_and_nothing_is_made(work):
    outcome = work.run(token=None)

    work.assert_failed(
        outcome,
        "No Kaggle credentials were found.",
        "https://www.kaggle.com/settings/api",
        "KAGGLE_API_TOKEN",
        "the path of a file",
        "~/.kaggle/access_token",
        "kaggle auth login",
        "KAGGLE_USERNAME",
        "KAGGLE_KEY",
        "~/.kaggle/kaggle.json",
        "--source synthetic",
        kind="CredentialsError",
    )
    assert outcome.stdout == ""
    assert "Authentication required" not in outcome.stderr
    assert work.server.requests == []
    assert list(work.home.iterdir()) == []
    assert not work.downloads.parent.exists()


def test_the_bare_client_without_credentials_exits_the_process(work):
    outcome = work.run(token=None, bare_client=True)

    assert outcome.code == 1
    assert "Authentication required" in outcome.stdout


def _write(path: Path, content: str | dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    path.chmod(0o600)


# Each way: files in the home folder, environment variables ({home} is filled in), the place named.
WAYS = {
    "a token": ({}, {"KAGGLE_API_TOKEN": TOKEN}, "KAGGLE_API_TOKEN"),
    "the path of a token": (
        {"my-token": TOKEN + "\n"},
        {"KAGGLE_API_TOKEN": "{home}/my-token"},
        "KAGGLE_API_TOKEN",
    ),
    "a token file": ({".kaggle/access_token": TOKEN}, {}, ".kaggle/access_token"),
    "a token file of Windows": ({".kaggle/access_token.txt": TOKEN}, {}, "access_token.txt"),
    "a Kaggle notebook": (
        {"v1-token": TOKEN},
        {
            "KAGGLE_KERNEL_RUN_TYPE": "Interactive",
            "KAGGLE_DATA_PROXY_URL": "http://proxy.stand-in",
            "KAGGLE_API_V1_TOKEN": "{home}/v1-token",
        },
        "KAGGLE_API_V1_TOKEN",
    ),
    "a legacy key": (
        {},
        {"KAGGLE_USERNAME": USERNAME, "KAGGLE_KEY": KEY},
        "KAGGLE_USERNAME and KAGGLE_KEY",
    ),
    "kaggle.json": ({".kaggle/kaggle.json": LEGACY_KEY}, {}, ".kaggle/kaggle.json"),
    "kaggle.json in XDG's folder": (
        {".config/kaggle/kaggle.json": LEGACY_KEY},
        {},
        ".config/kaggle/kaggle.json",
    ),
    "kaggle.json elsewhere": (
        {"settings/kaggle.json": LEGACY_KEY},
        {"KAGGLE_CONFIG_DIR": "{home}/settings"},
        "settings/kaggle.json",
    ),
    "a user name beside kaggle.json": (
        {".kaggle/kaggle.json": {"key": KEY}},
        {"KAGGLE_USERNAME": USERNAME},
        "KAGGLE_USERNAME and ",
    ),
    "an OAuth login": (
        {".kaggle/credentials.json": {"refresh_token": REFRESH_TOKEN, "username": USERNAME}},
        {},
        "kaggle auth login",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_give_credentials_works_and_is_named(work, way):
    files, variables, place = WAYS[way]
    for name, content in files.items():
        _write(work.home / name, content)
    variables = {name: value.format(home=work.home) for name, value in variables.items()}

    found = source.find_credentials({"HOME": str(work.home), **variables}).found
    outcome = work.run(token=None, environment=variables)

    assert len(found) == 1
    assert place in found[0]
    work.assert_downloaded(outcome)


UNUSABLE = {
    "a user name alone": ({}, {"KAGGLE_USERNAME": USERNAME}, "KAGGLE_KEY: not set"),
    "an empty token file": ({".kaggle/access_token": " \n"}, {}, "access_token: it is empty"),
    "a token that names an empty file": (
        {"my-token": ""},
        {"KAGGLE_API_TOKEN": "{home}/my-token"},
        "KAGGLE_API_TOKEN: it names a file that is empty",
    ),
    "a token too long for the client": (
        {},
        {"KAGGLE_API_TOKEN": TOKEN * 30},
        "KAGGLE_API_TOKEN: longer than a path may be",
    ),
    "kaggle.json cut short": (
        {".kaggle/kaggle.json": f'{{"username": "{USERNAME}", "key": "{KEY}'},
        {},
        'kaggle.json: expected a JSON object with "username" and "key"',
    ),
    "an OAuth file without a login": (
        {".kaggle/credentials.json": {"access_token": TOKEN}},
        {},
        "credentials.json: it holds no login",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_credentials_are_named_with_the_reason_and_nothing_is_made(work, case):
    files, variables, reason = UNUSABLE[case]
    for name, content in files.items():
        _write(work.home / name, content)
    variables = {name: value.format(home=work.home) for name, value in variables.items()}

    outcome = work.run(token=None, environment=variables)

    work.assert_failed(
        outcome,
        "No usable Kaggle credentials",
        reason,
        "--source synthetic",
        kind="CredentialsError",
    )
    assert work.server.requests == []
    assert not work.downloads.parent.exists()


def test_a_token_that_kaggle_does_not_know_is_refused_by_place_not_by_value(work):
    wrong = "KGAT_no_such_token"

    outcome = work.run(token=wrong)

    work.assert_failed(
        outcome, "Kaggle refused", "found in:\n  KAGGLE_API_TOKEN\n", kind="CredentialsError"
    )
    assert wrong not in outcome.stdout + outcome.stderr
    assert "Authentication required" not in outcome.stderr
    assert not work.downloads.parent.exists()


def test_an_unknown_token_beside_a_good_key_is_named_first(work):
    # The client then logs in with the key, and sends the token all the same.
    variables = {"KAGGLE_USERNAME": USERNAME, "KAGGLE_KEY": KEY}

    outcome = work.run(token="KGAT_no_such_token", environment=variables)

    places = "found in:\n  KAGGLE_API_TOKEN\n  KAGGLE_USERNAME and KAGGLE_KEY\n"
    work.assert_failed(outcome, places, kind="CredentialsError")


def test_a_revoked_login_is_a_matter_of_credentials(work):
    work.server.login_faults += [Refuse(401, "Unauthenticated")]

    work.assert_failed(work.run(), "Kaggle refused", kind="CredentialsError")


def test_a_key_file_that_others_can_read_is_warned_of(work):
    _write(work.home / ".kaggle" / "kaggle.json", LEGACY_KEY)
    (work.home / ".kaggle" / "kaggle.json").chmod(0o644)

    outcome = work.run(token=None)

    work.assert_downloaded(outcome)
    assert "readable by other users" in outcome.stderr


def test_verbose_in_the_environment_shows_no_credentials(work):
    work.assert_downloaded(work.run(environment={"VERBOSE": "1", "VERBOSE_OUTPUT": "1"}))


def test_the_bare_client_shows_credentials_where_the_environment_is_verbose(work):
    outcome = work.run(bare_client=True, environment={"VERBOSE": "1"})

    assert f"Authorization: Bearer {TOKEN}" in outcome.stdout


def test_a_client_that_was_imported_verbose_does_not_read_the_archive_into_memory(work):
    # It would then lose at a cut what it has read, instead of resuming.
    work.server.storage_faults += [Cut(after=CHUNK + 1)]

    outcome = work.run(import_client_first=True, environment={"VERBOSE": "1"})

    work.assert_downloaded(outcome)
    assert work.ranges()[-1] == f"bytes={CHUNK}-"


def test_debug_logging_shows_no_credentials_and_no_signed_address(work):
    outcome = work.run(debug_logging=True)  # The check is in every run.

    work.assert_downloaded(outcome)


def test_a_credential_that_a_server_echoes_is_hidden(work):
    work.server.api_faults += [Refuse(403, f"no rights for {TOKEN}")]

    work.assert_failed(work.run(), "no rights for [hidden]")


# --------------------------------------------------------------------------------------------------
# Interrupted downloads
# --------------------------------------------------------------------------------------------------


def test_cut_connection_resumes_from_the_partial_file(work):
    work.server.storage_faults += [Cut(after=2 * CHUNK + 1000)]

    outcome = work.run()

    work.assert_downloaded(outcome)
    assert work.ranges() == [None, None, f"bytes={2 * CHUNK}-"]
    resumed = work.server.calls("GET")[-1]
    assert resumed.status == 206
    assert resumed.sent == len(ARCHIVE) - 2 * CHUNK
    assert resumed.headers["If-Range"] == work.server.etag
    assert "the connection to the storage host was cut" in outcome.stderr


def test_cuts_are_endless_as_long_as_each_attempt_brings_new_bytes(work):
    # An attempt is two requests: the client opens the archive, then asks for the missing range.
    work.server.storage_faults += [Cut(CHUNK + 1), *[None, Cut(CHUNK + 1)] * 3]

    outcome = work.run(retries={"max_retries": 1})

    work.assert_downloaded(outcome)
    assert work.ranges()[-1] == f"bytes={4 * CHUNK}-"


def test_cuts_that_bring_no_new_bytes_end_in_an_error_that_keeps_the_partial_file(work):
    partial = work.keep_partial(CHUNK)
    work.server.storage_faults += [None, Cut(0)] * 10

    outcome = work.run()

    work.assert_failed(
        outcome, "was cut", "Tried 3 times.", "262.1 kB of 1.2 MB are kept", "to resume"
    )
    assert len(work.server.calls("DownloadDataset")) == 3
    assert work.archive.read_bytes() == partial
    work.server.storage_faults.clear()
    work.assert_downloaded(work.run())


def test_a_killed_download_resumes_in_the_next_process(work):
    work.server.storage_faults += [Stall(after=3 * CHUNK)]
    process = work.start()
    wait_until(lambda: work.archive.exists() and work.archive.stat().st_size == 3 * CHUNK)
    process.send_signal(signal.SIGKILL)
    assert work.finish(process).code == -signal.SIGKILL

    work.assert_downloaded(work.run())

    assert work.ranges() == [None, None, f"bytes={3 * CHUNK}-"]
    assert work.server.calls("GET")[-1].sent == len(ARCHIVE) - 3 * CHUNK


def test_control_c_keeps_the_partial_file_and_gives_the_lock_back(work):
    work.server.storage_faults += [Stall(after=CHUNK)]
    process = work.start()
    wait_until(lambda: work.archive.exists() and work.archive.stat().st_size == CHUNK)
    process.send_signal(signal.SIGINT)

    assert work.finish(process).code != 0
    assert sorted(work.downloads.iterdir()) == [work.archive, work.marker]
    work.assert_downloaded(work.run())
    assert work.ranges()[-1] == f"bytes={CHUNK}-"


def test_a_download_that_was_killed_before_its_last_note_is_not_fetched_again(work):
    work.keep_partial(len(ARCHIVE))
    work.server.storage_faults += [Cut(0)]  # Only the headers come: the bytes are not needed.

    work.assert_downloaded(work.run())

    assert work.ranges() == [None]


def test_an_expired_storage_address_costs_nothing_but_a_fresh_one(work):
    partial = work.keep_partial(CHUNK)
    work.server.storage_faults += [None, Refuse(403, "ExpiredToken")]

    outcome = work.run()

    work.assert_downloaded(outcome)
    assert work.ranges() == [None, f"bytes={len(partial)}-"] * 2
    signatures = [request.query["X-Goog-Signature"] for request in work.server.calls("GET")]
    assert signatures[0] != signatures[-1]
    assert "address has expired" in outcome.stderr


def test_addresses_that_expire_at_once_leave_the_partial_file_as_it_was(work):
    partial = work.keep_partial(CHUNK)
    work.server.uses_of_an_address = 1  # The second use is the request for the range.

    outcome = work.run()

    work.assert_failed(outcome, "address has expired", f"are kept in {work.archive}")
    assert [request.status for request in work.server.calls("GET")] == [200, 403] * 3
    assert work.archive.read_bytes() == partial
    work.server.uses_of_an_address = None
    work.assert_downloaded(work.run())
    assert work.ranges()[-1] == f"bytes={CHUNK}-"


def test_the_bare_client_writes_an_expired_address_s_error_over_the_partial_file(work):
    partial = work.keep_partial(CHUNK)
    work.server.uses_of_an_address = 1

    outcome = work.run(bare_client=True)

    assert "ValueError: Downloaded file size" in outcome.stderr
    assert work.archive.read_bytes() != partial
    assert b"ExpiredToken" in work.archive.read_bytes()
    # Worse: the marker is still good, so the next run resumes on top of the error's body.
    work.server.uses_of_an_address = None
    assert work.run(bare_client=True).code == 0
    assert work.archive.stat().st_size == len(ARCHIVE)
    assert work.archive.read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize("status", [401, 404, 416, 429, 500, 503])
def test_no_refusal_of_the_storage_touches_the_partial_file(work, status):
    partial = work.keep_partial(CHUNK)
    work.server.storage_faults += [None, Refuse(status)]

    outcome = work.run(retries={"max_retries": 0})

    work.assert_failed(outcome, f"HTTP {status}", f"The storage host {STORAGE_HOST}")
    assert work.archive.read_bytes() == partial


@pytest.mark.parametrize("faults", [[Page()], [None, Page()]], ids=["at first", "for the range"])
def test_a_page_in_the_archive_s_place_is_not_taken_for_it(work, faults):
    partial = work.keep_partial(CHUNK)
    work.server.storage_faults += faults

    outcome = work.run(retries={"max_retries": 0})

    work.assert_failed(outcome, "did not send the archive", "a login in the browser")
    assert work.archive.read_bytes() == partial
    work.assert_downloaded(work.run())


def test_a_page_from_the_api_is_not_taken_for_the_archive(work):
    # With an old date, which is what makes the bare client believe that it has nothing to do.
    work.server.api_faults += [Page({"Last-Modified": "Mon, 01 Jan 2001 00:00:00 GMT"})]
    partial = work.keep_partial(CHUNK)

    outcome = work.run(retries={"max_retries": 0})

    work.assert_failed(outcome, "expected a zip archive, got text/html")
    assert work.archive.read_bytes() == partial


def test_another_range_than_the_one_asked_for_is_not_appended(work):
    partial = work.keep_partial(CHUNK)
    work.server.storage_faults += [None, WrongRange()]

    outcome = work.run()

    work.assert_downloaded(outcome)
    assert f"asked for bytes from {len(partial)}" in outcome.stderr


def test_an_archive_that_changed_on_kaggle_is_downloaded_anew(work):
    work.keep_partial(CHUNK)
    work.server.archive = _archive(seed=2)
    work.server.etag = '"second-version"'

    work.assert_downloaded(work.run())

    assert work.ranges() == [None]


@pytest.mark.parametrize("missing", ["ranges", "ETag"])
def test_a_storage_without_ranges_or_without_an_etag_still_gives_the_archive(work, missing):
    if missing == "ranges":
        work.server.accepts_ranges = False
    else:
        work.server.etag = None  # The client then goes by Last-Modified.
    work.server.storage_faults += [Cut(CHUNK + 1)]

    work.assert_downloaded(work.run())

    assert work.ranges() == [None, None] + ([f"bytes={CHUNK}-"] if missing == "ETag" else [])


@pytest.mark.parametrize("where", ["the login", "the API", "the storage", "the range"])
def test_a_connection_that_falls_silent_is_given_up_and_tried_again(work, where):
    if where == "the login":
        work.server.login_faults += [Stall(after=None)]
    elif where == "the API":
        work.server.api_faults += [Stall(after=None)]
    elif where == "the storage":
        work.server.storage_faults += [Stall(after=CHUNK + 1)]
    else:
        work.keep_partial(CHUNK)
        work.server.storage_faults += [None, Stall(after=CHUNK)]

    outcome = work.run(retries={"timeout_s": 1.0})

    work.assert_downloaded(outcome)
    assert "sent nothing for 1 s" in outcome.stderr
    assert outcome.seconds < 15


# --------------------------------------------------------------------------------------------------
# Refusals and faults of the network
# --------------------------------------------------------------------------------------------------


def test_too_many_requests_waits_as_long_as_it_is_asked_to(work):
    work.server.api_faults += [Refuse(429, headers={"Retry-After": "2"})]

    outcome = work.run()

    work.assert_downloaded(outcome)
    assert outcome.seconds > 2
    assert "HTTP 429" in outcome.stderr
    assert "Trying again in 2.0 s (retry 1 of 2)" in outcome.stderr


def test_too_many_requests_without_end_is_an_error(work):
    work.server.api_faults += [Refuse(429, headers={"Retry-After": "0"})] * 10

    outcome = work.run()

    work.assert_failed(outcome, "too many requests", "HTTP 429", "Tried 3 times.")
    assert len(work.server.calls("DownloadDataset")) == 3
    assert not work.downloads.parent.exists()


def test_too_long_a_wait_is_an_error_that_says_when_to_come_back(work):
    work.server.api_faults += [Refuse(429, headers={"Retry-After": "3600"})]

    work.assert_failed(work.run(), "HTTP 429", "asks to wait 3600 s: run the same command again")

    assert len(work.server.calls("DownloadDataset")) == 1


def test_the_bare_client_does_not_wait_on_too_many_requests(work):
    work.server.api_faults += [Refuse(429, headers={"Retry-After": "0"})]

    outcome = work.run(bare_client=True)

    assert outcome.code == 1
    assert "HTTPError" in outcome.stderr


@pytest.mark.parametrize(
    ("value", "seconds"), [("7", 7), (" 0 ", 0), ("", None), ("soon", None), ("-5", None)]
)
def test_retry_after_is_read_as_seconds(value, seconds):
    response = requests.Response()
    response.headers["Retry-After"] = value

    assert source._retry_after(response) == seconds


def test_retry_after_is_read_as_a_date():
    response = requests.Response()
    response.headers["Retry-After"] = formatdate(time.time() + 100, usegmt=True)
    assert 95 < source._retry_after(response) <= 101
    response.headers["Retry-After"] = formatdate(time.time() - 100, usegmt=True)
    assert source._retry_after(response) == 0


@pytest.mark.parametrize(
    ("status", "texts"),
    [
        (400, ("refused the download", "HTTP 400: the stand-in refuses")),
        (401, ("Kaggle refused the credentials", "KAGGLE_API_TOKEN")),
        (
            403,
            ("HTTP 403: the stand-in refuses", "terms or rules", f"kaggle.com/datasets/{DATASET}"),
        ),
        (404, (f"no dataset {DATASET}", "HTTP 404: the stand-in refuses", "OWNER/NAME")),
    ],
)
def test_a_refusal_is_explained_at_once_and_leaves_nothing_behind(work, status, texts):
    work.server.api_faults += [Refuse(status)] * 10
    kind = "CredentialsError" if status == 401 else "DownloadError"

    work.assert_failed(work.run(), *texts, kind=kind)

    assert len(work.server.calls("DownloadDataset")) == 1
    assert not work.downloads.parent.exists()


def test_a_wrong_dataset_name_is_an_error_that_names_it(work):
    work.assert_failed(work.run(dataset="reader/no-such-scans"), "no dataset reader/no-such-scans")


def test_a_fault_of_the_server_is_tried_again(work):
    work.server.login_faults += [Refuse(502)]
    work.server.api_faults += [Refuse(503)]

    outcome = work.run()

    work.assert_downloaded(outcome)
    assert "HTTP 502" in outcome.stderr
    assert "HTTP 503" in outcome.stderr


def test_a_fault_of_the_server_without_end_is_an_error(work):
    work.server.api_faults += [Refuse(500)] * 10

    work.assert_failed(work.run(), "HTTP 500", "Tried 3 times.", "again later")

    assert len(work.server.calls("DownloadDataset")) == 3


def test_no_name_resolution_is_explained(work):
    outcome = work.run(no_dns=True, environment={"http_proxy": ""})

    work.assert_failed(outcome, "the name localhost could not be resolved (DNS)", "Tried 3 times.")
    assert not work.downloads.parent.exists()


def test_a_proxy_that_is_not_there_is_explained_without_its_password(work):
    # Nothing listens on a port that was just given back.
    with StandIn(b"") as gone:
        port = gone.address.rsplit(":", 1)[1]
    proxy = f"http://me:{KEY}@127.0.0.1:{port}"

    outcome = work.run(environment={"http_proxy": proxy})

    work.assert_failed(outcome, "the proxy named in http_proxy")


def test_a_missing_module_of_the_client_is_explained(work):
    # kaggle 2.2.4 imports six without requiring it.
    outcome = work.run(missing_module="six")

    work.assert_failed(outcome, "could not be imported", "six", "pip install kaggle six")
    assert not work.downloads.parent.exists()


@pytest.mark.parametrize("name", ["kermany2018", "a/b/c", "../b", "a/..", "a/b.zip", "", "a b/c"])
def test_a_dataset_name_of_another_form_is_refused(tmp_path, name):
    with pytest.raises(source.DownloadError, match="OWNER/NAME") as error:
        source.download_archive(name, tmp_path / "downloads")
    assert repr(name) in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "values", [{"timeout_s": 0}, {"max_retries": -1}, {"backoff_s": -1}, {"longest_wait_s": -1}]
)
def test_retries_refuse_values_that_make_no_sense(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        source.Retries(**values)


# --------------------------------------------------------------------------------------------------
# The disk, and others who use it
# --------------------------------------------------------------------------------------------------


def test_a_disk_too_small_is_an_error_before_the_first_byte(work):
    work.server.claimed_size = 10**15

    outcome = work.run()

    work.assert_failed(outcome, "free, but", "1000000.0 GB", "--download_dir")
    assert not work.downloads.parent.exists()


def test_a_disk_that_fills_up_is_an_error_that_says_so(work):
    work.downloads.mkdir(parents=True)
    work.archive.symlink_to("/dev/full")

    outcome = work.run()

    work.assert_failed(outcome, f"{work.archive} could not be written: the disk is full")
    assert list(work.downloads.iterdir()) == []


def test_a_file_that_may_not_grow_keeps_its_bytes_and_resumes_where_it_may(work):
    outcome = work.run(limit_bytes=3 * CHUNK)

    work.assert_failed(outcome, "larger than this file system", "to resume")
    assert work.archive.stat().st_size == 3 * CHUNK
    work.assert_downloaded(work.run())
    assert work.ranges()[-1] == f"bytes={3 * CHUNK}-"


def test_a_file_in_the_folder_s_place_is_explained(work):
    work.downloads.parent.mkdir()
    work.downloads.write_text("not a folder")

    work.assert_failed(work.run(), f"{work.downloads} could not be written", "--download_dir")


def test_a_second_download_at_once_is_refused_and_names_the_first(work):
    work.server.storage_faults += [Stall(after=CHUNK)]
    first = work.start()
    wait_until(lambda: work.archive.exists() and work.archive.stat().st_size == CHUNK)
    calls_before = len(work.server.requests)

    second = work.run()

    work.assert_failed(second, "by another process", f"process id {first.pid}", "Wait until")
    assert len(work.server.requests) == calls_before
    assert work.archive.stat().st_size == CHUNK
    first.send_signal(signal.SIGKILL)
    work.finish(first)
    work.assert_downloaded(work.run())  # The dead process's lock file is still there.


def test_a_lock_on_a_file_that_its_last_holder_deleted_is_taken_anew(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    locked = []

    def lock(descriptor: int, operation: int) -> None:
        if not locked:
            path.unlink()  # As the last holder does, between our open and our lock.
        locked.append(descriptor)

    monkeypatch.setattr(source.fcntl, "flock", lock)
    descriptor = source._acquire(path)

    assert len(locked) == 2
    assert os.path.samestat(os.fstat(descriptor), path.stat())
    assert path.read_text() == str(os.getpid())
    os.close(descriptor)


def test_the_same_name_of_another_owner_is_not_mistaken_for_it(work):
    work.assert_downloaded(work.run())

    outcome = work.run(dataset="someone-else/tiny-scans")

    work.assert_failed(outcome, f"is the archive of {DATASET}, not of someone-else/tiny-scans")


# --------------------------------------------------------------------------------------------------
# The check of the archive
# --------------------------------------------------------------------------------------------------


def _offset_of_member(archive: bytes, index: int) -> int:
    """An offset in the middle of a member's data."""
    with zipfile.ZipFile(io.BytesIO(archive)) as file:
        return file.infolist()[index].header_offset + 75_000


@pytest.mark.parametrize("index", [2, 3], ids=["stored", "deflated"])
def test_a_corrupt_archive_of_the_right_size_is_refused_by_member_and_replaced(work, index):
    work.server.corrupt_at = _offset_of_member(ARCHIVE, index)

    outcome = work.run()

    aside = work.downloads / f"{NAME}.corrupt"
    work.assert_failed(
        outcome,
        "has all its bytes, but 1 of its 8 members are corrupt",
        f"'OCT2017 /train/CNV/CNV-{index}-1.jpeg'",
        f"moved to {aside}",
        "Run the same command again",
    )
    assert list(work.downloads.iterdir()) == [aside]
    assert aside.stat().st_size == len(ARCHIVE)
    aside.unlink()
    work.server.corrupt_at = None
    work.assert_downloaded(work.run())


def test_the_bare_client_is_content_with_a_corrupt_archive_of_the_right_size(work):
    work.downloads.mkdir(parents=True)
    work.archive.write_bytes(bytes(len(ARCHIVE)))

    outcome = work.run(bare_client=True)

    assert outcome.code == 0
    assert work.archive.read_bytes() == bytes(len(ARCHIVE))


def test_an_archive_that_is_no_zip_is_refused(tmp_path):
    archive = tmp_path / NAME
    archive.write_bytes(ARCHIVE[:-100])

    with pytest.raises(source.DownloadError, match="no readable zip directory"):
        source.download_archive(DATASET, tmp_path, progress=False)


def test_many_corrupt_members_are_counted_and_some_are_named(tmp_path):
    archive = tmp_path / NAME
    content = bytearray(ARCHIVE)
    for index in range(8):
        content[_offset_of_member(ARCHIVE, index)] ^= 1
    archive.write_bytes(content)

    with pytest.raises(source.DownloadError) as error:
        source.verify_archive(archive, dataset=DATASET, progress=False)
    assert "8 of its 8 members" in str(error.value)
    assert str(error.value).count(".jpeg':") == 5
    assert "and 3 more" in str(error.value)


def test_an_archive_that_changed_since_its_check_is_checked_again(tmp_path):
    archive = tmp_path / NAME
    archive.write_bytes(ARCHIVE)
    source.download_archive(DATASET, tmp_path, progress=False)
    assert source.read_verification(archive) is not None
    content = bytearray(ARCHIVE)
    content[_offset_of_member(ARCHIVE, 0)] ^= 1
    archive.write_bytes(content)
    os.utime(archive, ns=(1, 1))
    assert source.read_verification(archive) is None

    with pytest.raises(source.DownloadError, match="corrupt"):
        source.download_archive(DATASET, tmp_path, progress=False)
    assert [path.name for path in tmp_path.iterdir()] == [f"{NAME}.corrupt"]


def test_a_new_download_is_checked_though_it_looks_like_the_old_one(work):
    # The client gives the file the remote one's time, and a corrupt one has the same size.
    work.assert_downloaded(work.run())
    before = work.archive.stat()
    work.archive.unlink()
    work.server.corrupt_at = _offset_of_member(ARCHIVE, 0)

    work.assert_failed(work.run(), "1 of its 8 members are corrupt")

    after = (work.downloads / f"{NAME}.corrupt").stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_an_archive_that_cannot_be_read_is_explained(tmp_path):
    with pytest.raises(source.DownloadError, match="could not be read: No such file"):
        source.verify_archive(tmp_path / NAME, dataset=DATASET, progress=False)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"size": 1}', "\x00"])
def test_a_damaged_note_of_a_check_is_a_check_that_never_was(tmp_path, content):
    archive = tmp_path / NAME
    archive.write_bytes(ARCHIVE)
    note = tmp_path / f"{NAME}.verified.json"
    note.write_text(content)
    assert source.read_verification(archive) is None

    source.download_archive(DATASET, tmp_path, progress=False)

    assert source.read_verification(archive).sha256 == hashlib.sha256(ARCHIVE).hexdigest()


def test_a_folder_that_others_keep_can_be_read_from(tmp_path, monkeypatch, caplog):
    # Root may write anywhere, so the refusal is made, not provoked.
    def refuse(path: Path) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    archive = tmp_path / NAME
    archive.write_bytes(ARCHIVE)
    (tmp_path / f"{NAME}.verified.json").mkdir()  # Nothing can be written over a folder.
    monkeypatch.setattr(source, "_acquire", refuse)

    assert source.download_archive(DATASET, tmp_path, progress=False) == archive

    assert "could not be written" in caplog.text
    assert len(list(tmp_path.iterdir())) == 2


def test_the_check_streams(tmp_path):
    archive = tmp_path / NAME
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zeros", bytes(64_000_000))
        file.writestr("folder/", b"")
    tracemalloc.start()
    try:
        verification = source.verify_archive(archive, dataset=DATASET, progress=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert verification.member_bytes == 64_000_000
    assert peak < 16_000_000


@pytest.mark.parametrize("num_members", [0, 1, 65_536])
def test_members_are_counted_as_the_zip_s_end_counts_them(tmp_path, num_members):
    archive = tmp_path / NAME
    with zipfile.ZipFile(archive, "w") as file:
        file.comment = b"PK of a comment"
        for index in range(num_members):
            file.writestr(f"{index}", b"")

    assert source._num_members_promised(archive, num_members) == num_members


def test_a_zip_whose_directory_lost_a_member_is_refused(tmp_path):
    # One bit of the last but one entry's comment length, and zipfile reads the last as a comment.
    archive = tmp_path / NAME
    content = bytearray(SMALL)
    entries = [found.start() for found in re.finditer(rb"PK\x01\x02", SMALL)]
    content[entries[-2] + 32] = len(SMALL) - entries[-1] - 22
    archive.write_bytes(content)

    with pytest.raises(source.DownloadError, match="3 members promised, 2 listed"):
        source.verify_archive(archive, dataset=DATASET, progress=False)


SMALL = _archive(num_members=3, member_bytes=400)


@settings(max_examples=150, deadline=None)
@given(offset=st.integers(0, len(SMALL) - 1), mask=st.integers(1, 255))
def test_any_changed_byte_is_either_harmless_or_found(tmp_path_factory, offset, mask):
    folder = tmp_path_factory.mktemp("changed")
    archive = folder / NAME
    content = bytearray(SMALL)
    content[offset] ^= mask
    archive.write_bytes(content)
    complaint = None
    try:
        source.verify_archive(archive, dataset=DATASET, progress=False)
    except source.DownloadError as error:
        complaint = str(error)
    if complaint is None:
        with zipfile.ZipFile(io.BytesIO(SMALL)) as sound, zipfile.ZipFile(archive) as changed:
            read = [(name, changed.read(name)) for name in changed.namelist()]
            assert read == [(name, sound.read(name)) for name in sound.namelist()]
    else:
        assert "corrupt" in complaint
    shutil.rmtree(folder)


def test_the_help_names_every_variable_that_is_looked_up():
    text = re.sub(r"\s+", " ", source._HOW_TO_AUTHENTICATE)
    for name in ("KAGGLE_API_TOKEN", "KAGGLE_USERNAME", "KAGGLE_KEY", "access_token"):
        assert name in text

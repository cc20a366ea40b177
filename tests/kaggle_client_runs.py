"""Runs the real Kaggle client in processes of their own, against the stand-in server.

Every run checks that no credential and no traceback is in what the process wrote, to the terminal
or to disk. Tests whose name begins with `test_the_bare_client` hold what the code guards against:
they show that the stand-in springs the trap, so that the guarded test beside them means something.
"""

import dataclasses
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kaggle_stand_in import (
    DATASET,
    KEY,
    SECRETS,
    TOKEN,
    USERNAME,
    StandIn,
)

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

from pipelines import errors
from pipelines.sources.kaggle import download as source

environment = dict(os.environ)
level = logging.getLogger().level
try:
    archive = source.download_archive(
        options["dataset"],
        Path(folder),
        retries=source.Retries(**options["retries"]),
    )
except (errors.BuildError, errors.UserError) as error:
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

    def assert_failed(self, outcome: Outcome, *texts: str, kind: str = "BuildError") -> None:
        assert outcome.code == 2, outcome.stdout + outcome.stderr
        assert f"{kind}: " in outcome.stderr
        for text in texts:
            assert text in outcome.stderr, outcome.stderr

    def ranges(self) -> list[str | None]:
        """The Range header of every request that the storage had."""
        return [request.headers.get("Range") for request in self.server.calls("GET")]


def make_archive(num_members: int = 8, member_bytes: int = 150_000, seed: int = 1) -> bytes:
    noise = random.Random(seed)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for index in range(num_members):
            info = zipfile.ZipInfo(f"OCT2017 /train/CNV/CNV-{index}-1.jpeg", (2018, 1, 1, 0, 0, 0))
            info.compress_type = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)[index % 2]
            archive.writestr(info, noise.randbytes(member_bytes))
    return file.getvalue()


ARCHIVE = make_archive()


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


def offset_of_member(archive: bytes, index: int) -> int:
    """An offset in the middle of a member's data."""
    with zipfile.ZipFile(io.BytesIO(archive)) as file:
        return file.infolist()[index].header_offset + 75_000


def write_file(path: Path, content: str | dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    path.chmod(0o600)

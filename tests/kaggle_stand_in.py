"""A stand-in for Kaggle's API and its storage, on loopback.

With `KAGGLE_API_ENVIRONMENT=LOCALHOST` Kaggle's library takes http://localhost for the API, and
`http_proxy` brings every request here, whatever its host: `StandIn.environment` has both. So the
API and the storage are told apart by host, as in reality.

    POST http://localhost/api/v1/users.AccountService/GenerateAccessToken   OAuth refresh
    POST http://localhost/api/v1/datasets.DatasetApiService/DownloadDataset 302 to a signed address
    GET  http://storage.stand-in/...zip?X-Goog-Signature=...                the archive, in ranges

Faults wait in a queue for each of the two; every request takes the next one. With None, or with an
empty queue, all goes well. Every request is recorded.

    with StandIn(archive_bytes) as server:
        server.storage_faults += [Cut(after=1000), Refuse(503)]
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import random
import re
import select
import socket
import threading
import time
import zipfile
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

TOKEN = "KGAT_0123456789abcdef-access-token"
USERNAME, KEY = "reader", "fedcba9876543210-legacy-key"
REFRESH_TOKEN = "refresh-token-13579"
SECRETS = (TOKEN, KEY, REFRESH_TOKEN, base64.b64encode(f"{USERNAME}:{KEY}".encode()).decode())
DATASET = "reader/tiny-scans"
STORAGE_HOST = "storage.stand-in"
NAME = "tiny-scans.zip"
_LONGEST_STALL_S = 20.0
_LAST_MODIFIED = "Mon, 01 Jan 2018 00:00:00 GMT"


def make_archive(num_members: int = 8, member_bytes: int = 150_000, seed: int = 1) -> bytes:
    """Returns a zip of noise, in the shape of Kaggle's; every other member is compressed."""
    noise = random.Random(seed)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for index in range(num_members):
            info = zipfile.ZipInfo(f"OCT2017 /train/CNV/CNV-{index}-1.jpeg", (2018, 1, 1, 0, 0, 0))
            info.compress_type = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)[index % 2]
            archive.writestr(info, noise.randbytes(member_bytes))
    return file.getvalue()


ARCHIVE = make_archive()


@dataclass(frozen=True)
class Refuse:
    """Answers with an error; the API may answer 200 and have the status in its JSON."""

    status: int
    message: str = "the stand-in refuses"
    headers: Mapping[str, str] = field(default_factory=dict)
    is_in_json: bool = False


@dataclass(frozen=True)
class Cut:
    """Promises the whole body, and closes the connection after some bytes of it."""

    after: int


@dataclass(frozen=True)
class Stall:
    """Promises the whole body, and falls silent after some bytes of it (None: no answer)."""

    after: int | None


class Page:
    """Answers 200 with a page of HTML, as a proxy or a hotel's network does."""


Fault = Refuse | Cut | Stall | Page


@dataclass
class Recorded:
    """One request, and how it was answered: the status, and the bytes of body that were sent."""

    method: str
    host: str
    path: str
    headers: dict[str, str]
    body: str
    status: int = 0
    sent: int = 0


class StandIn:
    """The server; use it as a context manager. Attributes may be changed while it runs.

    Attributes:
        archive: what the storage serves; bytes, or a file's path.
        api_faults: for the next requests to DownloadDataset, one each.
        storage_faults: for the next requests to the storage, one each.
        etag: of the archive; None: no header.
        claimed_size: a size to lie with; None: the true one.
        requests: all requests so far.
    """

    def __init__(self, archive: bytes | Path):
        self.archive = archive
        self.api_faults: deque[Fault | None] = deque()
        self.storage_faults: deque[Fault | None] = deque()
        self.etag: str | None = '"first-version"'
        self.claimed_size: int | None = None
        self.requests: list[Recorded] = []
        self.addresses: list[str] = []
        self.stopping = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.stand_in = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> StandIn:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def environment(self, home: Path, **variables: str) -> dict[str, str]:
        """Environment of a process whose Kaggle is this server; no credentials are in it."""
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(home),
            "KAGGLE_API_ENVIRONMENT": "LOCALHOST",
            "http_proxy": self.address,
            **variables,
        }

    def calls(self, name: str) -> list[Recorded]:
        """Requests to one API method, such as `DownloadDataset`, or to the storage by `GET`."""
        return [one for one in self.requests if one.method == name or one.path.endswith(name)]

    def size(self) -> int:
        return len(self.archive) if isinstance(self.archive, bytes) else self.archive.stat().st_size

    def new_address(self) -> str:
        signature = f"signature{len(self.addresses):04d}"
        self.addresses.append(
            f"http://{STORAGE_HOST}/archives/archive.zip?X-Goog-Signature={signature}"
        )
        return self.addresses[-1]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    stand_in: StandIn

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up in the middle is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    recorded: Recorded

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        asked = self._record()
        basic = base64.b64encode(f"{USERNAME}:{KEY}".encode()).decode()
        if self.recorded.path.endswith("GenerateAccessToken"):
            if asked.get("refreshToken") == REFRESH_TOKEN:
                answer = {"token": TOKEN, "expiresIn": 43200, "userName": USERNAME}
                self._send(200, json.dumps(answer))
            else:
                self._refuse(Refuse(401, "Unauthenticated"))
        elif not self.recorded.path.endswith("DownloadDataset"):
            self._refuse(Refuse(404, f"no route {self.recorded.path}"))
        elif self._happens(self.server.stand_in.api_faults):
            pass
        elif self.headers.get("Authorization") not in (f"Bearer {TOKEN}", f"Basic {basic}"):
            self._refuse(Refuse(401, "Unauthenticated"))
        elif f"{asked['ownerSlug']}/{asked['datasetSlug']}" != DATASET:
            self._refuse(Refuse(404, "Dataset not found"))
        else:
            self._send(302, "", {"Location": self.server.stand_in.new_address()})

    def do_GET(self) -> None:
        self._record()
        if self.path not in self.server.stand_in.addresses:
            self._refuse(Refuse(403, "ExpiredToken"))
        elif not self._happens(self.server.stand_in.storage_faults):
            self._send_archive(None)

    def _happens(self, faults: deque[Fault | None]) -> bool:
        """Takes the next fault, if there is one, and answers as it says."""
        if not faults:
            return False
        fault = faults.popleft()
        if fault is None:
            return False
        if isinstance(fault, Refuse):
            self._refuse(fault)
        elif isinstance(fault, Page):
            page = "<html><body>Please log in to the network first.</body></html>"
            self._send(200, page, {"Content-Type": "text/html; charset=utf-8"})
        elif isinstance(fault, Stall) and fault.after is None:
            self._wait_for_hang_up()
        else:
            self._send_archive(fault)
        return True

    def _wait_for_hang_up(self) -> None:
        """Says nothing until the client gives up (or the test ends, or a bound is reached)."""
        self.close_connection = True
        deadline = time.monotonic() + _LONGEST_STALL_S
        while not self.server.stand_in.stopping.is_set() and time.monotonic() < deadline:
            if select.select([self.connection], [], [], 0.05)[0]:
                return

    def _send_archive(self, fault: Fault | None) -> None:
        stand_in, size = self.server.stand_in, self.server.stand_in.size()
        headers = {"Content-Type": "application/zip", "Last-Modified": _LAST_MODIFIED}
        if stand_in.etag is not None:
            headers["ETag"] = stand_in.etag
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, end = 0, size
        if asked:
            start, end = int(asked[1]), int(asked[2] or size - 1) + 1
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{stand_in.claimed_size or size}"
        status = 206 if "Content-Range" in headers else 200
        self._send_headers(status, {**headers, "Content-Length": str(end - start)})
        stop = min(end, start + fault.after) if isinstance(fault, Cut | Stall) else end
        self._send_part(start, stop)
        if isinstance(fault, Cut):
            self.close_connection = True
            # A FIN, not a reset, which would take back bytes that the client has not read yet.
            self.connection.shutdown(socket.SHUT_WR)
        elif isinstance(fault, Stall):
            self._wait_for_hang_up()

    def _send_part(self, start: int, stop: int) -> None:
        archive = self.server.stand_in.archive
        if isinstance(archive, Path):
            with archive.open("rb") as file:
                self.wfile.flush()
                self.recorded.sent = self.connection.sendfile(file, start, stop - start)
            return
        for offset in range(start, stop, 1 << 16):
            piece = archive[offset : min(stop, offset + (1 << 16))]
            self.wfile.write(piece)
            self.recorded.sent += len(piece)

    def _refuse(self, fault: Refuse) -> None:
        """Answers in the form that the storage or the API gives an error."""
        if self.recorded.method == "GET":
            body = f"<?xml version='1.0'?><Error><Code>{fault.message}</Code></Error>"
            self._send(fault.status, body, {"Content-Type": "application/xml", **fault.headers})
        else:
            body = json.dumps({"code": fault.status, "message": fault.message})
            self._send(200 if fault.is_in_json else fault.status, body, fault.headers)

    def _send(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        body = text.encode()
        facts = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        self._send_headers(status, {**facts, **(headers or {})})
        self.wfile.write(body)
        self.recorded.sent = len(body)

    def _send_headers(self, status: int, headers: Mapping[str, str]) -> None:
        self.recorded.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _record(self) -> dict[str, str]:
        """Records the request; returns the JSON in its body."""
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        headers = dict(self.headers.items())
        self.recorded = Recorded(self.command, parts.hostname or "", parts.path, headers, body)
        self.server.stand_in.requests.append(self.recorded)
        return json.loads(body) if body else {}

    def finish(self) -> None:
        with contextlib.suppress(OSError):  # The client may be gone.
            super().finish()

"""A stand-in for Kaggle's API and its storage, on loopback.

With `KAGGLE_API_ENVIRONMENT=LOCALHOST` Kaggle's library takes http://localhost for the API, and
`http_proxy` brings every request here, whatever its host: `StandIn.environment` has both. So the
API and the storage are told apart by host, as in reality.

    POST http://localhost/api/v1/users.AccountService/GenerateAccessToken   OAuth refresh
    POST http://localhost/api/v1/datasets.DatasetApiService/DownloadDataset 302 to a signed address
    GET  http://storage.stand-in/...zip?X-Goog-Signature=...                the archive, in ranges

Faults wait in a queue for each of the two; every request takes the next one, and with an empty
queue (or a None in it) all goes well. Every request is recorded, with the bytes of body that were
sent for it.

    with StandIn(archive_bytes) as server:
        server.storage_faults += [Cut(after=1000), Refuse(503)]
"""

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
from urllib.parse import parse_qs, urlsplit

TOKEN = "KGAT_0123456789abcdef-access-token"
USERNAME, KEY = "reader", "fedcba9876543210-legacy-key"
REFRESH_TOKEN = "refresh-token-13579"
SECRETS = (TOKEN, KEY, REFRESH_TOKEN, base64.b64encode(f"{USERNAME}:{KEY}".encode()).decode())
DATASET = "reader/tiny-scans"
STORAGE_HOST = "storage.stand-in"
NAME = "tiny-scans.zip"
_LONGEST_STALL_S = 20.0


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
    """Answers with an error, in the form that Kaggle's API and storage give it.

    The API may answer 200 and have the status in its JSON (`is_in_json`).
    """

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
    """Promises the whole body, and falls silent after some bytes of it (before any: no answer)."""

    after: int | None


@dataclass(frozen=True)
class Page:
    """Answers 200 with a page of HTML, as a proxy or a hotel's network does."""

    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class WrongRange:
    """Answers 206 with another range than the one asked for."""


Fault = Refuse | Cut | Stall | Page | WrongRange


@dataclass
class Recorded:
    """One request, and how it was answered."""

    method: str
    host: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: str
    status: int = 0
    sent: int = 0


class StandIn:
    """The server; use it as a context manager. Attributes may be changed while it runs.

    Attributes:
        archive: What the storage serves; bytes, or a file's path.
        api_faults: For the next requests to DownloadDataset, one each.
        storage_faults: For the next requests to the storage, one each.
        uses_of_an_address: How often a signed address works before it has expired; None: always.
        corrupt_at: Offset of a byte that is sent with all its bits flipped; None: none is.
        etag: Of the archive; None: no header.
        accepts_ranges: Whether the storage says so; where it does not, it ignores Range too.
        claimed_size: A Content-Length to lie with; None: the true one.
        requests: All requests so far.
    """

    def __init__(self, archive: bytes | Path):
        self.archive = archive
        self.api_faults: deque[Fault | None] = deque()
        self.storage_faults: deque[Fault | None] = deque()
        self.uses_of_an_address: int | None = None
        self.corrupt_at: int | None = None
        self.etag: str | None = '"first-version"'
        self.last_modified = "Mon, 01 Jan 2018 00:00:00 GMT"
        self.accepts_ranges = True
        self.claimed_size: int | None = None
        self.requests: list[Recorded] = []
        self.stopping = threading.Event()
        self._addresses: dict[str, int] = {}
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.stand_in = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> "StandIn":
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

    def calls(self, method: str) -> list[Recorded]:
        """Requests to one API method, such as `DownloadDataset`, or to the storage by `GET`."""
        if method == "GET":
            return [request for request in self.requests if request.method == "GET"]
        return [request for request in self.requests if request.path.endswith(method)]

    def size(self) -> int:
        return len(self.archive) if isinstance(self.archive, bytes) else self.archive.stat().st_size

    def new_address(self) -> str:
        with self._lock:
            signature = f"signature{len(self._addresses):04d}"
            self._addresses[signature] = 0
        return f"http://{STORAGE_HOST}/archives/archive.zip?X-Goog-Signature={signature}"

    def use_address(self, signature: str) -> bool:
        """Whether a signed address still works; counts the use."""
        with self._lock:
            if signature not in self._addresses:
                return False
            self._addresses[signature] += 1
            limit = self.uses_of_an_address
            return limit is None or self._addresses[signature] <= limit

    def record(self, request: Recorded) -> None:
        with self._lock:
            self.requests.append(request)


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

    # The two sides ------------------------------------------------------------------------------

    def do_POST(self) -> None:
        self._record()
        stand_in = self.server.stand_in
        if self.recorded.path.endswith("GenerateAccessToken"):
            if json.loads(self.recorded.body).get("refreshToken") == REFRESH_TOKEN:
                self._send_json(200, {"token": TOKEN, "expiresIn": 43200, "userName": USERNAME})
            else:
                self._send_json(401, {"code": 401, "message": "Unauthenticated"})
        elif self.recorded.path.endswith("DownloadDataset"):
            if not self._happens(stand_in.api_faults):
                self._download_dataset()
        else:
            self._send_json(404, {"code": 404, "message": f"no route {self.recorded.path}"})

    def _download_dataset(self) -> None:
        asked = json.loads(self.recorded.body)
        if not self._is_authorized():
            self._send_json(401, {"code": 401, "message": "Unauthenticated"})
        elif f"{asked['ownerSlug']}/{asked['datasetSlug']}" != DATASET:
            self._send_json(404, {"code": 404, "message": "Dataset not found"})
        else:
            self._send_headers(
                302, {"Location": self.server.stand_in.new_address(), "Content-Length": "0"}
            )

    def do_GET(self) -> None:
        self._record()
        stand_in = self.server.stand_in
        signature = self.recorded.query.get("X-Goog-Signature", [""])[0]
        if not stand_in.use_address(signature):
            self._send_storage_error(403, "ExpiredToken", {})
        elif not self._happens(stand_in.storage_faults):
            self._send_archive(None)

    def _is_authorized(self) -> bool:
        basic = base64.b64encode(f"{USERNAME}:{KEY}".encode()).decode()
        return self.headers.get("Authorization") in (f"Bearer {TOKEN}", f"Basic {basic}")

    # Faults -------------------------------------------------------------------------------------

    def _happens(self, faults: deque[Fault | None]) -> bool:
        """Takes the next fault, if there is one, and answers as it says."""
        fault = faults.popleft() if faults else None
        if fault is None:
            return False
        is_storage = self.recorded.method == "GET"
        if isinstance(fault, Refuse) and is_storage:
            self._send_storage_error(fault.status, fault.message, fault.headers)
        elif isinstance(fault, Refuse):
            answer = {"code": fault.status, "message": fault.message}
            self._send_json(200 if fault.is_in_json else fault.status, answer, fault.headers)
        elif isinstance(fault, Page):
            page = b"<html><body>Please log in to the network first.</body></html>"
            self._send(200, page, {"Content-Type": "text/html; charset=utf-8", **fault.headers})
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

    # Answers ------------------------------------------------------------------------------------

    def _send_archive(self, fault: Fault | None) -> None:
        stand_in = self.server.stand_in
        size = stand_in.size()
        start = self._start(size)
        status = 200 if start is None else 206
        start = start or 0
        headers = {"Content-Type": "application/zip", "Last-Modified": stand_in.last_modified}
        if stand_in.etag is not None:
            headers["ETag"] = stand_in.etag
        if stand_in.accepts_ranges:
            headers["Accept-Ranges"] = "bytes"
        if status == 206:
            claimed_start = 0 if isinstance(fault, WrongRange) else start
            headers["Content-Range"] = f"bytes {claimed_start}-{size - 1}/{size}"
        length = stand_in.claimed_size or size
        self._send_headers(status, {**headers, "Content-Length": str(length - start)})
        stop = size
        if isinstance(fault, Cut | Stall) and fault.after is not None:
            stop = min(size, start + fault.after)
        self._send_bytes(start, stop)
        if isinstance(fault, Cut) or stand_in.claimed_size:
            self.close_connection = True
            # A FIN, not a reset, which would take back bytes that the client has not read yet.
            self.connection.shutdown(socket.SHUT_WR)
        elif isinstance(fault, Stall):
            self._wait_for_hang_up()

    def _start(self, size: int) -> int | None:
        """The first byte asked for; None where the whole archive is to be sent."""
        stand_in = self.server.stand_in
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        condition = self.headers.get("If-Range")
        is_current = condition in (None, stand_in.etag, stand_in.last_modified)
        if not (asked and stand_in.accepts_ranges and is_current) or int(asked[1]) >= size:
            return None
        return int(asked[1])

    def _send_bytes(self, start: int, stop: int) -> None:
        stand_in = self.server.stand_in
        if isinstance(stand_in.archive, Path):
            with stand_in.archive.open("rb") as file:
                self.wfile.flush()
                self.recorded.sent = self.connection.sendfile(file, start, stop - start)
            return
        content = bytearray(stand_in.archive[start:stop])
        if stand_in.corrupt_at is not None and start <= stand_in.corrupt_at < stop:
            content[stand_in.corrupt_at - start] ^= 0xFF
        view = memoryview(content)
        for offset in range(0, len(view), 1 << 16):
            piece = view[offset : offset + (1 << 16)]
            self.wfile.write(piece)
            self.recorded.sent += len(piece)

    def _send_storage_error(self, status: int, code: str, headers: Mapping[str, str]) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode()
        self._send(status, body, {"Content-Type": "application/xml", **headers})

    def _send_json(
        self, status: int, answer: Mapping[str, object], headers: Mapping[str, str] | None = None
    ) -> None:
        body = json.dumps(answer).encode()
        self._send(status, body, {"Content-Type": "application/json", **(headers or {})})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self._send_headers(status, {**headers, "Content-Length": str(len(body))})
        self.wfile.write(body)
        self.recorded.sent = len(body)

    def _send_headers(self, status: int, headers: Mapping[str, str]) -> None:
        self.recorded.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _record(self) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        self.recorded = Recorded(
            method=self.command,
            host=parts.hostname or "",
            path=parts.path,
            query=parse_qs(parts.query),
            headers=dict(self.headers.items()),
            body=self.rfile.read(length).decode(),
        )
        self.server.stand_in.record(self.recorded)

    def finish(self) -> None:
        with contextlib.suppress(OSError):  # The client may be gone.
            super().finish()

"""A stand-in for Kaggle's API and its storage, on loopback.

With `KAGGLE_API_ENVIRONMENT=LOCALHOST` Kaggle's client takes http://localhost for the API, and
`http_proxy` brings every request here, whatever its host: `StandIn.log_in` sets both.

    POST .../security.OAuthService/IntrospectToken                          who has a token
    POST .../datasets.DatasetApiService/DownloadDataset                     302 to a signed address
    GET  http://storage.stand-in/archive.zip?X-Goog-Signature=...           the archive, in ranges
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

TOKEN = "KGAT_0123456789abcdef-access-token"
PASSWORD = "fedcba9876543210-of-a-proxy"
DATASET, NAME = "reader/tiny-scans", "tiny-scans.zip"
SIGNATURE = "X-Goog-Signature=signature0000"


def assert_no_secret(folder: Path, text: str) -> None:
    """Checks that no credential and no signature is in a message, or in a file of a folder."""
    written = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for where, content in {**written, "a message": text.encode()}.items():
        for secret in (TOKEN, PASSWORD, "signature0000"):
            assert secret.encode() not in content, f"{secret} is in {where}"


def _make_archive() -> bytes:
    """Returns a zip of noise, in the shape of Kaggle's; every other member is compressed."""
    noise, file = random.Random(1), io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for index in range(8):
            kind = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)[index % 2]
            name = f"OCT2017 /train/CNV/CNV-{index}-1.jpeg"
            archive.writestr(name, noise.randbytes(150_000), kind)
    return file.getvalue()


ARCHIVE = _make_archive()


class StandIn(ThreadingHTTPServer):
    """The server; use it as a context manager.

    Attributes:
        content: of the archive.
        refusals: the statuses with which the next requests to DownloadDataset are refused.
        num_cut: how many of the next downloads end a byte early.
        requests: the path and the range of all so far.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content, self.num_cut = content, 0
        self.refusals: list[int] = []
        self.requests: list[tuple[str, str | None]] = []
        threading.Thread(target=self.serve_forever, args=(0.02,)).start()

    def __exit__(self, *exception: object) -> None:
        self.shutdown()
        self.server_close()

    def log_in(self, patch: pytest.MonkeyPatch, home: Path) -> None:
        """Makes this server the Kaggle of this process, which has a token and nothing else."""
        for name in [*os.environ]:
            if name.startswith(("KAGGLE_", "XDG_")) or name.lower() == "no_proxy":
                patch.delenv(name)
        patch.setenv("HOME", str(home))
        patch.setenv("KAGGLE_API_ENVIRONMENT", "LOCALHOST")
        patch.setenv("http_proxy", f"http://127.0.0.1:{self.server_address[1]}")
        patch.setenv("KAGGLE_API_TOKEN", TOKEN)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StandIn

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET" and self.server.num_cut:
            self.server.num_cut -= 1
            self.close_connection, body = True, body[:-1]
        self.wfile.write(body)

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.requests.append((self.path, wanted))
        content, facts = self.server.content, {"ETag": '"1"', "Last_Modified": _DATE}
        if not wanted:
            return self._answer(200, content, **facts)
        start, end = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted).groups()
        part = content[int(start) : int(end) + 1 if end else None]
        last = int(start) + len(part) - 1
        return self._answer(
            206, part, Content_Range=f"bytes {start}-{last}/{len(content)}", **facts
        )

    def do_POST(self) -> None:
        self.server.requests.append((self.path, None))
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "{}")
        if self.path.endswith("IntrospectToken"):
            return self._send(200, {"active": asked.get("token") == TOKEN, "username": "reader"})
        if self.server.refusals:
            status = self.server.refusals.pop(0)
            return self._send(status, {"code": status, "message": "the stand-in refuses"})
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._send(401, {"code": 401, "message": "Unauthenticated"})
        return self._answer(302, Location=f"http://storage.stand-in/archive.zip?{SIGNATURE}")

    def _send(self, status: int, content: object) -> None:
        self._answer(status, json.dumps(content).encode(), Content_Type="application/json")


_DATE = "Mon, 01 Jan 2018 00:00:00 GMT"

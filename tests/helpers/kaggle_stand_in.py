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
import zipfile
from collections import deque
from pathlib import Path

import pytest
from web_server import Files, Request, WebFile, WebServer

TOKEN = "KGAT_0123456789abcdef-access-token"
PASSWORD = "fedcba9876543210-of-a-proxy"
SECRETS = (TOKEN, PASSWORD, "signature0000")
DATASET = "reader/tiny-scans"
SIGNATURE = "X-Goog-Signature=signature0000"
NAME = "tiny-scans.zip"


def assert_no_secret(folder: Path, said: str) -> None:
    """Checks that no credential and no signature is in a message, or in a file of a folder."""
    written = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for where, content in {**written, "a message": said.encode()}.items():
        for secret in SECRETS:
            assert secret.encode() not in content, f"{secret} is in {where}"


def _make_archive() -> bytes:
    """Returns a zip of noise, in the shape of Kaggle's; every other member is compressed."""
    noise = random.Random(1)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for index in range(8):
            info = zipfile.ZipInfo(f"OCT2017 /train/CNV/CNV-{index}-1.jpeg", (2018, 1, 1, 0, 0, 0))
            info.compress_type = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)[index % 2]
            archive.writestr(info, noise.randbytes(150_000))
    return file.getvalue()


ARCHIVE = _make_archive()


class StandIn(WebServer):
    """The server; use it as a context manager.

    Attributes:
        file: the archive, and its version.
        refusals: the statuses with which the next requests to DownloadDataset are refused.
    """

    def __init__(self, archive: bytes) -> None:
        super().__init__(_Handler)
        self.file = WebFile(archive)
        self.files = {"archive.zip": self.file}
        self.refusals: deque[int] = deque()

    def log_in(self, patch: pytest.MonkeyPatch, home: Path) -> None:
        """Makes this server the Kaggle of this process, which has a token and nothing else."""
        for name in [*os.environ]:
            if name.startswith(("KAGGLE_", "XDG_")) or name.lower() == "no_proxy":
                patch.delenv(name)
        patch.setenv("HOME", str(home))
        patch.setenv("KAGGLE_API_ENVIRONMENT", "LOCALHOST")
        patch.setenv("http_proxy", self.url().rstrip("/"))
        patch.setenv("KAGGLE_API_TOKEN", TOKEN)

    def calls(self, name: str) -> list[Request]:
        """Requests to one API method, such as `DownloadDataset`, or to the storage by `GET`."""
        return [one for one in self.requests if one.method == name or one.path.endswith(name)]


class _Handler(Files):
    server: StandIn

    def do_POST(self) -> None:  # noqa: N802 - http.server's name
        self._fault = ""
        asked = json.loads(self._receive() or "{}")
        if self.path.endswith("IntrospectToken"):
            return self._send(200, {"active": asked.get("token") == TOKEN, "username": "reader"})
        if not self.path.endswith("DownloadDataset"):
            return self._send(404, {"code": 404, "message": f"no route {self.path}"})
        if self.server.refusals:
            status = self.server.refusals.popleft()
            return self._send(status, {"code": status, "message": "the stand-in refuses"})
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._send(401, {"code": 401, "message": "Unauthenticated"})
        return self._answer(
            302, headers={"Location": f"http://storage.stand-in/archive.zip?{SIGNATURE}"}
        )

    def _send(self, status: int, content: object) -> None:
        self._answer(status, json.dumps(content).encode(), {"Content-Type": "application/json"})

"""A stand-in for Kaggle's API and its storage, on loopback.

With `KAGGLE_API_ENVIRONMENT=LOCALHOST` Kaggle's library takes http://localhost for the API, and
`http_proxy` brings every request here, whatever its host: `StandIn.environment` has both. So the
API and the storage are told apart by host, as in reality.

    POST http://localhost/api/v1/users.AccountService/GenerateAccessToken   OAuth refresh
    POST http://localhost/api/v1/datasets.DatasetApiService/DownloadDataset 302 to a signed address
    GET  http://storage.stand-in/archive.zip?X-Goog-Signature=...           the archive, in ranges

Faults wait in a queue for each of the two; every request takes the next one, and with an empty
queue all goes well. The storage is a `WebServer`, whose faults it knows. Every request is recorded.

    with StandIn(archive_bytes) as server:
        server.faults += ["cut", "refused"]
"""

from __future__ import annotations

import base64
import io
import json
import random
import zipfile
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from web_server import Files, Request, WebFile, WebServer

TOKEN = "KGAT_0123456789abcdef-access-token"
USERNAME, KEY = "reader", "fedcba9876543210-legacy-key"
REFRESH_TOKEN = "refresh-token-13579"
_BASIC = base64.b64encode(f"{USERNAME}:{KEY}".encode()).decode()
SECRETS = (TOKEN, KEY, REFRESH_TOKEN, _BASIC)
DATASET = "reader/tiny-scans"
STORAGE_HOST, SIGNATURE = "storage.stand-in", "X-Goog-Signature=signature0000"
NAME = "tiny-scans.zip"


def assert_no_secret(folder: Path, said: str) -> None:
    """Checks that no credential and no signature is in a message, or in a file of a folder."""
    written = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for where, content in {**written, "a message": said.encode()}.items():
        for secret in (*SECRETS, "signature0"):
            assert secret.encode() not in content, f"{secret} is in {where}"


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
    """An error of the API, which may answer 200 and have the status in its JSON."""

    status: int
    message: str = "the stand-in refuses"
    headers: Mapping[str, str] = field(default_factory=dict)
    is_in_json: bool = False


class StandIn(WebServer):
    """The server; use it as a context manager. Attributes may be changed while it runs.

    Attributes:
        file: the archive, and its version.
        address: its signed address.
        api_faults: for the next requests to DownloadDataset: an error, "page" for one of HTML as a
            network with a login sends it, or "silent".
    """

    def __init__(self, archive: bytes) -> None:
        super().__init__(_Handler)
        self.file = WebFile(archive, query=SIGNATURE)
        self.files = {"archive.zip": self.file}
        self.api_faults: deque[Refuse | str] = deque()
        self.address = f"http://{STORAGE_HOST}/archive.zip?{SIGNATURE}"

    def environment(self, home: Path, **variables: str) -> dict[str, str]:
        """Environment of a process whose Kaggle is this server; no credentials are in it."""
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(home),
            "KAGGLE_API_ENVIRONMENT": "LOCALHOST",
            "http_proxy": self.url().rstrip("/"),
            **variables,
        }

    def calls(self, name: str) -> list[Request]:
        """Requests to one API method, such as `DownloadDataset`, or to the storage by `GET`."""
        return [one for one in self.requests if one.method == name or one.path.endswith(name)]


class _Handler(Files):
    server: StandIn

    def do_POST(self) -> None:  # noqa: N802 - http.server's name
        self._fault = ""
        asked = json.loads(self._receive() or "{}")
        if self.path.endswith("GenerateAccessToken"):
            if asked.get("refreshToken") == REFRESH_TOKEN:
                answer = {"token": TOKEN, "expiresIn": 43200, "userName": USERNAME}
                return self._send(200, json.dumps(answer))
            return self._refuse(Refuse(401, "Unauthenticated"))
        if not self.path.endswith("DownloadDataset"):
            return self._refuse(Refuse(404, f"no route {self.path}"))
        fault = self.server.api_faults.popleft() if self.server.api_faults else None
        if isinstance(fault, Refuse):
            return self._refuse(fault)
        if fault == "page":
            return self._send(200, "<html>Please log in to the network first.</html>", "text/html")
        if fault == "silent":
            self.server.woken.wait(20)
            self.close_connection = True
            return None
        if self.headers.get("Authorization") not in (f"Bearer {TOKEN}", f"Basic {_BASIC}"):
            return self._refuse(Refuse(401, "Unauthenticated"))
        if f"{asked['ownerSlug']}/{asked['datasetSlug']}" != DATASET:
            return self._refuse(Refuse(404, "Dataset not found"))
        return self._answer(302, headers={"Location": self.server.address})

    def _refuse(self, fault: Refuse) -> None:
        body = json.dumps({"code": fault.status, "message": fault.message})
        self._send(200 if fault.is_in_json else fault.status, body, **fault.headers)

    def _send(self, status: int, text: str, kind: str = "application/json", **headers: str) -> None:
        self._answer(status, text.encode(), {"Content-Type": kind, **headers})

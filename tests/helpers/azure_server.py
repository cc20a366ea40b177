"""A small stand-in of Azure's Blob Storage on loopback.

It speaks what object_store asks of a container: blobs whole and in blocks, ranges,
conditions, listings and batches of deletes. It checks that a request is signed, not how.
"""

import contextlib
import email
import os
import re
import ssl
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from unittest import mock
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from web_server import Files, WebFile, WebServer

CONTAINER = "scans"
# Those of Microsoft's emulator, which its documentation publishes.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_ROOT = f"{ACCOUNT}/{CONTAINER}/"


class AzureServer(WebServer):
    """A running server with an empty container; its `files` are the blobs."""

    def __init__(self) -> None:
        super().__init__(_Blobs)
        self.blocks: dict[tuple[str, str], bytes] = {}
        self.count = 0

    def read(self, prefix: str) -> dict[str, bytes]:
        """Returns the blobs below a prefix, by the rest of their names."""
        return {
            name.removeprefix(prefix): file.content
            for name, file in self.files.items()
            if name.startswith(prefix)
        }

    def url(self, path: str = "") -> str:
        return f"az://{CONTAINER}/{path}"

    def serve(self, folder: Path) -> str:
        """Puts the files of a folder into the container; returns its URL."""
        for path in filter(Path.is_file, folder.iterdir()):
            self.put(f"data/{path.name}", path.read_bytes())
        return self.url("data")

    def put(self, name: str, content: bytes) -> str:
        """Stores a new version of a blob; returns its ETag."""
        self.count += 1
        e_tag = f'"0x{self.count:X}"'
        self.files[name] = WebFile(content, e_tag)
        return e_tag


@contextlib.contextmanager
def running_azure(context: ssl.SSLContext | None = None) -> Iterator[AzureServer]:
    """Runs a server that is found by the variables of Azure's own tools."""
    server = AzureServer()
    if context is not None:
        server.scheme = "https"
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    found = (
        f"DefaultEndpointsProtocol={server.scheme};AccountName={ACCOUNT};AccountKey={KEY};"
        f"BlobEndpoint={super(AzureServer, server).url(ACCOUNT)};"
    )
    no_proxy = {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
    variables = {"AZURE_STORAGE_CONNECTION_STRING": found, **no_proxy}
    with mock.patch.dict(os.environ, variables), server:
        yield server


class _Blobs(Files):
    server: AzureServer
    root = _ROOT

    def _request(self) -> tuple[str, dict[str, str], bytes]:
        """Draws the fault of this request; returns its path, its query and its body."""
        self._fault = self.server.next_fault()
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query, True).items()}
        return unquote(parts.path)[1:].removeprefix(_ROOT), query, self._receive()

    def do_PUT(self) -> None:  # noqa: N802 - http.server's name
        name, query, body = self._request()
        if not self.headers.get("Authorization", "").startswith(f"SharedKey {ACCOUNT}:"):
            return self._answer(403)
        there = self.server.files.get(name)
        if there and "If-None-Match" in self.headers:
            return self._answer(409)
        if self.headers.get("If-Match") not in (None, there and there.e_tag):
            return self._answer(412)
        if source := self.headers.get("x-ms-copy-source"):
            body = self.server.files[unquote(urlsplit(source).path)[1:].removeprefix(_ROOT)].content
        if query.get("comp") == "block":
            self.server.blocks[name, query["blockid"]] = body
            return self._answer(201)
        if query.get("comp") == "blocklist":
            blocks = re.findall(r"<(?:Latest|Uncommitted)>([^<]*)<", body.decode())
            body = b"".join(self.server.blocks.pop((name, block)) for block in blocks)
        return self._answer(201, headers={"ETag": self.server.put(name, body)})

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        if "comp=list" not in self.path:
            return super().do_GET()
        _, query, _ = self._request()
        return self._answer(200, self._listing(query), {"Content-Type": "application/xml"})

    def do_HEAD(self) -> None:  # noqa: N802 - http.server's name
        self.do_GET()

    def do_POST(self) -> None:  # noqa: N802 - http.server's name
        _, _, body = self._request()
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        answers = []
        for index, part in enumerate(email.message_from_bytes(head + body).get_payload()):
            target = re.search(r"DELETE (\S+)", part.get_payload())[1]
            name = unquote(urlsplit(target).path)[1:].removeprefix(_ROOT)
            status = "202 Accepted" if self.server.files.pop(name, None) else "404 Not Found"
            answers.append(
                f"--answer\r\nContent-Type: application/http\r\nContent-ID: {index}\r\n\r\n"
                f"HTTP/1.1 {status}\r\nx-ms-error-code: BlobNotFound\r\n\r\n\r\n"
            )
        kind = {"Content-Type": "multipart/mixed; boundary=answer"}
        self._answer(202, ("".join(answers) + "--answer--\r\n").encode(), kind)

    def _listing(self, query: dict[str, str]) -> bytes:
        start, found = query.get("prefix", ""), []
        for name, file in sorted(self.server.files.items()):
            deeper = "/" in name[len(start) :] and "delimiter" in query
            if name.startswith(start) and not deeper:
                found.append(
                    f"<Blob><Name>{escape(name)}</Name><Properties>"
                    f"<Last-Modified>{formatdate(0, usegmt=True)}</Last-Modified>"
                    f"<Etag>{file.e_tag}</Etag><Content-Length>{len(file.content)}</Content-Length>"
                    "<Content-Type>text/plain</Content-Type></Properties></Blob>"
                )
        blobs = f"<Blobs>{''.join(found)}</Blobs><NextMarker />"
        return f"<EnumerationResults>{blobs}</EnumerationResults>".encode()

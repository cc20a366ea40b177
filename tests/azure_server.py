"""A small stand-in of Azure's Blob Storage on loopback.

It speaks what object_store asks of a container: blobs whole and in blocks, ranges,
If-Match, listings and batches of deletes. It checks that a request is signed, not how.
"""

from __future__ import annotations

import contextlib
import email
import os
import re
from collections.abc import Iterator
from email.utils import formatdate
from unittest import mock
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import s3_server
from web_server import Files, WebServer, running_web

from tfrecord_io.stores import remote

CONTAINER = "scans"
# Those of Microsoft's emulator, which its documentation publishes.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class AzureServer(WebServer):
    """A running server with an empty container."""

    def __init__(self) -> None:
        super().__init__(_Blobs)
        self.blobs: dict[str, tuple[bytes, str]] = {}
        self.blocks: dict[tuple[str, str], bytes] = {}
        self.count = 0
        self.faults = s3_server.Faults()

    def failing(self, **faults: int | str) -> contextlib.AbstractContextManager[None]:
        """Makes the server answer with a status, or with half of the body."""
        return self.faults.on(**faults)

    def read(self, prefix: str) -> dict[str, bytes]:
        """Returns the blobs below a prefix, by the rest of their names."""
        blobs = self.blobs.items()
        return {n.removeprefix(prefix): body for n, (body, _) in blobs if n.startswith(prefix)}


@contextlib.contextmanager
def running_azure() -> Iterator[AzureServer]:
    """Runs a server that is found by the variables of Azure's own tools."""
    with running_web(kind=AzureServer) as server:
        found = (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
            f"BlobEndpoint={server.url(ACCOUNT)};"
        )
        with mock.patch.dict(os.environ, {"AZURE_STORAGE_CONNECTION_STRING": found}):
            remote.forget_stores()
            yield server


class _Blobs(Files):
    server: AzureServer

    def _request(self) -> tuple[str, dict[str, str], bytes]:
        parts = urlsplit(self.path)
        name = unquote(parts.path).removeprefix(f"/{ACCOUNT}/{CONTAINER}").lstrip("/")
        query = {key: values[0] for key, values in parse_qs(parts.query, True).items()}
        return name, query, self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, status: int, body: bytes = b"", /, **headers: str) -> None:
        sent = len(body)
        if fault := self.server.faults.next():
            self.close_connection = True
            sent //= 2
            if fault != "half":
                status, body, headers = int(fault[:3]), b"", {}
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        with contextlib.suppress(ConnectionError):  # a test may kill the client
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[:sent])

    def do_PUT(self) -> None:  # noqa: N802 - http.server's name
        name, query, body = self._request()
        if not self.headers.get("Authorization", "").startswith(f"SharedKey {ACCOUNT}:"):
            return self._answer(403)
        if query.get("comp") == "block":
            self.server.blocks[name, query["blockid"]] = body
            return self._answer(201)
        if query.get("comp") == "blocklist":
            blocks = re.findall(r"<(?:Latest|Uncommitted)>([^<]*)<", body.decode())
            body = b"".join(self.server.blocks.pop((name, block)) for block in blocks)
        self.server.count += 1
        self.server.blobs[name] = (body, f"0x{self.server.count:X}")
        return self._answer(201, ETag=f'"0x{self.server.count:X}"')

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        name, query, _ = self._request()
        if query.get("comp") == "list":
            return self._answer(200, self._listing(query), Content_Type="application/xml")
        if name not in self.server.blobs:
            return self._answer(404, b"<?xml?><Error><Code>BlobNotFound</Code></Error>")
        body, e_tag = self.server.blobs[name]
        if self.headers.get("If-Match", f'"{e_tag}"') != f'"{e_tag}"':
            return self._answer(412)
        headers = {"ETag": f'"{e_tag}"', "Last_Modified": formatdate(0, usegmt=True)}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not wanted:
            return self._answer(200, body, **headers)
        start, end = int(wanted[1]), min(int(wanted[2]) + 1, len(body))
        if start >= len(body):
            return self._answer(416)
        headers["Content_Range"] = f"bytes {start}-{end - 1}/{len(body)}"
        return self._answer(206, body[start:end], **headers)

    def do_HEAD(self) -> None:  # noqa: N802 - http.server's name
        self.do_GET()

    def do_POST(self) -> None:  # noqa: N802 - http.server's name
        _, _, body = self._request()
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        answers = []
        for index, part in enumerate(email.message_from_bytes(head + body).get_payload()):
            target = re.search(r"DELETE (\S+)", part.get_payload())[1]
            name = unquote(urlsplit(target).path).partition(f"/{CONTAINER}/")[2]
            status = "202 Accepted" if self.server.blobs.pop(name, None) else "404 Not Found"
            answers.append(
                f"--answer\r\nContent-Type: application/http\r\nContent-ID: {index}\r\n\r\n"
                f"HTTP/1.1 {status}\r\nx-ms-error-code: BlobNotFound\r\n\r\n\r\n"
            )
        self._answer(
            202,
            ("".join(answers) + "--answer--\r\n").encode(),
            Content_Type="multipart/mixed; boundary=answer",
        )

    def _listing(self, query: dict[str, str]) -> bytes:
        prefix, found = query.get("prefix", ""), []
        for name, (body, e_tag) in sorted(self.server.blobs.items()):
            deeper = "/" in name[len(prefix) :] and "delimiter" in query
            if name.startswith(prefix) and not deeper:
                found.append(
                    f"<Blob><Name>{escape(name)}</Name><Properties>"
                    f"<Last-Modified>{formatdate(0, usegmt=True)}</Last-Modified>"
                    f"<Etag>{e_tag}</Etag><Content-Length>{len(body)}</Content-Length>"
                    "<Content-Type>text/plain</Content-Type></Properties></Blob>"
                )
        blobs = f"<Blobs>{''.join(found)}</Blobs><NextMarker />"
        return f"<EnumerationResults>{blobs}</EnumerationResults>".encode()

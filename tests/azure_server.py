"""A small stand-in of Azure's Blob Storage on loopback.

It speaks what object_store asks of a container: blobs whole and in blocks, ranges,
If-Match, listings and batches of deletes. It checks that a request is signed, not how.
"""

from __future__ import annotations

import contextlib
import email
import os
import re
import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import s3_server

from tfrecord_io.stores import remote

CONTAINER = "scans"
# Those of Microsoft's emulator, which its documentation publishes.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class StandIn:
    """What a test can ask of the server."""

    def __init__(self, server: _Server) -> None:
        self._server = server

    def failing(self, **faults: int | str) -> contextlib.AbstractContextManager[None]:
        """Makes the server answer with a status, or with half of the body."""
        return self._server.faults.on(**faults)

    def read(self, prefix: str) -> dict[str, bytes]:
        """Returns the blobs below a prefix, by the rest of their names."""
        blobs = self._server.blobs.items()
        return {n.removeprefix(prefix): body for n, (body, _) in blobs if n.startswith(prefix)}


@contextlib.contextmanager
def running_azure() -> Iterator[StandIn]:
    """Runs a server with an empty container, found by the variables of Azure's own tools."""
    with _stand_in() as (port, stand_in):
        variables = {
            "AZURE_STORAGE_CONNECTION_STRING": (
                f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
                f"BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT};"
            ),
            "no_proxy": "127.0.0.1",
            "NO_PROXY": "127.0.0.1",
        }
        with mock.patch.dict(os.environ, variables):
            remote.forget_stores()
            yield stand_in
        remote.forget_stores()


class _Blobs(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        pass

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

    def do_PUT(self) -> None:
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

    def do_GET(self) -> None:
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

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
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


class _Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Blobs)
        self.blobs: dict[str, tuple[bytes, str]] = {}
        self.blocks: dict[tuple[str, str], bytes] = {}
        self.count = 0
        self.faults = s3_server.Faults()


@contextlib.contextmanager
def _stand_in() -> Iterator[tuple[int, StandIn]]:
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.server_address[1], StandIn(server)
        finally:
            server.shutdown()
            thread.join()

"""A web server on loopback that gives files by ranges, or fails in the ways that servers do."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import re
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from tfrecord_io.stores import remote


@dataclasses.dataclass
class WebFile:
    """A file that is served, and its version with quotes."""

    content: bytes
    e_tag: str = '"1"'


class Request(NamedTuple):
    """One request; the path is a whole URL if a proxy was asked."""

    method: str
    path: str
    headers: Mapping[str, str]


class Files(BaseHTTPRequestHandler):
    """Answers a request for a file."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise a small answer may wait for 40 ms
    server: WebServer
    root = ""

    def log_message(self, *_: object) -> None:
        pass

    def _answer(
        self, status: int, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        if self._fault[:1].isdigit():
            status, body, headers, self.close_connection = int(self._fault[:3]), b"", {}, True
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        if self._fault == "cut":
            body, self.close_connection = body[:-1], True
        if self._fault == "garbled" and body:
            middle = len(body) // 2
            body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
        self.server.bytes_sent += len(body)
        with contextlib.suppress(ConnectionError):  # a test may kill the client
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    def _receive(self) -> bytes:
        """Records a request; returns its body."""
        self.server.requests.append(Request(self.command, self.path, dict(self.headers)))
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_GET(self) -> None:
        self._receive()
        self._fault = self.server.next_fault()
        if self._fault == "silent":
            self.server.woken.wait(60)
            self.close_connection = True
            return None
        file = self.server.files.get(unquote(urlsplit(self.path).path)[1:].removeprefix(self.root))
        if file is None:
            return self._answer(404)
        if self.headers.get("If-Match", file.e_tag) != file.e_tag:
            return self._answer(412)
        headers = {"Last-Modified": "Mon, 01 Jan 2018 00:00:00 GMT", "ETag": file.e_tag}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not wanted:
            return self._answer(200, file.content, headers)
        start, end = int(wanted[1]), min(int(wanted[2] or 1 << 62) + 1, len(file.content))
        if start >= end:
            return self._answer(416)
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(file.content)}"
        end -= self._fault == "short"
        return self._answer(206, file.content[start:end], headers)


class Faulty:
    """What is wrong with the answers of a server: nothing, or one of these.

    A status, "cut" (it ends early), "short" (a byte of it is missing), "garbled" (another one is
    there), "silent" (there is none).

    Attributes:
        faults: of the next answers, one by one; "" for none.
        fault: of all that follow.
    """

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.faults: collections.deque[str] = collections.deque()
        self.fault = ""

    def next_fault(self) -> str:
        """Returns what is wrong with the answer to a request."""
        return self.faults.popleft() if self.faults else self.fault

    @contextlib.contextmanager
    def failing(self, fault: str, *, after: int = 0, times: int | None = None) -> Iterator[None]:
        """Has some requests fail until the block ends; without `times`, all after the first."""
        self.faults.extend([""] * after + [fault] * (times or 0))
        self.fault = "" if times else fault
        try:
            yield
        finally:
            self.faults.clear()
            self.fault = ""


class WebServer(Faulty, ThreadingHTTPServer):
    """A server that runs within a `with` block; its files and faults can be changed meanwhile.

    Attributes:
        files: by their path.
        requests: all so far.
        bytes_sent: bytes of files.
    """

    def __init__(self, handler: type[Files] = Files) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.files: dict[str, WebFile] = {}
        self.requests: list[Request] = []
        self.bytes_sent = 0
        self.woken = threading.Event()
        self.scheme = "http"

    def __enter__(self) -> WebServer:
        remote.forget_stores()  # whose connections go to another server
        threading.Thread(target=self.serve_forever, args=(0.02,)).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.woken.set()
        remote.forget_stores()
        self.shutdown()
        self.server_close()

    def url(self, path: str = "") -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}/{path}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that closes a connection is no error."""

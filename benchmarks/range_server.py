"""A minimal object store for reading, as fast as Python allows, in its own process.

It answers the requests that reading a bucket of S3 needs, HEAD and GET of a byte range, without
authentication. A full emulator uses more CPU time per request than decoding an image, so a
benchmark would measure the emulator.

    python benchmarks/range_server.py FOLDER LATENCY_MS    # prints its port; objects: FOLDER/KEY
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from urllib.parse import unquote, urlsplit

BUCKET = "bench"
_COUNT_PATH = "/count"


class _Handler(StreamRequestHandler):
    disable_nagle_algorithm = True
    server: _Server

    def handle(self) -> None:
        while request := self.rfile.readline(65_536):
            method, target, _ = request.decode().split(" ", 2)
            wanted = None
            while (line := self.rfile.readline(65_536)) not in (b"\r\n", b""):
                if line[:6].lower() == b"range:":
                    wanted = re.search(rb"bytes=(\d+)-(\d*)", line)
            self._answer(method, unquote(urlsplit(target).path), wanted)

    def _answer(self, method: str, path: str, wanted: re.Match[bytes] | None) -> None:
        if path == _COUNT_PATH:
            body = str(self.server.take_count()).encode()
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            return
        found = self.server.files.get(path)
        if found is None:
            self.wfile.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        time.sleep(self.server.latency_s)
        descriptor, size = found
        start, end, status = 0, size, b"200 OK"
        if wanted:
            start, status = int(wanted[1]), b"206 Partial Content"
            end = min(int(wanted[2]) + 1, size) if wanted[2] else size
        self.wfile.write(
            b"HTTP/1.1 %s\r\nContent-Length: %d\r\nContent-Type: application/zip\r\n"
            b'ETag: "1"\r\nLast-Modified: Mon, 01 Jan 2018 00:00:00 GMT\r\n'
            b"Content-Range: bytes %d-%d/%d\r\n\r\n" % (status, end - start, start, end - 1, size)
        )
        if method == "GET":
            while start < end and (sent := os.sendfile(
                self.connection.fileno(), descriptor, start, end - start
            )):  # fmt: skip
                start += sent
                self.server.add(sent)


class _Server(ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path, latency_s: float) -> None:
        self.latency_s = latency_s
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = {
            f"/{BUCKET}/{path.name}": (os.open(path, os.O_RDONLY), path.stat().st_size)
            for path in folder.iterdir()
            if path.is_file()
        }
        self._count = 0
        self._lock = threading.Lock()

    def add(self, num_bytes: int) -> None:
        with self._lock:
            self._count += num_bytes

    def take_count(self) -> int:
        with self._lock:
            count, self._count = self._count, 0
            return count

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores errors: a client may close a connection that it kept open."""


class RunningServer:
    """A running server.

    Attributes:
        endpoint: its URL.
    """

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"

    def take_count(self) -> int:
        """Returns the number of bytes of objects sent since the last call."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(self.endpoint + _COUNT_PATH, timeout=10) as answer:
            return int(answer.read())

    @property
    def flags(self) -> list[str]:
        """The flags that make a build read from this server."""
        return [
            f"--s3_endpoint_url={self.endpoint}",
            "--s3_access_key_id=nobody",
            "--s3_secret_access_key=nothing",
            "--s3_region_name=us-east-1",
        ]


@contextlib.contextmanager
def running(folder: Path, latency_ms: float = 0.0) -> Iterator[RunningServer]:
    """Serves the files of a folder until the block ends.

    Args:
        folder: its files are the objects of the bucket.
        latency_ms: delay of every answer, in ms.
    """
    with subprocess.Popen(
        [sys.executable, __file__, str(folder), str(latency_ms)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield RunningServer(int(process.stdout.readline()))
        finally:
            process.send_signal(signal.SIGTERM)


if __name__ == "__main__":
    with _Server(Path(sys.argv[1]), float(sys.argv[2]) / 1000) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever(0.1)

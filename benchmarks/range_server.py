"""A minimal object store for reading, as fast as Python allows, in its own process.

It answers the requests that reading a bucket of S3 needs, HEAD and GET of a byte range, without
authentication, also to a client that takes it for a web server. A full emulator uses more CPU time
per request than decoding an image, so a benchmark would measure the emulator.

    python benchmarks/range_server.py FOLDER LATENCY_MS MB_PER_SECOND

It prints its port. The objects are the files below FOLDER. All connections share MB_PER_SECOND
(0 for no limit), and each answer begins LATENCY_MS after its request.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

BUCKET = "bench"
_COUNT_PATH = "/count"
_RANGE = re.compile(rb"\r\nrange: *bytes=(\d+)-(\d*)", re.IGNORECASE)

# Sent at once, so that connections share the bandwidth.
_CHUNK_BYTES = 128 * 1024

# The bandwidth that is not used may be used later, for so long.
_BURST_SECONDS = 0.01


class _Connection:
    """A client: what it has sent, and what it is to be sent: a head, then a part of a file."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.received = b""
        self.head = b""
        self.file, self.start, self.end = -1, 0, 0


class _Server:
    """All connections in one thread: a thread for each would wait for Python's lock."""

    def __init__(self, folder: Path, latency_s: float, bytes_per_second: float) -> None:
        self._latency_s = latency_s
        self._seconds_per_byte = 1 / bytes_per_second if bytes_per_second else 0.0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        self._folder = folder
        self._files: dict[str, tuple[int, os.stat_result]] = {}
        self._count = 0
        self._poll = select.epoll()
        self._poll.register(self._listener, select.EPOLLIN)
        self._connections: dict[int, _Connection] = {}
        self._due: list[tuple[float, int, _Connection]] = []
        self._numbers = itertools.count()
        self._link_free = 0.0

    def serve_forever(self) -> None:
        """Answers requests until the process ends."""
        while True:
            wait = max(0.0, self._due[0][0] - time.monotonic()) if self._due else -1
            for file, _ in self._poll.poll(wait):
                if file == self._listener.fileno():
                    client, _ = self._listener.accept()
                    client.setblocking(False)
                    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._connections[client.fileno()] = _Connection(client)
                    self._poll.register(client, select.EPOLLIN)
                elif connection := self._connections.get(file):
                    self._guarded(connection, self._receive)
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                self._guarded(heapq.heappop(self._due)[2], self._send)

    def _guarded(self, connection: _Connection, step: Callable[[_Connection], None]) -> None:
        try:
            step(connection)
        except OSError:  # the client has closed the connection
            if self._connections.pop(connection.client.fileno(), None):
                connection.client.close()

    def _receive(self, connection: _Connection) -> None:
        if connection.head or connection.start < connection.end:  # it can be written again
            self._poll.modify(connection.client, select.EPOLLIN)
            self._later(connection, 0.0)
            return
        received = connection.client.recv(65_536)
        if not received:
            raise ConnectionError
        connection.received += received
        request, found, rest = connection.received.partition(b"\r\n\r\n")
        if found:
            connection.received = rest
            self._answer(connection, request)

    def _answer(self, connection: _Connection, request: bytes) -> None:
        method, target, _ = request.split(b" ", 2)
        path = unquote(urlsplit(target.decode()).path)
        if path == _COUNT_PATH:
            body, self._count = str(self._count).encode(), 0
            connection.head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            return self._later(connection, 0.0)
        if path not in self._files:
            with contextlib.suppress(OSError):
                file = os.open(self._folder / path.removeprefix(f"/{BUCKET}/"), os.O_RDONLY)
                self._files[path] = file, os.fstat(file)
        if path not in self._files:
            connection.head = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
            return self._later(connection, self._latency_s)
        file, facts = self._files[path]
        start, end, status, where = 0, facts.st_size, b"200 OK", b""
        if wanted := _RANGE.search(request):
            start, status = int(wanted[1]), b"206 Partial Content"
            end = min(int(wanted[2]) + 1, end) if wanted[2] else end
            where = b"Content-Range: bytes %d-%d/%d\r\n" % (start, end - 1, facts.st_size)
        connection.head = (
            b"HTTP/1.1 %s\r\nContent-Length: %d\r\nContent-Type: application/zip\r\n"
            b'Accept-Ranges: bytes\r\nETag: "%x"\r\n'
            b"Last-Modified: Mon, 01 Jan 2018 00:00:00 GMT\r\n%s\r\n"
            % (status, end - start, facts.st_mtime_ns, where)
        )
        is_get = method == b"GET"
        connection.file, connection.start, connection.end = file, start, end if is_get else start
        self._later(connection, self._latency_s)
        return None

    def _later(self, connection: _Connection, seconds: float) -> None:
        due = time.monotonic() + seconds
        heapq.heappush(self._due, (due, next(self._numbers), connection))

    def _send(self, connection: _Connection) -> None:
        if connection.head:
            more = socket.MSG_MORE if connection.start < connection.end else 0
            connection.client.sendall(connection.head, more)
            connection.head = b""
        left = connection.end - connection.start
        if not left:
            return None
        now = time.monotonic()
        if self._link_free > now:
            return self._later(connection, self._link_free - now)
        try:
            sent = os.sendfile(
                connection.client.fileno(), connection.file, connection.start,
                min(left, _CHUNK_BYTES),
            )  # fmt: skip
        except BlockingIOError:
            return self._poll.modify(connection.client, select.EPOLLIN | select.EPOLLOUT)
        connection.start += sent
        self._count += sent
        self._link_free = max(self._link_free, now - _BURST_SECONDS) + sent * self._seconds_per_byte
        if connection.start < connection.end:
            self._later(connection, 0.0)
        return None


@contextlib.contextmanager
def running(folder: Path, latency_ms: float = 0.0, mb_per_second: float = 0.0) -> Iterator[str]:
    """Serves the files of a folder until the block ends; yields the URL of the server.

    Args:
        folder: the files below it are the objects of the bucket.
        latency_ms: delay of every answer, in ms.
        mb_per_second: bandwidth of all answers together, in 10**6 bytes a second; 0 for no limit.
    """
    words = [sys.executable, __file__, str(folder), str(latency_ms), str(mb_per_second)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.send_signal(signal.SIGTERM)


if __name__ == "__main__":
    _server = _Server(Path(sys.argv[1]), float(sys.argv[2]) / 1000, float(sys.argv[3]) * 1e6)
    print(_server.port, flush=True)
    _server.serve_forever()

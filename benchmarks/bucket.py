"""How fast are batches read from a bucket, with and without space for it on this machine's disk?

    python benchmarks/bucket.py [--num_images 20480]

The store is on loopback, in its own process on the same cores: 10 ms to the first byte, and
125 MB/s for all connections together. The dataset is drawn, images of 224x224x1. Each row is a
process of its own with an empty cache. Speeds are shares of the store's bandwidth, or of the memory
map of a local copy, which is measured in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import multiprocessing
import os
import re
import shutil
import time
import urllib.parse
import urllib.request
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import BinaryIO

from read_data import ReadData, draw_records
from sample_archive import WORK_DIR

import tfrecord_io

BATCH_SIZE = 64
MB_PER_SECOND, LATENCY_SECONDS = 125.0, 0.01
BUCKET = "bench"

# Sent at once, so that connections share the bandwidth.
_CHUNK_BYTES = 128 * 1024
_BURST_SECONDS = 0.01


def read(data: str, endpoint: str, num_steps: int, cache_gb: float) -> list[tuple[float, int]]:
    """Reads two epochs in this process; returns the seconds of each and the bytes it fetched."""
    os.environ |= {"no_proxy": "127.0.0.1", "AWS_SKIP_SIGNATURE": "true"}
    os.environ["AWS_ENDPOINT_URL"] = endpoint
    cache = WORK_DIR / "bucket" / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    epochs = []
    started = time.perf_counter()
    batches = iter(
        tfrecord_io.make_batches(
            data, "train", BATCH_SIZE, cache_dir=cache, cache_gb=cache_gb, seed=1, epochs=None
        )
    )
    for _ in range(2):
        for _ in itertools.islice(batches, num_steps):
            pass
        now = time.perf_counter()
        epochs.append((now - started, _take_count(endpoint) if endpoint else 0))
        started = now
    return epochs


def _take_count(endpoint: str) -> int:
    """Returns the bytes that the store sent since the last call."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{endpoint}/count", timeout=10) as answer:
        return int(answer.read())


class Store:
    """A bucket of S3 for reading: answers lists, HEAD and GET of ranges, without authentication.

    An emulator uses more CPU time per request than reading, so a benchmark would measure it.

    Attributes:
        num_bytes: sent since `/count` was asked for.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._line_free, self.num_bytes = folder, 0.0, 0

    async def serve(self, port: Connection) -> None:
        """Answers requests until the process ends; sends its port."""
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                method, target, _ = request.split(b" ", 2)
                url = urllib.parse.urlsplit(target.decode())
                path = urllib.parse.unquote(url.path)
                if path == "/count" or url.query:
                    body = self._list(url.query) if url.query else str(self.num_bytes).encode()
                    self.num_bytes = 0
                    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
                    writer.write(head + body)
                    continue
                await asyncio.sleep(LATENCY_SECONDS)
                try:
                    file = (self._folder / path.removeprefix(f"/{BUCKET}/")).open("rb")
                except OSError:
                    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                    continue
                with file:
                    await self._send(writer, file, request, is_get=method == b"GET")

    def _list(self, query: str) -> bytes:
        (prefix,) = urllib.parse.parse_qs(query)["prefix"]
        objects = "".join(
            f"<Contents><Key>{prefix}{path.name}</Key><Size>{path.stat().st_size}</Size>"
            f'<ETag>"{path.stat().st_mtime_ns:x}"</ETag>'
            "<LastModified>2018-01-01T00:00:00.000Z</LastModified></Contents>"
            for path in (self._folder / prefix).iterdir()
        )
        return f"<ListBucketResult><Name>{BUCKET}</Name>{objects}</ListBucketResult>".encode()

    async def _send(
        self, writer: asyncio.StreamWriter, file: BinaryIO, request: bytes, *, is_get: bool
    ) -> None:
        facts = os.fstat(file.fileno())
        start, end, status, where = 0, facts.st_size, b"200 OK", b""
        if wanted := re.search(rb"\r\nrange: *bytes=(\d+)-(\d*)", request, re.IGNORECASE):
            start, status = int(wanted[1]), b"206 Partial Content"
            end = min(int(wanted[2]) + 1, end) if wanted[2] else end
            where = b"Content-Range: bytes %d-%d/%d\r\n" % (start, end - 1, facts.st_size)
        writer.write(
            b'HTTP/1.1 %s\r\nContent-Length: %d\r\nAccept-Ranges: bytes\r\nETag: "%x"\r\n'
            b"Last-Modified: Mon, 01 Jan 2018 00:00:00 GMT\r\n%s\r\n"
            % (status, end - start, facts.st_mtime_ns, where)
        )
        while is_get and start < end:
            now = time.monotonic()
            if (wait := self._line_free - now) > 0:
                await asyncio.sleep(wait)
                continue
            part = os.pread(file.fileno(), min(end - start, _CHUNK_BYTES), start)
            # Bandwidth that is not used may be used later, for so long.
            self._line_free = max(self._line_free, now - _BURST_SECONDS)
            self._line_free += len(part) / (1e6 * MB_PER_SECOND)
            writer.write(part)
            await writer.drain()
            start, self.num_bytes = start + len(part), self.num_bytes + len(part)


def serve(folder: Path, port: Connection) -> None:
    asyncio.run(Store(folder).serve(port))


def show(what: str, value: float, goal: float, *, least: bool = True) -> None:
    """Prints a row: what was measured, and whether it reaches its goal."""
    reached = value >= goal if least else value <= goal
    verdict = "reached" if reached else "MISSED"
    print(f"| {what} | {value:.3g} | {'≥' if least else '≤'} {goal:g} | {verdict} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--num_images", type=int, default=320 * BATCH_SIZE)
    args = parser.parse_args()
    work = WORK_DIR / "bucket"
    data = ReadData(draw_records(work / f"records-{args.num_images}", args.num_images), work)
    num_bytes = data.manifest.layout.stride * args.num_images
    line = num_bytes / (1e6 * MB_PER_SECOND)  # seconds
    processes = multiprocessing.get_context("spawn")
    receiver, sender = processes.Pipe(duplex=False)
    server = processes.Process(target=serve, args=(work.absolute(), sender), daemon=True)
    server.start()
    endpoint = f"http://127.0.0.1:{receiver.recv()}"

    def measured(address: str, endpoint: str, share: float) -> list[tuple[float, int]]:
        with ProcessPoolExecutor(1, processes) as process:
            num_steps, cache_gb = args.num_images // BATCH_SIZE, share * num_bytes / 1e9
            return process.submit(read, address, endpoint, num_steps, cache_gb).result()

    stored = f"s3://{BUCKET}/{data.records.name}"
    print("| what | measured | goal | |\n|---|---|---|---|")
    (first, fetched), (second, fetched_again) = measured(stored, endpoint, 2.0)
    (_, (local, _)) = measured(str(data.records), "", 2.0)
    show("all cached, epoch 1: speed / bandwidth", line / first, 0.95)
    show("bytes fetched / dataset", fetched / num_bytes, 1.05, least=False)
    show("epoch 2: bytes fetched", fetched_again, 0, least=False)
    show("epoch 2: speed / local copy", local / second, 0.8)
    (_, (second, fetched)) = measured(stored, endpoint, 0.25)
    show("a quarter cached, epoch 2: speed / bandwidth", line / second, 1.0)
    show("bytes fetched / dataset", fetched / num_bytes, 0.8, least=False)


if __name__ == "__main__":
    main()

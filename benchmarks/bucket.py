"""How fast are batches read from a bucket, with and without room for it on this machine's disk?

    python benchmarks/bucket.py [--num_images 20480]

The store is on loopback, in its own process on the same cores: 10 ms to the first
byte, and 125 MB/s for all connections together (the last rows have no limit). The dataset is drawn,
images of 224x224x1. Each row is a process of its own with an empty cache. Speeds are shares of
the store's bandwidth or of the memory map of a local copy, measured in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from read_data import ReadData, draw_records
from sample_archive import WORK_DIR

import tfrecord_io

BATCH_SIZE = 64
MB_PER_SECOND, LATENCY_MS = 125.0, 10.0
BUCKET = "bench"

# Sent at once, so that connections share the bandwidth.
_CHUNK_BYTES = 128 * 1024
_BURST_SECONDS = 0.01


def read(spec: dict[str, Any]) -> dict[str, Any]:
    """Reads the epochs that a row asks for, in this process.

    Returns:
        `first`: seconds from opening to the first batch; `seconds` and `bytes` of each epoch, the
        bytes sent by the store; `anonymous_mb`, by which the process's own memory grew.
    """
    importlib.import_module({"tf.data": "tensorflow"}.get(spec["way"], "numpy"))
    before = _anonymous_bytes()
    most = [before]
    threading.Thread(target=_watch, args=(most,), daemon=True).start()
    steps_per_epoch = spec["num_images"] // BATCH_SIZE
    result: dict[str, Any] = {"seconds": [], "bytes": []}
    _take_count(spec)
    started = begun = time.perf_counter()
    for step, _ in enumerate(batches(spec), 1):
        if step == 1:
            result["first"] = time.perf_counter() - started
        if step % steps_per_epoch == 0 or step == spec.get("steps"):
            now = time.perf_counter()
            result["seconds"].append(now - begun)
            result["bytes"].append(_take_count(spec))
            begun = time.perf_counter()
        if step == spec.get("steps", spec["epochs"] * steps_per_epoch):
            break
    result["anonymous_mb"] = (most[0] - before) / 1e6
    return result


def batches(spec: dict[str, Any]) -> Iterator[Any]:
    """Yields the batches of our readers."""
    # Only `make_dataset` imports TensorFlow.
    name = {"tf.data": "make_dataset", "numpy": "make_batches"}[spec["way"]]
    make = getattr(tfrecord_io, name)
    return iter(
        make(
            spec["data"],
            "train",
            BATCH_SIZE,
            cache_dir=spec["cache"],
            cache_gb=spec["cache_bytes"] / 1e9,
            seed=1,
            epochs=None,
            start_step=spec.get("start_step", 0),
        )
    )


class Store:
    """A bucket of S3 for reading: answers lists, HEAD and GET of ranges, without authentication.

    An emulator uses more CPU time per request than reading, so a benchmark would measure it.

    Attributes:
        num_bytes: sent since `/count` was asked for.
    """

    def __init__(self, folder: Path, latency_ms: float, mb_per_second: float) -> None:
        self._folder, self._latency = folder, latency_ms / 1000
        self._seconds_per_byte = 1e-6 / mb_per_second if mb_per_second else 0.0
        self._line_free, self.num_bytes = 0.0, 0

    async def serve(self) -> None:
        """Answers requests until the process ends; prints its port."""
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
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
                    writer.write(
                        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
                    )
                    continue
                await asyncio.sleep(self._latency)
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
            # The bandwidth that is not used may be used later, for so long.
            self._line_free = max(self._line_free, now - _BURST_SECONDS)
            self._line_free += len(part) * self._seconds_per_byte
            writer.write(part)
            await writer.drain()
            start, self.num_bytes = start + len(part), self.num_bytes + len(part)


@contextlib.contextmanager
def serving(folder: Path, mb_per_second: float = 0.0) -> Iterator[str]:
    """Serves the files of a folder in a process of its own; yields the URL. 0 means no limit."""
    words = [sys.executable, __file__, "--serve", str(folder), str(LATENCY_MS), str(mb_per_second)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


class Rows:
    """Runs rows against one store and keeps their figures.

    Attributes:
        bandwidth: images a second of the limited store.
    """

    def __init__(self, data: ReadData, work: Path) -> None:
        self.data, self.work = data, work
        stride = data.manifest.layout.stride
        self.num_bytes = stride * data.num_examples
        self.bandwidth = MB_PER_SECOND * 1e6 / stride

    def run(self, server: str | None, **spec: Any) -> dict[str, Any]:
        """Returns what `read` returns in a process of its own; raises RuntimeError if it fails."""
        folder = self.work / "cache"
        shutil.rmtree(folder, ignore_errors=True)
        data = str(self.data.records)
        if server:
            name = self.data.records.relative_to(self.work)
            data = f"s3://{BUCKET}/{name}"
        spec = {
            "way": "numpy",
            "data": data,
            "endpoint": server,
            "num_images": self.data.num_examples,
            "cache": str(folder),
            "cache_bytes": spec.pop("share", 2.0) * self.num_bytes,
            "epochs": 1,
        } | spec
        done = subprocess.run(
            [sys.executable, __file__, "--row", json.dumps(spec)],
            capture_output=True, text=True, timeout=300,
            env=os.environ | {"no_proxy": "127.0.0.1", "TF_CPP_MIN_LOG_LEVEL": "3",
                              "AWS_ENDPOINT_URL": server or "", "AWS_SKIP_SIGNATURE": "true",
                              "PYTHONPATH": str(Path(__file__).parents[1])},
        )  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if not lines:
            raise RuntimeError((done.stderr.strip().splitlines() or ["no reason given"])[-1])
        result = json.loads(lines[-1])
        result["rates"] = [self.data.num_examples / seconds for seconds in result["seconds"]]
        result["shares"] = [num_bytes / self.num_bytes for num_bytes in result["bytes"]]
        return result


def show(what: str, value: float, bar: float, *, least: bool, unit: str = "") -> None:
    """Prints a row: what was measured, and whether it reaches its bar."""
    reached = value >= bar if least else value <= bar
    sign = "≥" if least else "≤"
    verdict = "reached" if reached else "MISSED"
    print(f"| {what} | {value:,.3g}{unit} | {sign} {bar:,.4g}{unit} | {verdict} |", flush=True)


def limited(rows: Rows, server: str) -> None:
    """Measures with the limited store."""
    room = rows.run(server, epochs=2)
    own_speed = rows.run(None, epochs=2)["rates"][1]
    show("room for all, epoch 1: speed / bandwidth", room["rates"][0] / rows.bandwidth, 0.85,
         least=True)  # fmt: skip
    show("bytes fetched / dataset", room["shares"][0], 1.05, least=False)
    show("epoch 2: bytes fetched", room["bytes"][1], 0, least=False)
    show("epoch 2: speed / memory map", room["rates"][1] / own_speed, 0.8, least=True)
    show("own memory grows by", room["anonymous_mb"], 400, least=False, unit=" MB")
    quarter = rows.run(server, epochs=2, share=0.25)
    show("cache of 25 %, epoch 2: bytes / dataset", quarter["shares"][1], 0.8, least=False)
    show("speed / bandwidth", quarter["rates"][1] / rows.bandwidth, 1.0, least=True)
    show("own memory grows by", quarter["anonymous_mb"], 400, least=False, unit=" MB")
    for name, step in (("first batch", 0), ("first batch at step 1,000,000", 1_000_000)):
        first = rows.run(server, start_step=step, steps=1)["first"]
        show(name, first, 1.5, least=False, unit=" s")


def unlimited(rows: Rows, server: str) -> None:
    """Measures with a store that is only 10 ms away."""
    for way, bar in (("numpy", 5000), ("tf.data", 3000)):
        own_speed = rows.run(None, way=way, epochs=2)["rates"][1]
        first, second = rows.run(server, way=way, epochs=2)["rates"]
        show(f"no limit, epoch 1, {way}: images/s", first, bar, least=True)
        show(f"epoch 2, {way}: speed / memory map", second / own_speed, 0.8, least=True)


def _take_count(spec: dict[str, Any]) -> int:
    """Returns the bytes that the store sent since the last call."""
    if not spec["endpoint"]:
        return 0
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{spec['endpoint']}/count", timeout=10) as answer:
        return int(answer.read())


def _anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    return 1024 * int(found[1]) if found else 0


def _watch(most: list[int]) -> None:
    while True:
        most[0] = max(most[0], _anonymous_bytes())
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--num_images", type=int, default=320 * BATCH_SIZE)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        folder, *numbers = args.serve
        asyncio.run(Store(Path(folder), *map(float, numbers)).serve())
    if args.row:
        print(json.dumps(read(json.loads(args.row))))
        return
    work = WORK_DIR.absolute() / "bucket"
    records = draw_records(work / f"records-{args.num_images}", args.num_images)
    rows = Rows(ReadData(records, work), work)
    print(f"{args.num_images:,} images; the store gives {rows.bandwidth:,.0f} images/s\n")
    print("| what | measured | bar | |\n|---|---|---|---|")
    with serving(work, MB_PER_SECOND) as server:
        limited(rows, server)
    with serving(work) as server:
        unlimited(rows, server)
    shutil.rmtree(work / "cache", ignore_errors=True)


if __name__ == "__main__":
    main()

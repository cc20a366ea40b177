"""What does reading a range of a remote file cost this process, beside the store's own client?

    python benchmarks/range_cost.py

CPU time of one read of 64 KiB, most of an image's member, on loopback: through the client's call,
and as the build reads. S3 is answered by `range_server.py`; Google Cloud Storage by
`fake-gcs-server`, if it is installed, in a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import range_server

from pipelines.running import engine
from pipelines.stores import remote

sys.path.append(str(Path(__file__).parent.parent / "tests"))
import gcs_server

_RANGE_BYTES = 64 * 1024
_FILE_BYTES = 8 * 1024 * 1024


@contextlib.contextmanager
def s3() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "file").write_bytes(os.urandom(_FILE_BYTES))
        with range_server.running(Path(folder), 0) as server:
            engine.make_pipeline(server.flags)
            yield f"s3://{range_server.BUCKET}/file"


@contextlib.contextmanager
def google_cloud_storage() -> Iterator[str]:
    with gcs_server.running_gcs("fake-gcs-server"):
        engine.make_pipeline([])
        url = f"gs://{gcs_server.BUCKET}/file"
        with remote.create(url) as file:
            file.write(os.urandom(_FILE_BYTES))
        yield url


def milliseconds_a_read(url: str, starts: list[int], *, quickly: bool) -> float:
    store = remote.open_store(url)
    _, mark = store.describe(url)
    if not quickly:
        store._read_quickly = lambda *_: None  # type: ignore[attr-defined]
    store.read(url, 0, _RANGE_BYTES, mark)
    begun = time.process_time()
    for start in starts:
        assert len(store.read(url, start, _RANGE_BYTES, mark)) == _RANGE_BYTES
    spent = time.process_time() - begun
    if not quickly:
        del store._read_quickly  # type: ignore[attr-defined]
    return spent / len(starts) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num_reads", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = "127.0.0.1"
    stores = {"S3": s3}
    if gcs_server.is_installed("fake-gcs-server"):
        stores["Google Cloud Storage"] = google_cloud_storage
    print("| store | round | client, ms of CPU a read | directly | ratio |")
    print("| --- | --- | --- | --- | --- |")
    for name, served in stores.items():
        with served() as url:
            for number in range(args.rounds):
                draw = random.Random(number)
                last = _FILE_BYTES - _RANGE_BYTES
                starts = [draw.randrange(last) for _ in range(args.num_reads)]
                client = milliseconds_a_read(url, starts, quickly=False)
                direct = milliseconds_a_read(url, starts, quickly=True)
                print(
                    f"| {name} | {number + 1} | {client:.2f} | {direct:.2f} | "
                    f"{direct / client:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()

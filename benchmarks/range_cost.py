"""How much CPU time does reading a range of a remote file take, compared with boto3?

    python benchmarks/range_cost.py

It measures a read of 64 KiB, the size of most images, from `range_server.py` on loopback: with
boto3, with a plain connection of the standard library, and with the reader of the build. Goal: at
most 0.5 of boto3's time.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import range_server

from pipelines.stores import beam_flags
from tfrecord_io.stores import remote

GOAL = 0.5

_RANGE_BYTES = 64 * 1024
_FILE_BYTES = 8 * 1024 * 1024

Read = Callable[[int], bytes]


@contextlib.contextmanager
def readers() -> Iterator[dict[str, Read]]:
    """Yields functions that read a range of one file, given its first byte."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "file").write_bytes(os.urandom(_FILE_BYTES))
        with range_server.running(Path(folder)) as server:
            beam_flags.use(server.flags)
            url = f"s3://{range_server.BUCKET}/file"
            mark = remote.describe(url).mark
            client = boto3.client("s3", endpoint_url=server.endpoint)
            connection = http.client.HTTPConnection(server.endpoint.removeprefix("http://"))

            def by_client(start: int) -> bytes:
                found = client.get_object(
                    Bucket=range_server.BUCKET, Key="file", Range=_range(start)
                )
                return found["Body"].read()

            def by_connection(start: int) -> bytes:
                path = f"/{range_server.BUCKET}/file"
                connection.request("GET", path, headers={"Range": _range(start)})
                return connection.getresponse().read()

            yield {
                "boto3": by_client,
                "standard library": by_connection,
                "build": lambda start: remote.read(url, start, _RANGE_BYTES, mark),
            }


def _range(start: int) -> str:
    return f"bytes={start}-{start + _RANGE_BYTES - 1}"


def milliseconds_a_read(read: Read, starts: list[int]) -> float:
    """Returns the CPU time of a read in ms, the mean over the ranges from these first bytes."""
    read(0)
    begun = time.process_time()
    for start in starts:
        assert len(read(start)) == _RANGE_BYTES
    return (time.process_time() - begun) / len(starts) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num_reads", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = "127.0.0.1"
    with readers() as ways:
        print(f"| round | {' | '.join(f'{name}, CPU ms per read' for name in ways)} | ratio |")
        print("| --- " * (len(ways) + 2) + "|")
        for number in range(1, args.rounds + 1):
            draw = random.Random(number)
            starts = [draw.randrange(_FILE_BYTES - _RANGE_BYTES) for _ in range(args.num_reads)]
            spent = {name: milliseconds_a_read(read, starts) for name, read in ways.items()}
            figures = " | ".join(f"{each:.3f}" for each in spent.values())
            print(f"| {number} | {figures} | {spent['build'] / spent['boto3']:.2f} |", flush=True)
    print(f"\nratio: the build's time to boto3's (goal: at most {GOAL})")


if __name__ == "__main__":
    main()

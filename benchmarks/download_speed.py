"""How fast is the checked download from Kaggle, compared with a plain `requests` stream?

Both download the same file from the same server, a separate process on loopback, to the same disk,
in turns within one run. The goal is a ratio of at least 0.8. The check of the archive, which a
plain stream does not have, is timed separately.

    python benchmarks/download_speed.py                # 1 GB, 3 rounds: about a minute
    python benchmarks/download_speed.py --megabytes 200
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import requests

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests/helpers")]

from kaggle_stand_in import DATASET, TOKEN  # noqa: E402

GOAL = 0.8
CHUNK_BYTES = 1 << 20
SERVE = """
import sys
from pathlib import Path
from kaggle_stand_in import StandIn
with StandIn(Path(sys.argv[1]).read_bytes()) as server:
    print(server.url().rstrip('/'), server.address, flush=True)
    sys.stdin.read()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1000, help="size of the archive")
    parser.add_argument("--rounds", type=int, default=3, help="downloads of each kind")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        _server(Path(folder), options.megabytes) as (
            proxy,
            address,
        ),
    ):
        rates: dict[str, list[float]] = {"plain requests": [], "of a build": []}
        for number in range(options.rounds):
            target = Path(folder) / f"round-{number}"
            target.mkdir()
            rates["plain requests"].append(_plain(proxy, address, target))
            rates["of a build"].append(_as_a_build(target))
        check = _check(target)
    for way, values in rates.items():
        each = ", ".join(f"{value:.0f}" for value in values)
        print(f"{way:20} {median(values):6.0f} MB/s   ({each})")
    ratio = median(rates["of a build"]) / median(rates["plain requests"])
    verdict = "reached" if ratio >= GOAL else "missed"
    print(f"{'ratio':20} {ratio:6.2f}        (goal {GOAL}: {verdict})")
    print(f"{'check of the archive':20} {check:6.0f} MB/s   (CRC of each member)")


@contextlib.contextmanager
def _server(folder: Path, megabytes: int) -> Iterator[tuple[str, str]]:
    """Serves an archive from another process; yields the addresses of proxy and archive."""
    archive = folder / "served.zip"
    with zipfile.ZipFile(archive, "w") as file:  # Not compressed, because JPEGs hardly shrink.
        for index in range(megabytes):
            file.writestr(f"OCT2017 /train/CNV/CNV-{index}-1.jpeg", os.urandom(10**6))
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(archive)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/helpers'}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        proxy, address = process.stdout.readline().split()
        # The client reads these when it is imported, so they are set before the first round.
        for name in ("KAGGLE_USERNAME", "KAGGLE_KEY", "no_proxy", "NO_PROXY"):
            os.environ.pop(name, None)
        os.environ |= {
            "HOME": str(folder),
            "KAGGLE_API_ENVIRONMENT": "LOCALHOST",
            "KAGGLE_API_TOKEN": TOKEN,
            "http_proxy": proxy,
        }
        yield proxy, address
    finally:
        process.stdin.close()
        process.wait(timeout=30)


def _plain(proxy: str, address: str, folder: Path) -> float:
    """Streams the archive to disk without any checks; returns MB/s."""
    target = folder / "plain.zip"
    started = time.perf_counter()
    with (
        requests.get(address, stream=True, proxies={"http": proxy}, timeout=60) as response,
        target.open("wb") as file,
    ):
        response.raise_for_status()
        for chunk in response.iter_content(CHUNK_BYTES):
            file.write(chunk)
    seconds = time.perf_counter() - started
    size = target.stat().st_size
    target.unlink()
    return size / 1e6 / seconds


def _as_a_build(folder: Path) -> float:
    """Downloads the archive as a build does, including import and login; returns MB/s."""
    from pipelines.sources.kaggle import fetch

    archive = folder / f"{DATASET.split('/')[1]}.zip"
    started = time.perf_counter()
    part = fetch(DATASET, archive)
    return part.stat().st_size / 1e6 / (time.perf_counter() - started)


def _check(folder: Path) -> float:
    """Checks the downloaded archive as a build does; returns MB/s."""
    from pipelines.sources.kaggle import download_archive

    started = time.perf_counter()
    archive = download_archive(DATASET, folder)
    return archive.stat().st_size / 1e6 / (time.perf_counter() - started)


if __name__ == "__main__":
    main()

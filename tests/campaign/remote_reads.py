"""Readers of a dataset on a store that are killed, meet a failing store, or run out of disk.

Each must end with the batches of a local copy or with a clear error, and the next one, with the
same cache and a store that works, must give those batches.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import random
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import builds
from dataset_factory import write_dataset
from web_server import WebFile, WebServer, running_web

from campaign import faults
from campaign.processes import Fault, Outcome, Run, home
from tfrecord_io import ManifestError, make_batches
from tfrecord_io.errors import ToldError
from tfrecord_io.stores import remote
from tfrecord_io.stores.folder import DataPath

_NUM_EXAMPLES = 400

# Of these, every one is mended by asking again.
_RARE = ("refused", "cut", "garbled", "short")


class _Store(WebServer):
    """A web server that can fail by chance, or from some request on.

    Attributes:
        rate: share of the answers with `fault`.
        first_bad: number of the first request that may fail.
        most_bad: how many may.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.mend()

    def mend(self) -> None:
        self.fault, self.rate, self.first_bad, self.most_bad = "", 1.0, 0, sys.maxsize
        self.num_requests, self.random = 0, random.Random(0)

    def next_fault(self, path: str) -> str:
        time.sleep(0.002)
        with self.lock:
            self.num_requests += 1
            is_bad = self.num_requests > self.first_bad and self.random.random() < self.rate
            # Only records have checksums and a length that is known before.
            is_whole = self.fault not in ("garbled", "short") or path.endswith(".tfrecord")
            is_bad = is_bad and is_whole
            if not (self.fault and is_bad and self.most_bad):
                return ""
            self.most_bad -= 1
            return self.fault


def main(words: Sequence[str]) -> int:
    """Reads two epochs: URL FOLDER BYTES, with no limit of the cache if BYTES is empty."""
    url, folder, num_bytes = words
    remote.SILENT_SECONDS, remote.RETRY_SECONDS = 2, 20
    cache_gb = float(num_bytes) / 1e9 if num_bytes else None
    try:
        print(f"digest: {_digest(DataPath(url, folder, cache_gb))}")
    except (ToldError, ManifestError, OSError) as error:
        print(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _digest(data: Path | DataPath) -> str:
    digest = hashlib.blake2b(digest_size=8)
    batches = make_batches(data, split="train", batch_size=16, seed=3, epochs=2, with_keys=True)
    for batch in batches:
        for array in batch:
            digest.update(array)
    return digest.hexdigest()


@functools.cache
def _data() -> tuple[dict[str, bytes], dict[str, bytes], list[str]]:
    """Returns the files of a dataset, those of another one of the same sizes, and their digests."""
    folders = [home() / name for name in ("remote", "other")]
    for seed, folder in enumerate(folders):
        examples = {"train": _NUM_EXAMPLES}
        write_dataset(folder, num_examples=examples, image_shape=(50, 40, 1), num_shards=4,
                      seed=seed)  # fmt: skip
    files, others = (builds.files_of(folder) for folder in folders)
    return files, others, [_digest(folder) for folder in folders]


def try_case(rng: random.Random, folder: Path) -> Outcome:
    """Disturbs a reader, or two, and reads again."""
    files, others, digests = _data()
    num_bytes = sum(map(len, files.values()))
    room = rng.choice(("", str(num_bytes // 4), str(2 * num_bytes), "0"))
    where = folder / "cache"
    kind = rng.choice((*_RARE, "silent", "dead", "changed", "kill", "kill", "two", "disk", "files"))
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running_web(kind=_Store))
        assert isinstance(server, _Store)
        server.files = {f"data/{name}": WebFile(body) for name, body in files.items()}
        if kind == "disk":
            if not faults.can_mount():
                return "no disk to fill", [], kind
            size = rng.randrange(100 << 10, num_bytes)
            where = stack.enter_context(faults.small_disk(folder / "disk", size)) / "cache"
        words = [server.url("data"), str(where), room]
        ended = _disturb(rng, server, kind, words, others)
        server.mend()
        server.files = {f"data/{name}": WebFile(body) for name, body in files.items()}
        code, text = _start(words).wait()
        right = digests if kind == "changed" else digests[:1]
        problems = [line for ending in ended for line in _complaints(kind, *ending, right)]
        last = _complaints("none", code, text, digests[:1])
        problems += [f"the next one: {line}" for line in last]
        used = sum(512 * path.stat().st_blocks for path in where.rglob("records"))
        if room and used > float(room):
            problems.append(f"the cache takes {used:,} bytes, more than {room}")
        shutil.rmtree(where, ignore_errors=True)
    # Ctrl-C counts as a kill.
    codes = sorted({-1 if code == 130 else min(max(code, -1), 1) for code, _ in ended})
    endings = [{-1: "killed", 0: "right", 1: "error"}[code] for code in codes]
    return f"{kind}: {' and '.join(endings)}", problems, f"{kind}, room {room or 'for all'}"


def _start(words: list[str], fault: Fault | None = None) -> Run:
    return Run(words, fault, {"no_proxy": "127.0.0.1"}, "campaign.remote_reads")


def _disturb(
    rng: random.Random, server: _Store, kind: str, words: list[str], others: dict[str, bytes]
) -> list[tuple[int, str]]:
    """Reads while something goes wrong; returns each reader's exit code and what it said."""
    server.random = random.Random(rng.random())
    if kind in _RARE:
        server.fault, server.rate = kind, 0.05
    elif kind in ("silent", "dead"):
        server.fault = {"silent": "silent", "dead": "refused"}[kind]
        server.first_bad = rng.randrange(120)
        server.most_bad = rng.choice((1, 1, 3)) if kind == "silent" else sys.maxsize
    fault = functools.partial(faults.small_files, rng.randrange(300, 200_000))
    runs = [_start(words, fault if kind == "files" else None)]
    if kind == "two" or rng.random() < 0.2:
        time.sleep(0.3 * rng.random())
        runs.append(_start(words))
    if kind == "changed":
        builds.wait_until(lambda: server.num_requests > 8 or not runs[0].process.is_alive())
        time.sleep(0.1 * rng.random())
        server.files = {f"data/{name}": WebFile(body, '"2"') for name, body in others.items()}
    if kind == "kill" or (kind in _RARE and rng.random() < 0.3):
        return [runs[0].end(rng, 0.8), *(run.wait() for run in runs[1:])]
    return [run.wait() for run in runs]


def _complaints(kind: str, code: int, text: str, right: list[str]) -> list[str]:
    """Returns what is wrong with how a reader ended."""
    if code < 0 or code == 130:
        return []
    if code == 0:
        is_right = any(f"digest: {digest}" in text for digest in right)
        return [] if is_right else [f"wrong batches: {text[:500]}"]
    if "Traceback" in text or "error: " not in text:
        return [f"exit code {code} and no message: {text[-1500:]}"]
    if kind in ("changed", "dead", "files"):
        is_named = kind == "files" or "/data/" in text
        return [] if is_named else [f"the error names no file: {text}"]
    return [f"an error where there was none: {text[:500]}"]

"""Readers of stores that fail.

A batch must be right, or an error must name the file. After a reader was disturbed, the next one,
with the same cache and a store that works, must give the batches of a local copy.
"""

import functools
import hashlib
import json
import random
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import builds
from dataset_factory import write_dataset
from web_server import WebFile, WebServer, running_web

from campaign import faults
from campaign.case import Case
from campaign.processes import Ending, Fault, Run, home
from tfrecord_io import ManifestError, make_batches
from tfrecord_io.stores import remote
from tfrecord_io.terminal.errors import ToldError


def main(words: Sequence[str]) -> int:
    """Reads two epochs and prints their digest; the word is JSON, the arguments of `_batches`."""
    options = json.loads(words[0])
    remote.SILENT_SECONDS, remote.RETRY_SECONDS = 2, 20
    try:
        print(f"digest: {_digest(_batches(**options))}")
    except (ToldError, ManifestError, OSError) as error:
        print(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _batches(data: Path | str, **options: object) -> object:
    return make_batches(
        data, split="train", batch_size=16, seed=3, epochs=2, with_keys=True, **options
    )


def _digest(batches: object) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for batch in batches:
        for array in batch:
            digest.update(array)
    return digest.hexdigest()


def _start(fault: Fault | None = None, **options: object) -> Run:
    return Run([json.dumps(options)], fault, {"no_proxy": "127.0.0.1"}, "campaign.readers")


def _is_of(text: str, digests: Sequence[str]) -> bool:
    return any(f"digest: {digest}" in text for digest in digests)


# ---- of a store

# Of these, every one is mended by asking again.
_RARE = ("refused", "cut", "garbled", "short")


class _Store(WebServer):
    """A web server of whose faults a share happens, the `rate`."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.mend()

    def mend(self) -> None:
        self.faults.clear()
        self.fault, self.rate = "", 1.0
        self.num_requests, self.random = 0, random.Random(0)

    def next_fault(self, path: str) -> str:
        time.sleep(0.002)
        with self.lock:
            self.num_requests += 1
            fault = super().next_fault(path)
            # Only records have checksums and a length that is known before.
            is_seen = fault not in ("garbled", "short") or path.endswith(".tfrecord")
            return fault if is_seen and self.random.random() < self.rate else ""

    def hold(self, files: dict[str, bytes], e_tag: str = '"1"') -> None:
        self.files = {f"data/{name}": WebFile(body, e_tag) for name, body in files.items()}


@functools.cache
def _dataset(seed: int) -> tuple[dict[str, bytes], str]:
    """Returns the files of a dataset, of the same sizes for each seed, and its digest."""
    folder = home() / f"remote-{seed}"
    sizes = {"num_examples": {"train": 400}, "image_shape": (50, 40, 1), "num_shards": 4}
    write_dataset(folder, seed=seed, **sizes)
    return builds.files_of(folder), _digest(_batches(folder))


def try_remote(case: Case) -> str:
    """Disturbs a reader of a store, or two, and reads again."""
    files, right = _dataset(0)
    num_bytes = sum(map(len, files.values()))
    room = case.pick(None, num_bytes // 4, 2 * num_bytes, 0)
    kinds = (*_RARE, "kill", "kill", "silent", "dead", "two", "changed", "files")
    kind, where = case.pick(*kinds), case.folder / "cache"
    case.what = f"{kind}, room {'for all' if room is None else room}"
    with running_web(kind=_Store) as server:
        server.hold(files)
        cache_gb = None if room is None else room / 1e9
        start = functools.partial(
            _start, data=server.url("data"), cache_dir=str(where), cache_gb=cache_gb
        )
        endings = _disturb(case, server, kind, start)
        server.mend()
        server.hold(files)
        last = start().wait()
        for ending in endings:
            _judge(case, kind, *ending, [right, _dataset(1)[1]] if kind == "changed" else [right])
        _judge(case, "the next one", *last, [right])
        used = sum(512 * path.stat().st_blocks for path in where.rglob("records"))
        case.require(not room or used <= room, f"the cache takes {used:,} bytes, more than {room}")
        shutil.rmtree(where, ignore_errors=True)
    # Ctrl-C counts as a kill.
    codes = sorted({-1 if code == 130 else min(max(code, -1), 1) for code, _ in endings})
    return f"{kind}: {' and '.join({-1: 'killed', 0: 'right', 1: 'error'}[c] for c in codes)}"


def _disturb(case: Case, server: _Store, kind: str, start: Callable[..., Run]) -> list[Ending]:
    """Reads while something goes wrong."""
    rng, server.random = case.rng, random.Random(case.rng.random())
    if kind in _RARE:
        server.fault, server.rate = kind, 0.05
    elif kind in ("silent", "dead"):
        server.faults.extend([""] * rng.randrange(120))
        if kind == "silent":
            server.faults.extend(["silent"] * case.pick(1, 1, 3))
        else:
            server.fault = "refused"
    fault = functools.partial(faults.small_files, rng.randrange(300, 200_000))
    runs = [start(fault if kind == "files" else None)]
    if kind == "two" or case.happens(0.2):
        time.sleep(0.3 * rng.random())
        runs.append(start())
    if kind == "changed":
        builds.wait_until(lambda: server.num_requests > 8 or not runs[0].process.is_alive())
        time.sleep(0.1 * rng.random())
        server.hold(_dataset(1)[0], '"2"')
    is_killed = kind == "kill" or (kind in _RARE and case.happens(0.3))
    first = [runs.pop(0).end(rng, 0.8)] if is_killed else []
    return [*first, *(run.wait() for run in runs)]


def _judge(case: Case, kind: str, code: int, text: str, right: list[str]) -> None:
    """Complains of how a reader ended."""
    case.require_message(text, code)
    if code == 0:
        case.require(_is_of(text, right), f"{kind}: wrong batches: {text[:500]}")
    elif code == 1:
        is_due = kind == "files" or (kind in ("changed", "dead") and "/data/" in text)
        case.require(is_due, f"{kind}: an error that is not due, or names no file: {text[:500]}")

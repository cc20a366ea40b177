"""Shards and manifests that change before or while they are read.

A batch must be right, or an error must name the file. Where the format cannot show the change, the
outcome says so; docs/reliability.md lists these.
"""

from __future__ import annotations

import functools
import json
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from dataset_factory import write_dataset

from campaign import mutations
from campaign.kills import context

_SHARD = "train-00001-of-00003.tfrecord"
_BATCH = 7


def try_case(rng: random.Random, folder: Path) -> tuple[str, list[str], str]:
    """Damages a dataset and reads all of it in another process; see `archives.try_case`."""
    data = folder / "data"
    write_dataset(data, num_examples={"train": 60}, image_shape=(24, 24, 1))
    images = _read(data, "size", lambda: None)
    verify = rng.choice(("size", "size", "crc", "sha256"))
    if rng.random() < 0.4:
        done = _change_manifest(rng, data / "manifest.json")
        when, change = "before", None
    else:
        way = rng.choice((_cut, _cut, _empty, _grow, _replace, _overwrite, _delete))
        done, when = way.__name__.strip("_"), rng.choice(("before", "mapped"))
        change = functools.partial(way, data / _SHARD, rng.getrandbits(32))
        if when == "before":
            change()
            change = None
    descriptor, log = tempfile.mkstemp(dir=folder)
    os.close(descriptor)
    process = context.Process(target=_try_reading, args=(data, verify, change, images, log))
    process.start()
    process.join(60)
    if process.exitcode is None:
        process.kill()
        return "hung", ["not done after 60 seconds"], done
    outcome = Path(log).read_text()
    what = f"{done}, {when}, verify={verify}"
    if process.exitcode:
        outcome = f"signal {-process.exitcode}"
    problems = []
    # The kernel ends a process that reads a mapped page which its file no longer has.
    if process.exitcode and not (process.exitcode == -7 and when == "mapped"):
        problems = [f"exit code {process.exitcode}"]
    if outcome.startswith("error") and str(folder) not in outcome:
        problems = [f"the error names no file: {outcome}"]
    if outcome.startswith("traceback") or not outcome:
        problems = [outcome or "no answer"]
    # Only a checksum tells other bytes of the same number, and only before the shards are mapped.
    unseen = when == "mapped" or "manifest" in done
    unseen |= verify == "size" and done in ("overwrite", "replace")
    if outcome == "wrong" and not unseen:
        problems = ["a batch is wrong, and nothing was said"]
    return f"{done.split(':')[0]} {when}: {outcome.partition(':')[0]}", problems, what


def _read(data: Path, verify: str, change: Callable[[], object]) -> np.ndarray:
    """Returns all images, batch after batch, changing something once the shards are mapped."""
    from tfrecord_io.reading.mapped import MappedDataset

    dataset = MappedDataset(data, "train", verify=verify)
    change()
    places = np.arange(len(dataset))
    return np.concatenate([dataset[places[i : i + _BATCH]][0] for i in range(0, 60, _BATCH)])


def _try_reading(
    data: Path, verify: str, change: Callable[[], object] | None, images: np.ndarray, log: str
) -> None:
    from tfrecord_io import ManifestError

    try:
        found = _read(data, verify, change or (lambda: None))
        outcome = "right" if np.array_equal(found, images) else "wrong"
    except ManifestError as error:
        outcome = f"error: {error}"
    except Exception as error:
        outcome = f"traceback: {error!r}"
    Path(log).write_text(outcome)


def _cut(path: Path, number: int) -> None:
    os.truncate(path, number % path.stat().st_size)


def _empty(path: Path, number: int) -> None:
    os.truncate(path, 0)


def _grow(path: Path, number: int) -> None:
    with path.open("ab") as file:
        file.write(bytes(1 + number % 9000))


def _replace(path: Path, number: int) -> None:
    other = path.with_suffix(".other")
    other.write_bytes(np.random.default_rng(number).bytes(path.stat().st_size))
    other.replace(path)


def _overwrite(path: Path, number: int) -> None:
    content = bytearray(path.read_bytes())
    content[number % len(content)] ^= 0xFF
    with path.open("r+b") as file:
        file.write(content)


def _delete(path: Path, number: int) -> None:
    path.unlink()


_VALUES: tuple[Any, ...] = (
    None, 0, 1, -1, 2**31, 2**63, 2**70, 0.5, 1e308, "", "x", "../../etc/passwd", "\0", [], {},
    True, [1, 2], {"a": 1}, "train-00000-of-00003.tfrecord", "9" * 400,
)  # fmt: skip


def _change_manifest(rng: random.Random, path: Path) -> str:
    """Changes the bytes or one value of a manifest; returns what was done."""
    if rng.random() < 0.3:
        way = rng.choice(mutations.ANY)
        path.write_bytes(way(rng, bytearray(path.read_bytes())))
        return f"manifest: {way.__name__}"
    content = json.loads(path.read_bytes())
    holder, key = mutations.any_entry(rng, content)
    if rng.random() < 0.3:
        del holder[key]
        value = "removed"
    else:
        value = holder[key] = rng.choice(_VALUES)
    path.write_text(json.dumps(content))
    return f"manifest: {key} {value!a}"[:80]

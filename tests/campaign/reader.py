"""Shards and manifests that change before or while they are read.

A batch must be right, or an error must name the file. Where the format cannot show the change, the
outcome says so; docs/reliability.md lists these.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from dataset_factory import write_dataset

from campaign import mutations
from campaign.processes import Outcome, Run

_SHARD = "train-00001-of-00003.tfrecord"
_BATCH = 7


def try_case(rng: random.Random, folder: Path) -> Outcome:
    """Damages a dataset and reads all of it in another process."""
    data = folder / "data"
    write_dataset(data, num_examples={"train": 60}, image_shape=(24, 24, 1))
    np.save(folder / "images.npy", _read(data, "size"))
    verify = rng.choice(("size", "size", "crc", "sha256"))
    when, words = "before", [str(data), verify]
    if rng.random() < 0.4:
        done = f"manifest: {mutations.alter_json(rng, data / 'manifest.json')}"[:80]
    else:
        done, when = rng.choice(list(_WAYS)), rng.choice(("before", "mapped"))
        change = done, rng.getrandbits(32)
        if when == "before":
            _WAYS[done](data / _SHARD, change[1])
        else:
            words += map(str, change)
    code, outcome = Run(words, command="campaign.reader").wait()
    outcome = f"signal {-code}" if code else outcome.strip()
    what, problems = f"{done}, {when}, verify={verify}", []
    # The kernel ends a process that reads a mapped page which its file no longer has.
    if code and not (code == -7 and when == "mapped"):
        problems = [f"exit code {code}"]
    if outcome.startswith("error") and str(folder) not in outcome:
        problems = [f"the error names no file: {outcome}"]
    if outcome.startswith("Traceback") or not outcome:
        problems = [outcome or "no answer"]
    # Only a checksum tells other bytes of the same number, and only before the shards are mapped.
    unseen = when == "mapped" or "manifest" in done
    unseen |= verify == "size" and done in ("overwrite", "replace")
    if outcome == "wrong" and not unseen:
        problems = ["a batch is wrong, and nothing was said"]
    return f"{done.split(':')[0]} {when}: {outcome.partition(':')[0]}", problems, what


def _read(data: Path, verify: str, change: Callable[[], object] = int) -> np.ndarray:
    """Returns all images, batch after batch, changing something once the shards are mapped."""
    from tfrecord_io.reading.mapped import MappedDataset

    dataset = MappedDataset(data, "train", verify=verify)
    change()
    places = np.arange(len(dataset))
    return np.concatenate([dataset[places[i : i + _BATCH]][0] for i in range(0, 60, _BATCH)])


def main(words: Sequence[str]) -> int:
    """Reads a dataset: DATA VERIFY [WAY NUMBER]."""
    from tfrecord_io import ManifestError

    data, verify, *change = words

    def change_shard() -> None:
        for way, number in zip(change[::2], change[1::2], strict=True):
            _WAYS[way](Path(data, _SHARD), int(number))

    try:
        found = _read(Path(data), verify, change_shard)
        is_right = np.array_equal(found, np.load(Path(data).with_name("images.npy")))
        print("right" if is_right else "wrong")
    except ManifestError as error:
        print(f"error: {error}")
    except Exception as error:
        print(f"Traceback: {error!r}")
    return 0


def _cut(path: Path, number: int) -> None:
    os.truncate(path, number % path.stat().st_size)


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


_WAYS: dict[str, Callable[[Path, int], object]] = {
    "cut": _cut,
    "empty": lambda path, number: os.truncate(path, 0),
    "grow": _grow,
    "replace": _replace,
    "overwrite": _overwrite,
    "delete": lambda path, number: path.unlink(),
}

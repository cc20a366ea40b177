"""How fast are batches read, compared with the limit of the machine and with other readers?

    python benchmarks/read_speed.py [--data OUT] [--ways mmap numpy ...] [--cold]

It needs the extras `train`, `dev` and `bench`. A way whose packages are missing is left out, and
the reason is printed. Without `--data`, images of 224x224x1 are drawn. Every way reads the same
pixels from the page cache in batches of 64, tuned as its documentation recommends. Each way has its
own process, which is stopped while others read. The rounds alternate between the ways and their
medians are compared, so a machine that slows down affects all ways alike.

The ways: `limit` is one thread that gathers from one memory map into memory that it has already;
`mmap` is `make_dataset`, `mmap_epoch_1` the same while it checks each record, `numpy` is
`make_batches`; `tfrecord` is a plain TFRecordDataset that parses whole batches; `decode` and
`decode_grey` read, decode and resize in each step, to three channels as the tutorial of 2018 did,
or to one; the others are what their names say.

With `--cold`, the first epochs of `mmap` and `numpy` are compared with `cat` of the shards, none of
which is in the page cache. Files leave it by `posix_fadvise`; a virtual disk may still have them in
its host's memory, and then hardly waits.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import psutil
from read_data import WRITERS, ReadData, draw_records, warm
from sample_archive import WORK_DIR

from tfrecord_io.format import schema
from tfrecord_io.reading.order import BatchOrder

BATCH_SIZE = 64
# The size of the shuffle buffer of ways without random access to records.
SHUFFLE_BUFFER = 2048
NUM_WORKERS = os.cpu_count() or 1

Way = Callable[..., Iterator[Any]]

#: The goals: a way, the way it is compared with, and the smallest ratio of their speeds.
GOALS = (
    ("mmap", "limit", 0.5),
    ("numpy", "limit", 0.9),
    ("mmap", "tfrecord", 5.0),
    ("mmap_epoch_1", "tfrecord", 4.0),
    *(("mmap", peer, 8.0) for peer in ("tfds", "grain", "webdataset", "mosaicml")),
    ("mmap", "decode", 100.0),
)


def limit(data: ReadData) -> Iterator[Any]:
    """Gathers rows of pixels from a memory map into a preallocated array, in one thread."""
    rows = int(np.prod(data.manifest.image_shape))
    pixels = np.memmap(data.peer("flat") / "pixels", np.uint8, "r").reshape(-1, rows)
    batch = np.empty((BATCH_SIZE, rows), np.uint8)
    order = BatchOrder(num_examples=len(pixels), batch_size=BATCH_SIZE, epochs=None)
    for examples in order:
        np.take(pixels, examples, axis=0, out=batch, mode="clip")
        yield batch


def mmap(data: ReadData) -> Iterator[Any]:
    """Reads with this project's `make_dataset`."""
    import tfrecord_io

    return iter(
        tfrecord_io.make_dataset(data.records, split="train", batch_size=BATCH_SIZE, epochs=None)
    )


def mmap_epoch_1(data: ReadData) -> Iterator[Any]:
    """The same, but in each loop no record has been compared with its checksums before."""
    import tfrecord_io
    from tfrecord_io.reading import mapped

    dataset = tfrecord_io.make_dataset(data.records, split="train", batch_size=BATCH_SIZE)
    while True:
        for checked in mapped._checked.values():
            checked[:] = False
        yield from dataset


def numpy(data: ReadData) -> Iterator[Any]:
    """The same batches without TensorFlow."""
    import tfrecord_io

    return iter(
        tfrecord_io.make_batches(data.records, split="train", batch_size=BATCH_SIZE, epochs=None)
    )


def tfrecord(data: ReadData) -> Iterator[Any]:
    """Reads with TFRecordDataset, which parses whole batches and need not be deterministic."""
    import tensorflow as tf

    layout = data.manifest.layout

    def parse(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        spec = {
            schema.IMAGE: tf.io.FixedLenFeature([], tf.string),
            schema.LABEL: tf.io.FixedLenFeature([layout.num_classes], tf.float32),
        }
        features = tf.io.parse_example(records, spec)
        image = tf.io.decode_raw(features[schema.IMAGE], tf.uint8, fixed_length=layout.image_length)
        return tf.reshape(image, (-1, *layout.image_shape)), features[schema.LABEL]

    options = tf.data.Options()
    options.deterministic = False
    return iter(
        tf.data.TFRecordDataset(data.shard_paths, num_parallel_reads=NUM_WORKERS)
        .repeat()
        .shuffle(SHUFFLE_BUFFER)
        .batch(BATCH_SIZE, drop_remainder=True)
        .map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        .prefetch(tf.data.AUTOTUNE)
        .with_options(options)
    )


def decode(data: ReadData, channels: int = 3) -> Iterator[Any]:
    """Reads, decodes and resizes JPEGs in each step, like the input_fn of the 2018 tutorial."""
    import tensorflow as tf

    height, width, _ = data.manifest.image_shape
    paths = sorted(str(path) for path in data.scans.rglob("*.jpeg"))
    labels = np.eye(data.manifest.num_classes, dtype=np.float32)[np.arange(len(paths)) % 4]

    def load(path: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=channels)
        return tf.image.resize(image, (height, width)), label

    return iter(
        tf.data.Dataset.from_tensor_slices((paths, labels))
        .shuffle(len(paths))
        .repeat()
        .map(load, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(BATCH_SIZE, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )


def tfds(data: ReadData) -> Iterator[Any]:
    """Reads this project's shards with TFDS; raw pixels are its fastest case."""
    import tensorflow as tf
    import tensorflow_datasets

    builder = tensorflow_datasets.builder_from_directory(str(data.records))
    return iter(
        builder.as_dataset(split="train", shuffle_files=True)
        .repeat()
        .shuffle(SHUFFLE_BUFFER)
        .batch(BATCH_SIZE, drop_remainder=True, num_parallel_calls=tf.data.AUTOTUNE)
        .prefetch(tf.data.AUTOTUNE)
    )


def grain(data: ReadData) -> Iterator[Any]:
    """Reads ArrayRecord files with Grain."""
    import grain.python

    shape = data.manifest.image_shape
    image_length = int(np.prod(shape))
    paths = sorted(str(path) for path in data.peer("array_record").glob("*.array_record"))

    def parse(record: bytes) -> tuple[np.ndarray, np.ndarray]:
        image = np.frombuffer(record, np.uint8, image_length).reshape(shape)
        return image, np.frombuffer(record, np.float32, offset=image_length)

    return iter(
        grain.python.MapDataset.source(grain.python.ArrayRecordDataSource(paths))
        .seed(1)
        .shuffle()
        .repeat()
        .map(parse)
        .batch(BATCH_SIZE, drop_remainder=True)
        .to_iter_dataset(grain.python.ReadOptions(num_threads=16, prefetch_buffer_size=16))
    )


def webdataset(data: ReadData) -> Iterator[Any]:
    """Reads tar files with WebDataset."""
    import torch.utils.data
    import webdataset

    urls = sorted(str(path) for path in data.peer("webdataset").glob("*.tar"))
    dataset = (
        webdataset.WebDataset(urls, shardshuffle=len(urls), seed=1)
        .shuffle(SHUFFLE_BUFFER // NUM_WORKERS)
        .decode()
        .to_tuple("npy", "cls")
        .batched(BATCH_SIZE, partial=False)
        .repeat()
    )
    return iter(
        torch.utils.data.DataLoader(
            dataset, batch_size=None, num_workers=NUM_WORKERS, prefetch_factor=4
        )
    )


def mosaicml(data: ReadData) -> Iterator[Any]:
    """Reads MosaicML's shards with its StreamingDataset."""
    import streaming
    import torch.utils.data

    dataset = streaming.StreamingDataset(
        local=str(data.peer("mosaicml")), shuffle=True, batch_size=BATCH_SIZE
    )
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=BATCH_SIZE, num_workers=NUM_WORKERS, drop_last=True,
        prefetch_factor=4, persistent_workers=True,
    )  # fmt: skip
    while True:
        yield from loader


WAYS: dict[str, Way] = {
    "limit": limit,
    "mmap": mmap,
    "mmap_epoch_1": mmap_epoch_1,
    "numpy": numpy,
    "tfrecord": tfrecord,
    "decode": decode,
    "decode_grey": functools.partial(decode, channels=1),
    "tfds": tfds,
    "grain": grain,
    "webdataset": webdataset,
    "mosaicml": mosaicml,
}


def cpu_seconds() -> float:
    """Returns the CPU time of this process and its workers so far."""
    process = psutil.Process()
    times = [one.cpu_times() for one in [process, *process.children(recursive=True)]]
    return sum(one.user + one.system for one in times)


def run(name: str, records: str, work: str) -> None:
    """Reads one way: for each number of seconds on standard input, prints a line of figures."""
    batches = WAYS[name](ReadData(Path(records), Path(work)))
    next(batches)
    for line in sys.stdin:
        print(json.dumps(read_for(batches, float(line))), flush=True)


def read_for(batches: Iterator[Any], seconds: float) -> dict[str, float]:
    """Reads for some seconds, after emptying the queues that filled up since the last turn."""
    end = time.perf_counter() + seconds / 4
    while time.perf_counter() < end:
        next(batches)
    num_batches = 0
    cpu, started = cpu_seconds(), time.perf_counter()
    while (now := time.perf_counter()) < started + seconds:
        next(batches)
        num_batches += 1
    images = num_batches * BATCH_SIZE
    cpu = cpu_seconds() - cpu
    return {"images_per_second": images / (now - started), "cpu_us": cpu / images * 1e6}


class WayProcess:
    """A way in its own process, which is stopped with its workers unless it reads."""

    def __init__(self, name: str, data: ReadData) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `end`
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--run", name, str(data.records), str(data.work)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            process_group=0,
        )

    def read_for(self, seconds: float) -> dict[str, float]:
        """Reads for some seconds and returns the figures.

        Raises:
            RuntimeError: if the way failed; the message is the last line of its error output.
        """
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):  # the process's error output says why it ended
            self._process.stdin.write(f"{seconds}\n")
            self._process.stdin.flush()
        while line := self._process.stdout.readline():
            if line.startswith("{"):  # other lines come from packages that print
                self._signal(signal.SIGSTOP)
                return json.loads(line)
        self._errors.seek(0)
        raise RuntimeError((self._errors.read().strip().splitlines() or ["no reason given"])[-1])

    def end(self) -> None:
        """Ends the process."""
        self._signal(signal.SIGCONT)
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


_EPOCH = """
import glob, subprocess, sys, time, tfrecord_io
way, data = sys.argv[1:]
make = {"numpy": tfrecord_io.make_batches, "mmap": tfrecord_io.make_dataset}.get(way)
batches = make(data, "train", 64, seed=1) if make else ()
start = time.perf_counter()
if way == "cat":
    subprocess.run(["cat", *glob.glob(data + "/*")], stdout=subprocess.DEVNULL, check=True)
for batch in batches:
    pass
print(time.perf_counter() - start)
"""


def compare_cold(records: Path, num_rounds: int) -> None:
    """Prints the seconds of first epochs from a cold disk, and their speed against `cat`."""
    seconds: dict[str, list[float]] = {"cat": [], "numpy": [], "mmap": []}
    for way in [*seconds] * num_rounds:
        for path in records.iterdir():
            with path.open("rb") as file:
                with contextlib.suppress(OSError):
                    os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        words = [sys.executable, "-c", _EPOCH, way, str(records)]
        done = subprocess.run(words, stdout=subprocess.PIPE, check=True)
        seconds[way].append(float(done.stdout))
    for way, turns in seconds.items():
        ratio = statistics.median(seconds["cat"]) / statistics.median(turns)
        print(f"| {way} | {', '.join(f'{turn:.2f}' for turn in turns)} s | {ratio:.2f} of cat |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="finished dataset [a drawn one]")
    parser.add_argument("--num_images", type=int, default=204 * BATCH_SIZE, help="that are drawn")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of a round of a way")
    parser.add_argument("--cold", action="store_true", help="first epochs from a cold disk")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        return run(*arguments.run)
    work = WORK_DIR.absolute() / "read-speed"
    num_images = arguments.num_images
    records = arguments.data or draw_records(work / f"records-{num_images}", num_images)
    if arguments.cold:
        return compare_cold(records, arguments.rounds)
    data, reasons = ReadData(records, work), {}
    for name in arguments.ways:
        try:
            WRITERS.get(name, lambda _: None)(data)
        except ImportError as error:
            reasons[name] = str(error)
    rows = compare(data, arguments.ways, arguments.rounds, arguments.seconds, reasons)
    report(rows, reasons, data)
    return None


def compare(
    data: ReadData, ways: list[str], num_rounds: int, seconds: float, reasons: dict[str, str]
) -> dict[str, dict[str, float]]:
    """Returns the medians by way; adds the ways that fail to `reasons`."""
    processes: dict[str, WayProcess] = {}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    try:
        for _ in range(num_rounds + 1):  # the first round warms up
            for name in ways:
                if name not in reasons:
                    if name not in processes:
                        processes[name] = WayProcess(name, data)
                    warm(data, name)
                    try:
                        rounds[name].append(processes[name].read_for(seconds))
                    except RuntimeError as error:
                        reasons[name] = str(error)
    finally:
        for process in processes.values():
            process.end()
    return {
        name: {figure: statistics.median(row[figure] for row in turns[1:]) for figure in turns[0]}
        for name, turns in rounds.items()
        if name not in reasons
    }


def report(rows: dict[str, dict[str, float]], reasons: dict[str, str], data: ReadData) -> None:
    """Prints the speed of each way, and which goals are reached."""
    shape = "x".join(str(size) for size in data.manifest.image_shape)
    print(f"{data.num_examples:,} images {shape}, batches of {BATCH_SIZE}\n")
    print("| way | images/s | CPU µs per image | mmap is x times |")
    print("| --- | --- | --- | --- |")
    ours = rows.get("mmap", {}).get("images_per_second")
    for name, row in rows.items():
        speed = row["images_per_second"]
        times = f"{ours / speed:.2f}" if ours else ""
        print(f"| {name} | {speed:,.0f} | {row['cpu_us']:,.1f} | {times} |")
    for name, reason in reasons.items():
        print(f"| {name} | left out: {reason} | | |")
    print()
    for name, other, goal in GOALS:
        if name in rows and other in rows:
            ratio = rows[name]["images_per_second"] / rows[other]["images_per_second"]
            verdict = "reached" if ratio >= goal else "MISSED"
            print(f"{name} / {other}: {ratio:.2f}, goal {goal}: {verdict}")


if __name__ == "__main__":
    main()

"""The ways to read that `read_speed.py` compares, each tuned as its documentation recommends.

    python benchmarks/read_ways.py WAY OUT WORK

It runs one way. Each line on standard input is a number of seconds; the way reads for that time and
prints a line of figures.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import psutil
from read_data import ReadData

from tfrecord_io.format import schema
from tfrecord_io.reading.order import BatchOrder

BATCH_SIZE = 64
# The size of the shuffle buffer of ways without random access to records.
SHUFFLE_BUFFER = 2048
NUM_WORKERS = os.cpu_count() or 1

Way = Callable[..., Iterator[Any]]


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
        mapped._checked.clear()
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


def main() -> None:
    name, records, work = sys.argv[1:]
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


if __name__ == "__main__":
    main()

"""The ways to read that `read_speed.py` compares, each tuned as its own documentation says.

    python benchmarks/read_ways.py WAY OUT WORK OPTIONS

runs one of them in a process of its own: for each line on its standard input, a number of
seconds, it reads for so long and writes a line of figures. OPTIONS are the way's own, as JSON.
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

from tfrecord_io import schema
from tfrecord_io.reading.order import BatchOrder

BATCH_SIZE = 64
# Records behind each other are mixed among so many, by the ways that cannot jump to one.
SHUFFLE_BUFFER = 2048
NUM_WORKERS = os.cpu_count() or 1

Way = Callable[..., Iterator[Any]]


def limit(data: ReadData) -> Iterator[Any]:
    """One thread gathers rows of pixels from one map into memory that it owns already."""
    rows = int(np.prod(data.manifest.image_shape))
    pixels = np.memmap(data.peer("flat") / "pixels", np.uint8, "r").reshape(-1, rows)
    batch = np.empty((BATCH_SIZE, rows), np.uint8)
    order = BatchOrder(num_examples=len(pixels), batch_size=BATCH_SIZE, epochs=None)
    # In blocks of batches, so that the order, which is not part of the limit, costs little.
    step = 0
    while True:
        for examples in order.examples_at(order.positions(step, step + 1024)):
            np.take(pixels, examples, axis=0, out=batch, mode="clip")
            yield batch
        step += 1024


def mmap(data: ReadData, **options: Any) -> Iterator[Any]:
    import tfrecord_io

    return iter(
        tfrecord_io.make_dataset(
            data.records,
            **{"split": "train", "batch_size": BATCH_SIZE, "epochs": None, **options},
        )
    )


def numpy(data: ReadData) -> Iterator[Any]:
    """The same batches without TensorFlow."""
    import tfrecord_io

    return iter(
        tfrecord_io.make_batches(data.records, split="train", batch_size=BATCH_SIZE, epochs=None)
    )


def stream(data: ReadData, **options: Any) -> Iterator[Any]:
    return mmap(data, engine="stream", **options)


def tfrecord(data: ReadData) -> Iterator[Any]:
    """TFRecordDataset, batched before it is parsed, in any order that is fastest."""
    import tensorflow as tf

    layout = data.manifest.layout

    def parse(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        features = layout.parse_batch(records)
        return features[schema.IMAGE], features[schema.LABEL]

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
    """Reads, decodes and resizes in each step, as the input_fn of the 2018 tutorial did."""
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


def keras(data: ReadData) -> Iterator[Any]:
    import keras
    import tensorflow as tf

    height, width, _ = data.manifest.image_shape
    dataset = keras.utils.image_dataset_from_directory(
        str(data.scans),
        label_mode="categorical",
        color_mode="grayscale",
        image_size=(height, width),
        batch_size=BATCH_SIZE,
        verbose=False,
    )
    return iter(dataset.repeat().prefetch(tf.data.AUTOTUNE))


def tfds(data: ReadData) -> Iterator[Any]:
    """TFDS reads this project's own files, which hold raw bytes: its fastest case."""
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
    "numpy": numpy,
    "stream": stream,
    "tfrecord": tfrecord,
    "decode": decode,
    "decode_grey": functools.partial(decode, channels=1),
    "keras": keras,
    "tfds": tfds,
    "grain": grain,
    "webdataset": webdataset,
    "mosaicml": mosaicml,
}


def cpu_seconds() -> float:
    """CPU time of this process and of its workers so far."""
    process = psutil.Process()
    times = [one.cpu_times() for one in [process, *process.children(recursive=True)]]
    return sum(one.user + one.system for one in times)


def main() -> None:
    name, records, work, options = sys.argv[1:]
    batches = WAYS[name](ReadData(Path(records), Path(work)), **json.loads(options))
    next(batches)
    for line in sys.stdin:
        print(json.dumps(read_for(batches, float(line))), flush=True)


def read_for(batches: Iterator[Any], seconds: float) -> dict[str, float]:
    """Reads for some seconds; what other ways' turns let pile up is read before."""
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

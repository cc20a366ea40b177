"""How much time of a training step does the input take? Four inputs for Keras `fit`, and our loop.

    python benchmarks/train_speed.py --data OUT [--images DIR] [--model convnet]

- memory: the same batches as tensors in memory; this is the limit.
- reader: `tfrecord_io.make_dataset`.
- tfrecord: tf.data's TFRecordDataset, shuffled, batched and parsed.
- decode: the input function of the 2018 tutorial, which reads, decodes and resizes in every step.
  It reads `--images`, a folder of JPEG files; without it, the benchmark draws files of 512x496, the
  usual size of the OCT scans.

`trainer` is this project's own loop, with the share of time that it waits for input. The rounds
alternate between the ways and the medians are compared, so a machine that slows down affects all
ways alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from train.machine import console
from train.networks.options import MODELS, OWN_MODELS
from train.training.config import TrainConfig

console.set_defaults()
with console.hide_native_noise():
    import keras
    import numpy as np
    import tensorflow as tf
    from PIL import Image

    import tfrecord_io
    from train.data import feed
    from train.networks.models import build_network
    from train.training.run_setup import make_run
    from train.training.steps import training_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True, help="finished dataset")
    parser.add_argument("--images", help="folder of JPEG files for the per-step decode")
    parser.add_argument("--model", default="convnet", choices=MODELS)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=8, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", help="JSON file for the figures")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        images = Path(arguments.images) if arguments.images else draw_images(Path(folder))
        results = compare(arguments, images)
    for name, row in results.items():
        print(
            f"{name:<16} {row['images_per_second']:>9,.1f} images/s  {row['ratio']:.3f} of memory"
        )
    print(f"trainer waited for input {results['trainer']['input_wait_share']:.2%} of the time")
    if arguments.output:
        Path(arguments.output).write_text(json.dumps(results, indent=1) + "\n")


def compare(arguments: argparse.Namespace, images: Path) -> dict[str, dict[str, float]]:
    """Returns images/s and the ratio to the limit, by the name of the way."""
    manifest = tfrecord_io.Manifest.load(arguments.data)
    wanted = (arguments.rounds + 1) * arguments.steps * arguments.batch_size
    config = TrainConfig.of(
        data=arguments.data,
        model=arguments.model,
        weights="none",
        replica_batch_size=arguments.batch_size,
        strategy="single",
        # Keras' own step is that of plain Adam, and does none of these.
        optimizer="adam",
        schedule="constant",
        warmup_steps=0,
        ema_decay=0.0,
        augment=False,
        mixup=0.0,
        label_smoothing=0.0,
        # Avoids reading the statistics of the pixels.
        normalize="unit" if arguments.model in OWN_MODELS else None,
        test_time_flip=False,
        precision="float32",
        jit_compile=False,
        class_weights="none",
        epochs=wanted // manifest.split("train").num_examples + 1,
    )
    with console.hide_native_noise():
        run = make_run(config, Path())
    config, devices = run.config, run.devices

    ways: dict[str, Callable[[], float]] = {}
    for name, dataset in {
        "fit, memory": memory_batches(config, manifest),
        "fit, reader": reader_batches(config),
        "fit, tfrecord": plain_batches(config, manifest),
        "fit, decode": decode_batches(images, config, manifest),
    }.items():
        keras.utils.set_random_seed(0)
        model = build_network(
            config.network, image_shape=manifest.image_shape, num_classes=manifest.num_classes
        ).model
        ways[name] = fit_round(model, iter(dataset), arguments)
    with devices.scope():
        keras.utils.set_random_seed(0)
        network = build_network(
            config.network, image_shape=manifest.image_shape, num_classes=manifest.num_classes
        )
    steps = training_steps(run, network, learning_rate=1e-4, num_steps=wanted)
    batches = steps.iterate(
        feed.training_batches(config.input, 0.0, devices, run.parts.train, start_step=0)
    )
    waited = []

    def trainer_round() -> float:
        started = time.perf_counter()
        waited.append(steps.train(batches, arguments.steps).wait_seconds)
        return time.perf_counter() - started

    ways["trainer"] = trainer_round
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for one_round in ways.values():
        one_round()  # builds the graph
    waited.clear()
    for _ in range(arguments.rounds):
        for name, one_round in ways.items():
            seconds[name].append(one_round())
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    images_in_round = arguments.steps * arguments.batch_size
    results = {
        name: {
            "images_per_second": images_in_round / median,
            "ratio": medians["fit, memory"] / median,
        }
        for name, median in medians.items()
    }
    results["trainer"]["input_wait_share"] = sum(waited) / sum(seconds["trainer"])
    return results


def fit_round(
    model: keras.Model, batches: object, arguments: argparse.Namespace
) -> Callable[[], float]:
    """Returns a function that trains some steps with Keras' compiled step and returns the seconds.

    `fit` takes a dataset, not an iterator, and would restart it in each round. The rounds therefore
    call the train function that `fit` calls, which does all of the work of a step.

    Args:
        model: the model to compile and train.
        batches: iterator over (images, labels).
        arguments: supplies the number of steps.
    """
    model.compile(keras.optimizers.Adam(1e-4), "categorical_crossentropy", jit_compile=False)
    model.make_train_function()

    def one_round() -> float:
        started = time.perf_counter()
        for _ in range(arguments.steps):
            logs = model.train_function(batches)
        float(logs["loss"])
        return time.perf_counter() - started

    return one_round


def reader_batches(config: TrainConfig) -> tf.data.Dataset:
    """Returns batches from this project's reader."""
    return tfrecord_io.make_dataset(
        config.input.data,
        split="train",
        batch_size=config.input.replica_batch_size,
        seed=0,
        epochs=None,
    )


def memory_batches(config: TrainConfig, manifest: tfrecord_io.Manifest) -> tf.data.Dataset:
    """Returns the reader's first batches, kept in memory and repeated."""
    batches = list(reader_batches(config).take(8))
    images = tf.stack([image for image, _ in batches])
    labels = tf.stack([label for _, label in batches])
    return tf.data.Dataset.from_tensor_slices((images, labels)).cache().repeat().prefetch(2)


def plain_batches(config: TrainConfig, manifest: tfrecord_io.Manifest) -> tf.data.Dataset:
    """Returns batches from tf.data's TFRecordDataset."""
    paths = [str(Path(config.input.data) / shard.name) for shard in manifest.split("train").shards]

    def parse(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        spec = {
            "image": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([manifest.num_classes], tf.float32),
        }
        features = tf.io.parse_example(records, spec)
        pixels = tf.io.decode_raw(features["image"], manifest.dtype)
        return tf.reshape(pixels, (-1, *manifest.image_shape)), features["label"]

    return (
        tf.data.TFRecordDataset(paths, num_parallel_reads=2)
        .shuffle(2048)
        .repeat()
        .batch(config.input.replica_batch_size, drop_remainder=True)
        .map(parse, num_parallel_calls=2)
        .prefetch(2)
    )


def decode_batches(
    folder: Path, config: TrainConfig, manifest: tfrecord_io.Manifest
) -> tf.data.Dataset:
    """Returns batches decoded and resized in each step, as by the 2018 tutorial's input_fn."""
    paths = sorted(str(path) for path in folder.rglob("*.jp*g") if not path.name.startswith("."))
    height, width, channels = manifest.image_shape
    labels = np.eye(manifest.num_classes, dtype=np.float32)[
        np.arange(len(paths)) % manifest.num_classes
    ]

    def decode(path: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=channels)
        image = tf.image.resize(image, (height, width))
        return tf.cast(image, tf.uint8), label

    return (
        tf.data.Dataset.from_tensor_slices((paths, labels))
        .shuffle(len(paths))
        .repeat()
        .map(decode, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(config.input.replica_batch_size, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )


def draw_images(folder: Path, num_images: int = 128) -> Path:
    """Draws grey JPEGs of 512x496 with about the detail of a scan (65 kB each)."""
    generator = np.random.default_rng(0)
    for index in range(num_images):
        coarse = Image.fromarray(generator.integers(256, size=(31, 32), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((512, 496), Image.Resampling.BICUBIC), np.float32)
        speckle = smooth * generator.gamma(9, 1 / 9, smooth.shape)
        pixels = np.clip(speckle, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:04d}.jpeg", quality=75)
    return folder


if __name__ == "__main__":
    sys.exit(main())

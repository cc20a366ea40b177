"""Trains on one and on two logical devices in one process and prints the losses as JSON.

A process of its own, because TensorFlow fixes its devices when it starts.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from train import console

console.set_defaults()

import keras  # noqa: E402 - after the settings that it reads

import tfrecord_io  # noqa: E402
from train import feed  # noqa: E402
from train.config import TrainConfig  # noqa: E402
from train.models import build_network  # noqa: E402
from train.optimizers import make_optimizer  # noqa: E402
from train.steps import make_steps  # noqa: E402
from train.strategy import configure_devices  # noqa: E402


def losses(config: TrainConfig) -> dict[str, object]:
    """Returns the loss of each step, the number of graphs built, and predictions."""
    manifest = tfrecord_io.Manifest.load(config.data)
    num_examples = manifest.split("train").num_examples
    keras.utils.set_random_seed(config.seed)
    devices = configure_devices(config)
    config = config.resolve(
        num_examples=num_examples,
        num_replicas=devices.num_replicas,
        precision="float32",
        jit_compile=False,
    )
    with devices.scope():
        network = build_network(
            config, image_shape=manifest.image_shape, num_classes=manifest.num_classes
        )
        optimizer = make_optimizer(config, learning_rate=config.learning_rate, num_steps=1)
    steps = make_steps(
        network,
        optimizer,
        devices,
        class_weights=manifest.class_weights("train"),
        jit_compile=bool(config.jit_compile),
    )
    batches = steps.iterate(
        feed.training_batches(config, devices, num_examples=num_examples, start_step=0)
    )
    num_steps = feed.end_step(
        config.epochs - 1,
        num_examples=num_examples,
        global_batch_size=config.global_batch_size or 0,
    )
    sums, counts = [], []
    done = 0
    while done < num_steps:
        here = min(config.steps_per_execution, num_steps - done)
        results = steps.train(batches, here)
        sums += results.loss_sums.tolist()
        counts += results.num_examples.tolist()
        done += here
    probabilities = [
        row.tolist()
        for rows, _ in steps.predict(
            steps.iterate(feed.evaluation_batches(config, devices, "test"))
        )
        for row in rows
    ]
    return {
        "replicas": devices.num_replicas,
        "losses": [total / count for total, count in zip(sums, counts, strict=True)],
        "counts": counts,
        "num_traces": steps.num_traces,
        "probabilities": probabilities,
    }


def main() -> None:
    """Runs each of the variants given as JSON on top of common settings."""
    common = TrainConfig(
        data=sys.argv[1], epochs=3, global_batch_size=8, seed=1, strategy="auto", cpu_devices=2
    )
    variants = json.loads(sys.argv[2])
    results = [losses(dataclasses.replace(common, **fields)) for fields in variants]
    print(json.dumps(results))


if __name__ == "__main__":
    main()

"""Trains on one and on two logical devices in one process and prints the losses as JSON.

A process of its own, because TensorFlow fixes its devices when it starts.
"""

from __future__ import annotations

import json
import sys

from train import console

console.set_defaults()

import numpy as np  # noqa: E402 - after the settings that Keras reads

import tfrecord_io  # noqa: E402
from train.config import TrainConfig  # noqa: E402
from train.data import feed, parts  # noqa: E402
from train.devices import configure_devices, set_seed  # noqa: E402
from train.kinds.classes import CLASSES  # noqa: E402
from train.networks.models import build_network  # noqa: E402
from train.networks.optimizers import averaged_weights, make_optimizer  # noqa: E402
from train.training.steps import Objective, make_steps  # noqa: E402


def losses(config: TrainConfig) -> dict[str, object]:
    """Returns the loss of each step, the number of graphs built, and predictions."""
    manifest = tfrecord_io.Manifest.load(config.data)
    chosen = parts.choose_parts(config, manifest)
    num_examples = chosen.train.num_examples
    devices = configure_devices(config)
    set_seed(config.seed)
    config = config.resolve(
        num_examples=num_examples,
        num_replicas=devices.num_replicas,
        precision="float32",
        jit_compile=False,
    )
    num_steps = feed.end_step(
        config.epochs - 1,
        num_examples=num_examples,
        global_batch_size=config.global_batch_size or 0,
    )
    with devices.scope():
        network = build_network(
            config,
            image_shape=manifest.image_shape,
            num_classes=manifest.num_classes,
            statistics=parts.read_statistics(config.data, chosen.train),
            synchronized=devices.must_synchronize,
        )
        optimizer = make_optimizer(config, learning_rate=config.learning_rate, num_steps=num_steps)
    weights = CLASSES.class_weights(
        chosen.train.label_counts, chosen.train.num_examples, config.class_weight_power
    )
    steps = make_steps(
        network,
        optimizer,
        devices,
        objective=Objective.from_config(config, weights),
        jit_compile=bool(config.jit_compile),
    )
    batches = steps.iterate(feed.training_batches(config, devices, chosen.train, start_step=0))
    sums, counts = [], []
    done = 0
    while done < num_steps:
        here = min(config.steps_per_execution, num_steps - done)
        results = steps.train(batches, here)
        sums += results.loss_sums.tolist()
        counts += results.num_examples.tolist()
        done += here
    steps.sync()
    with averaged_weights(optimizer, network.logits.trainable_variables):
        test_batches = steps.iterate(feed.evaluation_batches(config, devices, chosen.test))
        probabilities = np.concatenate([rows for rows, _ in steps.predict(test_batches)])
    return {
        "replicas": devices.num_replicas,
        "losses": [total / count for total, count in zip(sums, counts, strict=True)],
        "counts": counts,
        "num_traces": steps.num_traces,
        "probabilities": probabilities.tolist(),
    }


def main() -> None:
    """Runs each of the variants given as JSON on top of common settings."""
    common = {"data": sys.argv[1], "epochs": 3, "global_batch_size": 8, "seed": 1, "cpu_devices": 2}
    variants = json.loads(sys.argv[2])
    results = [losses(TrainConfig(**(common | fields))) for fields in variants]
    print(json.dumps(results))


if __name__ == "__main__":
    main()

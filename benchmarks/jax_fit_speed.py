"""How close is Keras `fit` on JAX, fed by `make_batches`, to `fit` on the same batches in memory?

    python benchmarks/jax_fit_speed.py --data OUT [--model convnet]

Both ways train the same network with the same eight batches at first, then the reader goes on
through the data and the other begins again. The rounds alternate, and the medians are compared. The
slower the network, the more it hides: `--model` should be the fastest that there is.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Iterator

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

import tfrecord_io
from train.networks.models import build_network
from train.networks.options import MODELS, OWN_MODELS
from train.training.config import TrainConfig

Batches = Iterator[tuple[np.ndarray, ...]]


def main() -> None:
    """Prints images/s of both ways and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True, help="finished dataset")
    parser.add_argument("--model", default="convnet", choices=MODELS)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=8, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    reader = iter(
        tfrecord_io.make_batches(
            arguments.data, split="train", batch_size=arguments.batch_size, epochs=None
        )
    )
    kept = list(itertools.islice(reader, 8))
    ways: dict[str, Batches] = {"memory": itertools.cycle(kept), "reader": reader}
    network = make_network(arguments)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(arguments.rounds + 1):
        for name, batches in ways.items():
            spent = fit(network, batches, arguments.steps)
            if turn:  # the first round compiles
                seconds[name].append(spent)
    images = arguments.steps * arguments.batch_size
    medians = {name: images / statistics.median(values) for name, values in seconds.items()}
    for name, rate in medians.items():
        print(f"fit, {name:<8} {rate:>9,.1f} images/s")
    print(f"reader / memory: {medians['reader'] / medians['memory']:.3f}, goal 0.97")


def make_network(arguments: argparse.Namespace) -> keras.Model:
    """Returns a compiled network for the dataset."""
    manifest = tfrecord_io.Manifest.load(arguments.data)
    config = TrainConfig.of(
        data=arguments.data,
        model=arguments.model,
        weights="none",
        normalize="unit" if arguments.model in OWN_MODELS else None,
        test_time_flip=False,
    )
    model = build_network(
        config.network, image_shape=manifest.image_shape, num_classes=manifest.num_classes
    ).model
    model.compile(keras.optimizers.Adam(1e-4), "categorical_crossentropy")
    return model


def fit(model: keras.Model, batches: Batches, num_steps: int) -> float:
    """Trains some steps; returns the seconds."""
    # Keras takes a generator, and reads one batch more than it needs to see its shape.
    given = (batch for batch in itertools.islice(batches, num_steps + 1))
    started = time.perf_counter()
    model.fit(given, steps_per_epoch=num_steps, epochs=1, shuffle=False, verbose=0)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()

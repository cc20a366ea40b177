"""Trains on one and on two logical devices in one process and prints the losses as JSON.

A process of its own, because TensorFlow fixes its devices when it starts.
"""

import json
import sys

from train.machine import console

console.set_defaults()

from train.data import feed  # noqa: E402
from train.networks.optimizers import averaged_weights  # noqa: E402
from train.training.config import TrainConfig  # noqa: E402 - after the settings that Keras reads
from train.training.session import open_sessions  # noqa: E402


def losses(config: TrainConfig) -> dict[str, object]:
    """Returns the loss of each step, the number of graphs built, and predictions."""
    (session,) = open_sessions(config)
    num_steps = session.steps_after[-1]
    network = session.build_network("float32")
    steps = session.training_steps(network)
    batches = steps.iterate(session.training_batches(0))
    sums, counts = [], []
    for _ in range(num_steps):
        results = steps.train(batches)
        sums.append(float(results.totals[0]))
        counts.append(float(results.totals[2]))
    steps.sync()
    with averaged_weights(steps.optimizer, network.logits.trainable_variables):
        given = session.data, session.parts.test, session.config.input, session.devices
        probabilities, _ = steps.predict(feed.evaluation_batches(*given))
    return {
        "replicas": session.devices.num_replicas,
        "losses": [total / count for total, count in zip(sums, counts, strict=True)],
        "counts": counts,
        "num_traces": steps.num_traces,
        "probabilities": probabilities.tolist(),
    }


def main() -> None:
    """Runs each of the variants given as JSON on top of common settings."""
    common = {"epochs": 3, "global_batch_size": 8, "seed": 1, "cpu_devices": 2}
    common |= {"data": sys.argv[1], "precision": "float32"}
    variants = (TrainConfig.of(**common | fields) for fields in json.loads(sys.argv[2]))
    print(json.dumps([losses(config) for config in variants]))


if __name__ == "__main__":
    main()

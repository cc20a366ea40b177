"""Trains on one and on two logical devices in one process and prints the losses as JSON.

A process of its own, because TensorFlow fixes its devices when it starts.
"""

import json
import sys
from pathlib import Path

from train.machine import console

console.set_defaults()

from train.data import feed  # noqa: E402
from train.machine.devices import set_seed  # noqa: E402
from train.networks.optimizers import averaged_weights  # noqa: E402
from train.training.config import TrainConfig  # noqa: E402 - after the settings that Keras reads
from train.training.run_setup import make_run  # noqa: E402
from train.training.steps import training_steps  # noqa: E402


def losses(config: TrainConfig) -> dict[str, object]:
    """Returns the loss of each step, the number of graphs built, and predictions."""
    run = make_run(config, Path())
    set_seed(config.input.seed)
    config = run.config
    num_steps = run.steps_after[-1]
    network = run.build_network("float32")
    steps = training_steps(run, network)
    batches = steps.iterate(
        feed.training_batches(
            config.input, config.augmentation.mixup, run.devices, run.parts.train, start_step=0
        )
    )
    sums, counts = [], []
    done = 0
    while done < num_steps:
        here = min(config.loop.steps_per_execution, num_steps - done)
        results = steps.train(batches, here)
        sums += results.totals[:, 0].tolist()
        counts += results.totals[:, 2].tolist()
        done += here
    steps.sync()
    with averaged_weights(steps.optimizer, network.logits.trainable_variables):
        test = feed.evaluation_batches(config.input, run.devices, run.parts.test)
        probabilities, _ = steps.predict(test)
    return {
        "replicas": run.devices.num_replicas,
        "losses": [total / count for total, count in zip(sums, counts, strict=True)],
        "counts": counts,
        "num_traces": steps.num_traces,
        "probabilities": probabilities.tolist(),
    }


def main() -> None:
    """Runs each of the variants given as JSON on top of common settings."""
    common = {
        "data": sys.argv[1],
        "epochs": 3,
        "global_batch_size": 8,
        "seed": 1,
        "cpu_devices": 2,
        "precision": "float32",
    }
    variants = json.loads(sys.argv[2])
    results = [losses(TrainConfig.of(**(common | fields))) for fields in variants]
    print(json.dumps(results))


if __name__ == "__main__":
    main()

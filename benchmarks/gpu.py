"""What do input and augmentation cost on a GPU? A row a network, on drawn data, without network.

    KERAS_BACKEND=jax python benchmarks/gpu.py --models small_resnet resnet50

A bare step (SGD, no augmentation, no averaged weights) is fed from three sources by turns, and
medians count:

- device: the same batch on the device each time, which is the limit.
- reader: the mapped shards, as in training.
- grain: JPEGs of 512x496, decoded and resized in each step by Grain, one worker process a core.

`trained` is a training step with all defaults, on the same batch each time. One GPU is used. The
test runs all of it on a CPU.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from read_data import LABEL_NAMES, ReadData, decode_scan, draw_records, draw_scans

from tfrecord_io.decoding.options import Preprocessing

# Keras is imported by functions: Grain's workers import this file again, and need none.
if TYPE_CHECKING:
    from train.training.session import Session
    from train.training.steps import Steps

#: Settings of a bare step.
BARE: dict[str, Any] = {
    "optimizer": "sgd",
    "ema_decay": 0.0,
    "augment": False,
    "mixup": 0.0,
    "label_smoothing": 0.0,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    models = ("small_resnet", "efficientnet_lite0", "resnet50")
    parser.add_argument("--models", nargs="+", default=models, metavar="NAME")
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--num_images", type=int, default=16_384, help="[16384, 0.8 GB]")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("data/gpu"), help="folder of the data")
    args = parser.parse_args()
    data = ReadData(args.work / f"records-{args.num_images}-{args.image_size}", args.work)
    draw_records(data.records, args.num_images, (args.image_size, args.image_size, 1))
    draw_scans(data)
    print("| network | device, images/s | reader | grain | trained | reader waits |")
    print("| --- |" + " --- |" * 5)
    for model in args.models:
        speeds, waits = measure(args, data, model)
        device = speeds.pop("device")
        shares = " | ".join(f"{speed / device:.3f}" for speed in speeds.values())
        print(f"| {model} | {device:,.0f} | {shares} | {waits:.2%} |", flush=True)
    print("\nreader, grain, trained: shares of device; waits: share of the time of its steps")


def measure(args: argparse.Namespace, data: ReadData, model: str) -> tuple[dict[str, float], float]:
    """Returns images/s of a network by source, and the share of the reader's time that it waits."""
    from train.training.timing import time_rounds

    count = {"num_steps": args.steps, "num_rounds": args.rounds}
    session, steps = prepared(args, data, model, BARE)
    sources = {
        "device": itertools.repeat(next(steps.iterate(session.training_batches(0)))),
        "reader": steps.iterate(session.training_batches(0)),
        "grain": placed(session, steps, decoded_by_grain(args, data)),
    }
    times = time_rounds(steps, sources, **count)
    session, steps = prepared(args, data, model, {})
    batch = next(steps.iterate(session.training_batches(0)))
    trained = {"trained": itertools.repeat(batch)}
    times |= time_rounds(steps, trained, **count)
    images = args.steps * args.batch_size
    return {name: images / seconds for name, (seconds, _) in times.items()}, times["reader"][1]


def prepared(
    args: argparse.Namespace, data: ReadData, model: str, settings: dict[str, Any]
) -> tuple[Session, Steps]:
    """Returns a training of a network with random weights, and its steps."""
    from train.training.config import TrainConfig
    from train.training.timing import prepare_steps

    config = TrainConfig.of(
        data=str(data.records),
        model=model,
        weights="none",
        gpus=1,
        replica_batch_size=args.batch_size,
        precision=args.precision,
        **settings,
    )
    return prepare_steps(config, num_steps=(args.rounds + 1) * args.steps + 1)


def decoded_by_grain(args: argparse.Namespace, data: ReadData) -> Iterator[np.ndarray]:
    """Yields batches of images; each worker process makes whole batches, as Grain advises."""
    import absl.flags
    import grain.python as grain

    absl.flags.FLAGS.mark_as_parsed()  # Grain's workers require it
    stored = Preprocessing(height=args.image_size, width=args.image_size)
    paths = sorted(map(str, data.scans.rglob("*.jpeg")))
    dataset = grain.MapDataset.source(paths).shuffle(seed=0).repeat()
    dataset = dataset.map(functools.partial(decode_scan, preprocessing=stored))
    workers = grain.MultiprocessingOptions(num_workers=os.cpu_count() or 1)
    return iter(dataset.batch(args.batch_size).to_iter_dataset().mp_prefetch(workers))


def placed(session: Session, steps: Steps, batches: Iterator[np.ndarray]) -> Any:
    """Returns batches of images as a step takes them, on its device."""
    from train.data import augmentation

    size = session.config.input.global_batch_size or 0
    labels = np.eye(len(LABEL_NAMES), dtype=np.float32)[np.arange(size) % len(LABEL_NAMES)]
    weights = np.full(size, 1 / size, np.float32)
    draws = np.zeros((size, augmentation.NUM_DRAWS), np.float32)
    whole = ((images, labels, weights, draws) for images in batches)
    if session.devices.backend == "jax":
        return steps.iterate(whole)
    import tensorflow as tf

    signature = tuple(tf.TensorSpec(part.shape, part.dtype) for part in next(whole))
    dataset = tf.data.Dataset.from_generator(lambda: whole, output_signature=signature)
    return steps.iterate(dataset.prefetch(2))


if __name__ == "__main__":
    from train.machine import console

    console.set_defaults()
    main()

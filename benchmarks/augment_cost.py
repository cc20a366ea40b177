"""What does the augmentation cost? Bytes by XLA's count, and CPU time, without a GPU.

    python benchmarks/augment_cost.py [--backend jax] [--rounds 3]

For a batch of 64 images at 224 pixels, by backend:
- on JAX the bytes that XLA's cost analysis counts for the batch, augmented and in bfloat16, against
  the floor: each stored uint8 is read once and each bfloat16 written once.
- CPU time (of all threads) of the augmentation alone, and of a step of small_resnet with and
  without it, by turns. Augmented steps have MixUp, too.

To compare with another version, run that version's script by turns.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from read_data import draw_records

from train.machine import console


def main() -> None:
    """Prints the figures of each backend, from a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", choices=("jax", "tensorflow"), help="[each that is installed]")
    parser.add_argument("--batch_size", type=int, default=64, help="[64]")
    parser.add_argument("--image_size", type=int, default=224, help="[224]")
    parser.add_argument("--rounds", type=int, default=3, help="[3]")
    parser.add_argument("--steps", type=int, default=1, help="of a round [1]")
    parser.add_argument("--work", default="data/augment", help="folder of the drawn data")
    arguments = parser.parse_args()
    if arguments.backend and os.environ.get("KERAS_BACKEND") == arguments.backend:
        measure(arguments)
        return
    installed = [name for name in ("jax", "tensorflow") if importlib.util.find_spec(name)]
    for backend in [arguments.backend] if arguments.backend else installed:
        command = [sys.executable, __file__, *sys.argv[1:], "--backend", backend]
        environment = {**os.environ, "KERAS_BACKEND": backend}
        subprocess.run(command, env=environment, check=True)


def measure(arguments: argparse.Namespace) -> None:
    """Prints the figures of the backend in use."""
    console.set_defaults()
    import numpy as np

    from train.data import augmentation
    from train.training import timing
    from train.training.config import TrainConfig
    from train.training.session import session_of

    size, side = arguments.batch_size, arguments.image_size
    shape = (side, side, 1)
    records = draw_records(Path(arguments.work) / f"records-{size}-{side}", 4 * size, shape)

    def session_with(**settings: Any) -> Any:
        config = TrainConfig.of(
            data=str(records), model="small_resnet", global_batch_size=size, **settings
        )
        return session_of(config)

    sessions = {
        "bare": session_with(augment=False, mixup=0.0),
        "augmented": session_with(mixup=0.0),
        "and MixUp": session_with(),
    }
    images = np.random.default_rng(0).integers(256, size=(size, *shape), dtype=np.uint8)
    labels = np.eye(4, dtype=np.float32)[np.arange(size) % 4]
    draws = augmentation.draw(0, 0, batch_size=size, mixup=0.3)
    batch = images, labels, draws
    backend = os.environ["KERAS_BACKEND"]
    alone: dict[str, Callable[[], Any]] = {}
    for name, session in list(sessions.items())[1:]:
        changing = session.lesson.prepare
        if backend == "jax":
            import jax

            def written(*batch: Any, changing: Callable[..., Any] = changing) -> Any:
                changed, labels = changing(*batch)
                return changed.astype("bfloat16"), labels

            cost = jax.jit(written).lower(*batch).compile().cost_analysis()
            share = cost["bytes accessed"] / (3 * images.size)
            print(f"{backend}, {name}: {share:.2f} times the floor's bytes", flush=True)
            compiled = jax.jit(changing)
            alone[name] = lambda compiled=compiled: jax.block_until_ready(compiled(*batch))
        else:
            import tensorflow as tf

            compiled = tf.function(changing, autograph=False, jit_compile=True)
            tensors = [tf.constant(each) for each in batch]
            alone[name] = functools.partial(compiled, *tensors)
    for name, seconds in by_turns(alone, arguments.rounds).items():
        print(f"{backend}, {name}: {1000 * seconds:.1f} ms of CPU time alone", flush=True)
    stepping: dict[str, Callable[[], Any]] = {}
    for name, session in sessions.items():
        num_steps = (arguments.rounds + 1) * arguments.steps
        session, _, steps = timing.prepare_steps(session, num_steps=num_steps)
        batches = steps.iterate(session.training_batches(0))
        stepping[name] = functools.partial(steps.train, batches, arguments.steps)
    taken = by_turns(stepping, arguments.rounds)
    for name, seconds in taken.items():
        milliseconds, ratio = 1000 * seconds / arguments.steps, seconds / taken["bare"]
        print(f"{backend}, a step, {name}: {milliseconds:.0f} ms of CPU time, "
              f"{ratio:.3f} of the bare step", flush=True)  # fmt: skip


def by_turns(functions: dict[str, Callable[[], Any]], num_rounds: int) -> dict[str, float]:
    """Returns the median seconds of CPU time of each function, after a first call of each."""
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    for _ in range(num_rounds):
        for name, function in functions.items():
            started = time.process_time()
            function()
            taken[name].append(time.process_time() - started)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


if __name__ == "__main__":
    main()

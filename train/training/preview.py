"""How long steps take, and `--preview`: shapes, speed and some images of a planned training.

A preview writes nothing but a picture of augmented images. It may show patients, so it goes into a
new temporary folder that only its owner can read, not into the working folder.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from PIL import Image

from train.networks.models import Network
from train.training.config import TrainConfig
from train.training.session import Session, session_of
from train.training.steps import Steps
from train.training.training_loop import Progress, announce

# Steps of a round, the rounds that are timed, and the images in the picture.
_STEPS, _ROUNDS, _SHOWN = 4, 3, 8


def preview(config: TrainConfig) -> None:
    """Prints what a run would be, times some steps and draws a batch; raises `UserError`."""
    session, folds = session_of(config), config.folds
    plan, manifest = session.plan, session.data.manifest
    num_runs = (folds.folds or 1) if folds.is_cross_validation else 1
    if folds.is_cross_validation:
        print(f"cross-validation of {num_runs} runs, of which this is the first")
    timed, network, steps = prepare_steps(session, num_steps=_STEPS * (_ROUNDS + 1))
    announce(session, Progress(), network.model.count_params())
    size = plan.config.input.global_batch_size
    images = "x".join(map(str, (size, *manifest.image_shape)))
    print(f"a batch: images {images} uint8, labels {size}x{manifest.num_classes} float32")
    batches = {"read": steps.iterate(timed.training_batches(0))}
    times = time_rounds(steps, batches, num_steps=_STEPS, num_rounds=_ROUNDS)
    num_steps = plan.steps_after[-1]
    seconds = times["read"][0] / _STEPS * num_steps
    print(
        f"about {seconds * num_runs / 60:.1f} minutes for all {num_steps * num_runs:,} steps, "
        "without evaluation; an estimate, from some steps now"
    )
    images, labels, _, draws = next(iter(session.training_batches(0)))
    images, _ = session.objective.prepare(images, labels, draws)
    shown = np.clip(keras.ops.convert_to_numpy(images[:_SHOWN]), 0, 255).astype(np.uint8)
    row = np.concatenate(shown, axis=1)
    path = Path(tempfile.mkdtemp(prefix="scan-tfrecords-")) / "preview.png"
    Image.fromarray(row if row.shape[-1] == 3 else row[..., 0]).save(path)
    print(f"augmented images: {path}\nnothing else was written")


def prepare_steps(session: Session, *, num_steps: int) -> tuple[Session, Network, Steps]:
    """Returns a session of at least so many steps, its network of any weights, and its steps."""
    plan = session.plan
    wanted = num_steps * (plan.config.input.global_batch_size or 0)
    epochs = wanted // plan.parts.train.num_examples + 1
    network = session.build_network(plan.config.devices.precision)
    longer = plan.config.replace(epochs=epochs, head_epochs=None)
    session = dataclasses.replace(session, plan=dataclasses.replace(plan, config=longer))
    return session, network, session.training_steps(network)


def time_rounds(
    steps: Steps,
    sources: Mapping[str, Any],
    *,
    num_steps: int,
    num_rounds: int,
) -> dict[str, tuple[float, float]]:
    """Trains on batches of several sources by turns, after a round of each that does not count.

    Returns for each source the median seconds of a round of `num_steps`, and the share of all its
    seconds in which steps waited for input.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sources}
    waited = dict.fromkeys(sources, 0.0)
    for source in sources.values():
        for _ in range(num_steps):  # the first one builds the graph
            steps.train(source)
    for _ in range(num_rounds):
        for name, source in sources.items():
            started = time.perf_counter()
            for _ in range(num_steps):
                waited[name] += steps.train(source).wait_seconds
            seconds[name].append(time.perf_counter() - started)
    return {
        name: (statistics.median(durations), waited[name] / sum(durations))
        for name, durations in seconds.items()
    }

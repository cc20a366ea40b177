"""How fast a run will be, and `--preview`: its shapes, its size and what its images look like.

A preview writes nothing but a picture of an augmented batch. It may show patients, so it goes into
a new temporary folder that only its owner can read, not into the working folder.
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

from train.machine.devices import set_seed
from train.networks.models import Network
from train.training.run_setup import Run
from train.training.steps import Steps, prepare, training_steps
from train.training.training_loop import Progress, describe_run

# Steps of a round, the rounds that are timed, and the images in a row of the picture.
_STEPS, _ROUNDS, _IN_ROW = 4, 3, 8


def preview(run: Run) -> None:
    """Prints what a run would be, times some steps and draws a batch; raises `UserError`."""
    say, num_runs = run.devices.say, 1
    if run.config.folds.is_cross_validation:
        num_runs, run = len(run.singles), run.singles[0]
        say(f"cross-validation of {num_runs} runs, of which this is the first")
    timed, network, steps = prepare_steps(run, num_steps=_STEPS * (_ROUNDS + 1))
    for line in describe_run(run, Progress(), network.model.count_params()):
        say(line)
    manifest, size = run.data.manifest, run.config.input.global_batch_size
    images = "x".join(map(str, (size, *manifest.image_shape)))
    say(f"a batch: images {images} {manifest.dtype}, labels {size}x{manifest.num_classes} float32")
    batches = {"fed": steps.iterate(timed.training_batches(0))}
    seconds, _ = time_rounds(steps, batches, num_steps=_STEPS, num_rounds=_ROUNDS)["fed"]
    step, ends = seconds / _STEPS, run.steps_after
    say(
        f"about {step * ends[1]:.0f} seconds for the {ends[1]:,} steps of an epoch and "
        f"{step * ends[-1] * num_runs / 60:.0f} minutes for all, without evaluation; an estimate, "
        f"from {_STEPS * _ROUNDS} steps now"
    )
    if run.devices.is_chief:
        path = Path(tempfile.mkdtemp(prefix="scan-tfrecords-")) / "preview.png"
        _draw(run).save(path)
        say(f"an augmented batch: {path}\nnothing else was written")


def _draw(run: Run) -> Image.Image:
    """Returns a picture of images of the first batch, as the network gets them in training."""
    images, labels, _, draws = next(iter(run.training_batches(0)))
    images, _ = prepare(run, images, labels, draws)
    shown = np.clip(keras.ops.convert_to_numpy(images), 0, 255).astype(np.uint8)
    in_row = min(_IN_ROW, len(shown))
    rows = [shown[at : at + in_row] for at in range(0, len(shown) - in_row + 1, in_row)]
    sheet = np.concatenate([np.concatenate(row, axis=1) for row in rows])
    return Image.fromarray(sheet if sheet.shape[-1] == 3 else sheet[..., 0])


def prepare_steps(run: Run, *, num_steps: int) -> tuple[Run, Network, Steps]:
    """Returns a run of at least so many steps, its network of any weights, and its steps."""
    set_seed(run.config.input.seed)
    wanted = num_steps * (run.config.input.global_batch_size or 0)
    epochs = wanted // run.parts.train.num_examples + 1
    network = run.build_network(run.config.devices.precision)
    run = dataclasses.replace(run, given=run.given.replace(epochs=epochs, head_epochs=None))
    return run, network, training_steps(run, network)


def time_rounds(
    steps: Steps, sources: Mapping[str, Any], *, num_steps: int, num_rounds: int
) -> dict[str, tuple[float, float]]:
    """Trains on batches of several sources by turns, after a round of each that does not count.

    Returns for each source the median seconds of a round of `num_steps`, and the share of all its
    seconds in which steps waited for input.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sources}
    waited = dict.fromkeys(sources, 0.0)
    for source in sources.values():
        steps.train(source, num_steps)  # builds the graph
    for _ in range(num_rounds):
        for name, source in sources.items():
            started = time.perf_counter()
            waited[name] += steps.train(source, num_steps).wait_seconds
            seconds[name].append(time.perf_counter() - started)
    return {
        name: (statistics.median(taken), waited[name] / sum(taken))
        for name, taken in seconds.items()
    }

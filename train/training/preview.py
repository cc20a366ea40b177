"""`--preview`: the shapes, the size and the speed of a training, and what its images look like.

Nothing is written but a picture of one augmented batch. It may show patients, so it goes into a new
temporary folder that only its owner can read, not into the working folder.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
from PIL import Image

from tfrecord_io.terminal.printing import counted, duration
from train.data.feed import training_batches
from train.machine.devices import set_seed
from train.networks.models import set_trainable
from train.training.config import TrainConfig
from train.training.run_setup import Run, make_run
from train.training.steps import prepare, training_steps
from train.training.training_loop import Progress, describe_run

# The steps that are timed: so many, or those of so many seconds.
_MOST_TIMED, _SECONDS = 50, 5.0
# The picture has up to so many images in a row, in as many rows.
_IMAGES_IN_ROW = 6


def preview(config: TrainConfig, workdir: Path) -> None:
    """Prints what a run would be, takes some steps to time them, and draws a batch.

    Raises:
        ConfigError, tfrecord_io.ManifestError: as `trainer.train_and_evaluate`.
    """
    run = make_run(config, workdir)
    say, num_runs = run.devices.say, 1
    if run.config.folds.is_cross_validation:
        num_runs = len(run.singles)
        say(f"cross-validation of {num_runs} runs; this is the first of them")
        run = run.singles[0]
    set_seed(run.config.input.seed)
    # The values of the weights change neither shapes nor speed, so none are downloaded.
    network = run.build_network(run.config.devices.precision)
    for line in describe_run(run, Progress(), network.model.count_params()):
        say(line)
    options, manifest = run.config.input, run.data.manifest
    images = "x".join(map(str, (options.global_batch_size, *manifest.image_shape)))
    labels = f"{options.global_batch_size}x{manifest.num_classes}"
    say(f"a batch: images {images} ({manifest.dtype}), labels {labels} (float32)")
    phase = run.config.phases[-1]
    set_trainable(network, phase=phase.name, trainable_layers=run.config.network.trainable_layers)
    steps = training_steps(run, network, learning_rate=phase.learning_rate, num_steps=1000)
    # More epochs than the run has, because a short one has too few steps to time.
    endless = dataclasses.replace(options, epochs=1_000_000)
    mixup = run.config.augmentation.mixup
    batches = training_batches(endless, mixup, run.devices, run.parts.train, start_step=0)
    on_devices, per_call = steps.iterate(batches), run.config.loop.steps_per_execution
    for _ in range(2):  # the first call also builds the graph
        steps.train(on_devices, per_call)
    done, started = 0, time.monotonic()
    while done < _MOST_TIMED and time.monotonic() < started + _SECONDS:
        steps.train(on_devices, per_call)
        done += per_call
    seconds = (time.monotonic() - started) / done
    total = seconds * run.steps_after[-1] * num_runs
    say(
        f"an epoch: {counted(run.steps_after[1], 'step')} in about "
        f"{duration(seconds * run.steps_after[1])}; all: about {duration(total)}, without "
        f"validation and evaluation: an estimate, from {counted(done, 'step')} of "
        f"{1000 * seconds:.1f} ms now"
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
    shown = shown[: _IMAGES_IN_ROW**2]
    if shown.shape[-1] != 3:
        shown = shown[..., :1].repeat(3, axis=-1)
    rows = [shown[start : start + _IMAGES_IN_ROW] for start in range(0, len(shown), _IMAGES_IN_ROW)]
    height, width = shown.shape[1:3]
    sheet = Image.new("RGB", (width * len(rows[0]), height * len(rows)), "white")
    for place, image in enumerate(shown):
        row, column = divmod(place, _IMAGES_IN_ROW)
        sheet.paste(Image.fromarray(image), (column * width, row * height))
    return sheet

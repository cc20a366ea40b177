"""`train --preview` shows the shapes, size and speed of a training, and a batch.

A preview writes nothing but a picture of an augmented batch. It may show patients, so it goes into
a new temporary folder that only its owner can read, not into the working folder.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from train.training.config import TrainConfig
    from train.training.session import Session

# Steps of a round, the rounds that are timed, and the images in a row of the picture.
_STEPS, _ROUNDS, _IN_ROW = 4, 3, 8


def preview(config: TrainConfig) -> None:
    """Prints what a run would be, times some steps and draws a batch; raises `UserError`."""
    from train.training.session import session_of
    from train.training.timing import prepare_steps, time_rounds
    from train.training.training_loop import Progress, announce

    session, folds = session_of(config), config.folds
    plan, data, devices, say = session.plan, session.data, session.devices, session.devices.say
    num_runs = (folds.folds or 1) if folds.is_cross_validation else 1
    if folds.is_cross_validation:
        say(f"cross-validation of {num_runs} runs, of which this is the first")
    timed, network, steps = prepare_steps(session, num_steps=_STEPS * (_ROUNDS + 1))
    announce(session, Progress(), network.model.count_params())
    manifest, size = data.manifest, plan.config.input.global_batch_size
    images = "x".join(map(str, (size, *manifest.image_shape)))
    say(f"a batch: images {images} uint8, labels {size}x{manifest.num_classes} float32")
    batches = {"fed": steps.iterate(timed.training_batches(0))}
    seconds, _ = time_rounds(steps, batches, num_steps=_STEPS, num_rounds=_ROUNDS)["fed"]
    step, ends = seconds / _STEPS, plan.steps_after
    say(
        f"about {step * ends[1]:.0f} seconds for the {ends[1]:,} steps of an epoch and "
        f"{step * ends[-1] * num_runs / 60:.0f} minutes for all, without evaluation; an estimate, "
        f"from {_STEPS * _ROUNDS} steps now"
    )
    if devices.is_chief:
        path = Path(tempfile.mkdtemp(prefix="scan-tfrecords-")) / "preview.png"
        _draw(session).save(path)
        say(f"an augmented batch: {path}\nnothing else was written")


def _draw(session: Session) -> Image.Image:
    """Returns a picture of images of the first batch, as the network gets them in training."""
    import keras

    images, labels, _, draws = next(iter(session.training_batches(0)))
    images, _ = session.lesson.prepare(images, labels, draws)
    shown = np.clip(keras.ops.convert_to_numpy(images), 0, 255).astype(np.uint8)
    in_row = min(_IN_ROW, len(shown))
    rows = [shown[at : at + in_row] for at in range(0, len(shown) - in_row + 1, in_row)]
    sheet = np.concatenate([np.concatenate(row, axis=1) for row in rows])
    return Image.fromarray(sheet if sheet.shape[-1] == 3 else sheet[..., 0])

"""The training of one network: epochs and steps, with a checkpoint to go on from."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from tqdm import tqdm

from tfrecord_io.auditing.findings import alarms
from tfrecord_io.terminal import flags
from tfrecord_io.terminal.printing import counted, printable
from tfrecord_io.terminal.stages import stage
from train.machine.errors import TrainingError
from train.machine.places import RunFolder
from train.networks.models import restore
from train.networks.optimizers import averaged_weights
from train.training import callbacks
from train.training.checkpoint import (
    BEST_NAME,
    CHECKPOINT_NAME,
    load_checkpoint,
    save_checkpoint,
)
from train.training.first_weights import FirstWeights
from train.training.session import Session

# The input is the bottleneck if a run waits for it for more than this share of its time.
_INPUT_BOUND_SHARE = 0.1


@dataclasses.dataclass(kw_only=True)
class Progress:
    """Where a run stands; with the variables, all that is needed to go on.

    Attributes:
        step: training steps done.
        totals: sums over the epoch that is not finished.
        history: one row for each finished epoch.
        best_epoch: epoch of the weights that are kept, counted from 1; 0 if there is none yet.
        best_value: validation loss, or minus the accuracy, of that epoch: smaller is better.
    """

    step: int = 0
    totals: dict[str, float] = dataclasses.field(default_factory=dict)
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    best_epoch: int = 0
    best_value: float | None = None

    @property
    def epoch(self) -> int:
        """The epoch to go on with, counted from 0."""
        return len(self.history)


def train(
    session: Session,
    folder: RunFolder,
    first: FirstWeights | None = None,
    notes: Sequence[str] = (),
) -> tuple[Progress, list[np.ndarray]]:
    """Trains from the last checkpoint, or from `first`, to the last epoch; `notes`: see `announce`.

    Returns:
        the progress, and the values of the network's variables in the epoch to keep.

    Raises:
        UserError: if the images do not suit the network, or the weights cannot be loaded.
        TrainingError: if the loss stops being a number, a graph is traced again, or the checkpoint
            is damaged or does not suit the network; or, with the state saved, after a signal.
    """
    training = _Training(session, folder, first)
    announce(session, training.progress, training.network.model.count_params(), notes)
    if training.progress.epoch < (session.plan.config.input.epochs or 0):
        training.run_epochs()
    if session.devices.is_chief:
        manifest, history = session.data.manifest, training.progress.history
        # The names travel with the outputs, for a run that starts from them.
        facts: dict[str, Any] = {"epoch": training.progress.best_epoch}
        facts |= {"label_names": manifest.label_names, **manifest.label_kind.entry}
        # The history again: a run that goes on from its last checkpoint does not repeat the epoch,
        # and a kill or a power cut may have taken the file.
        save_checkpoint(folder.path / BEST_NAME, {"model": training.best}, facts, history)
    return training.progress, training.best


class _Training:
    """The network in training, and its progress."""

    def __init__(self, session: Session, folder: RunFolder, first: FirstWeights | None) -> None:
        self._session, self._folder = session, folder
        self._plan, self._config, self._devices = session.plan, session.plan.config, session.devices
        self._checkpoint = folder.path / CHECKPOINT_NAME
        facts, self._saved = load_checkpoint(self._checkpoint)
        self.progress = Progress(**facts)
        has_weights = self.progress.step or first
        self.network = session.build_network(
            self._config.devices.precision,
            weights="none" if has_weights else self._config.network.weights,
            values=self._saved["model"],
        )
        if first and not facts:
            first.load(self.network)
        # The weights of the epoch to keep, on the host: each checkpoint holds them, so that a
        # kill can never leave the weights of one epoch beside the name of another.
        self.best = list(self._saved["best"])
        self._saved_at = time.monotonic()
        self._has_warned = False

    def run_epochs(self) -> None:
        """Trains from where the progress stands to the last epoch."""
        session, config, devices, progress = (
            self._session, self._config, self._devices, self.progress
        )  # fmt: skip
        part, val, folder = self._plan.parts.train, self._plan.parts.val, self._folder.path
        self._val = val and session.evaluation_batches(val)
        self._start()
        with contextlib.ExitStack() as stack:
            enter = stack.enter_context
            # With several workers one alone cannot stop between steps: all take part in each.
            self._stops = enter(callbacks.stop_signals(enabled=devices.num_workers == 1))
            board = folder / "tensorboard"
            write_scalars = enter(callbacks.tensorboard(board, enabled=devices.is_chief))
            done = part.num_examples * progress.epoch + progress.totals.get("num_examples", 0)
            total = part.num_examples * config.input.epochs
            looks = {"leave": False, "dynamic_ncols": True, "disable": not sys.stderr.isatty()}
            bar = tqdm(desc="training", unit=" images", initial=int(done), total=total, **looks)
            self._bar = enter(bar)
            batches = self._steps.iterate(session.training_batches(progress.step))
            while progress.epoch < (config.input.epochs or 0):
                with stage(f"epoch {progress.epoch + 1}/{config.input.epochs}", is_told=False):
                    self._train_epoch(batches)
                write_scalars(progress.history[-1], progress.step)

    def _start(self) -> None:
        network = self.network
        self._steps = self._session.training_steps(network)
        self._optimizer = self._steps.optimizer
        if self.progress.step:
            restore(self._optimizer.variables, self._saved["optimizer"])
        self._saved = {}
        if self._config.network.fine_tunes:
            trained = sum(math.prod(each.shape) for each in network.model.trainable_variables)
            self._devices.say(f"training {trained:,} of these parameters")

    def _train_epoch(self, batches: Any) -> None:
        progress, last_step = self.progress, self._plan.steps_after[self.progress.epoch + 1]
        meter = callbacks.EpochMeter(**progress.totals)
        while progress.step < last_step:
            self._train_step(batches, meter)
            if progress.step < last_step:
                self._save_if_due()
        self._end_epoch(meter)

    def _train_step(self, batches: Any, meter: callbacks.EpochMeter) -> None:
        """Runs a step, and lets all monitors see what came of it."""
        progress, half_size = self.progress, self.progress.step < self._plan.num_half_size_steps
        # The first call of a graph also builds it, and is not timed.
        is_warm, started = self._steps.num_traces[half_size] > 0, time.monotonic()
        results = self._steps.train(batches, half_size=half_size)
        seconds = time.monotonic() - started
        loss, num_images = float(results.totals[0]), int(results.totals[2])
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss is {loss} at step {progress.step + 1}: the weights "
                "went out of range before it. Lower --lr, raise --warmup_steps, or use "
                "--precision float32. The last checkpoint is older than that step"
            )
        progress.step += 1
        if self._steps.num_traces[half_size] > 1:
            raise TrainingError(
                f"the training graph was traced again before step {progress.step}, which costs "
                "minutes and memory; feed it tensors of one shape and dtype, and no Python numbers "
                "that change"
            )
        meter.add(results, seconds, timed=is_warm)
        progress.totals = meter.totals()
        self._bar.set_postfix_str(f"loss {meter.means()[0]:.4f}", refresh=False)
        self._bar.update(num_images)

    def _end_epoch(self, meter: callbacks.EpochMeter) -> None:
        progress, task, epochs = self.progress, self._plan.task, self._config.input.epochs or 0
        self._steps.sync()
        loss, accuracy = meter.means()
        is_head = progress.epoch < (self._config.network.head_epochs or 0)
        row: dict[str, Any] = {"epoch": progress.epoch + 1, "phase": "head" if is_head else "all"}
        row |= {"step": progress.step, "loss": loss, "accuracy": accuracy}
        with averaged_weights(self._optimizer, self.network.logits.trainable_variables):
            if self._val is not None:
                answers = self._steps.predict(self._val)
                row["val_loss"] = task.mean_loss(*answers)
                row["val_accuracy"] = task.accuracy(*answers)
            if self._is_best(row):
                progress.best_epoch = row["epoch"]
                self.best = [variable.numpy() for variable in self.network.model.variables]
        row |= {
            "learning_rate": float(keras.ops.convert_to_numpy(self._optimizer.learning_rate)),
            "seconds": meter.seconds,
            **meter.speed(),
            **callbacks.memory_megabytes(self._devices),
        }
        progress.history.append(row)
        progress.totals = {}
        line = describe_epoch(row, epochs)
        if line and self._devices.is_chief:
            self._bar.write(line, file=sys.stdout)
            sys.stdout.flush()
        share = row["input_wait_share"]
        if share is not None and share > _INPUT_BOUND_SHARE and not self._has_warned:
            self._has_warned = True
            self._devices.warn(
                f"{share:.0%} of the time was spent waiting for input. Put the data on "
                "a local disk (engine mmap), or try a larger batch"
            )
        self._save_if_due(is_last=row["epoch"] == epochs)

    def _is_best(self, row: Mapping[str, Any]) -> bool:
        """Returns whether an epoch replaces the one that is kept, and notes its value if so."""
        progress, best_by = self.progress, self._config.loop.best_by
        if best_by == "last":
            return True
        value = row["val_loss"] if best_by == "val_loss" else -row["val_accuracy"]
        # NaN must not become the best value, because no later value compares below it. The first
        # epoch is kept in any case.
        best = math.inf if progress.best_value is None else progress.best_value
        if math.isfinite(value) and value < best:
            progress.best_value = value
            return True
        return not progress.best_epoch

    def _save_if_due(self, *, is_last: bool = False) -> None:
        """Saves the state from time to time, and when the run ends or is asked to stop."""
        stops, age = self._stops[:1], time.monotonic() - self._saved_at
        if is_last or stops or age >= self._config.loop.checkpoint_seconds:
            self._steps.sync()
            if self._devices.is_chief:
                model, optimizer = self.network.model.variables, self._optimizer.variables
                groups = {"model": model, "optimizer": optimizer, "best": self.best}
                facts, history = dataclasses.asdict(self.progress), self.progress.history
                save_checkpoint(self._checkpoint, groups, facts, history)
                self._folder.save()
            self._saved_at = time.monotonic()
        if stops:
            raise TrainingError(
                f"stopped by {signal.Signals(stops[0]).name} after step {self.progress.step}; the "
                "state is saved; run the same command again to continue",
                128 + stops[0],
            )


def announce(
    session: Session, progress: Progress, num_parameters: int, notes: Sequence[str] = ()
) -> None:
    """Prints what a training is before it starts or goes on; `notes` are lines about its start."""
    config, devices, parts = session.plan.config, session.devices, session.plan.parts
    options, manifest, say = config.input, session.data.manifest, devices.say
    kind, num_copies = manifest.label_kind, int(session.data.is_copy(parts.train).sum())
    labels = kind.noun if manifest.num_classes == 1 else kind.plural
    copies = f" and {counted(num_copies, 'augmented copy', 'augmented copies')} of them"
    say(
        f"{config.network.model}, {num_parameters:,} parameters, "
        f"{parts.train.num_examples - num_copies:,} training images of "
        f"{'x'.join(map(str, manifest.image_shape))}{copies if num_copies else ''}, "
        f"{manifest.num_classes} {labels}"
    )
    say(
        f"{devices.num_replicas} x {devices.names[0].split(':')[0]} on {devices.backend}, "
        f"{config.devices.precision}; {options.global_batch_size} images a step, "
        f"{options.replica_batch_size} on each device; "
        f"{session.plan.steps_after[-1]:,} steps in {counted(options.epochs, 'epoch')}"
    )
    if num_steps := session.plan.num_half_size_steps:
        say(f"the first {num_steps:,} steps on images of half the height and width (--half_size)")
    for note in notes:
        say(printable(note))
    for alarm in alarms(manifest.audit):
        devices.warn(printable(alarm))
    if parts.evaluated is None:
        say(
            "note: there are no validation and no test images, so this run ends with the exported "
            f"model and without metrics; {flags.command('evaluate')} measures it on another "
            "dataset, or build this one with --splits patient"
        )
    elif parts.test is None:
        say("note: there is no test split; the metrics will be of the validation")
    if progress.epoch == options.epochs:
        say("the training is done; going on with the evaluation")
    elif progress.step:
        say(f"going on after step {progress.step:,}, in epoch {progress.epoch + 1}")


# How each quantity of history.json stands in the line that is printed for an epoch.
_FORMATS = {
    "loss": "loss {:.4f}",
    "accuracy": "accuracy {:.1%}",
    "val_loss": "val_loss {:.4f}",
    "val_accuracy": "val_accuracy {:.1%}",
    "images_per_second": "{:,.0f} images/s",
    "step_ms": "{:.1f} ms a step",
    "input_wait_share": "waiting for data {:.1%}",
    "peak_rss_mb": "memory {:,.0f} MB",
    "peak_gpu_mb": "of the GPU {:,.0f} MB",
}


def describe_epoch(row: Mapping[str, Any], epochs: int) -> str | None:
    """Returns the line that is printed for an epoch, given its row of history.json.

    A long run prints about 20; None for an epoch without one.
    """
    if row["epoch"] % max(1, epochs // 20) and row["epoch"] != epochs:
        return None
    names = [name for name in _FORMATS if row.get(name) is not None]
    quantities = (_FORMATS[name].format(row[name]) for name in names)
    return " · ".join([f"epoch {row['epoch']}/{epochs}", *quantities])

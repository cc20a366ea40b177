"""The training of one network: epochs and steps, with a checkpoint to go on from."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
from tqdm import tqdm

from tfrecord_io.auditing.findings import alarms
from tfrecord_io.terminal import flags
from tfrecord_io.terminal.printing import counted, printable
from train.data import feed
from train.machine.errors import TrainingError, stopped
from train.networks.models import restore
from train.networks.optimizers import averaged_weights
from train.training import callbacks
from train.training.checkpoint import (
    BEST_NAME,
    CHECKPOINT_NAME,
    load_checkpoint,
    save_checkpoint,
)
from train.training.run_setup import Run
from train.training.steps import training_steps

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


def train(run: Run) -> tuple[Progress, list[np.ndarray]]:
    """Trains from the last checkpoint, if there is one, to the last epoch.

    Returns:
        the progress, and the values of the network's variables in the epoch to keep.

    Raises:
        UserError: if the images do not suit the network, or the weights cannot be loaded.
        TrainingError: if the loss stops being a number, a graph is traced again, or the checkpoint
            is damaged or does not suit the network; or, with the state saved, after a signal.
    """
    training = _Training(run)
    if training.progress.epoch < run.config.input.epochs:
        training.run_epochs()
    if run.devices.is_chief:
        manifest, history = run.data.manifest, training.progress.history
        # The names travel with the outputs, for a run that starts from them.
        facts: dict[str, Any] = {"epoch": training.progress.best_epoch}
        facts |= {"label_names": manifest.label_names, **manifest.label_kind.entry}
        # The history again: a run that goes on from its last checkpoint does not repeat the epoch,
        # and a kill or a power cut may have taken the file.
        save_checkpoint(run.folder / BEST_NAME, {"model": training.best}, facts, history)
    return training.progress, training.best


class _Training:
    """The network in training, and its progress."""

    def __init__(self, run: Run) -> None:
        self._run, self._config, self._devices = run, run.config, run.devices
        self._checkpoint = run.folder / CHECKPOINT_NAME
        facts, self._saved = load_checkpoint(self._checkpoint)
        self.progress = Progress(**facts)
        is_given = self.progress.step or run.first
        weights = "none" if is_given else run.config.network.weights
        self._network = run.build_network(run.config.devices.precision, weights=weights)
        if facts:
            restore(self._network.model.variables, self._saved["model"])
        elif run.first:
            run.first.load(self._network)
        # The weights of the epoch to keep, on the host: each checkpoint holds them, so that a
        # kill can never leave the weights of one epoch beside the name of another.
        self.best = list(self._saved["best"])
        for line in describe_run(run, self.progress, self._network.model.count_params()):
            self._devices.say(line)
        self._saved_at = time.monotonic()
        self._has_warned = False

    def run_epochs(self) -> None:
        """Trains from where the progress stands to the last epoch."""
        run, config, devices, progress = self._run, self._config, self._devices, self.progress
        part, val, folder = run.parts.train, run.parts.val, run.folder
        self._val = val and feed.evaluation_batches(config.input, devices, val)
        self._start()
        with contextlib.ExitStack() as stack:
            enter = stack.enter_context
            # With several workers one alone cannot stop between steps: all take part in each.
            self._stops = enter(callbacks.stop_signals(enabled=devices.num_workers == 1))
            steps, traces = config.loop.profile_steps, folder / "profile"
            self._trace = enter(callbacks.tracer(steps, traces, devices.backend))
            board = folder / "tensorboard"
            write_scalars = enter(callbacks.tensorboard(board, enabled=devices.is_chief))
            done = part.num_examples * progress.epoch + progress.totals.get("num_examples", 0)
            total = part.num_examples * config.input.epochs
            looks = {"leave": False, "dynamic_ncols": True, "disable": not sys.stderr.isatty()}
            bar = tqdm(desc="training", unit=" images", initial=int(done), total=total, **looks)
            self._bar = enter(bar)
            batches = self._steps.iterate(run.training_batches(progress.step))
            while progress.epoch < config.input.epochs:
                self._train_epoch(batches)
                write_scalars(progress.history[-1], progress.step)

    def _start(self) -> None:
        network = self._network
        self._steps = training_steps(self._run, network)
        self._optimizer = self._steps.optimizer
        if self.progress.step:
            restore(self._optimizer.variables, self._saved["optimizer"])
        self._saved = {}
        if self._config.network.fine_tunes:
            trained = sum(math.prod(each.shape) for each in network.model.trainable_variables)
            self._devices.say(f"training {trained:,} of these parameters")
        # The first call of the graph also builds it, and is not timed.
        self._num_traces = 0

    def _train_epoch(self, batches: Any) -> None:
        progress, last_step = self.progress, self._run.steps_after[self.progress.epoch + 1]
        meter = callbacks.EpochMeter(**progress.totals)
        while progress.step < last_step:
            left = last_step - progress.step
            self._train_steps(batches, min(self._config.loop.steps_per_execution, left), meter)
            if progress.step < last_step:
                self._save_if_due()
        self._end_epoch(meter)

    def _train_steps(self, batches: Any, num_steps: int, meter: callbacks.EpochMeter) -> None:
        """Runs some steps in one call, and lets all monitors see what came of them."""
        progress = self.progress
        self._trace(progress.step + 1, progress.step + num_steps)
        started = time.monotonic()
        results = self._steps.train(batches, num_steps)
        seconds = time.monotonic() - started
        losses = results.totals[:, 0]
        bad = np.flatnonzero(~np.isfinite(losses))
        if bad.size:
            raise TrainingError(
                f"the loss is {losses[bad[0]]} at step {progress.step + 1 + bad[0]}: the weights "
                "went out of range before it. Lower --lr, raise --warmup_steps, or use "
                "--precision float32. The last checkpoint is older than that step"
            )
        progress.step += num_steps
        self._trace(progress.step + 1, progress.step)
        is_warm, num_traces = self._num_traces > 0, self._steps.num_traces
        if num_traces > max(1, self._num_traces):
            raise TrainingError(
                f"the training graph was traced again before step {progress.step} ({num_traces} "
                "traces so far), which costs minutes and memory; feed it tensors of one shape and "
                "dtype, and no Python numbers that change"
            )
        self._num_traces = num_traces
        meter.add(results, seconds, timed=is_warm)
        progress.totals = meter.totals()
        self._bar.set_postfix_str(f"loss {meter.means()[0]:.4f}", refresh=False)
        self._bar.update(int(results.totals[:, 2].sum()))

    def _end_epoch(self, meter: callbacks.EpochMeter) -> None:
        progress, task, epochs = self.progress, self._run.task, self._config.input.epochs or 0
        self._steps.sync()
        loss, quantity = meter.means()
        is_head = progress.epoch < (self._config.network.head_epochs or 0)
        row: dict[str, Any] = {"epoch": progress.epoch + 1, "phase": "head" if is_head else "all"}
        row |= {"step": progress.step, "loss": loss, task.quantity: quantity}
        with averaged_weights(self._optimizer, self._network.logits.trainable_variables):
            if self._val is not None:
                answers = self._steps.predict(self._val)
                row["val_loss"] = task.mean_loss(*answers)
                row[f"val_{task.quantity}"] = task.progress(*answers)
            if self._is_best(row):
                progress.best_epoch = row["epoch"]
                self.best = [variable.numpy() for variable in self._network.model.variables]
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
            self._devices.say(
                f"warning: {share:.0%} of the time was spent waiting for input. Put the data on "
                "a local disk (engine mmap), or try a larger batch"
            )
        self._save_if_due(is_last=row["epoch"] == epochs)

    def _is_best(self, row: Mapping[str, Any]) -> bool:
        """Returns whether an epoch replaces the one that is kept, and notes its value if so."""
        progress, best_by = self.progress, self._config.loop.best_by
        if best_by == "last" or "val_loss" not in row:
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
                model, optimizer = self._network.model.variables, self._optimizer.variables
                groups = {"model": model, "optimizer": optimizer, "best": self.best}
                facts, history = dataclasses.asdict(self.progress), self.progress.history
                save_checkpoint(self._checkpoint, groups, facts, history)
                self._run.upload()
            self._saved_at = time.monotonic()
        if stops:
            raise stopped(stops[0], self.progress.step)


def describe_run(run: Run, progress: Progress, num_parameters: int) -> Iterator[str]:
    """Yields the lines that are printed before a training starts or goes on."""
    config, devices, parts, manifest = run.config, run.devices, run.parts, run.data.manifest
    options, kind = config.input, manifest.label_kind
    labels = kind.noun if manifest.num_classes == 1 else kind.plural
    yield (
        f"{config.network.model}, {num_parameters:,} parameters, {parts.train.num_examples:,} "
        f"training images of {'x'.join(map(str, manifest.image_shape))}, "
        f"{manifest.num_classes} {labels}"
    )
    yield (
        f"{devices.num_replicas} x {devices.names[0].split(':')[0]} on {devices.backend}, "
        f"{config.devices.precision}; {options.global_batch_size} images a step, "
        f"{options.replica_batch_size} on each device; "
        f"{run.steps_after[-1]:,} steps in {options.epochs} epochs"
    )
    if run.mirror:
        yield f"note: TensorBoard's logs stay on this machine, in {run.folder / 'tensorboard'}"
    if run.first:
        num_seen = counted(run.seen.num_in("init"), "image")
        yield f"starts from the weights of {run.first.init}, which have seen {num_seen}"
        yield from map(printable, run.first.describe())
    elif not config.network.has_backbone and config.network.initial_weights != "none":
        yield f"note: {config.network.weights} does not name its outputs; these start untrained"
    for alarm in alarms(manifest.audit):
        yield f"warning: {printable(alarm)}"
    if parts.evaluated is None:
        yield (
            "note: there are no validation and no test images, so this run ends with the exported "
            f"model and without metrics; {flags.command('evaluate')} measures it on another "
            "dataset, or build this one with --splits patient"
        )
    elif parts.test is None:
        yield "note: there is no test split; the metrics will be of the validation"
    if progress.epoch == options.epochs:
        yield "the training is done; going on with the evaluation"
    elif progress.step:
        yield f"going on after step {progress.step:,}, in epoch {progress.epoch + 1}"


# How each quantity of history.json is told in the line that is printed for an epoch.
_TOLD = {
    "loss": "loss {:.4f}",
    "accuracy": "accuracy {:.1%}",
    "mae": "mae {:.4g}",
    "val_loss": "val_loss {:.4f}",
    "val_accuracy": "val_accuracy {:.1%}",
    "val_mae": "val_mae {:.4g}",
    "images_per_second": "{:,.0f} images/s",
    "step_ms": "{:.1f} ms a step",
    "input_wait_share": "waiting for data {:.1%}",
    "peak_rss_mb": "{:,.0f} MB",
    "peak_gpu_mb": "GPU {:,.0f} MB",
}


def describe_epoch(row: Mapping[str, Any], epochs: int) -> str | None:
    """Returns the line that is printed for an epoch, given its row of history.json.

    A long run prints about 20; None for an epoch without one.
    """
    if row["epoch"] % max(1, epochs // 20) and row["epoch"] != epochs:
        return None
    known = {name: text for name, text in _TOLD.items() if row.get(name) is not None}
    told = [text.format(row[name]) for name, text in known.items()]
    return " · ".join([f"epoch {row['epoch']}/{epochs}", *told])

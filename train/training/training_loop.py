"""The training of one network: phases, epochs and steps, with a checkpoint to go on from."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
import time
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from tqdm import tqdm

from tfrecord_io.files import write_json
from train.config import Phase
from train.data import feed
from train.errors import StoppedError
from train.networks.build import build_network
from train.networks.models import set_trainable
from train.networks.optimizers import averaged_weights
from train.run_folder import CHECKPOINT_NAME, HISTORY_NAME
from train.run_setup import Run
from train.training import callbacks, checkpoint, tracing
from train.training.progress import (
    Progress,
    describe_epoch,
    describe_run,
    describe_seconds,
)
from train.training.steps import predict, training_steps

# Steps that are timed to say how long a phase will take, and the fewest for which that is done.
_TIMED_STEPS = 5
_FEWEST_STEPS_TO_TIME = 100


def train(run: Run) -> tuple[Progress, list[np.ndarray]]:
    """Trains from the last checkpoint, if there is one, to the last epoch.

    Returns:
        the progress, and the values of the network's variables in the epoch to keep.

    Raises:
        ConfigError: if the images do not suit the network, or the weights cannot be loaded.
        TrainingError: if the loss stops being a number, a graph is traced again, or the checkpoint
            is damaged or does not suit the network.
        StoppedError: after SIGTERM or SIGINT, with the state saved.
    """
    training = _Training(run)
    training.run_phases()
    return training.progress, training.best


class _Training:
    """The network in training, and its progress."""

    def __init__(self, run: Run) -> None:
        self._run, self._config, self._devices = run, run.config, run.devices
        self._checkpoint = run.folder / CHECKPOINT_NAME
        facts = checkpoint.load_facts(self._checkpoint)
        self.progress = Progress(**facts) if facts else Progress()
        self._network = build_network(
            run,
            run.config.devices.precision,
            weights="none" if self.progress.step else run.config.network.weights,
        )
        # The weights of the epoch to keep, on the host: each checkpoint holds them, so that a
        # kill can never leave the weights of one epoch beside the name of another.
        self.best: list[np.ndarray] = []
        if facts:
            checkpoint.restore(self._checkpoint, {"model": self._network.model.variables})
            self.best = checkpoint.load_arrays(self._checkpoint, "best")
        for line in describe_run(run, self.progress, self._network.model.count_params()):
            self._devices.say(line)
        self._saved_at = time.monotonic()
        self._has_warned = False

    def run_phases(self) -> None:
        """Trains from where the progress stands to the last epoch."""
        config, progress, folder = self._config, self.progress, self._run.folder
        if progress.epoch == config.input.epochs:
            return
        part, val, devices = self._run.parts.train, self._run.parts.val, self._devices
        self._val = val and feed.evaluation_batches(config.input, devices, val)
        batches: Any = None
        with contextlib.ExitStack() as stack:
            # With several workers one alone cannot stop between steps: all take part in each.
            self._stop = stack.enter_context(callbacks.StopSignal(enabled=devices.num_workers == 1))
            self._watchdog = stack.enter_context(
                callbacks.Watchdog(
                    config.loop.step_timeout, folder / f"stacks-{devices.worker_index}.txt"
                )
            )
            self._tracer = stack.enter_context(
                tracing.Tracer(config.loop.profile_steps, folder / "profile", devices.backend)
            )
            board = callbacks.TensorBoardWriter(
                folder / "tensorboard" if devices.is_chief else None
            )
            stack.callback(board.close)
            done = part.num_examples * progress.epoch + progress.totals.get("num_examples", 0)
            self._bar = stack.enter_context(
                tqdm(
                    desc="training",
                    unit=" images",
                    initial=int(done),
                    total=part.num_examples * config.input.epochs,
                    leave=False,
                    dynamic_ncols=True,
                    disable=not sys.stderr.isatty(),
                )
            )
            for phase in config.phases:
                if phase.last_epoch < progress.epoch:
                    continue
                self._start_phase(phase)
                if batches is None:
                    batches = self._steps.iterate(
                        feed.training_batches(
                            config.input,
                            config.augmentation.mixup,
                            devices,
                            part,
                            start_step=progress.step,
                        )
                    )
                while progress.epoch <= phase.last_epoch:
                    self._train_epoch(batches)
                    board.write(progress.history[-1], progress.step)

    def _start_phase(self, phase: Phase) -> None:
        config, progress, network = self._config, self.progress, self._network
        self._phase = phase
        set_trainable(network, phase=phase.name, trainable_layers=config.network.trainable_layers)
        first_step = self._run.steps_after[phase.first_epoch]
        last_step = self._run.steps_after[phase.last_epoch + 1]
        is_only = len(config.phases) == 1
        self._steps = training_steps(
            self._run,
            network,
            learning_rate=phase.learning_rate,
            num_steps=last_step - first_step,
        )
        self._optimizer = self._steps.optimizer
        if progress.step > first_step:
            checkpoint.restore(self._checkpoint, {"optimizer": self._optimizer.variables})
        if not is_only:
            trained = sum(math.prod(each.shape) for each in network.model.trainable_variables)
            self._devices.say(f"training {phase.name}: {trained:,} parameters")
        progress.phase = phase.name
        self._guard = callbacks.RetraceGuard(config.loop.on_retrace)
        # The first call of the graph also builds it, and is not timed.
        self._is_warm = False
        self._timed_steps, self._timed_seconds = 0, 0.0

    def _train_epoch(self, batches: Any) -> None:
        progress, last_step = self.progress, self._run.steps_after[self.progress.epoch + 1]
        meter = callbacks.EpochMeter(**progress.totals)
        while progress.step < last_step:
            self._train_steps(
                batches,
                min(self._config.loop.steps_per_execution, last_step - progress.step),
                meter,
            )
            if progress.step < last_step:
                if self._is_stopped or self._checkpoint_is_due:
                    self._save_checkpoint()
                self._raise_if_stopped()
        self._end_epoch(meter)
        self._raise_if_stopped()

    def _train_steps(self, batches: Any, num_steps: int, meter: callbacks.EpochMeter) -> None:
        """Runs some steps in one call, and lets all monitors see what came of them."""
        progress = self.progress
        self._tracer.before(progress.step + 1, num_steps)
        started = time.monotonic()
        results = self._steps.train(batches, num_steps)
        seconds = time.monotonic() - started
        self._watchdog.restart()
        callbacks.check_finite(results.loss_sums, progress.step + 1)
        progress.step += num_steps
        self._tracer.after(progress.step)
        self._guard.check(self._steps.num_traces, progress.step)
        meter.add(results, seconds, timed=self._is_warm)
        if self._is_warm:
            self._tell_time_left(num_steps, seconds)
        self._is_warm = True
        progress.totals = meter.totals()
        self._bar.set_postfix_str(f"loss {meter.loss:.4f}", refresh=False)
        self._bar.update(int(results.num_examples.sum()))

    def _tell_time_left(self, num_steps: int, seconds: float) -> None:
        """Says once, after the first timed steps of a long phase, how long the rest will take."""
        was_told = self._timed_steps >= _TIMED_STEPS
        self._timed_steps += num_steps
        self._timed_seconds += seconds
        num_left = self._run.steps_after[self._phase.last_epoch + 1] - self.progress.step
        if was_told or self._timed_steps < _TIMED_STEPS or num_left < _FEWEST_STEPS_TO_TIME:
            return
        is_only = len(self._config.phases) == 1
        what = "the training" if is_only else f"this phase ({self._phase.name})"
        duration = describe_seconds(num_left * self._timed_seconds / self._timed_steps)
        self._say(
            f"{what} will take about {duration} here, in "
            f"{self._phase.last_epoch + 1 - self.progress.epoch} epochs; --epochs N makes the run "
            "shorter or longer"
        )

    def _end_epoch(self, meter: callbacks.EpochMeter) -> None:
        progress, devices, task = self.progress, self._devices, self._run.task
        self._steps.sync()
        row: dict[str, Any] = {
            "epoch": progress.epoch + 1,
            "phase": self._phase.name,
            "step": progress.step,
            "loss": meter.loss,
            task.quantity: meter.accuracy,
        }
        with averaged_weights(self._optimizer, self._network.logits.trainable_variables):
            if self._val is not None:
                answers = predict(task, self._steps, self._val)
                row["val_loss"] = task.mean_loss(*answers)
                row[f"val_{task.quantity}"] = task.progress(*answers)
            if self._is_best(row):
                progress.best_epoch = row["epoch"]
                self.best = [variable.numpy() for variable in self._network.model.variables]
        row |= {
            "learning_rate": float(keras.ops.convert_to_numpy(self._optimizer.learning_rate)),
            "seconds": meter.seconds,
            **meter.speed(),
            **callbacks.memory_megabytes(devices),
        }
        progress.history.append(row)
        progress.totals = {}
        if row["epoch"] == self._config.input.epochs or self._is_stopped or self._checkpoint_is_due:
            self._save_checkpoint()
        if line := describe_epoch(row, self._config.input.epochs or 0):
            self._say(line)
        share = row["input_wait_share"]
        if share is not None and share > callbacks.INPUT_BOUND_SHARE and not self._has_warned:
            self._has_warned = True
            devices.say(
                f"warning: {share:.0%} of the time was spent waiting for input. Put the data on "
                "a local disk (engine mmap), or try a larger batch",
            )

    def _is_best(self, row: Mapping[str, Any]) -> bool:
        """Returns whether an epoch replaces the one that is kept, and notes its value if so."""
        progress, best_by = self.progress, self._config.loop.best_by
        if best_by == "last" or "val_loss" not in row:
            return True
        value = row["val_loss"] if best_by == "val_loss" else -row["val_accuracy"]
        # NaN must not become the best value, because no later value compares below it. The first
        # epoch is kept in any case.
        better = progress.best_value is None or value < progress.best_value
        if math.isfinite(value) and better:
            progress.best_value = value
            return True
        return not progress.best_epoch

    @property
    def _is_stopped(self) -> bool:
        return self._stop.received is not None

    @property
    def _checkpoint_is_due(self) -> bool:
        return time.monotonic() - self._saved_at >= self._config.loop.checkpoint_seconds

    def _raise_if_stopped(self) -> None:
        if self._stop.received is not None:
            raise StoppedError(self._stop.received, self.progress.step)

    def _save_checkpoint(self) -> None:
        self._steps.sync()
        if self._devices.is_chief:
            write_json(self._run.folder / HISTORY_NAME, self.progress.history)
            groups = {
                "model": self._network.model.variables,
                "optimizer": self._optimizer.variables,
                "best": self.best,
            }
            checkpoint.save(self._checkpoint, groups, dataclasses.asdict(self.progress))
        self._saved_at = time.monotonic()

    def _say(self, line: str) -> None:
        """Prints a line above the progress bar, once for all workers."""
        if self._devices.is_chief:
            self._bar.write(line, file=sys.stdout)
            sys.stdout.flush()

"""The training of one network: phases, epochs and steps, with a checkpoint to go on from."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from tqdm import tqdm

import tfrecord_io
from train.config import TrainConfig
from train.data import feed
from train.networks.models import set_trainable
from train.networks.optimizers import averaged_weights, make_optimizer
from train.run_folder import CHECKPOINT_NAME, HISTORY_NAME, write_json
from train.training import callbacks, checkpoint, tracing
from train.training.progress import (
    Phase,
    Progress,
    describe_epoch,
    describe_seconds,
    is_shown,
    plan_phases,
)
from train.training.run_setup import RunSetup
from train.training.steps import Steps, make_steps

# Number of steps that are timed before a phase, and the fewest steps left for which that is done.
_TIMED_STEPS = 5
_FEWEST_STEPS_TO_TIME = 100


def train(setup: RunSetup) -> tuple[Progress, list[np.ndarray]]:
    """Trains from the last checkpoint, if there is one, to the last epoch.

    Args:
        setup: of the run.

    Returns:
        the progress, and the values of the network's variables in the epoch to keep.

    Raises:
        ConfigError: if the images do not suit the network, or the weights cannot be loaded.
        CheckpointError: if the checkpoint is damaged, or does not suit the network.
        TrainingError: if the loss stops being a number, or a graph is traced again.
        StoppedError: after SIGTERM or SIGINT, with the state saved.
    """
    training = _Training(setup)
    training.run()
    return training.progress, training.best


class _Training:
    """The network in training, and its progress."""

    def __init__(self, setup: RunSetup) -> None:
        self._setup = setup
        self._config = config = setup.config
        self._devices = setup.devices
        self._num_examples = setup.parts.train.num_examples
        path = setup.workdir / CHECKPOINT_NAME
        facts = checkpoint.load_facts(path)
        self.progress = Progress(**facts) if facts else Progress()
        self._network = setup.build_network(
            config.precision, weights="none" if self.progress.step else config.weights
        )
        self._phases = plan_phases(config, has_backbone=self._network.backbone is not None)
        # The weights of the epoch to keep, on the host: each checkpoint holds them, so that a
        # kill can never leave the weights of one epoch beside the name of another.
        self.best: list[np.ndarray] = []
        if facts:
            checkpoint.restore(path, {"model": self._variables})
            self.best = checkpoint.load_arrays(path, "best")
        self._announce()

    @property
    def _variables(self) -> list[keras.Variable]:
        # Includes the states of random generators and of batch normalization.
        return self._network.model.variables

    def _announce(self) -> None:
        config, devices, progress = self._config, self._devices, self.progress
        shape = "x".join(str(side) for side in self._setup.manifest.image_shape)
        what = "images" if self._setup.trunk is None else "features"
        devices.say(
            f"{config.model}, {self._network.model.count_params():,} parameters, "
            f"{self._num_examples:,} training {what} of {shape}, "
            + _count_labels(self._setup.manifest),
        )
        devices.say(
            f"{devices.num_replicas} x {devices.names[0].split(':')[0]} on {devices.backend}, "
            f"{config.precision}; global batch {config.global_batch_size}, "
            f"{config.replica_batch_size} a replica; "
            f"{self._end_step(config.epochs - 1):,} steps in {config.epochs} epochs",
        )
        weights = self._setup.parts.train.weights
        if weights is not None:
            devices.say(
                f"images count by the column weight of the table of labels: {weights.min():.3g} to "
                f"{weights.max():.3g} times the mean",
            )
        if self._setup.parts.val is None:
            devices.say("note: there are no validation images, so the last epoch is kept")
        if self._setup.parts.evaluated is None:
            devices.say(
                "note: there are no test images either, so this run ends with the exported model "
                "and without metrics; python train/evaluate.py measures it on another dataset, "
                "or build this one with --splits patient",
            )
        elif self._setup.parts.test is None:
            devices.say("note: there is no test split; the metrics will be of the validation")
        if progress.epoch == config.epochs:
            devices.say("the training is done; going on with the evaluation")
        elif progress.step:
            devices.say(f"going on after step {progress.step:,}, in epoch {progress.epoch + 1}")

    def _end_step(self, epoch: int) -> int:
        return feed.end_step(
            epoch,
            num_examples=self._num_examples,
            global_batch_size=self._config.global_batch_size or 0,
        )

    def run(self) -> None:
        """Trains from where the progress stands to the last epoch."""
        config, progress = self._config, self.progress
        if progress.epoch == config.epochs:
            return
        bar = callbacks.progress_bar(
            total=self._num_examples * config.epochs,
            done=int(self._num_examples * progress.epoch + progress.totals.get("num_examples", 0)),
        )
        directory = self._setup.workdir / "tensorboard" if self._devices.is_chief else None
        board = callbacks.TensorBoardWriter(directory)
        batches: Any = None
        with (
            # With several workers one alone cannot stop between steps: all take part in each.
            callbacks.StopSignal(enabled=self._devices.num_workers == 1) as stop,
            callbacks.Watchdog(
                config.step_timeout,
                self._setup.workdir / f"stacks-{self._devices.worker_index}.txt",
            ) as watchdog,
            tracing.Tracer(
                config.profile_steps, self._setup.workdir / "profile", self._devices.backend
            ) as tracer,
            contextlib.closing(board),
            contextlib.closing(bar),
        ):
            for phase in self._phases:
                if phase.last_epoch < progress.epoch:
                    continue
                steps, optimizer = self._start_phase(phase)
                if batches is None or config.cache != "device":
                    # The timing reads batches of its own; with --cache device they need a second
                    # copy of the images, for which there may be no room.
                    self._announce_time(phase, steps, optimizer)
                if batches is None:
                    batches = steps.iterate(self._training_batches())
                guard = callbacks.RetraceGuard(config.on_retrace)
                loop = _Loop(steps, optimizer, batches, stop, watchdog, tracer, guard, bar)
                while progress.epoch <= phase.last_epoch:
                    self._train_epoch(phase, loop)
                    board.write(progress.history[-1], progress.step)

    def _start_phase(self, phase: Phase) -> tuple[Steps, keras.optimizers.Optimizer]:
        config, progress = self._config, self.progress
        set_trainable(self._network, phase=phase.name, trainable_layers=config.trainable_layers)
        first_step = self._end_step(phase.first_epoch - 1)
        with self._devices.scope():
            optimizer = make_optimizer(
                config,
                learning_rate=phase.learning_rate,
                num_steps=self._end_step(phase.last_epoch) - first_step,
            )
        steps = make_steps(
            self._network,
            optimizer,
            self._devices,
            objective=self._setup.objective,
            jit_compile=bool(config.jit_compile),
        )
        if progress.step > first_step:
            checkpoint.restore(
                self._setup.workdir / CHECKPOINT_NAME, {"optimizer": optimizer.variables}
            )
        trained = sum(
            int(np.prod(variable.shape)) for variable in self._network.model.trainable_variables
        )
        if len(self._phases) > 1:
            self._devices.say(f"training {phase.name}: {trained:,} parameters")
        progress.phase = phase.name
        return steps, optimizer

    def _announce_time(
        self, phase: Phase, steps: Steps, optimizer: keras.optimizers.Optimizer
    ) -> None:
        """Says how long a phase will take."""
        num_left = self._end_step(phase.last_epoch) - self.progress.step
        if num_left < _FEWEST_STEPS_TO_TIME:
            return
        seconds = self._time_step(steps, optimizer) * num_left
        what = "the training" if len(self._phases) == 1 else f"this phase ({phase.name})"
        self._devices.say(
            f"{what} will take about {describe_seconds(seconds)} here, in "
            f"{phase.last_epoch + 1 - self.progress.epoch} epochs; --epochs N makes the run "
            "shorter or longer",
        )

    def _time_step(self, steps: Steps, optimizer: keras.optimizers.Optimizer) -> float:
        """Returns the seconds of a training step, by a few steps that are then undone."""
        variables = [*self._variables, *optimizer.variables]
        before = [variable.numpy() for variable in variables]
        trial = steps.iterate(self._training_batches())
        steps.train(trial, 1)  # builds the graph
        watch = callbacks.Stopwatch()
        steps.train(trial, _TIMED_STEPS)
        seconds = watch.lap() / _TIMED_STEPS
        steps.sync()
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        return seconds

    def _training_batches(self) -> Any:
        return feed.training_batches(
            self._config,
            self._devices,
            self._setup.parts.train,
            start_step=self.progress.step,
        )

    def _train_epoch(self, phase: Phase, loop: _Loop) -> None:
        config, progress = self._config, self.progress
        last_step = self._end_step(progress.epoch)
        meter = callbacks.EpochMeter(**progress.totals)
        watch = callbacks.Stopwatch()
        while progress.step < last_step:
            num_steps = min(config.steps_per_execution, last_step - progress.step)
            loop.tracer.before(progress.step + 1, num_steps)
            watch.lap()
            results = loop.steps.train(loop.batches, num_steps)
            seconds = watch.lap()
            loop.watchdog.restart()
            callbacks.check_finite(results.loss_sums, progress.step + 1)
            progress.step += num_steps
            loop.tracer.after(progress.step)
            loop.guard.check(loop.steps.num_traces, progress.step)
            meter.add(results, seconds, timed=loop.warm)
            loop.warm = True
            progress.totals = meter.totals()
            loop.bar.set_postfix_str(f"loss {meter.loss:.4f}", refresh=False)
            loop.bar.update(int(results.num_examples.sum()))
            if progress.step < last_step:
                if loop.stop.received is not None or loop.checkpoint_is_due(config):
                    self._save_checkpoint(loop)
                loop.raise_if_stopped(progress.step)
        self._end_epoch(phase, loop, meter)
        loop.raise_if_stopped(progress.step)

    def _end_epoch(self, phase: Phase, loop: _Loop, meter: callbacks.EpochMeter) -> None:
        progress, devices = self.progress, self._devices
        loop.steps.sync()
        row: dict[str, Any] = {
            "epoch": progress.epoch + 1,
            "phase": phase.name,
            "step": progress.step,
            "loss": meter.loss,
            self._setup.task.quantity: meter.accuracy,
        }
        if self._setup.parts.val is not None:
            row |= self._validate(loop.steps, loop.optimizer)
        row |= {
            "learning_rate": float(keras.ops.convert_to_numpy(loop.optimizer.learning_rate)),
            "seconds": meter.seconds,
            **meter.speed(),
            **callbacks.memory_megabytes(devices.backend, devices.on_gpu),
        }
        progress.history.append(row)
        progress.totals = {}
        if self._update_best(row):
            progress.best_epoch = row["epoch"]
            trained = self._network.logits.trainable_variables
            with averaged_weights(loop.optimizer, trained):
                self.best = [variable.numpy() for variable in self._variables]
        is_last = row["epoch"] == self._config.epochs
        if is_last or loop.stop.received is not None or loop.checkpoint_is_due(self._config):
            if devices.is_chief:
                write_json(self._setup.workdir / HISTORY_NAME, progress.history)
            self._save_checkpoint(loop)
        if devices.is_chief and is_shown(row["epoch"], self._config.epochs):
            loop.bar.write(describe_epoch(row, self._config.epochs), file=sys.stdout)
            sys.stdout.flush()
        share = row["input_wait_share"]
        if share is not None and share > callbacks.INPUT_BOUND_SHARE and not loop.has_warned:
            loop.has_warned = True
            devices.say(
                f"warning: {share:.0%} of the time was spent waiting for input. Put the data on "
                "a local disk (engine mmap), or try a larger batch",
            )

    def _update_best(self, row: Mapping[str, Any]) -> bool:
        """Returns whether an epoch replaces the one that is kept, and notes its value if so."""
        progress = self.progress
        if self._config.best_by == "last" or "val_loss" not in row:
            return True
        value = row["val_loss"] if self._config.best_by == "val_loss" else -row["val_accuracy"]
        # NaN must not become the best value, because no later value compares below it. The first
        # epoch is kept in any case.
        better = progress.best_value is None or value < progress.best_value
        if math.isfinite(value) and better:
            progress.best_value = value
            return True
        return not progress.best_epoch

    def _validate(self, steps: Steps, optimizer: keras.optimizers.Optimizer) -> dict[str, float]:
        assert self._setup.parts.val is not None
        with averaged_weights(optimizer, self._network.logits.trainable_variables):
            probabilities, truths = self._setup.predict(steps, self._setup.parts.val)
        return {
            "val_loss": self._setup.task.mean_loss(probabilities, truths),
            f"val_{self._setup.task.quantity}": self._setup.task.progress(probabilities, truths),
        }

    def _save_checkpoint(self, loop: _Loop) -> None:
        loop.steps.sync()
        if self._devices.is_chief:
            checkpoint.save(
                self._setup.workdir / CHECKPOINT_NAME,
                {
                    "model": self._variables,
                    "optimizer": loop.optimizer.variables,
                    "best": self.best,
                },
                dataclasses.asdict(self.progress),
            )
        loop.since_checkpoint.lap()


@dataclasses.dataclass
class _Loop:
    """What the epochs of a phase share."""

    steps: Steps
    optimizer: keras.optimizers.Optimizer
    batches: Any
    stop: callbacks.StopSignal
    watchdog: callbacks.Watchdog
    tracer: tracing.Tracer
    guard: callbacks.RetraceGuard
    bar: tqdm
    warm: bool = False
    has_warned: bool = False
    since_checkpoint: callbacks.Stopwatch = dataclasses.field(default_factory=callbacks.Stopwatch)

    def checkpoint_is_due(self, config: TrainConfig) -> bool:
        return self.since_checkpoint.seconds >= config.checkpoint_seconds

    def raise_if_stopped(self, step: int) -> None:
        if self.stop.received is not None:
            raise callbacks.StoppedError(self.stop.received, step)


def _count_labels(manifest: tfrecord_io.Manifest) -> str:
    number, kind = manifest.num_classes, manifest.label_kind
    return f"{number} {kind.noun if number == 1 else kind.plural}"

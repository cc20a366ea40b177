"""The training of one network: epochs and steps, with a checkpoint to go on from."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from tqdm import tqdm

from tfrecord_io.auditing.findings import alarms
from tfrecord_io.stores.files import write_json
from tfrecord_io.terminal import flags
from tfrecord_io.terminal.printing import counted, printable
from train.data import feed
from train.machine import console
from train.machine.errors import TrainingError
from train.machine.places import RunFolder
from train.networks.models import Network, restore
from train.networks.optimizers import averaged_weights
from train.training import monitors
from train.training.checkpoint import (
    BEST_NAME,
    CHECKPOINT_NAME,
    HISTORY_NAME,
    load_checkpoint,
    save_checkpoint,
)
from train.training.session import Session
from train.training.steps import Steps

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

# Names in a checkpoint of the sums over an epoch, see `StepResults.totals`.
_SUMS = ("loss_sum", "num_correct", "num_examples")

#: Seconds between two checkpoints, beside those after the last epoch and after a signal.
CHECKPOINT_SECONDS = 120.0


@dataclasses.dataclass(kw_only=True)
class Progress:
    """Where a run stands; with the variables, all that is needed to go on.

    Attributes:
        step: training steps done.
        totals: sums over the epoch that is not finished.
        history: one row for each finished epoch.
    """

    step: int = 0
    totals: dict[str, float] = dataclasses.field(default_factory=dict)
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @property
    def epoch(self) -> int:
        """The epoch to go on with, counted from 0."""
        return len(self.history)


def train(session: Session, folder: RunFolder) -> tuple[Progress, Sequence[np.ndarray]]:
    """Trains from the last checkpoint, or from the first weights, to the last epoch.

    Returns:
        the progress, and the values of the network's variables after the last epoch: the moving
        averages, if the optimizer keeps any. They are in the folder, too, as `BEST_NAME`.

    Raises:
        UserError: if the images do not suit the network, or the weights cannot be loaded.
        TrainingError: if the loss stops being a number, a graph is traced again, or a checkpoint
            is damaged or does not suit the network; or, with the state saved, after a signal.
    """
    facts, saved = load_checkpoint(folder.path / CHECKPOINT_NAME)
    progress, config, first = Progress(**facts), session.config, session.first
    network = session.build_network(
        config.devices.precision,
        weights="none" if progress.step or first else config.network.weights,
        values=saved["model"],
    )
    if first and not progress.step:
        first.load(network)
    _announce(session, progress, network.model.count_params())
    if progress.epoch < (config.input.epochs or 0):
        steps = session.training_steps(network)
        if progress.step:
            restore(steps.optimizer.variables, saved["optimizer"])
        if config.network.fine_tunes:
            trained = sum(
                math.prod(variable.shape) for variable in network.model.trainable_variables
            )
            print(f"training {trained:,} of these parameters", flush=True)
        loop = _Loop(
            session=session, folder=folder, network=network, steps=steps, progress=progress
        )
        loop.run_epochs()
    # A kill or a power cut may have taken the history, which is written before each checkpoint.
    write_json(folder.path / HISTORY_NAME, progress.history)
    _, kept = load_checkpoint(path := folder.path / BEST_NAME)
    if not kept["model"]:
        raise TrainingError(f"{path} is missing; remove {CHECKPOINT_NAME} to train again")
    return progress, kept["model"]


@dataclasses.dataclass(kw_only=True, eq=False)
class _Loop:
    """The epochs of a training, with a checkpoint to go on from."""

    session: Session
    folder: RunFolder
    network: Network
    steps: Steps
    progress: Progress

    def run_epochs(self) -> None:
        """Trains from where the progress stands to the last epoch."""
        from tensorboard.summary import Writer

        session, progress, part = self.session, self.progress, self.session.parts.train
        options, val = session.config.input, session.parts.val
        self._epochs, self._saved_at = options.epochs or 0, time.monotonic()
        self._val = val and feed.evaluation_batches(session.data, val, options, session.devices)
        done = part.num_examples * progress.epoch + progress.totals.get("num_examples", 0)
        settings = {"leave": False, "dynamic_ncols": True, "disable": not sys.stderr.isatty()}
        with (
            monitors.stop_signals() as self._stops,
            contextlib.closing(Writer(str(self.folder.path / "tensorboard"))) as writer,
            tqdm(
                desc="training",
                unit=" images",
                initial=int(done),
                total=part.num_examples * self._epochs,
                **settings,
            ) as self._bar,
        ):
            batches = self.steps.iterate(self.session.training_batches(progress.step))
            while progress.epoch < self._epochs:
                self._run_epoch(batches)
                for tag, value in progress.history[-1].items():
                    if isinstance(value, int | float) and tag not in ("epoch", "step"):
                        writer.add_scalar(tag, value, progress.step)
                writer.flush()

    def _run_epoch(self, batches: Any) -> None:
        """Trains to the end of the epoch, measures the validation part, and saves the state."""
        progress, last_step = self.progress, self.session.steps_after[self.progress.epoch + 1]
        sums = np.array([progress.totals.get(name, 0.0) for name in _SUMS])
        # Of the steps that are timed: examples, steps, seconds, seconds of waiting for input.
        seconds, timed = 0.0, np.zeros(4)
        while progress.step < last_step:
            # The first call of a graph also builds it, and is not timed.
            is_warm, started = self.steps.num_traces > 0, time.monotonic()
            totals, waited = self.steps.train(batches)
            took = time.monotonic() - started
            progress.step += 1
            if not math.isfinite(totals[0]):
                raise TrainingError(
                    f"the loss is {totals[0]} at step {progress.step}: the weights went out of "
                    "range before it. Lower --lr, raise --warmup_steps, or use --precision "
                    "float32. The last checkpoint is older than that step"
                )
            if self.steps.num_traces > 1:
                raise TrainingError(
                    f"the training graph was traced again before step {progress.step}, which "
                    "costs minutes and memory; feed it tensors of one shape and dtype, and no "
                    "Python numbers that change"
                )
            # Summing float64 in order gives a resumed epoch the same bits.
            sums += totals
            progress.totals = dict(zip(_SUMS, sums.tolist(), strict=True))
            seconds += took
            timed += is_warm * np.array([totals[2], 1, took, waited])
            self._bar.set_postfix_str(f"loss {sums[0] / max(sums[2], 1):.4f}", refresh=False)
            self._bar.update(int(totals[2]))
            is_due = time.monotonic() - self._saved_at >= CHECKPOINT_SECONDS
            if progress.step < last_step and (is_due or self._stops):
                self._save()
        self._end_epoch(sums, seconds, timed)
        if is_last := progress.epoch == self._epochs:
            # Kept before the checkpoint that says it is done. The names travel with the outputs,
            # for a run that starts from them.
            manifest = self.session.data.manifest
            facts = {"epoch": progress.epoch, "label_names": manifest.label_names}
            model, path = self.network.model, self.folder.path / BEST_NAME
            with averaged_weights(self.steps.optimizer, self.network.logits.trainable_variables):
                save_checkpoint(path, {"model": model.variables}, facts | manifest.label_kind.entry)
        if is_last or self._stops or time.monotonic() - self._saved_at >= CHECKPOINT_SECONDS:
            self._save()

    def _end_epoch(self, sums: np.ndarray, seconds: float, timed: np.ndarray) -> None:
        """Adds the epoch to the history, and prints its line."""
        progress, task, optimizer = self.progress, self.session.task, self.steps.optimizer
        self.steps.sync()
        loss, accuracy = (sums[:2] / sums[2]).tolist()
        num_timed, num_steps, of_timed, waited = timed.tolist()
        is_head = progress.epoch < (self.session.config.network.head_epochs or 0)
        row: dict[str, Any] = {"epoch": progress.epoch + 1, "phase": "head" if is_head else "all"}
        row |= {"step": progress.step, "loss": loss, "accuracy": accuracy}
        if self._val is not None:
            with averaged_weights(optimizer, self.network.logits.trainable_variables):
                answers = self.steps.predict(self._val)
            row["val_loss"], row["val_accuracy"] = task.loss_and_accuracy(*answers)
        row |= {
            "learning_rate": float(keras.ops.convert_to_numpy(optimizer.learning_rate)),
            "seconds": seconds,
            "images_per_second": num_timed / of_timed if of_timed else None,
            "step_ms": 1000 * of_timed / num_steps if of_timed else None,
            "input_wait_share": waited / of_timed if of_timed else None,
            **monitors.memory_megabytes(self.session.devices),
        }
        progress.history.append(row)
        progress.totals = {}
        number, last = progress.epoch, self._epochs
        if not number % max(1, last // 20) or number == last:  # a long run prints about 20
            known = [name for name in _FORMATS if row.get(name) is not None]
            line = [f"epoch {number}/{last}", *(_FORMATS[name].format(row[name]) for name in known)]
            self._bar.write(" · ".join(line), file=sys.stdout)
            sys.stdout.flush()

    def _save(self) -> None:
        """Saves the state.

        Raises:
            TrainingError: if the process was asked to stop.
        """
        self.steps.sync()
        model, optimizer = self.network.model.variables, self.steps.optimizer.variables
        write_json(self.folder.path / HISTORY_NAME, self.progress.history)
        groups = {"model": model, "optimizer": optimizer}
        facts = dataclasses.asdict(self.progress)
        save_checkpoint(self.folder.path / CHECKPOINT_NAME, groups, facts)
        self.folder.save()
        self._saved_at = time.monotonic()
        if self._stops:
            number = self._stops[0]
            raise TrainingError(
                f"stopped by {signal.Signals(number).name} after step {self.progress.step}; the "
                "state is saved; run the same command again to continue",
                128 + number,
            )


def _announce(session: Session, progress: Progress, num_parameters: int) -> None:
    """Prints what a training is before it starts or goes on."""
    config, devices, parts = session.config, session.devices, session.parts
    options, manifest = config.input, session.data.manifest
    kind, num_copies = manifest.label_kind, int(session.data.is_copy(parts.train).sum())
    labels = kind.noun if manifest.num_classes == 1 else kind.plural
    copies = f" and {counted(num_copies, 'augmented copy', 'augmented copies')} of them"
    print(
        f"{config.network.model}, {num_parameters:,} parameters, "
        f"{parts.train.num_examples - num_copies:,} training images of "
        f"{'x'.join(map(str, manifest.image_shape))}{copies if num_copies else ''}, "
        f"{manifest.num_classes} {labels}"
    )
    print(
        f"{devices.num_replicas} x {devices.names[0].split(':')[0]} on {devices.backend}, "
        f"{config.devices.precision}; {options.global_batch_size} images a step, "
        f"{options.replica_batch_size} on each device; "
        f"{session.steps_after[-1]:,} steps in {counted(options.epochs or 0, 'epoch')}"
    )
    for alarm in alarms(manifest.audit):
        console.warn(printable(alarm))
    if parts.evaluated is None:
        print(
            "note: there are no validation and no test images, so this run ends with the exported "
            f"model and without metrics; {flags.command('evaluate')} measures it on another "
            "dataset, or build this one with --splits patient"
        )
    elif parts.test is None:
        print("note: there is no test split; the metrics will be of the validation")
    if progress.epoch == options.epochs:
        print("the training is done; going on with the evaluation")
    elif progress.step:
        print(f"going on after step {progress.step:,}, in epoch {progress.epoch + 1}")
    sys.stdout.flush()

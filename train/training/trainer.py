"""The run: train, keep one epoch's weights, export them, evaluate them once on the test split.

`train_and_evaluate(config, workdir)` does it all and can be killed at any moment. Called again with
the same configuration, it goes on at the next example after a stop, and at the last checkpoint
after a kill. A checkpoint holds the variables, the optimizer, the best weights and `Progress`;
everything else in the folder is written from them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from tqdm import tqdm

import tfrecord_io
from tfrecord_io.trunk import Trunk, find_trunk
from train.config import ConfigError, TrainConfig
from train.feeding import feed
from train.feeding.examples import read_examples
from train.feeding.parts import Part, Parts, choose_parts, read_statistics
from train.measuring import metrics
from train.measuring.predictions import Predictions
from train.measuring.tasks import Task, training_task
from train.networks import features
from train.networks.models import Network, build_network, grey_factor_of, set_trainable
from train.networks.optimizers import averaged_weights, make_optimizer
from train.results import report, run_results
from train.strategy import Devices, configure_devices, set_precision, set_seed
from train.training import callbacks, checkpoint, export, tracing
from train.training.steps import Objective, Steps, make_steps
from train.workdir import (
    BEST_NAME,
    CHECKPOINT_NAME,
    HISTORY_NAME,
    METRICS_NAME,
    claim,
    write_json,
    write_metrics,
)

# Number of steps that are timed before a phase, and the fewest steps left for which that is done.
_TIMED_STEPS = 5
_FEWEST_STEPS_TO_TIME = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """Some epochs in which the same layers are trained by the same optimizer.

    Attributes:
        name: `head` or `all`, see `models.set_trainable`.
        first_epoch: counted from 0.
        last_epoch: of the phase, included.
        learning_rate: peak.
    """

    name: str
    first_epoch: int
    last_epoch: int
    learning_rate: float


@dataclasses.dataclass(kw_only=True)
class Progress:
    """Where a run stands; with the variables, all that is needed to go on.

    Attributes:
        step: training steps done.
        phase: name of the phase of the last step done.
        totals: sums over the epoch that is not finished.
        history: one row for each finished epoch.
        best_epoch: epoch of the weights that are kept, counted from 1; 0 if there is none yet.
        best_value: validation loss, or minus the accuracy, of that epoch: smaller is better.
    """

    step: int = 0
    phase: str = ""
    totals: dict[str, float] = dataclasses.field(default_factory=dict)
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    best_epoch: int = 0
    best_value: float | None = None

    @property
    def epoch(self) -> int:
        """The epoch to go on with, counted from 0."""
        return len(self.history)


def plan_phases(config: TrainConfig, *, has_backbone: bool) -> list[Phase]:
    """Returns the phases of a resolved configuration, in order.

    Args:
        config: resolved.
        has_backbone: whether there are layers below the head that can be frozen.
    """
    fine_tunes = has_backbone and config.pretrained
    head_epochs = (config.head_epochs or 0) if has_backbone else 0
    if fine_tunes and config.trainable_layers == 0:
        head_epochs = config.epochs
    rest_rate = config.fine_tune_learning_rate if fine_tunes else config.learning_rate
    phases = (
        ("head", 0, head_epochs, config.learning_rate),
        ("all", head_epochs, config.epochs, rest_rate),
    )
    return [
        Phase(name=name, first_epoch=first, last_epoch=end - 1, learning_rate=rate)
        for name, first, end, rate in phases
        if first < end
    ]


def train_and_evaluate(
    config: TrainConfig, workdir: str | os.PathLike[str], given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Trains, evaluates and exports; goes on where an earlier call with this folder stopped.

    Args:
        config: what to do.
        workdir: the folder of the run, made if it is missing.
        given: the flags of the command line, if there is one, see `features.refuse_flags`.

    Returns:
        the content of metrics.json, see `metrics.evaluate_predictions`.

    Raises:
        ConfigError: if the configuration does not suit the data, the devices or the folder.
        tfrecord_io.ManifestError: if the dataset cannot be used.
        TrainingError: if the loss stops being a number, or a graph is traced again.
        StoppedError: after SIGTERM or SIGINT, with the state saved.
    """
    devices = configure_devices(config)
    manifest = tfrecord_io.Manifest.load(config.data)
    trunk = find_trunk(config.data, manifest)
    if trunk is not None:
        features.refuse_flags(config.data, trunk, given or {})
        config = features.adapt(config, trunk)
        devices.say(
            f"features of {trunk.model} up to {trunk.layer}: the layers above are trained; "
            "augmentation and the mirror image need images and are off"
        )
    if config.folds and config.fold is None:
        from train.training import folds

        return folds.cross_validate(config, Path(workdir), manifest, trunk, devices)
    return train_once(config, Path(workdir), manifest, trunk, devices)


def train_once(
    config: TrainConfig,
    workdir: Path,
    manifest: tfrecord_io.Manifest,
    trunk: Trunk | None,
    devices: Devices,
) -> dict[str, Any]:
    """Trains, evaluates and exports one network, see `train_and_evaluate`.

    Args:
        config: of a single run; adapted, if there is a trunk.
        workdir: see `train_and_evaluate`.
        manifest: of the dataset.
        trunk: of the dataset; None for images.
        devices: the configured devices.
    """
    parts, task, config = plan_run(config, manifest, devices)
    set_seed(config.seed)
    with claim(workdir, config, manifest, devices):
        if (path := workdir / METRICS_NAME).exists():
            try:
                results = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise ConfigError(
                    f"{path} is damaged ({error}); remove it, and the same command evaluates the "
                    "run again"
                ) from None
            devices.say(f"{workdir} holds this run complete; nothing to do")
            return results
        run = _Run(config, workdir, manifest, parts, task, devices, trunk)
        run.train()
        return run.finish()


def plan_run(
    config: TrainConfig, manifest: tfrecord_io.Manifest, devices: Devices
) -> tuple[Parts, Task, TrainConfig]:
    """Returns what a run trains on, what it learns, and its resolved configuration.

    Args:
        config: as the user gave it.
        manifest: of the dataset.
        devices: of the run.

    Raises:
        ConfigError: if the configuration does not suit the data or the devices.
    """
    parts = choose_parts(config, manifest)
    task = training_task(manifest.label_kind, config.data, parts.train)
    if config.best_by == "val_accuracy" and task.quantity != "accuracy":
        raise ConfigError("--best_by val_accuracy needs classes or labels; use val_loss")
    resolved = config.resolve(
        num_examples=parts.train.num_examples,
        num_replicas=devices.num_replicas,
        precision=devices.best_precision,
        jit_compile=devices.best_jit_compile,
    )
    return parts, task, resolved


class _Run:
    """One call of `train_and_evaluate`: the network, its progress and the folder."""

    def __init__(
        self,
        config: TrainConfig,
        workdir: Path,
        manifest: tfrecord_io.Manifest,
        parts: Parts,
        task: Task,
        devices: Devices,
        trunk: Trunk | None,
    ) -> None:
        self._config = config
        self._trunk = trunk
        self._workdir = workdir
        self._manifest = manifest
        self._devices = devices
        self._parts = parts
        self._num_examples = parts.train.num_examples
        self._task = task
        self._statistics = (
            read_statistics(config.data, parts.train) if config.normalize == "data" else None
        )
        self._objective = Objective.from_config(
            config,
            self._task.class_weights(
                parts.train.label_counts,
                self._num_examples,
                config.class_weight_power if config.class_weights == "balanced" else 0.0,
            ),
            grey_factor_of(manifest),
            self._task,
        )
        facts = checkpoint.load_facts(workdir / CHECKPOINT_NAME)
        self._progress = Progress(**facts) if facts else Progress()
        self._network = self._build_network(
            config.precision, weights="none" if self._progress.step else config.weights
        )
        self._phases = plan_phases(config, has_backbone=self._network.backbone is not None)
        # The weights of the epoch to keep, on the host: each checkpoint holds them, so that a
        # kill can never leave the weights of one epoch beside the name of another.
        self._best: list[np.ndarray] = []
        if facts:
            checkpoint.restore(workdir / CHECKPOINT_NAME, {"model": self._variables})
            self._best = checkpoint.load_arrays(workdir / CHECKPOINT_NAME, "best")
        self._announce()

    @property
    def _variables(self) -> list[keras.Variable]:
        # Includes the states of random generators and of batch normalization.
        return self._network.model.variables

    def _build_network(
        self,
        precision: str,
        *,
        weights: str | None = "none",
        temperature: float = 1.0,
        is_final: bool = False,
    ) -> Network:
        """Builds the network; `weights` are "none" where a checkpoint overrides them all."""
        set_precision(precision)
        with self._devices.scope():
            if self._trunk is not None:
                return features.build_network(
                    self._config, self._trunk, self._manifest, self._task, temperature=temperature
                )
            return build_network(
                dataclasses.replace(self._config, weights=weights),
                image_shape=self._manifest.image_shape,
                num_classes=self._manifest.num_classes,
                task=self._task,
                image_dtype=self._manifest.dtype,
                grey_factor=grey_factor_of(self._manifest),
                statistics=self._statistics,
                temperature=temperature,
                # Not in what is exported: other backends refuse to load it.
                synchronized=self._devices.must_synchronize and not is_final,
            )

    def _announce(self) -> None:
        config, devices, progress = self._config, self._devices, self._progress
        shape = "x".join(str(side) for side in self._manifest.image_shape)
        devices.say(
            f"{config.model}, {self._network.model.count_params():,} parameters, "
            f"{self._num_examples:,} training {'images' if self._trunk is None else 'features'} "
            f"of {shape}, " + _count_labels(self._manifest),
        )
        devices.say(
            f"{devices.num_replicas} x {devices.names[0].split(':')[0]} on {devices.backend}, "
            f"{config.precision}; global batch {config.global_batch_size}, "
            f"{config.replica_batch_size} a replica; "
            f"{self._end_step(config.epochs - 1):,} steps in {config.epochs} epochs",
        )
        weights = self._parts.train.weights
        if weights is not None:
            devices.say(
                f"images count by the column weight of the table of labels: {weights.min():.3g} to "
                f"{weights.max():.3g} times the mean",
            )
        if self._parts.val is None:
            devices.say("note: there are no validation images, so the last epoch is kept")
        if self._parts.evaluated is None:
            devices.say(
                "note: there are no test images either, so this run ends with the exported model "
                "and without metrics; python train/evaluate.py measures it on another dataset, "
                "or build this one with --splits patient",
            )
        elif self._parts.test is None:
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

    def train(self) -> None:
        """Trains from where the progress stands to the last epoch."""
        config, progress = self._config, self._progress
        if progress.epoch == config.epochs:
            return
        bar = callbacks.progress_bar(
            total=self._num_examples * config.epochs,
            done=int(self._num_examples * progress.epoch + progress.totals.get("num_examples", 0)),
        )
        directory = self._workdir / "tensorboard" if self._devices.is_chief else None
        board = callbacks.TensorBoardWriter(directory)
        batches: Any = None
        with (
            # With several workers one alone cannot stop between steps: all take part in each.
            callbacks.StopSignal(enabled=self._devices.num_workers == 1) as stop,
            callbacks.Watchdog(
                config.step_timeout, self._workdir / f"stacks-{self._devices.worker_index}.txt"
            ) as watchdog,
            tracing.Tracer(
                config.profile_steps, self._workdir / "profile", self._devices.backend
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
        config, progress = self._config, self._progress
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
            objective=self._objective,
            jit_compile=bool(config.jit_compile),
        )
        if progress.step > first_step:
            checkpoint.restore(self._workdir / CHECKPOINT_NAME, {"optimizer": optimizer.variables})
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
        num_left = self._end_step(phase.last_epoch) - self._progress.step
        if num_left < _FEWEST_STEPS_TO_TIME:
            return
        seconds = self._time_step(steps, optimizer) * num_left
        what = "the training" if len(self._phases) == 1 else f"this phase ({phase.name})"
        self._devices.say(
            f"{what} will take about {_describe_seconds(seconds)} here, in "
            f"{phase.last_epoch + 1 - self._progress.epoch} epochs; --epochs N makes the run "
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
            self._parts.train,
            start_step=self._progress.step,
        )

    def _train_epoch(self, phase: Phase, loop: _Loop) -> None:
        config, progress = self._config, self._progress
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
        progress, devices = self._progress, self._devices
        loop.steps.sync()
        row: dict[str, Any] = {
            "epoch": progress.epoch + 1,
            "phase": phase.name,
            "step": progress.step,
            "loss": meter.loss,
            self._task.quantity: meter.accuracy,
        }
        if self._parts.val is not None:
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
                self._best = [variable.numpy() for variable in self._variables]
        is_last = row["epoch"] == self._config.epochs
        if is_last or loop.stop.received is not None or loop.checkpoint_is_due(self._config):
            if devices.is_chief:
                write_json(self._workdir / HISTORY_NAME, progress.history)
            self._save_checkpoint(loop)
        if devices.is_chief and _is_shown(row["epoch"], self._config.epochs):
            loop.bar.write(_describe_epoch(row, self._config.epochs), file=sys.stdout)
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
        progress = self._progress
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
        assert self._parts.val is not None
        with averaged_weights(optimizer, self._network.logits.trainable_variables):
            probabilities, truths = self._predict(steps, self._parts.val)
        return {
            "val_loss": self._task.mean_loss(probabilities, truths),
            f"val_{self._task.quantity}": self._task.progress(probabilities, truths),
        }

    def _save_checkpoint(self, loop: _Loop) -> None:
        loop.steps.sync()
        if self._devices.is_chief:
            checkpoint.save(
                self._workdir / CHECKPOINT_NAME,
                {
                    "model": self._variables,
                    "optimizer": loop.optimizer.variables,
                    "best": self._best,
                },
                dataclasses.asdict(self._progress),
            )
        loop.since_checkpoint.lap()

    def finish(self) -> dict[str, Any]:
        """Exports the weights that were kept, evaluates them, and writes the results.

        Both use the exported network, in float32 whatever the training used, so the report is
        exactly what the export and `predict` compute.
        """
        self._devices = self._devices.alone()
        devices, manifest, progress = self._devices, self._manifest, self._progress
        self._load_best()
        parts = self._parts
        val = temperature = None
        if parts.val is not None:
            val = self._predict_best(parts.val)
            # What is reported of a part must not be fitted to it.
            if parts.test is not None and self._task.gives_probabilities:
                temperature = self._task.fit_temperature(*val)
                self._load_best(temperature)
        # Before the evaluation: whatever may fail in it, the model is not lost.
        if devices.is_chief:
            has_saved_model = self._export()
            if not has_saved_model:
                devices.say(
                    f"note: the export has no {export.SAVED_MODEL_NAME}, which TensorFlow writes"
                )
            checkpoint.save(
                self._workdir / BEST_NAME,
                {"model": self._variables},
                {"epoch": progress.best_epoch},
            )
        results: dict[str, Any] = {
            "split": parts.evaluated.name if parts.evaluated else None,
            "best_epoch": progress.best_epoch,
            "steps": progress.step,
        }
        predictions = None
        if parts.evaluated is not None:
            predictions = self._predictions_of(parts.evaluated, temperature)
        if not devices.is_chief:
            return results
        if predictions is not None:
            results |= run_results.measure(predictions, manifest.label_names, self._config)
        if predictions is not None and temperature is not None and val is not None:
            results |= run_results.measure_calibration(
                predictions,
                val=val,
                temperature=temperature,
                label_names=manifest.label_names,
                config=self._config,
            )
        run_results.write_results(
            self._workdir,
            manifest=manifest,
            config=self._config,
            results=results,
            predictions=predictions,
            # Pictures of the mistakes need images.
            predict=self._predict_images if self._trunk is None else None,
            history=progress.history,
        )
        # Again: a run that goes on from its last checkpoint does not repeat the epoch, and a kill
        # or a power cut may have taken the file.
        write_json(self._workdir / HISTORY_NAME, progress.history)
        write_metrics(self._workdir, results)
        if predictions is not None:
            print(metrics.describe(results))
        print(f"The model, its metrics and {report.FILE_NAME} are in {self._workdir}")
        return results

    def _export(self) -> bool:
        """Exports the network, with the trunk below it if there is one; see `export_model`."""
        model, manifest, precision = self._network.model, self._manifest, "float32"
        if self._trunk is not None:
            # A rounding error of the trunk can become a step of the type that features are stored
            # in.
            precision = manifest.dtype
            with self._devices.scope():
                model = features.whole_model(self._config, self._network)
            manifest = features.manifest_of_images(manifest, self._trunk)
        return export.export_model(
            model, self._workdir / export.FOLDER_NAME, manifest, precision=precision
        )

    def _predictions_of(self, part: Part, temperature: float | None) -> Predictions:
        """Returns what the exported network, with its temperature if it has one, says of a part."""
        probabilities, truths = self._predict_best(part)
        return Predictions(
            task=self._task,
            probabilities=probabilities,
            truths=truths,
            examples=read_examples(self._config.data, part.splits, part.examples),
            part=part,
            uncalibrated=(
                None if temperature is None else self._task.cool(probabilities, 1 / temperature)
            ),
        )

    def _predict_images(self, images: np.ndarray) -> np.ndarray:
        return keras.ops.convert_to_numpy(self._network.model(images, training=False))

    def _load_best(self, temperature: float = 1.0) -> None:
        """Builds the network to export: float32, with the weights that were kept."""
        self._network = self._build_network("float32", temperature=temperature, is_final=True)
        for variable, value in zip(self._variables, self._best, strict=True):
            variable.assign(value)

    def _predict_best(self, part: Part) -> tuple[np.ndarray, np.ndarray]:
        steps = make_steps(
            self._network, None, self._devices, objective=self._objective, jit_compile=False
        )
        probabilities, truths = self._predict(steps, part)
        if not np.isfinite(probabilities).all():
            raise callbacks.TrainingError(
                f"the network answers with probabilities that are not numbers on {part.name}: its "
                "weights went out of range in the last steps. Train again, in another --workdir, "
                "with a lower --learning_rate, more --warmup_steps, or --precision float32"
            )
        return probabilities, truths

    def _predict(self, steps: Steps, part: Part) -> tuple[np.ndarray, np.ndarray]:
        """Returns (probabilities float32 [num_examples, num_labels], truths) of a part."""
        batches = steps.iterate(feed.evaluation_batches(self._config, self._devices, part))
        parts = list(steps.predict(batches))
        labels = np.concatenate([labels for _, labels in parts])
        return np.concatenate([rows for rows, _ in parts]), self._task.truths(labels)


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


def _is_shown(epoch: int, epochs: int) -> bool:
    """Returns whether a line is printed for an epoch; a long run prints about 20."""
    every = max(1, epochs // 20)
    return epoch % every == 0 or epoch == epochs


# Format of each quantity of history.json in the line that is printed for an epoch.
_EPOCH_FORMATS = {
    "loss": ".4f", "accuracy": ".1%", "mae": ".4g",
    "val_loss": ".4f", "val_accuracy": ".1%", "val_mae": ".4g",
}  # fmt: skip


def _describe_epoch(row: Mapping[str, Any], epochs: int) -> str:
    parts = [
        f"epoch {row['epoch']}/{epochs}",
        *(f"{name} {row[name]:{digits}}" for name, digits in _EPOCH_FORMATS.items() if name in row),
    ]
    if row["images_per_second"] is not None:
        parts += [f"{row['images_per_second']:,.0f} images/s", f"{row['step_ms']:.1f} ms a step"]
    if row["input_wait_share"] is not None:
        parts.append(f"input-bound {row['input_wait_share']:.1%}")
    parts.append(f"{row['peak_rss_mb']:,.0f} MB")
    if "peak_gpu_mb" in row:
        parts.append(f"GPU {row['peak_gpu_mb']:,.0f} MB")
    return " · ".join(parts)


def _describe_seconds(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"
